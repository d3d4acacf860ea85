// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PackedArena`]: named parts of one allocation, packed as close as the driver's granularity lets them, with no driver call
//! each.
//!
//! Allocations of their own take whole 2 MiB pages each, or share chunks with holes between them; the parts of an arena share
//! all of its pages. The ledger shows them as a tree under the arena.

use core::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

use metrale_ledger::{AllocKind, ByteSize, LiveAllocation, SubRangeError, file_line};
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::error::{BadArgument, Result, causes};
use crate::memory::ArenaOwner;
use crate::memory::arena_space::{ARENA_GRANULE, ArenaSpace};
use crate::memory::owned::GivenUp;
use crate::raw_handles::DevicePtr;

/// Why an arena does not do what was asked. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// No free stretch is long enough.
    #[error(
        "no space for {name} ({}, aligned to {align}) in the arena of {} from {}: it holds {parts} parts, {} are \
         free, {} the longest stretch; make the arena larger, or free parts",
        ByteSize(*bytes), ByteSize(*arena_bytes), file_line(arena_site), ByteSize(*free_bytes), ByteSize(*largest_hole_bytes)
    )]
    NoSpace {
        /// The name that was to be.
        name: String,
        /// Bytes asked for.
        bytes: u64,
        /// Alignment asked for.
        align: u64,
        /// The arena's bytes.
        arena_bytes: u64,
        /// The line that made the arena.
        arena_site: &'static Location<'static>,
        /// Parts in it.
        parts: usize,
        /// Bytes that are free in all.
        free_bytes: u64,
        /// Bytes of the longest free stretch.
        largest_hole_bytes: u64,
    },
    /// What was to be freed is no part of this arena, or no longer; the line of the first free is told where it is known.
    #[error("free_part called at {}: {cause}", file_line(site))]
    NotAPart {
        /// The line that called.
        site: &'static Location<'static>,
        /// What is wrong.
        cause: SubRangeError,
    },
    /// The ledger refuses the part: the arena was freed by its address.
    #[error("{name} cannot be put into its arena: {cause}")]
    Refused {
        /// The name that was to be.
        name: String,
        /// What is wrong.
        cause: SubRangeError,
    },
}

/// One allocation that is split into named parts, which are told by their addresses. Made by
/// [`MetraleCudaBackend::packed_arena`]. [`Arena`](crate::Arena) is the owner over it, whose parts are buffers.
///
/// [`alloc`](crate::GpuMemory::alloc) and [`free_part`](Self::free_part) ask no driver and may be called from any thread. Dropped or
/// [freed](crate::GpuMemory::free), the arena goes back whole, and all parts with it: nothing may use them any more. Nobody else frees it:
/// `free_arena` refuses its address.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{MetraleCudaBackend, PackedArena};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let backend = MetraleCudaBackend::builder().driver(Arc::new(SimDriver::new(Profile::h200()))).build()?;
/// let sizes = [3 << 20, 4096, 100, 3 << 20];
/// let bytes = PackedArena::bytes_for(sizes).expect("below 2^64");
/// let arena = backend.packed_arena(bytes)?;
/// let weight = arena.alloc("layers.0.weight", 3 << 20)?;
/// let bias = arena.alloc("layers.0.bias", 4096)?;
/// assert_eq!(bias, weight.offset(3 << 20));
/// backend.copy_h2d(&[7; 4096], bias)?;
/// # if cfg!(feature = "ledger") {
/// // A part's end is as good as an allocation's.
/// assert!(backend.copy_h2d(&[7; 4097], bias).is_err());
/// assert!(backend.alloc_report(10, 0).contains("layers.0.bias"));
/// # }
/// arena.free_part(bias)?;
/// arena.free()?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct PackedArena<B: Deref<Target = MetraleCudaBackend>> {
    backend: B,
    base: DevicePtr,
    bytes: usize,
    site: &'static Location<'static>,
    space: Mutex<ArenaSpace>,
    is_freed: bool,
}

causes! { ArenaError: BadArgument }

impl MetraleCudaBackend {
    /// Allocates an arena of `bytes` bytes, rounded up to whole 512, as its parts and the driver count them, to allocate named parts
    /// from. Blocks and fails as
    /// [`GpuMemory::alloc_arena`](crate::GpuMemory::alloc_arena).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn packed_arena(&self, bytes: usize) -> Result<PackedArena<&Self>> {
        PackedArena::new(self, bytes, Location::caller())
    }

    /// Whether a copy or fill that begins in a part of an arena leaves it: the part, as an allocation.
    ///
    /// What spans whole parts, from the first byte of one to the last of another or of the arena, is meant to.
    pub(crate) fn leaves_part(
        &self,
        addr: u64,
        bytes: u64,
        arena: &LiveAllocation,
    ) -> Option<LiveAllocation> {
        if arena.record.kind != AllocKind::Arena {
            return None;
        }
        let ledger = self.ledger_writer().ledger();
        let part = ledger.sub_range_at(addr)?;
        let end_of = |addr: u64, bytes: usize| addr.saturating_add(bytes as u64);
        let end = addr.saturating_add(bytes);
        if end <= end_of(part.addr, part.bytes) {
            return None;
        }
        let ends_a_part = || {
            let last = ledger.sub_range_at(end - 1);
            last.is_some_and(|last| end_of(last.addr, last.bytes) == end)
        };
        let is_whole = addr == part.addr && (end == end_of(arena.addr, arena.record.bytes) || ends_a_part());
        (!is_whole).then(|| part.as_allocation())
    }
}

impl PackedArena<&MetraleCudaBackend> {
    /// Bytes of an arena that holds parts of these sizes, allocated in any order without an alignment of their own; `None` where 64 bits
    /// do not count them. As `metrale_ledger::plan` counts it, before whole pages.
    #[must_use]
    pub fn bytes_for(sizes: impl IntoIterator<Item = usize>) -> Option<usize> {
        let sum = sizes.into_iter().try_fold(0_u64, |sum, bytes| {
            sum.checked_add((bytes as u64).checked_next_multiple_of(ARENA_GRANULE)?)
        });
        usize::try_from(sum?).ok()
    }
}

impl PackedArena<Arc<MetraleCudaBackend>> {
    /// The backend it is of.
    pub(crate) fn backend(&self) -> &Arc<MetraleCudaBackend> {
        &self.backend
    }
}

impl<B: Deref<Target = MetraleCudaBackend>> PackedArena<B> {
    pub(crate) fn new(backend: B, bytes: usize, site: &'static Location<'static>) -> Result<Self> {
        // More than can be rounded up is more than there is.
        let bytes = bytes.checked_next_multiple_of(ARENA_GRANULE as usize).unwrap_or(bytes);
        let base = backend.alloc_owned_arena(bytes, ArenaOwner::Packed, site)?;
        let space = Mutex::new(ArenaSpace::new(base.0, bytes as u64));
        Ok(Self { backend, base, bytes, site, space, is_freed: false })
    }

    /// Allocates a part of `bytes` bytes under a name, aligned to 512. Asks no driver; allowed during a capture. The memory is not cleared.
    ///
    /// # Errors
    /// [`ArenaError::NoSpace`]; [`BadArgument`](crate::BadArgument) for 0 bytes; [`ArenaError::Refused`] where the arena was
    /// freed by its address.
    #[track_caller]
    pub fn alloc(&self, name: &str, bytes: usize) -> Result<DevicePtr> {
        self.alloc_at(name, bytes, 1, Location::caller())
    }

    /// [`alloc`](crate::GpuMemory::alloc) with an alignment, a power of two.
    ///
    /// # Errors
    /// As there; [`BadArgument`](crate::BadArgument) for another alignment.
    #[track_caller]
    pub fn alloc_aligned(&self, name: &str, bytes: usize, align: usize) -> Result<DevicePtr> {
        self.alloc_at(name, bytes, align, Location::caller())
    }

    fn alloc_at(
        &self,
        name: &str,
        bytes: usize,
        align: usize,
        site: &'static Location<'static>,
    ) -> Result<DevicePtr> {
        if bytes == 0 {
            return Err(BadArgument::new(format!(
                "{name} of 0 bytes at {}: skip it, and use null for an empty tensor",
                file_line(site)
            ))
            .into());
        }
        if !align.is_power_of_two() {
            return Err(BadArgument::new(format!(
                "{name} aligned to {align} at {}: give a power of two",
                file_line(site)
            ))
            .into());
        }
        let mut space = self.space.lock();
        let Some(offset) = space.alloc(bytes as u64, align as u64) else {
            return Err(ArenaError::NoSpace {
                name: name.to_owned(),
                bytes: bytes as u64,
                align: align as u64,
                arena_bytes: self.bytes as u64,
                arena_site: self.site,
                parts: space.parts(),
                free_bytes: space.free_bytes(),
                largest_hole_bytes: space.largest_hole_bytes(),
            }
            .into());
        };
        // Under the lock, so that another thread's part at this place ends before this one begins.
        if let Err(cause) = self.backend.ledger_writer().begin_part(self.base.0, offset, bytes, name, site) {
            space.free(offset);
            return Err(ArenaError::Refused { name: name.to_owned(), cause }.into());
        }
        Ok(self.base.offset(offset))
    }

    /// Frees a part, by its first byte, so that another can be put there. Asks no driver and waits for nothing: work that still
    /// uses the part must be ordered before the work that uses its place next. Null does nothing.
    ///
    /// # Errors
    /// [`ArenaError::NotAPart`]: freed before (with both lines), inside a part, or a part of another arena.
    /// [`PinnedByGraph`](crate::PinnedByGraph) where a graph or a capture uses it.
    #[track_caller]
    pub fn free_part(&self, part: DevicePtr) -> Result<()> {
        if part.is_null() {
            return Ok(());
        }
        let site = Location::caller();
        let _unpinned = self.backend.unpinned_part(part.0, "free_part", site)?;
        let mut space = self.space.lock();
        let offset = part.0.checked_sub(self.base.0).filter(|&offset| offset < self.bytes as u64);
        let cause = match offset {
            Some(offset) => match self.backend.ledger_writer().end_part(part.0) {
                Ok(()) if space.free(offset) => return Ok(()),
                Ok(()) => SubRangeError::Unknown { addr: part.0 },
                Err(cause) => cause,
            },
            None => SubRangeError::Unknown { addr: part.0 },
        };
        Err(ArenaError::NotAPart { site, cause }.into())
    }

    /// The arena's first byte.
    #[must_use]
    pub const fn base(&self) -> DevicePtr {
        self.base
    }

    /// Its bytes: what was asked for, rounded up to whole 512.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Parts in it.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.space.lock().parts()
    }

    /// Bytes in no part.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.space.lock().free_bytes()
    }

    /// Frees the arena, and all parts with it. As [`GpuMemory::free_arena`](crate::GpuMemory::free_arena).
    ///
    /// # Errors
    /// As there; the arena then stays on the ledger, with its parts and without an owner: `free_arena` frees it by its address, and
    /// the backend's drop tries again.
    #[track_caller]
    pub fn free(mut self) -> Result<()> {
        self.free_once("PackedArena::free")
    }

    /// Frees it. Refused, it has no owner any more, and can be freed by its address.
    #[track_caller]
    fn free_once(&mut self, call: &'static str) -> Result<()> {
        self.is_freed = true;
        let freed = self.backend.free_kind(self.base, AllocKind::Arena, call, Some(ArenaOwner::Packed));
        if freed.is_err() {
            self.backend.owned_arenas().abandon(self.base.0);
        }
        freed
    }
}

impl<B: Deref<Target = MetraleCudaBackend>> Drop for PackedArena<B> {
    fn drop(&mut self) {
        if self.is_freed {
            return;
        }
        self.is_freed = true;
        if let Err(error) = self.backend.free_now_or_later(GivenUp::Arena(self.base), Location::caller()) {
            self.backend.owned_arenas().abandon(self.base.0);
            let site = metrale_ledger::file_line(self.site);
            tracing::error!("the arena from {site} could not be freed when it was dropped: {error:#}");
        }
    }
}

impl<B: Deref<Target = MetraleCudaBackend>> fmt::Debug for PackedArena<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedArena")
            .field("base", &self.base)
            .field("bytes", &self.bytes)
            .field("site", &self.site)
            .field("parts", &self.parts())
            .finish_non_exhaustive()
    }
}

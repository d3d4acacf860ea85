// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for owners: allocated with the index that tells it from what is at its address later, and freed now or as soon as
//! it may.

use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::error::{CallFailed, Error};
use crate::graph::{Capturing, PinnedByGraph, is_of_captures};
use crate::memory::pinned_ptr::PinnedPtr;
use crate::raw_handles::DevicePtr;

pub(crate) type Site = &'static Location<'static>;

/// Device memory that somebody owns: its address, its bytes, and the creation index by which it is told from other memory
/// at the same address, earlier or later. Made by [`GpuMemory::alloc_owned`](crate::GpuMemory::alloc_owned).
///
/// Dropped, it frees nothing: hand it to [`GpuMemory::free_owned`](crate::GpuMemory::free_owned).
/// [`DeviceBuffer`](crate::DeviceBuffer) does that by itself.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is not given to `free_owned` is on the ledger until the sweep"]
pub struct OwnedMemory {
    pub(crate) ptr: DevicePtr,
    bytes: usize,
    pub(crate) index: u64,
}

impl OwnedMemory {
    pub(crate) const fn new(ptr: DevicePtr, bytes: usize, index: u64) -> Self {
        Self { ptr, bytes, index }
    }

    /// For implementations of [`GpuMemory`](crate::GpuMemory) outside this crate.
    ///
    /// # Safety
    /// The memory is the caller's to free, and nobody else has a value of this type for it. `index` is one that no other memory
    /// of the backend has at that address, ever; 0 where the backend does not tell.
    pub const unsafe fn from_raw(ptr: DevicePtr, bytes: usize, index: u64) -> Self {
        Self::new(ptr, bytes, index)
    }

    /// Its address.
    #[must_use]
    pub const fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its bytes as asked for.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its creation index; see [`AllocRecord::index`](crate::AllocRecord::index).
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }
}

/// When memory that an owner gave up is freed.
#[derive(Debug)]
#[must_use]
pub enum Freed {
    /// It was freed.
    Now,
    /// It stays on the ledger and is freed as soon as it may, for this reason: [`Capturing`], until this thread's capture has
    /// ended; [`PinnedByGraph`], until the graph is destroyed; [`CallFailed`] with a status of captures, until the capture of
    /// another library has ended and something else is freed.
    Later(Error),
}

/// Memory that its owner gave up.
#[derive(Debug)]
pub(crate) enum GivenUp {
    Device(OwnedMemory),
    Pinned(PinnedPtr),
    /// Of a packed arena.
    Arena(DevicePtr),
}

/// Memory whose owners gave it up when it could not be freed.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// The number in the list, to be read without the lock.
    count: AtomicUsize,
    waiting: Mutex<Vec<(GivenUp, Site)>>,
}

impl Deferred {
    pub(crate) fn add(&self, memory: GivenUp, site: Site) {
        let mut waiting = self.waiting.lock();
        waiting.push((memory, site));
        self.count.store(waiting.len(), Ordering::Relaxed);
    }

    /// Takes the whole list.
    pub(crate) fn take(&self) -> Vec<(GivenUp, Site)> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        self.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut waiting)
    }
}

/// Whether a refused free may succeed later.
pub(crate) fn may_later(error: &Error) -> bool {
    // Or a capture that another library began, which makes the driver refuse.
    let is_captures = |failed: &CallFailed| is_of_captures(failed.driver);
    error.is::<Capturing>()
        || error.is::<PinnedByGraph>()
        || error.downcast_ref::<CallFailed>().is_some_and(is_captures)
}

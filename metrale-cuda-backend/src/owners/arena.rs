// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Arena`]: one allocation whose parts are buffers of their own.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::{BadArgument, Result};
use crate::graph::FreesLater;
use crate::memory::PackedArena;
use crate::owners::buffer::DeviceBuffer;
use crate::owners::part::{Part, SharedArena};
use crate::owners::shared::SharedBackend;
use crate::raw_handles::DevicePtr;

/// One allocation of device memory that is split into named [`DeviceBuffer`]s, as close as the driver's granularity lets them, with
/// no driver call each. The ledger shows them as a tree under the arena.
///
/// A clone is the same arena. Its memory is freed when the last clone and the last buffer in it are dropped, or as soon after as
/// it may be: when the capture of that thread has ended, or the graph that uses it is destroyed.
///
/// Dropping a buffer of the arena gives its place to the next one at once, and waits for nothing: order work that still uses the
/// old buffer before the work of the new one, by a stream or an event. A place that a graph uses is not given out before the
/// graph is destroyed.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{Arena, GpuBackend, MetraleCudaBackend};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let driver = Arc::new(SimDriver::new(Profile::h200()));
/// # let gpu: Arc<dyn GpuBackend> = Arc::new(MetraleCudaBackend::builder().driver(driver).build()?);
/// let arena = Arena::new(&gpu, Arena::bytes_for([4 * 1000, 100]).expect("below 2^64"))?;
/// let mut weight = arena.alloc::<f32>("layers.0.weight", 1000)?;
/// let bias = arena.alloc::<u8>("layers.0.bias", 100)?;
/// weight.copy_from(&[0.5; 1000])?;
/// assert_eq!(arena.parts(), 2);
/// drop(bias); // its place is free again
/// assert_eq!(arena.parts(), 1);
/// # Ok::<(), metrale_cuda_backend::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena(Arc<SharedArena>);

impl Arena {
    /// Allocates an arena of `bytes` bytes, rounded up to whole 512. Blocks as
    /// [`GpuMemory::alloc_arena`](crate::GpuMemory::alloc_arena).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn new(gpu: &impl SharedBackend, bytes: usize) -> Result<Self> {
        Ok(Self(Arc::new(SharedArena::new(gpu.share().packed_arena_shared(bytes)?))))
    }

    /// Bytes of an arena that holds parts of these sizes in bytes, allocated in any order; `None` where 64 bits do not count
    /// them.
    #[must_use]
    pub fn bytes_for(sizes: impl IntoIterator<Item = usize>) -> Option<usize> {
        PackedArena::bytes_for(sizes)
    }

    /// A buffer of `len` elements in the arena, under a name and the caller's line, aligned to 512 bytes. Asks no driver; allowed
    /// during a capture. The memory is not cleared. One of no bytes takes no place.
    ///
    /// # Errors
    /// [`ArenaError::NoSpace`](crate::ArenaError::NoSpace); [`BadArgument`] for more bytes than an address counts.
    #[track_caller]
    pub fn alloc<T: Pod>(&self, name: &str, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            BadArgument::new(format!(
                "{name} of {len} elements of {} bytes: that is more than an address can count",
                size_of::<T>()
            ))
        })?;
        self.0.free_waiting();
        let part = if bytes == 0 {
            None
        } else {
            let ptr = self.0.arena.alloc_aligned(name, bytes, align_of::<T>())?;
            Some(Part { arena: Arc::clone(&self.0), ptr, bytes })
        };
        Ok(DeviceBuffer::in_arena(self.0.arena.backend().share(), part, len))
    }

    /// Its first byte.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        self.0.arena.base()
    }

    /// Its bytes: what was asked for, rounded up to whole 512.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.arena.bytes()
    }

    /// Buffers in it, with those that are dropped and that a graph still uses.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.0.free_waiting();
        self.0.arena.parts()
    }

    /// Bytes in no buffer.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.0.free_waiting();
        self.0.arena.free_bytes()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.arena.fmt(f)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DeviceBuffer`]: device memory of one element type, freed when it is dropped.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::{BadArgument, Result};
use crate::gpu::GpuBackend;
use crate::memory::{Freed, OwnedMemory};
use crate::owners::kept::log_kept;
use crate::owners::part::Part;
use crate::owners::shared::SharedBackend;
use crate::owners::slice::{DeviceSlice, DeviceSliceMut};
use crate::raw_handles::DevicePtr;

/// `len` elements of device memory, on the ledger under the line that allocated them.
///
/// `T` is what any bytes make a valid value of, and what has no padding ([`Pod`]): numbers, arrays of them, `f16` and `bf16`
/// of the `half` crate with its feature `bytemuck`, and an engine's own `#[repr(C)]` types.
///
/// Dropped on any thread, the memory is freed. Where it may not be freed now, because the thread captures or a graph uses it,
/// it stays on the ledger and is freed as soon as it may: when the capture has ended, or the graph is destroyed. The free
/// waits for work in flight that could use it. [`close`](Self::close) does the same and tells how it went.
///
/// Its methods are the blocking ones, which are complete when they return; those in the order of a stream are the
/// [`Stream`](crate::Stream)'s.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{DeviceBuffer, GpuBackend, MetraleCudaBackend};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let driver = Arc::new(SimDriver::new(Profile::h200()));
/// let gpu: Arc<dyn GpuBackend> = Arc::new(MetraleCudaBackend::builder().driver(driver).build()?);
///
/// let mut weights = DeviceBuffer::from_slice(&gpu, &[1.0_f32, 2.0, 3.0])?;
/// weights.slice_mut(1..)?.copy_from(&[5.0, 8.0])?;
/// assert_eq!(weights.to_vec()?, [1.0, 5.0, 8.0]);
/// drop(weights); // freed
/// assert_eq!(gpu.live_bytes(), 0);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct DeviceBuffer<T: Pod> {
    gpu: Arc<dyn GpuBackend>,
    /// None where the elements take no bytes, and after it was given up.
    memory: Option<Memory>,
    len: usize,
    elements: PhantomData<T>,
}

/// What a buffer owns.
enum Memory {
    Allocation(OwnedMemory),
    Part(Part),
}

impl Memory {
    fn ptr(&self) -> DevicePtr {
        match self {
            Self::Allocation(memory) => memory.ptr(),
            Self::Part(part) => part.ptr,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Allocation(memory) => memory.bytes(),
            Self::Part(part) => part.bytes,
        }
    }

    #[track_caller]
    fn free(self, gpu: &Arc<dyn GpuBackend>) -> Result<Freed> {
        match self {
            Self::Allocation(memory) => gpu.free_owned(memory).inspect(|freed| freed.watch(gpu)),
            Self::Part(part) => part.release(),
        }
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates `len` elements, which are not cleared: they have the bytes that the memory had before. A buffer of no bytes
    /// takes no memory. May block as [`GpuMemory::alloc`](crate::GpuMemory::alloc) does.
    ///
    /// # Errors
    /// As [`GpuMemory::alloc`](crate::GpuMemory::alloc); [`BadArgument`] for more bytes than an address counts.
    #[track_caller]
    pub fn new(gpu: &impl SharedBackend, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            BadArgument::new(format!(
                "a buffer of {len} elements of {} bytes: that is more than an address can count",
                size_of::<T>()
            ))
        })?;
        let gpu = gpu.share();
        let memory = if bytes > 0 { Some(Memory::Allocation(gpu.alloc_owned(bytes)?)) } else { None };
        Ok(Self { gpu, memory, len, elements: PhantomData })
    }

    /// A buffer in an arena.
    pub(crate) fn in_arena(gpu: Arc<dyn GpuBackend>, part: Option<Part>, len: usize) -> Self {
        Self { gpu, memory: part.map(Memory::Part), len, elements: PhantomData }
    }

    /// [`new`](Self::new) with all bytes zero. Blocks.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`GpuCopies::memset`](crate::GpuCopies::memset).
    #[track_caller]
    pub fn zeroed(gpu: &impl SharedBackend, len: usize) -> Result<Self> {
        let mut buffer = Self::new(gpu, len)?;
        buffer.as_mut_slice().fill_bytes(0)?;
        Ok(buffer)
    }

    /// [`new`](Self::new) with a copy of `elements`. Blocks.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`GpuCopies::copy_h2d`](crate::GpuCopies::copy_h2d).
    #[track_caller]
    pub fn from_slice(gpu: &impl SharedBackend, elements: &[T]) -> Result<Self> {
        let mut buffer = Self::new(gpu, elements.len())?;
        buffer.copy_from(elements)?;
        Ok(buffer)
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The address of the first element, for kernel arguments and raw calls; null where there are no bytes. It is good as long
    /// as the buffer.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.memory.as_ref().map_or(DevicePtr::NULL, Memory::ptr)
    }

    /// The backend it is of.
    #[must_use]
    pub const fn gpu(&self) -> &Arc<dyn GpuBackend> {
        &self.gpu
    }

    /// Its name on the ledger, as [`GpuMemory::tag`](crate::GpuMemory::tag).
    #[must_use]
    pub fn tagged(self, name: &str) -> Self {
        self.gpu.tag(self.ptr(), name);
        self
    }

    /// All elements, to read.
    #[must_use]
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(&self.gpu, self.ptr(), self.len)
    }

    /// All elements, to write.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        let ptr = self.ptr();
        DeviceSliceMut::new(&self.gpu, ptr, self.len)
    }

    /// Some of the elements, to read.
    ///
    /// # Errors
    /// [`BadArgument`] for a range that leaves the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>, BadArgument> {
        self.as_slice().slice(range)
    }

    /// Some of the elements, to write.
    ///
    /// # Errors
    /// [`BadArgument`] for a range that leaves the buffer.
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceSliceMut<'_, T>, BadArgument> {
        self.as_mut_slice().slice(range)
    }

    /// Copies all elements from the host. Blocks: valid on every stream at return.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_h2d`](crate::GpuCopies::copy_h2d); [`BadArgument`] for another number of elements.
    pub fn copy_from(&mut self, src: &[T]) -> Result<()> {
        self.as_mut_slice().copy_from(src)
    }

    /// Copies all elements to the host. Blocks.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_d2h`](crate::GpuCopies::copy_d2h); [`BadArgument`] for another number of elements.
    pub fn copy_to(&self, dst: &mut [T]) -> Result<()> {
        self.as_slice().copy_to(dst)
    }

    /// A copy of all elements on the host. Blocks.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_d2h`](crate::GpuCopies::copy_d2h).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }

    /// Frees the memory, as dropping the buffer does, and says how that went.
    ///
    /// # Errors
    /// As [`GpuMemory::free_owned`](crate::GpuMemory::free_owned).
    #[track_caller]
    pub fn close(mut self) -> Result<Freed> {
        self.memory.take().map_or(Ok(Freed::Now), |memory| memory.free(&self.gpu))
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let (ptr, bytes) = (memory.ptr(), memory.bytes());
        match memory.free(&self.gpu) {
            Ok(Freed::Now) => {}
            Ok(Freed::Later(reason)) => {
                tracing::debug!("{bytes} bytes at {ptr} are freed later: {reason:#}");
            }
            Err(error) => log_kept(format_args!("a buffer of {bytes} bytes at {ptr}"), &error),
        }
    }
}

impl<T: Pod> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("ptr", &format_args!("{}", self.ptr()))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<'a, T: Pod> From<&'a DeviceBuffer<T>> for DeviceSlice<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.as_slice()
    }
}

impl<'a, T: Pod> From<&'a mut DeviceBuffer<T>> for DeviceSliceMut<'a, T> {
    fn from(buffer: &'a mut DeviceBuffer<T>) -> Self {
        buffer.as_mut_slice()
    }
}

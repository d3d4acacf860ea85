// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PinnedBuffer`]: pinned host memory of one element type, freed when it is dropped and nothing uses it any more.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use parking_lot::Mutex;

use crate::error::{BadArgument, Remedy, Result};
use crate::gpu::GpuBackend;
use crate::memory::{Freed, PinnedPtr};
use crate::owners::event::Event;
use crate::owners::kept::log_kept;
use crate::owners::shared::{SharedBackend, same_driver};
use crate::owners::slice::{DeviceSlice, DeviceSliceMut, same_len};
use crate::owners::stream::Stream;
use crate::raw_handles::{DevicePtr, EventHandle};

/// `len` elements of page-locked host memory, which the device reads and writes by itself: copies from and to it do not keep the
/// host waiting.
///
/// The buffer knows which copies use it. [`as_slice`](Self::as_slice) waits for those that write it,
/// [`as_mut_slice`](Self::as_mut_slice) for all, and so does dropping it, on any thread. What may not be freed then, because
/// the thread captures or a graph uses it, is freed as soon as it may; [`close`](Self::close) tells how that went.
///
/// `T` is as for [`DeviceBuffer`](crate::DeviceBuffer).
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{DeviceBuffer, GpuBackend, MetraleCudaBackend, PinnedBuffer, Stream};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let driver = Arc::new(SimDriver::new(Profile::h200()));
/// # let gpu: Arc<dyn GpuBackend> = Arc::new(MetraleCudaBackend::builder().driver(driver).build()?);
/// let stream = Stream::new(&gpu)?;
/// let mut logits = DeviceBuffer::<f32>::new(&gpu, 4)?;
/// let mut host = PinnedBuffer::from_slice(&gpu, &[1.0_f32, 2.0, 3.0, 4.0])?;
/// stream.copy_from_pinned(&host, &mut logits)?; // queued
/// host.as_mut_slice()?.fill(0.0); // waits until it is read
/// stream.copy_to_pinned(&logits, &mut host)?; // queued
/// assert_eq!(host.as_slice()?, [1.0, 2.0, 3.0, 4.0]); // waits until it is written
/// # Ok::<(), metrale_cuda_backend::Error>(())
/// ```
pub struct PinnedBuffer<T: Pod> {
    gpu: Arc<dyn GpuBackend>,
    /// None where the elements take no bytes, and after it was given up.
    memory: Option<PinnedPtr>,
    len: usize,
    in_flight: Mutex<Vec<InFlight>>,
    elements: PhantomData<T>,
}

/// Copies on one stream that use a buffer.
#[derive(Clone)]
struct InFlight {
    stream: Stream,
    /// Recorded behind the last of them.
    mark: Event,
    /// How many there were.
    count: u64,
    /// Whether one of them writes to the buffer.
    writes: bool,
    /// Where the last of them is in device memory.
    device: DevicePtr,
}

impl InFlight {
    fn wait(&self) -> Result<()> {
        self.stream.gpu().wait_for_mark(self.mark.handle(), self.stream.handle(), self.device)
    }
}

impl<T: Pod> PinnedBuffer<T> {
    /// Allocates `len` elements, all zero. A buffer of no bytes takes no memory. May block for long, as
    /// [`GpuMemory::alloc_pinned`](crate::GpuMemory::alloc_pinned).
    ///
    /// # Errors
    /// As there; [`BadArgument`] for more bytes than an address counts.
    #[track_caller]
    pub fn new(gpu: &impl SharedBackend, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            BadArgument::new(format!(
                "a pinned buffer of {len} elements of {} bytes: that is more than an address can count",
                size_of::<T>()
            ))
        })?;
        let gpu = gpu.share();
        let memory = if bytes > 0 { Some(gpu.alloc_pinned(bytes)?) } else { None };
        if let Some(memory) = memory
            && memory.as_ptr().addr() % align_of::<T>() != 0
        {
            let _ = gpu.free_pinned(memory);
            return Err(BadArgument::new(format!(
                "a pinned buffer of elements aligned to {} bytes: the driver gave {memory}, which is no multiple of that",
                align_of::<T>()
            ))
            .into());
        }
        Ok(Self { gpu, memory, len, in_flight: Mutex::default(), elements: PhantomData })
    }

    /// [`new`](Self::new) with a copy of `elements`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn from_slice(gpu: &impl SharedBackend, elements: &[T]) -> Result<Self> {
        let mut buffer = Self::new(gpu, elements.len())?;
        buffer.as_mut_slice()?.copy_from_slice(elements);
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

    /// The backend it is of.
    #[must_use]
    pub const fn gpu(&self) -> &Arc<dyn GpuBackend> {
        &self.gpu
    }

    /// The address of the first element, for `unsafe` calls; null where there are no bytes. Copies that are queued by it are
    /// not known to the buffer.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut T {
        match self.memory {
            Some(memory) => memory.as_ptr().cast(),
            None => core::ptr::null_mut(),
        }
    }

    /// The elements. Waits for copies that write them.
    ///
    /// # Errors
    /// As [`GpuStreams::synchronize_event`](crate::GpuStreams::synchronize_event); nothing writes the elements any more then
    /// either.
    pub fn as_slice(&self) -> Result<&[T]> {
        self.wait(|copies| copies.writes)?;
        let Some(memory) = self.memory else { return Ok(&[]) };
        // SAFETY: the buffer owns the memory, which is initialized; no copy writes it now, and none that does is queued while the
        // slice is borrowed, since that takes the buffer mutably.
        Ok(cast_slice(unsafe { memory.as_slice() }))
    }

    /// The elements, to write. Waits for all copies that use them.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.wait(|_| true)?;
        let Some(memory) = self.memory else { return Ok(&mut []) };
        // SAFETY: the buffer owns the memory, which is initialized; no copy uses it now, and none is queued while the slice is
        // borrowed, since the buffer is borrowed mutably.
        Ok(cast_slice_mut(unsafe { memory.as_mut_slice() }))
    }

    /// Frees the memory, as dropping the buffer does, and says how that went.
    ///
    /// # Errors
    /// As [`GpuMemory::free_pinned_owned`](crate::GpuMemory::free_pinned_owned).
    #[track_caller]
    pub fn close(mut self) -> Result<Freed> {
        self.give_up()
    }

    /// Waits for the copies that fit, and forgets those that use the memory no more.
    fn wait(&self, fits: impl Fn(&InFlight) -> bool) -> Result<()> {
        let fitting: Vec<_> = self.in_flight.lock().iter().filter(|copies| fits(copies)).cloned().collect();
        let mut first = Ok(());
        for copies in fitting {
            // Not under the lock: another thread may have to queue a copy of this buffer before this one can be done.
            let waited = copies.wait();
            let is_over = waited.as_ref().map_or_else(|error| error.remedy() == Remedy::Relaunch, |()| true);
            if is_over {
                // Unless another was queued on the stream meanwhile, which has moved the mark.
                let is_it = |now: &InFlight| {
                    now.stream.handle() == copies.stream.handle() && now.count == copies.count
                };
                self.in_flight.lock().retain(|now| !is_it(now));
            }
            first = first.and(waited);
        }
        first
    }

    /// Queues a copy on a stream and keeps it in mind. `queue` gets the event to record behind it.
    fn copy_on(
        &self,
        stream: &Stream,
        device: DevicePtr,
        writes: bool,
        queue: impl FnOnce(EventHandle) -> Result<()>,
    ) -> Result<()> {
        // Over the call: a thread that asks for the elements meanwhile waits for this copy too.
        let mut in_flight = self.in_flight.lock();
        let known = in_flight.iter_mut().find(|copies| copies.stream.handle() == stream.handle());
        let mark = match known {
            Some(copies) => {
                copies.count += 1;
                copies.writes |= writes;
                copies.device = device;
                copies.mark.handle()
            }
            None => {
                let mark = Event::new(stream.gpu())?;
                let handle = mark.handle();
                in_flight.push(InFlight { stream: stream.clone(), mark, count: 1, writes, device });
                handle
            }
        };
        queue(mark)
    }

    #[track_caller]
    fn give_up(&mut self) -> Result<Freed> {
        let waited = self.wait(|_| true);
        let Some(memory) = self.memory.take() else { return waited.map(|()| Freed::Now) };
        self.gpu.free_pinned_owned(memory).inspect(|freed| freed.watch(&self.gpu))
    }
}

impl Stream {
    /// Copies all elements of a pinned buffer to the device in the order of the stream. Does not block; the buffer knows of the
    /// copy and keeps its elements until that is done.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_h2d_async_marked`](crate::GpuCopies::copy_h2d_async_marked); [`BadArgument`] for another number of
    /// elements. Refused while the stream captures, whose graph would read the buffer at every replay.
    pub fn copy_from_pinned<'d, T: Pod>(
        &self,
        src: &PinnedBuffer<T>,
        dst: impl Into<DeviceSliceMut<'d, T>>,
    ) -> Result<()> {
        let dst = dst.into();
        same_len("copying from a pinned buffer", src.len, dst.len())?;
        same_driver("copying from a pinned buffer", self.gpu(), dst.gpu())?;
        same_driver("copying from a pinned buffer", self.gpu(), &src.gpu)?;
        let Some(memory) = src.memory else { return Ok(()) };
        src.copy_on(self, dst.ptr(), false, |mark| {
            let from = memory.as_ptr().cast_const();
            // SAFETY: the memory is the buffer's, which waits for the mark before it lends the memory to be written or frees it.
            unsafe { self.gpu().copy_h2d_async_marked(from, src.bytes(), dst.ptr(), self.handle(), mark) }
        })
    }

    /// Copies elements of the device to all of a pinned buffer in the order of the stream. Does not block; the buffer waits for
    /// the copy before it is read.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_d2h_async_marked`](crate::GpuCopies::copy_d2h_async_marked); [`BadArgument`] for another number of
    /// elements. Refused while the stream captures, whose graph would write the buffer at every replay.
    pub fn copy_to_pinned<'s, T: Pod>(
        &self,
        src: impl Into<DeviceSlice<'s, T>>,
        dst: &mut PinnedBuffer<T>,
    ) -> Result<()> {
        let src = src.into();
        same_len("copying to a pinned buffer", src.len(), dst.len)?;
        same_driver("copying to a pinned buffer", self.gpu(), src.gpu())?;
        same_driver("copying to a pinned buffer", self.gpu(), &dst.gpu)?;
        let Some(memory) = dst.memory else { return Ok(()) };
        dst.copy_on(self, src.ptr(), true, |mark| {
            // SAFETY: the memory is the buffer's, which is borrowed mutably now, and which waits for the mark before it lends
            // the memory or frees it.
            unsafe {
                self.gpu().copy_d2h_async_marked(src.ptr(), memory.as_ptr(), dst.bytes(), self.handle(), mark)
            }
        })
    }
}

impl<T: Pod> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        let (handle, bytes) = (self.memory, self.bytes());
        let Some(handle) = handle else { return };
        match self.give_up() {
            Ok(Freed::Now) => {}
            Ok(Freed::Later(reason)) => {
                tracing::debug!("{handle} of {bytes} bytes is freed later: {reason:#}");
            }
            Err(error) => log_kept(format_args!("{handle} of {bytes} bytes"), &error),
        }
    }
}

impl<T: Pod> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("pinned", &self.memory)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

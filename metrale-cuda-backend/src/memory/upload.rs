// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Uploader`]: many copies to the device through two pinned buffers, so that the host fills one while the device reads
//! the other.

use core::mem;
use std::sync::Arc;

use crate::error::{BadArgument, Result};
use crate::gpu::GpuBackend;
use crate::memory::PinnedPtr;
use crate::memory::end::End;
use crate::owners::SharedBackend;
use crate::raw_handles::{DevicePtr, EventHandle, StreamHandle};

/// Copies host memory of any kind, such as a mapped file, to the device as fast as pinned memory goes.
///
/// ```text
///   source ──memcpy──> buffer A ──DMA──> device        the device reads A while the host fills B;
///                      buffer B                         an event after the last copy of each says when it may be filled anew
/// ```
///
/// Small pieces share a buffer, large ones are cut. It has a stream of its own. What was uploaded is valid on every stream
/// after [`finish`](Self::finish).
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{MetraleCudaBackend, Uploader};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let backend = Arc::new(MetraleCudaBackend::builder().driver(Arc::new(SimDriver::new(Profile::h200()))).build()?);
/// let weights = vec![7_u8; 100_000];
/// let at = backend.alloc(weights.len())?;
///
/// let mut uploader = Uploader::new(&backend, 64 << 10)?;
/// uploader.upload(&weights, at)?; // `weights` may go now
/// assert_eq!(uploader.finish()?, 100_000);
/// # drop(uploader);
/// # backend.free(at)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Uploader {
    gpu: Arc<dyn GpuBackend>,
    stream: StreamHandle,
    /// The one being filled is `slots[0]`.
    slots: [StagingSlot; 2],
    queued_bytes: u64,
}

/// One pinned buffer.
struct StagingSlot {
    buffer: PinnedPtr,
    /// Recorded after the last copy out of the buffer.
    event: EventHandle,
    /// Bytes from the start that copies are reading or will read.
    used_bytes: usize,
    /// Recorded since the buffer was last known to be at rest.
    in_flight: bool,
}

impl Uploader {
    /// Makes two pinned buffers of `buffer_bytes` each, an event for each, and a stream. 4 to 64 MiB serve well.
    ///
    /// # Errors
    /// As [`alloc_pinned`](crate::GpuMemory::alloc_pinned) and [`create_stream`](crate::GpuStreams::create_stream);
    /// nothing is left.
    #[track_caller]
    pub fn new(gpu: &impl SharedBackend, buffer_bytes: usize) -> Result<Self> {
        if buffer_bytes == 0 {
            return Err(BadArgument::new("an uploader with buffers of 0 bytes: give it some MiB").into());
        }
        let gpu = gpu.share();
        let backend = &*gpu;
        let stream = backend.create_stream()?;
        let undo = |error| {
            tell(backend.destroy_stream(stream));
            error
        };
        let first = StagingSlot::new(backend, buffer_bytes).map_err(undo)?;
        match StagingSlot::new(backend, buffer_bytes) {
            Ok(second) => Ok(Self { gpu, stream, slots: [first, second], queued_bytes: 0 }),
            Err(error) => {
                tell(first.free(backend));
                Err(undo(error))
            }
        }
    }

    /// Queues a copy of `data` to `dst`; `data` may be changed or dropped at once. Waits only for a buffer that the device
    /// is still reading.
    ///
    /// # Errors
    /// As [`copy_h2d`](crate::GpuCopies::copy_h2d), with nothing queued; the driver's refusals.
    pub fn upload(&mut self, data: &[u8], dst: DevicePtr) -> Result<()> {
        const WHAT: &str = "uploading";
        if data.is_empty() {
            return Ok(());
        }
        // All of it before any is queued; each piece is checked again when it is.
        if let Some(backend) = self.gpu.cuda_backend() {
            drop(backend.within(WHAT, End::Destination, dst, data.len() as u64)?);
        }
        let mut done = 0;
        while done < data.len() {
            if self.slots[0].used_bytes == self.slots[0].buffer.len() {
                self.turn()?;
            }
            let slot = &mut self.slots[0];
            let piece = &data[done..];
            let piece = &piece[..piece.len().min(slot.buffer.len() - slot.used_bytes)];
            // SAFETY: `used_bytes` is less than the buffer's size.
            let free = unsafe { slot.buffer.as_ptr().add(slot.used_bytes) };
            // SAFETY: the piece fits behind `used_bytes`, which no queued copy reads, and is no pinned memory of
            // this uploader, which nobody else has an address of.
            unsafe { free.copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
            // Counted as read from here on, whatever the driver answers.
            slot.used_bytes += piece.len();
            let to = dst.offset(done as u64);
            // SAFETY: the bytes are not written again before the event after this copy has passed, nor freed before the
            // stream is done.
            unsafe { self.gpu.copy_h2d_async_retained(free, piece.len(), to, self.stream)? };
            done += piece.len();
            self.queued_bytes += piece.len() as u64;
        }
        Ok(())
    }

    /// Marks the end of the copies out of the full buffer, and makes the other the one to fill, once it is at rest.
    fn turn(&mut self) -> Result<()> {
        let full = &mut self.slots[0];
        self.gpu.record_event(full.event, self.stream)?;
        full.in_flight = true;
        let next = &mut self.slots[1];
        if mem::take(&mut next.in_flight)
            && let Err(error) = self.gpu.synchronize_event(next.event)
        {
            next.in_flight = true;
            return Err(error);
        }
        next.used_bytes = 0;
        self.slots.swap(0, 1);
        Ok(())
    }

    /// Waits until everything uploaded so far is on the device, and returns how many bytes that were since the uploader
    /// was made.
    ///
    /// # Errors
    /// As [`synchronize_stream`](crate::GpuStreams::synchronize_stream).
    pub fn finish(&mut self) -> Result<u64> {
        self.gpu.synchronize_stream(self.stream)?;
        for slot in &mut self.slots {
            (slot.used_bytes, slot.in_flight) = (0, false);
        }
        Ok(self.queued_bytes)
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        // Waited for first: the device may be reading the buffers. Where the wait is refused, their free waits in the driver.
        let mut outcome = self.finish().map(drop);
        for slot in &self.slots {
            let given = slot.free(&*self.gpu);
            outcome = outcome.and(given);
        }
        outcome = outcome.and(self.gpu.destroy_stream(self.stream));
        if self.gpu.context_fault().is_none() {
            tell(outcome);
        }
    }
}

/// Logs what could not be freed, where the caller gets another error or none.
fn tell(outcome: Result<()>) {
    if let Err(error) = outcome {
        tracing::error!("an uploader could not give everything back: {error:#}");
    }
}

impl core::fmt::Debug for Uploader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Uploader")
            .field("buffer_bytes", &self.slots[0].buffer.len())
            .field("stream", &format_args!("{:#x}", self.stream))
            .field("queued_bytes", &self.queued_bytes)
            .finish_non_exhaustive()
    }
}

impl StagingSlot {
    #[track_caller]
    fn new(backend: &dyn GpuBackend, bytes: usize) -> Result<Self> {
        let buffer = backend.alloc_pinned(bytes)?;
        match backend.create_event() {
            Ok(event) => Ok(Self { buffer, event, used_bytes: 0, in_flight: false }),
            Err(error) => {
                tell(backend.free_pinned(buffer));
                Err(error)
            }
        }
    }

    /// Frees the buffer and the event; the first error is the one that counts.
    fn free(&self, backend: &dyn GpuBackend) -> Result<()> {
        let freed = backend.free_pinned_owned(self.buffer).map(drop);
        let destroyed = backend.destroy_event(self.event);
        freed.and(destroyed)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Uploader`]: host memory to the device through two pinned buffers, filling one while the device reads the other.
//!
//! ```text
//!   source ──memcpy──▶ [ buffer 0: pieces | free ] ──copies in stream order──▶ device
//!                      [ buffer 1: in flight ──────event─────▶ free again    ]
//! ```
//! Small pieces share a buffer, so that loading thousands of small tensors costs one event a buffer and not one a tensor.

use core::fmt;

use anyhow::Result;

use crate::error::BadArgument;
use crate::gpu::{DevicePtr, GpuBackend};
use crate::memory::PinnedBuffer;

/// Copies pageable or mapped host memory to the device at the speed of pinned memory.
///
/// Copies run in the order of the backend's own [`stream`](GpuBackend::stream). A source may be changed or dropped as soon
/// as [`upload`](Self::upload) returns; what was uploaded is valid on that stream, and on all streams after
/// [`finish`](Self::finish). Dropping an uploader waits for its copies.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{MetraleCudaBackend, Uploader};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let backend = MetraleCudaBackend::builder().driver(Arc::new(SimDriver::new(Profile::h200()))).build()?;
/// let weights = backend.alloc(1000)?;
/// let mut uploader = Uploader::new(&backend, 1 << 20)?;
/// uploader.upload(&[7; 1000], weights)?;
/// assert_eq!(uploader.finish()?, 1000);
///
/// let mut back = [0; 1000];
/// backend.copy_d2h(weights, &mut back)?;
/// assert_eq!(back, [7; 1000]);
/// # drop(uploader);
/// # backend.free(weights)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Uploader<'backend> {
    backend: &'backend dyn GpuBackend,
    slots: [Slot<'backend>; 2],
    /// The slot being filled.
    current: usize,
    /// Bytes of the current slot that are already queued.
    filled: usize,
    uploaded_bytes: u64,
}

/// One pinned buffer, and the event behind the last copy out of it.
struct Slot<'backend> {
    buffer: PinnedBuffer<'backend>,
    emptied: u64,
}

impl<'backend> Uploader<'backend> {
    /// Makes the two pinned buffers of `buffer_bytes` each. May block for long: pinning costs time.
    ///
    /// # Errors
    /// [`BadArgument`] for 0 bytes; as [`GpuBackend::alloc_pinned`].
    #[track_caller]
    pub fn new(backend: &'backend dyn GpuBackend, buffer_bytes: usize) -> Result<Self> {
        if buffer_bytes == 0 {
            return Err(BadArgument::new("an uploader with buffers of 0 bytes: give it a few MiB").into());
        }
        let buffers = [PinnedBuffer::new(backend, buffer_bytes)?, PinnedBuffer::new(backend, buffer_bytes)?];
        let first = backend.create_event()?;
        let second = match backend.create_event() {
            Ok(event) => event,
            Err(error) => {
                destroy(backend, first);
                return Err(error);
            }
        };
        let [zero, one] = buffers;
        let slots = [Slot { buffer: zero, emptied: first }, Slot { buffer: one, emptied: second }];
        Ok(Self { backend, slots, current: 0, filled: 0, uploaded_bytes: 0 })
    }

    /// Queues a copy of `source` to `target`. Blocks only while both buffers are in flight.
    ///
    /// # Errors
    /// As [`GpuBackend::copy_h2d`]; a part may then have been queued.
    pub fn upload(&mut self, source: &[u8], target: DevicePtr) -> Result<()> {
        let mut done = 0;
        while done < source.len() {
            let room = self.slots[self.current].buffer.len() - self.filled;
            if room == 0 {
                self.turn()?;
                continue;
            }
            let piece = &source[done..source.len().min(done + room)];
            let staged = self.stage(piece);
            // SAFETY: the staged bytes are pinned, and are neither changed nor freed before the stream has passed the
            // copy: `turn` waits for the slot's event before the slot is filled again, `drop` waits for the stream.
            unsafe {
                self.backend.copy_h2d_async_retained(
                    staged,
                    piece.len(),
                    target.offset(done as u64),
                    self.backend.stream(),
                )
            }?;
            self.filled += piece.len();
            done += piece.len();
        }
        self.uploaded_bytes = self.uploaded_bytes.saturating_add(source.len() as u64);
        Ok(())
    }

    /// Waits until everything uploaded is on the device, and returns how many bytes that is since the uploader was made.
    ///
    /// # Errors
    /// As [`GpuBackend::synchronize_stream`].
    pub fn finish(&mut self) -> Result<u64> {
        self.backend.synchronize_stream(self.backend.stream())?;
        self.filled = 0;
        Ok(self.uploaded_bytes)
    }

    /// Copies a piece into the free part of the current buffer and returns where it lies.
    fn stage(&self, piece: &[u8]) -> *const u8 {
        let buffer = self.slots[self.current].buffer.as_pinned_ptr();
        debug_assert!(self.filled + piece.len() <= buffer.len());
        // SAFETY: the offset stays inside the buffer, as `upload` cut the piece to the room that is left.
        let place = unsafe { buffer.as_ptr().add(self.filled) };
        // SAFETY: both ranges are valid for the piece's length and of different allocations; no queued copy reads this
        // part of the buffer, since the copies queued from it lie before `filled`.
        unsafe { place.copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
        place
    }

    /// Turns to the other buffer, once the device has read all of it.
    fn turn(&mut self) -> Result<()> {
        self.backend.record_event(self.slots[self.current].emptied, self.backend.stream())?;
        let other = 1 - self.current;
        // An event never recorded counts as passed: so does the other buffer's at the first turn.
        self.backend.synchronize_event(self.slots[other].emptied)?;
        self.current = other;
        self.filled = 0;
        Ok(())
    }
}

impl Drop for Uploader<'_> {
    fn drop(&mut self) {
        // A lost context reads the buffers no more; anything else is logged, and the buffers are freed after it.
        if let Err(error) = self.backend.synchronize_stream(self.backend.stream()) {
            tracing::error!("waiting for the last uploads: {error:#}");
        }
        for slot in &self.slots {
            destroy(self.backend, slot.emptied);
        }
    }
}

impl fmt::Debug for Uploader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploader")
            .field("buffer_bytes", &self.slots[0].buffer.len())
            .field("uploaded_bytes", &self.uploaded_bytes)
            .finish_non_exhaustive()
    }
}

fn destroy(backend: &dyn GpuBackend, event: u64) {
    if let Err(error) = backend.destroy_event(event) {
        tracing::error!("destroying an uploader's event: {error:#}");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait of a call that lends host memory to the device: it ends when the device cannot touch the memory any more, whatever
//! the driver answers meanwhile.
//!
//! ```text
//!   cuStreamSynchronize ── 0 ────────────────────────────────────────────> at rest
//!     ^      |          `─ the context is lost or gone: nothing runs ────> over, with that error
//!     |      `─ refused ─> an event in the stream, the legacy stream waits
//!     |                    for it, a blocking copy of one byte behind it ─> at rest
//!     `── a pause ──────── refused too
//! ```
//! Another library that captures in global mode (PyTorch and cudarc do by default) makes the driver refuse every wait and query of a
//! stream with 900 until it ends its capture. A blocking copy and what comes before it are not refused (measured on an H200),
//! and wait as well.

use core::time::Duration;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use metrale_driver_sys::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_CAPTURE_STATUS_NONE, CUevent, DriverError, SCALE,
    stream_capture_status,
};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{Remedy, Result, remedy_of_status};
use crate::graph::is_of_captures;
use crate::raw_handles::LEGACY_STREAM;
use crate::raw_handles::StreamHandle;

/// The first pause between two tries, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));

impl MetraleCudaBackend {
    /// Waits until a stream has passed a copy from or to host memory that the caller gets back. `readable` is an
    /// address of device memory that the copy uses.
    ///
    /// Returns when the stream is at rest or its context is lost or gone, and not before. A refusal that only tells of another's
    /// capture is no error then; any other is returned, though the wait has been done.
    ///
    /// A stream that captures, begun outside this crate, has recorded the copy and runs nothing: that refusal is returned at once.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    pub(crate) unsafe fn wait_until_at_rest(&self, stream: StreamHandle, readable: u64) -> Result<()> {
        // SAFETY: no memory is passed; the caller's promise for the stream.
        let wait = || unsafe { ask!(self.driver(), cuStreamSynchronize(stream.raw())) };
        let Err(refused) = wait() else { return Ok(()) };
        // The wait itself needs no context; what is tried instead does.
        let _bound = self.bound("waiting for a stream").ok();
        // SAFETY: the caller's promise.
        if !is_over(refused) && !unsafe { self.captures_elsewhere(stream) } {
            // A log that panics must not end the wait.
            let told = panic::catch_unwind(AssertUnwindSafe(|| {
                tracing::warn!(
                    "the wait for stream {stream:#x} was refused ({refused}) while a copy uses host memory that its owner gets \
                     back; it goes on until the stream is at rest"
                );
            }));
            let mut pause = PAUSES.0;
            let end = loop {
                // SAFETY: the caller's promise.
                let drained = unsafe { self.drain(stream, readable) };
                if drained.map_or_else(is_over, |()| true) {
                    break drained;
                }
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSES.1);
                let waited = wait();
                if waited.map_or_else(is_over, |()| true) {
                    break waited;
                }
            };
            if let Err(panicked) = told {
                panic::resume_unwind(panicked);
            }
            end.doing(|| format!("waiting for stream {stream:#x}"))?;
            if is_of_captures(refused) {
                return Ok(());
            }
        }
        Err(refused).doing(|| format!("waiting for stream {stream:#x}"))
    }

    /// Waits for a stream by calls that no capture of another stream forbids. The thread is known to be bound.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    unsafe fn drain(&self, stream: StreamHandle, readable: u64) -> Result<(), DriverError> {
        if !stream.is_legacy() {
            let mut event: CUevent = 0;
            // SAFETY: the result pointer is a local.
            unsafe { ask!(self.driver(), cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING)) }?;
            // SAFETY: no memory is passed; the event was just made, and the caller's promise for the stream.
            let ordered = unsafe { ask!(self.driver(), cuEventRecord(event, stream.raw())) }.and_then(|()| {
                // SAFETY: no memory is passed; the event was just made, and the legacy stream is always there.
                unsafe { ask!(self.driver(), cuStreamWaitEvent(LEGACY_STREAM.raw(), event, 0)) }
            });
            // SAFETY: no memory is passed, and this is the last use of the event; the wait for it was taken by value.
            let destroyed = unsafe { ask!(self.driver(), cuEventDestroy_v2(event)) };
            ordered.and(destroyed)?;
        }
        let mut byte = [0_u8];
        // SAFETY: the destination is a local of one byte, filled before the call returns; the source is only read, and the driver
        // checks it.
        unsafe { ask!(self.driver(), cuMemcpyDtoH_v2(byte.as_mut_ptr().cast(), readable, 1)) }
    }

    /// Whether a stream captures, begun outside this crate: our own are kept apart from borrowed copies.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    unsafe fn captures_elsewhere(&self, stream: StreamHandle) -> bool {
        // SAFETY: the caller's promise.
        let status = || unsafe { stream_capture_status(self.driver(), stream.raw()) };
        !SCALE && status().is_ok_and(|status| status != CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// Whether nothing runs any more after such an answer.
const fn is_over(error: DriverError) -> bool {
    matches!(remedy_of_status(error.status), Remedy::Relaunch)
}

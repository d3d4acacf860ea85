// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: making, waiting, asking.

use metrale_driver_sys::{CU_STREAM_CAPTURE_STATUS_NONE, DriverError, stream_capture_status};
use metrale_telemetry::{Counter, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::raw_handles::StreamHandle;

/// Why nobody waits for a stream that captures.
pub(crate) const NOTHING_TO_WAIT_FOR: &str = "nothing has run yet, and the wait would break the capture; end it, launch the graph, and \
                                   then wait";

impl MetraleCudaBackend {
    /// Whether a stream captures; one that cannot say counts as if it did, because a wait or a query would end its capture. Our
    /// own captures are known where the driver cannot tell.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    pub(crate) unsafe fn is_capturing_or_cannot_tell(&self, stream: StreamHandle) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.is_capturing(stream) }.unwrap_or(true)
    }

    /// The same, with the driver's refusal where it cannot say.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn is_capturing(&self, stream: StreamHandle) -> Result<bool, DriverError> {
        if self.captures(stream) {
            return Ok(true);
        }
        // SAFETY: the caller's promise.
        let status = unsafe { stream_capture_status(self.driver(), stream.raw()) };
        status.map(|status| status != CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// Counts a wait of the host for the device.
pub(crate) fn count_sync() {
    run_metrics::process().counters().count(Counter::StreamSyncs);
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: making, waiting, asking.

use metrale_driver_sys::{
    CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_NON_BLOCKING, DriverError, stream_capture_status,
};
use metrale_telemetry::{Counter, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::Result;
use crate::handles::{Owner, Site};
use crate::memory::Cost;
use crate::owned_handle::OwnedHandle;
use crate::raw_handles::StreamHandle;

/// Why nobody waits for a stream that captures.
pub(crate) const NOTHING_TO_WAIT_FOR: &str = "nothing has run yet, and the wait would break the capture; end it, launch the graph, and \
                                   then wait";

impl MetraleCudaBackend {
    pub(crate) fn make_stream(&self, owner: Owner, site: Site) -> Result<StreamHandle> {
        let _bound = self.bound("making a stream")?;
        let make = || {
            let mut stream = 0;
            // SAFETY: the result pointer is a local.
            unsafe { ask!(self.driver(), cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING)) }
                .doing(|| "making a stream".to_owned())?;
            Ok(stream)
        };
        let stream = self.measure(Cost::Streams, make)?;
        Ok(StreamHandle(self.streams().made(stream, owner, site)))
    }

    pub(crate) fn end_stream(&self, stream: StreamHandle, by: Owner, site: Site) -> Result<()> {
        const WHAT: &str = "destroying a stream";
        let _current = self.entered(WHAT)?;
        // A stale handle is named as such, whatever the stream does that has its number now.
        self.streams().may_remove(stream.0, by, WHAT)?;
        self.uncaptured(stream, WHAT, || ())?;
        self.outgrow_stream(stream);
        let entry = self.uncaptured(stream, WHAT, || self.streams().remove(stream.0, by, site, WHAT))??;
        self.destroy_removed_handle(entry).doing(|| format!("destroying stream {stream:#x}"))
    }

    /// The handle of what this backend has just made for an owner.
    pub(crate) fn owned<H: Copy>(&self, handle: H) -> OwnedHandle<H> {
        OwnedHandle::made_by(self.number(), handle)
    }

    /// The backend's number, which no other of the process has.
    pub(crate) fn number(&self) -> u64 {
        self.graph_client().owner
    }

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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: marks in a stream that streams and threads wait for, ask about, or measure between.

use core::ffi::c_uint;

use metrale_driver_sys::{
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY,
    DriverError,
};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::Result;
use crate::handles::{Owner, Site};
use crate::raw_handles::{EventHandle, StreamHandle};

/// Why nobody asks about an event of a capture.
pub(crate) const CAPTURED: &str = "the event was recorded in the capture, where it marks a place in the graph and never passes; record \
                        another outside";

pub(crate) const RECORD: &str = "recording an event";
pub(crate) const WAIT: &str = "making a stream wait for an event";

impl MetraleCudaBackend {
    pub(crate) fn make_event(&self, flags: c_uint, owner: Owner, site: Site) -> Result<EventHandle> {
        let _bound = self.bound("making an event")?;
        let mut event = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(self.driver(), cuEventCreate(&mut event, flags)) }
            .doing(|| "making an event".to_owned())?;
        let event = EventHandle(self.events().made(event, owner, site));
        // The driver may give the number of one that is gone, which a capture still has a mark of.
        self.event_made(event);
        Ok(event)
    }

    pub(crate) fn end_event(&self, event: EventHandle, by: Owner, site: Site) -> Result<()> {
        const WHAT: &str = "destroying an event";
        let _current = self.entered(WHAT)?;
        let entry = self.events().remove(event.0, by, site, WHAT)?;
        self.destroy_removed_handle(entry).doing(|| format!("destroying event {event:#x}"))
    }

    /// Records an event on a stream, and notes what that means for captures. The thread is known to be bound.
    ///
    /// # Safety
    /// Event and stream stay alive over the call.
    pub(crate) unsafe fn queue_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let _ordered = self.graph_client().shared.exclude_calls_of(event);
        // SAFETY: no memory is passed; the caller's promise for event and stream.
        let ask = || unsafe { ask!(self.driver(), cuEventRecord(event.raw(), stream.raw())) };
        self.ask_bound(RECORD, ask)
            .inspect(|()| self.event_recorded(event, stream))
            .doing(|| format!("recording event {event:#x} on stream {stream:#x}"))
    }

    /// Makes a stream wait for an event of any backend, and notes what that means for captures.
    ///
    /// # Safety
    /// Event and stream stay alive over the call.
    pub(crate) unsafe fn queue_wait(
        &self,
        stream: StreamHandle,
        event: EventHandle,
        doing: &'static str,
        named: impl FnOnce() -> String,
    ) -> Result<()> {
        let _ordered = self.graph_client().shared.exclude_calls_of(event);
        let wait = self.may_wait(stream, event, doing)?;
        // SAFETY: no memory is passed; the caller's promise for event and stream.
        let ask = || unsafe { ask!(self.driver(), cuStreamWaitEvent(stream.raw(), event.raw(), 0)) };
        let answer = self.ask_bound(doing, ask);
        self.waited(stream, event, wait, doing, answer);
        answer.map_err(|error| {
            failed(error, format!("making stream {stream:#x} wait for {}", named()), stale(error))
        })
    }
}

/// What the refusal of an event that was recorded means: a capture left it so.
pub(crate) fn stale(error: DriverError) -> Option<String> {
    matches!(error.status, CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_CAPTURED_EVENT).then(|| {
        "an event last recorded in a capture marks nothing once that has ended; record it anew outside"
            .to_owned()
    })
}

/// What the two usual refusals of a measurement mean.
pub(crate) fn why(error: DriverError) -> Option<String> {
    match error.status {
        CUDA_ERROR_INVALID_HANDLE => {
            Some("both events must come from create_timing_event and have been recorded".to_owned())
        }
        CUDA_ERROR_NOT_READY => Some("wait for the later event first".to_owned()),
        _ => None,
    }
}

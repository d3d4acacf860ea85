// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: marks in a stream that streams and threads wait for, ask about, or measure between.

use core::ffi::c_uint;
use std::panic::Location;

use anyhow::Result;
use metrale_driver_sys::{
    CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, DriverError,
};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::graph::Reach;

/// Why nobody asks about an event of a capture.
const CAPTURED: &str = "the event was recorded in the capture, where it marks a place in the graph and never passes; record \
                        another outside";

impl MetraleCudaBackend {
    /// See [`GpuBackend::create_event`](crate::GpuBackend::create_event).
    #[track_caller]
    pub fn create_event(&self) -> Result<u64> {
        self.make_event(CU_EVENT_DISABLE_TIMING)
    }

    /// See [`GpuBackend::create_timing_event`](crate::GpuBackend::create_timing_event).
    #[track_caller]
    pub fn create_timing_event(&self) -> Result<u64> {
        self.make_event(CU_EVENT_DEFAULT)
    }

    #[track_caller]
    fn make_event(&self, flags: c_uint) -> Result<u64> {
        let site = Location::caller();
        self.bound("making an event")?;
        let mut event = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(self.driver(), cuEventCreate(&mut event, flags)) }
            .doing(|| "making an event".to_owned())?;
        // The driver may give the handle of one that is gone, which a capture still has a mark of.
        self.event_made(event);
        self.events().made(event, site);
        Ok(event)
    }

    /// See [`GpuBackend::record_event`](crate::GpuBackend::record_event).
    pub fn record_event(&self, event: u64, stream: u64) -> Result<()> {
        const WHAT: &str = "recording an event";
        self.bound(WHAT)?;
        let _held = (self.hold_event(event, WHAT)?, self.hold_stream(stream, WHAT)?);
        let _ordered = self.graph_client().shared.exclude_event_calls();
        // SAFETY: no memory is passed; event and stream are held.
        unsafe { ask!(self.driver(), cuEventRecord(event, stream)) }
            .inspect(|()| self.event_recorded(event, stream))
            .doing(|| format!("recording event {event:#x} on stream {stream:#x}"))
    }

    /// See [`GpuBackend::wait_event`](crate::GpuBackend::wait_event).
    pub fn wait_event(&self, stream: u64, event: u64) -> Result<()> {
        const WHAT: &str = "making a stream wait for an event";
        self.bound(WHAT)?;
        let _held = (self.hold_event(event, WHAT)?, self.hold_stream(stream, WHAT)?);
        // SAFETY: event and stream are held.
        unsafe { self.queue_wait(stream, event, WHAT, || format!("event {event:#x}")) }
    }

    /// Makes a stream wait for an event of any backend, and notes what that means for captures.
    ///
    /// # Safety
    /// Event and stream stay alive over the call.
    pub(crate) unsafe fn queue_wait(
        &self,
        stream: u64,
        event: u64,
        doing: &'static str,
        named: impl FnOnce() -> String,
    ) -> Result<()> {
        let _ordered = self.graph_client().shared.exclude_event_calls();
        let wait = self.may_wait(stream, event, doing)?;
        // SAFETY: no memory is passed; the caller's promise for event and stream.
        let answer = unsafe { ask!(self.driver(), cuStreamWaitEvent(stream, event, 0)) };
        self.waited(stream, event, wait, doing, answer);
        answer.map_err(|error| {
            failed(error, format!("making stream {stream:#x} wait for {}", named()), stale(error))
        })
    }

    /// See [`GpuBackend::query_event`](crate::GpuBackend::query_event).
    pub fn query_event(&self, event: u64) -> Result<bool> {
        const WHAT: &str = "asking whether an event has passed";
        self.bound(WHAT)?;
        let _held = self.hold_event(event, WHAT)?;
        self.outside_capture(Reach::Event(event), WHAT, CAPTURED)?;
        // SAFETY: no memory is passed; the event is held.
        match unsafe { ask!(self.driver(), cuEventQuery(event)) } {
            Err(error) if error.status == CUDA_ERROR_NOT_READY => Ok(false),
            answer => {
                answer.map_err(|error| {
                    failed(error, format!("asking whether event {event:#x} has passed"), stale(error))
                })?;
                Ok(true)
            }
        }
    }

    /// See [`GpuBackend::synchronize_event`](crate::GpuBackend::synchronize_event).
    pub fn synchronize_event(&self, event: u64) -> Result<()> {
        const WHAT: &str = "waiting for an event";
        self.bound(WHAT)?;
        let _held = self.hold_event(event, WHAT)?;
        self.outside_capture(Reach::Event(event), WHAT, CAPTURED)?;
        // SAFETY: no memory is passed; the event is held.
        unsafe { ask!(self.driver(), cuEventSynchronize(event)) }
            .map_err(|error| failed(error, format!("waiting for event {event:#x}"), stale(error)))
    }

    /// See [`GpuBackend::elapsed_ms`](crate::GpuBackend::elapsed_ms).
    pub fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        const WHAT: &str = "measuring between two events";
        self.bound(WHAT)?;
        let _held = (self.hold_event(start, WHAT)?, self.hold_event(end, WHAT)?);
        self.outside_capture(Reach::Event(start), WHAT, CAPTURED)?;
        self.outside_capture(Reach::Event(end), WHAT, CAPTURED)?;
        let mut milliseconds = 0.0;
        // SAFETY: the result pointer is a local; both events are held.
        unsafe { ask!(self.driver(), cuEventElapsedTime(&mut milliseconds, start, end)) }.map_err(
            |error| failed(error, format!("measuring from event {start:#x} to {end:#x}"), why(error)),
        )?;
        Ok(milliseconds)
    }

    /// See [`GpuBackend::destroy_event`](crate::GpuBackend::destroy_event).
    #[track_caller]
    pub fn destroy_event(&self, event: u64) -> Result<()> {
        const WHAT: &str = "destroying an event";
        let site = Location::caller();
        let _current = self.entered(WHAT)?;
        let entry = self.events().remove(event, site, WHAT)?;
        self.destroy_removed_handle(entry).doing(|| format!("destroying event {event:#x}"))
    }
}

/// What the refusal of an event that was recorded means: a capture left it so.
fn stale(error: DriverError) -> Option<String> {
    matches!(error.status, CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_CAPTURED_EVENT).then(|| {
        "an event last recorded in a capture marks nothing once that has ended; record it anew outside"
            .to_owned()
    })
}

/// What the two usual refusals of a measurement mean.
fn why(error: DriverError) -> Option<String> {
    match error.status {
        CUDA_ERROR_INVALID_HANDLE => {
            Some("both events must come from create_timing_event and have been recorded".to_owned())
        }
        CUDA_ERROR_NOT_READY => Some("wait for the later event first".to_owned()),
        _ => None,
    }
}

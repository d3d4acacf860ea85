// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: marks in a stream that others wait for, ask about, or measure between.

use core::ffi::c_uint;

use anyhow::Result;
use metrale_driver_sys::{
    CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, DriverError,
};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::BadArgument;
use crate::graph::{Reach, Uses, Wait};

/// Why nobody asks about an event of a capture.
const CAPTURED: &str = "the event was recorded in the capture, where it marks a place in the graph and never passes; record \
                        another outside";

impl MetraleCudaBackend {
    /// See [`GpuBackend::create_event`](crate::GpuBackend::create_event).
    pub fn create_event(&self) -> Result<u64> {
        self.make_event(CU_EVENT_DISABLE_TIMING)
    }

    /// See [`GpuBackend::create_timing_event`](crate::GpuBackend::create_timing_event).
    pub fn create_timing_event(&self) -> Result<u64> {
        self.make_event(CU_EVENT_DEFAULT)
    }

    fn make_event(&self, flags: c_uint) -> Result<u64> {
        self.bound("making an event")?;
        let mut event = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(self.driver(), cuEventCreate(&mut event, flags)) }
            .doing(|| "making an event".to_owned())?;
        Ok(event)
    }

    /// See [`GpuBackend::record_event`](crate::GpuBackend::record_event).
    pub fn record_event(&self, event: u64, stream: u64) -> Result<()> {
        self.bound("recording an event")?;
        some(event)?;
        // SAFETY: no memory is passed; null is refused above, the driver checks the handles.
        unsafe { ask!(self.driver(), cuEventRecord(event, stream)) }
            .inspect(|()| self.event_recorded(event, stream))
            .doing(|| format!("recording event {event:#x} on stream {stream:#x}"))
    }

    /// See [`GpuBackend::wait_event`](crate::GpuBackend::wait_event).
    pub fn wait_event(&self, stream: u64, event: u64) -> Result<()> {
        const WHAT: &str = "making a stream wait for an event";
        self.bound(WHAT)?;
        some(event)?;
        let wait = self.may_wait(stream, event, WHAT)?;
        // SAFETY: no memory is passed; null is refused above, the driver checks the handles.
        let answer = unsafe { ask!(self.driver(), cuStreamWaitEvent(stream, event, 0)) };
        match answer {
            Ok(()) if wait == Wait::Captured => self.event_waited(stream, event),
            Ok(()) => {}
            Err(_) => self.submitted(stream, WHAT, answer, Uses::Memory(&[])),
        }
        answer.map_err(|error| {
            failed(error, format!("making stream {stream:#x} wait for event {event:#x}"), stale(error))
        })
    }

    /// See [`GpuBackend::query_event`](crate::GpuBackend::query_event).
    pub fn query_event(&self, event: u64) -> Result<bool> {
        const DOING: &str = "asking whether an event has passed";
        self.outside_capture(Reach::Event(event), DOING, CAPTURED)?;
        self.bound(DOING)?;
        some(event)?;
        // SAFETY: no memory is passed; null is refused above, the driver checks the handle.
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
        self.outside_capture(Reach::Event(event), "waiting for an event", CAPTURED)?;
        self.bound("waiting for an event")?;
        some(event)?;
        // SAFETY: no memory is passed; null is refused above, the driver checks the handle.
        unsafe { ask!(self.driver(), cuEventSynchronize(event)) }
            .map_err(|error| failed(error, format!("waiting for event {event:#x}"), stale(error)))
    }

    /// See [`GpuBackend::elapsed_ms`](crate::GpuBackend::elapsed_ms).
    pub fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        const DOING: &str = "measuring between two events";
        self.outside_capture(Reach::Event(start), DOING, CAPTURED)?;
        self.outside_capture(Reach::Event(end), DOING, CAPTURED)?;
        self.bound(DOING)?;
        some(start)?;
        some(end)?;
        let mut milliseconds = 0.0;
        // SAFETY: the result pointer is a local; null is refused above, the driver checks the handles.
        unsafe { ask!(self.driver(), cuEventElapsedTime(&mut milliseconds, start, end)) }.map_err(
            |error| failed(error, format!("measuring from event {start:#x} to {end:#x}"), why(error)),
        )?;
        Ok(milliseconds)
    }

    /// See [`GpuBackend::destroy_event`](crate::GpuBackend::destroy_event).
    pub fn destroy_event(&self, event: u64) -> Result<()> {
        self.bound("destroying an event")?;
        some(event)?;
        // SAFETY: no memory is passed; null is refused above, the driver checks the handle.
        unsafe { ask!(self.driver(), cuEventDestroy_v2(event)) }
            .inspect(|()| self.event_gone(event))
            .doing(|| format!("destroying event {event:#x}"))
    }
}

/// Refuses the null event, which not every driver survives.
fn some(event: u64) -> Result<()> {
    match event {
        0 => Err(BadArgument::new("0 is no event: use one of create_event or create_timing_event").into()),
        _ => Ok(()),
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuStreams`] for [`MetraleCudaBackend`].

use std::panic::Location;

use metrale_driver_sys::{
    CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING, CU_STREAM_PER_THREAD,
    CUDA_ERROR_NOT_READY,
};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::{BadArgument, Result};
use crate::event::{CAPTURED, stale, why};
use crate::gpu::{GpuBackend, GpuStreams};
use crate::graph::Reach;
use crate::memory::Cost;
use crate::raw_handles::{EventHandle, StreamHandle};
use crate::stream::{NOTHING_TO_WAIT_FOR, count_sync};

impl GpuStreams for MetraleCudaBackend {
    #[track_caller]
    fn create_stream(&self) -> Result<StreamHandle> {
        let site = Location::caller();
        let _bound = self.bound("making a stream")?;
        let make = || {
            let mut stream = 0;
            // SAFETY: the result pointer is a local.
            unsafe { ask!(self.driver(), cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING)) }
                .doing(|| "making a stream".to_owned())?;
            Ok(stream)
        };
        let stream = self.measure(Cost::Streams, make)?;
        Ok(StreamHandle(self.streams().made(stream, site)))
    }

    #[track_caller]
    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        const WHAT: &str = "destroying a stream";
        let site = Location::caller();
        if stream.is_the_drivers() {
            let what = if stream == StreamHandle::PER_THREAD {
                "the stream of each thread"
            } else {
                "the legacy stream"
            };
            return Err(
                BadArgument::new(format!("{what} is the driver's own and cannot be destroyed")).into()
            );
        }
        if stream == self.own_stream() {
            return Err(BadArgument::new(
                "this is the backend's own stream, which every backend of the device shares; it is destroyed with the last of them",
            )
            .into());
        }
        let _current = self.entered(WHAT)?;
        // A stale handle is named as such, whatever the stream does that has its number now.
        self.look_up_stream(stream, WHAT)?;
        self.uncaptured(stream, WHAT, || ())?;
        self.outgrow_stream(stream);
        let entry = self.uncaptured(stream, WHAT, || self.streams().remove(stream.0, site, WHAT))??;
        self.destroy_removed_handle(entry).doing(|| format!("destroying stream {stream:#x}"))
    }

    #[track_caller]
    unsafe fn adopt_stream(&self, raw: u64) -> Result<StreamHandle> {
        if raw == self.own_stream().raw() || raw <= CU_STREAM_PER_THREAD {
            return Err(BadArgument::new(format!(
                "adopting stream {raw:#x}: it is the backend's or the driver's own, and needs no adoption"
            ))
            .into());
        }
        Ok(StreamHandle(self.streams().adopt(raw, Location::caller())?))
    }

    #[track_caller]
    fn release_stream(&self, stream: StreamHandle) -> Result<()> {
        const WHAT: &str = "releasing a stream";
        let site = Location::caller();
        self.look_up_stream(stream, WHAT)?;
        self.uncaptured(stream, WHAT, || ())?;
        self.outgrow_stream(stream);
        Ok(self.uncaptured(stream, WHAT, || self.streams().release(stream.0, site))??)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        const WHAT: &str = "waiting for a stream";
        let _bound = self.bound_for(stream, WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.outside_capture(Reach::Stream(stream), WHAT, NOTHING_TO_WAIT_FOR)?;
        count_sync();
        // SAFETY: no memory is passed; the stream is held.
        let ask = || unsafe { ask!(self.driver(), cuStreamSynchronize(stream.raw())) };
        self.ask_bound(WHAT, ask).doing(|| format!("waiting for stream {stream:#x}"))
    }

    fn query_stream(&self, stream: StreamHandle) -> Result<bool> {
        const WHAT: &str = "asking whether a stream is done";
        let _bound = self.bound_for(stream, WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.outside_capture(Reach::Stream(stream), WHAT, NOTHING_TO_WAIT_FOR)?;
        // SAFETY: no memory is passed; the stream is held.
        let ask = || unsafe { ask!(self.driver(), cuStreamQuery(stream.raw())) };
        match self.ask_bound(WHAT, ask) {
            Err(error) if error.status == CUDA_ERROR_NOT_READY => Ok(false),
            answer => {
                answer.doing(|| format!("asking whether stream {stream:#x} is done"))?;
                Ok(true)
            }
        }
    }

    fn stream(&self) -> StreamHandle {
        self.own_stream()
    }

    fn synchronize(&self) -> Result<()> {
        const ADVICE: &str = "it would break every capture of the device; wait for single streams, or until the capture has \
                              ended";
        let _bound = self.bound("waiting for the device")?;
        self.outside_capture(Reach::Device, "waiting for the device", ADVICE)?;
        count_sync();
        // SAFETY: takes nothing.
        unsafe { ask!(self.driver(), cuCtxSynchronize()) }
            .doing(|| format!("waiting for all work of device {}", self.ordinal()))
    }

    #[track_caller]
    fn create_event(&self) -> Result<EventHandle> {
        self.make_event(CU_EVENT_DISABLE_TIMING)
    }

    #[track_caller]
    fn create_timing_event(&self) -> Result<EventHandle> {
        self.make_event(CU_EVENT_DEFAULT)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        const WHAT: &str = "recording an event";
        let _bound = self.bound_for(stream, WHAT)?;
        let _held = (self.hold_event(event, WHAT)?, self.hold_stream(stream, WHAT)?);
        let _ordered = self.graph_client().shared.exclude_calls_of(event);
        // SAFETY: no memory is passed; event and stream are held.
        let ask = || unsafe { ask!(self.driver(), cuEventRecord(event.raw(), stream.raw())) };
        self.ask_bound(WHAT, ask)
            .inspect(|()| self.event_recorded(event, stream))
            .doing(|| format!("recording event {event:#x} on stream {stream:#x}"))
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        const WHAT: &str = "making a stream wait for an event";
        let _bound = self.bound_for(stream, WHAT)?;
        let _held = (self.hold_event(event, WHAT)?, self.hold_stream(stream, WHAT)?);
        // SAFETY: event and stream are held.
        unsafe { self.queue_wait(stream, event, WHAT, || format!("event {event:#x}")) }
    }

    fn query_event(&self, event: EventHandle) -> Result<bool> {
        const WHAT: &str = "asking whether an event has passed";
        let _bound = self.bound_for(self.own_stream(), WHAT)?;
        let _held = self.hold_event(event, WHAT)?;
        self.outside_capture(Reach::Event(event), WHAT, CAPTURED)?;
        // SAFETY: no memory is passed; the event is held.
        let ask = || unsafe { ask!(self.driver(), cuEventQuery(event.raw())) };
        match self.ask_bound(WHAT, ask) {
            Err(error) if error.status == CUDA_ERROR_NOT_READY => Ok(false),
            answer => {
                answer.map_err(|error| {
                    failed(error, format!("asking whether event {event:#x} has passed"), stale(error))
                })?;
                Ok(true)
            }
        }
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        const WHAT: &str = "waiting for an event";
        let _bound = self.bound_for(self.own_stream(), WHAT)?;
        let _held = self.hold_event(event, WHAT)?;
        self.outside_capture(Reach::Event(event), WHAT, CAPTURED)?;
        // SAFETY: no memory is passed; the event is held.
        let ask = || unsafe { ask!(self.driver(), cuEventSynchronize(event.raw())) };
        self.ask_bound(WHAT, ask)
            .map_err(|error| failed(error, format!("waiting for event {event:#x}"), stale(error)))
    }

    fn elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        const WHAT: &str = "measuring between two events";
        let _bound = self.bound(WHAT)?;
        let _held = (self.hold_event(start, WHAT)?, self.hold_event(end, WHAT)?);
        self.outside_capture(Reach::Event(start), WHAT, CAPTURED)?;
        self.outside_capture(Reach::Event(end), WHAT, CAPTURED)?;
        let mut milliseconds = 0.0;
        // SAFETY: the result pointer is a local; both events are held.
        unsafe { ask!(self.driver(), cuEventElapsedTime(&mut milliseconds, start.raw(), end.raw())) }
            .map_err(|error| {
                failed(error, format!("measuring from event {start:#x} to {end:#x}"), why(error))
            })?;
        Ok(milliseconds)
    }

    #[track_caller]
    fn destroy_event(&self, event: EventHandle) -> Result<()> {
        const WHAT: &str = "destroying an event";
        let site = Location::caller();
        let _current = self.entered(WHAT)?;
        let entry = self.events().remove(event.0, site, WHAT)?;
        self.destroy_removed_handle(entry).doing(|| format!("destroying event {event:#x}"))
    }

    #[track_caller]
    unsafe fn adopt_event(&self, raw: u64) -> Result<EventHandle> {
        if raw == 0 {
            return Err(BadArgument::new("adopting an event: 0 is no event").into());
        }
        Ok(EventHandle(self.events().adopt(raw, Location::caller())?))
    }

    #[track_caller]
    fn release_event(&self, event: EventHandle) -> Result<()> {
        Ok(self.events().release(event.0, Location::caller())?)
    }

    fn wait_peer_event(&self, stream: StreamHandle, of: &dyn GpuBackend, event: EventHandle) -> Result<()> {
        const WHAT: &str = "making a stream wait for another backend's event";
        let _bound = self.bound_for(stream, WHAT)?;
        let of = self.peer(of)?;
        self.shares_its_driver(WHAT, of)?;
        let _held = (of.hold_event(event, WHAT)?, self.hold_stream(stream, WHAT)?);
        let named = || format!("event {event:#x} of device {}", of.ordinal());
        // SAFETY: event and stream are held.
        unsafe { self.queue_wait(stream, event, WHAT, named) }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuStreams`] for [`MetraleCudaBackend`].

use std::panic::Location;

use metrale_driver_sys::{
    CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING, CU_STREAM_PER_THREAD, CUDA_ERROR_NOT_READY,
};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::{BadArgument, Result};
use crate::event::{CAPTURED, RECORD, WAIT, stale, why};
use crate::gpu::{GpuDevice, GpuStreams};
use crate::graph::Reach;
use crate::handles::Owner;
use crate::owned_handle::OwnedHandle;
use crate::raw_handles::{EventHandle, StreamHandle};
use crate::stream::{NOTHING_TO_WAIT_FOR, count_sync};

impl GpuStreams for MetraleCudaBackend {
    #[track_caller]
    fn create_stream(&self) -> Result<StreamHandle> {
        self.make_stream(Owner::Backend, Location::caller())
    }

    #[track_caller]
    fn create_owned_stream(&self) -> Result<OwnedHandle<StreamHandle>> {
        self.make_stream(Owner::Handle, Location::caller()).map(|stream| self.owned(stream))
    }

    #[track_caller]
    fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
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
        self.end_stream(stream, Owner::Backend, Location::caller())
    }

    #[track_caller]
    fn destroy_owned_stream(&self, stream: OwnedHandle<StreamHandle>) -> Result<()> {
        match stream.of(self.number()) {
            Some(stream) => self.end_stream(stream, Owner::Handle, Location::caller()),
            None => self.destroy_stream(stream.handle()),
        }
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
        const WHAT: &str = "waiting for the device";
        let _bound = self.bound(WHAT)?;
        let _waits = self.wait_for_device(WHAT, ADVICE)?;
        count_sync();
        // SAFETY: takes nothing.
        unsafe { ask!(self.driver(), cuCtxSynchronize()) }
            .doing(|| format!("waiting for all work of device {}", self.ordinal()))
    }

    #[track_caller]
    fn create_event(&self) -> Result<EventHandle> {
        self.make_event(CU_EVENT_DISABLE_TIMING, Owner::Backend, Location::caller())
    }

    #[track_caller]
    fn create_timing_event(&self) -> Result<EventHandle> {
        self.make_event(CU_EVENT_DEFAULT, Owner::Backend, Location::caller())
    }

    #[track_caller]
    fn create_owned_event(&self, timing: bool) -> Result<OwnedHandle<EventHandle>> {
        let flags = if timing { CU_EVENT_DEFAULT } else { CU_EVENT_DISABLE_TIMING };
        self.make_event(flags, Owner::Handle, Location::caller()).map(|event| self.owned(event))
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let _bound = self.bound_for(stream, RECORD)?;
        let _held = (self.hold_event(event, RECORD)?, self.hold_stream(stream, RECORD)?);
        // SAFETY: event and stream are held.
        unsafe { self.queue_record(event, stream) }
    }

    fn record_owned_event(
        &self,
        event: &OwnedHandle<EventHandle>,
        stream: &OwnedHandle<StreamHandle>,
    ) -> Result<()> {
        let me = self.number();
        let (Some(event), Some(stream)) = (event.of(me), stream.of(me)) else {
            return self.record_event(event.handle(), stream.handle());
        };
        let _bound = self.bound_for(stream, RECORD)?;
        // SAFETY: their owners are borrowed.
        unsafe { self.queue_record(event, stream) }
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let _bound = self.bound_for(stream, WAIT)?;
        let _held = (self.hold_event(event, WAIT)?, self.hold_stream(stream, WAIT)?);
        // SAFETY: event and stream are held.
        unsafe { self.queue_wait(stream, event, WAIT, || format!("event {event:#x}")) }
    }

    fn wait_owned_event(
        &self,
        stream: &OwnedHandle<StreamHandle>,
        event: &OwnedHandle<EventHandle>,
    ) -> Result<()> {
        let me = self.number();
        let (Some(event), Some(stream)) = (event.of(me), stream.of(me)) else {
            return self.wait_event(stream.handle(), event.handle());
        };
        let _bound = self.bound_for(stream, WAIT)?;
        // SAFETY: their owners are borrowed.
        unsafe { self.queue_wait(stream, event, WAIT, || format!("event {event:#x}")) }
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
        self.end_event(event, Owner::Backend, Location::caller())
    }

    #[track_caller]
    fn destroy_owned_event(&self, event: OwnedHandle<EventHandle>) -> Result<()> {
        match event.of(self.number()) {
            Some(event) => self.end_event(event, Owner::Handle, Location::caller()),
            None => self.destroy_event(event.handle()),
        }
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

    fn wait_peer_event(&self, stream: StreamHandle, of: &dyn GpuDevice, event: EventHandle) -> Result<()> {
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams and events as calls see them: which handle is which stream, what a record, wait, query or synchronization does.

use metrale_driver_sys::{
    CU_STREAM_NON_BLOCKING, CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY,
    CUDA_ERROR_NOT_SUPPORTED, CUresult,
};

use super::Model;
use super::event::{Event, EventState, INTERPROCESS, KNOWN_FLAGS};
use super::handle::Kind;
use super::stream::{Point, Stream, StreamKind};
use super::work::Work;
use crate::thread;

/// `CU_STREAM_LEGACY`, the same stream as 0.
const LEGACY: u64 = 1;
/// `CU_EVENT_WAIT_EXTERNAL`: in a capture, the event stays outside the graph.
const EXTERNAL: u32 = 1;
/// `CU_STREAM_PER_THREAD`
const PER_THREAD: u64 = 2;

impl Model {
    /// The stream a handle names for this thread; its context must be alive and sound.
    pub(crate) fn stream(&mut self, handle: u64) -> Result<u64, CUresult> {
        let device = match self.context() {
            // Measured: a stream of a context that ended is answered 201, where the context itself is answered 709.
            Err(CUDA_ERROR_CONTEXT_IS_DESTROYED) if handle > PER_THREAD => {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            device => device?,
        };
        match handle {
            0 | LEGACY => Ok(self.contexts[device].legacy),
            PER_THREAD => {
                let key = (thread::number(), device);
                if let Some(&stream) = self.thread_streams.get(&key) {
                    return Ok(stream);
                }
                let stream = self.handles.make(Kind::Stream);
                self.streams.insert(stream, Stream::new(device, StreamKind::PerThread));
                self.thread_streams.insert(key, stream);
                Ok(stream)
            }
            _ => {
                let Some(stream) = self.streams.get(handle) else {
                    let what =
                        if self.handles.was_made(Kind::Stream, handle) { "destroyed" } else { "invented" };
                    self.diagnose(format!(
                        "{handle:#x} is a stream that was {what}: a real driver crashes here"
                    ));
                    return Err(CUDA_ERROR_INVALID_HANDLE);
                };
                if !matches!(stream.kind, StreamKind::Blocking | StreamKind::NonBlocking) {
                    return Err(CUDA_ERROR_INVALID_HANDLE);
                }
                self.alive(stream.device)?;
                Ok(handle)
            }
        }
    }

    /// Submits work to a stream: into its capture, or to its queue, and then returns the point at which it is done.
    pub(crate) fn enqueue(
        &mut self,
        stream: u64,
        work: Work,
        after: Vec<Point>,
    ) -> Result<Option<Point>, CUresult> {
        match self.route(stream)? {
            Some(capture) => {
                self.capture_node(capture, stream, work);
                Ok(None)
            }
            None => Ok(self.streams.submit(stream, work, after)),
        }
    }

    /// Submits work to a stream and, unless it was captured, runs it. Returns the fault that the context has then.
    pub(crate) fn enqueue_and_run(&mut self, stream: u64, work: Work) -> Result<(), CUresult> {
        if let Some(point) = self.enqueue(stream, work, Vec::new())? {
            self.run(point);
            self.stream_sound(stream)?;
        }
        Ok(())
    }

    pub(crate) fn stream_create(&mut self, flags: u32) -> Result<u64, CUresult> {
        let device = self.context()?;
        let kind = match flags {
            0 => StreamKind::Blocking,
            CU_STREAM_NON_BLOCKING => StreamKind::NonBlocking,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let place = self.memory.open_stream(device)?;
        let handle = self.handles.make(Kind::Stream);
        let mut stream = Stream::new(device, kind);
        stream.place = place;
        self.streams.insert(handle, stream);
        Ok(handle)
    }

    /// Destroys a stream; its work is run out first, as it would be by a driver that lets it finish.
    pub(crate) fn stream_destroy(&mut self, handle: u64) -> Result<(), CUresult> {
        if matches!(handle, 0 | LEGACY | PER_THREAD) {
            self.context()?;
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let handle = self.stream(handle)?;
        if let Some(capture) = self.streams.get(handle).and_then(|stream| stream.capture) {
            self.capture_leave(handle, capture);
        }
        self.run(self.streams.end(handle));
        if let Some(stream) = self.streams.remove(handle) {
            self.memory.close_stream(stream.device, stream.place);
        }
        Ok(())
    }

    pub(crate) fn stream_synchronize(&mut self, handle: u64) -> Result<(), CUresult> {
        let handle = self.stream(handle)?;
        self.stream_wait_call(handle)?;
        self.apply_legacy_rule(handle);
        self.run(self.streams.end(handle));
        self.settle_frees(handle);
        self.stream_sound(handle)
    }

    pub(crate) fn stream_query(&mut self, handle: u64) -> Result<(), CUresult> {
        let handle = self.stream(handle)?;
        self.stream_wait_call(handle)?;
        if let Some(seen) = self.streams.seen_by_query(handle) {
            self.run(seen);
            self.stream_sound(handle)?;
        }
        self.apply_legacy_rule(handle);
        if self.streams.query(handle) { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    }

    pub(crate) fn context_synchronize(&mut self) -> Result<(), CUresult> {
        let device = self.context()?;
        self.context_wait_call(device)?;
        self.run_all(device);
        self.memory.synchronize_context(device);
        self.alive(device)
    }

    pub(crate) fn event_create(&mut self, flags: u32) -> Result<u64, CUresult> {
        let device = self.context()?;
        let event = Event::new(device, flags);
        if flags & !KNOWN_FLAGS != 0 || (flags & INTERPROCESS != 0 && event.keeps_time()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let handle = self.handles.make(Kind::Event);
        self.events.insert(handle, event);
        Ok(handle)
    }

    pub(crate) fn event_destroy(&mut self, handle: u64) -> Result<(), CUresult> {
        self.event(handle)?;
        self.events.remove(&handle);
        Ok(())
    }

    pub(crate) fn event_record(&mut self, handle: u64, stream: u64) -> Result<(), CUresult> {
        let stream = self.stream(stream)?;
        let device = self.event(handle)?.device;
        if self.streams.get(stream).is_some_and(|stream| stream.device != device) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let route = self.route(stream)?;
        let serial = self.event(handle)?.serial + 1;
        let state = match route {
            Some(capture) => EventState::Captured { capture, tips: self.capture_tips(capture, stream) },
            None => match self.streams.submit(stream, Work::Record { event: handle, serial }, Vec::new()) {
                Some(point) => EventState::Recorded { point, at_ns: None },
                None => return Err(CUDA_ERROR_INVALID_HANDLE),
            },
        };
        let pools = self.memory.pools.record(stream);
        let event = self.events.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        event.serial = serial;
        event.pools = pools;
        event.state = state;
        Ok(())
    }

    pub(crate) fn event_wait(&mut self, stream: u64, handle: u64, flags: u32) -> Result<(), CUresult> {
        let stream = self.stream(stream)?;
        let state = match &self.event(handle)?.state {
            EventState::Never => None,
            EventState::Recorded { point, .. } => Some(Ok(*point)),
            EventState::Captured { capture, tips } => Some(Err((*capture, tips.clone()))),
        };
        if flags > EXTERNAL {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if flags == EXTERNAL && self.route(stream)?.is_some() {
            self.diagnose("waits of a graph for external events are not modelled".to_owned());
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        match state {
            Some(Err((capture, tips))) => self.capture_join(stream, capture, &tips),
            state => match (self.route(stream)?, state) {
                (_, None) => Ok(()),
                (Some(capture), Some(_)) => Err(self.refuse_isolation(capture)),
                (None, Some(point)) => {
                    let after = point.into_iter().collect();
                    self.streams.submit(stream, Work::Wait, after);
                    if let Some(event) = self.events.get(&handle) {
                        self.memory.pools.wait(stream, &event.pools);
                    }
                    Ok(())
                }
            },
        }
    }

    pub(crate) fn event_query(&mut self, handle: u64) -> Result<(), CUresult> {
        let Some(point) = self.event_point(handle)? else { return Ok(()) };
        let event = self.event(handle)?;
        let (device, serial) = (event.device, event.serial);
        if event.queried == serial {
            self.run(point);
            self.alive(device)?;
        }
        if self.streams.is_done(point) {
            return Ok(());
        }
        if let Some(event) = self.events.get_mut(&handle) {
            event.queried = serial;
        }
        Err(CUDA_ERROR_NOT_READY)
    }

    pub(crate) fn event_synchronize(&mut self, handle: u64) -> Result<(), CUresult> {
        let Some(point) = self.event_point(handle)? else { return Ok(()) };
        let device = self.event(handle)?.device;
        self.run(point);
        if let Some(event) = self.events.get(&handle) {
            self.memory.synchronize_event(&event.pools);
        }
        self.alive(device)
    }

    /// Milliseconds of synthetic time: 400 unless both keep time and were recorded, 600 while one is pending.
    pub(crate) fn event_elapsed(&mut self, start: u64, end: u64) -> Result<f32, CUresult> {
        let times = [self.event_time(start)?, self.event_time(end)?];
        let [Some(start), Some(end)] = times else { return Err(CUDA_ERROR_NOT_READY) };
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }

    fn event_time(&self, handle: u64) -> Result<Option<u64>, CUresult> {
        let event = self.event(handle)?;
        match event.state {
            EventState::Captured { capture, .. } if self.is_valid_capture(capture) => {
                Err(CUDA_ERROR_CAPTURED_EVENT)
            }
            EventState::Captured { .. } => Err(CUDA_ERROR_INVALID_VALUE),
            EventState::Recorded { at_ns, .. } if event.keeps_time() => Ok(at_ns),
            _ => Err(CUDA_ERROR_INVALID_HANDLE),
        }
    }

    /// Where an event that is queried or synchronized stands; `None` for one never recorded.
    fn event_point(&mut self, handle: u64) -> Result<Option<Point>, CUresult> {
        let event = self.event(handle)?;
        let device = event.device;
        match event.state {
            EventState::Captured { capture, .. } => Err(self.refuse_captured_event(capture)),
            EventState::Recorded { point, .. } => {
                self.unsafe_call(device)?;
                Ok(Some(point))
            }
            EventState::Never => {
                self.unsafe_call(device)?;
                Ok(None)
            }
        }
    }

    fn event(&self, handle: u64) -> Result<&Event, CUresult> {
        self.context()?;
        match self.events.get(&handle) {
            Some(event) => self.alive(event.device).map(|_| event),
            // Measured: an event that was destroyed is answered unlike a handle that never was one.
            None if self.handles.was_made(Kind::Event, handle) => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
            None => Err(CUDA_ERROR_INVALID_HANDLE),
        }
    }

    /// Waiting for the legacy stream waits for the blocking streams too, and its end comes behind theirs only once
    /// something is submitted to it.
    fn apply_legacy_rule(&mut self, handle: u64) {
        let Some(stream) = self.streams.get(handle) else { return };
        if stream.kind == StreamKind::Legacy && self.streams.any_blocking_pending(stream.device) {
            self.streams.submit(handle, Work::Wait, Vec::new());
        }
    }

    fn stream_sound(&self, handle: u64) -> Result<(), CUresult> {
        self.streams.get(handle).map_or(Ok(()), |stream| self.alive(stream.device))
    }
}

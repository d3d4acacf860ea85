// SPDX-License-Identifier: MIT OR Apache-2.0
//! The captures in flight as the backend knows them: who began which, which streams and events take part. Pure: no driver,
//! no lock.
//!
//! ```text
//!   origin   o--op--record E----------------wait F--op--end      taking part: origin, forked
//!                       \                   /
//!   forked               wait E--op--record F                    joined: nothing came after F
//! ```

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::thread::ThreadId;

use crate::raw_handles::{EventHandle, StreamHandle};

/// Whom a call on a device would disturb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Captures on the device that this thread began.
    Thread,
    /// Those and the capture that this stream takes part in.
    ThreadOrStream(StreamHandle),
    /// The capture that this stream takes part in.
    Stream(StreamHandle),
    /// The capture in which this event was recorded.
    Event(EventHandle),
    /// Captures on the device that this thread began, and those that the backend of this number did.
    ThreadOrOwner(u64),
    /// Every capture of the device.
    Device,
}

/// A stream's part in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Branch {
    /// The handle by which it came to take part.
    stream: StreamHandle,
    /// Operations captured on it so far.
    steps: u64,
    /// Another stream of the capture waits for all of them.
    joined: bool,
}

impl Branch {
    const fn of(stream: StreamHandle) -> Self {
        Self { stream, steps: 0, joined: false }
    }
}

/// A capture that was begun and has not ended.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    /// The number of the backend that began it.
    pub(crate) owner: u64,
    /// The stream it was begun on.
    pub(crate) origin: StreamHandle,
    /// The line that began it.
    pub(crate) site: &'static Location<'static>,
    /// The first call that the driver refused for the capture's sake.
    pub(crate) broken_by: Option<String>,
    /// Why its work must not become a graph, though the driver would make one of it.
    pub(crate) unfit: Option<String>,
    thread: ThreadId,
    /// Devices whose streams take part: that of the origin, and those of streams that joined.
    devices: Vec<usize>,
    /// A thread is ending it.
    ending: bool,
    /// By the driver's numbers: a stream that two backends know has two handles.
    branches: BTreeMap<u64, Branch>,
}

impl Capture {
    /// Whether a stream came to take part by this handle. It is not stale then: streams of a capture are not destroyed.
    pub(crate) fn has(&self, stream: StreamHandle) -> bool {
        self.branches.get(&stream.raw()).is_some_and(|branch| branch.stream == stream)
    }

    /// Streams whose last work no other stream of the capture waits for.
    pub(crate) fn unjoined(&self) -> Vec<u64> {
        let left =
            self.branches.iter().filter(|&(&stream, branch)| stream != self.origin.raw() && !branch.joined);
        left.map(|(&stream, _)| stream).collect()
    }
}

/// An event last recorded in a capture.
#[derive(Clone, Copy, Debug)]
struct Mark {
    capture: u64,
    stream: u64,
    steps: u64,
}

/// Why a stream may not wait for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFlaw {
    /// The stream captures, and the event was not recorded in that capture.
    Outside { stream_of: u64 },
    /// The event belongs to another capture.
    Merge { stream_of: u64 },
    /// The driver's own streams cannot take part in a capture.
    Drivers { event_of: u64 },
}

/// What a stream has to wait for, told before the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No capture is concerned.
    Plain,
    /// The stream takes part in the event's capture from then on.
    Captured,
}

/// All captures in flight on the devices of a driver.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    open: Vec<Capture>,
    /// By the driver's numbers too.
    events: HashMap<u64, Mark>,
}

impl Captures {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn open(
        &mut self,
        id: u64,
        (owner, device): (u64, usize),
        origin: StreamHandle,
        site: &'static Location<'static>,
        thread: ThreadId,
    ) {
        self.open.push(Capture {
            id,
            owner,
            origin,
            site,
            broken_by: None,
            unfit: None,
            thread,
            devices: vec![device],
            ending: false,
            branches: BTreeMap::from([(origin.raw(), Branch::of(origin))]),
        });
    }

    /// Takes a capture out that has ended, its streams and events with it.
    pub(crate) fn close(&mut self, id: u64) -> Option<Capture> {
        let at = self.open.iter().position(|capture| capture.id == id)?;
        self.events.retain(|_, mark| mark.capture != id);
        Some(self.open.remove(at))
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Capture> {
        self.open.iter().find(|capture| capture.id == id)
    }

    /// The capture a stream takes part in.
    pub(crate) fn on_stream(&self, stream: StreamHandle) -> Option<&Capture> {
        self.open.iter().find(|capture| capture.branches.contains_key(&stream.raw()))
    }

    fn on_stream_mut(&mut self, stream: StreamHandle) -> Option<&mut Capture> {
        self.open.iter_mut().find(|capture| capture.branches.contains_key(&stream.raw()))
    }

    /// Captures that a backend began, by the streams they were begun on.
    pub(crate) fn origins_of(&self, owner: u64) -> Vec<StreamHandle> {
        self.open.iter().filter(|capture| capture.owner == owner).map(|capture| capture.origin).collect()
    }

    /// A capture within reach of a call made on a device by thread `me`.
    pub(crate) fn within(&self, reach: Reach, device: usize, me: ThreadId) -> Option<&Capture> {
        let mut on_device = self.open.iter().filter(|capture| capture.devices.contains(&device));
        match reach {
            Reach::Thread => on_device.find(|capture| capture.thread == me),
            Reach::ThreadOrStream(stream) => {
                self.on_stream(stream).or_else(|| on_device.find(|capture| capture.thread == me))
            }
            Reach::Stream(stream) => self.on_stream(stream),
            Reach::Event(event) => self.get(self.events.get(&event.raw())?.capture),
            Reach::ThreadOrOwner(owner) => {
                let mine = on_device.find(|capture| capture.thread == me);
                mine.or_else(|| self.open.iter().find(|capture| capture.owner == owner))
            }
            Reach::Device => on_device.next(),
        }
    }

    /// Reserves the end of the capture begun on a stream for the calling thread; `None` where there is none, or another
    /// thread is at it.
    pub(crate) fn start_ending(&mut self, stream: StreamHandle) -> Option<&Capture> {
        let capture =
            self.open.iter_mut().find(|capture| capture.origin.raw() == stream.raw() && !capture.ending)?;
        capture.ending = true;
        Some(capture)
    }

    /// The driver did not end the capture.
    pub(crate) fn stop_ending(&mut self, id: u64) {
        if let Some(capture) = self.open.iter_mut().find(|capture| capture.id == id) {
            capture.ending = false;
        }
    }

    /// Something was captured on a stream; the number of the capture, if the stream takes part in one.
    pub(crate) fn step(&mut self, stream: StreamHandle) -> Option<u64> {
        let capture = self.on_stream_mut(stream)?;
        let branch = capture.branches.entry(stream.raw()).or_insert(Branch::of(stream));
        branch.steps += 1;
        branch.joined = false;
        Some(capture.id)
    }

    /// A call on a stream was refused for its capture's sake.
    pub(crate) fn broken(&mut self, stream: StreamHandle, by: impl FnOnce() -> String) {
        if let Some(capture) = self.on_stream_mut(stream) {
            capture.broken_by.get_or_insert_with(by);
        }
    }

    /// The work of a capture must not become a graph.
    pub(crate) fn make_unfit(&mut self, id: u64, why: impl FnOnce() -> String) {
        if let Some(capture) = self.open.iter_mut().find(|capture| capture.id == id) {
            capture.unfit.get_or_insert_with(why);
        }
    }

    /// An event was recorded on a stream.
    pub(crate) fn recorded(&mut self, event: EventHandle, stream: StreamHandle) {
        let mark = self.on_stream(stream).and_then(|capture| {
            let steps = capture.branches.get(&stream.raw())?.steps;
            Some(Mark { capture: capture.id, stream: stream.raw(), steps })
        });
        match mark {
            Some(mark) => drop(self.events.insert(event.raw(), mark)),
            None => self.forget_event(event),
        }
    }

    /// An event is gone, or was recorded outside.
    pub(crate) fn forget_event(&mut self, event: EventHandle) {
        self.events.remove(&event.raw());
    }

    /// The number of the capture that an event was last recorded in.
    pub(crate) fn capture_of_event(&self, event: EventHandle) -> Option<u64> {
        self.events.get(&event.raw()).map(|mark| mark.capture)
    }

    /// Whether a stream may wait for an event, as far as captures are concerned.
    pub(crate) fn may_wait(&self, stream: StreamHandle, event: EventHandle) -> Result<Wait, WaitFlaw> {
        let stream_of = self.on_stream(stream).map(|capture| capture.id);
        let event_of = self.events.get(&event.raw()).map(|mark| mark.capture);
        match (stream_of, event_of) {
            (None, None) => Ok(Wait::Plain),
            (Some(stream_of), None) => Err(WaitFlaw::Outside { stream_of }),
            (None, Some(event_of)) if stream.is_the_drivers() => Err(WaitFlaw::Drivers { event_of }),
            (Some(stream_of), Some(event_of)) if stream_of != event_of => Err(WaitFlaw::Merge { stream_of }),
            (_, Some(_)) => Ok(Wait::Captured),
        }
    }

    /// A stream of a device waits for a captured event.
    pub(crate) fn waited(&mut self, stream: StreamHandle, device: usize, event: EventHandle) {
        let Some(mark) = self.events.get(&event.raw()).copied() else { return };
        let Some(capture) = self.open.iter_mut().find(|capture| capture.id == mark.capture) else { return };
        if !capture.devices.contains(&device) {
            capture.devices.push(device);
        }
        let branch = capture.branches.entry(stream.raw()).or_insert(Branch::of(stream));
        if stream.raw() == mark.stream {
            return;
        }
        branch.steps += 1;
        branch.joined = false;
        if let Some(source) = capture.branches.get_mut(&mark.stream)
            && source.steps == mark.steps
        {
            source.joined = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_handles::HandleId;

    const S1: StreamHandle = stream(0x10);
    const S2: StreamHandle = stream(0x20);
    const S3: StreamHandle = stream(0x30);

    const fn stream(raw: u64) -> StreamHandle {
        StreamHandle(HandleId { raw, generation: raw })
    }

    const fn event(raw: u64) -> EventHandle {
        EventHandle(HandleId { raw, generation: raw })
    }

    fn me() -> ThreadId {
        std::thread::current().id()
    }

    fn elsewhere() -> ThreadId {
        std::thread::spawn(me).join().unwrap()
    }

    /// A capture begun by this thread on `S1`, another by the backend 2 in another thread on `S3`.
    fn two() -> Captures {
        let mut captures = Captures::default();
        captures.open(1, (1, 0), S1, Location::caller(), me());
        captures.open(2, (2, 0), S3, Location::caller(), elsewhere());
        captures
    }

    fn hit(captures: &Captures, reach: Reach) -> Option<u64> {
        captures.within(reach, 0, me()).map(|capture| capture.id)
    }

    #[test]
    fn each_reach_finds_what_it_would_disturb() {
        let mut captures = two();
        captures.recorded(event(0xE), S3);
        assert_eq!(hit(&captures, Reach::Thread), Some(1));
        assert_eq!(hit(&captures, Reach::Stream(S2)), None);
        assert_eq!(hit(&captures, Reach::Stream(S3)), Some(2));
        assert_eq!(hit(&captures, Reach::ThreadOrStream(S3)), Some(2));
        assert_eq!(hit(&captures, Reach::ThreadOrStream(S2)), Some(1));
        assert_eq!(
            (hit(&captures, Reach::Event(event(0xE))), hit(&captures, Reach::Event(event(0xF)))),
            (Some(2), None)
        );
        captures.close(1).unwrap();
        assert_eq!((hit(&captures, Reach::Thread), hit(&captures, Reach::Device)), (None, Some(2)));
        assert_eq!(hit(&captures, Reach::ThreadOrOwner(2)), Some(2));
        assert_eq!(hit(&captures, Reach::ThreadOrOwner(1)), None);
        captures.close(2).unwrap();
        assert!(captures.close(2).is_none());
        assert_eq!(
            (hit(&captures, Reach::Event(event(0xE))), captures.len()),
            (None, 0),
            "its events go with it"
        );
    }

    #[test]
    fn a_stream_that_waits_for_a_captured_event_takes_part() {
        let mut captures = two();
        captures.recorded(event(0xE), S1);
        assert_eq!(captures.may_wait(S2, event(0xE)), Ok(Wait::Captured));
        captures.waited(S2, 0, event(0xE));
        assert_eq!(hit(&captures, Reach::Stream(S2)), Some(1));
        assert_eq!(captures.close(1).unwrap().origin, S1);
        assert_eq!(hit(&captures, Reach::Stream(S2)), None);
    }

    #[test]
    fn a_capture_reaches_as_far_as_the_devices_that_take_part() {
        let mut captures = two();
        let on = |captures: &Captures, reach| captures.within(reach, 1, me()).map(|capture| capture.id);
        captures.recorded(event(0xE), S1);
        for reach in [Reach::Thread, Reach::Device, Reach::ThreadOrStream(S2), Reach::ThreadOrOwner(7)] {
            assert_eq!(on(&captures, reach), None, "{reach:?}");
        }
        assert_eq!(on(&captures, Reach::ThreadOrOwner(2)), Some(2), "an owner's are found anywhere");
        captures.waited(S2, 1, event(0xE));
        for reach in
            [Reach::Thread, Reach::Device, Reach::ThreadOrStream(stream(0x99)), Reach::ThreadOrOwner(7)]
        {
            assert_eq!(on(&captures, reach), Some(1), "{reach:?}");
        }
    }

    #[test]
    fn waits_that_would_break_a_capture_are_told() {
        let mut captures = two();
        captures.recorded(event(0xE), S1);
        assert_eq!(captures.may_wait(S2, event(0xF)), Ok(Wait::Plain));
        assert_eq!(captures.may_wait(S1, event(0xF)), Err(WaitFlaw::Outside { stream_of: 1 }));
        assert_eq!(captures.may_wait(S3, event(0xE)), Err(WaitFlaw::Merge { stream_of: 2 }));
        assert_eq!(
            captures.may_wait(StreamHandle::LEGACY, event(0xE)),
            Err(WaitFlaw::Drivers { event_of: 1 })
        );
        assert_eq!(
            captures.may_wait(StreamHandle::PER_THREAD, event(0xE)),
            Err(WaitFlaw::Drivers { event_of: 1 })
        );
        // Recorded anew outside, it is no event of the capture any more.
        captures.recorded(event(0xE), S2);
        assert_eq!(captures.may_wait(S3, event(0xE)), Err(WaitFlaw::Outside { stream_of: 2 }));
    }

    #[test]
    fn work_behind_the_last_join_is_unjoined() {
        let mut captures = two();
        captures.recorded(event(0xE), S1);
        captures.waited(S2, 0, event(0xE));
        assert_eq!(captures.get(1).unwrap().unjoined(), [S2.raw()]);
        captures.step(S2);
        captures.recorded(event(0xF), S2);
        captures.waited(S1, 0, event(0xF));
        assert!(captures.get(1).unwrap().unjoined().is_empty());
        captures.step(S2);
        assert_eq!(captures.get(1).unwrap().unjoined(), [S2.raw()]);
        // The event of before stands for less than there is now.
        captures.waited(S1, 0, event(0xF));
        assert_eq!(captures.get(1).unwrap().unjoined(), [S2.raw()]);
        assert_eq!(captures.step(stream(0x99)), None);
    }

    #[test]
    fn one_thread_ends_a_capture_and_only_where_it_began() {
        let mut captures = two();
        captures.recorded(event(0xE), S1);
        captures.waited(S2, 0, event(0xE));
        assert!(captures.start_ending(S2).is_none());
        assert_eq!(captures.start_ending(S1).map(|capture| capture.id), Some(1));
        assert!(captures.start_ending(S1).is_none());
        captures.stop_ending(1);
        assert!(captures.start_ending(S1).is_some());
    }
}

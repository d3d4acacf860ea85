// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gates that calls pass before the driver is asked, and what is noted after those that a capture recorded.
//!
//! | call | refused while |
//! |---|---|
//! | alloc, free, memory query, sweep | the calling thread captures |
//! | blocking copy or fill | the calling thread, or the backend's own stream, captures |
//! | wait for a stream, query, copies that wait for one, destroy, release | that stream takes part in a capture |
//! | wait for an event, query, measurement | the event was recorded in the capture |
//! | wait for the device | any of its streams takes part in a capture |
//! | work on the legacy stream | the calling thread captures: it would run at once and be missing from the graph |
//!
//! Relaxed captures let other threads allocate, free and copy, so these are not refused there. Where nothing captures, a
//! gate costs one relaxed load.

use std::panic::Location;

use metrale_driver_sys::DriverError;
use metrale_ledger::{AllocKind, LiveAllocation, SubRange, Whois};
use parking_lot::MutexGuard;

use crate::backend::MetraleCudaBackend;
use crate::error::{BadArgument, Result};
use crate::graph::captures::{Capture, Reach, Wait, WaitFlaw};
use crate::graph::pins::{Pin, Pins};
use crate::graph::refusal::{Capturing, PinnedByGraph, is_of_captures};
use crate::graph::shared::{BorrowedCopy, DeviceWait, GraphClient, SharedState};
use crate::raw_handles::{DevicePtr, EventHandle, StreamHandle, unique_number};

/// Keeps anything new from being pinned while memory is removed from the ledger. Holds nothing where nothing could be.
pub(crate) struct Unpinned<'shared> {
    lock: Option<MutexGuard<'shared, SharedState>>,
}

/// What work on a stream is known to use.
#[derive(Clone, Copy)]
pub(crate) enum Uses<'a> {
    /// Ends of a copy or fill: device memory of any backend of the driver, and host memory, which may be anything.
    Ends { device: [Option<u64>; 2], host: Option<u64> },
    /// Addresses among a kernel's arguments, which it need not follow.
    Arguments(&'a [u64]),
    /// A kernel's arguments, of which nothing is known.
    Unknown,
}

/// Work that the driver is about to be asked for. Where its stream captures, what it uses is pinned already.
#[must_use = "what a capture uses is pinned only as long as this is held"]
pub(crate) struct Submission<'a> {
    backend: &'a MetraleCudaBackend,
    stream: StreamHandle,
    doing: &'static str,
    uses: Uses<'a>,
    /// The number under which its memory is pinned until the driver has answered.
    pins: Option<u64>,
}

impl Submission<'_> {
    /// Notes the driver's answer: what was recorded stays pinned for the capture, and else the pins are released.
    #[inline]
    pub(crate) fn answered(self, answer: Result<(), DriverError>) {
        if self.pins.is_some() || self.backend.graph_client().shared.is_capturing() {
            self.note(answer);
        }
    }

    #[cold]
    fn note(self, answer: Result<(), DriverError>) {
        let Self { backend, stream, doing, uses, pins } = self;
        backend.graph_client().shared.with(|state| match answer {
            Ok(()) => {
                let joined = state.capture_of(stream).map(|capture| capture.id);
                let Some(id) = state.captures.step(stream).or(joined) else { return };
                match (uses, pins) {
                    (Uses::Unknown, _) => state.pins.add_opaque(id),
                    (_, Some(pins)) => state.pins.share(pins, id),
                    // The capture began, or was seen here, only when the driver was asked.
                    (uses, None) => {
                        if let Err(stale) = backend.pin_uses(state, id, doing, uses) {
                            state.captures.make_unfit(id, || stale.to_string());
                        }
                    }
                }
            }
            Err(error) if is_of_captures(error) => {
                state.captures.broken(stream, || format!("{doing}: {error}"));
            }
            Err(_) => {}
        });
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if let Some(pins) = self.pins {
            self.backend.graph_client().shared.with(|state| state.pins.release(pins));
        }
    }
}

pub(crate) fn refusal(capture: &Capture, doing: &'static str, advice: &'static str) -> Capturing {
    Capturing { doing, stream: capture.origin, begun_at: capture.site, advice }
}

impl MetraleCudaBackend {
    /// Refuses a call that a capture within reach does not survive, or that the contract keeps out of captures.
    #[inline]
    pub(crate) fn outside_capture(
        &self,
        reach: Reach,
        doing: &'static str,
        advice: &'static str,
    ) -> Result<(), Capturing> {
        match self.graph_client().within(reach, |capture| refusal(capture, doing, advice)) {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// Refuses work on the legacy stream by a thread that captures: it would run at once and be missing from the graph.
    #[inline]
    pub(crate) fn not_beside_capture(
        &self,
        stream: StreamHandle,
        doing: &'static str,
    ) -> Result<(), Capturing> {
        if !stream.is_legacy() {
            return Ok(());
        }
        const ADVICE: &str = "on the legacy stream it would run at once and be missing from the graph, whose replays would \
                              use old data; give it the capturing stream";
        self.outside_capture(Reach::Thread, doing, ADVICE)
    }

    /// To be called before the driver is asked for work on a stream, and told its answer: where the stream captures, what the
    /// work uses is pinned from here on, so that no free on another thread comes between.
    ///
    /// Refuses a copy or fill of freed memory in a capture: each replay would use whatever lies there then. Costs one relaxed load
    /// where nothing captures.
    #[inline]
    pub(crate) fn submission<'a>(
        &'a self,
        stream: StreamHandle,
        doing: &'static str,
        uses: Uses<'a>,
    ) -> Result<Submission<'a>, BadArgument> {
        let mut submission = Submission { backend: self, stream, doing, uses, pins: None };
        if self.graph_client().shared.is_capturing() {
            submission.pins = self.pin_before(stream, doing, uses)?;
        }
        Ok(submission)
    }

    #[cold]
    fn pin_before(
        &self,
        stream: StreamHandle,
        doing: &'static str,
        uses: Uses<'_>,
    ) -> Result<Option<u64>, BadArgument> {
        if matches!(uses, Uses::Unknown) {
            return Ok(None);
        }
        self.graph_client().shared.with(|state| {
            let Some(begun_at) = state.capture_of(stream).map(|capture| capture.site) else {
                return Ok(None);
            };
            let id = unique_number();
            state.pins.open(id, begun_at);
            match self.pin_uses(state, id, doing, uses) {
                Ok(()) => Ok(Some(id)),
                Err(stale) => {
                    state.pins.release(id);
                    Err(stale)
                }
            }
        })
    }

    /// Pins what work uses, on whichever backend's ledger.
    fn pin_uses(
        &self,
        state: &mut SharedState,
        id: u64,
        doing: &'static str,
        uses: Uses<'_>,
    ) -> Result<(), BadArgument> {
        let (device, others) = match uses {
            Uses::Ends { device, host } => (device, host),
            Uses::Arguments(addresses) => {
                addresses.iter().for_each(|&addr| drop(self.pin_live(state, id, addr)));
                return Ok(());
            }
            Uses::Unknown => return Ok(()),
        };
        for addr in device.into_iter().flatten() {
            if let Some(freed) = self.pin_live(state, id, addr) {
                return Err(BadArgument::new(format!(
                    "{doing} in a capture: {} is {freed}, and a replay would use whatever lies there then; use memory that \
                     is live",
                    DevicePtr(addr)
                )));
            }
        }
        // Plain host memory may lie where pinned memory was freed.
        others.into_iter().for_each(|addr| drop(self.pin_live(state, id, addr)));
        Ok(())
    }

    /// Pins the allocation around an address where a ledger of the driver's backends has one, those dropped included; what is known
    /// of the address where it was freed.
    fn pin_live(&self, state: &mut SharedState, id: u64, addr: u64) -> Option<Whois> {
        let own = self.ledger_writer().whois(addr);
        if let Whois::Live { allocation, .. } = own {
            self.pin(&mut state.pins, id, allocation, addr);
            return None;
        }
        let me = self.graph_client().owner;
        for (owner, ledger) in &state.ledgers {
            if *owner != me
                && let Whois::Live { allocation, .. } = ledger.whois(addr)
            {
                pin_in(&mut state.pins, id, allocation, || ledger.sub_range_at(addr));
                return None;
            }
        }
        if let Some(allocation) = self.surviving_at(addr) {
            state.pins.add(id, allocation);
            return None;
        }
        matches!(own, Whois::Freed { .. }).then_some(own)
    }

    /// Pins an allocation and, where that is an arena, the part of it around `addr`.
    pub(crate) fn pin(&self, pins: &mut Pins, id: u64, allocation: LiveAllocation, addr: u64) {
        pin_in(pins, id, allocation, || self.ledger_writer().ledger().sub_range_at(addr));
    }

    /// Begins a copy whose host memory is borrowed for the call: no capture begins on its stream meanwhile. Refused where one has.
    pub(crate) fn borrow_on(
        &self,
        stream: StreamHandle,
        doing: &'static str,
        advice: &'static str,
    ) -> Result<BorrowedCopy<'_>, Capturing> {
        self.graph_client().shared.borrow_on(stream, |capture| refusal(capture, doing, advice))
    }

    /// Begins a wait for the whole device: no capture begins there meanwhile. Refused where one has.
    pub(crate) fn wait_for_device(
        &self,
        doing: &'static str,
        advice: &'static str,
    ) -> Result<DeviceWait<'_>, Capturing> {
        let GraphClient { shared, device, .. } = self.graph_client();
        shared.wait_for_device(*device, |capture| refusal(capture, doing, advice))
    }

    /// Whether a stream takes part in a capture of this driver's backends.
    pub(crate) fn captures(&self, stream: StreamHandle) -> bool {
        self.graph_client().within(Reach::Stream(stream), |_| ()).is_some()
    }

    /// An event was recorded on a stream.
    pub(crate) fn event_recorded(&self, event: EventHandle, stream: StreamHandle) {
        if self.graph_client().shared.is_capturing() {
            self.graph_client().shared.with(|state| state.captures.recorded(event, stream));
        }
    }

    /// An event was made, whatever had its handle before.
    pub(crate) fn event_made(&self, event: EventHandle) {
        if self.graph_client().shared.is_capturing() {
            self.graph_client().shared.with(|state| state.captures.forget_event(event));
        }
    }

    /// Refuses a wait that would break a capture; tells whether one is concerned. The stream then counts as part of it until the
    /// answer is [noted](Self::waited), and a copy on it that borrows host memory has the wait refused.
    pub(crate) fn may_wait(
        &self,
        stream: StreamHandle,
        event: EventHandle,
        doing: &'static str,
    ) -> Result<Wait> {
        if !self.graph_client().shared.is_capturing() {
            return Ok(Wait::Plain);
        }
        self.graph_client().shared.with(|state| {
            let flaw = match state.captures.may_wait(stream, event) {
                Ok(Wait::Plain) => return Ok(Wait::Plain),
                Ok(Wait::Captured) => {
                    state.may_capture(stream, self.graph_client().device, doing)?;
                    state.joining = state.captures.capture_of_event(event).map(|id| (stream.raw(), id));
                    return Ok(Wait::Captured);
                }
                Err(flaw) => flaw,
            };
            let (id, advice) = match flaw {
                WaitFlaw::Outside { stream_of } => (
                    stream_of,
                    "the event was not recorded in this capture, and a graph cannot wait for what is outside it; wait for \
                     it before the capture begins",
                ),
                WaitFlaw::Merge { stream_of } => {
                    (stream_of, "the event was recorded in another capture, and the wait would merge the two")
                }
                WaitFlaw::Drivers { event_of } => (
                    event_of,
                    "neither the legacy stream nor that of each thread can take part in a capture; use another stream",
                ),
            };
            match state.captures.get(id) {
                Some(capture) => Err(refusal(capture, doing, advice).into()),
                None => Ok(Wait::Plain),
            }
        })
    }

    /// Notes a wait that the driver has taken, or refused.
    pub(crate) fn waited(
        &self,
        stream: StreamHandle,
        event: EventHandle,
        wait: Wait,
        doing: &'static str,
        answer: Result<(), DriverError>,
    ) {
        let GraphClient { shared, device, .. } = self.graph_client();
        if wait == Wait::Plain && (answer.is_ok() || !shared.is_capturing()) {
            return;
        }
        shared.with(|state| {
            if wait == Wait::Captured {
                state.joining = None;
            }
            match answer {
                Ok(()) => state.captures.waited(stream, *device, event),
                Err(error) if is_of_captures(error) => {
                    state.captures.broken(stream, || format!("{doing}: {error}"));
                }
                Err(_) => {}
            }
        });
    }

    /// Does something that ends a stream for this backend, while no capture can begin on it; refused where it takes part
    /// in one.
    pub(crate) fn uncaptured<T>(
        &self,
        stream: StreamHandle,
        doing: &'static str,
        act: impl FnOnce() -> T,
    ) -> Result<T, Capturing> {
        const ADVICE: &str = "end the capture first, or abort_capture_if_active";
        self.graph_client().shared.with(|state| match state.captures.on_stream(stream) {
            Some(capture) => Err(refusal(capture, doing, ADVICE)),
            None => Ok(act()),
        })
    }

    /// Refuses a free of memory that a graph or capture uses. Where the answer holds a lock, no capture comes to use it as long as
    /// that lives; where it holds none, a capture may just have begun elsewhere, and [`came_to_use`](Self::came_to_use) tells.
    #[inline]
    pub(crate) fn unpinned(
        &self,
        addr: u64,
        kind: AllocKind,
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Result<Unpinned<'_>, PinnedByGraph> {
        let lock = self.graph_client().shared.lock_pins();
        if let Some(state) = &lock {
            refuse_pinned(state, Pin::of(kind, addr), call, site)?;
        }
        Ok(Unpinned { lock })
    }

    /// Whether a capture came to use memory between the look of [`unpinned`](Self::unpinned), which held no lock, and its leaving
    /// the ledger: asked after that, from when on none can any more. The lock of the ledger makes it seen.
    #[inline]
    pub(crate) fn came_to_use(
        &self,
        unpinned: &Unpinned<'_>,
        addr: u64,
        kind: AllocKind,
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Result<(), PinnedByGraph> {
        if unpinned.lock.is_some() {
            return Ok(());
        }
        self.unpinned(addr, kind, call, site).map(drop)
    }

    /// [`unpinned`](Self::unpinned) for a part of an arena that is freed, always with the lock.
    pub(crate) fn unpinned_part(
        &self,
        addr: u64,
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Result<Unpinned<'_>, PinnedByGraph> {
        let lock = self.graph_client().shared.lock();
        refuse_pinned(&lock, Pin::of_part(addr), call, site)?;
        Ok(Unpinned { lock: Some(lock) })
    }
}

fn refuse_pinned(
    state: &SharedState,
    pin: Pin,
    call: &'static str,
    site: &'static Location<'static>,
) -> Result<(), PinnedByGraph> {
    match state.pins.holders(pin) {
        Some((allocation, holders)) => {
            Err(PinnedByGraph { call, site, allocation: Box::new(allocation.clone()), holders })
        }
        None => Ok(()),
    }
}

/// Pins an allocation and, where that is an arena, the part of it that `part` finds.
fn pin_in(pins: &mut Pins, id: u64, allocation: LiveAllocation, part: impl FnOnce() -> Option<SubRange>) {
    let part = if allocation.record.kind == AllocKind::Arena { part() } else { None };
    pins.add(id, allocation);
    if let Some(part) = part {
        pins.add_part(id, part.as_allocation());
    }
}

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

use anyhow::Result;
use metrale_driver_sys::{
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, DriverError,
};
use metrale_ledger::{AllocKind, LiveAllocation, Whois};
use parking_lot::{MutexGuard, RwLockWriteGuard};

use crate::backend::MetraleCudaBackend;
use crate::graph::captures::{Capture, Reach, Wait, WaitFlaw};
use crate::graph::pins::{Pin, Pins};
use crate::graph::refusal::{Capturing, PinnedByGraph};
use crate::graph::shared::{GraphClient, SharedState};
use crate::stream::is_legacy;

/// Keeps anything new from being pinned while memory is removed from the ledger. Holds nothing where nothing could be.
pub(crate) struct Unpinned<'shared> {
    _lock: Option<MutexGuard<'shared, SharedState>>,
}

/// What work on a stream is known to use.
#[derive(Clone, Copy)]
pub(crate) enum Uses<'a> {
    /// The allocations around these addresses, of the device or the host.
    Memory(&'a [u64]),
    /// The two ends of a copy, each on the ledger of its own backend.
    Peers { src: u64, to: &'a MetraleCudaBackend, dst: u64 },
    /// A kernel's untyped arguments.
    Unknown,
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
    pub(crate) fn not_beside_capture(&self, stream: u64, doing: &'static str) -> Result<(), Capturing> {
        if !is_legacy(stream) {
            return Ok(());
        }
        const ADVICE: &str = "on the legacy stream it would run at once and be missing from the graph, whose replays would \
                              use old data; give it the capturing stream";
        self.outside_capture(Reach::Thread, doing, ADVICE)
    }

    /// Notes work that the driver has taken, or refused, on a stream: what a capture of it uses is pinned from here on.
    #[inline]
    pub(crate) fn submitted(
        &self,
        stream: u64,
        doing: &'static str,
        answer: Result<(), DriverError>,
        uses: Uses<'_>,
    ) {
        if self.graph_client().shared.is_capturing() {
            self.note(stream, doing, answer, uses);
        }
    }

    #[cold]
    fn note(&self, stream: u64, doing: &'static str, answer: Result<(), DriverError>, uses: Uses<'_>) {
        self.graph_client().shared.with(|state| match answer {
            Ok(()) => {
                let Some(id) = state.captures.step(stream) else { return };
                let mut pin = |backend: &Self, addr| {
                    if let Whois::Live { allocation, .. } = backend.ledger_writer().whois(addr) {
                        backend.pin(&mut state.pins, id, allocation, addr);
                    }
                };
                match uses {
                    Uses::Unknown => state.pins.add_opaque(id),
                    Uses::Memory(addresses) => addresses.iter().for_each(|&addr| pin(self, addr)),
                    Uses::Peers { src, to, dst } => {
                        pin(self, src);
                        pin(to, dst);
                    }
                }
            }
            Err(error) if is_of_captures(error) => {
                state.captures.broken(stream, || format!("{doing}: {error}"));
            }
            Err(_) => {}
        });
    }

    /// Pins an allocation and, where that is an arena, the part of it around `addr`.
    pub(crate) fn pin(&self, pins: &mut Pins, id: u64, allocation: LiveAllocation, addr: u64) {
        let is_arena = allocation.record.kind == AllocKind::Arena;
        let part = if is_arena { self.ledger_writer().ledger().sub_range_at(addr) } else { None };
        pins.add(id, allocation);
        if let Some(part) = part {
            pins.add_part(id, part.as_allocation());
        }
    }

    /// Whether a stream takes part in a capture of this driver's backends.
    pub(crate) fn captures(&self, stream: u64) -> bool {
        self.graph_client().within(Reach::Stream(stream), |_| ()).is_some()
    }

    /// Whether anything captures on this backend's device.
    pub(crate) fn captures_on_device(&self) -> bool {
        self.graph_client().within(Reach::Device, |_| ()).is_some()
    }

    /// An event was recorded on a stream.
    pub(crate) fn event_recorded(&self, event: u64, stream: u64) {
        if self.graph_client().shared.is_capturing() {
            self.graph_client().shared.with(|state| state.captures.recorded(event, stream));
        }
    }

    /// An event was made, whatever had its handle before.
    pub(crate) fn event_made(&self, event: u64) {
        if self.graph_client().shared.is_capturing() {
            self.graph_client().shared.with(|state| state.captures.forget_event(event));
        }
    }

    /// Refuses a wait that would break a capture; tells whether one is concerned.
    pub(crate) fn may_wait(&self, stream: u64, event: u64, doing: &'static str) -> Result<Wait, Capturing> {
        if !self.graph_client().shared.is_capturing() {
            return Ok(Wait::Plain);
        }
        self.graph_client().shared.with(|state| {
            let flaw = match state.captures.may_wait(stream, event) {
                Ok(wait) => return Ok(wait),
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
                Some(capture) => Err(refusal(capture, doing, advice)),
                None => Ok(Wait::Plain),
            }
        })
    }

    /// To be held over a wait that makes a stream take part in a capture.
    pub(crate) fn joins(&self, wait: Wait) -> Option<RwLockWriteGuard<'_, ()>> {
        (wait == Wait::Captured).then(|| self.graph_client().shared.exclude_borrowed_copies())
    }

    /// Notes a wait that the driver has taken, or refused.
    pub(crate) fn waited(
        &self,
        stream: u64,
        event: u64,
        wait: Wait,
        doing: &'static str,
        answer: Result<(), DriverError>,
    ) {
        match answer {
            Ok(()) if wait == Wait::Captured => {
                let GraphClient { shared, device, .. } = self.graph_client();
                shared.with(|state| state.captures.waited(stream, *device, event));
            }
            Ok(()) => {}
            Err(_) => self.submitted(stream, doing, answer, Uses::Memory(&[])),
        }
    }

    /// Does something that ends a stream for this backend, while no capture can begin on it; refused where it takes part
    /// in one.
    pub(crate) fn uncaptured<T>(
        &self,
        stream: u64,
        doing: &'static str,
        act: impl FnOnce() -> T,
    ) -> Result<T, Capturing> {
        const ADVICE: &str = "end the capture first, or abort_capture_if_active";
        self.graph_client().shared.with(|state| match state.captures.on_stream(stream) {
            Some(capture) => Err(refusal(capture, doing, ADVICE)),
            None => Ok(act()),
        })
    }

    /// Refuses a free of memory that a graph or capture uses. As long as the answer lives, no capture comes to use it.
    #[inline]
    pub(crate) fn unpinned(
        &self,
        addr: u64,
        kind: AllocKind,
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Result<Unpinned<'_>, PinnedByGraph> {
        self.unpinned_as(Pin::of(kind, addr), call, site)
    }

    /// [`unpinned`](Self::unpinned) for a part of an arena that is freed.
    pub(crate) fn unpinned_part(
        &self,
        addr: u64,
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Result<Unpinned<'_>, PinnedByGraph> {
        self.unpinned_as(Pin::of_part(addr), call, site)
    }

    #[inline]
    fn unpinned_as(
        &self,
        pin: Pin,
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Result<Unpinned<'_>, PinnedByGraph> {
        let lock = self.graph_client().shared.lock_pins();
        if let Some(state) = &lock
            && let Some((allocation, holders)) = state.pins.holders(pin)
        {
            return Err(PinnedByGraph { call, site, allocation: Box::new(allocation.clone()), holders });
        }
        Ok(Unpinned { _lock: lock })
    }
}

/// Whether a status tells of a capture.
pub(crate) const fn is_of_captures(error: DriverError) -> bool {
    error.status >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        && error.status <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
}

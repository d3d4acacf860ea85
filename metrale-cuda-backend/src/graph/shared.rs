// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SharedGraphs`]: the captures, graphs and pins that all backends of one driver share, and what their calls follow.
//!
//! Backends of one device share its context and stream, so a synchronization by one would break a capture of another. A
//! captured copy can reach the memory of any device of the driver, so no backend may free what a graph of another uses. And a
//! copy or fill by any of them can reach pinned memory of any other.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Weak};
use std::thread;

use metrale_ledger::LedgerProbe;
use metrale_registry::CudaHost;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::graph::captures::{Capture, Captures, Reach};
use crate::graph::pins::Pins;
use crate::graph::refusal::StreamInUse;
use crate::handle_tombstones::HandleTombstones;
use crate::memory::FollowedRanges;
use crate::raw_handles::{EventHandle, GraphHandle, HandleId, StreamHandle, unique_number};

/// Locks that events share by their numbers.
const EVENT_LOCKS: usize = 32;

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct EventLock(Mutex<()>);

/// Who has memory that waits for a capture or graph, of whichever backend, to end.
pub(crate) trait FreesLater: Send + Sync {
    /// Frees what waits and may be freed now.
    fn free_waiting(&self);
}

impl fmt::Debug for dyn FreesLater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreesLater")
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) handle: GraphHandle,
    pub(crate) name: Arc<str>,
    /// The number of the backend that made it.
    pub(crate) owner: u64,
    /// The device it was captured on.
    pub(crate) device: usize,
    /// That device's host, which its backend keeps: the graph itself may be remembered for longer.
    pub(crate) host: Weak<CudaHost>,
    /// Locked over every driver call on the graph: the driver requires its callers to make them one at a time. Lock it
    /// before [`SharedGraphs`], never after.
    pub(crate) state: Mutex<GraphState>,
}

/// What changes about a graph.
#[derive(Debug)]
pub(crate) struct GraphState {
    /// False once it is destroyed. Its handle must not reach the driver from then on.
    pub(crate) alive: bool,
    /// The number of the capture whose work it does.
    pub(crate) id: u64,
    pub(crate) captured_at: &'static Location<'static>,
    pub(crate) nodes: usize,
    pub(crate) bytes_measured: Option<i64>,
}

/// How a graph ended.
#[derive(Clone, Debug)]
pub(crate) struct GraphEnd {
    pub(crate) name: Arc<str>,
    pub(crate) how: &'static str,
}

/// What [`SharedGraphs`] keeps behind its lock.
#[derive(Debug, Default)]
pub(crate) struct SharedState {
    pub(crate) captures: Captures,
    pub(crate) pins: Pins,
    /// Live graphs by handle.
    pub(crate) graphs: FxHashMap<GraphHandle, Arc<Graph>>,
    /// How destroyed graphs ended, by generation.
    pub(crate) ended: HandleTombstones<GraphEnd>,
    /// Copies under way whose host memory is borrowed for the call only, by the number of their stream. No capture begins on one: a copy that
    /// was recorded would use that memory at each replay.
    borrowed: FxHashMap<u64, usize>,
    /// The devices of the waits for a whole device that are under way. No capture begins on one: the wait would break it.
    device_waits: Vec<usize>,
    /// The number of the stream that the driver is being asked to make part of a capture, and that capture's number.
    pub(crate) joining: Option<(u64, u64)>,
    /// The own stream of each device, which its backends share as long as one of them lives.
    own_streams: Vec<(Weak<CudaHost>, StreamHandle)>,
    /// The ledgers of all backends, by the number of each: a copy or fill may use the memory of any.
    pub(crate) ledgers: Vec<(u64, LedgerProbe)>,
    /// Who asked to be told when a capture or graph has ended.
    waiting: Vec<Weak<dyn FreesLater>>,
    /// Graphs that were given no name.
    unnamed: u64,
}

impl SharedState {
    /// The name of a graph that was given none.
    pub(crate) fn next_name(&mut self) -> Arc<str> {
        self.unnamed += 1;
        format!("graph-{}", self.unnamed).into()
    }

    /// The handle of a host's own stream: one for all backends of the host.
    fn own_stream(&mut self, host: &Arc<CudaHost>) -> StreamHandle {
        self.own_streams.retain(|(host, _)| host.strong_count() > 0);
        let known = self.own_streams.iter().find(|(known, _)| known.as_ptr() == Arc::as_ptr(host));
        if let Some((_, stream)) = known {
            return *stream;
        }
        let stream = StreamHandle(HandleId::new(host.raw_stream()));
        self.own_streams.push((Arc::downgrade(host), stream));
        stream
    }

    /// The capture that a stream takes part in, or is about to.
    pub(crate) fn capture_of(&self, stream: StreamHandle) -> Option<&Capture> {
        let joining = || {
            let (_, id) = self.joining.filter(|&(joins, _)| joins == stream.raw())?;
            self.captures.get(id)
        };
        self.captures.on_stream(stream).or_else(joining)
    }

    /// Refuses to have a stream of a device take part in a capture while a call is under way that a capture does not go with.
    pub(crate) fn may_capture(
        &self,
        stream: StreamHandle,
        device: usize,
        doing: &'static str,
    ) -> Result<(), StreamInUse> {
        let (call, advice) = if self.borrowed.contains_key(&stream.raw()) {
            ("copies host memory there", "capture another stream, or try again when that call has returned")
        } else if self.device_waits.contains(&device) {
            (
                "waits for the whole device",
                "try again when that call has returned, or have it wait for streams",
            )
        } else {
            return Ok(());
        };
        Err(StreamInUse { doing, stream, call, advice })
    }

    /// A live graph of a device.
    pub(crate) fn graph(&self, handle: GraphHandle, device: usize) -> Option<&Arc<Graph>> {
        self.graphs.get(&handle).filter(|graph| graph.device == device)
    }

    /// Inserts a graph that the driver has just made. Returns the graph that had its number before: a call outside this
    /// crate has destroyed that.
    pub(crate) fn insert_graph(&mut self, graph: Graph) -> Option<Arc<Graph>> {
        let handle = graph.handle;
        let stale = self.graphs.keys().find(|other| other.raw() == handle.raw()).copied();
        let stale = stale.and_then(|stale| self.remove_graph(stale, "destroyed outside this backend"));
        self.graphs.insert(handle, Arc::new(graph));
        stale
    }

    /// Removes a graph from the table, and remembers from then on how it ended.
    pub(crate) fn remove_graph(&mut self, handle: GraphHandle, how: &'static str) -> Option<Arc<Graph>> {
        let graph = self.graphs.remove(&handle)?;
        self.ended.add(handle.0.generation, GraphEnd { name: Arc::clone(&graph.name), how });
        Some(graph)
    }
}

/// The captures, graphs and pins of all backends of one driver.
#[derive(Debug, Default)]
pub(crate) struct SharedGraphs {
    /// Captures in flight. Written under the lock; read without it, to see cheaply that there are none.
    capturing: AtomicUsize,
    /// Pinned allocations and parts. Written and read likewise.
    pinned: AtomicUsize,
    /// Counts the changes by which captures or pins became fewer.
    ends: AtomicU64,
    state: Mutex<SharedState>,
    /// What copies and fills follow right now.
    pub(crate) followed: FollowedRanges,
    /// One by event, locked over each record of it and each wait for it, from the check to the note: otherwise the driver could make
    /// a stream take part in a capture by a record that is not noted yet. Locked before all others.
    event_calls: [EventLock; EVENT_LOCKS],
}

impl SharedGraphs {
    /// Reads or changes the state, and publishes the counts that are read without the lock.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut SharedState) -> T) -> T {
        let mut state = self.state.lock();
        let answer = act(&mut state);
        let (captures, pins) = (state.captures.len(), state.pins.len());
        if captures < self.capturing.load(Relaxed) || pins < self.pinned.load(Relaxed) {
            self.ends.fetch_add(1, Release);
        }
        self.capturing.store(captures, Relaxed);
        self.pinned.store(pins, Relaxed);
        answer
    }

    /// Keeps captures off a stream while a copy borrows host memory on it; the answer of `refuse` where one is there already.
    pub(crate) fn borrow_on<T>(
        &self,
        stream: StreamHandle,
        refuse: impl FnOnce(&Capture) -> T,
    ) -> Result<BorrowedCopy<'_>, T> {
        let mut state = self.state.lock();
        if let Some(capture) = state.capture_of(stream) {
            return Err(refuse(capture));
        }
        *state.borrowed.entry(stream.raw()).or_default() += 1;
        Ok(BorrowedCopy { shared: self, stream: stream.raw() })
    }

    /// Keeps captures off a device while all of it is waited for; the answer of `refuse` where one is there already.
    pub(crate) fn wait_for_device<T>(
        &self,
        device: usize,
        refuse: impl FnOnce(&Capture) -> T,
    ) -> Result<DeviceWait<'_>, T> {
        let mut state = self.state.lock();
        if let Some(capture) = state.captures.within(Reach::Device, device, thread::current().id()) {
            return Err(refuse(capture));
        }
        state.device_waits.push(device);
        Ok(DeviceWait { shared: self, device })
    }

    /// Keeps other records of this event, and waits for it, from being made, by whichever backend.
    pub(crate) fn exclude_calls_of(&self, event: EventHandle) -> MutexGuard<'_, ()> {
        // Handles are addresses of objects of some hundred bytes.
        self.event_calls[(event.raw() >> 8) as usize % EVENT_LOCKS].0.lock()
    }

    /// Has somebody told whenever a capture or graph ends.
    pub(crate) fn await_ends(&self, who: Weak<dyn FreesLater>) {
        let mut state = self.state.lock();
        if !state.waiting.iter().any(|known| known.ptr_eq(&who)) {
            state.waiting.push(who);
        }
    }

    /// Those who are to be told that a capture or graph has ended; not while the state is locked, which their frees lock.
    pub(crate) fn waiting(&self) -> Vec<Arc<dyn FreesLater>> {
        let mut state = self.state.lock();
        state.waiting.retain(|who| who.strong_count() > 0);
        state.waiting.iter().filter_map(Weak::upgrade).collect()
    }

    /// How often captures and pins have gone. Changes before what they kept may be freed.
    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Acquire)
    }

    /// Whether a capture is in flight. One relaxed load: a thread sees its own captures, and another thread's as soon as
    /// it has synchronized with that thread in any way.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.capturing.load(Relaxed) != 0
    }

    /// The locked state: while it is locked nothing new is pinned.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock()
    }

    /// The locked state where anything is pinned or a capture could pin something now: while it is locked nothing new is
    /// pinned. `None`, for two relaxed loads, where nothing is.
    #[inline]
    pub(crate) fn lock_pins(&self) -> Option<MutexGuard<'_, SharedState>> {
        self.may_pin().then(|| self.state.lock())
    }

    /// Whether anything is pinned, or a capture could pin something now. Two relaxed loads.
    #[inline]
    pub(crate) fn may_pin(&self) -> bool {
        self.pinned.load(Relaxed) != 0 || self.is_capturing()
    }
}

/// A wait for a whole device, until it is dropped.
#[must_use = "captures are kept off the device only as long as this is held"]
pub(crate) struct DeviceWait<'shared> {
    shared: &'shared SharedGraphs,
    device: usize,
}

impl Drop for DeviceWait<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(at) = state.device_waits.iter().position(|device| *device == self.device) {
            state.device_waits.swap_remove(at);
        }
    }
}

/// A copy under way that borrows host memory, until it is dropped.
#[must_use = "captures are kept off the stream only as long as this is held"]
pub(crate) struct BorrowedCopy<'shared> {
    shared: &'shared SharedGraphs,
    stream: u64,
}

impl Drop for BorrowedCopy<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(copies) = state.borrowed.get_mut(&self.stream) {
            *copies -= 1;
            if *copies == 0 {
                state.borrowed.remove(&self.stream);
            }
        }
    }
}

/// What each driver of this process has, by driver. A weak handle keeps an address from being used again.
static SHARED_GRAPHS: Mutex<Vec<SharedByDriver>> = Mutex::new(Vec::new());

/// By the identity of the driver.
type SharedByDriver = (usize, Weak<SharedGraphs>);

/// One backend's access to the graphs of its driver.
#[derive(Debug)]
pub(crate) struct GraphClient {
    pub(crate) shared: Arc<SharedGraphs>,
    /// The backend's number.
    pub(crate) owner: u64,
    /// The backend's device.
    pub(crate) device: usize,
    /// That device's own stream.
    pub(crate) own_stream: StreamHandle,
}

impl GraphClient {
    /// Access for a new backend on a host. The first backend of a driver makes what they share.
    pub(crate) fn new(host: &Arc<CudaHost>, ledger: LedgerProbe) -> Self {
        let driver = host.driver().identity();
        let mut all = SHARED_GRAPHS.lock();
        // What is shared lives as long as a backend, which keeps its driver: no other can have the number meanwhile.
        all.retain(|(_, shared)| shared.strong_count() > 0);
        let found = all.iter().find(|(other, _)| *other == driver);
        let shared = found.and_then(|(_, shared)| shared.upgrade()).unwrap_or_else(|| {
            let shared = Arc::new(SharedGraphs::default());
            all.push((driver, Arc::downgrade(&shared)));
            shared
        });
        let (owner, own_stream) = shared.with(|state| {
            let owner = unique_number();
            state.ledgers.push((owner, ledger));
            (owner, state.own_stream(host))
        });
        Self { shared, owner, device: host.ordinal(), own_stream }
    }

    /// A capture within reach, put into words by `show`.
    #[inline]
    pub(crate) fn within<T>(&self, reach: Reach, show: impl FnOnce(&Capture) -> T) -> Option<T> {
        if !self.shared.is_capturing() {
            return None;
        }
        let me = thread::current().id();
        self.shared.with(|state| state.captures.within(reach, self.device, me).map(show))
    }

    /// A live graph of this backend's device.
    pub(crate) fn graph(&self, handle: GraphHandle) -> Option<Arc<Graph>> {
        self.shared.state.lock().graph(handle, self.device).cloned()
    }
}

impl Drop for GraphClient {
    fn drop(&mut self) {
        let owner = self.owner;
        self.shared.with(|state| state.ledgers.retain(|(other, _)| *other != owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph of device 0, with a number that the driver gave before.
    fn graph(name: &str) -> Graph {
        let state = GraphState {
            alive: true,
            id: 1,
            captured_at: Location::caller(),
            nodes: 1,
            bytes_measured: None,
        };
        Graph {
            handle: GraphHandle(HandleId::new(0x90)),
            name: name.into(),
            owner: 1,
            device: 0,
            host: Weak::new(),
            state: Mutex::new(state),
        }
    }

    #[test]
    fn a_graph_whose_number_came_again_is_neither_found_nor_removed_by_the_old_handle() {
        let mut state = SharedState::default();
        let (first, second, third) = (graph("first"), graph("second"), graph("third"));
        let [old, between, new] = [&first, &second, &third].map(|graph| graph.handle);
        assert!(state.insert_graph(first).is_none());
        assert!(state.remove_graph(old, "destroyed before").is_some());
        assert!(state.insert_graph(second).is_none());
        let stale = state.insert_graph(third).expect("the second has the number still");
        assert_eq!(&*stale.name, "second");
        for (handle, name) in [(old, "first"), (between, "second")] {
            assert!(state.graph(handle, 0).is_none());
            assert!(state.remove_graph(handle, "destroyed before").is_none());
            assert_eq!(state.ended.last_end(handle.0.generation).map(|end| &*end.name), Some(name));
        }
        assert_eq!(state.graph(new, 0).map(|graph| &*graph.name), Some("third"));
    }
}

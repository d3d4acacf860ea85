// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the backends of one driver share about captures and graphs. Those of one device share its context and stream: a
//! synchronization that one of them made would break a capture of the other's. And neither they nor those of other devices,
//! whose memory a captured copy can reach, may free what the other's graph uses.

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread;

use metrale_driver_sys::DriverApi;
use metrale_lock::{BiasedGuard, BiasedMutex};
use metrale_registry::CudaHost;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::gpu::GraphHandle;
use crate::graph::captures::{Capture, Captures, Reach};
use crate::graph::pins::{Pin, Pins};
use crate::graph::sieve::Sieve;
use crate::handles::Entry;
use crate::nap::nap;
use crate::numbers;
use crate::recent::Recent;

/// Graphs that are remembered after their end.
const REMEMBERED: usize = 64;

/// A graph that can be launched.
// In this order, and from the start of a cache line, so that a launch looks at two of them.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Graph {
    pub(crate) handle: GraphHandle,
    /// The number of the room it is in.
    pub(crate) room: u64,
    /// The device it was captured on.
    pub(crate) device: usize,
    /// Changed with the lock held.
    pub(crate) alive: AtomicBool,
    /// Threads that wait for a launch to end.
    pub(crate) awaited: AtomicU32,
    /// Held over every driver call on the graph: the driver leaves it to its callers to make them one at a time. Nearly always
    /// one thread launches a graph.
    pub(crate) state: BiasedMutex<GraphState>,
    pub(crate) name: Arc<str>,
    /// The number of the backend that made it.
    pub(crate) owner: u64,
    /// That device's host, which its backend keeps: the graph itself may be remembered for longer.
    pub(crate) host: Weak<CudaHost>,
}

impl Graph {
    /// Its state, when no other thread is at it.
    #[inline]
    pub(crate) fn lock(&self) -> BiasedGuard<'_, GraphState> {
        self.state.lock_by(nap)
    }

    /// Whether a thread waits that [must not wait for many launches](Self::await_launch). Who would launch it had better let that
    /// thread go first.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Relaxed) != 0
    }

    /// Waits until no launch is under way that has begun before.
    pub(crate) fn await_launch(&self) {
        self.awaited.fetch_add(1, Relaxed);
        drop(self.lock());
        self.awaited.fetch_sub(1, Relaxed);
    }

    /// Whether it has not been destroyed. A caller who goes on to use it holds its lock.
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct GraphState {
    pub(crate) home: Home,
    /// The number of the capture whose work it does.
    pub(crate) id: u64,
    pub(crate) captured_at: &'static Location<'static>,
    pub(crate) nodes: usize,
    pub(crate) bytes_measured: Option<i64>,
}

/// The stream that a graph is launched on as a rule. There its launches need not [hold](crate::handles::Held) the stream, for the
/// graph's lock is held over them; see [`Entry::admit`].
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Home {
    stream: Option<Arc<Entry>>,
    /// The stream that it was last launched on elsewhere, and how often.
    elsewhere: (u64, u32),
}

/// Launches elsewhere by which a graph moves there: seldom, where it is launched on several streams in turn.
const TO_MOVE: u32 = 16;

impl Home {
    /// Whether this is the stream's handle in a table, and it is still known there. It then stays alive until the graph's lock
    /// goes.
    #[inline]
    pub(crate) fn is(&self, stream: u64, table: u64) -> bool {
        self.stream.as_ref().is_some_and(|home| home.is_known_as(stream, table))
    }

    /// Takes note of a launch of a graph on a stream where it may not be at home.
    pub(crate) fn note_launch(&mut self, graph: &Arc<Graph>, stream: u64, table: u64, entry: &Arc<Entry>) {
        if self.is(stream, table) {
            return;
        }
        let times = if self.elsewhere.0 == stream { self.elsewhere.1 + 1 } else { 1 };
        self.elsewhere = (stream, times);
        if times >= TO_MOVE {
            entry.admit(graph);
            let before = self.stream.replace(Arc::clone(entry));
            if let Some(before) = before {
                before.strike(graph);
            }
            self.elsewhere = (0, 0);
        }
    }
}

/// A graph that is no more.
#[derive(Clone, Debug)]
pub(crate) struct Gone {
    pub(crate) handle: GraphHandle,
    pub(crate) name: Arc<str>,
    pub(crate) how: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) captures: Captures,
    pub(crate) pins: Pins,
    pub(crate) graphs: HashMap<GraphHandle, Arc<Graph>>,
    gone: VecDeque<Gone>,
    /// The last number given to a backend or a capture.
    last_id: u64,
    /// Graphs that were given no name.
    unnamed: u64,
}

impl State {
    /// A number nothing else here has.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The name of a graph that was given none.
    pub(crate) fn next_name(&mut self) -> Arc<str> {
        self.unnamed += 1;
        format!("graph-{}", self.unnamed).into()
    }

    pub(crate) fn remember(&mut self, graph: &Graph, how: &'static str) {
        if self.gone.len() == REMEMBERED {
            self.gone.pop_front();
        }
        self.gone.push_back(Gone { handle: graph.handle, name: Arc::clone(&graph.name), how });
    }

    /// A graph of a device.
    pub(crate) fn graph(&self, handle: GraphHandle, device: usize) -> Option<&Arc<Graph>> {
        self.graphs.get(&handle).filter(|graph| graph.device == device)
    }

    /// Takes a graph of a device out of the table.
    pub(crate) fn take_graph(&mut self, handle: GraphHandle, device: usize) -> Option<Arc<Graph>> {
        self.graph(handle, device)?;
        self.graphs.remove(&handle)
    }

    /// The last graph that had the handle.
    pub(crate) fn gone(&self, handle: GraphHandle) -> Option<&Gone> {
        self.gone.iter().rev().find(|gone| gone.handle == handle)
    }
}

/// The shared state of one driver.
#[derive(Debug)]
pub(crate) struct Room {
    number: u64,
    // Written under the lock; read without it, to see cheaply that there is nothing to look at.
    capturing: AtomicUsize,
    pinned: Sieve,
    state: Mutex<State>,
    /// Read over copies whose host memory is only borrowed for the call, written where streams come to capture: a copy that
    /// was recorded would read or write that memory at each replay. Taken before the state's lock.
    borrows: RwLock<()>,
}

impl Room {
    fn new() -> Self {
        Self {
            number: numbers::next(),
            capturing: AtomicUsize::new(0),
            pinned: Sieve::default(),
            state: Mutex::default(),
            borrows: RwLock::default(),
        }
    }

    /// Looks at the state, or changes it and publishes what is read without the lock before the lock goes.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let answer = act(&mut state);
        self.capturing.store(state.captures.len(), Relaxed);
        state.pins.publish(&self.pinned);
        answer
    }

    /// What no other room has, nor had.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Keeps streams from coming to capture while host memory is lent to a copy.
    pub(crate) fn lend(&self) -> RwLockReadGuard<'_, ()> {
        self.borrows.read()
    }

    /// Waits for the copies that host memory is lent to, and keeps others from beginning.
    pub(crate) fn no_loans(&self) -> RwLockWriteGuard<'_, ()> {
        self.borrows.write()
    }

    /// Whether a capture is in flight. One relaxed load: a thread sees its own captures, and another's as soon as it has
    /// heard of them in any way.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.capturing.load(Relaxed) != 0
    }

    /// Whether something with this base may be pinned, where nothing captures. One relaxed load.
    #[inline]
    pub(crate) fn may_pin(&self, base: u64) -> bool {
        self.pinned.may_hold(base)
    }

    /// The lock, where the pin may be there or something could be pinned just now: under it nothing comes to be pinned.
    #[inline]
    pub(crate) fn lock_pins(&self, pin: Pin) -> Option<MutexGuard<'_, State>> {
        (self.may_pin(pin.base()) || self.is_capturing()).then(|| self.state.lock())
    }
}

/// The rooms of this process, by driver. A weak handle keeps an address from being used again.
static ROOMS: Mutex<Rooms> = Mutex::new(Vec::new());

type Rooms = Vec<(Weak<dyn DriverApi>, Weak<Room>)>;

/// One backend's place in its driver's room.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) room: Arc<Room>,
    /// The backend's number.
    pub(crate) owner: u64,
    /// The backend's device.
    pub(crate) device: usize,
}

impl Seat {
    /// A new place in the room of a host's driver, which is made for the first one.
    pub(crate) fn take(host: &CudaHost) -> Self {
        let driver = host.driver_arc();
        let mut rooms = ROOMS.lock();
        rooms.retain(|(driver, room)| driver.strong_count() > 0 && room.strong_count() > 0);
        let addr = |driver: *const dyn DriverApi| driver.cast::<()>().addr();
        let known = rooms.iter().find(|(other, _)| addr(other.as_ptr()) == addr(Arc::as_ptr(&driver)));
        let room = known.and_then(|(_, room)| room.upgrade()).unwrap_or_else(|| {
            let room = Arc::new(Room::new());
            rooms.push((Arc::downgrade(&driver), Arc::downgrade(&room)));
            room
        });
        let owner = room.with(State::next_id);
        Self { room, owner, device: host.ordinal() }
    }

    /// A capture within reach, put into words by `show`.
    #[inline]
    pub(crate) fn within<T>(&self, reach: Reach, show: impl FnOnce(&Capture) -> T) -> Option<T> {
        if !self.room.is_capturing() {
            return None;
        }
        self.look_within(reach, show)
    }

    #[cold]
    fn look_within<T>(&self, reach: Reach, show: impl FnOnce(&Capture) -> T) -> Option<T> {
        let me = thread::current().id();
        self.room.with(|state| state.captures.within(reach, self.device, me).map(show))
    }

    /// A graph of this backend's device.
    #[cold]
    pub(crate) fn graph(&self, handle: GraphHandle) -> Option<Arc<Graph>> {
        self.room.with(|state| state.graph(handle, self.device).cloned())
    }

    /// Whether a graph is what a handle stands for here.
    #[inline]
    fn is_it(&self, handle: GraphHandle, graph: &Graph) -> bool {
        graph.handle == handle
            && graph.room == self.room.number
            && graph.device == self.device
            && graph.is_alive()
    }

    /// Does something with a graph that this thread launched lately: it takes no lock and counts no reference to find it.
    #[inline]
    pub(crate) fn with_recent_graph<T>(
        &self,
        handle: GraphHandle,
        act: impl FnOnce(&Arc<Graph>) -> T,
    ) -> Option<T> {
        let is_it = |graph: &Graph| self.is_it(handle, graph);
        // A thread that is ending remembers nothing.
        LAUNCHED.try_with(|recent| recent.with(handle.0, is_it, act)).ok()?
    }

    /// Does something with a graph of this backend's device, which is then among those that this thread launched lately.
    #[cold]
    pub(crate) fn with_graph<T>(&self, handle: GraphHandle, act: impl FnOnce(&Arc<Graph>) -> T) -> Option<T> {
        let is_it = |graph: &Graph| self.is_it(handle, graph);
        let recent = LAUNCHED.try_with(|recent| recent.take(handle.0, is_it)).ok().flatten();
        let graph = recent.or_else(|| self.graph(handle))?;
        let answer = act(&graph);
        let _ = LAUNCHED.try_with(|recent| recent.keep(handle.0, graph));
        Some(answer)
    }
}

thread_local! {
    /// The graphs that this thread launched last.
    static LAUNCHED: Recent<Graph> = const { Recent::new() };
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instantiated graphs: making, launching, updating, destroying.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use anyhow::{Error, Result};
use metrale_driver_sys::{
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUgraph,
    CUgraphExecUpdateResultInfo, CUgraphNode, CUresult, DriverError, DriverFn, graph_instantiate, is_sticky,
};
use metrale_ledger::{AllocKind, LiveAllocation, Whois};
use metrale_lock::BiasedMutex;
use metrale_registry::is_teardown_noop;
use metrale_telemetry::{Counter, Launch, LaunchKind, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::{BadArgument, NotSupported};
use crate::fault_probe::noted;
use crate::gpu::{DevicePtr, GraphHandle};
use crate::graph::captures::Reach;
use crate::graph::pins::Pin;
use crate::graph::refusal::{Capturing, GraphFault};
use crate::graph::room::{Graph, GraphState, Home};
use crate::graph::update::GraphUpdate;
use crate::memory::Cost;
use crate::nap::nap;
use crate::parts::KEEPS_LEDGER;

const LAUNCHING: &str = "launching a graph";

impl MetraleCudaBackend {
    /// Ends a capture and instantiates its graph. The template goes on every path.
    pub(crate) fn finish_capture(&self, stream: u64, name: Option<&str>) -> Result<GraphHandle> {
        const WHAT: &str = "ending a capture";
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        let mut recorded = self.end_recording(stream, WHAT)?;
        let called = || {
            let name = name.map_or_else(|| "the graph".to_owned(), |name| format!("graph {name:?}"));
            format!("{name} captured at {}", recorded.captured_at)
        };
        let nodes =
            self.count_nodes(recorded.template).doing(|| format!("counting the nodes of {}", called()))?;
        let (exec, bytes_measured) = self.measured(Cost::Graphs, || {
            // SAFETY: the driver has just made the template, which goes with `recorded`.
            let made = unsafe { graph_instantiate(self.driver(), recorded.template, 0) };
            noted(self.driver(), made).doing(|| format!("instantiating {}, {nodes} nodes", called()))
        })?;
        let handle = GraphHandle(exec);
        let stale = self.seat().room.with(|state| {
            let name = name.map_or_else(|| state.next_name(), Arc::from);
            state.pins.name(recorded.id, handle, Arc::clone(&name));
            let graph = Graph {
                handle,
                name,
                owner: self.seat().owner,
                room: self.seat().room.number(),
                device: self.seat().device,
                host: Arc::downgrade(self.host()),
                alive: AtomicBool::new(true),
                awaited: AtomicU32::new(0),
                state: BiasedMutex::new(GraphState {
                    id: recorded.id,
                    captured_at: recorded.captured_at,
                    nodes,
                    bytes_measured,
                    home: Home::default(),
                }),
            };
            state.graphs.insert(handle, Arc::new(graph))
        });
        recorded.pass_on();
        // The driver has just made it: what had its handle before is gone, whoever destroyed it.
        if let Some(stale) = stale {
            self.lay_to_rest(&stale, "destroyed outside this backend");
        }
        run_metrics::process().counters().count(Counter::GraphCaptures);
        Ok(handle)
    }

    /// See [`GpuBackend::launch_graph`](crate::GpuBackend::launch_graph).
    pub fn launch_graph(&self, graph: GraphHandle, stream: u64) -> Result<()> {
        self.bound_for(stream, LAUNCHING)?;
        if self.seat().room.is_capturing() || self.config().debug_sync_kernels {
            return self.launch_graph_with_care(graph, stream);
        }
        let launched = self.seat().with_recent_graph(graph, |entry| {
            if entry.is_awaited() {
                return Launched::Not;
            }
            let is_alive =
                |home: &mut Home| self.outlives(stream) || home.is(stream, self.streams().number());
            // SAFETY: such a stream stays alive while the graph is locked.
            unsafe { self.launch_known(graph, entry, stream, is_alive) }
        });
        match launched {
            Some(Launched::Done) => Ok(()),
            Some(Launched::Refused(error)) => Err(error),
            Some(Launched::Not) | None => self.launch_graph_with_care(graph, stream),
        }
    }

    /// [`launch_graph`](Self::launch_graph) where a capture may be in the way, each launch is waited for, this thread did not
    /// launch the graph lately, or somebody does so elsewhere as a rule, a thread waits for a launch to end, or something is not as
    /// it should be.
    #[cold]
    fn launch_graph_with_care(&self, graph: GraphHandle, stream: u64) -> Result<()> {
        let held = self.hold_stream(stream, LAUNCHING)?;
        if self.seat().room.is_capturing() {
            self.may_launch_graph(stream)?;
        }
        let launched = self.seat().with_graph(graph, |entry| {
            while entry.is_awaited() {
                nap();
            }
            let is_alive = |home: &mut Home| {
                held.entry().inspect(|held| home.note_launch(entry, stream, self.streams().number(), held));
                true
            };
            // SAFETY: the stream is held.
            match unsafe { self.launch_known(graph, entry, stream, is_alive) } {
                Launched::Done if self.config().debug_sync_kernels => {
                    // SAFETY: the stream is held.
                    Some(unsafe { self.find_graph_fault(entry, stream) })
                }
                Launched::Done => Some(Ok(())),
                Launched::Refused(error) => Some(Err(error)),
                Launched::Not => None,
            }
        });
        launched.flatten().unwrap_or_else(|| Err(self.no_graph(graph, LAUNCHING)))
    }

    /// Refuses to launch a graph on a stream that captures, or beside this thread's capture.
    #[cold]
    fn may_launch_graph(&self, stream: u64) -> Result<(), Capturing> {
        const ADVICE: &str =
            "the driver takes no graph into a capture; launch it before or after, or capture its work again";
        self.outside_capture(Reach::Stream(stream), LAUNCHING, ADVICE)?;
        self.not_beside_capture(stream, LAUNCHING)
    }

    /// Launches a graph that was found by its handle, if it is not destroyed yet, and `is_alive`, asked with the graph locked, says so of the
    /// stream.
    ///
    /// # Safety
    /// `handle` is the graph's. Where `is_alive` says so, the stream stays alive until the graph's lock goes.
    #[inline]
    unsafe fn launch_known(
        &self,
        handle: GraphHandle,
        graph: &Graph,
        stream: u64,
        is_alive: impl FnOnce(&mut Home) -> bool,
    ) -> Launched {
        let mut state = graph.lock();
        if !graph.is_alive() || !is_alive(&mut state.home) {
            return Launched::Not;
        }
        run_metrics::process().trace().record(|| Launch::new(LaunchKind::Graph, Arc::clone(&graph.name)));
        // Not `ask!`: the probe latches a fault with what is known of it. By the caller's number, for which the call need not wait
        // until memory has said what is known of the graph.
        // SAFETY: no memory is passed; the graph is alive and nobody else is at it while the lock is held; the stream is alive as
        // long, as the caller promises.
        let status = unsafe { self.driver().cuGraphLaunch(handle.0, stream) };
        drop(state);
        if status != CUDA_SUCCESS {
            return Launched::Refused(self.not_launched(&graph.name, stream, status));
        }
        run_metrics::process().counters().count(Counter::GraphReplays);
        Launched::Done
    }

    /// The error for a launch that the driver refused, after a look at whether the context is lost.
    #[cold]
    fn not_launched(&self, name: &str, stream: u64, status: CUresult) -> Error {
        let driver = DriverError { function: DriverFn::cuGraphLaunch, status };
        // One that was destroyed meanwhile has nothing to tell; the backend's own may have.
        let held = self.hold_stream(stream, LAUNCHING);
        let asked = if held.is_ok() { stream } else { self.stream() };
        // SAFETY: the stream is held, or lives as long as the backend.
        unsafe { self.probe(driver, asked, || after_launch(name)) };
        if let Err(not_bound) = self.still_bound(driver, LAUNCHING) {
            return not_bound;
        }
        failed(driver, format!("launching graph {name:?} on stream {stream:#x}"), None)
    }

    /// Waits for a launch and reports its fault.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    unsafe fn find_graph_fault(&self, entry: &Graph, stream: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.debug_wait(stream) }.map_err(|driver| {
            let name = Arc::clone(&entry.name);
            if is_sticky(driver.status) {
                self.latch().trip(driver, Some(after_launch(&entry.name)));
                GraphFault { name, stream, driver }.into()
            } else {
                // The wait itself was refused: of the graph nothing is known, and the context goes on.
                failed(driver, format!("waiting for graph {name:?} after its launch"), None)
            }
        })
    }

    /// See [`GpuBackend::update_graph`](crate::GpuBackend::update_graph).
    pub fn update_graph(&self, graph: GraphHandle, stream: u64) -> Result<GraphUpdate> {
        const WHAT: &str = "updating a graph";
        self.bound(WHAT)?;
        if !self.driver().provides(DriverFn::cuGraphExecUpdate_v2) {
            return Err(not_updatable().into());
        }
        let _held = self.hold_stream(stream, WHAT)?;
        let entry = self.known_graph(graph, WHAT)?;
        let mut recorded = self.end_recording(stream, WHAT)?;
        let doing =
            || format!("updating graph {:?} with the capture begun at {}", entry.name, recorded.captured_at);
        let nodes_now = self.count_nodes(recorded.template).doing(doing)?;
        let mut state = entry.lock();
        if !entry.is_alive() {
            return Err(self.no_graph(graph, WHAT));
        }
        let mut info = CUgraphExecUpdateResultInfo::default();
        // SAFETY: the result pointer is a local; the graph is alive and nobody else is at it while the lock is held.
        match unsafe { ask!(self.driver(), cuGraphExecUpdate_v2(graph.0, recorded.template, &mut info)) } {
            Ok(()) => {
                let before = std::mem::replace(&mut state.id, recorded.id);
                (state.nodes, state.captured_at) = (nodes_now, recorded.captured_at);
                self.seat().room.with(|room| {
                    room.pins.name(recorded.id, graph, Arc::clone(&entry.name));
                    room.pins.release(before);
                });
                recorded.pass_on();
                Ok(GraphUpdate::Updated)
            }
            Err(error) if error.status == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => {
                let node = self.place_of(info.errorNode, recorded.template);
                Ok(GraphUpdate::refused(info.result, state.nodes, nodes_now, node))
            }
            Err(error) if error.status == CUDA_ERROR_NOT_SUPPORTED => Err(not_updatable().into()),
            Err(error) => Err(failed(error, doing(), None)),
        }
    }

    /// See [`GpuBackend::destroy_graph`](crate::GpuBackend::destroy_graph).
    pub fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        const WHAT: &str = "destroying a graph";
        let there = self.bound_to_free(WHAT)?;
        // Out of everybody's sight before the driver is asked, which may give the handle away at once.
        let entry = self.seat().room.with(|state| state.take_graph(graph, self.seat().device));
        let entry = entry.ok_or_else(|| self.no_graph(graph, WHAT))?;
        self.end_graph(&entry, there, "destroyed before").map_err(|error| {
            let doing = format!("destroying graph {:?}", entry.name);
            self.seat().room.with(|state| state.graphs.insert(graph, entry));
            failed(error, doing, Some("it stays, and so does what it pins".to_owned()))
        })
    }

    /// See [`GpuBackend::pin_graph`](crate::GpuBackend::pin_graph).
    pub fn pin_graph(&self, graph: GraphHandle, ptr: DevicePtr) -> Result<()> {
        const WHAT: &str = "pinning memory for a graph";
        let entry = self.known_graph(graph, WHAT)?;
        let state = entry.lock();
        if !entry.is_alive() {
            return Err(self.no_graph(graph, WHAT));
        }
        self.seat().room.with(|room| {
            if let Some(allocation) = self.pinnable(ptr, WHAT)? {
                self.pin(&mut room.pins, state.id, allocation, ptr.0);
            }
            Ok(())
        })
    }

    /// The allocation around an address that is to be pinned; nothing where no ledger is kept.
    pub(crate) fn pinnable(
        &self,
        ptr: DevicePtr,
        doing: &'static str,
    ) -> Result<Option<LiveAllocation>, BadArgument> {
        match self.book().whois(ptr.0) {
            Whois::Live { allocation, .. } => Ok(Some(allocation)),
            _ if !KEEPS_LEDGER => Ok(None),
            other => Err(BadArgument::new(format!(
                "{doing}: {ptr} is {other}, and only what this backend allocated can be pinned"
            ))),
        }
    }

    /// Destroys a graph that is out of the table already; `there` is false where its context is gone. Where the driver
    /// refuses, the graph is as alive as before.
    fn end_graph(&self, graph: &Graph, there: bool, how: &'static str) -> Result<(), DriverError> {
        let state = graph.lock();
        let answer = if there { self.destroy_exec(graph) } else { Ok(()) };
        match answer {
            Err(error) if !is_teardown_noop(error.status) => Err(error),
            // Done, or the context took it along.
            _ => {
                self.bury(graph, &state, how);
                Ok(())
            }
        }
    }

    /// The driver's destruction, alone. The graph's lock is held.
    fn destroy_exec(&self, graph: &Graph) -> Result<(), DriverError> {
        // One of another device may use memory of this one, which goes.
        let elsewhere = graph.device != self.seat().device;
        let host = graph.host.upgrade().filter(|_| elsewhere);
        if elsewhere && host.is_none() {
            // Its context went, and took it along.
            return Ok(());
        }
        let _current = host.as_ref().map(|host| host.enter()).transpose()?;
        // SAFETY: no memory is passed; the graph is alive, and nobody else is at it while its lock is held.
        unsafe { ask!(self.driver(), cuGraphExecDestroy(graph.handle.0)) }
    }

    /// A graph that is out of the table is no more: lets its memory go and remembers how it ended.
    fn lay_to_rest(&self, graph: &Graph, how: &'static str) {
        self.bury(graph, &graph.lock(), how);
    }

    /// As [`lay_to_rest`](Self::lay_to_rest), with the graph's lock held: it comes before the room's, everywhere.
    fn bury(&self, graph: &Graph, state: &GraphState, how: &'static str) {
        graph.alive.store(false, Relaxed);
        self.seat().room.with(|room| {
            room.pins.release(state.id);
            room.remember(graph, how);
        });
    }

    /// Destroys the graphs that use any of these allocations, of which this backend is the owner, and, where `or_may`, those
    /// of its own whose uses are not all known. Their names, by the order of their captures. The context is current.
    pub(crate) fn destroy_graphs_using(&self, memory: &[(AllocKind, u64)], or_may: bool) -> Vec<Arc<str>> {
        if memory.is_empty() {
            return Vec::new();
        }
        let owner = self.seat().owner;
        self.end_graphs(
            "destroyed with memory that it used, which nobody had freed",
            |graph, opaque, uses| {
                (or_may && graph.owner == owner && opaque)
                    || memory.iter().any(|&(kind, base)| uses(Pin::of(kind, base)))
            },
        )
    }

    /// Gives up the captures and destroys the graphs of a backend that goes. `there` is false where the context is gone.
    pub(crate) fn end_all_graphs(&self, there: bool) {
        let owner = self.seat().owner;
        for origin in self.seat().room.with(|state| state.captures.origins_of(owner)) {
            let site = self.seat().within(Reach::Stream(origin), |capture| capture.site);
            if let Some(site) = site.filter(|_| there) {
                tracing::warn!(
                    "the capture begun at {site} on stream {origin:#x} had not ended when its backend was dropped, and is \
                     given up; a CaptureGuard ends in time"
                );
            }
            if let Err(error) = self.abort_capture_if_active(origin) {
                tracing::error!("a capture could not be given up when its backend was dropped: {error:#}");
            }
        }
        if there {
            self.end_graphs("destroyed with its backend", |graph, _, _| graph.owner == owner);
        }
        // What the driver kept, or took along with its context, is nobody's to launch any more.
        let left = self.seat().room.with(|state| {
            let left: Vec<_> = state.graphs.values().filter(|graph| graph.owner == owner).cloned().collect();
            for graph in &left {
                state.graphs.remove(&graph.handle);
            }
            for origin in state.captures.origins_of(owner) {
                if let Some(id) = state.captures.on_stream(origin).map(|capture| capture.id) {
                    state.captures.close(id);
                    state.pins.release(id);
                }
            }
            left
        });
        for graph in left {
            self.lay_to_rest(&graph, "gone with its backend");
        }
    }

    /// Destroys the graphs that `fits` picks, told whether a graph has launches of unknown arguments and what it uses. One
    /// that the driver keeps cannot be launched any more either, for what it uses goes in any case.
    fn end_graphs(
        &self,
        how: &'static str,
        fits: impl Fn(&Graph, bool, &dyn Fn(Pin) -> bool) -> bool,
    ) -> Vec<Arc<str>> {
        let all: Vec<_> = self.seat().room.with(|state| state.graphs.values().cloned().collect());
        // One lock at a time, the graph's before the room's.
        let mut doomed: Vec<_> = all
            .into_iter()
            .filter_map(|graph| {
                let id = graph.lock().id;
                self.seat().room.with(|state| {
                    let uses = state.pins.of(id);
                    let opaque = uses.is_some_and(|uses| uses.opaque_launches > 0);
                    let pins = |pin: Pin| uses.is_some_and(|uses| uses.memory.contains_key(&pin));
                    fits(&graph, opaque, &pins).then(|| (id, Arc::clone(&graph)))
                })
            })
            .collect();
        doomed.sort_by_key(|&(id, _)| id);
        let (total, mut there) = (doomed.len(), true);
        let mut names = Vec::new();
        for (index, (_, graph)) in doomed.into_iter().enumerate() {
            if self.seat().room.with(|state| state.graphs.remove(&graph.handle)).is_none() {
                continue;
            }
            names.push(Arc::clone(&graph.name));
            let Err(error) = self.end_graph(&graph, there, how) else { continue };
            self.lay_to_rest(&graph, how);
            if is_sticky(error.status) {
                there = false;
                tracing::error!(
                    "{} of {total} graphs cannot be destroyed, for the context is lost: {error}",
                    total - index
                );
            } else {
                tracing::error!(
                    "graph {:?} could not be destroyed and stays in the driver: {error}",
                    graph.name
                );
            }
        }
        names
    }

    fn known_graph(&self, graph: GraphHandle, doing: &'static str) -> Result<Arc<Graph>> {
        self.seat().graph(graph).ok_or_else(|| self.no_graph(graph, doing))
    }

    /// The error for a handle that is no graph. The driver would follow it.
    #[cold]
    fn no_graph(&self, graph: GraphHandle, doing: &'static str) -> Error {
        let gone = self.seat().room.with(|state| state.gone(graph).cloned());
        let text = match gone {
            Some(gone) => format!("{doing}: graph {:?} ({:#x}) was {}", gone.name, graph.0, gone.how),
            None => format!(
                "{doing}: {:#x} is no graph of this device's backends: end_capture makes them",
                graph.0
            ),
        };
        BadArgument::new(text).into()
    }

    fn count_nodes(&self, template: CUgraph) -> Result<usize, DriverError> {
        let mut count = 0;
        // SAFETY: the result pointer is a local; without a place for nodes only their number is asked for.
        unsafe { ask!(self.driver(), cuGraphGetNodes(template, std::ptr::null_mut(), &mut count)) }
            .map(|()| count)
    }

    /// Where a node stands among its graph's; `None` where that cannot be told.
    fn place_of(&self, node: CUgraphNode, template: CUgraph) -> Option<usize> {
        if node == 0 {
            return None;
        }
        let mut nodes = vec![0; self.count_nodes(template).ok()?];
        let mut count = nodes.len();
        // SAFETY: there is room for as many nodes as the count says, and both are locals.
        unsafe { ask!(self.driver(), cuGraphGetNodes(template, nodes.as_mut_ptr(), &mut count)) }.ok()?;
        nodes.iter().position(|&other| other == node)
    }
}

/// What came of the launch of a graph that was found.
enum Launched {
    Done,
    Refused(Error),
    /// Nothing: the graph is no more, the stream may not be alive, or another thread had better go first.
    Not,
}

/// What a fault was met after.
fn after_launch(name: &str) -> String {
    format!("the launch of graph {name:?}")
}

fn not_updatable() -> NotSupported {
    NotSupported {
        doing: "updating a graph",
        why: "the driver has no cuGraphExecUpdate_v2, which came with CUDA 12; end the capture for a graph of its own and \
              destroy the old one"
            .to_owned(),
    }
}

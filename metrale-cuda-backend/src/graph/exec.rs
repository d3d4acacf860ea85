// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instantiated graphs: making, launching, updating, pinning.

use std::sync::Arc;

use anyhow::{Error, Result};
use metrale_driver_sys::{
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUgraph,
    CUgraphExecUpdateResultInfo, CUgraphNode, CUresult, DriverError, DriverFn, graph_instantiate, is_sticky,
};
use metrale_ledger::{LiveAllocation, Whois};
use metrale_telemetry::{Counter, Launch, LaunchKind, run_metrics};
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::{BadArgument, NotSupported};
use crate::fault_latch::noted;
use crate::gpu::{DevicePtr, GraphHandle};
use crate::graph::captures::Reach;
use crate::graph::refusal::{Capturing, GraphFault};
use crate::graph::shared::{Graph, GraphState};
use crate::graph::update::GraphUpdate;
use crate::memory::Cost;
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
            format!("{name} captured at {}", metrale_ledger::file_line(recorded.captured_at))
        };
        let nodes =
            self.count_nodes(recorded.template).doing(|| format!("counting the nodes of {}", called()))?;
        let (exec, bytes_measured) = self.measured(Cost::Graphs, || {
            // SAFETY: the driver has just made the template, which goes with `recorded`.
            let made = unsafe { graph_instantiate(self.driver(), recorded.template, 0) };
            noted(self.driver(), made).doing(|| format!("instantiating {}, {nodes} nodes", called()))
        })?;
        let handle = GraphHandle(exec);
        let client = self.graph_client();
        let stale = client.shared.with(|shared| {
            let name = name.map_or_else(|| shared.next_name(), Arc::from);
            shared.pins.name(recorded.id, handle, Arc::clone(&name));
            let state = GraphState {
                alive: true,
                id: recorded.id,
                captured_at: recorded.captured_at,
                nodes,
                bytes_measured,
            };
            let graph = Graph {
                handle,
                name,
                owner: client.owner,
                device: client.device,
                host: Arc::downgrade(self.host()),
                state: Mutex::new(state),
            };
            shared.insert_graph(graph)
        });
        recorded.pass_on();
        if let Some(stale) = stale {
            self.end_graph(&mut stale.state.lock());
        }
        run_metrics::process().counters().count(Counter::GraphCaptures);
        self.free_deferred();
        Ok(handle)
    }

    /// See [`GpuBackend::launch_graph`](crate::GpuBackend::launch_graph).
    pub fn launch_graph(&self, graph: GraphHandle, stream: u64) -> Result<()> {
        self.bound_for(stream, LAUNCHING)?;
        let _held = self.hold_stream(stream, LAUNCHING)?;
        if self.graph_client().shared.is_capturing() {
            self.may_launch_graph(stream)?;
        }
        let entry = self.known_graph(graph, LAUNCHING)?;
        let state = entry.state.lock();
        if !state.alive {
            return Err(self.no_graph(graph, LAUNCHING));
        }
        run_metrics::process().trace().record(|| Launch::new(LaunchKind::Graph, Arc::clone(&entry.name)));
        // Not `ask!`: the check after a refusal latches a fault with what is known of it.
        // SAFETY: no memory is passed; the graph is alive and no other thread uses it while it is locked; the stream is held.
        let status = unsafe { self.driver().cuGraphLaunch(graph.0, stream) };
        drop(state);
        if status != CUDA_SUCCESS {
            // SAFETY: the stream is held.
            return Err(unsafe { self.not_launched(&entry.name, stream, status) });
        }
        run_metrics::process().counters().count(Counter::GraphReplays);
        if self.config().debug_sync_kernels {
            // SAFETY: the stream is held.
            unsafe { self.find_graph_fault(&entry, stream) }?;
        }
        Ok(())
    }

    /// Refuses to launch a graph on a stream that captures, or beside this thread's capture.
    #[cold]
    fn may_launch_graph(&self, stream: u64) -> Result<(), Capturing> {
        const ADVICE: &str =
            "the driver takes no graph into a capture; launch it before or after, or capture its work again";
        self.outside_capture(Reach::Stream(stream), LAUNCHING, ADVICE)?;
        self.not_beside_capture(stream, LAUNCHING)
    }

    /// The error for a launch that the driver refused, after a look at whether the context is lost.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    unsafe fn not_launched(&self, name: &str, stream: u64, status: CUresult) -> Error {
        let driver = DriverError { function: DriverFn::cuGraphLaunch, status };
        // SAFETY: the caller's promise.
        unsafe { self.check_after_refusal(driver, stream, || after_launch(name)) };
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
        let doing = || {
            format!(
                "updating graph {:?} with the capture begun at {}",
                entry.name,
                metrale_ledger::file_line(recorded.captured_at)
            )
        };
        let nodes_now = self.count_nodes(recorded.template).doing(doing)?;
        let mut state = entry.state.lock();
        if !state.alive {
            return Err(self.no_graph(graph, WHAT));
        }
        let mut info = CUgraphExecUpdateResultInfo::default();
        // SAFETY: the result pointer is a local; the graph is alive and no other thread uses it while it is locked.
        match unsafe { ask!(self.driver(), cuGraphExecUpdate_v2(graph.0, recorded.template, &mut info)) } {
            Ok(()) => {
                let before = std::mem::replace(&mut state.id, recorded.id);
                (state.nodes, state.captured_at) = (nodes_now, recorded.captured_at);
                self.graph_client().shared.with(|shared| {
                    shared.pins.name(recorded.id, graph, Arc::clone(&entry.name));
                    shared.pins.release(before);
                });
                recorded.pass_on();
                self.free_deferred();
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

    /// See [`GpuBackend::pin_graph`](crate::GpuBackend::pin_graph).
    pub fn pin_graph(&self, graph: GraphHandle, ptr: DevicePtr) -> Result<()> {
        const WHAT: &str = "pinning memory for a graph";
        let entry = self.known_graph(graph, WHAT)?;
        let state = entry.state.lock();
        if !state.alive {
            return Err(self.no_graph(graph, WHAT));
        }
        self.graph_client().shared.with(|shared| {
            if let Some(allocation) = self.pinnable(ptr, WHAT)? {
                self.pin(&mut shared.pins, state.id, allocation, ptr.0);
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
        match self.ledger_writer().whois(ptr.0) {
            Whois::Live { allocation, .. } => Ok(Some(allocation)),
            _ if !KEEPS_LEDGER => Ok(None),
            other => Err(BadArgument::new(format!(
                "{doing}: {ptr} is {other}, and only what this backend allocated can be pinned"
            ))),
        }
    }

    /// A live graph of this device. The caller locks it and looks whether it still is.
    fn known_graph(&self, graph: GraphHandle, doing: &'static str) -> Result<Arc<Graph>> {
        self.graph_client().graph(graph).ok_or_else(|| self.no_graph(graph, doing))
    }

    /// The error for a handle that is no graph. The driver would follow it.
    #[cold]
    pub(crate) fn no_graph(&self, graph: GraphHandle, doing: &'static str) -> Error {
        let end = self.graph_client().shared.with(|shared| shared.ended.last_end(graph.0).cloned());
        let text = match end {
            Some(end) => format!("{doing}: graph {:?} ({:#x}) was {}", end.name, graph.0, end.how),
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

    /// The place of a node among those of its graph; `None` where that is unknown.
    fn place_of(&self, node: CUgraphNode, template: CUgraph) -> Option<usize> {
        if node == 0 {
            return None;
        }
        let mut nodes = vec![0; self.count_nodes(template).ok()?];
        let mut count = nodes.len();
        // SAFETY: the vector has as many elements as the count says, and both are locals.
        unsafe { ask!(self.driver(), cuGraphGetNodes(template, nodes.as_mut_ptr(), &mut count)) }.ok()?;
        nodes.iter().position(|&other| other == node)
    }
}

/// What had been done before a fault was found.
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

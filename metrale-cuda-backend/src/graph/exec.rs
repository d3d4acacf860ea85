// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instantiated graphs: making, launching, updating, pinning.

use std::sync::Arc;

use metrale_driver_sys::{
    CUgraph, CUgraphNode, CUresult, DriverError, DriverFn, graph_instantiate, is_sticky,
};
use metrale_ledger::{LiveAllocation, Whois};
use metrale_telemetry::{Counter, run_metrics};
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::{BadArgument, Error, NotSupported, Result};
use crate::fault_latch::noted;
use crate::features::KEEPS_LEDGER;
use crate::graph::captures::Reach;
use crate::graph::refusal::{Capturing, GraphFault};
use crate::graph::shared::{Graph, GraphState};
use crate::memory::Cost;
use crate::raw_handles::{DevicePtr, GraphHandle, HandleId, StreamHandle};

pub(crate) const LAUNCHING: &str = "launching a graph";

impl MetraleCudaBackend {
    /// Ends a capture and instantiates its graph. The template goes on every path.
    pub(crate) fn finish_capture(&self, stream: StreamHandle, name: Option<&str>) -> Result<GraphHandle> {
        const WHAT: &str = "ending a capture";
        let _bound = self.bound(WHAT)?;
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
        let handle = GraphHandle(HandleId::new(exec));
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
        self.free_what_waited();
        Ok(handle)
    }

    /// Refuses to launch a graph on a stream that captures, or beside this thread's capture.
    #[cold]
    pub(crate) fn may_launch_graph(&self, stream: StreamHandle) -> Result<(), Capturing> {
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
    pub(crate) unsafe fn not_launched(&self, name: &str, stream: StreamHandle, status: CUresult) -> Error {
        let driver = DriverError { function: DriverFn::cuGraphLaunch, status };
        // SAFETY: the caller's promise.
        unsafe { self.check_after_refusal(driver, stream, || after_launch(name)) };
        failed(driver, format!("launching graph {name:?} on stream {stream:#x}"), None)
    }

    /// Waits for a launch and reports its fault.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    pub(crate) unsafe fn find_graph_fault(&self, entry: &Graph, stream: StreamHandle) -> Result<()> {
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
    pub(crate) fn known_graph(&self, graph: GraphHandle, doing: &'static str) -> Result<Arc<Graph>> {
        self.graph_client().graph(graph).ok_or_else(|| self.no_graph(graph, doing))
    }

    /// The error for a handle that is no graph. The driver would follow it.
    #[cold]
    pub(crate) fn no_graph(&self, graph: GraphHandle, doing: &'static str) -> Error {
        let end =
            self.graph_client().shared.with(|shared| shared.ended.last_end(graph.0.generation).cloned());
        let text = match end {
            Some(end) => format!("{doing}: graph {:?} ({graph}) was {}", end.name, end.how),
            None => format!("{doing}: {graph} is no graph of this device's backends: end_capture makes them"),
        };
        BadArgument::new(text).into()
    }

    pub(crate) fn count_nodes(&self, template: CUgraph) -> Result<usize, DriverError> {
        let mut count = 0;
        // SAFETY: the result pointer is a local; without a place for nodes only their number is asked for.
        unsafe { ask!(self.driver(), cuGraphGetNodes(template, std::ptr::null_mut(), &mut count)) }
            .map(|()| count)
    }

    /// The place of a node among those of its graph; `None` where that is unknown.
    pub(crate) fn place_of(&self, node: CUgraphNode, template: CUgraph) -> Option<usize> {
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

pub(crate) fn not_updatable() -> NotSupported {
    NotSupported {
        doing: "updating a graph",
        why: "the driver has no cuGraphExecUpdate_v2, which came with CUDA 12; end the capture for a graph of its own and \
              destroy the old one"
            .to_owned(),
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs: what a capture recorded, made ready to launch, updated and replayed.

use std::sync::Arc;

use metrale_driver_sys::{
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE,
    CUgraphExecUpdateResultInfo, CUresult,
};

use super::Model;
use super::handle::Kind;
use super::stream::Point;
use super::work::Work;

/// `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`
const TOPOLOGY_CHANGED: u32 = 2;
/// `CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED`
const NODE_TYPE_CHANGED: u32 = 3;
/// `CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED`
const PARAMETERS_CHANGED: u32 = 5;

/// One captured operation.
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) work: Work,
    /// Indexes of earlier nodes that must be done before.
    pub(crate) after: Vec<u32>,
}

/// The nodes of a graph, each behind those it waits for, so that their order is one in which they can run.
pub(crate) struct Body {
    pub(crate) nodes: Vec<Node>,
}

pub(crate) struct Graph {
    pub(crate) device: usize,
    pub(crate) body: Arc<Body>,
}

pub(crate) struct Exec {
    pub(crate) device: usize,
    pub(crate) body: Arc<Body>,
    /// What it takes of its context's pool for graphs, in bytes.
    pub(crate) bytes: u64,
    /// Where its last launch is done, on whichever stream.
    launched: Option<Point>,
}

impl Model {
    pub(crate) fn graph_nodes(&mut self, graph: u64) -> Result<Vec<u64>, CUresult> {
        self.context()?;
        let graph = self.graphs.get(&graph).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        Ok(graph.body.nodes.iter().map(|node| node.handle).collect())
    }

    /// Makes a graph ready; later changes of the graph do not reach it.
    pub(crate) fn graph_instantiate(&mut self, graph: u64, flags: u64) -> Result<u64, CUresult> {
        self.context()?;
        let graph = self.graphs.get(&graph).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if flags & !0xF != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (device, body) = (graph.device, Arc::clone(&graph.body));
        self.unsafe_call(device)?;
        self.memory_is_live(&body)?;
        let kernels = body.nodes.iter().filter(|node| matches!(node.work, Work::Kernel(_))).count();
        // An empty one takes nothing.
        let bytes = if body.nodes.is_empty() { 0 } else { self.memory.open_graph(device, kernels)? };
        let handle = self.handles.make(Kind::Exec);
        self.execs.insert(handle, Exec { device, body, bytes, launched: None });
        Ok(handle)
    }

    /// Waits for the launches before of the same graph, on whichever stream. A capturing stream takes no graph: that was
    /// measured in an invalidated capture, where a call that could have been captured is answered 901 and this one 900; so it
    /// is modelled as forbidden in a valid one too.
    pub(crate) fn graph_launch(&mut self, handle: u64, stream: u64) -> Result<(), CUresult> {
        let stream = self.stream(stream)?;
        let exec = self.execs.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let (body, before) = (Arc::clone(&exec.body), exec.launched);
        self.not_while_capturing(stream)?;
        let launched = self.enqueue(stream, Work::Graph(body), before.into_iter().collect())?;
        if let Some(exec) = self.execs.get_mut(&handle) {
            exec.launched = launched;
        }
        Ok(())
    }

    /// Replaces an instantiated graph's work by another graph's of the same topology.
    pub(crate) fn graph_update(
        &mut self,
        exec: u64,
        graph: u64,
    ) -> Result<(CUresult, CUgraphExecUpdateResultInfo), CUresult> {
        self.context()?;
        let new = self.graphs.get(&graph).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let body = Arc::clone(&new.body);
        self.memory_is_live(&body)?;
        let old = self.execs.get_mut(&exec).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let refusal = difference(&old.body, &body);
        Ok(match refusal {
            None => {
                old.body = body;
                (0, CUgraphExecUpdateResultInfo::default())
            }
            Some(info) => (CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, info),
        })
    }

    /// Refuses copies and fills of memory that is freed by now, on which a real driver crashes. Kernels it does not look into.
    fn memory_is_live(&mut self, body: &Body) -> Result<(), CUresult> {
        let mut addresses = body.nodes.iter().flat_map(|node| node.work.device_addresses());
        let Some(freed) = addresses.find(|&address| self.memory.find(address).is_none()) else {
            return Ok(());
        };
        self.diagnose(format!(
            "a graph copies or fills {freed:#x}, which was freed since: a real driver crashes here"
        ));
        Err(CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn exec_destroy(&mut self, exec: u64) -> Result<(), CUresult> {
        self.context()?;
        let device = self.execs.get(&exec).ok_or(CUDA_ERROR_INVALID_HANDLE)?.device;
        self.unsafe_call(device)?;
        if let Some(exec) = self.execs.remove(&exec) {
            self.memory.close_graph(device, exec.bytes);
        }
        Ok(())
    }

    pub(crate) fn graph_destroy(&mut self, graph: u64) -> Result<(), CUresult> {
        self.context()?;
        self.graphs.remove(&graph).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

/// Why `new` cannot replace `old`.
fn difference(old: &Body, new: &Body) -> Option<CUgraphExecUpdateResultInfo> {
    let refuse = |result, node| CUgraphExecUpdateResultInfo { result, errorNode: node, errorFromNode: 0 };
    if old.nodes.len() != new.nodes.len() {
        let extra = new.nodes.get(old.nodes.len()).map_or(0, |node| node.handle);
        return Some(refuse(TOPOLOGY_CHANGED, extra));
    }
    for (old, new) in old.nodes.iter().zip(&new.nodes) {
        if old.after != new.after {
            return Some(refuse(TOPOLOGY_CHANGED, new.handle));
        }
        if old.work.kind() != new.work.kind() {
            let both_copies = matches!((&old.work, &new.work), (Work::Copy(_), Work::Copy(_)));
            return Some(refuse(
                if both_copies { PARAMETERS_CHANGED } else { NODE_TYPE_CHANGED },
                new.handle,
            ));
        }
    }
    None
}

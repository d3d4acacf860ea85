// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use metrale_driver_sys::{
    CUDA_SUCCESS, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode, CUresult, CUstream,
};

use super::Face;
use super::raw::{Out, get, readable};

impl Face {
    // Not on the list of a build for SCALE.
    #[allow(dead_code, reason = "the list of driver functions decides which variant has it")]
    pub(super) unsafe fn cuGraphInstantiateWithFlags(
        &self,
        phGraphExec: *mut CUgraphExec,
        hGraph: CUgraph,
        flags: u64,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(phGraphExec) }?;
            out.put(model.graph_instantiate(hGraph, flags)?);
            Ok(())
        })
    }

    // On the list of a build for SCALE only.
    #[allow(dead_code, reason = "the list of driver functions decides which variant has it")]
    pub(super) unsafe fn cuGraphInstantiate(
        &self,
        phGraphExec: *mut CUgraphExec,
        hGraph: CUgraph,
        flags: u64,
    ) -> CUresult {
        // SAFETY: the same call under its other name.
        unsafe { self.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags) }
    }

    pub(super) unsafe fn cuGraphLaunch(&self, hGraphExec: CUgraphExec, hStream: CUstream) -> CUresult {
        self.call(|model| model.graph_launch(hGraphExec, hStream))
    }

    pub(super) unsafe fn cuGraphExecUpdate_v2(
        &self,
        hGraphExec: CUgraphExec,
        hGraph: CUgraph,
        resultInfo: *mut CUgraphExecUpdateResultInfo,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(resultInfo) }?;
            let (status, info) = model.graph_update(hGraphExec, hGraph)?;
            out.put(info);
            if status == CUDA_SUCCESS { Ok(()) } else { Err(status) }
        })
    }

    pub(super) unsafe fn cuGraphExecDestroy(&self, hGraphExec: CUgraphExec) -> CUresult {
        self.call(|model| model.exec_destroy(hGraphExec))
    }

    pub(super) unsafe fn cuGraphDestroy(&self, hGraph: CUgraph) -> CUresult {
        self.call(|model| model.graph_destroy(hGraph))
    }

    /// Where the array is longer than there are nodes, the rest is null.
    pub(super) unsafe fn cuGraphGetNodes(
        &self,
        hGraph: CUgraph,
        nodes: *mut CUgraphNode,
        numNodes: *mut usize,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let count = unsafe { Out::new(numNodes) }?;
            let handles = model.graph_nodes(hGraph)?;
            if nodes.is_null() {
                count.put(handles.len());
                return Ok(());
            }
            // SAFETY: the trait's promise: the count is in and out.
            let capacity = unsafe { get(numNodes.cast_const()) }?;
            readable(nodes.cast_const(), capacity)?;
            for at in 0..capacity {
                let slot = nodes.wrapping_add(at);
                // SAFETY: the trait's promise: the array has as many elements as the count says.
                let slot = unsafe { Out::new(slot) }?;
                slot.put(handles.get(at).copied().unwrap_or(0));
            }
            count.put(handles.len().min(capacity));
            Ok(())
        })
    }
}

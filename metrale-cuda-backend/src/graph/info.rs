// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GraphInfo`]: what is known of each graph, for reports and accounts.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use metrale_ledger::{ByteSize, LiveAllocation};

use crate::backend::MetraleCudaBackend;
use crate::gpu::GraphHandle;
use crate::memory::Cost;

/// What is known of an instantiated graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphInfo {
    /// Its name: the one it was given, or `graph-1` and so on.
    pub name: Arc<str>,
    /// Its handle.
    pub handle: GraphHandle,
    /// The line that began the capture of its present work.
    pub captured_at: &'static Location<'static>,
    /// Its nodes.
    pub nodes: usize,
    /// Bytes of device memory that went when it was instantiated, beyond this backend's own allocations. 0 where the driver
    /// took it from what it holds for graphs already; negative where another process freed memory at that moment; `None` where
    /// the driver did not say. The driver keeps this memory after the graph is destroyed.
    pub bytes_measured: Option<i64>,
    /// What it is known to use, by address, and so keeps from being freed.
    pub pinned: Vec<LiveAllocation>,
    /// Launches whose arguments are unknown because they were untyped: what these use is pinned only where it was
    /// [asked for](crate::GpuBackend::pin_graph).
    pub opaque_launches: usize,
}

impl GraphInfo {
    /// Bytes of all pinned allocations.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.iter().fold(0, |sum, pinned| sum.saturating_add(pinned.record.bytes as u64))
    }
}

impl fmt::Display for GraphInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph {:?}: {} node{}", self.name, self.nodes, if self.nodes == 1 { "" } else { "s" })?;
        match self.bytes_measured {
            Some(bytes) if bytes < 0 => write!(f, ", -{} measured", ByteSize(bytes.unsigned_abs()))?,
            Some(bytes) => write!(f, ", {} measured", ByteSize(bytes.unsigned_abs()))?,
            None => f.write_str(", size unknown")?,
        }
        write!(f, ", pins {} in {}", ByteSize(self.pinned_bytes()), self.pinned.len())?;
        if self.opaque_launches > 0 {
            write!(f, " and whatever {} untyped launches use", self.opaque_launches)?;
        }
        write!(f, ", captured at {}", metrale_ledger::file_line(self.captured_at))
    }
}

impl MetraleCudaBackend {
    /// See [`GpuBackend::graphs`](crate::GpuBackend::graphs).
    #[must_use]
    pub fn graphs(&self) -> Vec<GraphInfo> {
        let owner = self.graph_client().owner;
        let shared = &self.graph_client().shared;
        let all: Vec<_> = shared
            .with(|shared| shared.graphs.values().filter(|graph| graph.owner == owner).cloned().collect());
        let mut infos: Vec<_> = all
            .into_iter()
            .map(|graph| {
                let state = graph.state.lock();
                let uses = shared.with(|shared| shared.pins.of(state.id).cloned());
                let (pinned, opaque_launches) = uses.map_or((Vec::new(), 0), |uses| {
                    (uses.memory.into_values().collect(), uses.opaque_launches)
                });
                let info = GraphInfo {
                    name: Arc::clone(&graph.name),
                    handle: graph.handle,
                    captured_at: state.captured_at,
                    nodes: state.nodes,
                    bytes_measured: state.bytes_measured,
                    pinned,
                    opaque_launches,
                };
                (state.id, info)
            })
            .collect();
        infos.sort_by_key(|&(id, _)| id);
        infos.into_iter().map(|(_, info)| info).collect()
    }

    /// Bytes of device memory that all graphs of this backend together took when they were instantiated, as measured: the
    /// term `graphs` of the [account](crate::GpuBackend::account). The driver keeps it when they are destroyed, so this
    /// figure stays.
    #[must_use]
    pub fn graph_bytes_measured(&self) -> i64 {
        self.costs().of(Cost::Graphs).bytes()
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GraphInfo`]: what is known of each graph, for reports and accounts.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use metrale_ledger::{ByteSize, LiveAllocation};

use crate::raw_handles::GraphHandle;

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
    /// [asked for](crate::GpuGraphs::pin_graph).
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

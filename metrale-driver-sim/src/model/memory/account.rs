// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a device's memory is used for, and how much of it is free.

use metrale_ledger::placement::Placement;

use super::stream_pool::StreamPool;
use crate::profile::Profile;

/// What a kernel's node of an instantiated graph takes, and what all of them take before the pool grows. Modelled: with these,
/// measured graphs of 1 to 10,000 nodes come out as they were, or within a chunk, since those before them matter too. 5,000
/// nodes that fill took nothing.
pub(super) const KERNEL_NODE_BYTES: u64 = 2480;
const GRAPHS_FREE_BYTES: u64 = 3_670_016;
/// What the first device touch of managed memory takes beyond the memory itself, and keeps.
pub(super) const MANAGED_ONCE_BYTES: u64 = 120 << 20;

/// One of a context's two sets of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Chunks {
    Allocations,
    Globals,
}

/// What one device's memory is used for, in bytes unless said otherwise.
pub(super) struct Account {
    pub(super) total: u64,
    pub(super) context: u64,
    allocations: Placement,
    globals: Placement,
    pub(super) streams: StreamPool,
    pub(super) graphs_reserved: u64,
    pub(super) graphs_used: u64,
    pub(super) managed: u64,
    /// Reserved by memory pools.
    pub(super) pools: u64,
    /// Made by `cuMemCreate`. It belongs to no context.
    pub(super) physical: u64,
}

impl Account {
    pub(super) fn new(profile: &Profile, other_devices: u64) -> Self {
        Self {
            total: profile.total_bytes,
            context: 0,
            allocations: Placement::new(profile.packing),
            globals: Placement::new(profile.packing),
            streams: StreamPool::new(other_devices),
            graphs_reserved: 0,
            graphs_used: 0,
            managed: 0,
            pools: 0,
            physical: 0,
        }
    }

    pub(super) fn free(&self) -> u64 {
        [
            self.context,
            self.allocations.resident_bytes(),
            self.globals.resident_bytes(),
            self.streams.bytes(),
            self.graphs_reserved,
            self.managed,
            self.pools,
            self.physical,
        ]
        .iter()
        .fold(self.total, |free, used| free.saturating_sub(*used))
    }

    /// What the pool for graphs grows by for another graph.
    pub(super) fn one_graph_more(&self, bytes: u64, page_bytes: u64) -> u64 {
        graph_pool_bytes(self.graphs_used + bytes, page_bytes).saturating_sub(self.graphs_reserved)
    }

    /// Gives back what streams and graphs that are gone have left. Measured: of 10 MiB that a graph of 5,000 nodes took, 2 stay.
    pub(super) fn trim(&mut self, page_bytes: u64) {
        self.streams.trim();
        let kept = graph_pool_bytes(self.graphs_used, page_bytes) + page_bytes;
        self.graphs_reserved = self.graphs_reserved.min(kept);
    }

    pub(super) fn chunks(&mut self, chunks: Chunks) -> &mut Placement {
        match chunks {
            Chunks::Allocations => &mut self.allocations,
            Chunks::Globals => &mut self.globals,
        }
    }
}

/// What the pool for graphs holds for graphs that take `used` bytes.
fn graph_pool_bytes(used: u64, page_bytes: u64) -> u64 {
    used.saturating_sub(GRAPHS_FREE_BYTES).next_multiple_of(page_bytes)
}

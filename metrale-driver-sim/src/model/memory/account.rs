// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a device's memory is used for, and how much of it is free.

use metrale_ledger::placement::Placement;

use crate::profile::Profile;

/// What the pool of streams grows by.
const STREAM_CHUNK_BYTES: u64 = 2 << 20;
/// Streams that a chunk of the pool holds. The first place of a context needs none of it; each further device that the
/// process sees takes a place too, once there are streams.
const STREAMS_PER_CHUNK: u64 = 4;
/// From so many places on the pool has one chunk more: 35 took 18 MiB, 36 took 20.
const PLACES_BEYOND: u64 = 36;
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
    /// Streams that are alive.
    pub(super) streams: u64,
    /// The highest number of streams there ever were, a graph's instantiation counted as one more.
    pub(super) streams_peak: u64,
    /// Places that other devices take beside the streams.
    other_devices: u64,
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
            streams: 0,
            streams_peak: 0,
            other_devices,
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
            self.stream_pool_bytes(self.streams_peak),
            self.graphs_reserved,
            self.managed,
            self.pools,
            self.physical,
        ]
        .iter()
        .fold(self.total, |free, used| free.saturating_sub(*used))
    }

    /// What the pool of streams holds once `peak` of them were alive at once.
    fn stream_pool_bytes(&self, peak: u64) -> u64 {
        if peak == 0 {
            return 0;
        }
        let places = peak + self.other_devices;
        let chunks = (places - 1).div_ceil(STREAMS_PER_CHUNK) + u64::from(places >= PLACES_BEYOND);
        chunks * STREAM_CHUNK_BYTES
    }

    /// The highest number of streams once there was one more than there are now, and what the pool grows by for it.
    pub(super) fn one_stream_more(&self) -> (u64, u64) {
        let peak = self.streams_peak.max(self.streams + 1);
        (peak, self.stream_pool_bytes(peak) - self.stream_pool_bytes(self.streams_peak))
    }

    /// What the pool for graphs grows by for another graph.
    pub(super) fn one_graph_more(&self, bytes: u64, page_bytes: u64) -> u64 {
        let reserved =
            (self.graphs_used + bytes).saturating_sub(GRAPHS_FREE_BYTES).next_multiple_of(page_bytes);
        reserved.saturating_sub(self.graphs_reserved)
    }

    pub(super) fn chunks(&mut self, chunks: Chunks) -> &mut Placement {
        match chunks {
            Chunks::Allocations => &mut self.allocations,
            Chunks::Globals => &mut self.globals,
        }
    }
}

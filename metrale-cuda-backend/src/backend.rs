// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MetraleCudaBackend`]: the context, modules, stream and ledger of one device, and its builder.

use core::fmt;
use std::sync::Arc;

use metrale_driver_sys::DriverApi;
use metrale_registry::{CudaHost, MetraleRegistry};
use metrale_telemetry::{KernelAudit, RunGuard};
use parking_lot::{Mutex, MutexGuard};

use crate::config::BackendConfig;
use crate::fault_latch::FaultLatch;
use crate::graph::GraphClient;
use crate::handles::Handles;
use crate::kernel_table::Kernels;
use crate::ledger_writer::LedgerWriter;
use crate::memory::{AllocLock, Costs, Deferred, OwnedAddresses, OwnedArenas, PinnedTable, Polling};
use crate::op_cache::OpCache;
use crate::raw_handles::StreamHandle;
use crate::redzone::Zones;
use crate::signature::Signatures;
use crate::span_table::Timing;

/// The CUDA backend: one device's context, kernel modules, stream and ledger.
///
/// It dereferences to [`GpuBackend`](crate::GpuBackend), whose methods are called on it with nothing imported.
///
/// Dropping the backend gives up its captures and destroys its graphs, frees what is still on its ledger, and pinned memory
/// too, and destroys the streams and events that are left, with warnings that say whose they were; then the modules unload.
/// What [`alloc_arena`](crate::GpuMemory::alloc_arena) returned stays allocated, with its contents: the next backend that is made on
/// the device has it on its ledger, and `free_arena` of any backend of the device frees it. The context goes with the last
/// user of the device, which such an arena is too.
pub struct MetraleCudaBackend {
    // In this order: `drop` destroys the graphs and frees the ledger's memory before any field is dropped.
    pub(crate) graph_client: GraphClient,
    /// Shared with the arenas on it, which may outlive the backend.
    pub(crate) ledger_writer: Arc<LedgerWriter>,
    /// Before the host: its kernels unload into a context that is there.
    pub(crate) zones: Zones,
    pub(crate) costs: Costs,
    pub(crate) polling: Polling,
    pub(crate) alloc_lock: AllocLock,
    pub(crate) pinned: Mutex<PinnedTable>,
    pub(crate) owned_arenas: OwnedArenas,
    pub(crate) owned_addresses: OwnedAddresses,
    pub(crate) deferred: Deferred,
    pub(crate) streams: Handles,
    pub(crate) events: Handles,
    pub(crate) kernels: Kernels,
    pub(crate) signatures: Signatures,
    pub(crate) registry: Arc<MetraleRegistry>,
    pub(crate) host: Arc<CudaHost>,
    pub(crate) op_cache: OpCache,
    pub(crate) timing: Timing,
    pub(crate) latch: Arc<FaultLatch>,
    pub(crate) config: BackendConfig,
    pub(crate) reads_pageable_memory: bool,
    pub(crate) small_most: usize,
    /// Its look-ups alone, whatever other backends there are.
    pub(crate) audit: Arc<KernelAudit>,
    /// Its part in the process's run.
    pub(crate) run: RunGuard<'static>,
}

impl MetraleCudaBackend {
    /// The driver below.
    pub(crate) fn driver(&self) -> &dyn DriverApi {
        self.host.driver()
    }

    /// The backend's own stream.
    pub(crate) const fn own_stream(&self) -> StreamHandle {
        self.graph_client.own_stream
    }

    /// Access to the captures and graphs that the backends of this driver share.
    pub(crate) const fn graph_client(&self) -> &GraphClient {
        &self.graph_client
    }

    pub(crate) const fn ledger_writer(&self) -> &Arc<LedgerWriter> {
        &self.ledger_writer
    }

    pub(crate) const fn zones(&self) -> &Zones {
        &self.zones
    }

    pub(crate) const fn costs(&self) -> &Costs {
        &self.costs
    }

    pub(crate) const fn polling(&self) -> &Polling {
        &self.polling
    }

    /// Memory whose owners gave it up when it could not be freed.
    pub(crate) const fn deferred(&self) -> &Deferred {
        &self.deferred
    }

    /// The live pinned memory, locked. Never held over a call of the driver.
    pub(crate) fn pinned_table(&self) -> MutexGuard<'_, PinnedTable> {
        self.pinned.lock()
    }

    /// The arenas that a value of this crate owns.
    pub(crate) const fn owned_arenas(&self) -> &OwnedArenas {
        &self.owned_arenas
    }

    /// The streams it knows, but for its own.
    pub(crate) const fn streams(&self) -> &Handles {
        &self.streams
    }

    /// The events it knows.
    pub(crate) const fn events(&self) -> &Handles {
        &self.events
    }

    pub(crate) const fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    pub(crate) const fn signatures(&self) -> &Signatures {
        &self.signatures
    }

    /// The device's memory in bytes.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.host.facts().total_bytes
    }

    pub(crate) const fn op_cache(&self) -> &OpCache {
        &self.op_cache
    }

    pub(crate) const fn timing(&self) -> &Timing {
        &self.timing
    }

    /// What remembers that the context is lost.
    pub(crate) fn latch(&self) -> &FaultLatch {
        &self.latch
    }

    pub(crate) const fn reads_pageable_memory(&self) -> bool {
        self.reads_pageable_memory
    }

    /// The most bytes of an allocation that takes the short path; 0 where none does.
    pub(crate) const fn small_most(&self) -> usize {
        self.small_most
    }
}

impl Drop for MetraleCudaBackend {
    fn drop(&mut self) {
        self.free_all_left();
    }
}

impl fmt::Debug for MetraleCudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetraleCudaBackend")
            .field("host", &self.host)
            .field("config", &self.config)
            .field("ledger", self.ledger_writer.ledger())
            .finish_non_exhaustive()
    }
}

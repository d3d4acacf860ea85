// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Kernels`]: what is known of the kernels that were looked up.

use std::sync::Arc;

use metrale_telemetry::{KernelAudit, KernelUsage, run_metrics};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::signature::{Signature, Signatures};

/// What is known of a kernel. It never changes.
pub(crate) struct KernelInfo {
    /// `module::function`, for errors and traces.
    pub(crate) name: Arc<str>,
    /// Where the process's audit and the backend's own learn that it was launched.
    pub(crate) usage: [KernelUsage; 2],
    /// What it takes, where its image says so.
    pub(crate) signature: Option<Signature>,
    /// The tile width it publishes.
    pub(crate) n_tile: Option<u32>,
}

/// The kernels this backend has looked up, by handle.
#[derive(Default)]
pub(crate) struct Kernels {
    known: RwLock<FxHashMap<u64, Arc<KernelInfo>>>,
}

impl Kernels {
    /// What is known of a kernel.
    pub(crate) fn of(&self, handle: u64) -> Option<Arc<KernelInfo>> {
        self.known.read().get(&handle).cloned()
    }

    /// Whether a kernel was looked up before.
    pub(crate) fn knows(&self, handle: u64) -> bool {
        self.known.read().contains_key(&handle)
    }

    /// Keeps what is known of a kernel beside its handle.
    pub(crate) fn learn(
        &self,
        handle: u64,
        (module, function): (&str, &str),
        audit: &KernelAudit,
        signatures: &Signatures,
        n_tile: Option<u32>,
    ) {
        let usage = [run_metrics::process().audit(), audit].map(|audit| audit.usage(module, function));
        let name = format!("{module}::{function}").into();
        let signature = signatures.of(module, function);
        let known = KernelInfo { name, usage, signature, n_tile };
        self.known.write().insert(handle, Arc::new(known));
    }

    /// The tile width that a kernel publishes.
    pub(crate) fn n_tile(&self, handle: u64) -> Option<u32> {
        self.known.read().get(&handle)?.n_tile
    }

    pub(crate) fn name(&self, handle: u64) -> Arc<str> {
        match self.known.read().get(&handle) {
            Some(kernel) => Arc::clone(&kernel.name),
            None => format!("{handle:#x}").into(),
        }
    }
}

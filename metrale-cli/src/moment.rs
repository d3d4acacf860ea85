// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Moment`]: ledger, account and driver at one moment.

use metrale_cuda_backend::MetraleCudaBackend;
use metrale_cuda_backend::memory::Account;
use metrale_ledger::Snapshot;

/// The figures while everything is loaded.
pub(crate) struct Moment {
    /// What the ledger holds.
    pub(crate) snapshot: Snapshot,
    /// Every byte the driver says is used, by name.
    pub(crate) account: Account,
    /// Bytes by which the driver's free figure fell since before the first tensor; negative where it rose.
    pub(crate) driver_used_bytes: i64,
    /// The driver's free figure.
    pub(crate) free_bytes: u64,
    /// The device's memory.
    pub(crate) total_bytes: u64,
}

impl Moment {
    pub(crate) fn of(backend: &MetraleCudaBackend, baseline_free_bytes: u64) -> anyhow::Result<Self> {
        let now = backend.memory_info()?;
        Ok(Self {
            snapshot: backend.ledger_probe().snapshot(),
            account: backend.account()?,
            driver_used_bytes: baseline_free_bytes as i64 - now.free_bytes as i64,
            free_bytes: now.free_bytes,
            total_bytes: now.total_bytes,
        })
    }
}

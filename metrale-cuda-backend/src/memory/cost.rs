// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver takes beside allocations, measured where it takes it: around module loads, streams, graphs.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// What makes the driver take memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Loading modules: their code and globals.
    Modules,
    /// Making streams.
    Streams,
    /// Instantiating graphs.
    Graphs,
}

/// The sum of what each took, and how often it was measured.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    terms: [Measured; 3],
    /// Bytes used when the context was there and nothing of this backend.
    baseline: AtomicU64,
    /// Held over a measurement, so that no measurement counts what another makes the driver take.
    pub(crate) measuring: Mutex<()>,
    /// Large allocations and frees that ledger and driver do not agree on yet.
    pub(crate) moving: AtomicUsize,
}

/// Held while large memory is between ledger and driver.
#[derive(Debug)]
pub(crate) struct Moving<'a>(pub(crate) &'a AtomicUsize);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Looks at the figures before they are given up on: another thread's free may wait for its kernels.
pub(crate) const LOOKS: usize = 1000;

/// One kind's sum.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    bytes: AtomicI64,
    times: AtomicU64,
}

impl Measured {
    pub(crate) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }
}

impl Costs {
    pub(crate) fn of(&self, cost: Cost) -> &Measured {
        &self.terms[cost as usize]
    }

    /// Adds what was measured elsewhere.
    pub(crate) fn note(&self, cost: Cost, bytes: i64) {
        let term = self.of(cost);
        term.bytes.fetch_add(bytes, Ordering::Relaxed);
        term.times.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_baseline(&self, used_bytes: u64) {
        self.baseline.store(used_bytes, Ordering::Relaxed);
    }

    pub(crate) fn baseline(&self) -> u64 {
        self.baseline.load(Ordering::Relaxed)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OwnedAddresses`]: device memory that owners have, which nobody else frees by its address.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// The base addresses of memory of [`OwnedMemory`](crate::OwnedMemory), from its allocation until it is taken off the ledger.
#[derive(Debug, Default)]
pub(crate) struct OwnedAddresses {
    /// How many there are, to be read without the lock: a backend without owners pays a load for it.
    count: AtomicUsize,
    bases: Mutex<FxHashSet<u64>>,
}

impl OwnedAddresses {
    pub(crate) fn insert(&self, base: u64) {
        let mut bases = self.bases.lock();
        bases.insert(base);
        self.count.store(bases.len(), Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, base: u64) {
        let mut bases = self.bases.lock();
        bases.remove(&base);
        self.count.store(bases.len(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn has(&self, base: u64) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.bases.lock().contains(&base)
    }
}

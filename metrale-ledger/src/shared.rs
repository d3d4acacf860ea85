// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state behind its lock, and the totals beside it.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use crate::misuse::{ForgetError, Recorded};
use crate::record::{AllocKind, AllocRecord, LiveAllocation};
use crate::snapshot::Snapshot;
use crate::state::State;
use crate::totals::{Sums, Totals};

/// How often a waiting thread doubles its pause before it sleeps.
const DOUBLED_PAUSES: u32 = 11;

/// What a ledger and its probes share. One lock: the driver serialises its own calls, each a hundred times longer.
pub(crate) struct Shared {
    state: Mutex<State>,
    sums: Arc<Sums>,
    /// A scope was opened on this ledger.
    scoped: AtomicBool,
}

impl Shared {
    pub(crate) fn new(tombstones: usize) -> Self {
        let sums = Arc::<Sums>::default();
        let state = Mutex::new(State::new(tombstones, Arc::clone(&sums)));
        Self { state, sums, scoped: AtomicBool::new(false) }
    }

    /// Does something that changes no total.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&mut State) -> T) -> T {
        question(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Waits for the lock: pauses, twice as long each time, before it sleeps.
    #[cold]
    fn wait(&self) -> MutexGuard<'_, State> {
        for pauses in (0..DOUBLED_PAUSES).map(|doubled| 1 << doubled) {
            (0..pauses).for_each(|_| std::hint::spin_loop());
            if let Some(state) = self.state.try_lock() {
                return state;
            }
        }
        self.state.lock()
    }

    /// Changes the state and publishes the totals.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        self.sums.begin_change();
        let answer = change(&mut state);
        self.sums.end_change();
        answer
    }

    pub(crate) fn record(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        kind: AllocKind,
        scope: Option<u32>,
    ) -> Recorded {
        self.change(|state| state.record(addr, bytes, site, kind, scope))
    }

    pub(crate) fn forget(
        &self,
        addr: u64,
        kind: AllocKind,
        freed_at: &'static Location<'static>,
    ) -> Result<AllocRecord, ForgetError> {
        self.change(|state| state.forget(addr, kind, freed_at))
    }

    /// The totals of one moment. Takes the lock only during a change, and while allocations overlap and pages must be counted
    /// anew.
    pub(crate) fn totals(&self) -> Totals {
        self.sums.read().unwrap_or_else(|| self.ask(State::totals))
    }

    pub(crate) fn snapshot(&self, at_peak: bool) -> Snapshot {
        self.ask(|state| state.snapshot(at_peak))
    }

    /// Whether a thread can have a scope open on this ledger. A thread sees at least what it did itself.
    pub(crate) fn may_be_scoped(&self) -> bool {
        self.scoped.load(Relaxed)
    }

    /// A scope's number and whole label, and the index of the next allocation.
    pub(crate) fn open_scope(&self, parent: Option<u32>, label: &str) -> (u32, Arc<str>, u64) {
        self.scoped.store(true, Relaxed);
        self.ask(|state| {
            let number = match parent.and_then(|parent| state.labels.name(parent)) {
                Some(outer) if label.is_empty() => state.labels.number(&outer),
                Some(outer) => state.labels.number(&format!("{outer}/{label}")),
                None => state.labels.number(label),
            };
            (number, state.labels.name(number).unwrap_or_default(), state.next_index)
        })
    }

    pub(crate) fn live_where(&self, fits: impl Fn(&AllocRecord) -> bool) -> Vec<LiveAllocation> {
        self.ask(|state| state.live_where(fits))
    }

    pub(crate) fn allocations(&self, fits: impl Fn(AllocKind) -> bool) -> Vec<(u64, AllocRecord)> {
        let live = self.live_where(|record| fits(record.kind));
        live.into_iter().map(|live| (live.addr, live.record)).collect()
    }
}

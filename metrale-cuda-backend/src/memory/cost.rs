// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver takes beside allocations, measured where it takes it: around module loads, streams, graphs.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use anyhow::Result;
use metrale_ledger::SMALL_ALLOC_CHUNK;
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;

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
    measuring: Mutex<()>,
    /// Large allocations and frees that ledger and driver do not agree on yet.
    moving: AtomicUsize,
}

/// Held while large memory is between ledger and driver.
#[derive(Debug)]
pub(crate) struct Moving<'a>(&'a AtomicUsize);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Looks at the figures before they are given up on: another thread's free may wait for its kernels.
const LOOKS: usize = 1000;

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

impl MetraleCudaBackend {
    /// Does something that may make the driver take memory, and notes how much it took: the change of its used bytes less
    /// that of the ledger's pages. Where the driver does not say, nothing is noted and the remainder of the account shows
    /// it; so too where another thread's allocating leaves no moment to look at the figures. What other processes take
    /// meanwhile is counted too. Costs four questions of some 7 µs; they are allowed in a capture.
    pub(crate) fn measure<T>(&self, cost: Cost, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.measured(cost, act).map(|(answer, _)| answer)
    }

    /// [`measure`](Self::measure), and says how many bytes it was; `None` where the driver does not say.
    pub(crate) fn measured<T>(
        &self,
        cost: Cost,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<i64>)> {
        let _alone = self.costs().measuring.lock();
        let before = self.settled_unledgered_bytes();
        let answer = act()?;
        let bytes = before.zip(self.settled_unledgered_bytes()).map(|(before, after)| after - before);
        if let Some(bytes) = bytes {
            self.costs().note(cost, bytes);
        }
        Ok((answer, bytes))
    }

    /// To be held from before the driver is asked for large memory until the ledger has recorded it, and from when the ledger
    /// has forgotten it until the driver has freed it. Small ones take too little time to be seen in two readings, and counting them would cost too much.
    #[inline]
    pub(crate) fn moves(&self, bytes: usize) -> Option<Moving<'_>> {
        (bytes as u64 >= SMALL_ALLOC_CHUNK).then(|| {
            let moving = &self.costs().moving;
            moving.fetch_add(1, Ordering::Acquire);
            Moving(moving)
        })
    }

    /// [`unledgered_bytes`](Self::unledgered_bytes), twice the same while nothing large moves; `None` where that does not
    /// happen, because a figure in between would stay wrong.
    fn settled_unledgered_bytes(&self) -> Option<i64> {
        let mut last = None;
        for _ in 0..LOOKS {
            if self.costs().moving.load(Ordering::Acquire) > 0 {
                last = None;
                std::thread::yield_now();
                continue;
            }
            let now = Some(self.unledgered_bytes()?);
            if now == last && self.costs().moving.load(Ordering::Acquire) == 0 {
                return now;
            }
            last = now;
        }
        None
    }

    /// The driver's used bytes less the pages that the ledger knows.
    fn unledgered_bytes(&self) -> Option<i64> {
        let used = self.ask_memory_info().ok()?.used_bytes();
        let ledger = self.ledger_writer().ledger();
        let pages = ledger.resident_bytes().saturating_add(ledger.arena_resident_bytes());
        Some(used as i64 - pages as i64)
    }
}

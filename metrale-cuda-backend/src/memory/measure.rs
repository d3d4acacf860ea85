// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measuring what the driver takes beside allocations.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::cost::{Cost, LOOKS, Moving};
use crate::backend::MetraleCudaBackend;
use crate::error::Result;

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

    /// To be held from before the driver is asked for memory until the ledger has recorded it, and from when the ledger has
    /// forgotten it until the driver has freed it. The [short path](super::small) does both under one [lock](super::AllocLock) instead.
    #[inline]
    pub(crate) fn moves(&self) -> Moving<'_> {
        let moving = &self.costs().moving;
        moving.fetch_add(1, Ordering::Acquire);
        Moving(moving)
    }

    /// Does something while no memory is between ledger and driver; `None` where there is no such moment. What began meanwhile
    /// outside that lock may be seen in half, so a figure counts when it is seen twice.
    pub(crate) fn at_rest<T>(&self, mut look: impl FnMut() -> T) -> Option<T> {
        let is_moving = || self.costs().moving.load(Ordering::Acquire) > 0;
        for tried in 0..LOOKS {
            if let Some(_locked) = self.alloc_lock.try_lock()
                && !is_moving()
            {
                let seen = look();
                if !is_moving() {
                    return Some(seen);
                }
            }
            if tried < LOOKS / 10 {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(50));
            }
        }
        None
    }

    /// [`unledgered_bytes`](Self::unledgered_bytes), twice the same; `None` where that does not happen, because a figure in
    /// between would stay wrong.
    fn settled_unledgered_bytes(&self) -> Option<i64> {
        let mut last = None;
        for _ in 0..LOOKS {
            let now = self.at_rest(|| self.unledgered_bytes())??;
            if last.replace(now) == Some(now) {
                return last;
            }
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

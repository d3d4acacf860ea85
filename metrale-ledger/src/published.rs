// SPDX-License-Identifier: MIT OR Apache-2.0
//! The totals for reading without the lock.
//!
//! A total is a cell of its own, but for the two kinds of slack. They change with every allocation, and their sums with the
//! live bytes do not; so these are what is kept, and one who reads slack must see two cells of one moment.

use crate::meter::Running;
use crate::snapshot::Totals;
use crate::sync::AtomicU64;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// One of the totals. The last one counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Total {
    LiveBytes,
    LiveCount,
    ResidentBytes,
    SlackBytes,
    ChunkSlackBytes,
    PeakBytes,
    PeakResidentBytes,
    ArenaBytes,
    ArenaCount,
    ArenaResidentBytes,
    PinnedBytes,
    PinnedCount,
    PaddingBytes,
}

/// Totals for reading without the lock; written under it.
#[derive(Default)]
pub(crate) struct Published {
    /// The two kinds of slack are kept together with the live bytes, a sum that small allocations seldom change.
    cells: [AtomicU64; Total::PaddingBytes as usize + 1],
    /// Odd while more is written than live bytes and count, and then higher; and while slack is to be asked of the book.
    edition: AtomicU64,
}

impl Published {
    #[inline]
    pub(crate) fn set(&self, total: Total, value: u64) {
        self.cells[total as usize].store(value, Release);
    }

    #[inline]
    fn get(&self, total: Total) -> u64 {
        self.cells[total as usize].load(Acquire)
    }

    /// Writes live bytes, their peak and count, and what else changed.
    pub(crate) fn publish(&self, running: &Running, write: impl FnOnce(&Self)) {
        let odd = self.begin(running);
        write(self);
        self.edition.store(odd + 1, Release);
    }

    /// Writes live bytes, their peak and count. Slack is not to be read from here on, until the next [`publish`](Self::publish).
    pub(crate) fn begin(&self, running: &Running) -> u64 {
        let odd = self.edition.load(Relaxed) | 1;
        self.edition.store(odd, Release);
        // A peak before what made it, here and below: who reads the one and then its peak finds no lower one.
        self.set(Total::PeakBytes, running.peak_bytes);
        self.set(Total::LiveBytes, running.live_bytes);
        self.set(Total::LiveCount, running.live_count);
        odd
    }

    /// Slack, even where it is less than nothing: small allocations that come and go leave these cells as they are.
    pub(crate) fn write_slack(&self, running: &Running) {
        self.set(Total::SlackBytes, running.slack_and_live());
        self.set(Total::ChunkSlackBytes, running.chunk_slack_and_live());
    }

    /// What changes with pages of device memory.
    pub(crate) fn write_device_pages(&self, running: &Running) {
        self.set(Total::PeakResidentBytes, running.peak_resident_bytes);
        self.set(Total::ResidentBytes, running.resident_bytes);
        self.write_slack(running);
    }

    /// All of them.
    pub(crate) fn write(&self, totals: &Totals) {
        let with_live = |slack: u64| slack.wrapping_add(totals.live_bytes);
        for (total, value) in [
            (Total::PeakBytes, totals.peak_bytes),
            (Total::PeakResidentBytes, totals.peak_resident_bytes),
            (Total::LiveBytes, totals.live_bytes),
            (Total::LiveCount, totals.live_count),
            (Total::ResidentBytes, totals.resident_bytes),
            (Total::SlackBytes, with_live(totals.slack_bytes)),
            (Total::ChunkSlackBytes, with_live(totals.chunk_slack_bytes)),
            (Total::ArenaBytes, totals.arena_bytes),
            (Total::ArenaCount, totals.arena_count),
            (Total::ArenaResidentBytes, totals.arena_resident_bytes),
            (Total::PinnedBytes, totals.pinned_bytes),
            (Total::PinnedCount, totals.pinned_count),
            (Total::PaddingBytes, totals.padding_bytes),
        ] {
            self.set(total, value);
        }
    }

    /// A total of one moment; none where it takes several cells, and they were written meanwhile.
    #[inline]
    pub(crate) fn read(&self, total: Total) -> Option<u64> {
        if !matches!(total, Total::SlackBytes | Total::ChunkSlackBytes) {
            return Some(self.get(total));
        }
        let edition = self.edition.load(Acquire);
        let slack = self.get(total).wrapping_sub(self.get(Total::LiveBytes));
        // What passes the end of the address space has bytes that no page holds, which may leave less than nothing.
        let slack = if slack as i64 >= 0 { slack } else { 0 };
        (edition & 1 == 0 && self.edition.load(Acquire) == edition).then_some(slack)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs of pieces that are mapped and idle.

use std::collections::BTreeMap;
use std::ops::Range;

/// Numbers of pieces, as runs without gaps. No run is empty, and no two touch.
#[derive(Clone, Default)]
pub(super) struct IdlePieces {
    /// Start and end of each run.
    runs: BTreeMap<u64, u64>,
    count: u64,
}

impl IdlePieces {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of host memory. A tree keeps its entries in nodes that are at least half full.
    pub(super) fn memory_bytes(&self) -> usize {
        2 * size_of::<(u64, u64)>() * self.runs.len()
    }

    /// Whether each piece of the run is in the set.
    pub(super) fn contains(&self, run: &Range<u64>) -> bool {
        run.is_empty() || self.runs.range(..=run.start).next_back().is_some_and(|(_, &end)| end >= run.end)
    }

    /// Adds a run, none of whose pieces is in the set.
    pub(super) fn insert(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        self.count += run.end - run.start;
        let mut start = run.start;
        let mut end = run.end;
        if let Some((&before, &until)) = self.runs.range(..start).next_back()
            && until == start
        {
            start = before;
        }
        if let Some(until) = self.runs.remove(&end) {
            end = until;
        }
        self.runs.insert(start, end);
    }

    /// Removes what the run has of the set, and returns how many pieces that were.
    pub(super) fn remove(&mut self, run: Range<u64>) -> u64 {
        let mut removed = 0;
        while let Some((&start, &end)) = self.runs.range(..run.end).next_back()
            && end > run.start
            && !run.is_empty()
        {
            self.runs.remove(&start);
            if end > run.end {
                self.runs.insert(run.end, end);
            }
            removed += end.min(run.end) - start.max(run.start);
            if start < run.start {
                self.runs.insert(start, run.start);
            }
        }
        self.count -= removed;
        removed
    }

    /// Removes up to `at_most` of the highest pieces, all of one run, and returns them; none where nothing is to remove.
    pub(super) fn remove_highest(&mut self, at_most: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.runs.last_key_value()?;
        let from = start.max(end.saturating_sub(at_most));
        (self.remove(from..end) > 0).then_some(from..end)
    }
}

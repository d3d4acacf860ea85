// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pieces that are mapped and idle, as runs.

use std::collections::BTreeMap;
use std::ops::Range;

/// Numbers of pieces, as runs. No run is empty, and no two touch each other.
#[derive(Clone, Default)]
pub(super) struct IdlePieces {
    /// End of each run, by its start.
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

    /// Adds a run, no piece of which is in the set.
    pub(super) fn insert(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        self.count += run.end - run.start;
        let before = self.runs.range(..run.start).next_back().filter(|&(_, &end)| end == run.start);
        let start = before.map_or(run.start, |(&start, _)| start);
        let end = self.runs.remove(&run.end).unwrap_or(run.end);
        self.runs.insert(start, end);
    }

    /// Removes what the set has of the run, and returns how many pieces that were.
    pub(super) fn remove(&mut self, run: Range<u64>) -> u64 {
        let mut removed = 0;
        if run.is_empty() {
            return removed;
        }
        while let Some((&start, &end)) = self.runs.range(..run.end).next_back()
            && end > run.start
        {
            self.runs.remove(&start);
            if end > run.end {
                self.runs.insert(run.end, end);
            }
            if start < run.start {
                self.runs.insert(start, run.start);
            }
            removed += end.min(run.end) - start.max(run.start);
        }
        self.count -= removed;
        removed
    }

    /// Removes and returns the highest pieces: up to so many, all of one run. None where there are none, or none are asked for.
    pub(super) fn remove_highest(&mut self, at_most: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.runs.last_key_value()?;
        let highest = start.max(end.saturating_sub(at_most))..end;
        (self.remove(highest.clone()) > 0).then_some(highest)
    }
}

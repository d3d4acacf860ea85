// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was freed on one stream and has not become part of the pool's holes yet.

use std::collections::BTreeMap;

use super::holes::{Hole, Holes};

/// Pending frees of one stream. Neighbours are merged, and count as freed when the later of them was.
#[derive(Clone, Default)]
pub(super) struct Pending {
    holes: Holes,
    /// Start of each hole, by the time of its latest free.
    by_time: BTreeMap<u64, u64>,
    next_age: u64,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.holes.memory_bytes() + 2 * size_of::<(u64, u64)>() * self.by_time.len()
    }

    /// Time of the oldest free in it.
    pub(super) fn oldest(&self) -> Option<u64> {
        Some(*self.by_time.first_key_value()?.0)
    }

    /// Adds what was freed at `time`, which is later than all times before.
    pub(super) fn add(&mut self, start: u64, bytes: u64, time: u64) {
        let left = self.holes.remove_ending_at(start);
        let right = self.holes.remove(start + bytes);
        for hole in [left, right].into_iter().flatten() {
            self.by_time.remove(&hole.time);
        }
        let end = right.map_or(start + bytes, Hole::end);
        let start = left.map_or(start, |hole| hole.start);
        self.insert(start, end - start, time);
    }

    /// The best fit among what was freed up to `time`.
    pub(super) fn best(&self, bytes: u64, time: u64) -> Option<Hole> {
        self.holes.mapped_fits(bytes).find(|hole| hole.time <= time)
    }

    /// Places so many bytes at the start of a hole. The rest was freed when the hole was.
    pub(super) fn reuse(&mut self, hole: Hole, bytes: u64) {
        self.holes.remove(hole.start);
        if hole.bytes > bytes {
            self.insert(hole.start + bytes, hole.bytes - bytes, hole.time);
        } else {
            self.by_time.remove(&hole.time);
        }
    }

    /// Removes and returns the latest of what was freed up to `time`.
    pub(super) fn pop_latest(&mut self, time: u64) -> Option<Hole> {
        let (&time, &start) = self.by_time.range(..=time).next_back()?;
        self.by_time.remove(&time);
        self.holes.remove(start)
    }

    fn insert(&mut self, start: u64, bytes: u64, time: u64) {
        self.next_age += 1;
        // What is pending is not idle, so each piece that it touches stays mapped.
        self.holes.insert(Hole { start, bytes, age: self.next_age, mapped: true, time });
        self.by_time.insert(time, start);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holes of a pool's range: found by start, and by best fit.

use std::collections::{BTreeMap, BTreeSet};

/// A stretch in which nothing is live.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// Counts from the moment the hole got its present extent.
    pub(super) age: u64,
    /// Whether each piece that the hole touches is mapped.
    pub(super) mapped: bool,
    /// Of a pending hole, when the latest free in it was.
    pub(super) time: u64,
}

impl Hole {
    pub(super) fn end(self) -> u64 {
        self.start + self.bytes
    }

    fn fit(self) -> Fit {
        (self.bytes, self.age, self.start)
    }
}

/// Bytes, age and start of a hole: in this order the best fit comes first, and the oldest of equal ones.
type Fit = (u64, u64, u64);

/// A set of holes, no two of which overlap. Every operation costs O(log n).
#[derive(Clone, Default)]
pub(super) struct Holes {
    by_start: BTreeMap<u64, Hole>,
    mapped: BTreeSet<Fit>,
    unmapped: BTreeSet<Fit>,
}

impl Holes {
    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Bytes of host memory. A tree keeps its entries in nodes that are at least half full.
    pub(super) fn memory_bytes(&self) -> usize {
        2 * (size_of::<(u64, Hole)>() + size_of::<Fit>()) * self.by_start.len()
    }

    pub(super) fn insert(&mut self, hole: Hole) {
        self.by_start.insert(hole.start, hole);
        self.fits_mut(hole.mapped).insert(hole.fit());
    }

    /// Removes the hole that starts there, where there is one.
    pub(super) fn remove(&mut self, start: u64) -> Option<Hole> {
        let hole = self.by_start.remove(&start)?;
        self.fits_mut(hole.mapped).remove(&hole.fit());
        Some(hole)
    }

    /// Removes the hole that ends there, where there is one.
    pub(super) fn remove_ending_at(&mut self, end: u64) -> Option<Hole> {
        let (&start, hole) = self.by_start.range(..end).next_back()?;
        if hole.end() == end { self.remove(start) } else { None }
    }

    /// Marks the hole around `offset`, where there is one, as a hole with an unmapped piece.
    pub(super) fn mark_unmapped(&mut self, offset: u64) {
        let Some((_, hole)) = self.by_start.range_mut(..=offset).next_back() else { return };
        if hole.mapped && offset < hole.end() {
            hole.mapped = false;
            let fit = hole.fit();
            self.mapped.remove(&fit);
            self.unmapped.insert(fit);
        }
    }

    /// The mapped holes of at least so many bytes, the best fit first.
    pub(super) fn mapped_fits(&self, bytes: u64) -> impl Iterator<Item = Hole> {
        let fits = self.mapped.range((bytes, 0, 0)..);
        fits.filter_map(|&(_, _, start)| self.by_start.get(&start).copied())
    }

    /// The best fit among all holes.
    pub(super) fn best(&self, bytes: u64) -> Option<Hole> {
        let first = |fits: &BTreeSet<Fit>| fits.range((bytes, 0, 0)..).next().copied();
        let fits = [first(&self.mapped), first(&self.unmapped)];
        let (_, _, start) = fits.into_iter().flatten().min()?;
        self.by_start.get(&start).copied()
    }

    fn fits_mut(&mut self, mapped: bool) -> &mut BTreeSet<Fit> {
        if mapped { &mut self.mapped } else { &mut self.unmapped }
    }
}

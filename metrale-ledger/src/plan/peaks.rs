// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peaks of live and of resident bytes, and who holds them.
//!
//! A peak is the *fullest* moment: of the moments with the most resident bytes, the one with the most live bytes; of these,
//! the one with the most allocations; of these, the first. So an allocation that later fills the same pages belongs to the resident peak.
//! For the peak of live bytes, live bytes come first and resident bytes second.

use rustc_hash::FxHashMap;

use crate::peak::{Held, Highest};

/// The peak of live bytes: the index of its figures.
pub(super) const LIVE: usize = 0;
/// The peak of resident bytes.
pub(super) const RESIDENT: usize = 1;

/// Bytes and number of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlannedSum {
    pub(super) count: u64,
    /// As asked for.
    pub(super) bytes: u64,
    /// Rounded up as the allocator keeps them.
    pub(super) reserved: u64,
}

/// An allocation, as far as peaks need it.
#[derive(Clone, Copy)]
pub(super) struct PlannedAllocation {
    /// Index of its label in [`Peaks::labels`].
    pub(super) label: u32,
    pub(super) bytes: u64,
    pub(super) reserved: u64,
    /// Whether what it takes depends on the order of allocation.
    pub(super) is_packed: bool,
}

/// The figures after one operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    pub(super) live_bytes: u64,
    pub(super) resident_bytes: u64,
    pub(super) live_count: u64,
    /// The operation's number; none before the first allocation.
    pub(super) operation: Option<u64>,
    /// Allocations that were freed before it.
    pub(super) gone: u64,
    /// What one arena would hold then.
    pub(super) arena_bytes: u64,
    /// What the allocations that are not packed take in any order of allocation.
    pub(super) any_order_bytes: u64,
    /// What was noted of the allocation that this operation made.
    #[cfg_attr(not(feature = "trace"), allow(dead_code, reason = "only followers of logs ask for it"))]
    pub(super) note: u64,
}

/// Class n has the sizes from 2^n to 2^(n + 1) - 1. Class 0 has size 0 too.
pub(super) fn class_of(bytes: u64) -> usize {
    bytes.checked_ilog2().unwrap_or(0) as usize
}

/// The least number of sizes at which those that no peak needs are dropped.
const SIZES: usize = 1 << 12;

/// Both peaks. Holders are changed first ([`add`](Self::add), [`remove`](Self::remove)), then [`raise`](Self::raise) follows.
#[derive(Clone)]
pub(super) struct Peaks {
    peaks: [Highest<(u64, u64, u64)>; 2],
    moments: [Moment; 2],
    classes: [Held<PlannedSum, 2>; 64],
    /// By the index of a label.
    pub(super) labels: Vec<Held<PlannedSum, 2>>,
    /// How many packed allocations there are of each reserved size.
    sizes: FxHashMap<u64, Held<u64>>,
    /// Number of sizes at which unneeded ones are dropped.
    size_limit: usize,
}

impl Peaks {
    pub(super) fn new() -> Self {
        Self {
            peaks: Default::default(),
            moments: Default::default(),
            classes: [Held::default(); 64],
            labels: Vec::new(),
            sizes: FxHashMap::default(),
            size_limit: SIZES,
        }
    }

    fn numbers(&self) -> [u64; 2] {
        [self.peaks[LIVE].number(), self.peaks[RESIDENT].number()]
    }

    pub(super) fn add(&mut self, new: PlannedAllocation) {
        self.change(new, |sum| {
            sum.count += 1;
            sum.bytes += new.bytes;
            sum.reserved += new.reserved;
        });
        if new.is_packed {
            self.drop_sizes();
            *self.sizes.entry(new.reserved).or_default().change([self.peaks[RESIDENT].number()]) += 1;
        }
    }

    pub(super) fn remove(&mut self, old: PlannedAllocation) {
        self.change(old, |sum| {
            sum.count -= 1;
            sum.bytes -= old.bytes;
            sum.reserved -= old.reserved;
        });
        if old.is_packed {
            *self.sizes.entry(old.reserved).or_default().change([self.peaks[RESIDENT].number()]) -= 1;
        }
    }

    fn change(&mut self, of: PlannedAllocation, mut change: impl FnMut(&mut PlannedSum)) {
        let numbers = self.numbers();
        for held in [&mut self.classes[class_of(of.bytes)], &mut self.labels[of.label as usize]] {
            change(held.change(numbers));
        }
    }

    /// Takes note of the moment after an allocation. Only an allocation makes a peak.
    pub(super) fn raise(&mut self, now: Moment) {
        let Moment { live_bytes, resident_bytes, live_count, .. } = now;
        for (which, height) in [
            (LIVE, (live_bytes, resident_bytes, live_count)),
            (RESIDENT, (resident_bytes, live_bytes, live_count)),
        ] {
            if self.peaks[which].raise(height) {
                self.moments[which] = now;
            }
        }
    }

    /// Drops the sizes that are not needed: those that are neither live nor part of the peak.
    fn drop_sizes(&mut self) {
        if self.sizes.len() < self.size_limit {
            return;
        }
        let number = self.peaks[RESIDENT].number();
        self.sizes.retain(|_, count| count.now() > 0 || count.at_peak(0, number) > 0);
        self.size_limit = (self.sizes.len() * 2).max(SIZES);
    }

    /// How high a peak is: its live or its resident bytes.
    pub(super) fn bytes(&self, which: usize) -> u64 {
        self.peaks[which].height().0
    }

    /// The moment of a peak.
    pub(super) fn moment(&self, which: usize) -> &Moment {
        &self.moments[which]
    }

    /// What each label holds at a peak, by its index.
    pub(super) fn by_label(&self, which: usize) -> impl Iterator<Item = PlannedSum> + '_ {
        self.labels.iter().map(move |held| held.at_peak(which, self.peaks[which].number()))
    }

    /// What each class of sizes holds at a peak.
    pub(super) fn by_class(&self, which: usize) -> impl Iterator<Item = PlannedSum> + '_ {
        self.classes.iter().map(move |held| held.at_peak(which, self.peaks[which].number()))
    }

    /// How many packed allocations of each reserved size are live at the resident peak.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let number = self.peaks[RESIDENT].number();
        self.sizes
            .iter()
            .map(move |(&reserved, count)| (reserved, count.at_peak(0, number)))
            .filter(|n| n.1 > 0)
    }

    /// Bytes of host memory that the tables have allocated.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Held<PlannedSum, 2>>() * self.labels.capacity()
            + super::map_bytes(self.sizes.capacity(), size_of::<(u64, Held<u64>)>())
    }
}

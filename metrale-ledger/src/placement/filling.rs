// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packing rule where nothing is freed, and only the sum is asked for.
//!
//! Every chunk then has one hole at most, at its end, and neither its age nor its chunk matters. Many allocations of one size
//! are placed together: the smallest hole that takes one stays the smallest that does until it takes no more.

use std::collections::BTreeMap;

use super::{PackingRule, PlacementError};

/// A device on which allocations are placed and none is freed.
pub(crate) struct Filling {
    rule: PackingRule,
    /// How many holes there are of each size.
    holes: BTreeMap<u64, u64>,
    resident_bytes: u64,
}

impl Filling {
    /// Nothing in it yet.
    pub(crate) fn new(rule: PackingRule) -> Self {
        Self { rule, holes: BTreeMap::new(), resident_bytes: 0 }
    }

    /// Bytes of all pages taken so far.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Places `count` allocations, one after the other, of a size [as the rule keeps it](PackingRule::reserved_bytes). Costs
    /// O(log n) for each size of hole that they use up.
    ///
    /// # Errors
    /// [`PlacementError::TooLarge`] where all pages pass what 64 bits can count.
    pub(crate) fn add(&mut self, reserved: u64, count: u64) -> Result<(), PlacementError> {
        let chunk = self.rule.chunk_bytes;
        if reserved >= chunk {
            return self.take(reserved, count, reserved);
        }
        let mut left = count;
        while left > 0
            && let Some((&size, &holes)) = self.holes.range(reserved..).next()
        {
            self.holes.remove(&size);
            left = self.fill(size, holes, reserved, left);
        }
        let chunks = left.div_ceil(chunk / reserved);
        self.take(chunk, chunks, reserved)?;
        self.fill(chunk, chunks, reserved, left);
        Ok(())
    }

    /// Fills holes of one size that were taken off the list; returns how many of the allocations find no place in them.
    fn fill(&mut self, size: u64, holes: u64, reserved: u64, count: u64) -> u64 {
        let each = size / reserved;
        let full = holes.min(count / each);
        let left = count - full * each;
        self.list(size % reserved, full);
        if full == holes {
            return left;
        }
        self.list(size - left * reserved, 1);
        self.list(size, holes - full - 1);
        0
    }

    fn list(&mut self, size: u64, holes: u64) {
        if size > 0 && holes > 0 {
            *self.holes.entry(size).or_insert(0) += holes;
        }
    }

    /// Takes runs of so many bytes from the device, for allocations of that size.
    fn take(&mut self, run: u64, runs: u64, reserved: u64) -> Result<(), PlacementError> {
        let all = run.checked_mul(runs).and_then(|more| self.resident_bytes.checked_add(more));
        self.resident_bytes = all.ok_or(PlacementError::TooLarge { bytes: reserved })?;
        Ok(())
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address spaces: where runs of pages lie. Freed runs are used again at once, the smallest that fits first, so that a
//! stale address soon belongs to another allocation, as on hardware.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Free and allocated ranges of addresses.
pub(crate) struct AddressSpace {
    /// What was never allocated, or is free again to the end.
    fresh: Range<u64>,
    /// Free ranges before that, by start.
    by_start: BTreeMap<u64, u64>,
    /// The same by size, then start.
    by_size: BTreeSet<(u64, u64)>,
}

impl AddressSpace {
    pub(crate) fn new(window: Range<u64>) -> Self {
        Self { fresh: window, by_start: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    /// The start of `bytes`, a multiple of the page; `None` when no range is left that is long enough.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Option<u64> {
        if let Some(&(size, start)) = self.by_size.range((bytes, 0)..).next() {
            self.remove(start, size);
            if size > bytes {
                self.insert(start + bytes, size - bytes);
            }
            return Some(start);
        }
        let start = self.fresh.start;
        self.fresh.start = start.checked_add(bytes).filter(|&end| end <= self.fresh.end)?;
        Some(start)
    }

    /// The start of `bytes` at a multiple of `alignment`; both are multiples of the page.
    pub(crate) fn alloc_aligned(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let whole = bytes.checked_add(alignment)?;
        let start = self.alloc(whole)?;
        let aligned = start.next_multiple_of(alignment);
        for (from, to) in [(start, aligned), (aligned + bytes, start + whole)] {
            if from < to {
                self.free(from, to - from);
            }
        }
        Some(aligned)
    }

    /// Allocates `bytes` right behind an allocated range, if they are free.
    pub(crate) fn alloc_behind(&mut self, start: u64, bytes: u64) -> bool {
        if start == self.fresh.start {
            let end = start.checked_add(bytes).filter(|&end| end <= self.fresh.end);
            self.fresh.start = end.unwrap_or(start);
            return end.is_some();
        }
        let Some(&size) = self.by_start.get(&start).filter(|&&size| size >= bytes) else { return false };
        self.remove(start, size);
        if size > bytes {
            self.insert(start + bytes, size - bytes);
        }
        true
    }

    /// Frees a range and joins it with its neighbours.
    pub(crate) fn free(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((&before, &size)) = self.by_start.range(..start).next_back()
            && before + size == start
        {
            self.remove(before, size);
            start = before;
            bytes += size;
        }
        if let Some(&size) = self.by_start.get(&(start + bytes)) {
            self.remove(start + bytes, size);
            bytes += size;
        }
        if start + bytes == self.fresh.start {
            self.fresh.start = start;
        } else {
            self.insert(start, bytes);
        }
    }

    fn insert(&mut self, start: u64, bytes: u64) {
        self.by_start.insert(start, bytes);
        self.by_size.insert((bytes, start));
    }

    fn remove(&mut self, start: u64, bytes: u64) {
        self.by_start.remove(&start);
        self.by_size.remove(&(bytes, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Range<u64> = 0x4000_0000..0x8000_0000;

    #[test]
    fn ranges_come_back_joined() {
        let mut space = AddressSpace::new(WINDOW);
        let ranges: Vec<_> = (0..4).map(|_| space.alloc(0x20_0000).unwrap()).collect();
        space.free(ranges[0], 0x20_0000);
        space.free(ranges[2], 0x20_0000);
        space.free(ranges[1], 0x20_0000);
        assert_eq!(space.alloc(0x60_0000), Some(ranges[0]));
        space.free(ranges[0], 0x60_0000);
        space.free(ranges[3], 0x20_0000);
        assert_eq!((space.fresh, space.by_start.len()), (WINDOW, 0));
    }

    #[test]
    fn an_aligned_range_leaves_its_edges_free() {
        let mut space = AddressSpace::new(WINDOW);
        let first = space.alloc(0x20_0000).unwrap();
        let aligned = space.alloc_aligned(0x40_0000, 0x200_0000).unwrap();
        assert_eq!(aligned, 0x4200_0000);
        assert_eq!(space.alloc(0x1e0_0000), Some(first + 0x20_0000));
        space.free(first, 0x200_0000);
        space.free(aligned, 0x40_0000);
        assert_eq!((space.fresh, space.by_start.len()), (WINDOW, 0));
    }

    #[test]
    fn what_is_behind_a_range_is_allocated_where_it_is_free() {
        let mut space = AddressSpace::new(WINDOW);
        let ranges: Vec<_> = (0..3).map(|_| space.alloc(0x40_0000).unwrap()).collect();
        assert!(!space.alloc_behind(ranges[1], 0x20_0000));
        space.free(ranges[1], 0x40_0000);
        assert!(!space.alloc_behind(ranges[1], 0x60_0000));
        assert!(space.alloc_behind(ranges[1], 0x20_0000));
        assert_eq!(space.alloc(0x20_0000), Some(ranges[1] + 0x20_0000));
        let end = ranges[2] + 0x40_0000;
        assert!(!space.alloc_behind(end, WINDOW.end - end + 1) && !space.alloc_behind(end, u64::MAX));
        assert!(space.alloc_behind(end, WINDOW.end - end));
        assert_eq!(space.alloc(1), None);
    }

    #[test]
    fn a_full_window_is_told() {
        let mut space = AddressSpace::new(WINDOW);
        assert_eq!(space.alloc(WINDOW.end - WINDOW.start + 1), None);
        assert_eq!(space.alloc(u64::MAX), None);
        assert!(space.alloc(WINDOW.end - WINDOW.start).is_some());
        assert_eq!(space.alloc(1), None);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's address space: where runs of pages lie. Freed runs are used again at once, the smallest that fits
//! first, so that a stale address soon belongs to somebody else, as on hardware.

use std::collections::{BTreeMap, BTreeSet};

use super::handle::DEVICE_WINDOW;

/// Free and taken ranges of device addresses.
pub(crate) struct AddressSpace {
    /// Start of what was never taken.
    fresh: u64,
    /// Given back, by start.
    by_start: BTreeMap<u64, u64>,
    /// The same by size, then start.
    by_size: BTreeSet<(u64, u64)>,
}

impl AddressSpace {
    pub(crate) fn new() -> Self {
        Self { fresh: DEVICE_WINDOW.start, by_start: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    /// Takes `bytes`, a multiple of the page; `None` when the window is used up.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        if let Some(&(size, start)) = self.by_size.range((bytes, 0)..).next() {
            self.remove(start, size);
            if size > bytes {
                self.insert(start + bytes, size - bytes);
            }
            return Some(start);
        }
        let end = self.fresh.checked_add(bytes).filter(|&end| end <= DEVICE_WINDOW.end)?;
        let start = self.fresh;
        self.fresh = end;
        Some(start)
    }

    /// Gives a range back and joins it with its neighbours.
    pub(crate) fn give(&mut self, mut start: u64, mut bytes: u64) {
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
        if start + bytes == self.fresh {
            self.fresh = start;
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

    #[test]
    fn ranges_come_back_joined() {
        let mut space = AddressSpace::new();
        let ranges: Vec<_> = (0..4).map(|_| space.take(0x20_0000).unwrap()).collect();
        space.give(ranges[0], 0x20_0000);
        space.give(ranges[2], 0x20_0000);
        space.give(ranges[1], 0x20_0000);
        assert_eq!(space.take(0x60_0000), Some(ranges[0]));
        space.give(ranges[0], 0x60_0000);
        space.give(ranges[3], 0x20_0000);
        assert_eq!((space.fresh, space.by_start.len()), (DEVICE_WINDOW.start, 0));
    }

    #[test]
    fn a_full_window_is_told() {
        let mut space = AddressSpace::new();
        assert_eq!(space.take(DEVICE_WINDOW.end - DEVICE_WINDOW.start + 1), None);
        assert_eq!(space.take(u64::MAX), None);
        assert!(space.take(DEVICE_WINDOW.end - DEVICE_WINDOW.start).is_some());
        assert_eq!(space.take(1), None);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ArenaSpace`]: where in an arena a part fits. Numbers alone; touches no memory.

use std::collections::BTreeMap;

use metrale_ledger::placement::PackingRule;

/// What every part is rounded up to, and the least it is aligned to: the driver's own granularity, so that parts lie as
/// allocations of their own would.
pub const ARENA_GRANULE: u64 = PackingRule::H200.granularity_bytes();

/// The free and the allocated stretches of an arena. A part goes to the lowest address that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArenaSpace {
    /// The arena's first byte, for alignments above the granule.
    base: u64,
    /// Length of each free stretch by its offset; neighbours are one.
    holes: BTreeMap<u64, u64>,
    /// Rounded length of each part by its offset.
    taken: BTreeMap<u64, u64>,
}

impl ArenaSpace {
    /// An arena of `bytes` bytes at `base`; what does not fill a granule at its end is not used.
    pub(crate) fn new(base: u64, bytes: u64) -> Self {
        let whole = bytes - bytes % ARENA_GRANULE;
        let holes = if whole > 0 { BTreeMap::from([(0, whole)]) } else { BTreeMap::new() };
        Self { base, holes, taken: BTreeMap::new() }
    }

    /// Allocates `bytes` (above 0) aligned to `align`, a power of two: the offset, or `None` where no hole is large enough.
    pub(crate) fn alloc(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let length = bytes.checked_next_multiple_of(ARENA_GRANULE)?;
        let align = align.max(ARENA_GRANULE);
        let fits = |(&at, &hole): (&u64, &u64)| {
            let offset = (self.base + at).checked_next_multiple_of(align)? - self.base;
            let end = offset.checked_add(length)?;
            (end <= at + hole).then_some((at, hole, offset, end))
        };
        let (at, hole, offset, end) = self.holes.iter().find_map(fits)?;
        self.holes.remove(&at);
        for (from, to) in [(at, offset), (end, at + hole)] {
            if to > from {
                self.holes.insert(from, to - from);
            }
        }
        self.taken.insert(offset, length);
        Some(offset)
    }

    /// Frees the part at `offset`; false where none begins there.
    pub(crate) fn free(&mut self, offset: u64) -> bool {
        let Some(mut length) = self.taken.remove(&offset) else { return false };
        let mut start = offset;
        if let Some(after) = self.holes.remove(&(start + length)) {
            length += after;
        }
        if let Some((&before, &hole)) = self.holes.range(..start).next_back()
            && before + hole == start
        {
            (start, length) = (before, length + hole);
        }
        self.holes.insert(start, length);
        true
    }

    /// Parts there are.
    pub(crate) fn parts(&self) -> usize {
        self.taken.len()
    }

    /// Bytes free in all.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.holes.values().sum()
    }

    /// Bytes of the largest free stretch.
    pub(crate) fn largest_hole_bytes(&self) -> u64 {
        self.holes.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_lie_one_behind_the_other_and_holes_are_filled_from_the_front() {
        let mut space = ArenaSpace::new(1 << 21, 10_000);
        assert_eq!(space.free_bytes(), 9728, "19 granules");
        assert_eq!(space.alloc(1, 1), Some(0));
        assert_eq!(space.alloc(513, 16), Some(512));
        assert_eq!(space.alloc(512, 4096), Some(4096));
        assert_eq!(space.alloc(512, 1), Some(1536), "in front of the aligned one");
        assert!(space.free(512));
        assert!(!space.free(512) && !space.free(1) && !space.free(513));
        assert_eq!(space.alloc(2000, 1), Some(2048), "the hole of 1024 is too small");
        assert_eq!(space.alloc(1024, 1), Some(512));
        assert_eq!(
            (space.free_bytes(), space.largest_hole_bytes()),
            (9728 - 512 - 1024 - 512 - 512 - 2048, 5120)
        );
        assert_eq!(space.alloc(5121, 1), None);
        assert_eq!((space.alloc(u64::MAX, 1), space.alloc(1, 1 << 63)), (None, None));
    }

    #[test]
    fn an_arena_below_a_granule_holds_nothing() {
        assert_eq!(ArenaSpace::new(0, 511).alloc(1, 1), None);
    }

    proptest! {
        /// Held to a map of granules.
        #[test]
        fn parts_share_nothing_and_all_freed_is_one_hole(
            base in (0_u64..64).prop_map(|n| n * 512),
            steps in prop::collection::vec((any::<bool>(), 1_u64..5000, 0_u32..13, any::<prop::sample::Index>()), 1..200),
        ) {
            const GRANULES: usize = 64;
            let mut space = ArenaSpace::new(base, 64 * 512);
            let mut owner = [None; GRANULES];
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (number, (takes, bytes, align, which)) in steps.into_iter().enumerate() {
                if takes || live.is_empty() {
                    let align = 1_u64 << align;
                    let granules = bytes.div_ceil(512) as usize;
                    // The lowest place by a look at every one.
                    let naive = (0..=GRANULES.saturating_sub(granules)).find(|&at| {
                        (base + at as u64 * 512).is_multiple_of(align) && owner[at..at + granules].iter().all(Option::is_none)
                    });
                    let naive = naive.filter(|_| granules <= GRANULES);
                    let got = space.alloc(bytes, align);
                    prop_assert_eq!(got, naive.map(|at| at as u64 * 512));
                    if let Some(at) = naive {
                        owner[at..at + granules].fill(Some(number));
                        live.push((at as u64 * 512, granules as u64));
                    }
                } else {
                    let (offset, granules) = live.swap_remove(which.index(live.len()));
                    prop_assert!(space.free(offset));
                    let at = (offset / 512) as usize;
                    owner[at..at + granules as usize].fill(None);
                }
                let free = owner.iter().filter(|owner| owner.is_none()).count() as u64 * 512;
                prop_assert_eq!((space.free_bytes(), space.parts()), (free, live.len()));
            }
            for (offset, _) in live {
                prop_assert!(space.free(offset));
            }
            prop_assert_eq!(space, ArenaSpace::new(base, 64 * 512));
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FollowedRanges`]: the device addresses that calls on any thread follow right now, so that no pinned memory is given out
//! where one of them writes.
//!
//! ```text
//!   copy or fill:   enter the range -> check that it is no host memory -> the driver is asked -> leave the range
//!   alloc_pinned:   begin pinning -> the driver allocates -> any range there, now or left since the beginning? -> given out
//!                                                             `- yes: kept aside, another is asked for
//! ```
//! A call that entered before the driver allocated is seen, also where it has left meanwhile; one that enters later finds host
//! memory by its own check. Neither waits for the other: both may be inside the driver for as long as another device needs.
//! A range that is live device memory when it is left needs no note: it was no pinned memory so far, for the driver has given
//! it once.
//!
//! An entry and its end each take the lock of one of 16 shards, which calls on other addresses mostly do not take: some 30 ns a
//! call together.

use metrale_ledger::AllocKind;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::ledger_writer::LedgerWriter;

const SHARDS: usize = 16;

/// First address, and the first behind it.
type Range = (u64, u64);

/// The ranges whose addresses fall to this shard.
#[derive(Debug, Default)]
struct Ranges {
    now: Vec<Range>,
    /// Left while something was being pinned and they were no live device memory, with the number of the last pinning that had begun by then.
    left: FxHashMap<Range, u64>,
    /// The numbers of the allocations of pinned memory under way, in their order.
    pinnings: Vec<u64>,
    /// The last number given.
    last: u64,
}

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Mutex<Ranges>);

/// What calls on any thread follow.
#[derive(Debug, Default)]
pub(crate) struct FollowedRanges {
    shards: [Shard; SHARDS],
}

impl FollowedRanges {
    /// Enters what a call is about to follow, before it checks what is there. To be held until the driver was asked.
    pub(crate) fn follow<'a>(&'a self, addr: u64, bytes: u64, ledger: &'a LedgerWriter) -> Followed<'a> {
        let (shard, range) = (&self.shards[shard_of(addr)], (addr, addr.saturating_add(bytes)));
        shard.0.lock().now.push(range);
        Followed { shard, range, ledger }
    }

    /// To be held from before the driver allocates pinned memory until that is known as such.
    pub(crate) fn begin_pinning(&self) -> Pinning<'_> {
        let begin = |shard: &Shard| {
            let mut ranges = shard.0.lock();
            ranges.last += 1;
            let number = ranges.last;
            ranges.pinnings.push(number);
            number
        };
        Pinning { followed: self, numbers: std::array::from_fn(|at| begin(&self.shards[at])) }
    }
}

/// Spreads neighbours: allocations are multiples of 512 bytes apart.
const fn shard_of(addr: u64) -> usize {
    ((addr >> 9).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SHARDS.trailing_zeros())) as usize
}

/// A range that a call follows, from before its check until the driver was asked.
#[must_use = "what was checked stays true only as long as this is held"]
pub(crate) struct Followed<'a> {
    shard: &'a Shard,
    range: Range,
    ledger: &'a LedgerWriter,
}

impl Followed<'_> {
    fn is_live_device_memory(&self) -> bool {
        let (from, to) = self.range;
        let live = self.ledger.live_span(from);
        live.is_some_and(|(kind, left)| kind != AllocKind::Pinned && to - from <= left)
    }
}

impl Drop for Followed<'_> {
    fn drop(&mut self) {
        let mut ranges = self.shard.0.lock();
        // The last entry is mostly this one.
        if let Some(at) = ranges.now.iter().rposition(|range| *range == self.range) {
            ranges.now.swap_remove(at);
        }
        if !ranges.pinnings.is_empty() && !self.is_live_device_memory() {
            let last = ranges.last;
            ranges.left.insert(self.range, last);
        }
    }
}

/// An allocation of pinned memory under way.
pub(crate) struct Pinning<'ranges> {
    followed: &'ranges FollowedRanges,
    /// Its number in each shard.
    numbers: [u64; SHARDS],
}

impl Pinning<'_> {
    /// Whether a call followed an address of this memory when it was allocated, or may have.
    pub(crate) fn meets(&self, addr: u64, bytes: usize) -> bool {
        let end = addr.saturating_add(bytes as u64);
        self.followed.shards.iter().zip(self.numbers).any(|(shard, number)| {
            let ranges = shard.0.lock();
            let left = ranges.left.iter().filter(|&(_, &last)| last >= number).map(|(range, _)| range);
            ranges.now.iter().chain(left).any(|&(from, to)| from < end && addr < to)
        })
    }
}

impl Drop for Pinning<'_> {
    fn drop(&mut self) {
        for (shard, number) in self.followed.shards.iter().zip(self.numbers) {
            let mut ranges = shard.0.lock();
            ranges.pinnings.retain(|&other| other != number);
            match ranges.pinnings.first().copied() {
                Some(oldest) => ranges.left.retain(|_, last| *last >= oldest),
                None => ranges.left = FxHashMap::default(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::KEEPS_LEDGER;

    fn ledger() -> LedgerWriter {
        LedgerWriter::new(0)
    }

    #[test]
    fn what_is_live_device_memory_when_it_is_left_was_not_pinned() {
        if !KEEPS_LEDGER {
            return;
        }
        let (followed, ledger) = (FollowedRanges::default(), ledger());
        let pinning = followed.begin_pinning();
        let here = std::panic::Location::caller();
        for (kind, meets) in
            [(AllocKind::Device, false), (AllocKind::Managed, false), (AllocKind::Pinned, true)]
        {
            ledger.record(0x1000, 0x10, kind, here).unwrap();
            let call = followed.follow(0x1000, 0x10, &ledger);
            assert!(pinning.meets(0x1000, 1), "it is followed now");
            drop(call);
            assert_eq!(pinning.meets(0x1000, 1), meets, "{kind:?}");
            ledger.ledger().drain();
        }
        let pinning = followed.begin_pinning();
        ledger.record(0x2000, 0x10, AllocKind::Device, here).unwrap();
        drop(followed.follow(0x2000, 0x11, &ledger));
        assert!(pinning.meets(0x2010, 1), "it passes the end of the allocation");
        let freed = followed.follow(0x2000, 8, &ledger);
        ledger.ledger().forget(0x2000).unwrap();
        drop(freed);
        assert!(pinning.meets(0x2000, 1), "it was freed before it was left");
    }

    #[test]
    fn a_range_is_found_while_it_is_followed_and_until_the_pinning_ends() {
        let (followed, ledger) = (FollowedRanges::default(), ledger());
        let before = followed.follow(0x1000, 0x10, &ledger);
        drop(followed.follow(0x2000, 0x10, &ledger));
        let pinning = followed.begin_pinning();
        let meets = || [0x1000, 0x100F, 0x1010, 0x0FF8, 0x0FF7, 0x2000].map(|addr| pinning.meets(addr, 9));
        assert_eq!(meets(), [true, true, false, true, false, false]);
        drop(before);
        assert_eq!(
            meets(),
            [true, true, false, true, false, false],
            "it left after the allocation may have been"
        );
        let second = followed.begin_pinning();
        drop(pinning);
        assert!(!second.meets(0x1000, 1), "it left before this one began");
        drop(second);
        assert!(!followed.begin_pinning().meets(0x1000, 1));
    }

    /// Threads pin all the time, so that one pinning is always under way.
    #[test]
    fn pinnings_that_follow_one_another_keep_no_range_of_before() {
        let (followed, ledger) = (FollowedRanges::default(), ledger());
        let mut under_way = followed.begin_pinning();
        for addr in (0x1000..0x10_0000).step_by(0x1000) {
            drop(followed.follow(addr, 0x10, &ledger));
            assert!(under_way.meets(addr, 1), "left since it began");
            let next = followed.begin_pinning();
            assert!(!next.meets(addr, 1), "left before it began");
            under_way = next;
        }
        let kept: usize = followed.shards.iter().map(|shard| shard.0.lock().left.len()).sum();
        assert_eq!(kept, 0);
        drop(under_way);
    }

    #[test]
    fn a_range_to_the_end_of_all_addresses_does_not_wrap() {
        let (followed, ledger) = (FollowedRanges::default(), ledger());
        let _all = followed.follow(8, u64::MAX, &ledger);
        assert!(followed.begin_pinning().meets(u64::MAX - 1, usize::MAX));
        assert!(!followed.begin_pinning().meets(0, 8));
    }
}

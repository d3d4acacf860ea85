// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes the driver keeps, as functions of addresses and sizes.

use std::collections::HashSet;

use crate::index::Extent;
use crate::mixer::Mixer;

/// Bytes that the chunks of small allocations hold beyond the allocations themselves.
///
/// Counts allocations smaller than `chunk` and larger than 0: the bytes of the distinct `chunk`-sized ranges they touch,
/// less their own bytes. Allocations of `chunk` bytes or more count nothing (their tails are part of
/// [`Ledger::slack_bytes`](crate::Ledger::slack_bytes)). Any input is answered: a range that would pass the end of the
/// address space ends there, a `chunk` of 0 gives 0, overlapping allocations never give less than 0.
///
/// ```
/// use metrale_ledger::{SMALL_ALLOC_CHUNK, chunk_slack};
/// let one_chunk = [(0x7f00_0000_0000, 512 << 10), (0x7f00_0008_0000, 256 << 10)];
/// assert_eq!(chunk_slack(one_chunk.into_iter(), SMALL_ALLOC_CHUNK), 1280 << 10);
/// ```
pub fn chunk_slack(allocs: impl Iterator<Item = (u64, usize)>, chunk: u64) -> usize {
    let mut touched: HashSet<u64, Mixer> = HashSet::default();
    let mut own_bytes = 0u128;
    for (addr, bytes) in allocs {
        // A chunk of 0 bytes has nothing smaller than itself, so the division below is safe.
        if bytes as u64 >= chunk {
            continue;
        }
        if let Some(extent) = Extent::new(addr, bytes) {
            own_bytes += bytes as u128;
            touched.insert(extent.first / chunk);
            touched.insert(extent.last / chunk);
        }
    }
    let kept = touched.len() as u128 * u128::from(chunk);
    usize::try_from(kept.saturating_sub(own_bytes)).unwrap_or(usize::MAX)
}

/// How many distinct pages the inclusive page ranges cover. Sorts them.
pub(crate) fn covered_pages(ranges: &mut [(u64, u64)]) -> u64 {
    ranges.sort_unstable();
    let mut pages = 0;
    // The first page not yet counted.
    let mut from = 0;
    for &(first, last) in ranges.iter() {
        let first = first.max(from);
        if first <= last {
            pages += last - first + 1;
            from = last + 1;
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SMALL_ALLOC_CHUNK as C;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    #[test]
    fn chunk_slack_gives_the_worked_values() {
        let slack = |allocs: &[(u64, usize)]| chunk_slack(allocs.iter().copied(), C);
        assert_eq!(slack(&[(7 * C, 512 * KIB), (7 * C + (1 << 20), 256 * KIB)]), 1280 * KIB);
        assert_eq!(
            slack(&[(3 * C, MIB), (5 * C + 4096, 4 * KIB), (8 * C - C / 4, MIB)]),
            8 * MIB - (2 * MIB + 4 * KIB)
        );
        assert_eq!(slack(&[(30 * C, 3 * MIB), (32 * C, 4 * KIB)]), 2 * MIB - 4 * KIB);
        assert_eq!(slack(&[]), 0);
    }

    #[test]
    fn chunk_slack_answers_hostile_input() {
        assert_eq!(chunk_slack([(1, 1)].into_iter(), 0), 0);
        assert_eq!(chunk_slack([(1, 0), (u64::MAX, 0)].into_iter(), C), 0);
        assert_eq!(chunk_slack([(u64::MAX, 1)].into_iter(), C), C as usize - 1);
        // Ends with the address space instead of starting over at 0.
        assert_eq!(chunk_slack([(u64::MAX - 3, 4096)].into_iter(), C), C as usize - 4096);
        assert_eq!(chunk_slack([(u64::MAX, usize::MAX), (0, usize::MAX)].into_iter(), C), 0);
        // Two allocations said to be at one place cannot give less than nothing.
        assert_eq!(chunk_slack([(0, 2 * MIB - 1), (0, 2 * MIB - 1)].into_iter(), C), 0);
        // Chunks of one byte hold nothing smaller; of all 64 bits, one holds everything below it.
        assert_eq!(chunk_slack([(5, 1), (9, 2)].into_iter(), 1), 0);
        assert_eq!(chunk_slack([(5, 1), (9, 2)].into_iter(), u64::MAX), u64::MAX as usize - 3);
    }

    #[test]
    fn covered_pages_counts_each_page_once() {
        assert_eq!(covered_pages(&mut []), 0);
        assert_eq!(covered_pages(&mut [(5, 9), (0, 0), (7, 12), (0, 0), (8, 8)]), 1 + 8);
        let last = u64::MAX >> 21;
        assert_eq!(covered_pages(&mut [(0, last), (last, last)]), last + 1);
    }
}

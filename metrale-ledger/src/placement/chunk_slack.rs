// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes in the chunks of small allocations, as a function of addresses and sizes.

use std::collections::HashSet;

use rustc_hash::FxBuildHasher;

use crate::allocation::Extent;

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
    let mut touched: HashSet<u64, FxBuildHasher> = HashSet::default();
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

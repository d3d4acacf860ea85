// SPDX-License-Identifier: MIT OR Apache-2.0
//! The creation index: which `alloc` call of the process an allocation came from.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls of `alloc` so far. The process's own, not a backend's: a second run of the same program gives the same numbers,
/// whichever backend makes the allocation, and so does `METRALE_REDZONE_MIN_IDX`.
static CREATED: AtomicU64 = AtomicU64::new(0);

/// Counts a call: its creation index, from 0.
#[inline]
pub(crate) fn next_index() -> u64 {
    CREATED.fetch_add(1, Ordering::Relaxed)
}

/// Counts a call whose index nobody asks for.
#[inline]
pub(crate) fn count_alloc() {
    next_index();
}

/// How many times `alloc` was called in this process, by any backend; the next call has this creation index.
#[must_use]
pub fn allocations_made() -> u64 {
    CREATED.load(Ordering::Relaxed)
}

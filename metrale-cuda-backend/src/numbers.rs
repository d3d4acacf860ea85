// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers that nothing else in the process has, nor had: what outlives its maker is told by them from what came later.

use std::sync::atomic::{AtomicU64, Ordering};

/// A new number, never 0.
pub(crate) fn next() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    // Only uniqueness counts.
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

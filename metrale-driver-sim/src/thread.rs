// SPDX-License-Identifier: MIT OR Apache-2.0
//! A number for each thread: contexts are current per thread, and captures remember which thread began them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts threads from 1, in the order in which they first ask.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// The calling thread's number, never 0 and never used again. 0 in a thread whose locals are already destroyed.
pub(crate) fn number() -> u64 {
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! A number for each thread that no other thread of the process has or had.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// What stands for a thread that has no number yet: above every number, and above every owner a lock can have.
const NONE: u64 = u64::MAX;

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

#[cfg(not(loom))]
thread_local! {
    static TOKEN: Cell<u64> = const { Cell::new(NONE) };
}
#[cfg(loom)]
loom::thread_local! {
    static TOKEN: Cell<u64> = Cell::new(NONE);
}

/// The thread's number, or what no lock's owner has as its number.
#[inline(always)]
pub(crate) fn known() -> u64 {
    // A thread whose token is gone already, as it ends, is as one that has none: no lock is biased to it.
    TOKEN.try_with(Cell::get).unwrap_or(NONE)
}

/// The thread's number, which it is given if it has none: from 1.
pub(crate) fn get() -> u64 {
    let known = known();
    if known != NONE {
        return known;
    }
    let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
    let _ = TOKEN.try_with(|cell| cell.set(token));
    token
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assertions for tests, whose failure brings its evidence.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::record::{AllocKind, LiveAllocation};
use crate::report::allocations;
use crate::shared::Shared;

/// Allocations that a failed assertion names one by one.
const NAMED: usize = 10;
/// Call sites, files and scopes in the report of a failed assertion.
const ROWS: usize = 20;

/// A moment to compare with later; made by [`Ledger::mark`](crate::Ledger::mark).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Allocations of every kind but padding that were live.
    pub(crate) live_count: usize,
    /// The index of the first allocation made after it.
    pub(crate) next_index: u64,
}

/// Panics with what is wrong, the allocations that show it, and the report.
#[track_caller]
pub(crate) fn fail(what: &str, shown: &[LiveAllocation], ledger: &Arc<Shared>) -> ! {
    let mut text = format!("{what}\n");
    for allocation in shown.iter().take(NAMED) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {allocation}");
    }
    if shown.len() > NAMED {
        let _ = writeln!(text, "  and {} more", shown.len() - NAMED);
    }
    panic!("{text}{}", ledger.snapshot(false).report(ROWS, 0));
}

#[track_caller]
pub(crate) fn assert_nothing_live(ledger: &Arc<Shared>) {
    let left = ledger.live_where(|record| record.kind != AllocKind::Padding);
    if !left.is_empty() {
        fail(&format!("{} still live", allocations(left.len() as u64)), &left, ledger);
    }
}

#[track_caller]
pub(crate) fn assert_unchanged_since(mark: &Mark, ledger: &Arc<Shared>) {
    let is_new =
        |record: &crate::AllocRecord| record.index >= mark.next_index && record.kind != AllocKind::Padding;
    let (new, old_count) =
        ledger.ask(|state| (state.live_where(is_new), state.count_before(mark.next_index)));
    // Fewer old ones is a free; more, a record put back after the mark, whose free the driver refused.
    let gone = mark.live_count.saturating_sub(old_count);
    let back = old_count.saturating_sub(mark.live_count);
    if new.is_empty() && gone == 0 && back == 0 {
        return;
    }
    let what = format!(
        "not as at the mark: {} since then still live, {gone} from before gone, {back} from before back again",
        allocations(new.len() as u64)
    );
    fail(&what, &new, ledger);
}

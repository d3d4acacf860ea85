// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assertions for tests. A failure names the allocations that caused it.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::record::{AllocRecord, LiveAllocation};
use crate::shared::Shared;
use crate::text::counted;

/// Allocations that a failed assertion names one by one.
const NAMED: usize = 10;
/// Call sites, files, scopes and tags in the report of a failed assertion, each.
const ROWS: usize = 20;

/// A moment to compare with later; made by [`Ledger::mark`](crate::Ledger::mark).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of live allocations of every kind but padding.
    pub(crate) live_count: u64,
    /// The index of the next allocation.
    pub(crate) next_index: u64,
}

/// Panics with what is wrong, the allocations that show it, and the report.
#[track_caller]
fn fail(what: &str, shown: &[LiveAllocation], ledger: &Arc<Shared>) -> ! {
    let mut text = format!("{what}\n");
    for allocation in shown.iter().take(NAMED) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {allocation}");
    }
    if shown.len() > NAMED {
        let _ = writeln!(text, "  and {} more", shown.len() - NAMED);
    }
    panic!("{text}{}", ledger.with_state(|state| state.snapshot(false)).report(ROWS, 0));
}

/// Panics if allocations are left; `where_left` is the text before their number.
#[track_caller]
pub(crate) fn assert_none(left: &[LiveAllocation], where_left: &str, ledger: &Arc<Shared>) {
    if !left.is_empty() {
        fail(&format!("{where_left}{} still live", counted(left.len() as u64, "allocation")), left, ledger);
    }
}

#[track_caller]
pub(crate) fn assert_nothing_live(ledger: &Arc<Shared>) {
    let left = ledger.with_state(|state| state.live_where(|record| record.kind.is_callers()));
    assert_none(&left, "", ledger);
}

#[track_caller]
pub(crate) fn assert_unchanged_since(mark: &Mark, ledger: &Arc<Shared>) {
    let is_new = |record: &AllocRecord| record.index >= mark.next_index && record.kind.is_callers();
    let (new, old_count) =
        ledger.with_state(|state| (state.live_where(is_new), state.count_before(mark.next_index)));
    // Fewer than at the mark: one was freed. More: one was restored after the mark, since the driver refused its free.
    let gone = mark.live_count.saturating_sub(old_count);
    let back = old_count.saturating_sub(mark.live_count);
    if !new.is_empty() || gone > 0 || back > 0 {
        let new_count = counted(new.len() as u64, "allocation");
        let what = format!(
            "not as at the mark: {new_count} since then still live, {gone} from before gone, {back} from before back again"
        );
        fail(&what, &new, ledger);
    }
}

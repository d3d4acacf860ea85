// SPDX-License-Identifier: MIT OR Apache-2.0
//! Labels that allocations get from what the thread is doing.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::record::{AllocKind, AllocRecord, LiveAllocation};
use crate::shared::Shared;
use crate::text::Label;

thread_local! {
    /// The scopes open on this thread, of all ledgers, innermost last.
    static OPEN: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

struct Frame {
    /// The ledger's address, which no other ledger gets while a guard keeps this one alive.
    ledger: usize,
    scope: u32,
    token: u64,
}

/// The label to record under, for a ledger: the innermost scope that this thread has open on it.
pub(crate) fn current(ledger: &Arc<Shared>) -> Option<u32> {
    if ledger.may_be_scoped() { innermost(ledger) } else { None }
}

fn innermost(ledger: &Arc<Shared>) -> Option<u32> {
    let key = Arc::as_ptr(ledger) as usize;
    // A thread that is ending has no scopes left.
    OPEN.try_with(|open| open.borrow().iter().rev().find(|f| f.ledger == key).map(|f| f.scope)).ok().flatten()
}

/// Keeps a label open on this thread until it is dropped; made by [`Ledger::scope`](crate::Ledger::scope).
///
/// It stays on its thread. Guards dropped out of order close the scope that is theirs.
#[must_use = "the scope closes when the guard is dropped; bind it: `let _guard = ledger.scope(..)`"]
pub struct ScopeGuard {
    ledger: Arc<Shared>,
    label: Arc<str>,
    token: u64,
    /// The index of the first allocation that can be inside.
    first_index: u64,
    _on_this_thread: PhantomData<*const ()>,
}

impl ScopeGuard {
    pub(crate) fn open(ledger: Arc<Shared>, label: &str) -> Self {
        let parent = current(&ledger);
        let (scope, label, first_index) = ledger.open_scope(parent, label);
        // Unique among this thread's frames: above all of them.
        let token = OPEN.try_with(|open| {
            let mut open = open.borrow_mut();
            let token = open.iter().map(|f| f.token).max().map_or(0, |t| t + 1);
            open.push(Frame { ledger: Arc::as_ptr(&ledger) as usize, scope, token });
            token
        });
        Self { ledger, label, token: token.unwrap_or(u64::MAX), first_index, _on_this_thread: PhantomData }
    }

    /// The whole label, outer scopes first.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What was allocated inside this scope and the scopes within it, since it was opened, and is still live; in order of
    /// creation. Every kind of memory counts but padding. Looks at every live allocation.
    pub fn still_live(&self) -> Vec<LiveAllocation> {
        let inside = |record: &AllocRecord| {
            record.index >= self.first_index
                && record.kind != AllocKind::Padding
                && record.scope.as_deref().is_some_and(|scope| {
                    scope
                        .strip_prefix(&*self.label)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                })
        };
        self.ledger.live_where(inside)
    }

    /// Closes the scope, asserting that it ended where it began: that nothing allocated inside it is live.
    ///
    /// # Panics
    /// When something is, with the report and the first of those allocations.
    #[track_caller]
    pub fn assert_balanced(self) {
        let left = self.still_live();
        if !left.is_empty() {
            let what = format!(
                "scope {} did not end where it began: {} still live",
                Label(&self.label),
                crate::report::allocations(left.len() as u64)
            );
            crate::check::fail(&what, &left, &self.ledger);
        }
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        let key = Arc::as_ptr(&self.ledger) as usize;
        // A thread that is ending has dropped its frames already; there is nothing left to close then.
        let _ = OPEN.try_with(|open| {
            let mut open = open.borrow_mut();
            if let Some(at) = open.iter().rposition(|f| f.token == self.token && f.ledger == key) {
                open.remove(at);
            }
        });
    }
}

impl fmt::Debug for ScopeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeGuard").field("label", &self.label).finish_non_exhaustive()
    }
}

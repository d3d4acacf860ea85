// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes: the labels that a thread has open, and gives to what it allocates.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::check;
use crate::record::{AllocRecord, LiveAllocation};
use crate::shared::Shared;
use crate::text::Label;

thread_local! {
    /// The scopes open on this thread, of all ledgers, innermost last.
    static OPEN: RefCell<Vec<Rc<Frame>>> = const { RefCell::new(Vec::new()) };
}

struct Frame {
    /// The ledger's address, which no other ledger gets while a guard keeps this one alive.
    ledger: *const Shared,
    scope: u32,
}

/// The number of the innermost scope that this thread has open on a ledger.
pub(crate) fn current(ledger: &Arc<Shared>) -> Option<u32> {
    let key = Arc::as_ptr(ledger);
    // A thread that is ending has no scopes left.
    let innermost = |open: &RefCell<Vec<Rc<Frame>>>| {
        open.borrow().iter().rev().find(|frame| frame.ledger == key).map(|frame| frame.scope)
    };
    OPEN.try_with(innermost).ok().flatten()
}

/// Keeps a label open on this thread until it is dropped; made by [`Ledger::scope`](crate::Ledger::scope).
///
/// It is not `Send`: it stays on its thread. Guards may be dropped in any order; each closes its own scope.
#[must_use = "the scope closes when the guard is dropped; bind it: `let _guard = ledger.scope(..)`"]
pub struct ScopeGuard {
    ledger: Arc<Shared>,
    label: Arc<str>,
    frame: Rc<Frame>,
    /// The index of the first allocation that can be inside the scope.
    first_index: u64,
}

impl ScopeGuard {
    pub(crate) fn open(ledger: Arc<Shared>, label: &str) -> Self {
        let (scope, label, first_index) = ledger.open_scope(current(&ledger), label);
        let frame = Rc::new(Frame { ledger: Arc::as_ptr(&ledger), scope });
        // A thread that is ending labels nothing any more.
        let _ = OPEN.try_with(|open| open.borrow_mut().push(Rc::clone(&frame)));
        Self { ledger, label, frame, first_index }
    }

    /// The whole label, outer scopes first.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Live allocations that were made since this scope was opened, inside it or a scope within it; in order of creation, of
    /// every kind of memory but padding. Holds the lock while it looks at every live allocation.
    pub fn still_live(&self) -> Vec<LiveAllocation> {
        let is_within = |scope: &str| {
            scope.strip_prefix(&*self.label).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_inside = |record: &AllocRecord| {
            record.index >= self.first_index
                && record.kind.is_callers()
                && record.scope.as_deref().is_some_and(is_within)
        };
        self.ledger.with_state(|state| state.live_where(is_inside))
    }

    /// Closes the scope and asserts that nothing allocated inside it is live.
    ///
    /// # Panics
    /// When something is, with the first such allocations and the report.
    #[track_caller]
    pub fn assert_balanced(self) {
        let where_left = format!("scope {} did not end where it began: ", Label(&self.label));
        check::assert_none(&self.still_live(), &where_left, &self.ledger);
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        // A thread that is ending has dropped its frames already, so there is nothing to close.
        let _ = OPEN.try_with(|open| open.borrow_mut().retain(|frame| !Rc::ptr_eq(frame, &self.frame)));
    }
}

impl fmt::Debug for ScopeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeGuard").field("label", &self.label).finish_non_exhaustive()
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last records and frees, kept if asked for.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

use crate::misuse::FreedBy;
use crate::record::{LiveAllocation, SourceLine};

/// What happened to an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocEventKind {
    /// It was recorded.
    Recorded,
    /// It was restored, since the driver refused its free.
    Restored,
    /// It ended: freed, swept or displaced.
    Gone(FreedBy),
}

/// What happened to one allocation; see [`Ledger::recent_events`](crate::Ledger::recent_events).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocEvent {
    /// Number of earlier events since events are kept.
    pub number: u64,
    /// What happened.
    pub kind: AllocEventKind,
    /// The allocation.
    pub allocation: LiveAllocation,
    /// The source line: of the allocation for `Recorded` and `Restored`, of the free for `Gone`.
    pub at: &'static Location<'static>,
}

impl fmt::Display for AllocEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            AllocEventKind::Recorded => "recorded".to_owned(),
            AllocEventKind::Restored => "restored".to_owned(),
            AllocEventKind::Gone(how) => how.to_string(),
        };
        write!(f, "{} {verb} {} at {}", self.number, self.allocation, self.at)
    }
}

/// The last events, up to a limit, which is 0 at first.
#[derive(Default)]
pub(crate) struct Events {
    kept: VecDeque<AllocEvent>,
    limit: usize,
    next: u64,
}

impl Events {
    /// Forgets all events and keeps up to `limit` from now on.
    pub(crate) fn keep(&mut self, limit: usize) {
        *self = Self { limit, ..Self::default() };
    }

    pub(crate) fn are_kept(&self) -> bool {
        self.limit > 0
    }

    pub(crate) fn push(&mut self, kind: AllocEventKind, allocation: LiveAllocation, at: SourceLine) {
        if self.kept.len() >= self.limit {
            self.kept.pop_front();
        }
        self.kept.push_back(AllocEvent { number: self.next, kind, allocation, at });
        self.next += 1;
    }

    /// Oldest first.
    pub(crate) fn recent(&self) -> Vec<AllocEvent> {
        self.kept.iter().cloned().collect()
    }
}

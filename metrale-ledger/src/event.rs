// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last things that happened, for whoever asks for them.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

use crate::index::Standing;
use crate::{FreedBy, LiveAllocation};

/// What happened to an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// It was recorded.
    Recorded,
    /// It was put back, since the driver refused its free.
    Restored,
    /// It came off the ledger.
    Gone(FreedBy),
}

/// One thing that happened; see [`Ledger::recent_events`](crate::Ledger::recent_events).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// How many events came before it since events are kept.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
    /// To which allocation.
    pub allocation: LiveAllocation,
    /// The source line that did it: of the allocation for `Recorded` and `Restored`, of the free otherwise.
    pub at: &'static Location<'static>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            EventKind::Recorded => "recorded",
            EventKind::Restored => "restored",
            EventKind::Gone(FreedBy::Free) => "freed",
            EventKind::Gone(FreedBy::Drain) => "swept",
            EventKind::Gone(FreedBy::Displaced) => "displaced",
        };
        write!(f, "{} {verb} {} at {}", self.number, self.allocation, self.at)
    }
}

/// An event as the book keeps it.
#[derive(Clone, Copy)]
pub(crate) struct Happened {
    pub(crate) number: u64,
    pub(crate) kind: EventKind,
    pub(crate) what: Standing,
    pub(crate) at: &'static Location<'static>,
}

/// The last events, up to a limit above 0.
pub(crate) struct Ring {
    events: VecDeque<Happened>,
    limit: usize,
    next: u64,
}

impl Ring {
    pub(crate) fn new(limit: usize) -> Self {
        Self { events: VecDeque::new(), limit, next: 0 }
    }

    pub(crate) fn push(&mut self, kind: EventKind, what: Standing, at: &'static Location<'static>) {
        if self.events.len() >= self.limit {
            self.events.pop_front();
        }
        self.events.push_back(Happened { number: self.next, kind, what, at });
        self.next += 1;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Happened> {
        self.events.iter()
    }
}

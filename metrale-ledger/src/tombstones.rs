// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tombstones: the last frees, so that a second free or a stale address is answered with the first.

use std::collections::VecDeque;
use std::panic::Location;

use crate::allocation::Allocation;
use crate::misuse::FreedBy;

/// One remembered free.
#[derive(Clone, Copy)]
pub(crate) struct Tombstone {
    pub(crate) was: Allocation,
    pub(crate) freed_at: &'static Location<'static>,
    pub(crate) how: FreedBy,
}

impl Tombstone {
    /// Whether the other is of the same place, size and kind. A displaced allocation still waits for its free.
    fn is_like(&self, other: &Self) -> bool {
        let place = |free: &Self| (free.was.addr, free.was.bytes, free.was.kind);
        place(self) == place(other) && self.how != FreedBy::Displaced
    }
}

/// The last frees, up to a limit.
///
/// Of frees of one place, size and kind right behind each other only the last is kept, which alone answers what is asked. So a
/// loop that allocates and frees one buffer does not drive out the frees of others. If that last free turns out not to have
/// happened, the ones before it are not remembered either: their place is live again.
pub(crate) struct Tombstones {
    /// Oldest first.
    frees: VecDeque<Tombstone>,
    limit: usize,
}

impl Tombstones {
    pub(crate) fn new(limit: usize) -> Self {
        Self { frees: VecDeque::new(), limit }
    }

    /// Remembers a free.
    #[inline]
    pub(crate) fn push(&mut self, free: Tombstone) {
        match self.frees.back_mut() {
            Some(last) if last.is_like(&free) => *last = free,
            _ => {
                if self.frees.len() >= self.limit {
                    self.frees.pop_front();
                }
                if self.limit > 0 {
                    self.frees.push_back(free);
                }
            }
        }
    }

    /// The last free that fits.
    pub(crate) fn last(&self, fits: impl Fn(&Tombstone) -> bool) -> Option<&Tombstone> {
        self.frees.iter().rev().find(|free| fits(free))
    }

    /// The allocation with base `addr` that was displaced last and whose free has not been seen.
    pub(crate) fn displaced_at(&mut self, addr: u64) -> Option<&mut Tombstone> {
        self.frees.iter_mut().rev().find(|free| free.was.addr == addr && free.how == FreedBy::Displaced)
    }

    /// Forgets the free of an allocation that turned out not to have happened.
    pub(crate) fn remove(&mut self, addr: u64, index: u64) {
        self.frees.retain(|free| (free.was.addr, free.was.index) != (addr, index));
    }
}

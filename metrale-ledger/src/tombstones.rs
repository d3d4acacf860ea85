// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tombstones: the last frees, so that the answer to a second free or a stale address names the first free.

use std::collections::VecDeque;

use crate::allocation::Allocation;
use crate::misuse::FreedBy;
use crate::record::{AllocKind, SourceLine};

/// One remembered free.
#[derive(Clone, Copy)]
pub(crate) struct Tombstone {
    pub(crate) was: Allocation,
    pub(crate) freed_at: SourceLine,
    pub(crate) how: FreedBy,
}

impl Tombstone {
    /// Whether the other free was of the same address, size and kind. The free of a displaced allocation may still follow,
    /// so its tombstone is never replaced.
    fn is_like(&self, other: &Self) -> bool {
        let place = |free: &Self| (free.was.addr, free.was.bytes, free.was.kind);
        place(self) == place(other) && self.how != FreedBy::Displaced
    }
}

/// The last frees, up to a limit.
///
/// Of successive frees of one address, size and kind only the last is kept, since only the last is ever an answer. So a loop
/// that allocates and frees one buffer does not displace all other frees. If the driver refused that last free, the ones before
/// it are not remembered either: their address is live again.
#[derive(Default)]
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
        if let Some(last) = self.frees.back_mut().filter(|last| last.is_like(&free)) {
            *last = free;
        } else if self.limit > 0 {
            if self.frees.len() == self.limit {
                self.frees.pop_front();
            }
            self.frees.push_back(free);
        }
    }

    /// The last free that fits.
    pub(crate) fn last(&self, fits: impl Fn(&Tombstone) -> bool) -> Option<&Tombstone> {
        self.frees.iter().rev().find(|free| fits(free))
    }

    /// The allocation with base `addr`, freed by the call for `kind`, that was displaced last and whose free has not been seen.
    pub(crate) fn displaced_at(&mut self, addr: u64, kind: AllocKind) -> Option<&mut Tombstone> {
        let is_at = |was: &Allocation| was.addr == addr && was.kind.to_free() == kind;
        self.frees.iter_mut().rev().find(|free| is_at(&free.was) && free.how == FreedBy::Displaced)
    }

    /// Forgets the free of an allocation, since the driver refused it.
    pub(crate) fn remove(&mut self, addr: u64, index: u64) {
        self.frees.retain(|free| (free.was.addr, free.was.index) != (addr, index));
    }
}

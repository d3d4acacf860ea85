// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is live, where no ledger is kept: the addresses and their kinds, so that the sweep and the drop free them too.

use std::collections::VecDeque;

use metrale_ledger::AllocKind;
use rustc_hash::FxHashMap;

/// Frees that may be under way at a time and still be undone; a thread makes one.
const UNDER_WAY: usize = 1024;

/// The live addresses of a backend.
#[derive(Debug, Default)]
pub(crate) struct LiveAddresses {
    live: FxHashMap<u64, AllocKind>,
    /// The last that were forgotten, for a free that the driver refuses.
    forgotten: VecDeque<(u64, AllocKind)>,
}

impl LiveAddresses {
    pub(crate) fn record(&mut self, addr: u64, kind: AllocKind) {
        self.live.insert(addr, kind);
    }

    /// Forgets an address. What is not live, or not of this kind, is the driver's to judge.
    pub(crate) fn forget(&mut self, addr: u64, kind: AllocKind) {
        let is_of_kind = |&live: &AllocKind| live == kind || (live.is_sweepable() && kind.is_sweepable());
        let Some(live) = self.live.get(&addr).copied().filter(is_of_kind) else {
            // What an earlier free of the address left behind is not this one's to undo.
            self.forgotten.retain(|&(forgotten, _)| forgotten != addr);
            return;
        };
        self.live.remove(&addr);
        if self.forgotten.len() == UNDER_WAY {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back((addr, live));
    }

    /// Undoes the last `forget` of an address, unless another allocation has it by now.
    pub(crate) fn restore(&mut self, addr: u64) {
        if let Some(at) = self.forgotten.iter().rposition(|&(forgotten, _)| forgotten == addr)
            && let Some((addr, kind)) = self.forgotten.remove(at)
        {
            self.live.entry(addr).or_insert(kind);
        }
    }

    /// The addresses of the kinds that `is_wanted` picks, in order.
    pub(crate) fn of(&self, is_wanted: impl Fn(AllocKind) -> bool) -> Vec<(AllocKind, u64)> {
        let wanted = self.live.iter().filter(|&(_, &kind)| is_wanted(kind));
        let mut found: Vec<_> = wanted.map(|(&addr, &kind)| (kind, addr)).collect();
        found.sort_unstable_by_key(|&(_, addr)| addr);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_address_comes_back_once_and_never_over_another() {
        let mut live = LiveAddresses::default();
        live.record(0x200, AllocKind::Managed);
        live.record(0x400, AllocKind::Arena);
        live.forget(0x400, AllocKind::Device);
        live.forget(0x600, AllocKind::Device);
        assert_eq!(live.of(|_| true), [(AllocKind::Managed, 0x200), (AllocKind::Arena, 0x400)]);
        live.forget(0x200, AllocKind::Device);
        assert_eq!(live.of(AllocKind::is_sweepable), []);
        live.restore(0x600);
        live.restore(0x200);
        live.forget(0x200, AllocKind::Managed);
        live.forget(0x200, AllocKind::Managed);
        live.restore(0x200);
        assert_eq!(live.of(AllocKind::is_sweepable), [], "the second free is of nothing");
        live.record(0x200, AllocKind::Managed);
        assert_eq!(live.of(AllocKind::is_sweepable), [(AllocKind::Managed, 0x200)]);
        live.forget(0x400, AllocKind::Arena);
        live.record(0x400, AllocKind::Pinned);
        live.restore(0x400);
        assert_eq!(live.of(|kind| !kind.is_sweepable()), [(AllocKind::Pinned, 0x400)]);
    }

    #[test]
    fn what_was_forgotten_is_bounded() {
        let mut live = LiveAddresses::default();
        for addr in 0..10 * UNDER_WAY as u64 {
            live.record(addr, AllocKind::Device);
            live.forget(addr, AllocKind::Device);
        }
        assert_eq!((live.forgotten.len(), live.of(|_| true).len()), (UNDER_WAY, 0));
    }
}

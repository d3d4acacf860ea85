// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads of the state: what an address is, why it cannot be freed, which allocations are live, and the snapshot.

use crate::allocation::Allocation;
use crate::misuse::{ForgetError, FreedAllocation, Whois};
use crate::record::{AllocKind, AllocRecord, LiveAllocation};
use crate::snapshot::{ArenaRow, Group, Site, Snapshot, gather};
use crate::state::State;
use crate::sub_range::SubRange;
use crate::tombstones::Tombstone;
use crate::totals::narrow;

impl State {
    /// The record of an allocation, as callers get it.
    pub(crate) fn record_of(&self, allocation: &Allocation) -> AllocRecord {
        let key = self.groups.key(allocation.group);
        AllocRecord {
            bytes: allocation.bytes,
            site: key.site,
            kind: allocation.kind,
            scope: self.labels.name(key.scope),
            tag: self.labels.name(key.tag),
            index: allocation.index,
            free_refused: allocation.free_refused,
        }
    }

    pub(crate) fn live(&self, allocation: &Allocation) -> LiveAllocation {
        LiveAllocation { addr: allocation.addr, record: self.record_of(allocation) }
    }

    fn freed(&self, tombstone: &Tombstone) -> FreedAllocation {
        let record = self.record_of(&tombstone.was);
        FreedAllocation { addr: tombstone.was.addr, record, freed_at: tombstone.freed_at, how: tombstone.how }
    }

    fn owner(&self, addr: u64) -> Option<&Allocation> {
        self.device.owner(addr).or_else(|| self.host.owner(addr))
    }

    pub(crate) fn live_span(&self, addr: u64) -> Option<(AllocKind, u64)> {
        let owner = self.owner(addr).filter(|owner| owner.kind.is_callers())?;
        Some((owner.kind, (owner.bytes as u64).saturating_sub(addr - owner.addr)))
    }

    pub(crate) fn whois(&self, addr: u64) -> Whois {
        let live = |owner: &Allocation| {
            let allocation = self.live(owner);
            Whois::Live { offset_bytes: addr.wrapping_sub(allocation.addr), allocation }
        };
        let owner = self.owner(addr);
        if let Some(owner) = owner.filter(|owner| owner.kind.is_callers()) {
            return live(owner);
        }
        match self.tombstones.last(|free| free.was.holds(addr)) {
            Some(free) => {
                let freed = self.freed(free);
                Whois::Freed { offset_bytes: addr.wrapping_sub(freed.addr), freed }
            }
            None => owner.map_or(Whois::Unknown, live),
        }
    }

    /// Why `addr` cannot be freed by the call for that kind; `is_exact` where another allocation is live there now.
    pub(crate) fn explain(&self, addr: u64, kind: AllocKind, is_exact: bool) -> ForgetError {
        let part = self.part_at(addr);
        let is_host = kind == AllocKind::Pinned;
        let (space, other_space) =
            if is_host { (&self.host, &self.device) } else { (&self.device, &self.host) };
        let found = space.get(addr).filter(|found| found.kind.is_callers() && part.is_none());
        if let Some(found) = found.filter(|found| !is_exact || found.kind.to_free() != kind) {
            return ForgetError::OtherKind { live: Box::new(self.live(found)) };
        }
        if addr == 0 {
            return ForgetError::Null;
        }
        if let Some(part) = part.filter(|part| part.addr == addr && !is_host) {
            return ForgetError::SubRange { part: Box::new(part.clone()) };
        }
        let of_space = |was: &Allocation| (was.kind == AllocKind::Pinned) == is_host;
        let owner = space.owner(addr).filter(|owner| owner.kind.is_callers());
        let owner = owner.map(|owner| Box::new(self.live(owner)));
        // That an allocation had this base says more than where the address lies now.
        if let Some(free) = self.tombstones.last(|free| free.was.addr == addr && of_space(&free.was)) {
            return ForgetError::DoubleFree { freed: Box::new(self.freed(free)), now_inside: owner };
        }
        if let Some(owner) = owner.filter(|owner| owner.addr != addr) {
            return ForgetError::Interior { addr, owner };
        }
        if let Some(free) = self.tombstones.last(|free| free.was.holds(addr) && of_space(&free.was)) {
            return ForgetError::InsideFreed { addr, freed: Box::new(self.freed(free)) };
        }
        // The same number may be an address of the other space, whose memory another call frees.
        match other_space.get(addr).filter(|other| other.kind.is_callers()) {
            Some(other) => ForgetError::OtherKind { live: Box::new(self.live(other)) },
            None => ForgetError::Foreign { addr },
        }
    }

    fn all(&self) -> impl Iterator<Item = &Allocation> {
        self.device.iter().chain(self.host.iter())
    }

    /// Number of live allocations, without padding, that were recorded before `index`.
    pub(crate) fn count_before(&self, index: u64) -> u64 {
        self.all().filter(|live| live.index < index && live.kind.is_callers()).count() as u64
    }

    /// The live allocations whose record fits, in order of creation.
    pub(crate) fn live_where(&self, fits: impl Fn(&AllocRecord) -> bool) -> Vec<LiveAllocation> {
        let mut live: Vec<_> =
            self.all().map(|live| self.live(live)).filter(|live| fits(&live.record)).collect();
        live.sort_unstable_by_key(|live| live.record.index);
        live
    }

    /// The live allocations whose kind fits, base address and record, in order of creation.
    pub(crate) fn allocations(&self, fits: impl Fn(AllocKind) -> bool) -> Vec<(u64, AllocRecord)> {
        let live = self.live_where(|record| fits(record.kind));
        live.into_iter().map(|live| (live.addr, live.record)).collect()
    }

    /// The part of an arena that holds `addr`.
    pub(crate) fn part_at(&self, addr: u64) -> Option<&SubRange> {
        self.arenas.part_at(addr, self.device.overlapping > 0)
    }

    /// The totals and who holds them, now or at the peak.
    pub(crate) fn snapshot(&mut self, at_peak: bool) -> Snapshot {
        let totals = match self.totals_at_peak {
            Some(totals) if at_peak => totals,
            _ => self.totals(),
        };
        let peak = self.peak.number();
        let name = |number: u32| self.labels.name(number).map(|name| name.to_string());
        let held = self.groups.iter().filter_map(|(key, held)| {
            let sum = if at_peak { held.at_peak(0, peak) } else { held.now() };
            let key = || (Site::of(key.site), name(key.scope), name(key.tag), key.kind);
            (sum.count > 0).then(|| (key(), sum.bytes as i128, sum.count.into()))
        });
        // Joins groups that differ only in the address of their location.
        let group = |((site, scope, tag, kind), bytes, count)| Group { site, scope, tag, kind, bytes, count };
        let groups = gather(held, narrow).map(group).collect();
        // The parts that arenas had at the peak are not kept.
        let arenas = self.arenas.iter().filter(|_| !at_peak).filter_map(|(base, parts)| {
            Some(ArenaRow::new(base, &self.record_of(self.device.get(base)?), parts))
        });
        Snapshot::new(totals, groups, arenas.collect())
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger's state: what the one lock protects, and every operation that changes it.
//!
//! [`State::record`], [`State::forget`] and the operations like them end in [`State::insert`] and [`State::remove`], which
//! change index, pages, groups, sums and peak together.

use std::sync::Arc;

use crate::allocation::Allocation;
use crate::event::{AllocEventKind, Events};
use crate::groups::{GroupKey, Groups, Labels, NO_LABEL};
use crate::index::{AddressSpace, BaseIsLive};
use crate::misuse::{ForgetError, FreedBy, MisuseCounts, RecordMisuse, Recorded};
use crate::peak::Highest;
use crate::record::{AllocKind, AllocRecord, LiveAllocation, SourceLine};
use crate::sub_range::{Arenas, SubRange, SubRangeError};
use crate::tombstones::{Tombstone, Tombstones};
use crate::totals::{Sums, Totals};

#[derive(Default)]
pub(crate) struct State {
    /// Device addresses.
    pub(crate) device: AddressSpace,
    /// Host addresses, compared with each other only.
    pub(crate) host: AddressSpace,
    pub(crate) groups: Groups,
    pub(crate) labels: Labels,
    pub(crate) arenas: Arenas,
    pub(crate) sums: Arc<Sums>,
    /// The highest live bytes; groups keep what they held there.
    pub(crate) peak: Highest<u128>,
    /// The highest number of pages with device memory.
    peak_pages: u64,
    /// The totals at that peak, once something has changed since then.
    pub(crate) totals_at_peak: Option<Totals>,
    pub(crate) next_index: u64,
    pub(crate) tombstones: Tombstones,
    pub(crate) events: Events,
    misuse: MisuseCounts,
}

impl State {
    pub(crate) fn new(tombstones: usize, sums: Arc<Sums>) -> Self {
        Self { sums, tombstones: Tombstones::new(tombstones), ..Self::default() }
    }

    /// Records an allocation. One that is live at the same base is displaced.
    pub(crate) fn record(
        &mut self,
        addr: u64,
        bytes: usize,
        site: SourceLine,
        kind: AllocKind,
        scope: Option<u32>,
    ) -> Recorded {
        let index = self.next_index;
        self.next_index += 1;
        let key = GroupKey { site, scope: scope.unwrap_or(NO_LABEL), tag: NO_LABEL, kind };
        let group = self.groups.number(key);
        let new = Allocation { addr, bytes, index, group, kind, free_refused: false, overlaps: false };
        let inserted = self.insert(&new);
        if inserted == Ok(None) && new.is_possible() && !self.events.are_kept() {
            return Recorded { index, misuse: None };
        }
        self.record_unusual(&new, site, inserted)
    }

    /// What follows when an allocation overlaps, displaces another one, is impossible, or is to be noted as an event.
    #[cold]
    fn record_unusual(
        &mut self,
        new: &Allocation,
        site: SourceLine,
        mut inserted: Result<Option<u64>, BaseIsLive>,
    ) -> Recorded {
        let mut displaced = None;
        if inserted.is_err() {
            // The driver has just returned this address, so the older allocation was freed, whether its free was seen or not.
            displaced = self.remove(new.addr, new.kind, |_| true, site, FreedBy::Displaced);
            inserted = self.insert(new);
        }
        self.note(AllocEventKind::Recorded, new, site);
        let with = inserted.ok().flatten();
        let is_sound = displaced.is_none() && with.is_none() && new.is_possible();
        let misuse = (!is_sound).then(|| self.misuse_of(new, displaced, with));
        self.recorded(new.index, misuse)
    }

    /// Forgets the allocation with base `addr`, if `kind` is the [kind to free it as](AllocKind::to_free) and it has the creation
    /// index `only`, where one is given.
    pub(crate) fn forget(
        &mut self,
        addr: u64,
        kind: AllocKind,
        only: Option<u64>,
        freed_at: SourceLine,
    ) -> Result<AllocRecord, ForgetError> {
        let fits = |found: &Allocation| {
            found.kind.to_free() == kind && only.is_none_or(|index| found.index == index)
        };
        match self.remove(addr, kind, fits, freed_at, FreedBy::Free) {
            Some(freed) => Ok(self.record_of(&freed)),
            None => Err(self.failed_free(addr, kind, only.is_some(), freed_at)),
        }
    }

    /// Explains and counts a free that named nothing live; `is_exact` where it was of one allocation only. A record that comes
    /// before the free of what was at its address displaces that and counts as misuse; the late free takes the count back.
    #[cold]
    fn failed_free(&mut self, addr: u64, kind: AllocKind, is_exact: bool, at: SourceLine) -> ForgetError {
        let error = self.explain(addr, kind, is_exact);
        // The totals at the peak do not count misuse that follows it.
        self.keep_totals_at_peak();
        if let ForgetError::DoubleFree { .. } = error
            && let Some(displaced) = self.tombstones.displaced_at(addr, kind)
        {
            (displaced.how, displaced.freed_at) = (FreedBy::Free, at);
            self.misuse.records_over_live -= 1;
        } else {
            self.misuse.note_free(&error);
        }
        error
    }

    /// Records an allocation again that was forgotten before a free that the driver refused.
    pub(crate) fn restore(&mut self, addr: u64, record: &AllocRecord) -> Recorded {
        self.keep_totals_at_peak();
        self.misuse.refused_frees += 1;
        self.tombstones.remove(addr, record.index);
        let mut number = |label: &Option<Arc<str>>| match label {
            Some(label) => self.labels.number(label),
            None => NO_LABEL,
        };
        let (scope, tag) = (number(&record.scope), number(&record.tag));
        let AllocRecord { bytes, site, kind, index, .. } = *record;
        let group = self.groups.number(GroupKey { site, scope, tag, kind });
        let back = Allocation { addr, bytes, index, group, kind, free_refused: true, overlaps: false };
        let misuse = match self.insert(&back) {
            Ok(with) => {
                self.note(AllocEventKind::Restored, &back, site);
                let is_sound = with.is_none() && back.is_possible();
                (!is_sound).then(|| self.misuse_of(&back, None, with))
            }
            Err(BaseIsLive) => {
                // The live allocation was recorded later, so the driver did return the address again: it stays.
                let displaced = self.record_of(&back);
                let kept = self.live_at(addr, kind);
                kept.map(|kept| Box::new(RecordMisuse::OverLive { kept, displaced }))
            }
        };
        self.recorded(index, misuse)
    }

    /// Forgets every sweepable allocation, in order of creation.
    pub(crate) fn drain(&mut self, freed_at: SourceLine) -> Vec<(u64, AllocRecord)> {
        let mut all: Vec<_> = self.device.iter().filter(|live| live.kind.is_sweepable()).copied().collect();
        all.sort_unstable_by_key(|live| live.index);
        for live in &all {
            self.remove(live.addr, live.kind, |_| true, freed_at, FreedBy::Drain);
        }
        all.iter().map(|freed| (freed.addr, self.record_of(freed))).collect()
    }

    /// Tags a live allocation; false where `addr` is no base of one.
    pub(crate) fn tag(&mut self, addr: u64, tag: &str) -> bool {
        let Some(found) = self.device.get(addr).or_else(|| self.host.get(addr)).copied() else {
            return false;
        };
        let tag = self.labels.number(tag);
        let group = self.groups.number(GroupKey { tag, ..self.groups.key(found.group) });
        if group != found.group {
            self.keep_totals_at_peak();
            let peak = [self.peak.number()];
            self.groups.held_mut(found.group).change(peak).change(found.bytes, -1);
            self.groups.held_mut(group).change(peak).change(found.bytes, 1);
            self.space_mut(found.kind).set_group(addr, group);
        }
        true
    }

    /// Adds a part to the arena with that base.
    pub(crate) fn begin_part(
        &mut self,
        arena: u64,
        offset_bytes: u64,
        bytes: usize,
        name: &str,
        site: SourceLine,
        scope: Option<u32>,
    ) -> Result<(), SubRangeError> {
        let found = self.device.get(arena).filter(|found| found.kind == AllocKind::Arena);
        let owner = self.live(found.ok_or(SubRangeError::NoArena { addr: arena })?);
        let scope = scope.and_then(|scope| self.labels.name(scope));
        let addr = arena.saturating_add(offset_bytes);
        self.arenas.begin(owner, offset_bytes, SubRange { addr, bytes, name: name.into(), site, scope })
    }

    /// Sets the peaks to what is live now.
    pub(crate) fn reset_peak(&mut self) {
        self.peak.reset(self.sums.live_bytes());
        self.peak_pages = self.device.distinct_pages().device;
        self.sums.set_peaks(self.peak.height(), self.peak_pages);
        self.totals_at_peak = None;
    }

    /// The totals of this moment. While device allocations overlap, this looks at each of them.
    pub(crate) fn totals(&mut self) -> Totals {
        let pages = self.device.distinct_pages();
        self.peak_pages = self.peak_pages.max(pages.device);
        self.sums.set_peaks(self.peak.height(), self.peak_pages);
        self.sums.totals(pages, self.misuse)
    }

    /// Inserts an allocation; returns the base of one that it overlaps.
    ///
    /// # Errors
    /// [`BaseIsLive`]; then nothing is inserted.
    fn insert(&mut self, new: &Allocation) -> Result<Option<u64>, BaseIsLive> {
        // The totals of the old peak need not be kept if this insertion makes a new one.
        let live_bytes = self.sums.live_bytes() + new.bytes as u128;
        if !(new.kind.is_sweepable() && live_bytes > self.peak.height()) {
            self.keep_totals_at_peak();
        }
        let with = self.space_mut(new.kind).insert(new)?;
        self.count(new, 1);
        if new.kind == AllocKind::Arena {
            self.arenas.open(new.addr, new.index);
        }
        Ok(with)
    }

    /// Removes the allocation with this base, if it fits, and remembers its free.
    fn remove(
        &mut self,
        addr: u64,
        kind: AllocKind,
        fits: impl FnOnce(&Allocation) -> bool,
        freed_at: SourceLine,
        how: FreedBy,
    ) -> Option<Allocation> {
        self.keep_totals_at_peak();
        let freed = self.space_mut(kind).remove_if(addr, fits)?;
        self.count(&freed, -1);
        if freed.kind == AllocKind::Arena {
            self.arenas.close(freed.addr, freed.index);
        }
        // Callers do not free padding, and it must not displace the tombstones of what they freed.
        if freed.kind.is_callers() {
            self.tombstones.push(Tombstone { was: freed, freed_at, how });
        }
        self.note(AllocEventKind::Gone(how), &freed, freed_at);
        Some(freed)
    }

    /// Adds (`sign` 1) an allocation, already inserted, to group, sums and peaks, or subtracts (-1) one that is removed.
    fn count(&mut self, of: &Allocation, sign: i64) {
        self.sums.count(of, sign);
        self.groups.held_mut(of.group).change([self.peak.number()]).change(of.bytes, sign);
        let (pages, overlaps) = (self.device.counts, self.device.overlapping > 0);
        self.sums.set_pages(pages, overlaps);
        if !overlaps {
            self.peak_pages = self.peak_pages.max(pages.device);
        }
        if self.peak.raise(self.sums.live_bytes()) {
            self.totals_at_peak = None;
        }
        self.sums.set_peaks(self.peak.height(), self.peak_pages);
    }

    #[inline]
    fn note(&mut self, kind: AllocEventKind, what: &Allocation, at: SourceLine) {
        if self.events.are_kept() {
            self.events.push(kind, self.live(what), at);
        }
    }

    /// Keeps the totals of the last peak, before the first change after it.
    pub(crate) fn keep_totals_at_peak(&mut self) {
        if self.totals_at_peak.is_none() {
            self.totals_at_peak = Some(self.totals());
        }
    }

    pub(crate) fn space(&self, kind: AllocKind) -> &AddressSpace {
        if kind == AllocKind::Pinned { &self.host } else { &self.device }
    }

    fn space_mut(&mut self, kind: AllocKind) -> &mut AddressSpace {
        if kind == AllocKind::Pinned { &mut self.host } else { &mut self.device }
    }

    fn live_at(&self, addr: u64, kind: AllocKind) -> Option<LiveAllocation> {
        self.space(kind).get(addr).map(|live| self.live(live))
    }

    /// What was wrong with a record; of several faults the first of these: it displaced the allocation `old`, it overlaps the one
    /// with base `with`, it is impossible.
    fn misuse_of(&self, new: &Allocation, old: Option<Allocation>, with: Option<u64>) -> Box<RecordMisuse> {
        let live = self.live(new);
        let with = with.and_then(|with| self.live_at(with, new.kind));
        Box::new(match (old, with) {
            (Some(old), _) => RecordMisuse::OverLive { kept: live, displaced: self.record_of(&old) },
            (None, Some(with)) => RecordMisuse::Overlap { new: live, with },
            _ if new.passes_end() => RecordMisuse::PastEnd { new: live },
            _ if new.addr == 0 => RecordMisuse::Null { new: live },
            _ => RecordMisuse::Empty { new: live },
        })
    }

    /// The answer to a record, whose misuse it counts.
    fn recorded(&mut self, index: u64, misuse: Option<Box<RecordMisuse>>) -> Recorded {
        if let Some(misuse) = &misuse {
            self.misuse.note_record(misuse);
        }
        Recorded { index, misuse }
    }
}

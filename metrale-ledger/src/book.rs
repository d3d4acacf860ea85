// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger's state behind its lock: address spaces, groups, totals, labels, tombstones.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use crate::entries::{Entry, Item};
use crate::event::{Event, EventKind, Ring};
use crate::group::{Groups, Key, NO_LABEL, Sum};
use crate::index::{Extent, Inserted, Space, Standing};
use crate::meter::{Change, Meter, narrow};
use crate::misuse::{ForgetError, FreedAllocation, FreedBy, Graveyard, RecordMisuse, Recorded, Tombstone};
use crate::page::{Flips, PAGE_SHIFT, PageCounts, Where};
use crate::residency::covered_pages;
use crate::shard::Known;
use crate::snapshot::{Group, Site, Snapshot, Totals};
use crate::sub_range::{Arenas, Parts, SubRange};
use crate::{AllocKind, AllocRecord, ArenaRow, LiveAllocation, SMALL_ALLOC_CHUNK, SubRangeError, Whois};

/// Which records a free may take off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Sweepable,
    Arena,
    Pinned,
    Padding,
}

impl Class {
    fn of(kind: AllocKind) -> Self {
        match kind {
            AllocKind::Device | AllocKind::Managed => Self::Sweepable,
            AllocKind::Arena => Self::Arena,
            AllocKind::Pinned => Self::Pinned,
            AllocKind::Padding => Self::Padding,
        }
    }
}

#[derive(Default)]
struct Labels {
    ids: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
}

impl Labels {
    fn intern(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = self.names.len() as u32;
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        id
    }

    #[inline]
    fn name(&self, id: u32) -> Option<Arc<str>> {
        if id == NO_LABEL { None } else { self.names.get(id as usize).cloned() }
    }
}

/// Whether an allocation has bytes, fewer than a chunk, begins above null and lies whole in one page.
#[inline]
pub(crate) fn is_small(addr: u64, bytes: usize) -> bool {
    // From an offset of 0 a whole chunk is left, of which one byte less is small.
    let offset = (addr & (SMALL_ALLOC_CHUNK - 1)).max(1);
    addr != 0 && (bytes as u64).wrapping_sub(1) < SMALL_ALLOC_CHUNK - offset
}

/// What each group holds at one moment, still with numbers for names.
pub(crate) struct Moment {
    totals: Totals,
    held: Vec<(Key, Sum)>,
    labels: Vec<Arc<str>>,
    arenas: Vec<(u64, AllocRecord, Parts)>,
}

impl Moment {
    /// As plain data; needs no lock.
    pub(crate) fn snapshot(self) -> Snapshot {
        let name = |id: u32| self.labels.get(id as usize).map(|name| name.to_string());
        let groups = self
            .held
            .iter()
            .map(|(key, sum)| Group {
                site: Site::of(key.site),
                scope: name(key.scope),
                tag: name(key.tag),
                kind: key.kind,
                bytes: narrow(sum.bytes),
                count: sum.count as u64,
            })
            .collect();
        let arenas = self.arenas.iter().map(|(base, record, parts)| ArenaRow::new(*base, record, parts));
        Snapshot::new(self.totals, groups, arenas.collect())
    }
}

pub(crate) struct Book {
    pub(crate) device: Space,
    /// Host addresses, compared with each other only.
    host: Space,
    groups: Groups,
    arenas: Arenas,
    pub(crate) meter: Meter,
    labels: Labels,
    /// Frees seen while nothing was dealt out.
    graveyard: Graveyard,
    /// Rises whenever the shards are dealt out and when they are back.
    pub(crate) phase: u64,
    events: Option<Ring>,
    /// Small device allocations may take the short way: nothing overlaps, no events are kept, and every total is far from 64
    /// bits. To be found anew after whatever did not take it.
    plain: bool,
}

impl Book {
    pub(crate) fn new(tombstones: usize) -> Self {
        let mut device = Space::new();
        for shard in &mut device.shards {
            shard.graveyard = Graveyard::new(tombstones);
        }
        Self {
            device,
            host: Space::new(),
            groups: Groups::default(),
            arenas: Arenas::default(),
            meter: Meter::new(),
            labels: Labels::default(),
            graveyard: Graveyard::new(tombstones),
            phase: 0,
            events: None,
            plain: true,
        }
    }

    /// Finds out whether the short way may be taken. To be called after every change that did not.
    pub(crate) fn look_ahead(&mut self) {
        self.plain = !self.device.has_overlaps() && self.events.is_none() && self.meter.is_narrow();
    }

    /// Whether the shards may be dealt out: then threads take the short way in them, and see their pages and no more.
    pub(crate) fn may_be_dealt(&self) -> bool {
        self.plain && !self.device.has_empty()
    }

    /// Interns the label of a scope inside `parent`: its number and its whole name.
    pub(crate) fn open_scope(&mut self, parent: Option<u32>, label: &str) -> (u32, Arc<str>) {
        let id = match parent.and_then(|id| self.labels.name(id)) {
            Some(outer) if label.is_empty() => self.labels.intern(&outer),
            Some(outer) => self.labels.intern(&format!("{outer}/{label}")),
            None => self.labels.intern(label),
        };
        (id, self.labels.name(id).unwrap_or_default())
    }

    /// The number of a group, and what a shard is to know of it.
    pub(crate) fn group_of(&mut self, key: Key) -> u32 {
        self.groups.number(key)
    }

    /// A group by its number, with names of its own.
    pub(crate) fn known(&self, group: u32) -> Known {
        let key = self.groups.key(group);
        let own = |id: u32| self.labels.name(id).map(|name| Arc::from(&*name));
        Known { key, scope: own(key.scope), tag: own(key.tag), held: Default::default() }
    }

    /// Records what may be amiss, large, or of another kind.
    pub(crate) fn record(
        &mut self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        kind: AllocKind,
        scope: Option<u32>,
    ) -> Recorded {
        let index = self.meter.draw_index();
        let group = self.groups.number(Key::new(site, scope, kind));
        let new = Standing { addr, bytes, item: Item::new(index, group, kind) };
        let mut displaced = None;
        let inserted = match self.insert(new) {
            Inserted::BaseTaken(old) => {
                // The driver has just given this address out, so what stood here is gone whether we saw its free or not.
                self.remove(&old, site, FreedBy::Displaced);
                displaced = Some(old);
                self.insert(new)
            }
            inserted => inserted,
        };
        self.note(EventKind::Recorded, new, site);
        Recorded { index, misuse: self.judge(&new, displaced, inserted) }
    }

    /// Records a small device allocation by the short way, if that may be taken: its index. Else does nothing.
    pub(crate) fn record_small(
        &mut self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        scope: Option<u32>,
        place: Where,
    ) -> Option<u64> {
        if !self.plain {
            return None;
        }
        let group = self.groups.number_of_device(site, scope);
        let index = self.meter.next_index();
        let item = Item::new(index, group, AllocKind::Device);
        let flips = self.device.insert_small(addr, bytes as u32, item, place)?;
        self.meter.draw_index();
        let after = self.meter.small_comes(bytes as u32, flips);
        self.groups.get_mut(group).1.change(bytes as i128, 1, after);
        Some(index)
    }

    /// [`record_small`](Self::record_small) for the everyday case, straight through: a line that recorded not long ago, a
    /// page that is known, no new peak. Its index, and whether its page [has flipped](Meter::flip_small_page). Else nothing
    /// is done.
    // Always inlined, as all it takes: half of what a record would cost otherwise are calls and what they keep in memory.
    #[inline(always)]
    pub(crate) fn record_quickly(
        &mut self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        scope: Option<u32>,
        place: Where,
    ) -> Option<(u64, bool)> {
        if !self.plain || !self.meter.is_below_peak(bytes as u32) {
            return None;
        }
        let group = self.groups.recent_of_device(site, scope)?;
        let index = self.meter.next_index();
        let item = Item::new(index, group, AllocKind::Device);
        let flips = self.device.insert_small_quickly(addr, bytes as u32, item, place)?;
        self.meter.draw_index();
        self.meter.small_more(bytes as u32);
        self.groups.get_mut(group).1.change(bytes as i128, 1, Some(self.meter.peaks()));
        Some((index, flips))
    }

    /// Puts a record back that was taken off before a free the driver refused.
    pub(crate) fn restore(&mut self, addr: u64, record: &AllocRecord) -> Recorded {
        self.leave_peak();
        self.meter.misuse.refused_frees += 1;
        self.graveyard.unbury(addr, record.index);
        self.device.shard_mut(addr >> PAGE_SHIFT).graveyard.unbury(addr, record.index);
        let mut number = |name: &Option<Arc<str>>| match name {
            Some(name) => self.labels.intern(name),
            None => NO_LABEL,
        };
        let key = Key {
            site: record.site,
            scope: number(&record.scope),
            tag: number(&record.tag),
            kind: record.kind,
        };
        let item = Item::new(record.index, self.groups.number(key), record.kind).free_refused();
        let back = Standing { addr, bytes: record.bytes, item };
        let misuse = match self.insert(back) {
            Inserted::BaseTaken(live) => {
                // What is live was recorded later, so the driver did give the address out again: it stays.
                let misuse = RecordMisuse::OverLive {
                    kept: self.live(&live),
                    displaced: self.outward(&back.item, back.bytes),
                };
                self.meter.misuse.note_record(&misuse);
                Some(Box::new(misuse))
            }
            inserted => {
                self.note(EventKind::Restored, back, record.site);
                self.judge(&back, None, inserted)
            }
        };
        Recorded { index: record.index, misuse }
    }

    /// Takes a small device allocation off, by the short way, if that may be taken and there is one.
    pub(crate) fn forget_small(
        &mut self,
        addr: u64,
        freed_at: &'static Location<'static>,
    ) -> Option<AllocRecord> {
        if !self.plain {
            return None;
        }
        let (gone, flips) = self.device.remove_small(addr)?;
        self.meter.small_goes(gone.bytes(), flips);
        self.small_is_gone(addr, &gone, freed_at);
        Some(self.outward(&gone.item, gone.bytes() as usize))
    }

    /// [`forget_small`](Self::forget_small) for the everyday case, as [`record_quickly`](Self::record_quickly). What is gone
    /// is still to be [made a record of](Self::outward), where that is wanted.
    #[inline(always)]
    pub(crate) fn forget_quickly(
        &mut self,
        addr: u64,
        freed_at: &'static Location<'static>,
    ) -> Option<(Entry, bool)> {
        if !self.plain || !self.meter.is_below_peak(0) {
            return None;
        }
        let (gone, flips) = self.device.remove_small_quickly(addr)?;
        self.meter.small_less(gone.bytes());
        self.small_is_gone(addr, &gone, freed_at);
        Some((gone, flips))
    }

    /// Takes a small allocation off its group, and remembers it.
    #[inline(always)]
    fn small_is_gone(&mut self, addr: u64, gone: &Entry, freed_at: &'static Location<'static>) {
        let (bytes, item) = (gone.bytes() as usize, gone.item);
        self.groups.get_mut(item.group()).1.change(-(bytes as i128), -1, Some(self.meter.peaks()));
        let was = Standing { addr, bytes, item };
        self.graveyard.bury(Tombstone { was, freed_at, how: FreedBy::Free, phase: self.phase });
    }

    /// Takes `addr` off, if a record of that class has it as its base.
    pub(crate) fn forget(
        &mut self,
        addr: u64,
        class: Class,
        freed_at: &'static Location<'static>,
    ) -> Result<AllocRecord, ForgetError> {
        match self.space(class).find(addr) {
            Some(found) if Class::of(found.item.kind()) == class => {
                self.remove(&found, freed_at, FreedBy::Free);
                Ok(self.outward(&found.item, found.bytes))
            }
            found => {
                let error = self.explain(addr, class, found);
                // What goes wrong after a peak is none of it.
                self.leave_peak();
                self.meter.misuse.note_free(&error);
                Err(error)
            }
        }
    }

    /// Takes every sweepable record off, in order of creation.
    pub(crate) fn drain(&mut self, freed_at: &'static Location<'static>) -> Vec<(u64, AllocRecord)> {
        let mut all: Vec<_> = self.device.iter().filter(|s| s.item.kind().is_sweepable()).collect();
        all.sort_unstable_by_key(|s| s.item.index);
        all.into_iter()
            .map(|gone| {
                self.remove(&gone, freed_at, FreedBy::Drain);
                (gone.addr, self.outward(&gone.item, gone.bytes))
            })
            .collect()
    }

    /// Names a live allocation; false where `addr` is no base of one.
    pub(crate) fn tag(&mut self, addr: u64, tag: &str) -> bool {
        let found = self.device.find(addr).map(|s| (s, false));
        let Some((found, is_host)) = found.or_else(|| self.host.find(addr).map(|s| (s, true))) else {
            return false;
        };
        let tag = self.labels.intern(tag);
        let old = found.item.group();
        let new = self.groups.number(Key { tag, ..self.groups.key(old) });
        if new != old {
            self.leave_peak();
            let after = Some(self.meter.peaks());
            self.groups.get_mut(old).1.change(-(found.bytes as i128), -1, after);
            self.groups.get_mut(new).1.change(found.bytes as i128, 1, after);
            let space = if is_host { &mut self.host } else { &mut self.device };
            space.set_group(addr, new);
        }
        true
    }

    pub(crate) fn whois(&self, addr: u64) -> Whois {
        let live = |owner: Standing| {
            let allocation = self.live(&owner);
            Whois::Live { offset_bytes: addr.wrapping_sub(allocation.addr), allocation }
        };
        let owner = self.device.owner(addr).or_else(|| self.host.owner(addr));
        if let Some(owner) = owner
            && owner.is_own()
        {
            return live(owner);
        }
        match self.last_stone(addr, |was| was.holds(addr)) {
            Some(stone) => {
                let freed = self.freed(stone);
                let offset_bytes = addr.wrapping_sub(freed.addr);
                Whois::Freed { freed, offset_bytes }
            }
            None => owner.map_or(Whois::Unknown, live),
        }
    }

    fn standing(&self) -> impl Iterator<Item = Standing> {
        self.device.iter().chain(self.host.iter())
    }

    /// How many live allocations, padding left out, are older than `index`.
    pub(crate) fn count_before(&self, index: u64) -> usize {
        self.standing().filter(|s| s.item.index < index && s.is_own()).count()
    }

    /// The live allocations that fit, in order of creation.
    pub(crate) fn live_where(&self, fits: impl Fn(&AllocRecord) -> bool) -> Vec<LiveAllocation> {
        let mut live: Vec<_> =
            self.standing().map(|s| self.live(&s)).filter(|live| fits(&live.record)).collect();
        live.sort_unstable_by_key(|live| live.record.index);
        live
    }

    pub(crate) fn reset_peak(&mut self) {
        let pages = self.pages();
        self.meter.reset_peak(pages);
    }

    /// Keeps the last `limit` events from now on; none where it is 0.
    pub(crate) fn keep_events(&mut self, limit: usize) {
        self.events = (limit > 0).then(|| Ring::new(limit));
    }

    pub(crate) fn recent_events(&self) -> Vec<Event> {
        let ring = self.events.iter().flat_map(Ring::iter);
        ring.map(|e| Event { number: e.number, kind: e.kind, allocation: self.live(&e.what), at: e.at })
            .collect()
    }

    /// Whether page counts must be made anew, at a cost, since live allocations overlap.
    #[inline]
    pub(crate) fn has_overlaps(&self) -> bool {
        self.device.has_overlaps()
    }

    /// Distinct pages, in any case.
    fn pages(&self) -> PageCounts {
        let counts = self.meter.pages();
        if !self.has_overlaps() {
            return counts;
        }
        let ranges = |fits: fn(AllocKind) -> bool| -> Vec<(u64, u64)> {
            self.device
                .iter()
                .filter(|s| fits(s.item.kind()))
                .filter_map(|s| Extent::new(s.addr, s.bytes).map(Extent::pages))
                .collect()
        };
        let device = covered_pages(&mut ranges(AllocKind::is_packed));
        let all = covered_pages(&mut ranges(|kind| kind.is_packed() || kind == AllocKind::Arena));
        PageCounts { device, arena_only: all - device, small: counts.small }
    }

    /// The totals, exact in any case; costs a walk over the live allocations while some overlap.
    pub(crate) fn settled_totals(&mut self) -> Totals {
        let pages = self.pages();
        self.meter.note_resident(pages);
        self.meter.totals(pages)
    }

    /// Who holds what now, or held it at the peak.
    pub(crate) fn moment(&mut self, at_peak: bool) -> Moment {
        let peaks = self.meter.peaks();
        let pick = |held: &crate::group::Held| if at_peak { held.at_peak(peaks) } else { held.now() };
        let mut held: Vec<(Key, Sum)> = self.groups.iter().map(|(key, held)| (*key, pick(held))).collect();
        for (&number, known) in self.device.shards.iter().flat_map(|shard| &shard.groups) {
            let part = pick(&known.held);
            held[number as usize].1.change(part.bytes, part.count);
        }
        held.retain(|(_, sum)| *sum != Sum::default());
        let totals = match self.meter.kept_peak() {
            Some(kept) if at_peak => kept,
            _ => self.settled_totals(),
        };
        // Their parts at a peak are not kept.
        let open = self.arenas.iter().filter(|_| !at_peak);
        let arenas = open.filter_map(|(base, parts)| {
            let arena = self.device.find(base)?;
            Some((base, self.outward(&arena.item, arena.bytes), Arc::clone(parts)))
        });
        Moment { totals, held, labels: self.labels.names.clone(), arenas: arenas.collect() }
    }

    fn space(&self, class: Class) -> &Space {
        match class {
            Class::Sweepable | Class::Arena | Class::Padding => &self.device,
            Class::Pinned => &self.host,
        }
    }

    /// The space that frees of this class do not reach.
    fn other_space(&self, class: Class) -> &Space {
        match class {
            Class::Pinned => &self.device,
            _ => &self.host,
        }
    }

    fn space_mut(&mut self, kind: AllocKind) -> &mut Space {
        match kind {
            AllocKind::Pinned => &mut self.host,
            _ => &mut self.device,
        }
    }

    /// Keeps the totals of the peak where overlaps make that the caller's business.
    fn leave_peak(&mut self) {
        if self.meter.is_at_peak() {
            let pages = self.pages();
            // As a snapshot taken there would have.
            self.meter.note_resident(pages);
            self.meter.keep_peak(pages);
        }
    }

    /// Counts what was put in or taken out. The meter's pages are still those from before, of which `overlaps` speaks.
    #[inline]
    fn count(&mut self, what: &Standing, comes: bool, flips: Flips, overlaps: bool) {
        let change = Change::of(what.item.kind(), what.bytes, comes, flips);
        let after = self.meter.apply(&change, overlaps);
        self.groups.get_mut(what.item.group()).1.change(change.bytes(), change.count(), after);
    }

    #[cold]
    fn note(&mut self, kind: EventKind, what: Standing, at: &'static Location<'static>) {
        if let Some(events) = &mut self.events {
            events.push(kind, what, at);
        }
    }

    /// Puts one in, unless another has its base.
    fn insert(&mut self, new: Standing) -> Inserted {
        let overlapped = self.has_overlaps();
        // One that makes a new peak leaves none: looking at all there is, each time, would take ever longer.
        if overlapped && !self.meter.makes_peak(new.item.kind(), new.bytes) {
            self.leave_peak();
        }
        let (inserted, pages) = self.space_mut(new.item.kind()).insert(new);
        if !matches!(inserted, Inserted::BaseTaken(_)) {
            self.count(&new, true, Flips::default(), overlapped);
            self.meter.add_pages(pages, self.device.has_overlaps());
            if new.item.kind() == AllocKind::Arena {
                self.arenas.open(new.addr, new.item.index);
            }
        }
        inserted
    }

    /// Takes a live one out and remembers it.
    fn remove(&mut self, gone: &Standing, freed_at: &'static Location<'static>, how: FreedBy) {
        let overlapped = self.has_overlaps();
        if overlapped {
            self.leave_peak();
        }
        let pages = self.space_mut(gone.item.kind()).remove(gone);
        self.count(gone, false, Flips::default(), overlapped);
        self.left(gone, freed_at, how);
        if gone.item.kind() == AllocKind::Arena {
            self.arenas.close(gone.addr, gone.item.index);
        }
        self.meter.add_pages(pages, self.device.has_overlaps());
    }

    #[inline]
    fn left(&mut self, gone: &Standing, freed_at: &'static Location<'static>, how: FreedBy) {
        // Padding is nobody's to free, and must not crowd out what was.
        if gone.is_own() {
            self.graveyard.bury(Tombstone { was: *gone, freed_at, how, phase: self.phase });
        }
        if self.events.is_some() {
            self.note(EventKind::Gone(how), *gone, freed_at);
        }
    }

    /// Puts a part under the arena with that base.
    pub(crate) fn begin_part(
        &mut self,
        arena: u64,
        offset_bytes: u64,
        part: (usize, &str, &'static Location<'static>),
        scope: Option<u32>,
    ) -> Result<(), SubRangeError> {
        let (bytes, name, site) = part;
        let found = self.device.find(arena).filter(|found| found.item.kind() == AllocKind::Arena);
        let owner = self.live(&found.ok_or(SubRangeError::NoArena { addr: arena })?);
        let scope = scope.and_then(|scope| self.labels.name(scope));
        let addr = arena.saturating_add(offset_bytes);
        self.arenas.begin(owner, offset_bytes, SubRange { addr, bytes, name: name.into(), site, scope })
    }

    /// The part of an arena that holds `addr`.
    pub(crate) fn part_at(&self, addr: u64) -> Option<&SubRange> {
        self.arenas.part_at(addr, self.has_overlaps())
    }

    /// The parts of arenas.
    pub(crate) fn arenas(&mut self) -> &mut Arenas {
        &mut self.arenas
    }

    /// The last free that fits, of an allocation that had `addr`.
    fn last_stone(&self, addr: u64, fits: impl Fn(&Standing) -> bool) -> Option<&Tombstone> {
        let here = self.graveyard.last(&fits);
        let dealt = self.device.shard(addr >> PAGE_SHIFT).graveyard.last(&fits);
        here.into_iter().chain(dealt).max_by_key(|stone| stone.phase)
    }

    /// What was wrong with one that went in; the weightiest, if several things were.
    fn judge(
        &mut self,
        new: &Standing,
        displaced: Option<Standing>,
        inserted: Inserted,
    ) -> Option<Box<RecordMisuse>> {
        let past_end =
            (new.bytes as u64).checked_sub(1).is_some_and(|more| new.addr.checked_add(more).is_none());
        if displaced.is_none() && inserted == Inserted::Clean && new.addr != 0 && new.bytes != 0 && !past_end
        {
            return None;
        }
        let live = self.live(new);
        let misuse = match (displaced, inserted) {
            (Some(old), _) => {
                RecordMisuse::OverLive { kept: live, displaced: self.outward(&old.item, old.bytes) }
            }
            (None, Inserted::Overlapping(other)) => {
                RecordMisuse::Overlap { new: live, with: self.live(&other) }
            }
            _ if past_end => RecordMisuse::PastEnd { new: live },
            _ if new.addr == 0 => RecordMisuse::Null { new: live },
            _ => RecordMisuse::Empty { new: live },
        };
        self.meter.misuse.note_record(&misuse);
        Some(Box::new(misuse))
    }

    /// Why `addr` is not to be freed by a call for `class`; `found` has that base.
    fn explain(&self, addr: u64, class: Class, found: Option<Standing>) -> ForgetError {
        if let Some(found) = found.filter(Standing::is_own)
            && self.part_at(addr).is_none()
        {
            return ForgetError::OtherKind { live: Box::new(self.live(&found)) };
        }
        if addr == 0 {
            return ForgetError::Null;
        }
        if let Some(part) = self.part_at(addr).filter(|part| part.addr == addr && class != Class::Pinned) {
            return ForgetError::SubRange { part: Box::new(part.clone()) };
        }
        let of_space = |was: &Standing| (was.item.kind() == AllocKind::Pinned) == (class == Class::Pinned);
        let owner = self.space(class).owner(addr).filter(Standing::is_own);
        let owner = owner.map(|owner| Box::new(self.live(&owner)));
        // A base that was handed out once says more than where the address lies now.
        if let Some(stone) = self.last_stone(addr, |was| was.addr == addr && of_space(was)) {
            return ForgetError::DoubleFree { freed: Box::new(self.freed(stone)), now_inside: owner };
        }
        if let Some(owner) = owner {
            return ForgetError::Interior { addr, owner };
        }
        match self.last_stone(addr, |was| was.holds(addr) && of_space(was)) {
            Some(stone) => ForgetError::InsideFreed { addr, freed: Box::new(self.freed(stone)) },
            // The other space has calls of its own; one address may stand for memory in both.
            None => {
                match self.other_space(class).owner(addr).filter(|other| other.is_own() && other.addr == addr)
                {
                    Some(other) => ForgetError::OtherKind { live: Box::new(self.live(&other)) },
                    None => ForgetError::Foreign { addr },
                }
            }
        }
    }

    /// A record as the API gives it.
    #[inline]
    pub(crate) fn outward(&self, item: &Item, bytes: usize) -> AllocRecord {
        let key = self.groups.key(item.group());
        AllocRecord {
            bytes,
            site: key.site,
            kind: item.kind(),
            scope: self.labels.name(key.scope),
            tag: self.labels.name(key.tag),
            index: item.index,
            free_refused: item.is_free_refused(),
        }
    }

    fn live(&self, one: &Standing) -> LiveAllocation {
        LiveAllocation { addr: one.addr, record: self.outward(&one.item, one.bytes) }
    }

    fn freed(&self, stone: &Tombstone) -> FreedAllocation {
        FreedAllocation {
            addr: stone.was.addr,
            record: self.outward(&stone.was.item, stone.was.bytes),
            freed_at: stone.freed_at,
            how: stone.how,
        }
    }
}

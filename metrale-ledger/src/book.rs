// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger's state behind its lock: slots, address spaces, sums, labels, tombstones.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use crate::index::{Extent, Inserted, Mixer, PageCounts, Space, Touch};
use crate::misuse::{
    ForgetError, FreedAllocation, FreedBy, Graveyard, MisuseCounts, RecordMisuse, Recorded, Tombstone,
};
use crate::residency::covered_pages;
use crate::snapshot::{Group, Site, Snapshot, Totals};
use crate::{AllocKind, AllocRecord, LiveAllocation, SMALL_ALLOC_CHUNK, Whois};

/// No scope, no tag.
const NO_LABEL: u32 = u32::MAX;

/// One allocation as the book keeps it. Labels are numbers here and names outside.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) addr: u64,
    pub(crate) bytes: usize,
    pub(crate) site: &'static Location<'static>,
    pub(crate) index: u64,
    scope: u32,
    tag: u32,
    kind: AllocKind,
    live: bool,
    /// It overlapped another when it was inserted.
    overlapped: bool,
    free_refused: bool,
}

impl Slot {
    fn touch(&self) -> Touch {
        match self.kind {
            AllocKind::Device => Touch::Device { small: (self.bytes as u64) < SMALL_ALLOC_CHUNK },
            AllocKind::Arena => Touch::Arena,
            AllocKind::Padding => Touch::Device { small: false },
            AllocKind::Managed | AllocKind::Pinned => Touch::Nothing,
        }
    }

    pub(crate) fn is_padding(&self) -> bool {
        self.kind == AllocKind::Padding
    }

    pub(crate) fn holds(&self, addr: u64) -> bool {
        self.addr == addr
            || Extent::new(self.addr, self.bytes).is_some_and(|e| e.first <= addr && addr <= e.last)
    }
}

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

/// Sum and number of the live allocations of a kind. Wide, since a caller may claim any size.
#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u128,
    count: usize,
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

    fn name(&self, id: u32) -> Option<Arc<str>> {
        self.names.get(id as usize).cloned()
    }
}

pub(crate) struct Book {
    slots: Vec<Slot>,
    vacant: Vec<usize>,
    device: Space,
    /// Host addresses, compared with each other only.
    host: Space,
    sums: [Sum; AllocKind::ALL.len()],
    /// Of device allocations smaller than a chunk.
    small_bytes: u128,
    next_index: u64,
    peak_bytes: u128,
    peak_resident_bytes: u128,
    labels: Labels,
    graveyard: Graveyard,
    misuse: MisuseCounts,
}

/// A byte total as the API counts them: what no `usize` holds shows as the largest.
fn narrow(bytes: u128) -> u64 {
    bytes.min(usize::MAX as u128) as u64
}

impl Book {
    pub(crate) fn new(tombstones: usize) -> Self {
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            device: Space::default(),
            host: Space::default(),
            sums: Default::default(),
            small_bytes: 0,
            next_index: 0,
            peak_bytes: 0,
            peak_resident_bytes: 0,
            labels: Labels::default(),
            graveyard: Graveyard::new(tombstones),
            misuse: MisuseCounts::default(),
        }
    }

    pub(crate) fn next_index(&self) -> u64 {
        self.next_index
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

    pub(crate) fn record(
        &mut self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        kind: AllocKind,
        scope: Option<u32>,
    ) -> Recorded {
        let index = self.next_index;
        self.next_index += 1;
        let slot = Slot {
            addr,
            bytes,
            site,
            index,
            scope: scope.unwrap_or(NO_LABEL),
            tag: NO_LABEL,
            kind,
            live: true,
            overlapped: false,
            free_refused: false,
        };
        let mut displaced = None;
        let inserted = match self.insert(slot) {
            Inserted::BaseTaken(old) => {
                // The driver has just given this address out, so what stood here is gone whether we saw its free or not.
                displaced = Some(self.remove(old, site, FreedBy::Displaced));
                self.insert(slot)
            }
            inserted => inserted,
        };
        let misuse = self.judge(&slot, displaced, inserted);
        Recorded { index, misuse }
    }

    /// Puts a record back that was taken off before a free the driver refused.
    pub(crate) fn restore(&mut self, addr: u64, record: &AllocRecord) -> Recorded {
        self.misuse.refused_frees += 1;
        self.graveyard.unbury(addr, record.index);
        let slot = Slot {
            addr,
            bytes: record.bytes,
            site: record.site,
            index: record.index,
            scope: record.scope.as_deref().map_or(NO_LABEL, |name| self.labels.intern(name)),
            tag: record.tag.as_deref().map_or(NO_LABEL, |name| self.labels.intern(name)),
            kind: record.kind,
            live: true,
            overlapped: false,
            free_refused: true,
        };
        let misuse = match self.insert(slot) {
            Inserted::BaseTaken(live) => {
                // What is live was recorded later, so the driver did give the address out again: it stays.
                let misuse = RecordMisuse::OverLive {
                    kept: self.live(&self.slots[live]),
                    displaced: self.outward(&slot),
                };
                self.misuse.note_record(&misuse);
                Some(Box::new(misuse))
            }
            inserted => self.judge(&slot, None, inserted),
        };
        Recorded { index: record.index, misuse }
    }

    /// Takes `addr` off, if a record of that class has it as its base.
    pub(crate) fn forget(
        &mut self,
        addr: u64,
        class: Class,
        freed_at: &'static Location<'static>,
    ) -> Result<AllocRecord, ForgetError> {
        match self.space(class).find(addr) {
            Some(at) if Class::of(self.slots[at].kind) == class => {
                let slot = self.remove(at, freed_at, FreedBy::Free);
                Ok(self.outward(&slot))
            }
            found => {
                let error = self.explain(addr, class, found);
                self.misuse.note_free(&error);
                Err(error)
            }
        }
    }

    /// Takes every sweepable record off, in order of creation.
    pub(crate) fn drain(&mut self, freed_at: &'static Location<'static>) -> Vec<(u64, AllocRecord)> {
        let mut at: Vec<usize> = (0..self.slots.len())
            .filter(|&i| self.slots[i].live && self.slots[i].kind.is_sweepable())
            .collect();
        at.sort_unstable_by_key(|&i| self.slots[i].index);
        at.into_iter()
            .map(|i| {
                let slot = self.remove(i, freed_at, FreedBy::Drain);
                (slot.addr, self.outward(&slot))
            })
            .collect()
    }

    /// Names a live allocation; false where `addr` is no base of one.
    pub(crate) fn tag(&mut self, addr: u64, tag: &str) -> bool {
        let Some(at) = self.device.find(addr).or_else(|| self.host.find(addr)) else { return false };
        self.slots[at].tag = self.labels.intern(tag);
        true
    }

    pub(crate) fn whois(&self, addr: u64) -> Whois {
        let owner = self.device.owner(addr).or_else(|| self.host.owner(addr));
        if let Some(at) = owner
            && self.slots[at].kind != AllocKind::Padding
        {
            let allocation = self.live(&self.slots[at]);
            let offset_bytes = addr.wrapping_sub(allocation.addr);
            return Whois::Live { allocation, offset_bytes };
        }
        match self.graveyard.last(|slot| slot.holds(addr)) {
            Some(stone) => {
                let freed = self.freed(stone);
                let offset_bytes = addr.wrapping_sub(freed.addr);
                Whois::Freed { freed, offset_bytes }
            }
            None => match owner {
                Some(at) => {
                    let allocation = self.live(&self.slots[at]);
                    let offset_bytes = addr.wrapping_sub(allocation.addr);
                    Whois::Live { allocation, offset_bytes }
                }
                None => Whois::Unknown,
            },
        }
    }

    pub(crate) fn live_slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.live)
    }

    /// The live allocations that fit, in order of creation.
    pub(crate) fn live_where(&self, fits: impl Fn(&AllocRecord) -> bool) -> Vec<LiveAllocation> {
        let mut live: Vec<_> =
            self.live_slots().map(|slot| self.live(slot)).filter(|live| fits(&live.record)).collect();
        live.sort_unstable_by_key(|live| live.record.index);
        live
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak_bytes = self.sweepable().bytes;
        self.peak_resident_bytes = u128::from(self.pages().device) * u128::from(SMALL_ALLOC_CHUNK);
    }

    /// Whether page counts must be made anew, at a cost, since live allocations overlap.
    pub(crate) fn has_overlaps(&self) -> bool {
        self.device.has_overlaps()
    }

    fn sum(&self, kind: AllocKind) -> Sum {
        self.sums[kind as usize]
    }

    fn sweepable(&self) -> Sum {
        let (device, managed) = (self.sum(AllocKind::Device), self.sum(AllocKind::Managed));
        Sum { bytes: device.bytes + managed.bytes, count: device.count + managed.count }
    }

    /// Distinct pages, in any case.
    fn pages(&self) -> PageCounts {
        let counts = self.device.counts();
        if !self.has_overlaps() {
            return counts;
        }
        let ranges = |fits: fn(AllocKind) -> bool| -> Vec<(u64, u64)> {
            self.live_slots()
                .filter(|slot| fits(slot.kind))
                .filter_map(|slot| Extent::new(slot.addr, slot.bytes).map(Extent::pages))
                .collect()
        };
        let device = covered_pages(&mut ranges(AllocKind::is_packed));
        let all = covered_pages(&mut ranges(|kind| kind.is_packed() || kind == AllocKind::Arena));
        PageCounts { device, arena_only: all - device, small: counts.small }
    }

    /// All totals of this moment, given its distinct pages.
    #[inline]
    fn totals(&mut self, pages: PageCounts) -> Totals {
        let page_bytes = |pages: u64| u128::from(pages) * u128::from(SMALL_ALLOC_CHUNK);
        let (sweepable, device) = (self.sweepable(), self.sum(AllocKind::Device));
        let (managed, arena, pinned) =
            (self.sum(AllocKind::Managed), self.sum(AllocKind::Arena), self.sum(AllocKind::Pinned));
        let padding = self.sum(AllocKind::Padding);
        let resident = page_bytes(pages.device);
        let slack = resident.saturating_sub(device.bytes.saturating_add(padding.bytes));
        let chunk_slack = page_bytes(pages.small).saturating_sub(self.small_bytes);
        self.peak_resident_bytes = self.peak_resident_bytes.max(resident);
        Totals {
            live_bytes: narrow(sweepable.bytes),
            live_count: sweepable.count as u64,
            resident_bytes: narrow(resident),
            slack_bytes: narrow(slack),
            // Padding in the chunks cannot be told from padding elsewhere, so it only bounds what is said of them.
            chunk_slack_bytes: narrow(if padding.bytes > 0 { chunk_slack.min(slack) } else { chunk_slack }),
            peak_bytes: narrow(self.peak_bytes),
            peak_resident_bytes: narrow(self.peak_resident_bytes),
            managed_bytes: narrow(managed.bytes),
            managed_count: managed.count as u64,
            arena_bytes: narrow(arena.bytes),
            arena_count: arena.count as u64,
            arena_resident_bytes: narrow(page_bytes(pages.arena_only)),
            pinned_bytes: narrow(pinned.bytes),
            pinned_count: pinned.count as u64,
            padding_bytes: narrow(padding.bytes),
            padding_count: padding.count as u64,
            misuse: self.misuse,
        }
    }

    /// The totals, exact in any case; costs a walk over the live allocations while some overlap.
    pub(crate) fn settled_totals(&mut self) -> Totals {
        let pages = self.pages();
        self.totals(pages)
    }

    /// The totals at the cost of a few additions; exact while nothing overlaps.
    #[inline]
    pub(crate) fn running_totals(&mut self) -> Totals {
        self.totals(self.device.counts())
    }

    /// Totals that no overlap touches: live bytes and count, and the peak of live bytes.
    pub(crate) fn live_totals(&self) -> (u64, u64, u64) {
        let live = self.sweepable();
        (narrow(live.bytes), live.count as u64, narrow(self.peak_bytes))
    }

    /// One moment as plain data.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        type Key = (*const Location<'static>, u32, u32, AllocKind);
        let mut at: HashMap<Key, usize, Mixer> = HashMap::default();
        let mut sums: Vec<(Slot, Sum)> = Vec::new();
        // Neighbours in the list were often made by one line in one scope.
        let mut last: Option<(Key, usize)> = None;
        for slot in self.slots.iter().filter(|slot| slot.live) {
            let key = (std::ptr::from_ref(slot.site), slot.scope, slot.tag, slot.kind);
            let group = match last {
                Some((same, group)) if same == key => group,
                _ => *at.entry(key).or_insert_with(|| {
                    sums.push((*slot, Sum::default()));
                    sums.len() - 1
                }),
            };
            last = Some((key, group));
            sums[group].1.bytes += slot.bytes as u128;
            sums[group].1.count += 1;
        }
        let name = |id: u32| self.labels.name(id).map(|name| name.to_string());
        let groups = sums
            .into_iter()
            .map(|(slot, sum)| Group {
                site: Site::of(slot.site),
                scope: name(slot.scope),
                tag: name(slot.tag),
                kind: slot.kind,
                bytes: narrow(sum.bytes),
                count: sum.count as u64,
            })
            .collect();
        Snapshot::new(self.settled_totals(), groups)
    }

    fn space(&self, class: Class) -> &Space {
        match class {
            Class::Sweepable | Class::Arena | Class::Padding => &self.device,
            Class::Pinned => &self.host,
        }
    }

    fn space_mut(&mut self, kind: AllocKind) -> &mut Space {
        match kind {
            AllocKind::Pinned => &mut self.host,
            _ => &mut self.device,
        }
    }

    /// Puts a slot in, unless another has its base.
    fn insert(&mut self, mut slot: Slot) -> Inserted {
        let at = self.vacant.last().copied().unwrap_or(self.slots.len());
        let inserted = self.space_mut(slot.kind).insert(slot.addr, slot.bytes, at, slot.touch());
        slot.overlapped = match inserted {
            Inserted::BaseTaken(_) => return inserted,
            Inserted::Overlapping(_) => true,
            Inserted::Clean => false,
        };
        match self.vacant.pop() {
            Some(at) => self.slots[at] = slot,
            None => self.slots.push(slot),
        }
        let sum = &mut self.sums[slot.kind as usize];
        sum.bytes += slot.bytes as u128;
        sum.count += 1;
        if slot.touch() == (Touch::Device { small: true }) {
            self.small_bytes += slot.bytes as u128;
        }
        self.peak_bytes = self.peak_bytes.max(self.sweepable().bytes);
        inserted
    }

    /// Takes a live slot out and remembers it.
    fn remove(&mut self, at: usize, freed_at: &'static Location<'static>, how: FreedBy) -> Slot {
        let slot = self.slots[at];
        self.slots[at].live = false;
        self.vacant.push(at);
        self.space_mut(slot.kind).remove(slot.addr, slot.bytes, slot.touch(), slot.overlapped);
        let sum = &mut self.sums[slot.kind as usize];
        sum.bytes -= slot.bytes as u128;
        sum.count -= 1;
        if slot.touch() == (Touch::Device { small: true }) {
            self.small_bytes -= slot.bytes as u128;
        }
        // Padding is nobody's to free, and must not crowd out what was.
        if slot.kind != AllocKind::Padding {
            self.graveyard.bury(Tombstone { slot, freed_at, how });
        }
        slot
    }

    /// What was wrong with a slot that went in; the weightiest, if several things were.
    fn judge(
        &mut self,
        slot: &Slot,
        displaced: Option<Slot>,
        inserted: Inserted,
    ) -> Option<Box<RecordMisuse>> {
        let past_end =
            (slot.bytes as u64).checked_sub(1).is_some_and(|more| slot.addr.checked_add(more).is_none());
        if displaced.is_none()
            && inserted == Inserted::Clean
            && slot.addr != 0
            && slot.bytes != 0
            && !past_end
        {
            return None;
        }
        let new = self.live(slot);
        let misuse = match (displaced, inserted) {
            (Some(old), _) => RecordMisuse::OverLive { kept: new, displaced: self.outward(&old) },
            (None, Inserted::Overlapping(at)) => {
                RecordMisuse::Overlap { new, with: self.live(&self.slots[at]) }
            }
            _ if past_end => RecordMisuse::PastEnd { new },
            _ if slot.addr == 0 => RecordMisuse::Null { new },
            _ => RecordMisuse::Empty { new },
        };
        self.misuse.note_record(&misuse);
        Some(Box::new(misuse))
    }

    /// Why `addr` is not to be freed by a call for `class`; `found` is the slot with that base.
    fn explain(&self, addr: u64, class: Class, found: Option<usize>) -> ForgetError {
        let is_own = |at: &usize| self.slots[*at].kind != AllocKind::Padding;
        if let Some(at) = found.filter(is_own) {
            return ForgetError::OtherKind { live: Box::new(self.live(&self.slots[at])) };
        }
        if addr == 0 {
            return ForgetError::Null;
        }
        let of_space = |slot: &Slot| (slot.kind == AllocKind::Pinned) == (class == Class::Pinned);
        let owner =
            self.space(class).owner(addr).filter(is_own).map(|at| Box::new(self.live(&self.slots[at])));
        // A base that was handed out once says more than where the address lies now.
        if let Some(stone) = self.graveyard.last(|slot| slot.addr == addr && of_space(slot)) {
            return ForgetError::DoubleFree { freed: Box::new(self.freed(stone)), now_inside: owner };
        }
        if let Some(owner) = owner {
            return ForgetError::Interior { addr, owner };
        }
        match self.graveyard.last(|slot| slot.holds(addr) && of_space(slot)) {
            Some(stone) => ForgetError::InsideFreed { addr, freed: Box::new(self.freed(stone)) },
            None => ForgetError::Foreign { addr },
        }
    }

    fn outward(&self, slot: &Slot) -> AllocRecord {
        AllocRecord {
            bytes: slot.bytes,
            site: slot.site,
            kind: slot.kind,
            scope: self.labels.name(slot.scope),
            tag: self.labels.name(slot.tag),
            index: slot.index,
            free_refused: slot.free_refused,
        }
    }

    fn live(&self, slot: &Slot) -> LiveAllocation {
        LiveAllocation { addr: slot.addr, record: self.outward(slot) }
    }

    fn freed(&self, stone: &Tombstone) -> FreedAllocation {
        FreedAllocation {
            addr: stone.slot.addr,
            record: self.outward(&stone.slot),
            freed_at: stone.freed_at,
            how: stone.how,
        }
    }
}

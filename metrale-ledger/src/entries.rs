// SPDX-License-Identifier: MIT OR Apache-2.0
//! The allocations that lie whole in one 2 MiB page.
//!
//! ```text
//!  Entries ── slots: the grain of a base ─> entry                  one look at one place, as a rule
//!          └─ sheet: a bit for each grain of 512 bytes             whether an entry has a byte of it; none for a few entries
//!              └─ fine: base ─> entry                              where two entries share a grain, all of them instead
//! ```
//! A driver rounds to 512 bytes, so what it gives out never shares a grain: a few bits tell whether there is room, and no
//! neighbour is looked at. Whoever records other ranges, with padding beside them or of an allocator of his own, may share
//! one; such a page keeps its entries in order instead, until it is empty. All its grains are then marked and all its slots
//! free, so that the short ways lead to nothing and nobody has to ask which sort of page it is.

use std::collections::BTreeMap;

use crate::mixer::home;
use crate::page::{PAGE_SHIFT, Touch};
use crate::{AllocKind, SMALL_ALLOC_CHUNK};

/// Bytes to which a driver rounds, as a shift.
const GRAIN_SHIFT: u32 = 9;
/// Words of a sheet.
const WORDS: usize = 1 << (PAGE_SHIFT - GRAIN_SHIFT - u64::BITS.trailing_zeros());
/// The offset of a free slot; no entry has it.
const FREE: u32 = u32::MAX;

/// What is kept of a live allocation besides its place and size. In whole words, as entries are: what is written in parts
/// and read as one makes a processor wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) index: u64,
    /// From the lowest bit: its line, scope, tag and kind, as a number of the book's; the kind; flags.
    rest: u64,
}

impl Item {
    const KIND_SHIFT: u32 = u32::BITS;
    const KIND: u64 = 0xff << Self::KIND_SHIFT;
    /// It overlapped another when it was inserted.
    const OVERLAPPED: u64 = 1 << 40;
    const FREE_REFUSED: u64 = 1 << 41;

    #[inline]
    pub(crate) const fn new(index: u64, group: u32, kind: AllocKind) -> Self {
        Self { index, rest: group as u64 | (kind as u64) << Self::KIND_SHIFT }
    }

    #[inline]
    pub(crate) fn group(&self) -> u32 {
        self.rest as u32
    }

    pub(crate) fn set_group(&mut self, group: u32) {
        self.rest = self.rest & !u64::from(u32::MAX) | u64::from(group);
    }

    pub(crate) fn kind(&self) -> AllocKind {
        const KINDS: [AllocKind; 4] =
            [AllocKind::Device, AllocKind::Managed, AllocKind::Arena, AllocKind::Pinned];
        let number = (self.rest & Self::KIND) >> Self::KIND_SHIFT;
        KINDS.into_iter().find(|kind| *kind as u64 == number).unwrap_or(AllocKind::Padding)
    }

    /// Whether another is of the same kind.
    #[inline(always)]
    pub(crate) fn is_kind_of(&self, other: &Self) -> bool {
        (self.rest ^ other.rest) & Self::KIND == 0
    }

    #[inline]
    pub(crate) fn is_device(&self) -> bool {
        self.rest & Self::KIND == (AllocKind::Device as u64) << Self::KIND_SHIFT
    }

    pub(crate) fn is_overlapped(&self) -> bool {
        self.rest & Self::OVERLAPPED != 0
    }

    #[inline]
    pub(crate) fn is_free_refused(&self) -> bool {
        self.rest & Self::FREE_REFUSED != 0
    }

    /// The same, told to have overlapped another or not.
    pub(crate) fn overlapped(self, overlapped: bool) -> Self {
        let others = self.rest & !Self::OVERLAPPED;
        Self { rest: if overlapped { others | Self::OVERLAPPED } else { others }, ..self }
    }

    /// The same, whose free the driver refused.
    pub(crate) fn free_refused(self) -> Self {
        Self { rest: self.rest | Self::FREE_REFUSED, ..self }
    }
}

/// An allocation that lies whole in a page.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// Where it begins in the page, and behind that in the word, its bytes.
    range: u64,
    pub(crate) item: Item,
}

impl Entry {
    const FREE: Self = Self::new(FREE, 0, Item::new(0, 0, AllocKind::Device));

    #[inline]
    pub(crate) const fn new(offset: u32, bytes: u32, item: Item) -> Self {
        Self { range: offset as u64 | (bytes as u64) << u32::BITS, item }
    }

    #[inline]
    pub(crate) fn offset(&self) -> u32 {
        self.range as u32
    }

    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        (self.range >> u32::BITS) as u32
    }

    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.offset() + self.bytes()
    }

    #[inline]
    fn is_free(&self) -> bool {
        self.offset() == FREE
    }

    /// Whether it is a device allocation smaller than a chunk.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        self.item.is_device() && u64::from(self.bytes()) < SMALL_ALLOC_CHUNK
    }

    pub(crate) fn touch(&self) -> Touch {
        Touch::of(self.item.kind(), self.bytes() as usize)
    }

    fn meets(&self, offset: u32, end: u32) -> bool {
        self.offset() < end && self.end() > offset
    }
}

/// The grains of a page that entries have bytes of.
struct Sheet {
    grains: [u64; WORDS],
    /// The entries, where two of them share a grain.
    fine: Option<Box<Fine>>,
}

/// Entries by base.
#[derive(Default)]
struct Fine {
    entries: BTreeMap<u32, Entry>,
    /// None of them has more bytes.
    longest: u32,
    /// How many overlapped another when they were inserted: at 0 only the nearest can hold a byte.
    overlapped: u32,
}

/// The word of a sheet with the grains that hold the bytes from `first` to `last`, and their bits; none where they are in
/// several.
#[inline(always)]
fn one_word(first: u32, last: u32) -> Option<(usize, u64)> {
    let (first, last) = (first >> GRAIN_SHIFT, last >> GRAIN_SHIFT);
    let bits = (u64::MAX << (first % u64::BITS)) & (u64::MAX >> (u64::BITS - 1 - last % u64::BITS));
    (first / u64::BITS == last / u64::BITS).then_some(((first / u64::BITS) as usize % WORDS, bits))
}

/// Those words, where they are several, each with its bits.
#[inline]
fn words(first: u32, last: u32) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (first >> GRAIN_SHIFT, last >> GRAIN_SHIFT);
    let word = |grain: u32| (grain / u64::BITS) as usize % WORDS;
    let ends = [
        (word(first), u64::MAX << (first % u64::BITS)),
        (word(last), u64::MAX >> (u64::BITS - 1 - last % u64::BITS)),
    ];
    ends.into_iter().chain((word(first) + 1..word(last)).map(|word| (word % WORDS, u64::MAX)))
}

impl Sheet {
    fn new() -> Self {
        Self { grains: [0; WORDS], fine: None }
    }

    /// Whether no grain that holds a byte from `first` to `last` is marked.
    #[inline(always)]
    fn is_clear(&self, first: u32, last: u32) -> bool {
        match one_word(first, last) {
            Some((word, bits)) => self.grains[word] & bits == 0,
            None => self.are_clear(first, last),
        }
    }

    #[inline(never)]
    fn are_clear(&self, first: u32, last: u32) -> bool {
        words(first, last).all(|(word, bits)| self.grains[word] & bits == 0)
    }

    #[inline(always)]
    fn mark(&mut self, first: u32, last: u32) {
        match one_word(first, last) {
            Some((word, bits)) => self.grains[word] |= bits,
            None => self.mark_words(first, last),
        }
    }

    #[inline(never)]
    fn mark_words(&mut self, first: u32, last: u32) {
        words(first, last).for_each(|(word, bits)| self.grains[word] |= bits);
    }

    #[inline(always)]
    fn unmark(&mut self, first: u32, last: u32) {
        match one_word(first, last) {
            Some((word, bits)) => self.grains[word] &= !bits,
            None => self.unmark_words(first, last),
        }
    }

    #[inline(never)]
    fn unmark_words(&mut self, first: u32, last: u32) {
        words(first, last).for_each(|(word, bits)| self.grains[word] &= !bits);
    }
}

impl Fine {
    /// Those that share bytes with `offset..end` and begin at `offset` or before, the nearest first.
    fn over(&self, offset: u32, end: u32) -> impl Iterator<Item = &Entry> {
        let depth = if self.overlapped > 0 { usize::MAX } else { 1 };
        let near = self.entries.range(..=offset).rev().map(|(_, entry)| entry).take(depth);
        near.take_while(move |entry| entry.offset().saturating_add(self.longest) > offset)
            .filter(move |entry| entry.meets(offset, end))
    }
}

/// Slots up to which there is no sheet: whether there is room is seen at all of them at once, and a page that only one or two
/// allocations lie in takes little memory.
const FEW: usize = 4;

/// Whether so many slots are too few for another entry.
#[inline]
fn is_full(entries: u32, slots: usize) -> bool {
    8 * (entries as usize + 1) > 5 * slots
}

/// Entries of one page, each with a base of its own. Their memory stays when they are gone.
#[derive(Default)]
pub(crate) struct Entries {
    /// Open addressing: a power of two of them, at most five eighths full, or none.
    slots: Box<[Entry]>,
    /// None as long as there are [few](FEW) slots and nothing is kept in order.
    sheet: Option<Box<Sheet>>,
    count: u32,
    /// No entry is in a slot further from its home. So a slot that was freed is free, whoever went on behind it.
    reach: u32,
}

impl Entries {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// For how many slots memory is held.
    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether so little memory is held that it is worth keeping for other pages.
    pub(crate) fn is_modest(&self) -> bool {
        self.count == 0 && self.slots.len() <= 16
    }

    /// The first slot to look in. Neighbours in a page are neighbours here as a rule.
    #[inline(always)]
    fn home(&self, offset: u32) -> usize {
        home((offset >> GRAIN_SHIFT).into(), self.slots.len())
    }

    /// The slot of the entry that begins at `offset`.
    #[inline(always)]
    fn slot(&self, offset: u32) -> Option<usize> {
        self.slot_where(offset, |slot| slot.offset() == offset)
    }

    /// The slot of the entry that fits, where one that does would begin in the grain of `offset`.
    #[inline(always)]
    fn slot_where(&self, offset: u32, fits: impl Fn(&Entry) -> bool) -> Option<usize> {
        let mut at = self.home(offset);
        let mut further = self.reach;
        while !fits(self.slots.get(at)?) {
            further = further.checked_sub(1)?;
            at = (at + 1) & (self.slots.len() - 1);
        }
        Some(at)
    }

    fn fine(&self) -> Option<&Fine> {
        self.sheet.as_ref()?.fine.as_deref()
    }

    fn fine_mut(&mut self) -> Option<&mut Fine> {
        self.sheet.as_mut()?.fine.as_deref_mut()
    }

    /// The entry that begins at `offset`.
    #[inline]
    pub(crate) fn find(&self, offset: u32) -> Option<Entry> {
        match self.slot(offset) {
            Some(at) => self.slots.get(at).copied(),
            None => self.fine()?.entries.get(&offset).copied(),
        }
    }

    pub(crate) fn item_mut(&mut self, offset: u32) -> Option<&mut Item> {
        match self.slot(offset) {
            Some(at) => Some(&mut self.slots[at].item),
            None => self.fine_mut()?.entries.get_mut(&offset).map(|entry| &mut entry.item),
        }
    }

    /// All there are, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> {
        let fine = self.fine().into_iter().flat_map(|fine| fine.entries.values());
        self.slots.iter().filter(|slot| !slot.is_free()).chain(fine).copied()
    }

    /// The entry that holds the byte at `offset`: of several, the one with the highest base.
    pub(crate) fn owner(&self, offset: u32) -> Option<Entry> {
        let Some(sheet) = &self.sheet else {
            return self.iter().find(|entry| entry.meets(offset, offset + 1));
        };
        if let Some(fine) = &sheet.fine {
            return fine.over(offset, offset + 1).next().copied();
        }
        // Of entries that share no grain, the nearest that begins at a grain before, or in this one.
        let marked = |grain: u32| !sheet.is_clear(grain << GRAIN_SHIFT, grain << GRAIN_SHIFT);
        let grains = (0..=offset >> GRAIN_SHIFT).rev().take_while(|&grain| marked(grain));
        let nearest = grains.filter_map(|grain| self.of_grain(grain)).next()?;
        nearest.meets(offset, offset + 1).then_some(nearest)
    }

    /// The entry that begins in that grain, where none shares one.
    fn of_grain(&self, grain: u32) -> Option<Entry> {
        let begins_there = |slot: &Entry| slot.offset() >> GRAIN_SHIFT == grain;
        self.slot_where(grain << GRAIN_SHIFT, begins_there).map(|at| self.slots[at])
    }

    /// An entry that shares bytes with `offset..offset + bytes`: the nearest that begins at or before `offset`, or else the
    /// nearest behind.
    pub(crate) fn clash(&self, offset: u32, bytes: u32) -> Option<Entry> {
        let end = offset + bytes;
        if self.seems_clear(offset, end) {
            return None;
        }
        if let Some(fine) = self.fine() {
            let behind = || fine.entries.range(offset..end).next().map(|(_, entry)| entry);
            return fine.over(offset, end).next().or_else(behind).copied();
        }
        let sharing = || self.iter().filter(|entry| entry.meets(offset, end));
        let before = sharing().filter(|entry| entry.offset() <= offset).max_by_key(|entry| entry.offset());
        before.or_else(|| sharing().min_by_key(|entry| entry.offset()))
    }

    /// The entry with the lowest base.
    pub(crate) fn first(&self) -> Option<Entry> {
        self.iter().min_by_key(|entry| entry.offset())
    }

    /// Whether no entry has a byte of `offset..end`, or of the grains that these are in where there is a sheet.
    #[inline(always)]
    fn seems_clear(&self, offset: u32, end: u32) -> bool {
        match &self.sheet {
            Some(sheet) => sheet.is_clear(offset, end - 1),
            // A free slot meets nothing.
            None => self.count == 0 || !self.slots.iter().any(|slot| slot.meets(offset, end)),
        }
    }

    /// Whether it is quickly seen that an entry of these bytes shares none, and there is a slot for it. Calls nothing.
    #[inline(always)]
    pub(crate) fn has_room(&self, offset: u32, end: u32) -> bool {
        !is_full(self.count, self.slots.len()) && self.seems_clear(offset, end)
    }

    /// Puts in an entry that has bytes, if it is [quickly seen](Self::has_room) that there is room; else nothing is done.
    #[inline(always)]
    pub(crate) fn put_quickly(&mut self, entry: Entry) -> bool {
        let has_room = self.has_room(entry.offset(), entry.end());
        if has_room {
            self.put_at_once(entry);
        }
        has_room
    }

    /// Puts in an entry for which there [is room](Self::has_room).
    #[inline(always)]
    pub(crate) fn put_at_once(&mut self, entry: Entry) {
        if let Some(sheet) = &mut self.sheet {
            sheet.mark(entry.offset(), entry.end() - 1);
        }
        self.put_in_slot(entry);
    }

    /// Puts in an entry that has bytes, unless it shares some with another; whether it was put in.
    pub(crate) fn put_clean(&mut self, entry: Entry) -> bool {
        if self.put_quickly(entry) {
            return true;
        }
        if self.clash(entry.offset(), entry.bytes()).is_some() {
            return false;
        }
        if self.fine().is_none() && is_full(self.count, self.slots.len()) {
            self.grow();
        }
        if !self.put_quickly(entry) {
            self.put_fine(entry);
        }
        true
    }

    /// Puts in an entry that has bytes, and a base that no other has. One that shares bytes with another is told to.
    pub(crate) fn put(&mut self, entry: Entry) {
        if !self.put_clean(entry) {
            self.put_fine(entry);
        }
    }

    /// Puts an entry in order, and all others if they are not yet.
    fn put_fine(&mut self, entry: Entry) {
        let fine = self.in_order();
        fine.longest = fine.longest.max(entry.bytes());
        fine.overlapped += u32::from(entry.item.is_overlapped());
        fine.entries.insert(entry.offset(), entry);
        self.count += 1;
    }

    /// The entries, in order from now on.
    fn in_order(&mut self) -> &mut Fine {
        let slots = &mut self.slots;
        let sheet = self.sheet.get_or_insert_with(|| Box::new(Sheet::new()));
        sheet.grains = [u64::MAX; WORDS];
        sheet.fine.get_or_insert_with(|| {
            let others = std::mem::take(slots).into_iter().filter(|slot| !slot.is_free());
            let entries: BTreeMap<u32, Entry> = others.map(|entry| (entry.offset(), entry)).collect();
            let longest = entries.values().map(|entry| entry.bytes()).max().unwrap_or(0);
            let overlapped = entries.values().map(|entry| u32::from(entry.item.is_overlapped())).sum();
            Box::new(Fine { entries, longest, overlapped })
        })
    }

    /// Puts an entry in the first free slot from its home on; there must be one.
    #[inline(always)]
    fn put_in_slot(&mut self, entry: Entry) {
        let mut at = self.home(entry.offset());
        let mut steps = 0;
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.is_free() {
                // Word by word, from registers.
                slot.range = entry.range;
                slot.item.index = entry.item.index;
                slot.item.rest = entry.item.rest;
                self.count += 1;
                break;
            }
            at = (at + 1) & (self.slots.len() - 1);
            steps += 1;
        }
        if steps > self.reach {
            self.reach = steps;
        }
    }

    /// Makes more slots, and a sheet where they are not few; or keeps the entries in order, where some share a grain.
    #[cold]
    fn grow(&mut self) {
        let more = (2 * self.slots.len()).max(FEW);
        if more > FEW && self.sheet.is_none() {
            let mut sheet = Box::new(Sheet::new());
            let shares = self.iter().any(|entry| {
                let (first, last) = (entry.offset(), entry.end() - 1);
                let clear = sheet.is_clear(first, last);
                sheet.mark(first, last);
                !clear
            });
            if shares {
                self.in_order();
                return;
            }
            self.sheet = Some(sheet);
        }
        let old = std::mem::replace(&mut self.slots, vec![Entry::FREE; more].into_boxed_slice());
        (self.count, self.reach) = (0, 0);
        old.into_iter().filter(|slot| !slot.is_free()).for_each(|entry| self.put_in_slot(entry));
    }

    /// [`take_if`](Self::take_if) where entries are not kept in order; else nothing is done. Calls nothing.
    #[inline(always)]
    pub(crate) fn take_quickly(&mut self, offset: u32, may_go: impl FnOnce(&Entry) -> bool) -> Option<Entry> {
        let at = self.slot(offset)?;
        let gone = *self.slots.get(at)?;
        if !may_go(&gone) {
            return None;
        }
        if let Some(sheet) = &mut self.sheet {
            sheet.unmark(offset, gone.end() - 1);
        }
        self.slots[at].range = Entry::FREE.range;
        self.count -= 1;
        Some(gone)
    }

    /// Takes out the entry that begins at `offset`, if it may go.
    pub(crate) fn take_if(&mut self, offset: u32, may_go: impl Fn(&Entry) -> bool) -> Option<Entry> {
        self.take_quickly(offset, &may_go).or_else(|| self.take_fine(offset, &may_go))
    }

    fn take_fine(&mut self, offset: u32, may_go: &impl Fn(&Entry) -> bool) -> Option<Entry> {
        let fine = self.fine_mut()?;
        let gone = fine.entries.get(&offset).copied().filter(may_go)?;
        fine.entries.remove(&offset);
        fine.overlapped -= u32::from(gone.item.is_overlapped());
        self.count -= 1;
        if let Some(sheet) = &mut self.sheet
            && self.count == 0
        {
            **sheet = Sheet::new();
        }
        Some(gone)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

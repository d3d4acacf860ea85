// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies in one 2 MiB page, and the table of the pages of a shard.

use std::hash::{BuildHasherDefault, Hasher};

use crate::{AllocKind, SMALL_ALLOC_CHUNK};

pub(crate) const PAGE_SHIFT: u32 = SMALL_ALLOC_CHUNK.trailing_zeros();
const REGION_SHIFT: u32 = PAGE_SHIFT - 6;
/// Pages of a shard that stay though nothing lies in them, for the next allocation there, so that a steady state asks the host
/// for no memory.
const KEPT: usize = 64;

/// What an allocation contributes to the page counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Nothing,
    Arena,
    Device {
        /// Smaller than a chunk.
        small: bool,
    },
}

impl Touch {
    pub(crate) fn of(kind: AllocKind, bytes: usize) -> Self {
        match kind {
            AllocKind::Device => Self::Device { small: (bytes as u64) < SMALL_ALLOC_CHUNK },
            // However small: only what callers asked for shows how full the chunks are.
            AllocKind::Padding => Self::Device { small: false },
            AllocKind::Arena => Self::Arena,
            AllocKind::Managed | AllocKind::Pinned => Self::Nothing,
        }
    }
}

/// Where an allocation may be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Anywhere,
    /// In a page that a device allocation touches already.
    HeldPage,
}

/// Distinct pages by what touches them, or a change of these numbers; sums wrap, so that a change may be negative, and so
/// that a count that overlaps put beyond what there is comes back right when they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    /// Touched by a device allocation or its padding.
    pub(crate) device: u64,
    /// Touched by arenas only.
    pub(crate) arena_only: u64,
    /// Touched by a device allocation smaller than a chunk; exact in any case.
    pub(crate) small: u64,
}

/// By how much the counts change when one touch of one page is made or goes: each by 1 at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flips {
    pub(crate) device: i8,
    pub(crate) arena_only: i8,
    pub(crate) small: i8,
}

impl Flips {
    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.device | self.arena_only | self.small == 0
    }
}

impl From<Flips> for PageCounts {
    #[inline]
    fn from(flips: Flips) -> Self {
        let wide = |n: i8| i64::from(n) as u64;
        Self { device: wide(flips.device), arena_only: wide(flips.arena_only), small: wide(flips.small) }
    }
}

impl PageCounts {
    #[inline]
    pub(crate) fn add(&mut self, change: Self) {
        self.device = self.device.wrapping_add(change.device);
        self.arena_only = self.arena_only.wrapping_add(change.arena_only);
        self.small = self.small.wrapping_add(change.small);
    }
}

/// Spreads page numbers, which count up, over the hash's high and low bits.
#[derive(Clone, Copy, Default)]
pub(crate) struct MixHasher(u64);

/// Builds [`MixHasher`]s; the keys are addresses of our own driver, so no secret is needed.
pub(crate) type Mixer = BuildHasherDefault<MixHasher>;

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// What is kept of a live allocation besides its place and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) index: u64,
    /// Its line, scope, tag and kind, as a number of the book's.
    pub(crate) group: u32,
    pub(crate) kind: AllocKind,
    /// It overlapped another when it was inserted.
    pub(crate) overlapped: bool,
    pub(crate) free_refused: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) item: Item,
}

impl Entry {
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.offset + self.bytes
    }

    /// Whether it is a device allocation smaller than a chunk.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        self.item.kind == AllocKind::Device && u64::from(self.bytes) < SMALL_ALLOC_CHUNK
    }
}

/// Places of a block.
const PLACES: usize = 16;
/// A bit for each place, in the width of an offset, so that they are found by the same instructions.
const BITS: [i32; PLACES] = {
    let mut bits = [0; PLACES];
    let mut at = 0;
    while at < PLACES {
        bits[at] = 1 << at;
        at += 1;
    }
    bits
};
/// The offset of a place that is free; no entry has it.
const FREE: i32 = -1;

/// Some entries of a page, in no order: a few vector instructions look through all of them at once, which costs less than
/// keeping them sorted. Offsets are signed, since so they compare in one instruction; none is above 2^21.
#[derive(Clone)]
#[repr(align(64))]
struct Block {
    offsets: [i32; PLACES],
    /// 0 for a free place.
    ends: [i32; PLACES],
    items: [Item; PLACES],
}

impl Block {
    const EMPTY: Self = Self {
        offsets: [FREE; PLACES],
        ends: [0; PLACES],
        items: [Item { index: 0, group: 0, kind: AllocKind::Device, overlapped: false, free_refused: false };
            PLACES],
    };

    /// The place of the entry that begins at `offset`; for `FREE`, a free one.
    #[inline]
    fn find(&self, offset: i32) -> Option<usize> {
        if self.offsets[0] == offset {
            return Some(0);
        }
        let mut hits = 0;
        for (&there, bit) in self.offsets.iter().zip(BITS) {
            hits |= if there == offset { bit } else { 0 };
        }
        (hits != 0).then(|| hits.trailing_zeros() as usize)
    }

    /// Whether an entry shares bytes with `offset..end`.
    #[inline]
    fn meets(&self, offset: i32, end: i32) -> bool {
        let mut hits = 0;
        for (&first, &behind) in self.offsets.iter().zip(&self.ends) {
            hits |= i32::from(first < end) & i32::from(behind > offset);
        }
        hits != 0
    }

    /// The places of the entries that hold the byte at `offset`, as bits.
    #[inline]
    fn holders(&self, offset: i32) -> i32 {
        let mut hits = 0;
        for ((&first, &behind), bit) in self.offsets.iter().zip(&self.ends).zip(BITS) {
            hits |= if (first <= offset) & (behind > offset) { bit } else { 0 };
        }
        hits
    }

    #[inline]
    fn entry(&self, at: usize) -> Entry {
        let (offset, end) = (self.offsets[at], self.ends[at]);
        Entry { offset: offset as u32, bytes: (end - offset) as u32, item: self.items[at] }
    }

    #[inline]
    fn set(&mut self, at: usize, entry: Entry) {
        self.offsets[at] = entry.offset as i32;
        self.ends[at] = entry.end() as i32;
        self.items[at] = entry.item;
    }

    #[inline]
    fn clear(&mut self, at: usize) {
        self.offsets[at] = FREE;
        self.ends[at] = 0;
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..PLACES).filter(|&at| self.offsets[at] != FREE).map(|at| self.entry(at))
    }
}

/// Blocks up to which a page keeps its entries together; then it is split.
const TOGETHER: usize = 3;
/// Stretches of a page that is split.
const REGIONS: usize = 1 << (PAGE_SHIFT - REGION_SHIFT);

/// Where an entry of a page is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    block: usize,
    at: usize,
}

/// What touches one page. Its entries are together, or, where they are many, each with those that begin in the same of 64
/// regions.
///
/// One cache line, since a record or free anywhere begins with that of its page.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Page {
    number: u64,
    /// The first block, or the first of each region; behind them those that others lead to.
    blocks: Box<[Block]>,
    more: Option<Box<More>>,
    /// Entries that lie whole in this page.
    inside: u32,
    /// Touches by device allocations smaller than a chunk, by others and padding, and by arenas.
    small: u32,
    large: u32,
    arena: u32,
    /// Spanning allocations that begin or end here.
    pub(crate) spanning: u32,
    /// The state of the spanning allocations in which none of them was over this page; 0 for not known.
    pub(crate) clear_as_of: u64,
}

/// What few pages need.
#[derive(Default)]
struct More {
    /// For each block of a page that is split, the one that goes on where it is full; 0 for none. Empty where there is none
    /// at all.
    next: Vec<u32>,
    /// Bit r, of a page that is split: an entry that begins before region r reaches into it.
    reached: u64,
}

impl Page {
    /// A page that nothing touches, with the memory of an emptied one.
    fn new(number: u64, blocks: Box<[Block]>) -> Self {
        Self { number, blocks, ..Self::default() }
    }

    /// A place without a page.
    fn none() -> Self {
        Self::new(NO_PAGE, Box::default())
    }

    /// Whether something lies whole in this page.
    #[inline]
    pub(crate) fn is_occupied(&self) -> bool {
        self.inside != 0
    }

    #[inline]
    pub(crate) fn is_untouched(&self) -> bool {
        self.inside | self.spanning == 0
    }

    #[inline]
    pub(crate) fn suits(&self, place: Where) -> bool {
        place == Where::Anywhere || self.small | self.large != 0
    }

    /// The first block for what begins at `offset`.
    #[inline]
    fn head(&self, offset: u32) -> usize {
        if self.is_split() { (offset >> REGION_SHIFT) as usize } else { 0 }
    }

    #[inline]
    fn is_split(&self) -> bool {
        self.blocks.len() > TOGETHER
    }

    /// The block that goes on where `block` is full: the one behind it, or in a page that is split, where that is told.
    #[inline]
    fn next(&self, block: usize) -> Option<usize> {
        if !self.is_split() {
            return (block + 1 < self.blocks.len()).then_some(block + 1);
        }
        self.more.as_ref()?.next.get(block).map(|&next| next as usize).filter(|&next| next != 0)
    }

    /// The regions behind the first that an entry reaches into, as bits; none in a page that is not split.
    #[inline]
    fn reach(&self, offset: u32, end: u32) -> u64 {
        let (first, last) = (offset >> REGION_SHIFT, (end - 1) >> REGION_SHIFT);
        if first == last || !self.is_split() {
            return 0;
        }
        let up_to = |region: u32| u64::MAX >> (REGIONS as u32 - 1 - region);
        up_to(last) & !up_to(first)
    }

    #[inline]
    fn reached(&self) -> u64 {
        self.more.as_ref().map_or(0, |more| more.reached)
    }

    #[inline]
    fn note_reach(&mut self, entry: &Entry) {
        let reach = self.reach(entry.offset, entry.end());
        if reach != 0 {
            self.more.get_or_insert_default().reached |= reach;
        }
    }

    /// The entry that begins at `offset`.
    #[inline]
    pub(crate) fn find(&self, offset: u32) -> Option<(Place, Entry)> {
        let mut block = self.head(offset);
        loop {
            let here = self.blocks.get(block)?;
            if let Some(at) = here.find(offset as i32) {
                return Some((Place { block, at }, here.entry(at)));
            }
            block = self.next(block)?;
        }
    }

    /// Whether no entry shares bytes with `offset..offset + bytes`.
    #[inline]
    pub(crate) fn has_room(&self, offset: u32, bytes: u32) -> bool {
        let end = offset + bytes;
        if self.inside == 0 {
            return true;
        }
        if !self.is_split()
            || self.reached() >> (offset >> REGION_SHIFT) & 1 == 1
            || self.reach(offset, end) != 0
        {
            return !self.blocks.iter().any(|block| block.meets(offset as i32, end as i32));
        }
        let mut block = self.head(offset);
        loop {
            let Some(here) = self.blocks.get(block) else { return true };
            if here.meets(offset as i32, end as i32) {
                return false;
            }
            match self.next(block) {
                Some(next) => block = next,
                None => return true,
            }
        }
    }

    /// All entries, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.blocks.iter().flat_map(Block::entries)
    }

    /// The entry that holds the byte at `offset`: of several, the one with the highest base.
    pub(crate) fn owner(&self, offset: u32) -> Option<Entry> {
        let mut found: Option<Entry> = None;
        let mut look = |block: &Block| {
            let mut hits = block.holders(offset as i32);
            while hits != 0 {
                let entry = block.entry(hits.trailing_zeros() as usize);
                hits &= hits - 1;
                if found.is_none_or(|found| found.offset < entry.offset) {
                    found = Some(entry);
                }
            }
        };
        if self.is_split() && self.reached() >> (offset >> REGION_SHIFT) & 1 == 1 {
            self.blocks.iter().for_each(look);
        } else {
            let mut block = Some(self.head(offset));
            while let Some((number, here)) = block.and_then(|number| Some((number, self.blocks.get(number)?)))
            {
                look(here);
                block = self.next(number);
            }
        }
        found
    }

    /// An entry that shares bytes with `offset..offset + bytes`: the nearest that begins at or before `offset`, or else the
    /// nearest behind.
    pub(crate) fn clash(&self, offset: u32, bytes: u32) -> Option<Entry> {
        let sharing = || self.sharing(offset, offset + bytes);
        let before = sharing().filter(|e| e.offset <= offset).max_by_key(|e| e.offset);
        before.or_else(|| sharing().min_by_key(|e| e.offset))
    }

    fn sharing(&self, offset: u32, end: u32) -> impl Iterator<Item = Entry> {
        let meets = move |block: &&Block| block.meets(offset as i32, end as i32);
        let entries = self.blocks.iter().filter(meets).flat_map(Block::entries);
        entries.filter(move |e| e.offset < end && e.end() > offset)
    }

    /// The entry with the lowest base.
    pub(crate) fn first(&self) -> Option<Entry> {
        self.entries().min_by_key(|e| e.offset)
    }

    pub(crate) fn item_mut(&mut self, place: Place) -> &mut Item {
        &mut self.blocks[place.block].items[place.at]
    }

    /// Puts in an entry whose base no other has.
    #[inline]
    pub(crate) fn put(&mut self, entry: Entry) {
        let mut block = self.head(entry.offset);
        if self.inside == 0
            && let Some(here) = self.blocks.get_mut(block)
        {
            here.set(0, entry);
            self.inside = 1;
            self.note_reach(&entry);
            return;
        }
        while let Some(here) = self.blocks.get_mut(block) {
            if let Some(at) = here.find(FREE) {
                here.set(at, entry);
                self.inside += 1;
                self.note_reach(&entry);
                return;
            }
            let Some(next) = self.next(block) else { break };
            block = next;
        }
        self.put_in_new(block, entry);
    }

    /// Puts an entry in a block that goes on where `full` is full, or after a split.
    #[cold]
    fn put_in_new(&mut self, full: usize, entry: Entry) {
        let number = self.blocks.len();
        if number == TOGETHER {
            let entries: Vec<_> = self.entries().collect();
            self.blocks = vec![Block::EMPTY; REGIONS].into_boxed_slice();
            self.more = None;
            self.inside = 0;
            entries.into_iter().chain([entry]).for_each(|entry| self.put(entry));
            return;
        }
        let mut blocks = std::mem::take(&mut self.blocks).into_vec();
        blocks.push(Block::EMPTY);
        self.blocks = blocks.into_boxed_slice();
        if self.is_split() {
            let next = &mut self.more.get_or_insert_default().next;
            next.resize(number + 1, 0);
            next[full] = number as u32;
        }
        self.put(entry);
    }

    #[inline]
    pub(crate) fn take(&mut self, place: Place) {
        let block = &mut self.blocks[place.block];
        let gone = block.entry(place.at);
        block.clear(place.at);
        self.inside -= 1;
        if self.reach(gone.offset, gone.end()) != 0 {
            let reached = self.entries().fold(0, |bits, e| bits | self.reach(e.offset, e.end()));
            self.more.get_or_insert_default().reached = reached;
        }
    }

    /// Adds or removes one touch; the change of the counts of pages.
    #[inline]
    pub(crate) fn touch(&mut self, touch: Touch, add: bool) -> Flips {
        let count = match touch {
            Touch::Nothing => return Flips::default(),
            Touch::Arena => &mut self.arena,
            Touch::Device { small: true } => &mut self.small,
            Touch::Device { small: false } => &mut self.large,
        };
        if add {
            *count += 1;
        } else {
            *count -= 1;
        }
        // Only the first touch and the last flip what a page counts as.
        if *count > u32::from(add) { Flips::default() } else { self.flips(touch, add) }
    }

    /// [`touch`](Self::touch) for a small device allocation.
    #[inline]
    pub(crate) fn touch_small(&mut self, add: bool) -> Flips {
        self.small = if add { self.small + 1 } else { self.small - 1 };
        if self.small > u32::from(add) {
            return Flips::default();
        }
        if self.large | self.arena == 0 {
            let step = if add { 1 } else { -1 };
            return Flips { device: step, arena_only: 0, small: step };
        }
        self.flips(Touch::Device { small: true }, add)
    }

    /// What the first or last touch of its sort flips.
    #[inline(never)]
    fn flips(&self, touch: Touch, add: bool) -> Flips {
        let step = if add { 1 } else { -1 };
        let arena_only = if self.arena > 0 { -step } else { 0 };
        match touch {
            Touch::Nothing => Flips::default(),
            Touch::Arena if self.small + self.large > 0 => Flips::default(),
            Touch::Arena => Flips { arena_only: step, ..Flips::default() },
            Touch::Device { small: true } if self.large > 0 => Flips { small: step, ..Flips::default() },
            Touch::Device { small: true } => Flips { device: step, arena_only, small: step },
            Touch::Device { small: false } if self.small > 0 => Flips::default(),
            Touch::Device { small: false } => Flips { device: step, arena_only, small: 0 },
        }
    }
}

/// No page has it: page numbers are addresses shifted down.
const NO_PAGE: u64 = u64::MAX;

/// The pages of a shard by number, in a table of their own: open addressing, at most half full, a page's head beside its
/// number.
#[derive(Default)]
pub(crate) struct Pages {
    /// A power of two of them, or none.
    places: Vec<Page>,
    used: usize,
    /// Pages of the table that nothing touches.
    untouched: usize,
    /// Blocks of pages that are gone.
    spares: Vec<Box<[Block]>>,
}

impl Pages {
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// The first place to look for a page.
    #[inline]
    fn home(&self, number: u64) -> usize {
        // The product's upper half, as far as there are places; they are a power of two.
        ((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize) & self.places.len().wrapping_sub(1)
    }

    /// Where a page is, or else where it would go.
    #[inline]
    fn find(&self, number: u64) -> Result<usize, usize> {
        let mut at = self.home(number);
        while let Some(page) = self.places.get(at) {
            if page.number == number {
                return Ok(at);
            }
            if page.number == NO_PAGE {
                break;
            }
            at = (at + 1) & (self.places.len() - 1);
        }
        Err(at)
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&Page> {
        self.find(number).ok().map(|at| &self.places[at])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Page> {
        self.find(number).ok().map(|at| &mut self.places[at])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.places.iter().filter(|page| page.number != NO_PAGE).map(|page| (page.number, page))
    }

    /// The page, there from now on.
    #[inline]
    pub(crate) fn open(&mut self, number: u64) -> &mut Page {
        let at = match self.find(number) {
            Ok(at) => at,
            Err(at) => self.make(number, at),
        };
        &mut self.places[at]
    }

    #[inline(never)]
    fn make(&mut self, number: u64, at: usize) -> usize {
        let mut at = at;
        if self.places.len() <= 2 * self.used {
            let more = (2 * self.places.len()).max(8);
            let old = std::mem::take(&mut self.places);
            self.places.resize_with(more, Page::none);
            for page in old.into_iter().filter(|page| page.number != NO_PAGE) {
                // None of them is there twice.
                let (Ok(to) | Err(to)) = self.find(page.number);
                self.places[to] = page;
            }
            let (Ok(to) | Err(to)) = self.find(number);
            at = to;
        }
        self.places[at] = Page::new(number, self.spares.pop().unwrap_or_default());
        self.used += 1;
        self.untouched += 1;
        at
    }

    /// Removes the entry that begins at `offset` of that page.
    pub(crate) fn remove(&mut self, number: u64, offset: u32) -> Option<(Entry, Flips)> {
        let page = self.get_mut(number)?;
        let (place, entry) = page.find(offset)?;
        page.take(place);
        let flips = page.touch(Touch::of(entry.item.kind, entry.bytes as usize), false);
        if page.is_untouched() {
            self.note_untouched(number);
        }
        Some((entry, flips))
    }

    /// [`remove`](Self::remove) for a small device allocation.
    #[inline]
    pub(crate) fn remove_small(&mut self, number: u64, offset: u32) -> Option<(Entry, Flips)> {
        let page = self.get_mut(number)?;
        let (place, entry) = page.find(offset)?;
        if !entry.is_small() {
            return None;
        }
        page.take(place);
        let flips = page.touch_small(false);
        if page.is_untouched() {
            self.note_untouched(number);
        }
        Some((entry, flips))
    }

    /// To be called when the first touch of a page is made.
    #[inline]
    pub(crate) fn note_touched(&mut self) {
        self.untouched -= 1;
    }

    /// To be called when the last touch of a page is gone. Some such pages stay for the next allocation in them.
    #[inline]
    pub(crate) fn note_untouched(&mut self, number: u64) {
        self.untouched += 1;
        if self.untouched > KEPT {
            self.drop_page(number);
        }
    }

    #[cold]
    fn drop_page(&mut self, number: u64) {
        let Ok(mut hole) = self.find(number) else { return };
        self.untouched -= 1;
        self.used -= 1;
        let gone = std::mem::replace(&mut self.places[hole], Page::none());
        if self.spares.len() < KEPT && gone.blocks.len() == 1 {
            self.spares.push(gone.blocks);
        }
        // What stands behind the hole, and would have stood in it, moves up.
        let mask = self.places.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let there = self.places[at].number;
            if there == NO_PAGE {
                return;
            }
            let from_home = at.wrapping_sub(self.home(there)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.places.swap(hole, at);
                hole = at;
            }
        }
    }
}

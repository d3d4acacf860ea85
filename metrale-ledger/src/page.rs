// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies in one 2 MiB page, and the table of the pages of a shard.

use std::hash::{BuildHasherDefault, Hasher};

use crate::{AllocKind, SMALL_ALLOC_CHUNK};

pub(crate) const PAGE_SHIFT: u32 = SMALL_ALLOC_CHUNK.trailing_zeros();
const REGION_SHIFT: u32 = PAGE_SHIFT - 6;
const GRANULE_SHIFT: u32 = REGION_SHIFT - 6;
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
    /// Touched by a device allocation.
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

/// Entries by offset. A bit for each of 64 stretches tells how many entries come before one nearly without a search.
#[derive(Default)]
struct List {
    /// Bit s: an entry begins in stretch s.
    begun: u64,
    /// Entries that begin in the stretch of the one before them.
    crowded: u32,
    /// A stretch has 2 to the power of this bytes.
    shift: u32,
    entries: Vec<Entry>,
}

impl List {
    #[inline]
    fn stretch(&self, offset: u32) -> u32 {
        offset >> self.shift & 63
    }

    /// How many entries begin before `offset`.
    #[inline]
    fn before(&self, offset: u32) -> usize {
        let earlier = self.begun & below(self.stretch(offset));
        // Nothing before, or nothing else: no need to count bits, for which many processors are built to lack a word.
        let mut at = if earlier == 0 {
            0
        } else if earlier == self.begun {
            return self.entries.len();
        } else {
            // One for each stretch before, at least, and at most all the crowded ones more.
            earlier.count_ones() as usize
        };
        if self.crowded > 8 {
            let most = self.entries.len().min(at + self.crowded as usize + 1);
            return at + self.entries[at..most].partition_point(|e| e.offset < offset);
        }
        while self.entries.get(at).is_some_and(|e| e.offset < offset) {
            at += 1;
        }
        at
    }

    #[inline]
    fn find(&self, offset: u32) -> Option<(usize, &Entry)> {
        let at = self.before(offset);
        let entry = self.entries.get(at).filter(|e| e.offset == offset)?;
        Some((at, entry))
    }

    #[inline]
    fn put(&mut self, at: usize, entry: Entry) {
        let bit = 1 << self.stretch(entry.offset);
        self.crowded += u32::from(self.begun & bit != 0);
        self.begun |= bit;
        if at == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.entries.insert(at, entry);
        }
    }

    #[inline]
    fn take(&mut self, at: usize) {
        let stretch = self.stretch(self.entries[at].offset);
        if at + 1 == self.entries.len() {
            self.entries.pop();
        } else {
            self.entries.remove(at);
        }
        if self.crowded == 0 {
            self.begun &= !(1 << stretch);
            return;
        }
        let begins_there = |at: Option<usize>| {
            at.and_then(|at| self.entries.get(at)).is_some_and(|e| self.stretch(e.offset) == stretch)
        };
        if begins_there(Some(at)) || begins_there(at.checked_sub(1)) {
            self.crowded -= 1;
        } else {
            self.begun &= !(1 << stretch);
        }
    }
}

/// Entries up to which a page keeps them in one list.
const ONE_LIST: usize = 48;

/// A place in a page: of an entry, or between two.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    region: usize,
    at: usize,
}

/// What touches one page. Its entries are in one list, or, where they are many, in one for each of 64 regions.
#[derive(Default)]
pub(crate) struct Page {
    number: u64,
    /// Bit r: region r has entries. Of a page with one list, bit 0.
    occupied: u64,
    /// Empty for a page with one list.
    regions: Vec<List>,
    list: List,
    /// Touches by device allocations smaller than a chunk, by others, and by arenas.
    small: u32,
    large: u32,
    arena: u32,
    /// Spanning allocations that begin or end here.
    pub(crate) spanning: u32,
    /// The state of the spanning allocations in which none of them was over this page; 0 for not known.
    pub(crate) clear_as_of: u64,
}

/// The bits below bit `n`.
#[inline]
fn below(n: u32) -> u64 {
    (1 << n) - 1
}

impl Page {
    /// A page that nothing touches, with the memory of an emptied list.
    fn new(number: u64, entries: Vec<Entry>) -> Self {
        Self { number, list: List { shift: REGION_SHIFT, entries, ..List::default() }, ..Self::default() }
    }

    /// A place without a page.
    fn none() -> Self {
        Self::new(NO_PAGE, Vec::new())
    }

    #[inline]
    fn is_split(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Whether something lies whole in this page.
    #[inline]
    pub(crate) fn is_occupied(&self) -> bool {
        self.occupied != 0
    }

    #[inline]
    pub(crate) fn is_untouched(&self) -> bool {
        self.occupied == 0 && self.spanning == 0
    }

    #[inline]
    pub(crate) fn suits(&self, place: Where) -> bool {
        place == Where::Anywhere || self.small | self.large != 0
    }

    /// The last entry of the regions before this one.
    fn last_before(&self, region: usize) -> Option<&Entry> {
        let earlier = self.occupied & below(region as u32);
        let last = 63_usize.checked_sub(earlier.leading_zeros() as usize)?;
        self.regions[last].entries.last()
    }

    /// The first entry of the regions behind this one.
    fn first_behind(&self, region: usize) -> Option<&Entry> {
        let later = self.occupied & !below(region as u32) & !(1 << region);
        self.regions.get(later.trailing_zeros() as usize)?.entries.first()
    }

    /// The entry that begins at `offset`.
    #[inline]
    pub(crate) fn find(&self, offset: u32) -> Option<(Place, &Entry)> {
        if self.is_split() {
            let region = (offset >> REGION_SHIFT) as usize;
            let (at, entry) = self.regions[region].find(offset)?;
            return Some((Place { region, at }, entry));
        }
        let (at, entry) = self.list.find(offset)?;
        Some((Place { region: 0, at }, entry))
    }

    /// Where an entry at `offset` goes whose base no other has, and the entries before and behind.
    #[inline(always)]
    fn around(&self, offset: u32) -> (Place, Option<&Entry>, Option<&Entry>) {
        if self.is_split() {
            return self.around_in_regions(offset);
        }
        let at = self.list.before(offset);
        let entries = self.list.entries.as_slice();
        (Place { region: 0, at }, entries.get(at.wrapping_sub(1)), entries.get(at))
    }

    #[inline(never)]
    fn around_in_regions(&self, offset: u32) -> (Place, Option<&Entry>, Option<&Entry>) {
        let region = (offset >> REGION_SHIFT) as usize;
        let here = &self.regions[region];
        let at = here.before(offset);
        let previous = if at > 0 { here.entries.get(at - 1) } else { self.last_before(region) };
        let next = here.entries.get(at).or_else(|| self.first_behind(region));
        (Place { region, at }, previous, next)
    }

    /// Where `offset..offset + bytes` goes, if it shares bytes with no neighbour. Enough where nothing overlaps.
    #[inline]
    pub(crate) fn room(&self, offset: u32, bytes: u32) -> Option<Place> {
        let (place, previous, next) = self.around(offset);
        let free =
            previous.is_none_or(|e| e.end() <= offset) && next.is_none_or(|e| e.offset >= offset + bytes);
        free.then_some(place)
    }

    /// The place for an entry whose base no other has.
    pub(crate) fn place(&self, offset: u32) -> Place {
        self.around(offset).0
    }

    /// All entries, by offset.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.regions.iter().flat_map(|region| &region.entries).chain(&self.list.entries)
    }

    /// Entries whose offset is at most `offset`, nearest first.
    pub(crate) fn at_or_before(&self, offset: u32) -> impl Iterator<Item = &Entry> {
        let regions = &self.regions[..self.regions.len().min((offset >> REGION_SHIFT) as usize + 1)];
        let entries = regions.iter().flat_map(|region| &region.entries).chain(&self.list.entries);
        entries.rev().skip_while(move |e| e.offset > offset)
    }

    /// An entry that shares bytes with `offset..offset + bytes`, the nearest at or before `offset` first; looks past the
    /// nearest ones only when `thorough`.
    pub(crate) fn clash(&self, offset: u32, bytes: u32, thorough: bool) -> Option<&Entry> {
        let depth = if thorough { usize::MAX } else { 1 };
        let before = self.at_or_before(offset).take(depth).find(|e| e.end() > offset);
        // With none of the same base, what is not before is behind.
        before.or_else(|| self.around(offset).2.filter(|e| e.offset < offset + bytes))
    }

    pub(crate) fn first(&self) -> Option<&Entry> {
        self.entries().next()
    }

    pub(crate) fn entry_mut(&mut self, place: Place) -> &mut Entry {
        let list = if self.is_split() { &mut self.regions[place.region] } else { &mut self.list };
        &mut list.entries[place.at]
    }

    #[inline]
    pub(crate) fn put(&mut self, place: Place, entry: Entry) {
        if self.is_split() {
            self.occupied |= 1 << place.region;
            self.regions[place.region].put(place.at, entry);
            return;
        }
        self.occupied = 1;
        self.list.put(place.at, entry);
        if self.list.entries.len() > ONE_LIST {
            self.split();
        }
    }

    #[cold]
    fn split(&mut self) {
        self.regions.resize_with(64, || List { shift: GRANULE_SHIFT, ..List::default() });
        self.occupied = 0;
        for entry in std::mem::take(&mut self.list).entries {
            let region = (entry.offset >> REGION_SHIFT) as usize;
            let at = self.regions[region].entries.len();
            self.put(Place { region, at }, entry);
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, place: Place) {
        if self.is_split() {
            let region = &mut self.regions[place.region];
            region.take(place.at);
            if region.begun == 0 {
                self.occupied &= !(1 << place.region);
            }
            return;
        }
        self.list.take(place.at);
        self.occupied = u64::from(self.list.begun != 0);
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
    /// Emptied lists.
    spares: Vec<Vec<Entry>>,
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
        let (place, &entry) = page.find(offset)?;
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
        let (place, &entry) = page.find(offset)?;
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
        if self.spares.len() < KEPT && !gone.is_split() {
            self.spares.push(gone.list.entries);
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

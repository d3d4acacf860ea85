// SPDX-License-Identifier: MIT OR Apache-2.0
//! Live allocations by address: exact base, owner of an address, overlap, and the pages touched.
//!
//! ```text
//!  Space ── pages:    page number ─> Page ── 64 regions of 32 KiB ─> entries sorted by offset   (what lies in one page)
//!        ├─ spanning: base ─> last byte                                                        (what crosses pages)
//!        └─ empty:    base                                                                     (what has no bytes)
//! ```
//! What lies in one page needs that page alone, so the pages can later be dealt out to shards. What crosses pages is
//! counted in its first and last page; the pages between are its own as long as nothing overlaps. An overlap is a
//! caller's mistake, yet both records are kept: `overlapped` tells that questions must then look further than the
//! nearest neighbour, and that distinct pages must be counted anew.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::SMALL_ALLOC_CHUNK;

const PAGE_SHIFT: u32 = SMALL_ALLOC_CHUNK.trailing_zeros();
const REGION_SHIFT: u32 = PAGE_SHIFT - 6;
/// Emptied lists kept for reuse, so that a steady state asks the host for no memory.
const SPARES: usize = 64;

/// The bytes of an allocation, as an inclusive range that ends with the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Extent {
    /// None where there are no bytes.
    pub(crate) fn new(addr: u64, bytes: usize) -> Option<Self> {
        let more = (bytes as u64).checked_sub(1)?;
        Some(Self { first: addr, last: addr.saturating_add(more) })
    }

    /// First and last page touched.
    pub(crate) fn pages(self) -> (u64, u64) {
        (self.first >> PAGE_SHIFT, self.last >> PAGE_SHIFT)
    }
}

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

/// What stands at an address that an allocation was recorded at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    Clean,
    /// It was inserted and overlaps this slot (and maybe more).
    Overlapping(usize),
    /// Nothing was inserted: this slot has the very same base.
    BaseTaken(usize),
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

#[derive(Clone, Copy)]
struct Entry {
    offset: u32,
    bytes: u32,
    slot: usize,
}

impl Entry {
    fn end(&self) -> u32 {
        self.offset + self.bytes
    }
}

/// What touches one page.
#[derive(Default)]
struct Page {
    device: usize,
    arena: usize,
    small: usize,
    /// Spanning allocations that begin or end here.
    spanning: usize,
    /// Bit r: region r has entries, in `regions[number of lower bits set]`.
    occupied: u64,
    regions: Vec<Vec<Entry>>,
}

impl Page {
    fn region_of(offset: u32) -> u32 {
        offset >> REGION_SHIFT
    }

    fn rank(&self, region: u32) -> usize {
        (self.occupied & ((1 << region) - 1)).count_ones() as usize
    }

    fn has(&self, region: u32) -> bool {
        self.occupied >> region & 1 == 1
    }

    fn find(&self, offset: u32) -> Option<usize> {
        let region = Self::region_of(offset);
        if !self.has(region) {
            return None;
        }
        let entries = &self.regions[self.rank(region)];
        entries.binary_search_by_key(&offset, |e| e.offset).ok().map(|at| entries[at].slot)
    }

    /// Entries whose offset is at most `offset`, nearest first.
    fn at_or_before(&self, offset: u32) -> impl Iterator<Item = &Entry> {
        let region = Self::region_of(offset);
        let rank = self.rank(region);
        let here = if self.has(region) {
            let entries = &self.regions[rank];
            &entries[..entries.partition_point(|e| e.offset <= offset)]
        } else {
            &[]
        };
        here.iter().rev().chain(self.regions[..rank].iter().rev().flat_map(|r| r.iter().rev()))
    }

    /// The nearest entries at or before `offset`, and behind it.
    fn neighbours(&self, offset: u32) -> (Option<&Entry>, Option<&Entry>) {
        let region = Self::region_of(offset);
        let rank = self.rank(region);
        let before = |rank: usize| rank.checked_sub(1).and_then(|r| self.regions[r].last());
        if !self.has(region) {
            return (before(rank), self.regions.get(rank).and_then(|r| r.first()));
        }
        let entries = &self.regions[rank];
        let at = entries.partition_point(|e| e.offset <= offset);
        let nearest = if at > 0 { entries.get(at - 1) } else { before(rank) };
        (nearest, entries.get(at).or_else(|| self.regions.get(rank + 1).and_then(|r| r.first())))
    }

    /// An entry that shares bytes with `offset..offset + bytes`; looks past the nearest one only when `thorough`.
    fn clash(&self, offset: u32, bytes: u32, thorough: bool) -> Option<&Entry> {
        let (before, after) = self.neighbours(offset);
        let before = before.filter(|e| e.end() > offset);
        let before = match before {
            None if thorough => self.at_or_before(offset).find(|e| e.end() > offset),
            nearest => nearest,
        };
        before.or_else(|| after.filter(|e| e.offset < offset + bytes))
    }

    fn insert(&mut self, entry: Entry, spares: &mut Vec<Vec<Entry>>) {
        let region = Self::region_of(entry.offset);
        let rank = self.rank(region);
        if !self.has(region) {
            self.occupied |= 1 << region;
            self.regions.insert(rank, spares.pop().unwrap_or_default());
        }
        let entries = &mut self.regions[rank];
        entries.insert(entries.partition_point(|e| e.offset < entry.offset), entry);
    }

    fn remove(&mut self, offset: u32, spares: &mut Vec<Vec<Entry>>) {
        let region = Self::region_of(offset);
        if !self.has(region) {
            return;
        }
        let rank = self.rank(region);
        let entries = &mut self.regions[rank];
        if let Ok(at) = entries.binary_search_by_key(&offset, |e| e.offset) {
            entries.remove(at);
        }
        if entries.is_empty() {
            let emptied = self.regions.remove(rank);
            self.occupied &= !(1 << region);
            if spares.len() < SPARES {
                spares.push(emptied);
            }
        }
    }

    fn is_untouched(&self) -> bool {
        self.occupied == 0 && self.spanning == 0
    }
}

/// Distinct pages by what touches them. Exact while nothing overlaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    /// Touched by a device allocation.
    pub(crate) device: u64,
    /// Touched by arenas only.
    pub(crate) arena_only: u64,
    /// Touched by a device allocation smaller than a chunk; exact in any case.
    pub(crate) small: u64,
}

/// One address space.
#[derive(Default)]
pub(crate) struct Space {
    pages: HashMap<u64, Page, Mixer>,
    spanning: BTreeMap<u64, (u64, usize)>,
    empty: BTreeMap<u64, usize>,
    counts: PageCounts,
    /// Live allocations that overlapped another when they were inserted. Each overlapping pair has at least one, so at 0
    /// nothing overlaps.
    overlapped: usize,
    /// No spanning allocation since the last one went is longer than this many bytes, less one.
    longest: u64,
    spare_regions: Vec<Vec<Entry>>,
    spare_pages: Vec<Page>,
}

fn locate(addr: u64) -> (u64, u32) {
    (addr >> PAGE_SHIFT, (addr & (SMALL_ALLOC_CHUNK - 1)) as u32)
}

impl Space {
    pub(crate) fn counts(&self) -> PageCounts {
        self.counts
    }

    pub(crate) fn has_overlaps(&self) -> bool {
        self.overlapped > 0
    }

    /// The slot whose base is `addr`.
    pub(crate) fn find(&self, addr: u64) -> Option<usize> {
        let (page, offset) = locate(addr);
        self.pages
            .get(&page)
            .and_then(|p| p.find(offset))
            .or_else(|| self.spanning.get(&addr).map(|&(_, slot)| slot))
            .or_else(|| self.empty.get(&addr).copied())
    }

    /// The slot whose bytes hold `addr`: of several, the one with the highest base.
    pub(crate) fn owner(&self, addr: u64) -> Option<usize> {
        let depth = if self.has_overlaps() { usize::MAX } else { 1 };
        let (page, offset) = locate(addr);
        let inner = self.pages.get(&page).and_then(|p| {
            let found = p.at_or_before(offset).take(depth).find(|e| e.end() > offset);
            found.map(|e| ((page << PAGE_SHIFT) + u64::from(e.offset), e.slot))
        });
        inner.max(self.spanning_at(addr)).map(|(_, slot)| slot).or_else(|| self.empty.get(&addr).copied())
    }

    /// Inserts the bytes of `slot`, unless its base is taken.
    pub(crate) fn insert(&mut self, addr: u64, bytes: usize, slot: usize, touch: Touch) -> Inserted {
        if !self.empty.is_empty()
            && let Some(&taken) = self.empty.get(&addr)
        {
            return Inserted::BaseTaken(taken);
        }
        let Some(extent) = Extent::new(addr, bytes) else {
            return match self.find(addr) {
                Some(taken) => Inserted::BaseTaken(taken),
                None => {
                    self.empty.insert(addr, slot);
                    Inserted::Clean
                }
            };
        };
        let clash = self.clash(extent);
        if let Some((base, other)) = clash
            && base == addr
        {
            return Inserted::BaseTaken(other);
        }
        let (first_page, last_page) = extent.pages();
        if first_page == last_page {
            // Within one page, so both numbers are below 2^22.
            let entry =
                Entry { offset: locate(addr).1, bytes: (extent.last - extent.first + 1) as u32, slot };
            let page =
                self.pages.entry(first_page).or_insert_with(|| self.spare_pages.pop().unwrap_or_default());
            page.insert(entry, &mut self.spare_regions);
            count(&mut self.counts, page, touch, true);
        } else {
            self.longest = self.longest.max(extent.last - extent.first);
            self.spanning.insert(addr, (extent.last, slot));
            for number in [first_page, last_page] {
                let page =
                    self.pages.entry(number).or_insert_with(|| self.spare_pages.pop().unwrap_or_default());
                page.spanning += 1;
                count(&mut self.counts, page, touch, true);
            }
            count_between(&mut self.counts, last_page - first_page - 1, touch, true);
        }
        match clash {
            None => Inserted::Clean,
            Some((_, other)) => {
                self.overlapped += 1;
                Inserted::Overlapping(other)
            }
        }
    }

    /// Removes what [`insert`](Self::insert) inserted; `overlapped` is whether it then answered `Overlapping`.
    pub(crate) fn remove(&mut self, addr: u64, bytes: usize, touch: Touch, overlapped: bool) {
        if overlapped {
            self.overlapped -= 1;
        }
        let Some(extent) = Extent::new(addr, bytes) else {
            self.empty.remove(&addr);
            return;
        };
        let (first_page, last_page) = extent.pages();
        if first_page == last_page {
            if let Some(page) = self.pages.get_mut(&first_page) {
                page.remove(locate(addr).1, &mut self.spare_regions);
                count(&mut self.counts, page, touch, false);
                if page.is_untouched() {
                    self.drop_page(first_page);
                }
            }
            return;
        }
        self.spanning.remove(&addr);
        if self.spanning.is_empty() {
            self.longest = 0;
        }
        for number in [first_page, last_page] {
            if let Some(page) = self.pages.get_mut(&number) {
                page.spanning -= 1;
                count(&mut self.counts, page, touch, false);
                if page.is_untouched() {
                    self.drop_page(number);
                }
            }
        }
        count_between(&mut self.counts, last_page - first_page - 1, touch, false);
    }

    fn drop_page(&mut self, number: u64) {
        if let Some(page) = self.pages.remove(&number)
            && self.spare_pages.len() < SPARES
        {
            self.spare_pages.push(page);
        }
    }

    /// The spanning allocation that holds `addr`: base and slot, the highest base of several.
    fn spanning_at(&self, addr: u64) -> Option<(u64, usize)> {
        let lowest = if self.has_overlaps() { addr.saturating_sub(self.longest) } else { 0 };
        let depth = if self.has_overlaps() { usize::MAX } else { 1 };
        self.spanning
            .range(lowest..=addr)
            .rev()
            .take(depth)
            .find(|&(_, &(last, _))| last >= addr)
            .map(|(&base, &(_, slot))| (base, slot))
    }

    /// Something live that shares bytes with `extent`, as base and slot; the one with the same base before any other.
    fn clash(&self, extent: Extent) -> Option<(u64, usize)> {
        let (first_page, last_page) = extent.pages();
        if first_page == last_page {
            let page = self.pages.get(&first_page);
            let inner = page.and_then(|p| {
                let bytes = (extent.last - extent.first + 1) as u32;
                p.clash(locate(extent.first).1, bytes, self.has_overlaps())
            });
            if let Some(entry) = inner {
                let base = (first_page << PAGE_SHIFT) + u64::from(entry.offset);
                // Nearest first: with the same base taken in this page, that is the one found.
                if base == extent.first || !self.has_overlaps() {
                    return Some((base, entry.slot));
                }
                return self
                    .spanning
                    .get(&extent.first)
                    .map(|&(_, slot)| (extent.first, slot))
                    .or(Some((base, entry.slot)));
            }
            // A page in which something lies whole, with no end of a spanning allocation, is inside none.
            if !self.has_overlaps() && page.is_some_and(|p| p.occupied != 0 && p.spanning == 0) {
                return None;
            }
            return self.spanning_clash(extent);
        }
        // The same base first: a page's entry of that base is found by `find`, a spanning one by `spanning_clash`.
        if let Some(slot) = self.pages.get(&first_page).and_then(|p| p.find(locate(extent.first).1)) {
            return Some((extent.first, slot));
        }
        self.spanning_clash(extent).or_else(|| self.inner_clash(extent))
    }

    fn spanning_clash(&self, extent: Extent) -> Option<(u64, usize)> {
        if self.spanning.is_empty() {
            return None;
        }
        self.spanning_at(extent.first).or_else(|| {
            let (&base, &(_, slot)) = self.spanning.range(extent.first..=extent.last).next()?;
            Some((base, slot))
        })
    }

    /// Something lying in one page that shares bytes with the spanning `extent`.
    fn inner_clash(&self, extent: Extent) -> Option<(u64, usize)> {
        let (first_page, last_page) = extent.pages();
        let found = |number: u64, e: &Entry| ((number << PAGE_SHIFT) + u64::from(e.offset), e.slot);
        let page_end = SMALL_ALLOC_CHUNK as u32;
        if let Some(page) = self.pages.get(&first_page) {
            let offset = locate(extent.first).1;
            if let Some(entry) = page.clash(offset, page_end - offset, self.has_overlaps()) {
                return Some(found(first_page, entry));
            }
        }
        if let Some(page) = self.pages.get(&last_page)
            && let Some(entry) = page.clash(0, locate(extent.last).1 + 1, self.has_overlaps())
        {
            return Some(found(last_page, entry));
        }
        let first_entry =
            |number: u64, page: &Page| page.regions.first().and_then(|r| r.first()).map(|e| found(number, e));
        // Whatever lies in a page between is inside; the shorter of two walks finds it.
        if last_page - first_page - 1 <= self.pages.len() as u64 {
            (first_page + 1..last_page).find_map(|n| first_entry(n, self.pages.get(&n)?))
        } else {
            let between = self.pages.iter().filter(|&(&n, _)| n > first_page && n < last_page);
            between.filter_map(|(&n, page)| first_entry(n, page)).min()
        }
    }
}

/// Adds or removes one touch of a page.
fn count(counts: &mut PageCounts, page: &mut Page, touch: Touch, add: bool) {
    let standing = |p: &Page| (p.device > 0, p.arena > 0 && p.device == 0, p.small > 0);
    let before = standing(page);
    let step = |n: &mut usize| if add { *n += 1 } else { *n -= 1 };
    match touch {
        Touch::Nothing => return,
        Touch::Arena => step(&mut page.arena),
        Touch::Device { small } => {
            step(&mut page.device);
            if small {
                step(&mut page.small);
            }
        }
    }
    let after = standing(page);
    // Wrapping sums: while overlaps last a count may be beyond what there is, and is right again when they end.
    let shift = |n: &mut u64, was: bool, is: bool| *n = n.wrapping_add(is.into()).wrapping_sub(was.into());
    shift(&mut counts.device, before.0, after.0);
    shift(&mut counts.arena_only, before.1, after.1);
    shift(&mut counts.small, before.2, after.2);
}

/// Adds or removes the pages between the ends of a spanning allocation, which are its own while nothing overlaps.
fn count_between(counts: &mut PageCounts, pages: u64, touch: Touch, add: bool) {
    let total = match touch {
        Touch::Nothing => return,
        Touch::Arena => &mut counts.arena_only,
        Touch::Device { .. } => &mut counts.device,
    };
    *total = if add { total.wrapping_add(pages) } else { total.wrapping_sub(pages) };
}

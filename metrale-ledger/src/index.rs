// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live allocations of one address space: found by base or by any address in them; overlaps; numbers of pages.
//!
//! ```text
//!   aligned   base -> allocation that begins at a multiple of 512 bytes and lies in one page, as nearly all do
//!   irregular base -> any other allocation: it crosses pages, begins elsewhere, or has no bytes; in order of address
//!   pages     page number -> where aligned allocations begin, as bits; how many allocations touch the page
//! ```
//!
//! While nothing overlaps, an address belongs to the allocation with the nearest base at or below it, or to none. No other
//! allocation touches the pages between an allocation's first and last one, so these are counted and not stored. An overlap is a caller's
//! mistake, yet both records are kept. Then a search goes on to lower bases as far as an allocation could reach the address,
//! and [`AddressSpace::distinct_pages`] counts all pages again.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use crate::SMALL_ALLOC_CHUNK;
use crate::allocation::{Allocation, Extent};
use crate::page::{Page, PageCounts, Touch};
use crate::record::AllocKind;

/// Number of pages that are kept for their next allocation although nothing touches them now.
const IDLE_PAGES: usize = 4096;

type Pages = HashMap<u64, Page, FxBuildHasher>;

/// Aligned allocations by base. Each is its own key, so one search finds what is checked and then removed.
#[derive(Default)]
struct Aligned(HashTable<Allocation>);

fn hash(addr: u64) -> u64 {
    FxBuildHasher.hash_one(addr)
}

impl Aligned {
    fn get(&self, addr: u64) -> Option<&Allocation> {
        self.0.find(hash(addr), |live| live.addr == addr)
    }

    /// Inserts an allocation whose base no other one has.
    #[inline]
    fn insert(&mut self, new: Allocation) {
        self.0.insert_unique(hash(new.addr), new, |live| hash(live.addr));
    }

    /// An allocation that begins in the page with this number and shares bytes with `extent`: of several the one with the
    /// highest base. `has_overlaps`: whether any allocations overlap.
    fn overlap(&self, number: u64, page: &Page, extent: Extent, has_overlaps: bool) -> Option<&Allocation> {
        let page_end = number * SMALL_ALLOC_CHUNK + (SMALL_ALLOC_CHUNK - 1);
        let mut nearest = self.get(page.begin_below(extent.last.min(page_end))?)?;
        // While nothing overlaps, only the nearest can share bytes.
        while has_overlaps && !nearest.shares(extent) {
            let below = nearest.addr.checked_sub(1).filter(|below| page_of(*below) == number)?;
            nearest = self.get(page.begin_below(below)?)?;
        }
        Some(nearest).filter(|nearest| nearest.shares(extent))
    }
}

/// Irregular allocations by base.
#[derive(Default)]
struct Irregular {
    by_base: BTreeMap<u64, Allocation>,
    /// How many have no bytes. No address lies in them, so a search skips them.
    empty: usize,
    /// The bytes, less one, of the longest since there was last none.
    longest: u64,
}

impl Irregular {
    /// See [`Aligned::overlap`].
    fn overlap(&self, extent: Extent, has_overlaps: bool) -> Option<&Allocation> {
        let mut below = self.by_base.range(..=extent.last).rev().map(|(_, live)| live);
        if !has_overlaps && self.empty == 0 {
            return below.next().filter(|live| live.shares(extent));
        }
        let lowest = extent.first.saturating_sub(self.longest);
        below.take_while(|live| live.addr >= lowest).find(|live| live.shares(extent))
    }
}

/// One address space.
#[derive(Default)]
pub(crate) struct AddressSpace {
    aligned: Aligned,
    irregular: Irregular,
    pages: Pages,
    /// The numbers of distinct pages, while nothing overlaps.
    pub(crate) counts: PageCounts,
    /// Pages that nothing touches.
    idle: usize,
    /// Live allocations that overlapped another when they were inserted. Each overlapping pair has at least one, so at 0
    /// nothing overlaps.
    pub(crate) overlapping: usize,
}

/// An allocation with the same base is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseIsLive;

/// The page of an address.
fn page_of(addr: u64) -> u64 {
    addr / SMALL_ALLOC_CHUNK
}

/// Whether an allocation of these bytes is kept in [`AddressSpace::aligned`].
fn is_aligned(extent: Extent) -> bool {
    extent.first.is_multiple_of(Page::GRANULARITY) && page_of(extent.first) == page_of(extent.last)
}

/// The page with this number, which is idle if it is new.
fn page_mut<'a>(pages: &'a mut Pages, idle: &mut usize, number: u64) -> &'a mut Page {
    pages.entry(number).or_insert_with(|| {
        *idle += 1;
        Page::default()
    })
}

impl AddressSpace {
    /// The allocation whose base is `addr`.
    pub(crate) fn get(&self, addr: u64) -> Option<&Allocation> {
        self.aligned.get(addr).or_else(|| self.irregular.by_base.get(&addr))
    }

    /// Makes the live allocation with base `addr` one of another group.
    pub(crate) fn set_group(&mut self, addr: u64, group: u32) {
        let aligned = self.aligned.0.find_mut(hash(addr), |live| live.addr == addr);
        if let Some(live) = aligned.or_else(|| self.irregular.by_base.get_mut(&addr)) {
            live.group = group;
        }
    }

    /// The allocation in which `addr` lies: of several the one with the highest base. An allocation without bytes is the answer
    /// to its base if no other is.
    pub(crate) fn owner(&self, addr: u64) -> Option<&Allocation> {
        // No other base is higher than the address itself.
        let owner = self.aligned.get(addr).or_else(|| self.overlap(Extent { first: addr, last: addr }));
        owner.or_else(|| self.irregular.by_base.get(&addr))
    }

    /// All allocations, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.aligned.0.iter().chain(self.irregular.by_base.values())
    }

    /// Inserts an allocation; returns the base of one that it overlaps.
    ///
    /// # Errors
    /// [`BaseIsLive`]; then nothing is inserted.
    #[inline]
    pub(crate) fn insert(&mut self, new: &Allocation) -> Result<Option<u64>, BaseIsLive> {
        let has_overlaps = self.overlapping > 0;
        let Some(extent) = new.extent().filter(|extent| is_aligned(*extent)) else {
            return self.insert_irregular(new);
        };
        let number = page_of(new.addr);
        let page = match self.pages.get_mut(&number) {
            Some(page) => page,
            None => page_mut(&mut self.pages, &mut self.idle, number),
        };
        let mut with = self.aligned.overlap(number, page, extent, has_overlaps);
        if !self.irregular.by_base.is_empty() {
            let irregular = self.irregular.overlap(extent, has_overlaps);
            with = with.into_iter().chain(irregular).max_by_key(|live| live.addr);
        }
        let with = with.map(|live| live.addr);
        // The same base is an overlap too, unless the other one is empty.
        if (with.is_some() || self.irregular.empty > 0)
            && (self.aligned.get(new.addr).is_some() || self.irregular.by_base.contains_key(&new.addr))
        {
            return Err(BaseIsLive);
        }
        self.idle -= usize::from(page.is_idle());
        page.set_begin(new.addr);
        page.change(Touch::of(new), 1, &mut self.counts);
        self.overlapping += usize::from(with.is_some());
        self.aligned.insert(Allocation { overlaps: with.is_some(), ..*new });
        Ok(with)
    }

    fn insert_irregular(&mut self, new: &Allocation) -> Result<Option<u64>, BaseIsLive> {
        if self.get(new.addr).is_some() {
            return Err(BaseIsLive);
        }
        let with = new.extent().and_then(|extent| self.overlap(extent)).map(|live| live.addr);
        if self.irregular.by_base.is_empty() {
            self.irregular.longest = 0;
        }
        match new.extent() {
            Some(extent) => {
                self.irregular.longest = self.irregular.longest.max(extent.last - extent.first);
                self.count_irregular(extent, new, 1);
            }
            None => self.irregular.empty += 1,
        }
        self.overlapping += usize::from(with.is_some());
        self.irregular.by_base.insert(new.addr, Allocation { overlaps: with.is_some(), ..*new });
        Ok(with)
    }

    /// Removes the allocation whose base is `addr`, if it fits.
    pub(crate) fn remove_if(
        &mut self,
        addr: u64,
        fits: impl FnOnce(&Allocation) -> bool,
    ) -> Option<Allocation> {
        let removed = if let Ok(entry) = self.aligned.0.find_entry(hash(addr), |live| live.addr == addr) {
            if !fits(entry.get()) {
                return None;
            }
            let removed = entry.remove().0;
            if let Some(page) = self.pages.get_mut(&page_of(addr)) {
                page.clear_begin(addr);
                page.change(Touch::of(&removed), -1, &mut self.counts);
                self.idle += usize::from(page.is_idle());
            }
            removed
        } else {
            self.irregular.by_base.get(&addr).filter(|live| fits(live))?;
            let removed = self.irregular.by_base.remove(&addr)?;
            match removed.extent() {
                Some(extent) => self.count_irregular(extent, &removed, -1),
                None => self.irregular.empty -= 1,
            }
            removed
        };
        self.overlapping -= usize::from(removed.overlaps);
        if self.idle > IDLE_PAGES {
            self.pages.retain(|_, page| !page.is_idle());
            self.idle = 0;
        }
        Some(removed)
    }

    /// Adds (`sign` 1) or subtracts (-1) an irregular allocation in the pages that it touches.
    fn count_irregular(&mut self, extent: Extent, allocation: &Allocation, sign: i64) {
        let touch = Touch::of(allocation);
        let (first, last) = extent.pages();
        let end_pages = [Some(first), Some(last).filter(|last| *last != first)];
        for number in end_pages.into_iter().flatten().filter(|_| !touch.is_none()) {
            let page = page_mut(&mut self.pages, &mut self.idle, number);
            self.idle -= usize::from(page.is_idle());
            page.change(touch, sign, &mut self.counts);
            self.idle += usize::from(page.is_idle());
        }
        // No other allocation touches the pages between, unless some overlap.
        self.counts.change((last - first).saturating_sub(1), touch, sign);
    }

    /// Whether the first and the last page of these bytes each have the first or last byte of a device allocation or padding.
    pub(crate) fn is_held(&self, addr: u64, bytes: usize) -> bool {
        let is_device = |number: u64| self.pages.get(&number).is_some_and(Page::is_device);
        let pages = Extent::new(addr, bytes).map(Extent::pages);
        pages.is_some_and(|(first, last)| is_device(first) && (first == last || is_device(last)))
    }

    /// The numbers of distinct pages. While allocations overlap, this looks at each of them.
    pub(crate) fn distinct_pages(&self) -> PageCounts {
        if self.overlapping == 0 {
            return self.counts;
        }
        let pages_of = |fits: fn(AllocKind) -> bool| {
            let fitting = self.iter().filter(|live| fits(live.kind));
            covered(fitting.filter_map(|live| live.extent().map(Extent::pages)).collect())
        };
        let device = pages_of(AllocKind::is_packed);
        let all = pages_of(|kind| kind.is_packed() || kind == AllocKind::Arena);
        PageCounts { device, arena_only: all - device, small: self.counts.small }
    }

    /// An allocation that shares bytes with `extent`: of several the one with the highest base.
    fn overlap(&self, extent: Extent) -> Option<&Allocation> {
        let has_overlaps = self.overlapping > 0;
        let in_page = |number: u64, page: &Page| self.aligned.overlap(number, page, extent, has_overlaps);
        let (first, last) = extent.pages();
        let aligned = if last - first <= self.pages.len() as u64 {
            (first..=last).rev().find_map(|number| in_page(number, self.pages.get(&number)?))
        } else {
            // There are fewer pages than the extent has.
            let pages = self.pages.iter().filter(|&(&number, _)| first <= number && number <= last);
            pages.filter_map(|(&number, page)| in_page(number, page)).max_by_key(|live| live.addr)
        };
        let irregular = self.irregular.overlap(extent, has_overlaps);
        aligned.into_iter().chain(irregular).max_by_key(|live| live.addr)
    }
}

/// How many distinct pages these inclusive ranges cover.
fn covered(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    // The first page not yet counted.
    let mut from = 0;
    let mut pages = 0;
    for (first, last) in ranges {
        pages += (last + 1).saturating_sub(first.max(from));
        from = from.max(last + 1);
    }
    pages
}

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

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use rustc_hash::FxBuildHasher;

use crate::SMALL_ALLOC_CHUNK;
use crate::allocation::{Allocation, Extent};
use crate::page::{Page, PageCounts, Touch};
use crate::record::AllocKind;

/// Number of pages that are kept for their next allocation although nothing touches them now.
const IDLE_PAGES: usize = 4096;

/// One address space.
#[derive(Default)]
pub(crate) struct AddressSpace {
    aligned: HashMap<u64, Allocation, FxBuildHasher>,
    irregular: BTreeMap<u64, Allocation>,
    pages: HashMap<u64, Page, FxBuildHasher>,
    counts: PageCounts,
    /// Pages that nothing touches.
    idle: usize,
    /// Live allocations that overlapped another when they were inserted. Each overlapping pair has at least one, so at 0
    /// nothing overlaps.
    overlapping: usize,
    /// Live allocations without bytes. No address lies in them, so a search in `irregular` skips them.
    empty: usize,
    /// The bytes, less one, of the longest allocation in `irregular` since that was last empty.
    longest: u64,
}

/// An allocation with the same base is live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BaseIsLive;

/// The page of an address.
fn page_of(addr: u64) -> u64 {
    addr / SMALL_ALLOC_CHUNK
}

/// Whether an allocation of these bytes is kept in [`AddressSpace::aligned`].
fn is_aligned(extent: Extent) -> bool {
    extent.first.is_multiple_of(Page::GRANULARITY) && page_of(extent.first) == page_of(extent.last)
}

/// The page with this number, for a change. It no longer counts as idle; the caller counts it again if it is idle afterwards.
fn page_mut<'a>(
    pages: &'a mut HashMap<u64, Page, FxBuildHasher>,
    idle: &mut usize,
    number: u64,
) -> &'a mut Page {
    let page = pages.entry(number).or_insert_with(|| {
        *idle += 1;
        Page::default()
    });
    *idle -= usize::from(page.is_idle());
    page
}

impl AddressSpace {
    /// The allocation whose base is `addr`.
    pub(crate) fn get(&self, addr: u64) -> Option<&Allocation> {
        self.aligned.get(&addr).or_else(|| self.irregular.get(&addr))
    }

    /// The same, to change anything but its address, size and kind.
    pub(crate) fn get_mut(&mut self, addr: u64) -> Option<&mut Allocation> {
        self.aligned.get_mut(&addr).or_else(|| self.irregular.get_mut(&addr))
    }

    /// The allocation in which `addr` lies: of several the one with the highest base. An allocation without bytes is the answer
    /// to its base if no other is.
    pub(crate) fn owner(&self, addr: u64) -> Option<&Allocation> {
        self.overlap(Extent { first: addr, last: addr }).or_else(|| self.get(addr))
    }

    /// All allocations, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.aligned.values().chain(self.irregular.values())
    }

    /// Whether live allocations overlap, or did when one of them was inserted.
    pub(crate) fn has_overlaps(&self) -> bool {
        self.overlapping > 0
    }

    /// Inserts an allocation; returns the base of one that it overlaps.
    ///
    /// # Errors
    /// [`BaseIsLive`]; then nothing is inserted.
    #[inline]
    pub(crate) fn insert(&mut self, new: &Allocation) -> Result<Option<u64>, BaseIsLive> {
        let extent = new.extent();
        let with = extent.and_then(|extent| self.overlap(extent)).map(|live| live.addr);
        // The same base is an overlap too, unless one of the two is empty.
        if (with.is_some() || extent.is_none() || self.empty > 0) && self.get(new.addr).is_some() {
            return Err(BaseIsLive);
        }
        self.empty += usize::from(extent.is_none());
        if extent.is_some_and(is_aligned) {
            self.aligned.insert(new.addr, *new);
            let page = page_mut(&mut self.pages, &mut self.idle, page_of(new.addr));
            page.set_begin(new.addr);
            page.change(Touch::of(new), 1, &mut self.counts);
        } else {
            if self.irregular.is_empty() {
                self.longest = 0;
            }
            if let Some(extent) = extent {
                self.longest = self.longest.max(extent.last - extent.first);
                self.count_irregular(extent, new, 1);
            }
            self.irregular.insert(new.addr, *new);
        }
        if with.is_some()
            && let Some(new) = self.get_mut(new.addr)
        {
            new.overlaps = true;
            self.overlapping += 1;
        }
        Ok(with)
    }

    /// Removes the allocation whose base is `addr`, if it fits.
    #[inline]
    pub(crate) fn remove_if(
        &mut self,
        addr: u64,
        fits: impl FnOnce(&Allocation) -> bool,
    ) -> Option<Allocation> {
        let removed = if let Entry::Occupied(entry) = self.aligned.entry(addr) {
            if !fits(entry.get()) {
                return None;
            }
            let removed = entry.remove();
            let page = page_mut(&mut self.pages, &mut self.idle, page_of(addr));
            page.clear_begin(addr);
            page.change(Touch::of(&removed), -1, &mut self.counts);
            self.idle += usize::from(page.is_idle());
            removed
        } else {
            self.irregular.get(&addr).filter(|live| fits(live))?;
            let removed = self.irregular.remove(&addr)?;
            match removed.extent() {
                Some(extent) => self.count_irregular(extent, &removed, -1),
                None => self.empty -= 1,
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

    /// The numbers of pages as they are kept: those of distinct pages while nothing overlaps.
    pub(crate) fn counts(&self) -> PageCounts {
        self.counts
    }

    /// The numbers of distinct pages. While allocations overlap, this looks at each of them.
    pub(crate) fn distinct_pages(&self) -> PageCounts {
        if !self.has_overlaps() {
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
        let aligned = self.aligned_overlap(extent);
        if self.irregular.is_empty() {
            return aligned;
        }
        aligned.into_iter().chain(self.irregular_overlap(extent)).max_by_key(|live| live.addr)
    }

    /// The same among the aligned allocations.
    fn aligned_overlap(&self, extent: Extent) -> Option<&Allocation> {
        let (first, last) = extent.pages();
        let in_page = |number: &u64, page: &Page| self.overlap_in_page(*number, page, extent);
        if last - first <= self.pages.len() as u64 {
            return (first..=last).rev().find_map(|number| in_page(&number, self.pages.get(&number)?));
        }
        // There are fewer pages than the extent has.
        let pages = self.pages.iter().filter(|&(&number, _)| first <= number && number <= last);
        pages.filter_map(|(number, page)| in_page(number, page)).max_by_key(|live| live.addr)
    }

    /// The same among the aligned allocations of the page with this number.
    fn overlap_in_page(&self, number: u64, page: &Page, extent: Extent) -> Option<&Allocation> {
        let page_end = number * SMALL_ALLOC_CHUNK + (SMALL_ALLOC_CHUNK - 1);
        let mut nearest = self.aligned.get(&page.begin_below(extent.last.min(page_end))?)?;
        // While nothing overlaps, only the nearest can share bytes.
        while self.has_overlaps() && !nearest.shares(extent) {
            let below = nearest.addr.checked_sub(1).filter(|below| page_of(*below) == number)?;
            nearest = self.aligned.get(&page.begin_below(below)?)?;
        }
        Some(nearest).filter(|nearest| nearest.shares(extent))
    }

    /// The same among the irregular allocations.
    fn irregular_overlap(&self, extent: Extent) -> Option<&Allocation> {
        let mut below = self.irregular.range(..=extent.last).rev().map(|(_, live)| live);
        if !self.has_overlaps() && self.empty == 0 {
            return below.next().filter(|live| live.shares(extent));
        }
        let lowest = extent.first.saturating_sub(self.longest);
        below.take_while(|live| live.addr >= lowest).find(|live| live.shares(extent))
    }
}

/// How many distinct pages these inclusive ranges cover.
fn covered(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    // The first page not yet counted.
    let mut from = 0;
    let mut pages = 0;
    for (first, last) in ranges {
        let first = first.max(from);
        if first <= last {
            pages += last - first + 1;
            from = last + 1;
        }
    }
    pages
}

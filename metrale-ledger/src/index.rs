// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live allocations of one address space: exact base, owner of an address, overlaps, page counts.
//!
//! ```text
//!   aligned   base -> allocation that begins at a multiple of 512 bytes and lies in one page, as nearly all do
//!   others    base -> allocation that crosses pages, or begins elsewhere, or has no bytes; in order of address
//!   pages     page number -> where aligned allocations begin, as bits; how many allocations touch the page
//! ```
//!
//! As long as nothing overlaps, the nearest base at or below an address is its owner, or it has none; and the pages between
//! the ends of an allocation are its own, so they are counted and not stored. An overlap is a caller's mistake, yet both
//! records are kept. A search then goes on to lower bases for as long as one could reach so far, and
//! [`AddressSpace::distinct_pages`] counts anew.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use rustc_hash::FxBuildHasher;

use crate::SMALL_ALLOC_CHUNK;
use crate::allocation::{Allocation, Extent};
use crate::page::{Page, PageCounts, Touch};
use crate::record::AllocKind;

/// Pages kept for their next allocation although nothing touches them now.
const IDLE_PAGES: usize = 4096;

/// One address space.
#[derive(Default)]
pub(crate) struct AddressSpace {
    aligned: HashMap<u64, Allocation, FxBuildHasher>,
    others: BTreeMap<u64, Allocation>,
    pages: HashMap<u64, Page, FxBuildHasher>,
    counts: PageCounts,
    /// Pages that nothing touches.
    idle: usize,
    /// Live allocations that overlapped another when they were inserted. Each overlapping pair has at least one, so at 0
    /// nothing overlaps.
    overlapping: usize,
    /// Live allocations without bytes. They are no owners, so a search in `others` goes past them.
    empty: usize,
    /// No allocation in `others` since it was last empty is longer than this many bytes, less one.
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
    extent.first.is_multiple_of(Page::GRAIN) && page_of(extent.first) == page_of(extent.last)
}

/// The page with this number, which is about to be touched, or to lose a touch.
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
        self.aligned.get(&addr).or_else(|| self.others.get(&addr))
    }

    /// That allocation, to be changed in anything but its place, size and kind.
    pub(crate) fn get_mut(&mut self, addr: u64) -> Option<&mut Allocation> {
        self.aligned.get_mut(&addr).or_else(|| self.others.get_mut(&addr))
    }

    /// The allocation whose bytes hold `addr`: of several the one with the highest base. An empty one holds its base only
    /// where no other does.
    pub(crate) fn owner(&self, addr: u64) -> Option<&Allocation> {
        self.overlap(Extent { first: addr, last: addr }).or_else(|| self.get(addr))
    }

    /// All allocations, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.aligned.values().chain(self.others.values())
    }

    /// Whether live allocations overlap, or did when one of them was inserted.
    pub(crate) fn has_overlaps(&self) -> bool {
        self.overlapping > 0
    }

    /// Inserts an allocation; the answer is the base of one that it overlaps.
    ///
    /// # Errors
    /// [`BaseIsLive`]; nothing is inserted then.
    #[inline]
    pub(crate) fn insert(&mut self, new: &Allocation) -> Result<Option<u64>, BaseIsLive> {
        let extent = new.extent();
        let with = extent.and_then(|extent| self.overlap(extent)).map(|live| live.addr);
        // The same base is an overlap too, unless one of the two is empty.
        if (with.is_some() || extent.is_none() || self.empty > 0) && self.get(new.addr).is_some() {
            return Err(BaseIsLive);
        }
        self.empty += usize::from(extent.is_none());
        let touch = Touch::of(new);
        if extent.is_some_and(is_aligned) {
            self.aligned.insert(new.addr, *new);
            let page = page_mut(&mut self.pages, &mut self.idle, page_of(new.addr));
            page.set_begin(new.addr);
            page.add(touch, &mut self.counts);
            self.mark_overlap(new.addr, with);
            return Ok(with);
        }
        if self.others.is_empty() {
            self.longest = 0;
        }
        self.others.insert(new.addr, *new);
        if let Some(extent) = extent {
            self.longest = self.longest.max(extent.last - extent.first);
            for number in extent.end_pages().filter(|_| !touch.is_none()) {
                page_mut(&mut self.pages, &mut self.idle, number).add(touch, &mut self.counts);
            }
            self.counts.change(extent.pages_between(), touch, u64::wrapping_add);
        }
        self.mark_overlap(new.addr, with);
        Ok(with)
    }

    /// Marks the allocation with this base if it overlaps another.
    fn mark_overlap(&mut self, addr: u64, with: Option<u64>) {
        if with.is_some()
            && let Some(new) = self.get_mut(addr)
        {
            new.overlaps = true;
            self.overlapping += 1;
        }
    }

    /// Removes the allocation whose base is `addr`, if it may go.
    #[inline]
    pub(crate) fn remove_if(
        &mut self,
        addr: u64,
        may_go: impl FnOnce(&Allocation) -> bool,
    ) -> Option<Allocation> {
        let gone = if let Entry::Occupied(entry) = self.aligned.entry(addr) {
            if !may_go(entry.get()) {
                return None;
            }
            let gone = entry.remove();
            let page = page_mut(&mut self.pages, &mut self.idle, page_of(addr));
            page.clear_begin(addr);
            page.subtract(Touch::of(&gone), &mut self.counts);
            self.idle += usize::from(page.is_idle());
            gone
        } else {
            self.others.get(&addr).filter(|live| may_go(live))?;
            self.remove_other(addr)?
        };
        self.overlapping -= usize::from(gone.overlaps);
        if self.idle > IDLE_PAGES {
            self.pages.retain(|_, page| !page.is_idle());
            self.idle = 0;
        }
        Some(gone)
    }

    fn remove_other(&mut self, addr: u64) -> Option<Allocation> {
        let gone = self.others.remove(&addr)?;
        let Some(extent) = gone.extent() else {
            self.empty -= 1;
            return Some(gone);
        };
        let touch = Touch::of(&gone);
        for number in extent.end_pages().filter(|_| !touch.is_none()) {
            let page = page_mut(&mut self.pages, &mut self.idle, number);
            page.subtract(touch, &mut self.counts);
            self.idle += usize::from(page.is_idle());
        }
        self.counts.change(extent.pages_between(), touch, u64::wrapping_sub);
        Some(gone)
    }

    /// Whether a device allocation or padding begins or ends in each page of the ends of these bytes.
    pub(crate) fn is_held(&self, addr: u64, bytes: usize) -> bool {
        let is_device = |number: u64| self.pages.get(&number).is_some_and(Page::is_device);
        Extent::new(addr, bytes).is_some_and(|extent| extent.end_pages().all(is_device))
    }

    /// The counts as they are kept, right as long as nothing overlaps.
    pub(crate) fn counts(&self) -> PageCounts {
        self.counts
    }

    /// The distinct pages that allocations touch. While some overlap, this costs a look at every allocation.
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
        if self.others.is_empty() {
            return aligned;
        }
        aligned.into_iter().chain(self.other_overlap(extent)).max_by_key(|live| live.addr)
    }

    /// Such a one among the aligned allocations.
    #[inline]
    fn aligned_overlap(&self, extent: Extent) -> Option<&Allocation> {
        let (first, last) = extent.pages();
        if first == last {
            return self.overlap_in_page(self.pages.get(&first)?, extent);
        }
        let in_page = |number: u64, page: &Page| {
            let end = extent.last.min(number * SMALL_ALLOC_CHUNK + (SMALL_ALLOC_CHUNK - 1));
            self.overlap_in_page(
                page,
                Extent { first: extent.first.max(number * SMALL_ALLOC_CHUNK), last: end },
            )
        };
        // The shorter of two walks finds it.
        if last - first <= self.pages.len() as u64 {
            (first..=last).rev().find_map(|number| in_page(number, self.pages.get(&number)?))
        } else {
            let pages = self.pages.iter().filter(|&(&number, _)| first <= number && number <= last);
            pages.filter_map(|(&number, page)| in_page(number, page)).max_by_key(|live| live.addr)
        }
    }

    /// Such a one among those that begin in this page, in which `extent` lies.
    fn overlap_in_page(&self, page: &Page, extent: Extent) -> Option<&Allocation> {
        let mut nearest = self.aligned.get(&page.begin_below(extent.last)?)?;
        // As long as nothing overlaps, only the nearest can share bytes.
        while self.has_overlaps() && !nearest.shares(extent) {
            let below =
                nearest.addr.checked_sub(1).filter(|below| page_of(*below) == page_of(extent.last))?;
            nearest = self.aligned.get(&page.begin_below(below)?)?;
        }
        Some(nearest).filter(|nearest| nearest.shares(extent))
    }

    /// Such a one among the other allocations.
    fn other_overlap(&self, extent: Extent) -> Option<&Allocation> {
        let mut below = self.others.range(..=extent.last).rev().map(|(_, live)| live);
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of a shard.

use crate::entries::{Entries, Entry};
use crate::mixer::home;
use crate::page::{Flips, Page, Where};
use crate::shard::SHARDS;

/// Pages of a shard that stay though nothing touches them, for the next allocation there, so that a steady state asks the
/// host for no memory.
const KEPT: usize = 64;
/// The more there are, the less memory one of them may have to stay: a page that held thousands of allocations has that of
/// a hundred that held few.
const KEPT_SLOTS: usize = KEPT * 512;

/// No page has it: page numbers are addresses shifted down.
const NO_PAGE: u64 = u64::MAX;

/// A place without a page.
fn no_page() -> Page {
    Page::new(NO_PAGE, Entries::default())
}

/// The pages of a shard by number, in a table of their own: open addressing, at most half full, a page's head beside its
/// number.
#[derive(Default)]
pub(crate) struct Pages {
    /// A power of two of them, or none.
    places: Vec<Page>,
    used: usize,
    /// Pages of the table that nothing touches.
    untouched: usize,
    /// The memory of pages that are gone.
    spares: Vec<Entries>,
}

impl Pages {
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// The first place to look for a page: of a shard's pages, which are those at equal distances, neighbours are side by side.
    #[inline(always)]
    fn home(&self, number: u64) -> usize {
        home(number / SHARDS as u64, self.places.len())
    }

    /// Where a page is, or else where it would go.
    #[inline(always)]
    fn find(&self, number: u64) -> Result<usize, usize> {
        let mut at = self.home(number);
        while let Some(page) = self.places.get(at) {
            if page.number() == number {
                return Ok(at);
            }
            if page.number() == NO_PAGE {
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

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Page> {
        self.find(number).ok().map(|at| &mut self.places[at])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.places.iter().filter(|page| page.number() != NO_PAGE).map(|page| (page.number(), page))
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

    /// The page for an allocation that may be recorded there. One that is not yet known, and so not held, is not made where
    /// a held one is asked for: nobody would ever drop it.
    #[inline]
    pub(crate) fn open_for(&mut self, number: u64, place: Where) -> Option<&mut Page> {
        let page = match place {
            Where::Anywhere => self.open(number),
            Where::HeldPage => self.get_mut(number)?,
        };
        page.suits(place).then_some(page)
    }

    #[inline(never)]
    fn make(&mut self, number: u64, at: usize) -> usize {
        let mut at = at;
        if self.places.len() <= 2 * self.used {
            let more = (2 * self.places.len()).max(8);
            let old = std::mem::take(&mut self.places);
            self.places.resize_with(more, no_page);
            for page in old.into_iter().filter(|page| page.number() != NO_PAGE) {
                // None of them is there twice.
                let (Ok(to) | Err(to)) = self.find(page.number());
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

    /// Removes the entry that begins at `offset` of that page, if it may go.
    pub(crate) fn remove_if(
        &mut self,
        number: u64,
        offset: u32,
        may_go: impl Fn(&Entry) -> bool,
    ) -> Option<(Entry, Flips)> {
        let page = self.get_mut(number)?;
        let gone = page.take_if(offset, may_go)?;
        if page.is_untouched() {
            let slots = page.entries().slots();
            self.note_untouched(number, slots);
        }
        Some(gone)
    }

    /// Removes the small device allocation that begins at `offset` of that page, where that is
    /// [quickly done](Page::take_small_quickly); else nothing is done. Answers whether the page stops being one of device
    /// memory.
    #[inline(always)]
    pub(crate) fn remove_small_quickly(&mut self, number: u64, offset: u32) -> Option<(Entry, bool)> {
        let page = self.get_mut(number)?;
        let (gone, alone) = page.take_small_quickly(offset)?;
        if alone && page.is_untouched() {
            let slots = page.entries().slots();
            self.note_untouched(number, slots);
        }
        Some((gone, alone))
    }

    /// To be called when the first touch of a page is made.
    #[inline(always)]
    pub(crate) fn note_touched(&mut self) {
        self.untouched -= 1;
    }

    /// To be called when the last touch of a page is gone, which has so many slots. It stays for the next allocation in it,
    /// unless it has too much memory for how many such pages there are.
    #[inline(always)]
    pub(crate) fn note_untouched(&mut self, number: u64, slots: usize) {
        self.untouched += 1;
        if self.untouched > KEPT || self.untouched * slots > KEPT_SLOTS {
            self.drop_page(number);
        }
    }

    #[cold]
    fn drop_page(&mut self, number: u64) {
        let Ok(mut hole) = self.find(number) else { return };
        self.untouched -= 1;
        self.used -= 1;
        let gone = std::mem::replace(&mut self.places[hole], no_page()).into_entries();
        if self.spares.len() < KEPT && gone.is_modest() {
            self.spares.push(gone);
        }
        // What stands behind the hole, and would have stood in it, moves up.
        let mask = self.places.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let there = self.places[at].number();
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Large allocations of one size put their ends at equal distances: their pages are near their homes, whatever that is.
    #[test]
    fn pages_at_equal_distances_are_near_their_homes() {
        const FIRST: u64 = 0x7f0e_0000_0000 >> 21;
        for (distance, many) in (1..300).flat_map(|distance| [50, 300, 3000].map(|many| (distance, many))) {
            let mut shards: Vec<Pages> = (0..SHARDS).map(|_| Pages::default()).collect();
            let numbers = || (0..many).map(|n| FIRST + n * distance);
            for number in numbers() {
                assert_eq!(shards[number as usize % SHARDS].open(number).number(), number);
            }
            let steps = |number: u64| {
                let pages = &shards[number as usize % SHARDS];
                pages.find(number).unwrap().wrapping_sub(pages.home(number)) & (pages.places.len() - 1)
            };
            let all: usize = numbers().map(steps).sum();
            assert!(all <= 4 * many as usize, "{all} steps to {many} pages at every {distance}th");
        }
    }
}

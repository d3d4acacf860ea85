// SPDX-License-Identifier: MIT OR Apache-2.0
//! Live allocations by address: exact base, owner of an address, overlap, and the pages touched.
//!
//! ```text
//!  Space ── shards:   page number mod shards ─> Pages ─> Page ─> Entries
//!        ├─ spanning: base ─> last byte                    (what crosses pages, or the end of all)
//!        ├─ empty:    base                                 (what has no bytes)
//!        └─ latest:   the latest record                    (beside its page, as long as nothing else happens)
//! ```
//! What lies in one page needs that page alone, so the shards can be dealt out to threads. What crosses pages is counted in
//! its first and last page; the pages between are its own as long as nothing overlaps. An overlap is a caller's mistake,
//! yet both records are kept: `overlapped` tells that questions must then look further than the nearest neighbour, and that
//! distinct pages must be counted anew.

use std::collections::BTreeMap;

use crate::entries::{Entry, Item};
use crate::latest::Latest;
use crate::page::{Flips, PAGE_SHIFT, Page, PageCounts, Touch, Where};
use crate::shard::{SHARDS, Shard};
use crate::{AllocKind, SMALL_ALLOC_CHUNK};

/// The bytes of an allocation, as an inclusive range that ends with the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Extent {
    /// None where there are no bytes.
    #[inline]
    pub(crate) fn new(addr: u64, bytes: usize) -> Option<Self> {
        let more = (bytes as u64).checked_sub(1)?;
        Some(Self { first: addr, last: addr.saturating_add(more) })
    }

    /// First and last page touched.
    #[inline]
    pub(crate) fn pages(self) -> (u64, u64) {
        (self.first >> PAGE_SHIFT, self.last >> PAGE_SHIFT)
    }
}

/// One allocation with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) addr: u64,
    pub(crate) bytes: usize,
    pub(crate) item: Item,
}

impl Standing {
    pub(crate) fn touch(&self) -> Touch {
        Touch::of(self.item.kind(), self.bytes)
    }

    /// Whether it is a caller's own, which padding is not.
    pub(crate) fn is_own(&self) -> bool {
        self.item.kind() != AllocKind::Padding
    }

    /// Whether another of this kind had this place and size.
    #[inline(always)]
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.addr == other.addr && self.bytes == other.bytes && self.item.is_kind_of(&other.item)
    }

    pub(crate) fn holds(&self, addr: u64) -> bool {
        self.addr == addr
            || Extent::new(self.addr, self.bytes).is_some_and(|e| e.first <= addr && addr <= e.last)
    }
}

/// What stands at an address that an allocation was recorded at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    Clean,
    /// It was inserted and overlaps this one (and maybe more).
    Overlapping(Standing),
    /// Nothing was inserted: this one has the very same base.
    BaseTaken(Standing),
}

/// What crosses pages, or would pass the end of the address space, by base.
#[derive(Clone, Copy)]
struct Spanning {
    last: u64,
    bytes: usize,
    item: Item,
}

/// One address space.
pub(crate) struct Space {
    /// Empty while they are dealt out.
    pub(crate) shards: [Shard; SHARDS],
    spanning: BTreeMap<u64, Spanning>,
    empty: BTreeMap<u64, Standing>,
    /// Live allocations that overlapped another when they were inserted. Each overlapping pair has at least one, so at 0
    /// nothing overlaps.
    overlapped: usize,
    /// No spanning allocation since the last one went is longer than this many bytes, less one.
    longest: u64,
    /// Counts the spanning allocations ever inserted, from 1.
    pub(crate) spanning_state: u64,
    latest: Latest,
}

#[inline]
pub(crate) fn locate(addr: u64) -> (u64, u32) {
    (addr >> PAGE_SHIFT, (addr & (SMALL_ALLOC_CHUNK - 1)) as u32)
}

fn entry_standing(page: u64, entry: &Entry) -> Standing {
    Standing {
        addr: (page << PAGE_SHIFT) + u64::from(entry.offset()),
        bytes: entry.bytes() as usize,
        item: entry.item,
    }
}

fn spanning_standing(base: u64, spanning: &Spanning) -> Standing {
    Standing { addr: base, bytes: spanning.bytes, item: spanning.item }
}

impl Space {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Shard::default()),
            spanning: BTreeMap::new(),
            empty: BTreeMap::new(),
            overlapped: 0,
            longest: 0,
            spanning_state: 1,
            latest: Latest::NONE,
        }
    }

    /// Puts what is kept beside its page there: before anything is asked, or done in another way than the quick ones, and
    /// before the shards go.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if let Some((addr, bytes, item)) = self.latest.close() {
            // Whoever kept it counted what it flips.
            self.put(addr, bytes, item);
        }
    }

    /// Puts one that lies whole in a page there; and the change of the counts of pages.
    #[inline(never)]
    fn put(&mut self, addr: u64, bytes: u32, item: Item) -> Flips {
        let (number, offset) = locate(addr);
        let pages = &mut self.shard_mut(number).pages;
        let page = pages.open(number);
        let first = page.is_untouched();
        let flips = page.put(Entry::new(offset, bytes, item));
        if first {
            pages.note_touched();
        }
        flips
    }

    /// For what is to come by [`settle`](Self::settle).
    fn check_settled(&self) {
        debug_assert!(self.latest.is_none(), "a record is not in its page");
    }

    #[inline]
    pub(crate) fn shard(&self, page: u64) -> &Shard {
        &self.shards[page as usize % SHARDS]
    }

    #[inline]
    pub(crate) fn shard_mut(&mut self, page: u64) -> &mut Shard {
        &mut self.shards[page as usize % SHARDS]
    }

    fn page(&self, number: u64) -> Option<&Page> {
        self.check_settled();
        self.shard(number).pages.get(number)
    }

    #[inline]
    pub(crate) fn has_overlaps(&self) -> bool {
        self.overlapped > 0
    }

    /// The one whose base is `addr`.
    pub(crate) fn find(&self, addr: u64) -> Option<Standing> {
        let (number, offset) = locate(addr);
        self.page(number)
            .and_then(|page| page.entries().find(offset))
            .map(|entry| entry_standing(number, &entry))
            .or_else(|| self.spanning.get(&addr).map(|s| spanning_standing(addr, s)))
            .or_else(|| self.empty.get(&addr).copied())
    }

    /// Moves the one whose base is `addr` to another group.
    pub(crate) fn set_group(&mut self, addr: u64, group: u32) {
        self.check_settled();
        let (number, offset) = locate(addr);
        if let Some(page) = self.shard_mut(number).pages.get_mut(number)
            && let Some(item) = page.item_mut(offset)
        {
            item.set_group(group);
        } else if let Some(spanning) = self.spanning.get_mut(&addr) {
            spanning.item.set_group(group);
        } else if let Some(empty) = self.empty.get_mut(&addr) {
            empty.item.set_group(group);
        }
    }

    /// The one whose bytes hold `addr`: of several, the one with the highest base.
    pub(crate) fn owner(&self, addr: u64) -> Option<Standing> {
        let (number, offset) = locate(addr);
        let inner = self
            .page(number)
            .and_then(|page| page.entries().owner(offset))
            .map(|e| entry_standing(number, &e));
        let spanning = self.spanning_at(addr);
        inner.into_iter().chain(spanning).max_by_key(|s| s.addr).or_else(|| self.empty.get(&addr).copied())
    }

    /// All there are, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Standing> {
        self.check_settled();
        let pages = self.shards.iter().flat_map(|shard| shard.pages.iter());
        let inner = pages.flat_map(|(number, page)| {
            page.entries().iter().map(move |entry| entry_standing(number, &entry))
        });
        inner
            .chain(self.spanning.iter().map(|(&base, s)| spanning_standing(base, s)))
            .chain(self.empty.values().copied())
    }

    /// Whether something without bytes is live. It is in no page, so a look at a page does not tell that its base is taken.
    #[inline(always)]
    pub(crate) fn has_empty(&self) -> bool {
        !self.empty.is_empty()
    }

    /// Inserts a small device allocation, where neither a neighbour nor a spanning one is in the way; None, and nothing
    /// changed, where something may be. To be asked only while nothing overlaps.
    pub(crate) fn insert_small(&mut self, addr: u64, bytes: u32, item: Item, place: Where) -> Option<Flips> {
        self.settle();
        if self.has_empty() && self.empty.contains_key(&addr) {
            return None;
        }
        let (number, offset) = locate(addr);
        let nothing_spans = self.spanning.is_empty();
        let pages = &mut self.shard_mut(number).pages;
        let page = pages.open_for(number, place)?;
        if !page.is_clear(nothing_spans) {
            return None;
        }
        let first = page.is_untouched();
        let flips = page.put_small(Entry::new(offset, bytes, item))?;
        if first {
            pages.note_touched();
        }
        Some(flips)
    }

    /// [`insert_small`](Self::insert_small) where there is [quickly seen](Page::would_be_alone) to be room, in a page that is
    /// known; else nothing is done.
    #[inline(always)]
    pub(crate) fn insert_small_quickly(
        &mut self,
        addr: u64,
        bytes: u32,
        item: Item,
        place: Where,
    ) -> Option<bool> {
        if self.has_empty() {
            return None;
        }
        if let Some(alone) = self.latest.hold_again(addr, bytes, item, place) {
            return Some(alone);
        }
        self.settle();
        let (number, offset) = locate(addr);
        let nothing_spans = self.spanning.is_empty();
        let pages = &mut self.shards[number as usize % SHARDS].pages;
        let page = pages.get_mut(number)?;
        if !page.is_clear(nothing_spans) || !page.suits(place) {
            return None;
        }
        let alone = page.would_be_alone(offset, bytes)?;
        if self.latest.pays() {
            self.latest.hold(addr, bytes, item, alone);
            return Some(alone);
        }
        let first = page.is_untouched();
        page.put_small_at_once(Entry::new(offset, bytes, item));
        if first {
            pages.note_touched();
        }
        self.latest.pass(addr);
        Some(alone)
    }

    /// Inserts, unless the base is taken; and the change of the page counts.
    pub(crate) fn insert(&mut self, new: Standing) -> (Inserted, PageCounts) {
        self.check_settled();
        let none = PageCounts::default();
        let addr = new.addr;
        if let Some(&taken) = self.empty.get(&addr) {
            return (Inserted::BaseTaken(taken), none);
        }
        let Some(extent) = Extent::new(addr, new.bytes) else {
            return match self.find(addr) {
                Some(taken) => (Inserted::BaseTaken(taken), none),
                None => {
                    self.empty.insert(addr, new);
                    (Inserted::Clean, none)
                }
            };
        };
        let clash = self.clash(extent);
        if let Some(other) = clash
            && other.addr == addr
        {
            return (Inserted::BaseTaken(other), none);
        }
        let item = new.item.overlapped(clash.is_some());
        let (first_page, last_page) = extent.pages();
        let mut counts = none;
        if first_page == last_page && extent.last - extent.first == new.bytes as u64 - 1 {
            // Within one page, so its bytes are below 2^22.
            counts.add(self.put(addr, new.bytes as u32, item).into());
        } else {
            self.longest = self.longest.max(extent.last - extent.first);
            self.spanning_state += 1;
            self.spanning.insert(addr, Spanning { last: extent.last, bytes: new.bytes, item });
            for number in ends(first_page, last_page) {
                let pages = &mut self.shard_mut(number).pages;
                let page = pages.open(number);
                let first = page.is_untouched();
                page.spanning += 1;
                counts.add(page.touch(new.touch(), true).into());
                if first {
                    pages.note_touched();
                }
            }
            counts.add(between(first_page, last_page, new.touch(), true));
        }
        match clash {
            None => (Inserted::Clean, counts),
            Some(other) => {
                self.overlapped += 1;
                (Inserted::Overlapping(other), counts)
            }
        }
    }

    /// Removes the small device allocation that begins at `addr`, if there is one. To be asked only while
    /// nothing overlaps.
    pub(crate) fn remove_small(&mut self, addr: u64) -> Option<(Entry, Flips)> {
        self.settle();
        let (number, offset) = locate(addr);
        self.shard_mut(number).pages.remove_if(number, offset, Entry::is_small)
    }

    /// [`remove_small`](Self::remove_small) where that is [quickly done](Page::take_small_quickly); else nothing is done.
    /// Answers whether its page stops being one of device memory.
    #[inline(always)]
    pub(crate) fn remove_small_quickly(&mut self, addr: u64) -> Option<(Entry, bool)> {
        let (number, offset) = locate(addr);
        if let Some((bytes, item, alone)) = self.latest.free(addr) {
            return Some((Entry::new(offset, bytes, item), alone));
        }
        self.settle();
        let (gone, alone) = self.shard_mut(number).pages.remove_small_quickly(number, offset)?;
        self.latest.gone(addr, gone.bytes(), alone);
        Some((gone, alone))
    }

    /// Removes what [`find`](Self::find) found; and the change of the page counts.
    pub(crate) fn remove(&mut self, gone: &Standing) -> PageCounts {
        self.check_settled();
        let none = PageCounts::default();
        if gone.item.is_overlapped() {
            self.overlapped -= 1;
        }
        let (number, offset) = locate(gone.addr);
        if let Some((_, flips)) = self.shard_mut(number).pages.remove_if(number, offset, |_| true) {
            return flips.into();
        }
        let Some(extent) = Extent::new(gone.addr, gone.bytes) else {
            self.empty.remove(&gone.addr);
            return none;
        };
        let (first_page, last_page) = extent.pages();
        self.spanning.remove(&gone.addr);
        if self.spanning.is_empty() {
            self.longest = 0;
        }
        let mut counts = none;
        for number in ends(first_page, last_page) {
            let pages = &mut self.shard_mut(number).pages;
            if let Some(page) = pages.get_mut(number) {
                page.spanning -= 1;
                counts.add(page.touch(gone.touch(), false).into());
                if page.is_untouched() {
                    let slots = page.entries().slots();
                    pages.note_untouched(number, slots);
                }
            }
        }
        counts.add(between(first_page, last_page, gone.touch(), false));
        counts
    }

    /// Whether no spanning allocation lies over any byte of `extent`, which is within one page, and none is empty there.
    pub(crate) fn is_clear(&self, extent: Extent) -> bool {
        self.empty.is_empty() && !self.has_overlaps() && self.spanning_clash(extent).is_none()
    }

    /// Whether none touches that page.
    pub(crate) fn is_page_clear(&self, number: u64) -> bool {
        let first = number << PAGE_SHIFT;
        self.is_clear(Extent { first, last: first + (SMALL_ALLOC_CHUNK - 1) })
    }

    /// The spanning allocation that holds `addr`, the one with the highest base of several.
    fn spanning_at(&self, addr: u64) -> Option<Standing> {
        let lowest = if self.has_overlaps() { addr.saturating_sub(self.longest) } else { 0 };
        let depth = if self.has_overlaps() { usize::MAX } else { 1 };
        self.spanning
            .range(lowest..=addr)
            .rev()
            .take(depth)
            .find(|&(_, s)| s.last >= addr)
            .map(|(&base, s)| spanning_standing(base, s))
    }

    /// Something live that shares bytes with `extent`; the one with the same base before any other.
    fn clash(&self, extent: Extent) -> Option<Standing> {
        let (first_page, last_page) = extent.pages();
        if first_page == last_page {
            let page = self.page(first_page);
            let inner = page.and_then(|p| {
                let bytes = (extent.last - extent.first + 1) as u32;
                p.entries().clash(locate(extent.first).1, bytes)
            });
            if let Some(entry) = inner {
                let found = entry_standing(first_page, &entry);
                // Nearest first: with the same base taken in this page, that is the one found.
                if found.addr == extent.first || !self.has_overlaps() {
                    return Some(found);
                }
                let same = self.spanning.get(&extent.first).map(|s| spanning_standing(extent.first, s));
                return same.or(Some(found));
            }
            // A page in which something lies whole, with no end of a spanning allocation, is inside none.
            if !self.has_overlaps() && page.is_some_and(|p| !p.entries().is_empty() && p.spanning == 0) {
                return None;
            }
            return self.spanning_clash(extent);
        }
        // The same base first: a page's entry of that base is found by `find`, a spanning one by `spanning_clash`.
        if let Some(entry) = self.page(first_page).and_then(|p| p.entries().find(locate(extent.first).1)) {
            return Some(entry_standing(first_page, &entry));
        }
        self.spanning_clash(extent).or_else(|| self.inner_clash(extent))
    }

    fn spanning_clash(&self, extent: Extent) -> Option<Standing> {
        if self.spanning.is_empty() {
            return None;
        }
        self.spanning_at(extent.first).or_else(|| {
            let (&base, s) = self.spanning.range(extent.first..=extent.last).next()?;
            Some(spanning_standing(base, s))
        })
    }

    /// Something lying in one page that shares bytes with the spanning `extent`.
    fn inner_clash(&self, extent: Extent) -> Option<Standing> {
        let (first_page, last_page) = extent.pages();
        let page_end = SMALL_ALLOC_CHUNK as u32;
        if let Some(page) = self.page(first_page) {
            let offset = locate(extent.first).1;
            if let Some(entry) = page.entries().clash(offset, page_end - offset) {
                return Some(entry_standing(first_page, &entry));
            }
        }
        if let Some(page) = self.page(last_page)
            && let Some(entry) = page.entries().clash(0, locate(extent.last).1 + 1)
        {
            return Some(entry_standing(last_page, &entry));
        }
        let first_entry =
            |number: u64, page: &Page| page.entries().first().map(|e| entry_standing(number, &e));
        // Whatever lies in a page between is inside; the shorter of two walks finds it.
        let known: usize = self.shards.iter().map(|shard| shard.pages.len()).sum();
        if last_page - first_page - 1 <= known as u64 {
            (first_page + 1..last_page).find_map(|n| first_entry(n, self.page(n)?))
        } else {
            let pages = self.shards.iter().flat_map(|shard| shard.pages.iter());
            let between = pages.filter(|&(n, _)| n > first_page && n < last_page);
            between.filter_map(|(n, page)| first_entry(n, page)).min_by_key(|s| s.addr)
        }
    }
}

/// First and last page, once where they are the same.
fn ends(first: u64, last: u64) -> impl Iterator<Item = u64> {
    std::iter::once(first).chain((last != first).then_some(last))
}

/// The pages between the ends of a spanning allocation, which are its own while nothing overlaps.
fn between(first: u64, last: u64, touch: Touch, add: bool) -> PageCounts {
    let pages = (last - first).saturating_sub(1);
    let pages = if add { pages } else { pages.wrapping_neg() };
    match touch {
        Touch::Nothing => PageCounts::default(),
        Touch::Arena => PageCounts { arena_only: pages, ..PageCounts::default() },
        Touch::Device { .. } => PageCounts { device: pages, ..PageCounts::default() },
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What touches one 2 MiB page.

use crate::entries::{Entries, Entry, Item};
use crate::{AllocKind, SMALL_ALLOC_CHUNK};

pub(crate) const PAGE_SHIFT: u32 = SMALL_ALLOC_CHUNK.trailing_zeros();

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
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
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

/// What touches one page.
///
/// One cache line, since a record or free anywhere begins with that of its page.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Page {
    number: u64,
    /// What lies whole in it.
    entries: Entries,
    /// Touches by device allocations smaller than a chunk, by others and padding, and by arenas.
    small: u32,
    large: u32,
    arena: u32,
    /// Spanning allocations that begin or end here.
    pub(crate) spanning: u32,
    /// The state of the spanning allocations in which none of them was over this page; 0 for not known.
    pub(crate) clear_as_of: u64,
}

const _: () = assert!(size_of::<Page>() == 64, "a page's head is one cache line");

impl Page {
    /// A page that nothing touches, with the memory of an emptied one.
    pub(crate) fn new(number: u64, entries: Entries) -> Self {
        Self { number, entries, ..Self::default() }
    }

    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn into_entries(self) -> Entries {
        self.entries
    }

    /// What lies whole in this page.
    #[inline]
    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    pub(crate) fn item_mut(&mut self, offset: u32) -> Option<&mut Item> {
        self.entries.item_mut(offset)
    }

    #[inline]
    pub(crate) fn is_untouched(&self) -> bool {
        self.entries.is_empty() && self.spanning == 0
    }

    /// Whether none of the spanning allocations is over this page, for all that is seen here: one in which something lies
    /// whole, with no end of a spanning allocation, is inside none. Where nothing overlaps.
    #[inline]
    pub(crate) fn is_clear(&self, nothing_spans: bool) -> bool {
        nothing_spans || self.spanning == 0 && !self.entries.is_empty()
    }

    #[inline]
    pub(crate) fn suits(&self, place: Where) -> bool {
        place == Where::Anywhere || self.small | self.large != 0
    }

    /// Puts in an entry that has bytes, and a base that no other has; and the change of the counts of pages.
    pub(crate) fn put(&mut self, entry: Entry) -> Flips {
        self.entries.put(entry);
        self.touch(entry.touch(), true)
    }

    /// Puts in a small device allocation, unless it shares bytes with another entry; and the change of the counts of pages.
    pub(crate) fn put_small(&mut self, entry: Entry) -> Option<Flips> {
        self.entries.put_clean(entry).then(|| self.touch(Touch::Device { small: true }, true))
    }

    /// Whether a small device allocation there would be alone, so that the page comes to be one of device memory with it. None
    /// where there is not [quickly seen](Entries::has_room) to be room, or an arena or something large touches the page too.
    #[inline(always)]
    pub(crate) fn would_be_alone(&self, offset: u32, bytes: u32) -> Option<bool> {
        let alone = self.small == 0;
        let may_be = !alone || self.large | self.arena == 0;
        (may_be && self.entries.has_room(offset, offset + bytes)).then_some(alone)
    }

    /// Puts in a small device allocation for which there is [room](Self::would_be_alone).
    #[inline(always)]
    pub(crate) fn put_small_at_once(&mut self, entry: Entry) {
        self.entries.put_at_once(entry);
        self.small += 1;
    }

    /// Takes out the entry that begins at `offset`, if it may go; and the change of the counts of pages.
    pub(crate) fn take_if(&mut self, offset: u32, may_go: impl Fn(&Entry) -> bool) -> Option<(Entry, Flips)> {
        let gone = self.entries.take_if(offset, may_go)?;
        Some((gone, self.touch(gone.touch(), false)))
    }

    /// Takes out the small device allocation that begins at `offset`, where that is [quickly done](Entries::take_quickly);
    /// else nothing is done. The change is told as whether the page stops being one of device memory.
    #[inline(always)]
    pub(crate) fn take_small_quickly(&mut self, offset: u32) -> Option<(Entry, bool)> {
        let alone = self.small == 1;
        if alone && self.large | self.arena != 0 {
            return None;
        }
        let gone = self.entries.take_quickly(offset, Entry::is_small)?;
        self.small -= 1;
        Some((gone, alone))
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! One 2 MiB page: where allocations begin in it, and how many touch it; and the numbers of distinct pages, kept from that.

use crate::SMALL_ALLOC_CHUNK;
use crate::allocation::Allocation;
use crate::record::AllocKind;

/// Numbers of distinct pages. They may wrap while allocations overlap, and are right again when none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    /// Touched by a device allocation or by padding.
    pub(crate) device: u64,
    /// Touched by arenas only.
    pub(crate) arena_only: u64,
    /// Touched by a sweepable allocation smaller than a chunk. Always exact, since such an allocation has no pages between its
    /// ends.
    pub(crate) small: u64,
}

/// Which of the numbers in [`PageCounts`] an allocation counts in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// A device allocation or padding.
    is_device: bool,
    is_arena: bool,
    /// A sweepable allocation smaller than a chunk.
    is_small: bool,
}

impl Touch {
    pub(crate) fn of(allocation: &Allocation) -> Self {
        Self {
            is_device: allocation.kind.is_packed(),
            is_arena: allocation.kind == AllocKind::Arena,
            is_small: allocation.is_small(),
        }
    }

    /// Whether it counts in none of them, like large managed memory.
    pub(crate) fn is_none(self) -> bool {
        !(self.is_device || self.is_arena || self.is_small)
    }
}

impl PageCounts {
    /// Adds (`sign` 1) or subtracts (-1) pages that only one allocation touches.
    pub(crate) fn change(&mut self, pages: u64, touch: Touch, sign: i64) {
        let change = sign * pages as i64;
        self.device = self.device.wrapping_add_signed(change * i64::from(touch.is_device));
        self.arena_only = self.arena_only.wrapping_add_signed(change * i64::from(touch.is_arena));
    }
}

/// Words of 64 bits, one bit for each grain of a page.
const WORDS: usize = (SMALL_ALLOC_CHUNK / Page::GRANULARITY / 64) as usize;

/// One page.
#[derive(Default)]
pub(crate) struct Page {
    /// How many allocations touch it with one of their ends: device allocations and padding, arenas, small ones.
    device: u32,
    arena: u32,
    small: u32,
    /// Bit w: word w of `begins` is not 0.
    words: u64,
    /// In which grains an aligned allocation begins. Made with the first of them.
    begins: Option<Box<[u64; WORDS]>>,
}

impl Page {
    /// A grain: the granularity in bytes, at multiples of which drivers place memory.
    pub(crate) const GRANULARITY: u64 = 512;

    /// The word of an address in its page, and its bit in that word.
    fn place(addr: u64) -> (usize, u32) {
        let grain = addr % SMALL_ALLOC_CHUNK / Self::GRANULARITY;
        ((grain / 64) as usize, (grain % 64) as u32)
    }

    /// Adds the aligned allocation with this base.
    pub(crate) fn set_begin(&mut self, addr: u64) {
        let (word, bit) = Self::place(addr);
        self.begins.get_or_insert_with(|| Box::new([0; WORDS]))[word] |= 1 << bit;
        self.words |= 1 << word;
    }

    /// Removes the aligned allocation with this base.
    pub(crate) fn clear_begin(&mut self, addr: u64) {
        let (word, bit) = Self::place(addr);
        if let Some(begins) = &mut self.begins {
            begins[word] &= !(1 << bit);
            self.words &= !(u64::from(begins[word] == 0) << word);
        }
    }

    /// The highest base of an aligned allocation at or below `addr`, which lies in this page.
    pub(crate) fn begin_below(&self, addr: u64) -> Option<u64> {
        let begins = self.begins.as_ref()?;
        let (mut word, bit) = Self::place(addr);
        let mut bits = begins[word] & (u64::MAX >> (63 - bit));
        if bits == 0 {
            word = (self.words & ((1 << word) - 1)).checked_ilog2()? as usize;
            bits = begins[word];
        }
        let grain = word as u64 * 64 + u64::from(bits.ilog2());
        Some(addr - addr % SMALL_ALLOC_CHUNK + grain * Self::GRANULARITY)
    }

    /// Whether a device allocation or padding touches it.
    pub(crate) fn is_device(&self) -> bool {
        self.device > 0
    }

    /// Adds (`sign` 1) or subtracts (-1) an allocation that touches this page.
    pub(crate) fn change(&mut self, touch: Touch, sign: i64, counts: &mut PageCounts) {
        // Whether this is the first allocation that touches the page, or was the last.
        let is_edge = |touches: &mut u32| {
            if sign > 0 {
                *touches += 1;
                *touches == 1
            } else {
                *touches -= 1;
                *touches == 0
            }
        };
        if touch.is_device && is_edge(&mut self.device) {
            counts.device = counts.device.wrapping_add_signed(sign);
            counts.arena_only = counts.arena_only.wrapping_add_signed(-sign * i64::from(self.arena > 0));
        }
        if touch.is_arena && is_edge(&mut self.arena) {
            counts.arena_only = counts.arena_only.wrapping_add_signed(sign * i64::from(self.device == 0));
        }
        if touch.is_small && is_edge(&mut self.small) {
            counts.small = counts.small.wrapping_add_signed(sign);
        }
    }

    /// Whether nothing begins in the page or touches it.
    pub(crate) fn is_idle(&self) -> bool {
        self.words == 0 && (self.device | self.arena | self.small) == 0
    }
}

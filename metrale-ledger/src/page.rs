// SPDX-License-Identifier: MIT OR Apache-2.0
//! One 2 MiB page: where allocations begin in it, and how many touch it; and the numbers of pages that this gives.

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

/// In which numbers of pages an allocation counts.
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

    /// Whether it counts in none of them, as large managed memory.
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

/// Grains of a page, and runs of 64 of them.
const GRAINS: usize = (SMALL_ALLOC_CHUNK / Page::GRAIN) as usize;
const RUNS: usize = GRAINS / 64;

/// 64 grains: in which of them an aligned allocation begins, and its slot.
struct Run {
    begins: u64,
    slots: [u32; 64],
}

/// One page.
#[derive(Default)]
pub(crate) struct Page {
    /// How many allocations touch it with one of their ends: device allocations and padding, arenas, small ones.
    device: u32,
    arena: u32,
    small: u32,
    /// Bit g: an allocation begins in run g.
    begins: u64,
    /// Each is made with the first allocation that begins in it.
    runs: Option<Box<[Option<Box<Run>>; RUNS]>>,
}

impl Page {
    /// Drivers place memory at multiples of this many bytes.
    pub(crate) const GRAIN: u64 = 512;

    /// The run of an address in its page, and its grain in that run.
    fn place(addr: u64) -> (usize, usize) {
        let grain = (addr % SMALL_ALLOC_CHUNK / Self::GRAIN) as usize;
        (grain / 64, grain % 64)
    }

    fn run(&self, number: usize) -> Option<&Run> {
        self.runs.as_ref()?[number].as_deref()
    }

    /// The slot of the aligned allocation with this base.
    pub(crate) fn slot(&self, addr: u64) -> Option<u32> {
        let (number, grain) = Self::place(addr);
        let run = self.run(number).filter(|run| run.begins >> grain & 1 == 1)?;
        Some(run.slots[grain])
    }

    /// Adds the aligned allocation with this base.
    #[inline]
    pub(crate) fn set(&mut self, addr: u64, slot: u32) {
        let (number, grain) = Self::place(addr);
        let runs = self.runs.get_or_insert_with(|| Box::new([const { None }; RUNS]));
        let run = runs[number].get_or_insert_with(|| Box::new(Run { begins: 0, slots: [0; 64] }));
        run.begins |= 1 << grain;
        run.slots[grain] = slot;
        self.begins |= 1 << number;
    }

    /// Removes the aligned allocation with this base.
    pub(crate) fn clear(&mut self, addr: u64) {
        let (number, grain) = Self::place(addr);
        if let Some(run) = self.runs.as_mut().and_then(|runs| runs[number].as_mut()) {
            run.begins &= !(1 << grain);
            self.begins &= !(u64::from(run.begins == 0) << number);
        }
    }

    /// The slot of the aligned allocation with the highest base at or below `addr`, which lies in this page.
    pub(crate) fn slot_below(&self, addr: u64) -> Option<u32> {
        let (number, grain) = Self::place(addr);
        if let Some(run) = self.run(number) {
            let begins = run.begins & (u64::MAX >> (63 - grain));
            if begins != 0 {
                return Some(run.slots[begins.ilog2() as usize]);
            }
        }
        let below = (self.begins & ((1 << number) - 1)).checked_ilog2()?;
        let run = self.run(below as usize)?;
        Some(run.slots[run.begins.ilog2() as usize])
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
        self.begins == 0 && (self.device | self.arena | self.small) == 0
    }
}

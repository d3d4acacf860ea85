// SPDX-License-Identifier: MIT OR Apache-2.0
//! One 2 MiB page: where allocations begin in it, how many touch it, and what that makes of the page counts.

use crate::SMALL_ALLOC_CHUNK;
use crate::allocation::Allocation;
use crate::record::AllocKind;

/// Numbers of distinct pages. They wrap while overlaps count a page twice, and are right again when the overlap ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    /// Touched by a device allocation or by padding.
    pub(crate) device: u64,
    /// Touched by arenas only.
    pub(crate) arena_only: u64,
    /// Touched by a sweepable allocation smaller than a chunk. Always exact, since such a one has no pages between its ends.
    pub(crate) small: u64,
}

/// As what an allocation touches its pages.
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
}

impl PageCounts {
    /// Counts so many pages that only one allocation touches.
    pub(crate) fn add(&mut self, pages: u64, touch: Touch) {
        self.device = self.device.wrapping_add(pages * u64::from(touch.is_device));
        self.arena_only = self.arena_only.wrapping_add(pages * u64::from(touch.is_arena));
    }

    /// Takes them off again.
    pub(crate) fn subtract(&mut self, pages: u64, touch: Touch) {
        self.device = self.device.wrapping_sub(pages * u64::from(touch.is_device));
        self.arena_only = self.arena_only.wrapping_sub(pages * u64::from(touch.is_arena));
    }
}

/// Grains of a page, and groups of 64 of them.
const GRAINS: usize = (SMALL_ALLOC_CHUNK / Page::GRAIN) as usize;
const GROUPS: usize = GRAINS / 64;

/// 64 grains: in which an aligned allocation begins, and its slot.
struct Group {
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
    /// Bit g: an allocation begins in group g.
    begins: u64,
    /// Made with the first allocation that begins in each.
    groups: Option<Box<[Option<Box<Group>>; GROUPS]>>,
}

impl Page {
    /// Drivers place memory at multiples of this many bytes.
    pub(crate) const GRAIN: u64 = 512;

    /// The group of an address in its page, and the grain in that.
    fn place(addr: u64) -> (usize, usize) {
        let grain = (addr % SMALL_ALLOC_CHUNK / Self::GRAIN) as usize;
        (grain / 64, grain % 64)
    }

    fn group(&self, number: usize) -> Option<&Group> {
        self.groups.as_ref()?[number].as_deref()
    }

    /// The slot of the aligned allocation with this base.
    pub(crate) fn slot(&self, addr: u64) -> Option<u32> {
        let (number, grain) = Self::place(addr);
        let group = self.group(number).filter(|group| group.begins >> grain & 1 == 1)?;
        Some(group.slots[grain])
    }

    /// Takes note that an aligned allocation begins here.
    pub(crate) fn set(&mut self, addr: u64, slot: u32) {
        let (number, grain) = Self::place(addr);
        let groups = self.groups.get_or_insert_with(|| Box::new([const { None }; GROUPS]));
        let group = groups[number].get_or_insert_with(|| Box::new(Group { begins: 0, slots: [0; 64] }));
        group.begins |= 1 << grain;
        group.slots[grain] = slot;
        self.begins |= 1 << number;
    }

    /// Takes note that it does no longer.
    pub(crate) fn clear(&mut self, addr: u64) {
        let (number, grain) = Self::place(addr);
        if let Some(group) = self.groups.as_mut().and_then(|groups| groups[number].as_mut()) {
            group.begins &= !(1 << grain);
            self.begins &= !(u64::from(group.begins == 0) << number);
        }
    }

    /// The slot of the aligned allocation with the highest base at or below `addr`, which lies in this page.
    pub(crate) fn slot_below(&self, addr: u64) -> Option<u32> {
        let (number, grain) = Self::place(addr);
        if let Some(group) = self.group(number) {
            let begins = group.begins & (u64::MAX >> (63 - grain));
            if begins != 0 {
                return Some(group.slots[begins.ilog2() as usize]);
            }
        }
        let below = (self.begins & ((1 << number) - 1)).checked_ilog2()?;
        let group = self.group(below as usize)?;
        Some(group.slots[group.begins.ilog2() as usize])
    }

    /// Counts an allocation that touches this page.
    pub(crate) fn add(&mut self, touch: Touch, counts: &mut PageCounts) {
        let step = |pages: &mut u64, is_first: bool| *pages = pages.wrapping_add(is_first.into());
        if touch.is_device {
            step(&mut counts.device, self.device == 0);
            if self.device == 0 && self.arena > 0 {
                counts.arena_only = counts.arena_only.wrapping_sub(1);
            }
            self.device += 1;
        } else if touch.is_arena {
            step(&mut counts.arena_only, self.arena == 0 && self.device == 0);
            self.arena += 1;
        }
        if touch.is_small {
            step(&mut counts.small, self.small == 0);
            self.small += 1;
        }
    }

    /// Takes it off again.
    pub(crate) fn subtract(&mut self, touch: Touch, counts: &mut PageCounts) {
        let step = |pages: &mut u64, is_last: bool| *pages = pages.wrapping_sub(is_last.into());
        if touch.is_device {
            self.device -= 1;
            step(&mut counts.device, self.device == 0);
            if self.device == 0 && self.arena > 0 {
                counts.arena_only = counts.arena_only.wrapping_add(1);
            }
        } else if touch.is_arena {
            self.arena -= 1;
            step(&mut counts.arena_only, self.arena == 0 && self.device == 0);
        }
        if touch.is_small {
            self.small -= 1;
            step(&mut counts.small, self.small == 0);
        }
    }

    /// Whether nothing begins in the page or touches it.
    pub(crate) fn is_idle(&self) -> bool {
        self.begins == 0 && (self.device | self.arena | self.small) == 0
    }
}

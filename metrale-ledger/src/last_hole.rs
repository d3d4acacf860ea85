// SPDX-License-Identifier: MIT OR Apache-2.0
//! The place that the last free left. A driver likes to give it out again at once.
//!
//! ```text
//!   none ──a free──> open ──a record of that place and size──> filled ──its free──> open
//!    ^                 │                                          │
//!    └─────────────────┴──── anything else, which comes behind ───┘
//! ```
//! As long as there is one, its page still has the entry that was there before: whatever else happens takes it out first, or
//! makes it what is there now. So who takes memory and gives it back, again and again, pays for neither the way to the page nor
//! the look whether there is room. All else that a record or free changes is changed at once. Where the places are others each
//! time, so that it would not pay, none is opened.

use crate::AllocKind;
use crate::entries::Item;
use crate::page::Where;
use crate::pages::Spot;

/// How often one is opened in vain before that is left.
const PATIENCE: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    None,
    Open,
    Filled,
}

/// None, open, or filled. In fields of their own, since filling it and taking out what is in it then writes few of them.
pub(crate) struct LastHole {
    state: State,
    /// How often more one may be opened in vain.
    patience: u8,
    /// Nothing else of device memory touches its page.
    alone: bool,
    /// Its place and size, or those of the last free where there is none.
    bytes: u32,
    addr: u64,
    /// What is in it, or was.
    item: Item,
    /// Where its entry is.
    spot: Spot,
}

impl LastHole {
    pub(crate) const NONE: Self = Self {
        state: State::None,
        patience: 0,
        alone: false,
        bytes: 0,
        addr: 0,
        item: Item::new(0, 0, AllocKind::Device),
        spot: Spot::NONE,
    };

    /// Opens one where that pays, and tells whether it does.
    #[inline(always)]
    pub(crate) fn open(&mut self, addr: u64, bytes: u32, alone: bool, spot: Spot) -> bool {
        (self.addr, self.bytes) = (addr, bytes);
        let pays = self.patience > 0;
        if pays {
            (self.state, self.alone, self.spot) = (State::Open, alone, spot);
        }
        pays
    }

    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.state == State::None
    }

    /// Fills it, if it is open and of that place and size: whether what is in it is alone, so that its page comes to be one of
    /// device memory.
    #[inline(always)]
    pub(crate) fn fill(&mut self, addr: u64, bytes: u32, item: Item, place: Where) -> Option<bool> {
        if self.addr != addr || self.bytes != bytes {
            return None;
        }
        self.patience = PATIENCE;
        if self.state != State::Open || self.alone && place != Where::Anywhere {
            return None;
        }
        self.state = State::Filled;
        self.item = item;
        Some(self.alone)
    }

    /// Takes out what is in it, if that begins at `addr`: its bytes, the rest of it, and whether it was alone, so that its page
    /// stops being one of device memory.
    #[inline(always)]
    pub(crate) fn empty(&mut self, addr: u64) -> Option<(u32, Item, bool)> {
        if self.state != State::Filled || self.addr != addr {
            return None;
        }
        self.state = State::Open;
        Some((self.bytes, self.item, self.alone))
    }

    /// Makes an end of it: its address and bytes, where its entry is, and what is in it.
    #[inline(always)]
    pub(crate) fn close(&mut self) -> (u64, u32, Spot, Option<Item>) {
        let was = std::mem::replace(&mut self.state, State::None);
        self.patience -= u8::from(was == State::Open);
        (self.addr, self.bytes, self.spot, (was == State::Filled).then_some(self.item))
    }
}

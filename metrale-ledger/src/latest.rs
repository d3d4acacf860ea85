// SPDX-License-Identifier: MIT OR Apache-2.0
//! The latest record, kept beside its page until something else happens.
//!
//! ```text
//!   none ──a record, where that pays──> held ──its free──> gone ──a record of that place and size──> held
//!     ^                                   │ to its page      │
//!     └─────────anything else, behind─────┴──────────────────┘
//! ```
//! What is recorded and freed before anything else happens never gets to its page; and what is recorded where the last free
//! was, as a driver likes to give that out again, needs no look whether there is room. So who takes memory and gives it back,
//! again and again, costs the ledger the half. All else that a record or free changes is changed at once.

use crate::AllocKind;
use crate::entries::Item;
use crate::page::Where;

/// How many records are kept here in vain before that is left, until one is freed right away.
const PATIENCE: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    None,
    Held,
    Gone,
}

/// None, held, or gone. In fields of their own, since what follows on each other then writes few of them.
pub(crate) struct Latest {
    state: State,
    /// How many more may be kept in vain.
    patience: u8,
    /// Nothing else of device memory touches its page.
    alone: bool,
    bytes: u32,
    /// Its place; where there is none, that of the latest record.
    addr: u64,
    item: Item,
}

impl Latest {
    pub(crate) const NONE: Self = Self {
        state: State::None,
        patience: 0,
        alone: false,
        bytes: 0,
        addr: 0,
        item: Item::new(0, 0, AllocKind::Device),
    };

    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.state == State::None
    }

    /// Whether a record had better be kept here.
    #[inline(always)]
    pub(crate) fn pays(&self) -> bool {
        self.patience > 0
    }

    /// Keeps a record for which there is room; `alone` as nothing else of device memory touches its page.
    #[inline(always)]
    pub(crate) fn hold(&mut self, addr: u64, bytes: u32, item: Item, alone: bool) {
        *self = Self { state: State::Held, patience: self.patience, alone, bytes, addr, item };
    }

    /// Takes note of a record that went to its page.
    #[inline(always)]
    pub(crate) fn pass(&mut self, addr: u64) {
        self.addr = addr;
    }

    /// Keeps a record, if that pays and it is of the place and size that are gone: whether it is alone in its page.
    #[inline(always)]
    pub(crate) fn hold_again(&mut self, addr: u64, bytes: u32, item: Item, place: Where) -> Option<bool> {
        let suits = self.pays() && (!self.alone || place == Where::Anywhere);
        if self.state != State::Gone || self.addr != addr || self.bytes != bytes || !suits {
            return None;
        }
        self.state = State::Held;
        self.item = item;
        Some(self.alone)
    }

    /// Lets the one that is held go, if it begins at `addr`: its bytes, the rest of it, and whether it was alone in its page.
    #[inline(always)]
    pub(crate) fn free(&mut self, addr: u64) -> Option<(u32, Item, bool)> {
        if self.addr != addr {
            return None;
        }
        // Had it been kept here, that would have paid.
        self.patience = PATIENCE;
        if self.state != State::Held {
            return None;
        }
        self.state = State::Gone;
        Some((self.bytes, self.item, self.alone))
    }

    /// Takes note of one that is gone from its page, in which it was alone or not.
    #[inline(always)]
    pub(crate) fn gone(&mut self, addr: u64, bytes: u32, alone: bool) {
        (self.state, self.addr, self.bytes, self.alone) = (State::Gone, addr, bytes, alone);
    }

    /// Makes an end of it: address, bytes and the rest of the one that was held.
    #[inline(always)]
    pub(crate) fn close(&mut self) -> Option<(u64, u32, Item)> {
        let was = std::mem::replace(&mut self.state, State::None);
        (was == State::Held).then(|| {
            self.patience = self.patience.saturating_sub(1);
            (self.addr, self.bytes, self.item)
        })
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers to what should not have been asked: frees of what is not live, records over what is.

use std::fmt;
use std::panic::Location;

use crate::index::Standing;
use crate::{AllocRecord, LiveAllocation, SubRange};

/// How an allocation came off the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FreedBy {
    /// [`forget`](crate::Ledger::forget) or one of its kin.
    Free,
    /// [`drain`](crate::Ledger::drain).
    Drain,
    /// Another allocation was recorded at its address, so its free went unseen.
    Displaced,
}

/// An allocation that is no longer live, and who ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreedAllocation {
    /// Its base address.
    pub addr: u64,
    /// What it was.
    pub record: AllocRecord,
    /// The source line that took it off the ledger.
    pub freed_at: &'static Location<'static>,
    /// How it came off.
    pub how: FreedBy,
}

impl fmt::Display for FreedAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.how {
            FreedBy::Free => "freed",
            FreedBy::Drain => "swept",
            FreedBy::Displaced => "displaced",
        };
        write!(f, "{:#x} ({}), {verb} at {}", self.addr, self.record, self.freed_at)
    }
}

/// Why an address could not be taken off the ledger. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForgetError {
    /// Null, which is nothing to free and no mistake.
    Null,
    /// It was live once and is not now.
    DoubleFree {
        /// The allocation and its first free.
        freed: Box<FreedAllocation>,
        /// What lives on that address now, if anything does.
        now_inside: Option<Box<LiveAllocation>>,
    },
    /// It lies inside a live allocation.
    Interior {
        /// The address given.
        addr: u64,
        /// The base to free instead, and its owner.
        owner: Box<LiveAllocation>,
    },
    /// It lies inside an allocation that is no longer live.
    InsideFreed {
        /// The address given.
        addr: u64,
        /// The allocation and its free.
        freed: Box<FreedAllocation>,
    },
    /// It is live, but of a kind that another call takes off.
    OtherKind {
        /// What it is.
        live: Box<LiveAllocation>,
    },
    /// It is a part of an arena.
    SubRange {
        /// The part.
        part: Box<SubRange>,
    },
    /// No allocation that the ledger knows, or still remembers, was ever there.
    Foreign {
        /// The address given.
        addr: u64,
    },
}

impl fmt::Display for ForgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null is no allocation: there is nothing to free"),
            Self::DoubleFree { freed, now_inside } => {
                let before = match freed.how {
                    FreedBy::Free => "freed before",
                    FreedBy::Drain => "swept before",
                    FreedBy::Displaced => "gone before, as another allocation was recorded over it",
                };
                write!(
                    f,
                    "{:#x} is not live: {before} at {}; it was {}",
                    freed.addr, freed.freed_at, freed.record
                )?;
                match now_inside {
                    Some(live) => write!(f, "; the address now lies inside {live}"),
                    None => Ok(()),
                }
            }
            Self::Interior { addr, owner } => write!(
                f,
                "{addr:#x} is {} bytes inside {owner}; free its base {:#x} instead",
                addr.wrapping_sub(owner.addr),
                owner.addr
            ),
            Self::InsideFreed { addr, freed } => write!(
                f,
                "{addr:#x} is not live: it lay {} bytes inside {freed}",
                addr.wrapping_sub(freed.addr)
            ),
            Self::OtherKind { live } => {
                write!(f, "{live} is {} memory; free it as what it was allocated", live.record.kind)
            }
            Self::SubRange { part } => {
                write!(f, "{part} is a part of an arena: give it back to the arena, or free the arena")
            }
            Self::Foreign { addr } => write!(
                f,
                "{addr:#x} is not live and no free of it is remembered: it was not allocated through this ledger"
            ),
        }
    }
}

impl std::error::Error for ForgetError {}

/// What was wrong with an allocation that is nevertheless on the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordMisuse {
    /// Another allocation stood at this very address. One address holds one record, so one of the two is kept and the
    /// other is here: the older one, whose free the ledger did not see.
    OverLive {
        /// The one on the ledger now.
        kept: LiveAllocation,
        /// The one that is off it.
        displaced: AllocRecord,
    },
    /// It shares bytes with a live allocation; both are on the ledger.
    Overlap {
        /// The new one.
        new: LiveAllocation,
        /// One that it overlaps.
        with: LiveAllocation,
    },
    /// It would pass the end of the address space; residency counts what lies within.
    PastEnd {
        /// The new one.
        new: LiveAllocation,
    },
    /// Its address is null.
    Null {
        /// The new one.
        new: LiveAllocation,
    },
    /// It has no bytes, so no driver made it.
    Empty {
        /// The new one.
        new: LiveAllocation,
    },
}

impl fmt::Display for RecordMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OverLive { kept, displaced } => write!(
                f,
                "two allocations at one address: {kept} stands, {displaced} is off the ledger; its free was not recorded"
            ),
            Self::Overlap { new, with } => {
                write!(f, "{new} overlaps the live {with}: a free was not recorded, or a size is wrong")
            }
            Self::PastEnd { new } => {
                write!(f, "{new} passes the end of the address space: its size is wrong")
            }
            Self::Null { new } => write!(f, "{new} is at the null address, where no driver puts memory"),
            Self::Empty { new } => write!(f, "{new} has no bytes, which no driver allocates"),
        }
    }
}

impl std::error::Error for RecordMisuse {}

/// The answer to a record. The allocation is on the ledger in any case, so an answer nobody looks at loses nothing.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its number; see [`AllocRecord::index`].
    pub index: u64,
    /// What was wrong with it, if anything was; also counted in [`MisuseCounts`].
    pub misuse: Option<Box<RecordMisuse>>,
}

impl Recorded {
    /// The index, or what was wrong.
    ///
    /// # Errors
    /// The [`RecordMisuse`].
    pub fn into_result(self) -> Result<u64, Box<RecordMisuse>> {
        match self.misuse {
            None => Ok(self.index),
            Some(misuse) => Err(misuse),
        }
    }
}

/// How often a ledger was misused, by what went wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct MisuseCounts {
    /// Frees of what had been freed before.
    pub double_frees: u64,
    /// Frees of an address inside a live allocation.
    pub interior_frees: u64,
    /// Frees of what the ledger does not know, or no longer.
    pub foreign_frees: u64,
    /// Frees by the call for another kind of memory.
    pub other_kind_frees: u64,
    /// Records at the address of a live allocation.
    pub records_over_live: u64,
    /// Records that overlap a live allocation.
    pub overlapping_records: u64,
    /// Records at null, without bytes, or past the end of the address space.
    pub odd_records: u64,
    /// Records put back since the driver refused the free.
    pub refused_frees: u64,
}

impl MisuseCounts {
    /// Each count with its name in words.
    pub(crate) fn named(&self) -> [(u64, &'static str); 8] {
        [
            (self.double_frees, "double free"),
            (self.interior_frees, "free of an interior pointer"),
            (self.foreign_frees, "free of an unknown pointer"),
            (self.other_kind_frees, "free as another kind"),
            (self.records_over_live, "record over a live allocation"),
            (self.overlapping_records, "overlapping record"),
            (self.odd_records, "odd record"),
            (self.refused_frees, "free the driver refused"),
        ]
    }

    /// All together.
    pub fn total(&self) -> u64 {
        self.named().iter().fold(0, |sum, &(n, _)| sum.saturating_add(n))
    }

    pub(crate) fn note_free(&mut self, error: &ForgetError) {
        let count = match error {
            ForgetError::Null => return,
            ForgetError::DoubleFree { .. } => &mut self.double_frees,
            ForgetError::Interior { .. } | ForgetError::SubRange { .. } => &mut self.interior_frees,
            ForgetError::OtherKind { .. } => &mut self.other_kind_frees,
            ForgetError::InsideFreed { .. } | ForgetError::Foreign { .. } => &mut self.foreign_frees,
        };
        *count += 1;
    }

    pub(crate) fn note_record(&mut self, misuse: &RecordMisuse) {
        let count = match misuse {
            RecordMisuse::OverLive { .. } => &mut self.records_over_live,
            RecordMisuse::Overlap { .. } => &mut self.overlapping_records,
            RecordMisuse::PastEnd { .. } | RecordMisuse::Null { .. } | RecordMisuse::Empty { .. } => {
                &mut self.odd_records
            }
        };
        *count += 1;
    }
}

/// What the ledger knows of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Whois {
    /// It lies in a live allocation.
    Live {
        /// That allocation. Should several overlap there, the one with the highest base.
        allocation: LiveAllocation,
        /// How far behind its base, in bytes.
        offset_bytes: u64,
    },
    /// It lay in an allocation that is gone; the last one, if several were there.
    Freed {
        /// That allocation and its free.
        freed: FreedAllocation,
        /// How far behind its base, in bytes.
        offset_bytes: u64,
    },
    /// Nothing was recorded there, or it was freed too long ago to be remembered.
    Unknown,
}

impl fmt::Display for Whois {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live { allocation, offset_bytes } => write!(f, "live: byte {offset_bytes} of {allocation}"),
            Self::Freed { freed, offset_bytes } => write!(f, "freed: byte {offset_bytes} of {freed}"),
            Self::Unknown => f.write_str("unknown to this ledger"),
        }
    }
}

/// One remembered free.
#[derive(Clone, Copy)]
pub(crate) struct Tombstone {
    pub(crate) was: Standing,
    pub(crate) freed_at: &'static Location<'static>,
    pub(crate) how: FreedBy,
    /// Orders stones of two rings: of one phase, one ring holds all that matter to an address.
    pub(crate) phase: u64,
}

/// The last frees, up to a limit, as a ring: a free on the hot path writes one stone and moves nothing.
///
/// Of frees of one place and size right behind each other only the last is kept, which alone answers what is asked: so a line that
/// takes and gives back again and again does not drive out what the others freed. If that last one turns out not to have
/// happened, the ones before are not remembered either; their place is live again then.
pub(crate) struct Graveyard {
    stones: Vec<Tombstone>,
    /// Where the newest is, one before 0 while there is none. Behind it, once the ring is full, is the oldest.
    newest: usize,
    limit: usize,
}

impl Default for Graveyard {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Graveyard {
    pub(crate) fn new(limit: usize) -> Self {
        Self { stones: Vec::new(), newest: usize::MAX, limit }
    }

    // Always inlined, so that a stone is cut where it stands: moving one costs as much.
    #[inline(always)]
    pub(crate) fn bury(&mut self, stone: Tombstone) {
        match self.stones.get_mut(self.newest) {
            Some(newest) if newest.was.is_like(&stone.was) => *newest = stone,
            _ => self.bury_behind(stone),
        }
    }

    #[inline(always)]
    fn bury_behind(&mut self, stone: Tombstone) {
        let next = self.newest.wrapping_add(1);
        let next = if next == self.limit { 0 } else { next };
        match self.stones.get_mut(next) {
            Some(oldest) => *oldest = stone,
            None if self.limit == 0 => return,
            None => self.stones.push(stone),
        }
        self.newest = next;
    }

    /// The last free among those that fit.
    pub(crate) fn last(&self, fits: impl Fn(&Standing) -> bool) -> Option<&Tombstone> {
        let (newer, older) = self.stones.split_at(self.newest.wrapping_add(1));
        newer.iter().rev().chain(older.iter().rev()).find(|stone| fits(&stone.was))
    }

    /// Removes the free of an allocation that turned out not to have happened. Its place is the next one's, which so drives out
    /// no free that did.
    pub(crate) fn unbury(&mut self, addr: u64, index: u64) {
        let undone = |stone: &Tombstone| stone.was.addr == addr && stone.was.item.index == index;
        if self.stones.iter().any(undone) {
            // Oldest first.
            self.stones.rotate_left(self.newest.wrapping_add(1));
            self.stones.retain(|stone| !undone(stone));
            self.newest = self.stones.len().wrapping_sub(1);
        }
    }
}

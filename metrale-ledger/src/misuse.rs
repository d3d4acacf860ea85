// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers to what should not have been asked: frees of what is not live, records over what is.

use std::fmt;
use std::panic::Location;

use crate::record::{AllocRecord, LiveAllocation};
use crate::sub_range::SubRange;

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

impl FreedBy {
    /// What an error says of a second free.
    fn before(self) -> &'static str {
        match self {
            Self::Free => "freed before",
            Self::Drain => "swept before",
            Self::Displaced => "gone before, as another allocation was recorded over it",
        }
    }
}

/// What lives where a double free was, in an error's text.
struct Inside<'a>(Option<&'a LiveAllocation>);

impl fmt::Display for Inside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |live| write!(f, "; the address now lies inside {live}"))
    }
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// Null, which is nothing to free and no mistake.
    #[error("null is no allocation: there is nothing to free")]
    Null,
    /// It was live once and is not now.
    #[error("{:#x} is not live: {} at {}; it was {}{}", freed.addr, freed.how.before(), freed.freed_at, freed.record, Inside(now_inside.as_deref()))]
    DoubleFree {
        /// The allocation and its first free.
        freed: Box<FreedAllocation>,
        /// What lives on that address now, if anything does.
        now_inside: Option<Box<LiveAllocation>>,
    },
    /// It lies inside a live allocation.
    #[error("{addr:#x} is {} bytes inside {owner}; free its base {:#x} instead", addr.wrapping_sub(owner.addr), owner.addr)]
    Interior {
        /// The address given.
        addr: u64,
        /// The base to free instead, and its owner.
        owner: Box<LiveAllocation>,
    },
    /// It lies inside an allocation that is no longer live.
    #[error("{addr:#x} is not live: it lay {} bytes inside {freed}", addr.wrapping_sub(freed.addr))]
    InsideFreed {
        /// The address given.
        addr: u64,
        /// The allocation and its free.
        freed: Box<FreedAllocation>,
    },
    /// It is live, but of a kind that another call takes off.
    #[error("{live} is {} memory; free it as what it was allocated", live.record.kind)]
    OtherKind {
        /// What it is.
        live: Box<LiveAllocation>,
    },
    /// It is a part of an arena.
    #[error("{part} is a part of an arena: give it back to the arena, or free the arena")]
    SubRange {
        /// The part.
        part: Box<SubRange>,
    },
    /// No allocation that the ledger knows, or still remembers, was ever there.
    #[error(
        "{addr:#x} is not live and no free of it is remembered: it was not allocated through this ledger"
    )]
    Foreign {
        /// The address given.
        addr: u64,
    },
}

/// What was wrong with an allocation that is nevertheless on the ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordMisuse {
    /// Another allocation stood at this very address. One address holds one record, so one of the two is kept and the
    /// other is here: the older one, whose free the ledger did not see.
    #[error(
        "two allocations at one address: {kept} stands, {displaced} is off the ledger; its free was not recorded"
    )]
    OverLive {
        /// The one on the ledger now.
        kept: LiveAllocation,
        /// The one that is off it.
        displaced: AllocRecord,
    },
    /// It shares bytes with a live allocation; both are on the ledger.
    #[error("{new} overlaps the live {with}: a free was not recorded, or a size is wrong")]
    Overlap {
        /// The new one.
        new: LiveAllocation,
        /// One that it overlaps.
        with: LiveAllocation,
    },
    /// It would pass the end of the address space; residency counts what lies within.
    #[error("{new} passes the end of the address space: its size is wrong")]
    PastEnd {
        /// The new one.
        new: LiveAllocation,
    },
    /// Its address is null.
    #[error("{new} is at the null address, where no driver puts memory")]
    Null {
        /// The new one.
        new: LiveAllocation,
    },
    /// It has no bytes, so no driver made it.
    #[error("{new} has no bytes, which no driver allocates")]
    Empty {
        /// The new one.
        new: LiveAllocation,
    },
}

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

/// How often a ledger was misused, by what went wrong: records and frees that contradict each other.
///
/// A free and the record of the next allocation at its address may reach the ledger in either order, where a thread calls the
/// driver's free first. The record then displaces an allocation and counts as `records_over_live`; when the late free comes, as
/// a free of an address where nothing is live any more, that count is taken back and no double free is counted.
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

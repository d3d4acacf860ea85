// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers to misuse, such as a second free or a record that overlaps a live allocation, and to what is at an address.

use std::fmt;
use std::panic::Location;

use crate::record::{AllocRecord, LiveAllocation};
use crate::sub_range::SubRange;
use crate::text::file_line;

/// How an allocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FreedBy {
    /// By [`forget`](crate::Ledger::forget) or a `try_forget`.
    Free,
    /// By [`drain`](crate::Ledger::drain).
    Drain,
    /// By the record of another allocation at its address: its own free was not seen.
    Displaced,
}

impl fmt::Display for FreedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "freed",
            Self::Drain => "swept",
            Self::Displaced => "displaced",
        })
    }
}

/// An allocation that is no longer live, and who ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreedAllocation {
    /// Its base address.
    pub addr: u64,
    /// Its record.
    pub record: AllocRecord,
    /// The source line that ended it.
    pub freed_at: &'static Location<'static>,
    /// How it ended.
    pub how: FreedBy,
}

impl fmt::Display for FreedAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} ({}), {} at {}", self.addr, self.record, self.how, file_line(self.freed_at))
    }
}

/// Why an address could not be forgotten. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// It is null, for which there is nothing to free; no misuse is counted.
    #[error("null is no allocation: there is nothing to free")]
    Null,
    /// It was live once and is not now.
    #[error("{:#x} is not live: {} before at {}; it was {}{}", freed.addr, freed.how, file_line(freed.freed_at), freed.record, now_inside.as_ref().map_or_else(String::new, |live| format!("; the address now lies inside {live}")))]
    DoubleFree {
        /// The allocation and its first free.
        freed: Box<FreedAllocation>,
        /// The live allocation in which the address lies now, if any.
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
    /// It is live, but another call forgets its kind.
    #[error("{live} is {} memory; free it as what it was allocated", live.record.kind)]
    OtherKind {
        /// The live allocation.
        live: Box<LiveAllocation>,
    },
    /// It is a part of an arena.
    #[error("{part} is a part of an arena: give it back to the arena, or free the arena")]
    SubRange {
        /// The part.
        part: Box<SubRange>,
    },
    /// No allocation there is live or remembered.
    #[error(
        "{addr:#x} is not live and no free of it is remembered: it was not allocated through this ledger"
    )]
    Foreign {
        /// The address given.
        addr: u64,
    },
}

/// What was wrong with an allocation that is recorded nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordMisuse {
    /// Another allocation was live at this address. Only one can be, so the ledger keeps the newer and forgets the older, whose
    /// free it did not see.
    #[error(
        "two allocations at one address: {kept} is kept, {displaced} was forgotten; its free was not recorded"
    )]
    OverLive {
        /// The allocation that is live now.
        kept: LiveAllocation,
        /// The record that was forgotten.
        displaced: AllocRecord,
    },
    /// It shares bytes with a live allocation; both are recorded.
    #[error("{new} overlaps the live {with}: a free was not recorded, or a size is wrong")]
    Overlap {
        /// The new one.
        new: LiveAllocation,
        /// One that it overlaps.
        with: LiveAllocation,
    },
    /// It would pass the end of the address space; residency counts its pages up to the end.
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

/// The answer to a record. The allocation is recorded in any case, so a caller may ignore the answer.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its creation index; see [`AllocRecord::index`].
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
        self.misuse.map_or(Ok(self.index), Err)
    }
}

/// How often a ledger was misused, by what went wrong: records and frees that contradict each other.
///
/// A thread that calls the driver's free first may record that free after another thread has recorded the next allocation
/// at the address. That record displaces the older allocation and counts in `records_over_live`. When the late free
/// follows, the count is taken back and no double free is counted, provided that the free finds nothing live at the
/// address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct MisuseCounts {
    /// Frees of an allocation that was freed before.
    pub double_frees: u64,
    /// Frees of an address inside a live allocation.
    pub interior_frees: u64,
    /// Frees of an address that the ledger does not know or does not remember.
    pub foreign_frees: u64,
    /// Frees by the call for another kind of memory.
    pub other_kind_frees: u64,
    /// Records at the address of a live allocation.
    pub records_over_live: u64,
    /// Records that overlap a live allocation.
    pub overlapping_records: u64,
    /// Records at null, without bytes, or past the end of the address space.
    pub odd_records: u64,
    /// Records restored since the driver refused the free.
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

    /// The sum of all counts.
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
        /// That allocation; of several that overlap there, the one with the highest base.
        allocation: LiveAllocation,
        /// The distance from its base, in bytes.
        offset_bytes: u64,
    },
    /// It lay in an allocation that was freed; of several, in the one freed last.
    Freed {
        /// That allocation and its free.
        freed: FreedAllocation,
        /// The distance from its base, in bytes.
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Named parts of arenas. No total includes them, since totals include their arena, and no sweep frees them.
//!
//! The driver knows no parts, so a call that is wrong is refused and changes nothing. A part ends by
//! [`end_sub_range`](crate::Ledger::end_sub_range), or with its arena. An arena that is restored, since the driver refused to
//! free it, has its parts again.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::record::{AllocKind, AllocRecord, LiveAllocation, SourceLine};
use crate::text::{ByteSize, Label, file_line};

/// Number of ended parts that are remembered, to tell a second end from an unknown address.
const REMEMBERED: usize = 256;
/// Of how many forgotten arenas, the last ones, the parts are kept, in case the driver refuses to free the arena.
const CLOSED: usize = 4;

/// A named part of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubRange {
    /// The address of its first byte.
    pub addr: u64,
    /// Its bytes as asked for.
    pub bytes: usize,
    /// Its name.
    pub name: Arc<str>,
    /// The source line that took it.
    pub site: &'static Location<'static>,
    /// The scopes open on the thread that took it, outermost first, joined by `/`.
    pub scope: Option<Arc<str>>,
}

impl SubRange {
    /// The address of its last byte; the end of the address space at most.
    fn last(&self) -> u64 {
        self.addr.saturating_add((self.bytes as u64).saturating_sub(1))
    }

    /// As an allocation of arena memory whose tag is the part's name, for texts that speak of allocations.
    pub fn as_allocation(&self) -> LiveAllocation {
        let record = AllocRecord {
            bytes: self.bytes,
            site: self.site,
            kind: AllocKind::Arena,
            scope: self.scope.clone(),
            tag: Some(Arc::clone(&self.name)),
            index: 0,
            free_refused: false,
        };
        LiveAllocation { addr: self.addr, record }
    }
}

impl fmt::Display for SubRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { addr, bytes, name, site, scope } = self;
        write!(f, "{} ({addr:#x}, {} from {}", Label(name), ByteSize::of(*bytes), file_line(site))?;
        if let Some(scope) = scope {
            write!(f, ", scope {}", Label(scope))?;
        }
        f.write_str(")")
    }
}

/// Why a part cannot begin or end. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubRangeError {
    /// No live arena has that base.
    #[error("{addr:#x} is no base of a live arena: it was freed, or never was one")]
    NoArena {
        /// The address given.
        addr: u64,
    },
    /// It has no bytes.
    #[error("the part {} has no bytes; record no part where nothing is needed", Label(name))]
    Empty {
        /// Its name.
        name: String,
    },
    /// It would pass the end of its arena.
    #[error("the part {} would pass the end of its arena {arena} by {}", Label(name), ByteSize(*excess_bytes))]
    PastEnd {
        /// Its name.
        name: String,
        /// By how many bytes.
        excess_bytes: u64,
        /// The arena.
        arena: Box<LiveAllocation>,
    },
    /// It shares bytes with another part.
    #[error("the part {} would share bytes with {with}", Label(name))]
    Overlap {
        /// Its name.
        name: String,
        /// The other.
        with: Box<SubRange>,
    },
    /// It was ended before.
    #[error("{was} is not live: given back before at {}", file_line(ended_at))]
    EndedBefore {
        /// What it was.
        was: Box<SubRange>,
        /// The source line that ended it.
        ended_at: &'static Location<'static>,
    },
    /// It lies inside a part.
    #[error(
        "{addr:#x} is {} bytes inside {owner}; give its first byte {:#x} back instead",
        addr.wrapping_sub(owner.addr), owner.addr
    )]
    Interior {
        /// The address given.
        addr: u64,
        /// The part.
        owner: Box<SubRange>,
    },
    /// No part begins there, and none that is remembered did.
    #[error("{addr:#x} is no part of a live arena")]
    Unknown {
        /// The address given.
        addr: u64,
    },
}

/// The parts of one arena by their first byte.
pub(crate) type Parts = BTreeMap<u64, SubRange>;

/// The parts of live arenas, by the arena's base. An arena that never had a part is not here.
#[derive(Default)]
pub(crate) struct Arenas {
    open: BTreeMap<u64, Parts>,
    /// The last parts that ended, and where.
    ended: VecDeque<(SubRange, SourceLine)>,
    /// The creation index of each forgotten arena, and the parts it had.
    closed: VecDeque<(u64, Parts)>,
}

impl Arenas {
    /// An arena was recorded, or restored with its parts.
    pub(crate) fn open(&mut self, base: u64, index: u64) {
        let at = self.closed.iter().position(|(closed, _)| *closed == index);
        if let Some((_, parts)) = at.and_then(|at| self.closed.remove(at)) {
            self.open.insert(base, parts);
        }
    }

    /// An arena was forgotten, and its parts with it.
    pub(crate) fn close(&mut self, base: u64, index: u64) {
        let Some(parts) = self.open.remove(&base).filter(|parts| !parts.is_empty()) else { return };
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back((index, parts));
    }

    /// Base and parts of every arena that has some.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Parts)> {
        self.open.iter().map(|(&base, parts)| (base, parts)).filter(|(_, parts)| !parts.is_empty())
    }

    /// The part in which `addr` lies. While live allocations overlap, an arena may begin inside another, so arenas with lower
    /// bases are searched too.
    pub(crate) fn part_at(&self, addr: u64, has_overlaps: bool) -> Option<&SubRange> {
        let looked_at = if has_overlaps { self.open.len() } else { 1 };
        self.open.range(..=addr).rev().take(looked_at).find_map(|(_, parts)| {
            parts.range(..=addr).next_back().map(|(_, part)| part).filter(|part| addr <= part.last())
        })
    }

    /// Every part of an arena, by address.
    pub(crate) fn parts_of(&self, base: u64) -> Vec<SubRange> {
        self.open.get(&base).map_or_else(Vec::new, |parts| parts.values().cloned().collect())
    }

    /// Adds a part to a live arena, at that offset. The part's own address may be wrong if the offset passes the arena's end.
    pub(crate) fn begin(
        &mut self,
        arena: LiveAllocation,
        offset_bytes: u64,
        part: SubRange,
    ) -> Result<(), SubRangeError> {
        let name = || part.name.to_string();
        if part.bytes == 0 {
            return Err(SubRangeError::Empty { name: name() });
        }
        let end = u128::from(offset_bytes) + part.bytes as u128;
        // An arena that would pass the end of the address space ends there.
        let space = (arena.record.bytes as u128).min((1 << u64::BITS) - u128::from(arena.addr));
        if let Some(excess) = end.checked_sub(space).filter(|&excess| excess > 0) {
            let excess_bytes = u64::try_from(excess).unwrap_or(u64::MAX);
            return Err(SubRangeError::PastEnd { name: name(), excess_bytes, arena: Box::new(arena) });
        }
        let parts = self.open.entry(arena.addr).or_default();
        // Parts share no bytes, so only the last part that begins before this one's end can overlap it.
        let before = parts.range(..=part.last()).next_back().map(|(_, other)| other);
        if let Some(other) = before.filter(|other| other.last() >= part.addr) {
            return Err(SubRangeError::Overlap { name: name(), with: Box::new(other.clone()) });
        }
        parts.insert(part.addr, part);
        Ok(())
    }

    /// Ends the part that begins at `addr`.
    pub(crate) fn end(&mut self, addr: u64, at: SourceLine) -> Result<SubRange, SubRangeError> {
        let part = self.open.range_mut(..=addr).rev().find_map(|(_, parts)| parts.remove(&addr));
        if let Some(part) = part {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back((part.clone(), at));
            return Ok(part);
        }
        if let Some((was, ended_at)) = self.ended.iter().rev().find(|(was, _)| was.addr == addr) {
            return Err(SubRangeError::EndedBefore { was: Box::new(was.clone()), ended_at });
        }
        Err(match self.part_at(addr, true) {
            Some(owner) => SubRangeError::Interior { addr, owner: Box::new(owner.clone()) },
            None => SubRangeError::Unknown { addr },
        })
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Named parts of arenas. They stand under their arena, whose bytes count already: no total has them, no sweep frees them.
//!
//! A part is bookkeeping of our own making, not a driver's word, so what is wrong with one is refused and changes nothing. A
//! part ends by [`end_sub_range`](crate::Ledger::end_sub_range), or with its arena; an arena that comes back, since the driver
//! refused to free it, comes back with its parts.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::record::{AllocKind, AllocRecord, LiveAllocation};
use crate::text::{ByteSize, Label};

/// Ended parts that are remembered, to tell a second end from an unknown address.
const REMEMBERED: usize = 256;
/// Arenas taken off whose parts are kept until others are, should the driver refuse to free them.
const CLOSED: usize = 4;

/// A named part of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubRange {
    /// Its first byte.
    pub addr: u64,
    /// Its bytes as asked for.
    pub bytes: usize,
    /// Its name.
    pub name: Arc<str>,
    /// The source line that took it.
    pub site: &'static Location<'static>,
    /// The scopes open on the thread that took it.
    pub scope: Option<Arc<str>>,
}

impl SubRange {
    /// Its last byte, which may be the last there is.
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
        write!(f, "{} ({addr:#x}, {} from {site}", Label(name), ByteSize::of(*bytes))?;
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
    #[error("the part {} has no bytes; use null for what is empty", Label(name))]
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
    /// It was given back before.
    #[error("{was} is not live: given back before at {ended_at}")]
    EndedBefore {
        /// What it was.
        was: Box<SubRange>,
        /// The source line that gave it back.
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

struct Ended {
    was: SubRange,
    at: &'static Location<'static>,
}

/// The live arenas that have parts.
#[derive(Default)]
pub(crate) struct Arenas {
    open: BTreeMap<u64, Parts>,
    ended: VecDeque<Ended>,
    /// The creation index of an arena, and the parts it had when it was taken off.
    closed: VecDeque<(u64, Parts)>,
}

impl Arenas {
    /// An arena came, or came back.
    pub(crate) fn open(&mut self, base: u64, index: u64) {
        let at = self.closed.iter().position(|(closed, _)| *closed == index);
        if let Some((_, parts)) = at.and_then(|at| self.closed.remove(at)) {
            self.open.insert(base, parts);
        }
    }

    /// An arena went, and its parts with it.
    pub(crate) fn close(&mut self, base: u64, index: u64) {
        let Some(parts) = self.open.remove(&base) else { return };
        if self.closed.len() == CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back((index, parts));
    }

    /// Base and parts of every arena that has some.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Parts)> {
        self.open.iter().map(|(&base, parts)| (base, parts))
    }

    /// The part that holds `addr`. Where live allocations overlap, one arena may begin within another, so the nearest base need
    /// not be that of its arena; else it is, or none has a part there.
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

    /// Puts a part under the arena, which is live, that many bytes behind its first. The part's own address need not be right
    /// where it passes the arena's end.
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
        let room = (arena.record.bytes as u128).min((1 << u64::BITS) - u128::from(arena.addr));
        if let Some(excess) = end.checked_sub(room).filter(|&excess| excess > 0) {
            let excess_bytes = u64::try_from(excess).unwrap_or(u64::MAX);
            return Err(SubRangeError::PastEnd { name: name(), excess_bytes, arena: Box::new(arena) });
        }
        let parts = self.open.entry(arena.addr).or_default();
        // Parts share no bytes, so the last that begins before its end is the one that could reach in.
        let before = parts.range(..=part.last()).next_back().map(|(_, other)| other);
        if let Some(other) = before.filter(|other| other.last() >= part.addr) {
            return Err(SubRangeError::Overlap { name: name(), with: Box::new(other.clone()) });
        }
        parts.insert(part.addr, part);
        Ok(())
    }

    /// Takes the part that begins at `addr` off.
    pub(crate) fn end(
        &mut self,
        addr: u64,
        at: &'static Location<'static>,
    ) -> Result<SubRange, SubRangeError> {
        let mut holder = self.open.range_mut(..=addr).rev().find(|(_, parts)| parts.contains_key(&addr));
        let part = holder.as_mut().and_then(|(_, parts)| parts.remove(&addr));
        if let Some(base) = holder.filter(|(_, parts)| parts.is_empty()).map(|(&base, _)| base) {
            self.open.remove(&base);
        }
        if let Some(part) = part {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back(Ended { was: part.clone(), at });
            return Ok(part);
        }
        if let Some(ended) = self.ended.iter().rev().find(|ended| ended.was.addr == addr) {
            return Err(SubRangeError::EndedBefore { was: Box::new(ended.was.clone()), ended_at: ended.at });
        }
        Err(match self.part_at(addr, true) {
            Some(owner) => SubRangeError::Interior { addr, owner: Box::new(owner.clone()) },
            None => SubRangeError::Unknown { addr },
        })
    }
}

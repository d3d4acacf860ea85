// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a log's rows come to: what is live after each, and what was odd about it.

use std::collections::HashMap;
use std::fmt;

use super::row::{Action, Row};
use crate::placement::{PackingRule, PlacementError};
use crate::plan::{Plan, Step};
use crate::text::counted;
use rustc_hash::FxBuildHasher as Mixer;

/// Frees that are remembered at least, to tell a second free of one pointer from a free of an unknown one.
const REMEMBERED_FREES: usize = 1 << 16;

/// What was odd about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// The pointer was live already. The newer allocation takes its place, since an allocator gives out what is free: a row
    /// with the free is missing, or two logs are mixed.
    AlreadyLive {
        /// Bytes of the older one.
        bytes: u64,
        /// The line that allocated it.
        line: u64,
    },
    /// The pointer was freed before. Nothing changes.
    FreedBefore {
        /// The line that did.
        line: u64,
    },
    /// The pointer was never allocated in this log, or freed long ago. Nothing changes.
    Unknown,
    /// The free names another size than the allocation, which counts.
    SizeDiffers {
        /// The allocated bytes.
        allocated: u64,
    },
    /// It was freed on another stream than allocated; an event must have come between.
    OtherStream {
        /// The stream it was allocated on.
        allocated_on: u64,
    },
}

/// A row that was odd, and yet can be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The line.
    pub line: u64,
    /// The pointer.
    pub pointer: u64,
    /// The bytes that the row names.
    pub bytes: u64,
    /// What was odd.
    pub kind: FindingKind,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, pointer, bytes, kind } = self;
        write!(f, "line {line}: ")?;
        match kind {
            FindingKind::AlreadyLive { bytes: old, line } => write!(
                f,
                "{pointer:#x} is allocated with {}, but is already live ({}, from line {line})",
                counted(*bytes, "byte"),
                counted(*old, "byte")
            ),
            FindingKind::FreedBefore { line } => {
                write!(f, "{pointer:#x} is freed, which line {line} has done before")
            }
            FindingKind::Unknown => write!(
                f,
                "{pointer:#x} is freed, but this log does not allocate it, or a free long before this one ended it"
            ),
            FindingKind::SizeDiffers { allocated } => {
                write!(
                    f,
                    "{pointer:#x} is freed as {} and was allocated with {allocated}",
                    counted(*bytes, "byte")
                )
            }
            FindingKind::OtherStream { allocated_on } => {
                write!(
                    f,
                    "{pointer:#x} is freed on another stream than {allocated_on:#x}, where it was allocated"
                )
            }
        }
    }
}

/// What is live, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveRow {
    /// The pointer.
    pub pointer: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The line that allocated it.
    pub line: u64,
    /// The stream it was allocated on, where the log tells.
    pub stream: Option<u64>,
}

/// What is noted of a live allocation, in few bytes, since millions may be live. From the lowest bit: the line, then the
/// stream's number in [`Streams`].
#[derive(Clone, Copy)]
struct Note(u64);

impl Note {
    /// Beyond these a log of a terabyte would not come.
    const LINE_BITS: u32 = 40;
    const LAST_LINE: u64 = (1 << Self::LINE_BITS) - 1;

    fn new(line: u64, stream: u64) -> Self {
        Self(line.min(Self::LAST_LINE) | stream << Self::LINE_BITS)
    }

    fn line(self) -> u64 {
        self.0 & Self::LAST_LINE
    }

    fn stream(self) -> u64 {
        self.0 >> Self::LINE_BITS
    }
}

/// The streams that a log names, by number.
#[derive(Clone, Debug, Default)]
struct Streams {
    numbers: HashMap<u64, u64, Mixer>,
    names: Vec<u64>,
}

impl Streams {
    /// Stands for a row that names none.
    const NONE: u64 = (1 << (u64::BITS - Note::LINE_BITS)) - 1;

    /// The number of a stream. Beyond millions of them, none has one.
    fn number(&mut self, stream: Option<u64>) -> u64 {
        let Some(stream) = stream else { return Self::NONE };
        let next = self.names.len() as u64;
        if next == Self::NONE {
            return self.numbers.get(&stream).copied().unwrap_or(Self::NONE);
        }
        *self.numbers.entry(stream).or_insert_with(|| {
            self.names.push(stream);
            next
        })
    }

    fn of(&self, note: Note) -> Option<u64> {
        self.names.get(note.stream() as usize).copied()
    }
}

/// Sums over the rows so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogTotals {
    /// Rows.
    pub rows: u64,
    /// Allocations.
    pub allocations: u64,
    /// Frees, of null too.
    pub frees: u64,
    /// Rows among these that ask for nothing: allocations of no bytes at null, and frees of null.
    pub nothing: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// Bytes of the largest that failed.
    pub largest_failure_bytes: u64,
    /// Bytes of all allocations ever.
    pub allocated_bytes: u64,
    /// Bytes live.
    pub live_bytes: u64,
    /// The highest live bytes.
    pub peak_live_bytes: u64,
    /// The line at which that was.
    pub peak_line: u64,
    /// Rows with a finding.
    pub findings: u64,
}

/// What a row came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// Where the plan stands.
    pub step: Step,
    /// What was odd.
    pub finding: Option<Finding>,
}

/// Follows a log through a plan of its own.
#[derive(Clone, Debug, Default)]
pub struct Follow {
    plan: Plan,
    streams: Streams,
    /// The last frees by pointer, live again or not: once there are many, they become the older ones, and those before are
    /// forgotten.
    freed: HashMap<u64, u64, Mixer>,
    freed_earlier: HashMap<u64, u64, Mixer>,
    totals: LogTotals,
}

impl Follow {
    /// Before the first row, planning for an H200.
    pub fn new() -> Self {
        Self::default()
    }

    /// Before the first row, planning under `rule`.
    pub fn under(rule: PackingRule) -> Self {
        Self { plan: Plan::new(rule), ..Self::default() }
    }

    /// Takes the next row and does in the plan what it says, as one operation. Allocations of no bytes at null, and frees of
    /// null, are counted and nothing more.
    ///
    /// # Errors
    /// [`PlacementError`] where the plan's rule does not place the allocation; the row is then counted, and no more.
    pub fn row(&mut self, row: &Row) -> Result<Followed, PlacementError> {
        self.totals.rows += 1;
        let mut finding = None;
        let step = match row.action {
            Action::AllocateFailure => {
                self.totals.failures += 1;
                self.totals.largest_failure_bytes = self.totals.largest_failure_bytes.max(row.bytes);
                self.plan.pass()
            }
            Action::Allocate => {
                self.totals.allocations += 1;
                self.totals.allocated_bytes = self.totals.allocated_bytes.saturating_add(row.bytes);
                if row.pointer == 0 && row.bytes == 0 {
                    self.totals.nothing += 1;
                    self.plan.pass()
                } else {
                    if let Some((bytes, note)) = self.plan.noted(row.pointer) {
                        if let Err(error) = self.plan.check_place(row.bytes) {
                            self.plan.pass();
                            return Err(error);
                        }
                        finding = Some(FindingKind::AlreadyLive { bytes, line: Note(note).line() });
                        self.plan.displace(row.pointer);
                        self.totals.live_bytes -= bytes;
                    }
                    self.allocate(row)?
                }
            }
            Action::Free => {
                self.totals.frees += 1;
                if row.pointer == 0 {
                    self.totals.nothing += 1;
                    self.plan.pass()
                } else {
                    let (step, odd) = self.free(row);
                    finding = odd;
                    step
                }
            }
        };
        let finding =
            finding.map(|kind| Finding { line: row.line, pointer: row.pointer, bytes: row.bytes, kind });
        self.totals.findings += u64::from(finding.is_some());
        Ok(Followed { step, finding })
    }

    /// Allocates where nothing is live.
    fn allocate(&mut self, row: &Row) -> Result<Step, PlacementError> {
        let note = Note::new(row.line, self.streams.number(row.stream));
        let step = self.plan.alloc_noted(row.pointer, row.bytes, row.location.as_deref(), note.0)?;
        self.totals.live_bytes = self.totals.live_bytes.saturating_add(row.bytes);
        if self.totals.live_bytes > self.totals.peak_live_bytes {
            self.totals.peak_live_bytes = self.totals.live_bytes;
            self.totals.peak_line = row.line;
        }
        Ok(step)
    }

    fn free(&mut self, row: &Row) -> (Step, Option<FindingKind>) {
        let Some((step, bytes, note)) = self.plan.free_noted(row.pointer) else {
            let before = self.freed.get(&row.pointer).or_else(|| self.freed_earlier.get(&row.pointer));
            let kind = match before {
                Some(&line) => FindingKind::FreedBefore { line },
                None => FindingKind::Unknown,
            };
            return (self.plan.pass(), Some(kind));
        };
        if self.freed.len() == REMEMBERED_FREES {
            self.freed_earlier = std::mem::take(&mut self.freed);
        }
        self.freed.insert(row.pointer, row.line);
        self.totals.live_bytes -= bytes;
        // Some logs write no size for a free.
        let kind = if row.bytes != 0 && row.bytes != bytes {
            Some(FindingKind::SizeDiffers { allocated: bytes })
        } else {
            match (self.streams.of(Note(note)), row.stream) {
                (Some(allocated_on), Some(freed_on)) if allocated_on != freed_on => {
                    Some(FindingKind::OtherStream { allocated_on })
                }
                _ => None,
            }
        };
        (step, kind)
    }

    /// What the rows so far come to.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan alone, to go on with.
    pub fn into_plan(self) -> Plan {
        self.plan
    }

    /// Sums so far.
    pub fn totals(&self) -> LogTotals {
        self.totals
    }

    /// What is live, in the order in which it was allocated: at the end of a log, what was never freed.
    pub fn live(&self) -> Vec<LiveRow> {
        let mut live: Vec<_> = self.live_unordered().collect();
        live.sort_unstable_by_key(|row| row.line);
        live
    }

    /// As [`live`](Self::live), in no order: for sums, or for a few of very many.
    pub fn live_unordered(&self) -> impl Iterator<Item = LiveRow> + '_ {
        self.plan.all_noted().map(|(pointer, bytes, note)| LiveRow {
            pointer,
            bytes,
            line: Note(note).line(),
            stream: self.streams.of(Note(note)),
        })
    }
}

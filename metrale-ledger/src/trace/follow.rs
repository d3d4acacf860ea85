// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans a log row by row: what is live after each, and what was odd about it.

use rustc_hash::FxHashMap;

use super::finding::{Finding, FindingKind};
use super::note::{Note, Streams};
use super::row::{Action, Row};
use crate::placement::{PackingRule, PlacementError};
use crate::plan::{Allocator, Plan, Request, Step};

/// Frees that are remembered at least, to tell a second free of one pointer from a free of an unknown one.
const REMEMBERED_FREES: usize = 1 << 16;

/// Failed requests that are kept one by one.
const KEPT_FAILURES: usize = 10;

/// An allocation that had failed when the log was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedRequest {
    /// Its line.
    pub line: u64,
    /// The bytes it asked for.
    pub bytes: u64,
    /// Bytes live at that moment.
    pub live_bytes: u64,
    /// What the device would have kept with it, by the plan; none where that is more than 64 bits count.
    pub granted_resident_bytes: Option<u64>,
}

impl FailedRequest {
    /// To compare by what they need.
    fn needs(&self) -> u64 {
        self.granted_resident_bytes.unwrap_or(u64::MAX)
    }
}

/// A live allocation and the row that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveRow {
    /// The pointer, or the handle of created memory.
    pub pointer: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The line that allocated it.
    pub line: u64,
    /// The stream it was allocated on, where the log names one.
    pub stream: Option<u64>,
}

/// Sums over the rows so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogTotals {
    /// Rows.
    pub rows: u64,
    /// Allocations; memory that was created is one.
    pub allocations: u64,
    /// Frees, of null too; the release of a handle is one.
    pub frees: u64,
    /// Rows among these that ask for nothing: allocations of no bytes at null, and frees of null.
    pub nothing: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// Rows that map or unmap created memory.
    pub mappings: u64,
    /// Rows that synchronize, or trim a pool.
    pub synchronizes: u64,
    /// Bytes of the largest that failed.
    pub largest_failure_bytes: u64,
    /// Bytes of all allocations ever.
    pub allocated_bytes: u64,
    /// Bytes live.
    pub live_bytes: u64,
    /// The peak of live bytes, as the plan has it.
    pub peak_live_bytes: u64,
    /// The line of that peak's moment; 0 where nothing was allocated.
    pub peak_line: u64,
    /// The line of the resident peak's moment; 0 where nothing was allocated.
    pub peak_resident_line: u64,
    /// Rows with a finding.
    pub findings: u64,
}

/// What a row came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// The plan's state after it.
    pub step: Step,
    /// What was odd.
    pub finding: Option<Finding>,
}

/// Follows a log through a plan of its own.
#[derive(Clone, Debug, Default)]
pub struct Follow {
    plan: Plan,
    streams: Streams,
    /// The last frees by pointer, live again or not. When there are many, they become the earlier ones, and the earlier ones
    /// are forgotten.
    freed: FxHashMap<u64, u64>,
    freed_earlier: FxHashMap<u64, u64>,
    /// The first requests that failed, and the one that needs most.
    failed: Vec<FailedRequest>,
    needs_most: Option<FailedRequest>,
    /// Without the figures that the plan has.
    totals: LogTotals,
}

impl Follow {
    /// Before the first row, with a plan for an H200.
    pub fn new() -> Self {
        Self::default()
    }

    /// Before the first row, with a plan under `rule`.
    pub fn under(rule: PackingRule) -> Self {
        Self::through(Plan::new(rule))
    }

    /// Before the first row, with a plan that says which allocator the rows that name none are planned for.
    pub fn through(plan: Plan) -> Self {
        Self { plan, ..Self::default() }
    }

    /// Plans the next row as one operation. Allocations of no bytes at null, and frees of null, are counted and nothing more.
    ///
    /// # Errors
    /// [`PlacementError`] where the allocator's model cannot place the allocation. The row is counted and changes nothing.
    pub fn row(&mut self, row: &Row) -> Result<Followed, PlacementError> {
        self.totals.rows += 1;
        self.plan.set_stream(row.stream.unwrap_or(0));
        let is_null = row.pointer == 0;
        let (step, kind) = match row.action {
            Action::AllocateFailure => {
                self.note_failed(row);
                (self.plan.pass(), None)
            }
            Action::Allocate if is_null && row.bytes == 0 => {
                self.count_allocation(row);
                self.totals.nothing += 1;
                (self.plan.pass(), None)
            }
            Action::Allocate | Action::Create => {
                self.count_allocation(row);
                self.allocate(row)?
            }
            Action::Free if is_null => {
                self.totals.frees += 1;
                self.totals.nothing += 1;
                (self.plan.pass(), None)
            }
            Action::Free => {
                self.totals.frees += 1;
                self.free(row)
            }
            Action::Release => {
                self.totals.frees += 1;
                let released = self.plan.release(row.pointer).ok();
                self.or_odd(released, FindingKind::UnknownHandle)
            }
            Action::Map => {
                self.totals.mappings += 1;
                let mapped = self.plan.map(row.pointer, row.handle.unwrap_or(0)).ok();
                self.or_odd(mapped, FindingKind::UnknownHandle)
            }
            Action::Unmap => {
                self.totals.mappings += 1;
                let unmapped = self.plan.unmap(row.pointer, row.bytes).ok();
                self.or_odd(unmapped, FindingKind::NotMapped)
            }
            Action::Synchronize => {
                self.totals.synchronizes += 1;
                // Without a stream, it is the whole device.
                let done = match row.stream {
                    Some(stream) => self.plan.synchronize_stream(stream),
                    None => self.plan.synchronize(),
                };
                (done, None)
            }
            Action::Trim => {
                self.totals.synchronizes += 1;
                (self.plan.trim(row.bytes), None)
            }
        };
        let finding = kind.map(|kind| {
            let is_handle = row.action == Action::Map && kind == FindingKind::UnknownHandle;
            let pointer = if is_handle { row.handle.unwrap_or(0) } else { row.pointer };
            Finding { line: row.line, pointer, bytes: row.bytes, kind }
        });
        self.totals.findings += u64::from(finding.is_some());
        Ok(Followed { step, finding })
    }

    fn note_failed(&mut self, row: &Row) {
        self.totals.failures += 1;
        self.totals.largest_failure_bytes = self.totals.largest_failure_bytes.max(row.bytes);
        let from = row.allocator.unwrap_or(self.plan.allocator());
        let failed = FailedRequest {
            line: row.line,
            bytes: row.bytes,
            live_bytes: self.plan.live_bytes(),
            granted_resident_bytes: self.plan.resident_bytes_with(from, row.bytes).ok(),
        };
        if self.failed.len() < KEPT_FAILURES {
            self.failed.push(failed);
        }
        if self.needs_most.is_none_or(|most| failed.needs() > most.needs()) {
            self.needs_most = Some(failed);
        }
    }

    /// The first ten requests that failed, in order.
    pub fn failed(&self) -> &[FailedRequest] {
        &self.failed
    }

    /// The failed request that takes most to be granted; of equal ones the first.
    pub fn failed_that_needs_most(&self) -> Option<FailedRequest> {
        self.needs_most
    }

    fn count_allocation(&mut self, row: &Row) {
        self.totals.allocations += 1;
        self.totals.allocated_bytes = self.totals.allocated_bytes.saturating_add(row.bytes);
    }

    /// The step of an operation; where the plan refused it, that of a row that changes nothing.
    fn or_odd(&self, done: Option<Step>, odd: FindingKind) -> (Step, Option<FindingKind>) {
        match done {
            Some(step) => (step, None),
            // The plan has counted it.
            None => (self.plan.last(), Some(odd)),
        }
    }

    fn allocate(&mut self, row: &Row) -> Result<(Step, Option<FindingKind>), PlacementError> {
        let is_created = row.action == Action::Create;
        let from = match row.allocator {
            _ if is_created => Allocator::VirtualMemory,
            named => named.unwrap_or(self.plan.allocator()),
        };
        let note = Note::new(row.line, self.streams.number(row.stream)).0;
        let new = Request { from, bytes: row.bytes, label: row.location.as_deref(), note };
        let older = if is_created { self.plan.created(row.pointer) } else { self.plan.noted(row.pointer) };
        let kind = match older {
            None => None,
            Some((bytes, note)) => {
                if let Err(error) = self.plan.resident_bytes_with(new.from, new.bytes) {
                    self.plan.pass();
                    return Err(error);
                }
                if is_created {
                    self.plan.displace_created(row.pointer);
                } else {
                    self.plan.displace(row.pointer);
                }
                Some(FindingKind::AlreadyLive { bytes, line: Note(note).line() })
            }
        };
        let step = if is_created {
            self.plan.create_unknown(row.pointer, new)?
        } else {
            self.plan.alloc_unknown(row.pointer, new)?
        };
        Ok((step, kind))
    }

    fn free(&mut self, row: &Row) -> (Step, Option<FindingKind>) {
        let Some((step, bytes, note)) = self.plan.free_live(row.pointer) else {
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

    /// The plan of the rows so far.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan alone, to go on with.
    pub fn into_plan(self) -> Plan {
        self.plan
    }

    /// Sums so far.
    pub fn totals(&self) -> LogTotals {
        let line = |note: Option<u64>| note.map_or(0, |note| Note(note).line());
        let [live, resident] = self.plan.peak_notes();
        LogTotals {
            live_bytes: self.plan.live_bytes(),
            peak_live_bytes: self.plan.peak_live_bytes(),
            peak_line: line(live),
            peak_resident_line: line(resident),
            ..self.totals
        }
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

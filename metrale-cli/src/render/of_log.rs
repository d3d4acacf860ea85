// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a report about a log says of the log itself.

use std::collections::BTreeMap;
use std::fmt;

use metrale_ledger::ByteSize;
use metrale_ledger::trace::{FailedRequest, Follow};
use serde::Serialize;

use crate::allocation_log::LogNotes;
use crate::render::still_live::StillLive;

/// Said of a log without a column Location.
const NAMES_NO_LINES: &str =
    "who holds the peak is not known: the log names no source lines (column Location)";

/// What a log has besides its allocations and frees, and what was odd about it.
#[derive(Debug, Serialize)]
pub struct OfLog {
    /// Allocations that had failed when it was written; nothing is done for them.
    pub failures_in_log: u64,
    /// The first ten of them; absent where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_requests: Vec<Failed>,
    /// Rows that ask for nothing: frees of null, and allocations of no bytes at null.
    pub nothing_rows: u64,
    /// Rows that map or unmap memory; absent where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub mapping_rows: u64,
    /// Rows that synchronise or trim the pool; absent where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub synchronize_rows: u64,
    /// Rows that made no sense and were passed over.
    pub skipped_rows: u64,
    /// Odd rows by what was odd: `double_free`, `unknown_free`, `already_live`, `size_differs`, `other_stream`,
    /// `unknown_handle`, `not_mapped`.
    pub findings: BTreeMap<&'static str, u64>,
    /// The lines of the first ten of each of these.
    pub finding_lines: BTreeMap<&'static str, Vec<u64>>,
    /// Where and why it could not be read on; `null` where it was read to its end.
    pub broke_off: Option<String>,
    /// All remarks on it in words, such as why rows were passed over.
    pub remarks: Vec<String>,
    /// What is live after its last operation (or, of a replay that ran out of memory, after the last that fitted).
    pub live_at_end: StillLive,
    /// Whether a row names a source line.
    #[serde(skip)]
    names_lines: bool,
    /// The log's lines at the planned peaks of live and of resident bytes.
    #[serde(skip)]
    pub(crate) peak_lines: [u64; 2],
    /// The failed request that takes most to be granted.
    #[serde(skip)]
    pub(crate) needs_most: Option<Failed>,
}

/// A request that had failed. All `_bytes` are bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Failed {
    /// Its line.
    pub line: u64,
    /// What it asked for.
    pub requested_bytes: u64,
    /// What was live.
    pub live_bytes: u64,
    /// What the device would keep with it; `null` where 64 bits do not count that.
    pub granted_resident_bytes: Option<u64>,
}

impl Failed {
    fn of(request: &FailedRequest) -> Self {
        let &FailedRequest { line, bytes, live_bytes, granted_resident_bytes, .. } = request;
        Self { line, requested_bytes: bytes, live_bytes, granted_resident_bytes }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requested, live) = (ByteSize(self.requested_bytes), ByteSize(self.live_bytes));
        write!(
            f,
            "line {} asked for {requested} with {live} live, and failed: granting it takes ",
            self.line
        )?;
        match self.granted_resident_bytes {
            Some(bytes) => write!(f, "{}", ByteSize(bytes)),
            None => f.write_str("more than there are addresses"),
        }
    }
}

fn is_zero(rows: &u64) -> bool {
    *rows == 0
}

impl OfLog {
    /// Of a log that was read. What is live at its end is filled in later.
    pub(crate) fn new(follow: &Follow, notes: LogNotes) -> Self {
        let totals = follow.totals();
        Self {
            failures_in_log: totals.failures,
            failed_requests: follow.failed().iter().map(Failed::of).collect(),
            needs_most: follow.failed_that_needs_most().as_ref().map(Failed::of),
            nothing_rows: totals.nothing,
            mapping_rows: totals.mappings,
            synchronize_rows: totals.synchronizes,
            skipped_rows: notes.skipped,
            remarks: notes.remarks(),
            findings: notes.findings,
            finding_lines: notes.finding_lines,
            broke_off: notes.broke_off,
            live_at_end: StillLive::default(),
            names_lines: notes.names_lines,
            peak_lines: [totals.peak_line, totals.peak_resident_line],
        }
    }

    /// A line for each kind of row besides allocations and frees, and for each kind of odd row. Together they add up to the
    /// number of operations.
    pub(crate) fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, what) in [
            (self.failures_in_log, "allocation that failed then"),
            (self.nothing_rows, "row that asks for nothing: a free of null, or no bytes at null"),
            (self.mapping_rows, "row that maps or unmaps memory"),
            (self.synchronize_rows, "row that synchronises or trims the pool"),
            (self.skipped_rows, "row passed over"),
        ] {
            if count > 0 {
                writeln!(f, "{count} x {what}")?;
            }
        }
        for (kind, count) in &self.findings {
            writeln!(f, "{count} x {}", kind.replace('_', " "))?;
        }
        self.failed_requests.iter().try_for_each(|failed| writeln!(f, "{failed}"))
    }

    /// A paragraph where it is not known who holds the `allocations` of the peak, and one for what is live at the end.
    pub(crate) fn holders(&self, f: &mut fmt::Formatter<'_>, allocations: u64) -> fmt::Result {
        if !self.names_lines && allocations > 0 {
            writeln!(f, "\n{NAMES_NO_LINES}")?;
        }
        write!(f, "{}", self.live_at_end)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `metrale replay` answers.

use std::fmt;

use metrale_cuda_backend::MetraleCudaBackend;
use metrale_ledger::Snapshot;
use serde::Serialize;

use crate::Exit;
use crate::moment::Moment;
use crate::render::load::{Count, Line, ScopeLine, Shortage, SiteLine};
use crate::render::of_log::OfLog;
use crate::replayed::Replayed;

/// The account of a replay. All `_bytes` are bytes.
#[derive(Debug, Serialize)]
pub struct ReplayReport {
    /// The log's path.
    pub log: String,
    /// Which driver: a library's path, or the software driver and its profile.
    pub driver: String,
    /// The device's name.
    pub device: String,
    /// The device's ordinal.
    pub ordinal: usize,
    /// Rows that were done, those that ask for nothing among them.
    pub operations: u64,
    /// Allocations among them.
    pub allocations: u64,
    /// Frees among them.
    pub frees: u64,
    /// What is odd about the log, and what is live at its end.
    #[serde(flatten)]
    pub of_log: OfLog,
    /// Wall time of the operations, in seconds.
    pub seconds: f64,
    /// When the most was live.
    pub peak: HeldThen,
    /// After the last operation (or, out of memory, the last that fitted).
    pub end: HeldThen,
    /// The most that the driver kept for the ledger's allocations.
    pub peak_resident_bytes: u64,
    /// Bytes by which the driver's free figure fell, at the end.
    pub driver_used_bytes: i64,
    /// `driver_used_bytes` less the end's `resident_bytes`: what the ledger cannot explain.
    pub unexplained_bytes: i64,
    /// Rows after which the driver's figure differed from the ledger's; `null` without `--per-op`, where it is not asked.
    pub unexplained_rows: Option<u64>,
    /// The driver's free figure at the end.
    pub device_free_bytes: u64,
    /// The device's memory.
    pub device_total_bytes: u64,
    /// Allocations that a sweep found after everything was freed: 0.
    pub swept_allocations: usize,
    /// Why the log was not done to its end; `null` where it was.
    pub error: Option<Shortage>,
}

/// What was held at one moment.
#[derive(Debug, Serialize)]
pub struct HeldThen {
    /// The number of the operation before it, from 0; `null` before the first.
    pub operation: Option<u64>,
    /// That operation's line in the log.
    pub line: Option<u64>,
    /// Live allocations.
    pub allocations: u64,
    /// Their bytes, as asked for.
    pub live_bytes: u64,
    /// Bytes of the 2 MiB pages they touch.
    pub resident_bytes: u64,
    /// `resident_bytes` less `live_bytes`.
    pub slack_bytes: u64,
    /// Who held what, by call site, largest first.
    pub sites: Vec<SiteLine>,
    /// Who held what, by the source line that the log names, largest first.
    pub scopes: Vec<ScopeLine>,
    /// The ledger's report as text.
    #[serde(skip)]
    pub report: String,
}

impl HeldThen {
    fn of(snapshot: &Snapshot, top: usize, min_mb: usize) -> Self {
        Self {
            operation: None,
            line: None,
            allocations: snapshot.totals.live_count,
            live_bytes: snapshot.totals.live_bytes,
            resident_bytes: snapshot.totals.resident_bytes,
            slack_bytes: snapshot.totals.slack_bytes,
            sites: snapshot.by_site().into_iter().map(SiteLine::from).collect(),
            scopes: snapshot.by_scope().into_iter().map(ScopeLine::from).collect(),
            report: snapshot.report(top, min_mb),
        }
    }
}

impl ReplayReport {
    pub(crate) fn new(
        log: String,
        of_log: OfLog,
        backend: &MetraleCudaBackend,
        peak: &Snapshot,
        end: &Moment,
        top: usize,
        min_mb: usize,
    ) -> Self {
        let totals = end.snapshot.totals;
        Self {
            log,
            driver: backend.driver().source(),
            device: backend.facts().name.clone(),
            ordinal: backend.facts().ordinal,
            operations: 0,
            allocations: 0,
            frees: 0,
            of_log,
            seconds: 0.0,
            peak: HeldThen::of(peak, top, min_mb),
            end: HeldThen::of(&end.snapshot, top, min_mb),
            peak_resident_bytes: totals.peak_resident_bytes,
            driver_used_bytes: end.driver_used_bytes,
            unexplained_bytes: end.driver_used_bytes.saturating_sub_unsigned(totals.resident_bytes),
            unexplained_rows: None,
            device_free_bytes: end.free_bytes,
            device_total_bytes: end.total_bytes,
            swept_allocations: 0,
            error: None,
        }
    }

    pub(crate) fn did(mut self, done: &Replayed, seconds: f64, unexplained_rows: Option<u64>) -> Self {
        (self.operations, self.allocations, self.frees) = (done.operations, done.allocations, done.frees);
        (self.peak.operation, self.peak.line) = done.peak.unzip();
        self.end.operation = done.operations.checked_sub(1);
        self.end.line = done.last_line;
        Self { seconds, unexplained_rows, ..self }
    }

    pub(crate) fn ended(self, error: Option<Shortage>) -> Self {
        Self { error, ..self }
    }

    pub(crate) fn swept(self, swept_allocations: usize) -> Self {
        Self { swept_allocations, ..self }
    }

    /// How the program ends with this answer.
    pub fn exit(&self) -> Exit {
        match (&self.error, self.swept_allocations) {
            (Some(_), _) => Exit::OutOfMemory,
            (None, 0) => Exit::Done,
            (None, _) => Exit::Failed,
        }
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.error.is_some() { "did not fit" } else { "replayed" };
        writeln!(f, "{} {state} on device {} ({}; {})", self.log, self.ordinal, self.device, self.driver)?;
        writeln!(
            f,
            "{} ({}, {}) in {:.3} s",
            Count(self.operations, "operation"),
            Count(self.allocations, "allocation"),
            Count(self.frees, "free"),
            self.seconds
        )?;
        self.of_log.rows(f)?;
        for (name, then) in [("peak", &self.peak), ("end", &self.end)] {
            write!(f, "\n{name}")?;
            if let (Some(operation), Some(line)) = (then.operation, then.line) {
                write!(f, ", at operation {operation} (line {line})")?;
            }
            writeln!(f, ":\n{}", then.report.trim_end())?;
        }
        self.of_log.holders(f, self.peak.allocations)?;
        writeln!(f)?;
        writeln!(f, "{}", Line("peak resident", self.peak_resident_bytes.into()))?;
        writeln!(f, "{}", Line("driver used", self.driver_used_bytes.into()))?;
        writeln!(f, "{}", Line("  ledger, live", self.end.live_bytes.into()))?;
        writeln!(f, "{}", Line("  slack", self.end.slack_bytes.into()))?;
        writeln!(f, "{}", Line("  unexplained", self.unexplained_bytes.into()))?;
        writeln!(f, "{}", Line("driver free", self.device_free_bytes.into()))?;
        match self.unexplained_rows {
            Some(0) => writeln!(f, "after every row the driver kept exactly what the ledger says")?,
            Some(rows) => {
                let rows = Count(rows, "row");
                writeln!(f, "after {rows} the driver's figure differed from the ledger's")?;
            }
            None => {}
        }
        write!(f, "after freeing all, a sweep found {}", Count(self.swept_allocations as u64, "allocation"))
    }
}

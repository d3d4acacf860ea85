// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `metrale load` answers.

use std::fmt;

use metrale_cuda_backend::memory::Account;
use metrale_cuda_backend::{MetraleCudaBackend, OutOfMemory, cause};
use metrale_ledger::{ArenaRow, ByteSize, LabelRow, SiteRow};
use serde::Serialize;

use crate::Exit;
use crate::model::ModelInput;
use crate::moment::Moment;
use crate::render::failure::OUT_OF_MEMORY;
use crate::render::with_column;

/// The account of a load. All `_bytes` are bytes; the figures are of the moment when everything was loaded (or, out of
/// memory, when the last tensor that fitted was).
#[derive(Debug, Serialize)]
pub struct LoadReport {
    /// The model: a path, a number of files, or the catalogue's name.
    pub model: String,
    /// Which driver: a library's path, or the software driver and its profile.
    pub driver: String,
    /// The device's name.
    pub device: String,
    /// The device's ordinal.
    pub ordinal: usize,
    /// Tensors of the model, those of no bytes among them.
    pub tensors: usize,
    /// Tensors of no bytes, which need no memory.
    pub empty_tensors: usize,
    /// Live allocations; with `--arena`, its parts.
    pub allocations: u64,
    /// Their bytes, as asked for.
    pub live_bytes: u64,
    /// Bytes of the one arena of `--arena`, as asked for; else 0.
    pub arena_bytes: u64,
    /// Bytes of the 2 MiB pages they touch, or their arena does.
    pub resident_bytes: u64,
    /// `resident_bytes` less `live_bytes`.
    pub slack_bytes: u64,
    /// The part of the slack in the chunks that small allocations share.
    pub chunk_slack_bytes: u64,
    /// Bytes by which the driver's free figure fell while loading.
    pub driver_used_bytes: i64,
    /// `driver_used_bytes` less `resident_bytes`: what the ledger cannot explain.
    pub unexplained_bytes: i64,
    /// The driver's free figure.
    pub device_free_bytes: u64,
    /// The device's memory.
    pub device_total_bytes: u64,
    /// Bytes copied from the files.
    pub bytes_copied: u64,
    /// Wall time of allocating and copying, in seconds.
    pub seconds: f64,
    /// Tensors copied back and found equal to the file.
    pub verified_tensors: usize,
    /// Allocations that a sweep found after everything was freed: 0.
    pub swept_allocations: usize,
    /// The driver's used bytes of the whole device as a sum of named terms, with the signed remainder that closes it.
    pub account: Account,
    /// Who holds what, by call site, largest first.
    pub sites: Vec<SiteLine>,
    /// Who holds what, by scope, largest first.
    pub scopes: Vec<ScopeLine>,
    /// Why not everything is loaded; `null` where it is.
    pub error: Option<Shortage>,
    /// The ledger's report as text.
    #[serde(skip)]
    pub ledger_report: String,
}

/// One call site.
#[derive(Debug, Serialize)]
pub struct SiteLine {
    /// `file:line:column`.
    pub site: String,
    /// Bytes live.
    pub bytes: u64,
    /// Allocations live.
    pub count: u64,
}

/// One scope.
#[derive(Debug, Serialize)]
pub struct ScopeLine {
    /// The scope's label; `null` for what was allocated outside any.
    pub scope: Option<String>,
    /// Bytes live.
    pub bytes: u64,
    /// Allocations live.
    pub count: u64,
}

/// Why the device ran out of memory.
#[derive(Debug, Serialize)]
pub struct Shortage {
    /// Always `out_of_memory`.
    pub kind: &'static str,
    /// What was asked for, in bytes.
    pub requested_bytes: u64,
    /// The driver's free figure at that moment.
    pub free_bytes: Option<u64>,
    /// The device's memory.
    pub total_bytes: u64,
    /// The whole answer, for people.
    pub message: String,
}

impl Shortage {
    /// The shortage that ended something, if one did; any other error is passed on.
    pub(crate) fn of(done: anyhow::Result<()>) -> anyhow::Result<Option<Self>> {
        let Err(error) = done else { return Ok(None) };
        let Some(cause) = cause::<OutOfMemory>(&error) else { return Err(error) };
        Ok(Some(Self {
            kind: OUT_OF_MEMORY,
            requested_bytes: cause.requested_bytes,
            free_bytes: cause.free_bytes,
            total_bytes: cause.total_bytes,
            message: format!("{error:#}"),
        }))
    }
}

impl LoadReport {
    pub(crate) fn new(
        input: &ModelInput,
        backend: &MetraleCudaBackend,
        moment: Moment,
        ledger_report: String,
    ) -> Self {
        let snapshot = &moment.snapshot;
        let totals = snapshot.totals;
        // An arena is shown by its parts, each like an allocation.
        let (sites, scopes) = match &*snapshot.arenas {
            [] => (snapshot.by_site(), snapshot.by_scope()),
            _ => (snapshot.parts_by_site(), snapshot.parts_by_scope()),
        };
        let parts = snapshot.arenas.iter().map(|arena| arena.parts.len() as u64).sum::<u64>();
        let part_bytes = snapshot.arenas.iter().map(ArenaRow::used_bytes).sum::<u64>();
        let live_bytes = totals.live_bytes + part_bytes;
        let resident_bytes = totals.resident_bytes + totals.arena_resident_bytes;
        Self {
            model: input.title().to_owned(),
            driver: backend.driver().source(),
            device: backend.facts().name.clone(),
            ordinal: backend.facts().ordinal,
            tensors: input.tensors().len(),
            empty_tensors: input.empty_tensors(),
            allocations: totals.live_count + parts,
            live_bytes,
            arena_bytes: totals.arena_bytes,
            resident_bytes,
            slack_bytes: resident_bytes.saturating_sub(live_bytes),
            chunk_slack_bytes: totals.chunk_slack_bytes,
            driver_used_bytes: moment.driver_used_bytes,
            unexplained_bytes: moment.driver_used_bytes.saturating_sub_unsigned(resident_bytes),
            device_free_bytes: moment.free_bytes,
            device_total_bytes: moment.total_bytes,
            bytes_copied: 0,
            seconds: 0.0,
            verified_tensors: 0,
            swept_allocations: 0,
            account: moment.account,
            sites: sites.into_iter().map(SiteLine::from).collect(),
            scopes: scopes.into_iter().map(ScopeLine::from).collect(),
            error: None,
            ledger_report,
        }
    }

    pub(crate) fn copied(self, bytes_copied: u64, seconds: f64) -> Self {
        Self { bytes_copied, seconds, ..self }
    }

    pub(crate) fn ended(self, verified_tensors: usize, error: Option<Shortage>) -> Self {
        Self { verified_tensors, error, ..self }
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

impl From<SiteRow> for SiteLine {
    fn from(row: SiteRow) -> Self {
        Self { site: with_column(&row.site), bytes: row.bytes, count: row.count }
    }
}

impl From<LabelRow> for ScopeLine {
    fn from(row: LabelRow) -> Self {
        Self { scope: row.label, bytes: row.bytes, count: row.count }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.error.is_some() { "did not fit" } else { "loaded" };
        writeln!(f, "{} {state} on device {} ({}; {})", self.model, self.ordinal, self.device, self.driver)?;
        write!(f, "{}", Count(self.tensors as u64, "tensor"))?;
        if self.empty_tensors > 0 {
            write!(f, ", {} of them empty", self.empty_tensors)?;
        }
        write!(
            f,
            ", {} in {:.3} s; ",
            Count(self.allocations, if self.arena_bytes > 0 { "part" } else { "allocation" }),
            self.seconds
        )?;
        if self.bytes_copied == 0 {
            writeln!(f, "nothing copied")?;
        } else {
            writeln!(f, "{} copied", ByteSize(self.bytes_copied))?;
        }
        if self.verified_tensors > 0 {
            writeln!(f, "{} copied back as in the file", Count(self.verified_tensors as u64, "tensor"))?;
        }
        writeln!(f, "\n{}\n", self.ledger_report.trim_end())?;

        let mut line = |name: &str, bytes: i128, note: &str| writeln!(f, "{}{note}", Line(name, bytes));
        line("driver used", self.driver_used_bytes.into(), "")?;
        line("  ledger, live", self.live_bytes.into(), "")?;
        let note = match self.arena_bytes {
            0 => format!(", {} of it in chunks of small ones", ByteSize(self.chunk_slack_bytes)),
            bytes => format!(", in one arena of {}", ByteSize(bytes)),
        };
        line("  slack", self.slack_bytes.into(), &note)?;
        line("  unexplained", self.unexplained_bytes.into(), "")?;
        line(
            "driver free",
            self.device_free_bytes.into(),
            &format!(" of {}", ByteSize(self.device_total_bytes)),
        )?;
        writeln!(f, "\naccount of the device\n{}\n", self.account)?;
        write!(f, "after freeing all, a sweep found {}", Count(self.swept_allocations as u64, "allocation"))
    }
}

/// A figure with its name, in bytes and as people read them.
pub(crate) struct Line<'a>(pub(crate) &'a str, pub(crate) i128);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, bytes) = *self;
        let sign = if bytes < 0 { "-" } else { "" };
        let size = ByteSize(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
        write!(f, "{name:<22}{bytes:>16}  {sign}{size}")
    }
}

/// A number of things, in the singular for one.
pub(crate) struct Count(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// What `metrale load --list-models` answers.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct ModelNames(pub Vec<String>);

impl fmt::Display for ModelNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

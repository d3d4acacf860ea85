// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `metrale load` answers.

use std::fmt;

use metrale_cuda_backend::{HostError, MetraleCudaBackend, OutOfMemory, Remedy, remedy};
use metrale_driver_sys::CUDA_ERROR_OUT_OF_MEMORY;
use metrale_ledger::{ByteSize, LabelRow, SiteRow};
use serde::Serialize;

use crate::Exit;
use crate::args::LoadArgs;
use crate::commands::load::Moment;
use crate::model::{InputError, ModelInput, ShownPath};

/// The `kind` of an error that another input would mend.
const BAD_INPUT: &str = "bad_input";
/// The `kind` of an error that memory would mend.
const OUT_OF_MEMORY: &str = "out_of_memory";

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
    /// Live allocations.
    pub allocations: u64,
    /// Their bytes, as asked for.
    pub live_bytes: u64,
    /// Bytes of the 2 MiB pages they touch.
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

/// Why the device had no room.
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
    pub(crate) fn new(cause: &OutOfMemory, message: String) -> Self {
        Self {
            kind: OUT_OF_MEMORY,
            requested_bytes: cause.requested_bytes,
            free_bytes: cause.free_bytes,
            total_bytes: cause.total_bytes,
            message,
        }
    }
}

impl LoadReport {
    pub(crate) fn new(
        input: &ModelInput,
        backend: &MetraleCudaBackend,
        moment: Moment,
        ledger_report: String,
    ) -> Self {
        let totals = moment.snapshot.totals;
        Self {
            model: input.title().to_owned(),
            driver: backend.driver().source(),
            device: backend.facts().name.clone(),
            ordinal: backend.facts().ordinal,
            tensors: input.tensors().len(),
            empty_tensors: input.empty_tensors(),
            allocations: totals.live_count,
            live_bytes: totals.live_bytes,
            resident_bytes: totals.resident_bytes,
            slack_bytes: totals.slack_bytes,
            chunk_slack_bytes: totals.chunk_slack_bytes,
            driver_used_bytes: moment.driver_used_bytes,
            unexplained_bytes: moment.driver_used_bytes.saturating_sub_unsigned(totals.resident_bytes),
            device_free_bytes: moment.free_bytes,
            device_total_bytes: moment.total_bytes,
            bytes_copied: 0,
            seconds: 0.0,
            verified_tensors: 0,
            swept_allocations: 0,
            sites: moment.snapshot.by_site().into_iter().map(SiteLine::from).collect(),
            scopes: moment.snapshot.by_scope().into_iter().map(ScopeLine::from).collect(),
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
        Self { site: row.site.to_string(), bytes: row.bytes, count: row.count }
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
        write!(f, ", {} in {:.3} s; ", Count(self.allocations, "allocation"), self.seconds)?;
        if self.bytes_copied == 0 {
            writeln!(f, "nothing copied")?;
        } else {
            writeln!(f, "{} copied", ByteSize(self.bytes_copied))?;
        }
        if self.verified_tensors > 0 {
            writeln!(f, "{} copied back as in the file", Count(self.verified_tensors as u64, "tensor"))?;
        }
        writeln!(f, "\n{}\n", self.ledger_report.trim_end())?;

        let mut line = |name: &str, bytes: i64, note: &str| {
            let size = ByteSize(bytes.unsigned_abs());
            let sign = if bytes < 0 { "-" } else { "" };
            writeln!(f, "{name:<22}{bytes:>16}  {sign}{size}{note}")
        };
        line("driver used", self.driver_used_bytes, "")?;
        line("  ledger, live", self.live_bytes as i64, "")?;
        let note = format!(", {} of it in chunks of small ones", ByteSize(self.chunk_slack_bytes));
        line("  slack", self.slack_bytes as i64, &note)?;
        line("  unexplained", self.unexplained_bytes, "")?;
        line(
            "driver free",
            self.device_free_bytes as i64,
            &format!(" of {}", ByteSize(self.device_total_bytes)),
        )?;
        write!(f, "after freeing all, a sweep found {}", Count(self.swept_allocations as u64, "allocation"))
    }
}

/// A number of things, in the singular for one.
struct Count(u64, &'static str);

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

/// What `metrale load` answers where it came to no account at all.
#[derive(Debug, Serialize)]
pub struct LoadFailure {
    /// The model: a path, a number of files, or the catalogue's name.
    pub model: String,
    /// What happened.
    pub error: Failure,
}

/// Why there is no account.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// `bad_input`; `out_of_memory` where the context or the pinned buffers found no room; else `failed`.
    pub kind: &'static str,
    /// The whole answer, for people.
    pub message: String,
}

impl LoadFailure {
    pub(crate) fn of_input(args: &LoadArgs, error: &InputError) -> Self {
        let files = args.files.iter().map(|path| ShownPath(path).to_string()).collect::<Vec<_>>();
        let model = args.model.clone().unwrap_or_else(|| files.join(", "));
        Self { model, error: Failure { kind: BAD_INPUT, message: error.to_string() } }
    }

    pub(crate) fn new(input: &ModelInput, error: &anyhow::Error) -> Self {
        // A context that does not fit is memory too, though the host says it with the driver's status alone.
        let no_room_for_a_context = error
            .downcast_ref::<HostError>()
            .and_then(HostError::driver_error)
            .is_some_and(|error| error.status == CUDA_ERROR_OUT_OF_MEMORY);
        let out_of_memory = no_room_for_a_context || remedy(error) == Some(Remedy::FreeAndRetry);
        let kind = match error.downcast_ref::<InputError>() {
            Some(_) => BAD_INPUT,
            None if out_of_memory => OUT_OF_MEMORY,
            None => "failed",
        };
        Self { model: input.title().to_owned(), error: Failure { kind, message: format!("{error:#}") } }
    }

    /// How the program ends with this answer.
    pub fn exit(&self) -> Exit {
        match self.error.kind {
            BAD_INPUT => Exit::BadInput,
            OUT_OF_MEMORY => Exit::OutOfMemory,
            _ => Exit::Failed,
        }
    }
}

impl fmt::Display for LoadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error.message)
    }
}

#[cfg(test)]
mod tests {
    use metrale_driver_sys::{CUresult, DriverError, DriverFn};

    use super::*;

    fn failure(status: CUresult) -> LoadFailure {
        let error = DriverError { function: DriverFn::cuDevicePrimaryCtxRetain, status };
        let input = ModelInput::open(&[], Some("gpt2")).unwrap();
        LoadFailure::new(&input, &HostError::Context { ordinal: 0, error }.into())
    }

    #[test]
    fn a_device_too_full_for_a_context_is_out_of_memory_and_any_other_failure_is_not() {
        assert_eq!(failure(CUDA_ERROR_OUT_OF_MEMORY).exit(), Exit::OutOfMemory);
        for status in [1, 46, 100, 700, 999] {
            assert_eq!(failure(status).exit(), Exit::Failed, "{status}");
        }
    }
}

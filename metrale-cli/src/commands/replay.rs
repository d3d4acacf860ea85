// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale replay`: a recorded log's operations through the backend, as fast as possible, and what they took.

use std::time::Instant;

use anyhow::Context;
use metrale_cuda_backend::{DevicePtr, MetraleCudaBackend, ScopeGuard};
use metrale_ledger::LedgerProbe;

use crate::args::ReplayArgs;
use crate::model::ShownPath;
use crate::moment::Moment;
use crate::per_op::PerOp;
use crate::render::failure::{Failed, Input};
use crate::render::load::{Count, Shortage};
use crate::render::of_log::OfLog;
use crate::render::replay::ReplayReport;
use crate::replayed::Replayed;
use crate::script::{Act, Operation, Script};
use crate::snapshot_file::SnapshotFile;
use crate::{Console, Exit, concluded, outputs};

/// Operations between two looks at the progress bar.
const BETWEEN_TICKS: usize = 1024;

/// Runs the command.
pub fn run(args: &ReplayArgs, console: &mut Console<'_>) -> Exit {
    match replay(args, console) {
        Ok(report) => concluded(&report, report.exit(), report.error.as_ref(), args.json, console),
        Err(error) => {
            Failed::new(Input::Log(ShownPath(&args.log).to_string()), &error).say(args.json, console)
        }
    }
}

/// Reads, replays, measures; then frees and sweeps, whatever happened before.
fn replay(args: &ReplayArgs, console: &mut Console<'_>) -> anyhow::Result<ReplayReport> {
    let (script, of_log) = Script::read(&args.log, args.lenient)?;
    for remark in &of_log.remarks {
        console.remark(remark);
    }
    let outputs = [
        ("--per-op", args.per_op.as_deref()),
        ("--snapshot", args.snapshot.as_deref()),
        ("--peak-snapshot", args.peak_snapshot.as_deref()),
    ];
    outputs::check(&outputs, [args.log.as_path()])?;
    let create = |path: &_| PerOp::create(path, "op,live_bytes,resident_bytes,driver_free_bytes");
    let files = Files {
        table: args.per_op.as_deref().map(create).transpose()?,
        end: args.snapshot.as_deref().map(SnapshotFile::create).transpose()?,
        peak: args.peak_snapshot.as_deref().map(SnapshotFile::create).transpose()?,
    };
    let backend = args.target.open(console)?;
    let mut held = vec![DevicePtr::NULL; script.places];
    let measured = measure(args, &script, of_log, &backend, &mut held, files, console);
    let swept = free_all(&backend, &held);
    // The first error is the one that counts; what follows from it may fail too.
    let report = measured?;
    Ok(report.swept(swept?))
}

/// The files that were asked for, opened before anything is done.
struct Files {
    table: Option<PerOp>,
    /// The snapshot at the end, and that of the peak.
    end: Option<SnapshotFile>,
    peak: Option<SnapshotFile>,
}

/// What is done while memory is held.
fn measure(
    args: &ReplayArgs,
    script: &Script,
    mut of_log: OfLog,
    backend: &MetraleCudaBackend,
    held: &mut [DevicePtr],
    files: Files,
    console: &Console<'_>,
) -> anyhow::Result<ReplayReport> {
    let baseline_free_bytes = backend.memory_info()?.free_bytes;
    let Files { table, end: end_file, peak: peak_file } = files;
    let probe = backend.ledger_probe();
    let done = Replayed::default();
    let mut run = Run { backend, probe, held, scope: None, table, baseline_free_bytes, done };

    let start = Instant::now();
    let shortage = Shortage::of(run.all(script, console))?;
    let seconds = start.elapsed().as_secs_f64();

    let Run { table, scope, done, probe, .. } = run;
    drop(scope);
    let has_table = table.is_some();
    table.map_or(Ok(()), PerOp::finish)?;
    let end = Moment::of(backend, baseline_free_bytes)?;
    let peak = probe.peak_snapshot();
    for (file, snapshot) in [(end_file, &end.snapshot), (peak_file, &peak)] {
        file.map_or(Ok(()), |file| file.write(snapshot))?;
    }
    of_log.live_at_end = script.live_after(&done);
    let log = ShownPath(&args.log).to_string();
    let report = ReplayReport::new(log, of_log, backend, &peak, &end, args.top, args.min_mb);
    let unexplained_rows = has_table.then_some(done.unexplained_rows);
    Ok(report.did(&done, seconds, unexplained_rows).ended(shortage))
}

/// A replay under way.
struct Run<'a> {
    backend: &'a MetraleCudaBackend,
    probe: LedgerProbe,
    /// What is live, by place.
    held: &'a mut [DevicePtr],
    /// The scope of the last label: neighbouring rows are often of one.
    scope: Option<(usize, ScopeGuard)>,
    table: Option<PerOp>,
    baseline_free_bytes: u64,
    done: Replayed,
}

impl Run<'_> {
    /// Does the operations in order, up to the first that fails.
    fn all(&mut self, script: &Script, console: &Console<'_>) -> anyhow::Result<()> {
        let bar = console.step_bar(script.operations.len() as u64);
        for batch in script.operations.chunks(BETWEEN_TICKS) {
            for operation in batch {
                self.one(operation, &script.labels)?;
            }
            bar.inc(batch.len() as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn one(&mut self, operation: &Operation, labels: &[String]) -> anyhow::Result<()> {
        let line = operation.line;
        match operation.act {
            Act::Nothing => {}
            Act::Free { place } => {
                self.free(place, line)?;
                self.done.frees += 1;
            }
            Act::Allocate { place, bytes, label } => self.allocate(place, bytes, label, line, labels)?,
            Act::Displace { place, bytes, label } => {
                self.free(place, line)?;
                self.done.displaced = true;
                self.allocate(place, bytes, label, line, labels)?;
                self.done.displaced = false;
            }
        }
        let number = self.done.operations;
        self.done.operations += 1;
        self.done.last_line = Some(line);
        // The ledger has the peak. Here it is only noted which operation raised it.
        let peak_bytes = self.probe.peak_bytes();
        if peak_bytes > self.done.peak_bytes {
            self.done.peak_bytes = peak_bytes;
            self.done.peak = Some((number, line));
        }
        if let Some(table) = &mut self.table {
            let (live_bytes, resident_bytes) =
                (self.backend.live_bytes(), self.backend.resident_bytes() as u64);
            let free = self.backend.memory_info()?.free_bytes;
            table.row([number, live_bytes as u64, resident_bytes, free])?;
            let is_explained = self.baseline_free_bytes.checked_sub(free) == Some(resident_bytes);
            self.done.unexplained_rows += u64::from(!is_explained);
        }
        Ok(())
    }

    fn allocate(
        &mut self,
        place: usize,
        bytes: u64,
        label: Option<usize>,
        line: u64,
        labels: &[String],
    ) -> anyhow::Result<()> {
        if label != self.scope.as_ref().map(|(label, _)| *label) {
            // Closed before the next is opened, which would nest in it.
            self.scope = None;
            self.scope = label.map(|label| (label, self.backend.scope(&labels[label])));
        }
        if bytes > 0 {
            let about = || format!("line {line}: allocating {}", Count(bytes, "byte"));
            let bytes = usize::try_from(bytes).with_context(about)?;
            self.held[place] = self.backend.alloc(bytes).with_context(about)?;
        }
        self.done.allocations += 1;
        Ok(())
    }

    fn free(&mut self, place: usize, line: u64) -> anyhow::Result<()> {
        // Removed first, so that nothing is freed twice where the driver refuses.
        let at = std::mem::take(&mut self.held[place]);
        self.backend.free(at).with_context(|| format!("line {line}: freeing"))
    }
}

/// Frees what the log left; the sweep after it finds nothing, or an owner was lost. Returns what it found.
fn free_all(backend: &MetraleCudaBackend, held: &[DevicePtr]) -> anyhow::Result<usize> {
    for &at in held {
        backend.free(at)?;
    }
    Ok(backend.sweep_unreleased()?)
}

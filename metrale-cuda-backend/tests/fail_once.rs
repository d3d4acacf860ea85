// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every driver call of a scenario fails in turn, with each plausible status: no panic, no leak, no drift of the ledger
//! from the driver, and an error that names the call.
#![allow(clippy::print_stdout, reason = "the table is what the test shows")]

mod common;
#[path = "common/redzone.rs"]
mod functions;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use common::{KERNELS, KIB, MIB, address, logged, sim_with_kernels};
use metrale_cuda_backend::{
    AllocKind, BackendConfig, Copy2d, DeviceBuffer, DriverApi, DriverFn, Error, KernelLaunch,
    MetraleCudaBackend, PinnedBuffer, Result, Stream, Uploader,
};
use metrale_driver_sim::{FaultDriver, Leaks, SimDriver, TraceCall, TraceDriver};

/// What one call answers instead of what it would.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The status, once.
    Once(i32),
    /// The context is lost: the status, and the same for every later call that needs a context.
    Sticky(i32),
    /// The driver is unloaded below the process: 4, and the same for every later call.
    DriverGone,
}

const ANY_CALL: [Fault; 12] = [
    Fault::Once(1),
    Fault::Once(2),
    Fault::Once(3),
    Fault::DriverGone,
    Fault::Once(101),
    Fault::Once(201),
    Fault::Once(400),
    Fault::Sticky(700),
    Fault::Once(709),
    Fault::Sticky(719),
    Fault::Once(801),
    Fault::Once(999),
];

/// What a capture answers.
const STREAM_CALLS: [Fault; 2] = [Fault::Once(900), Fault::Once(901)];

impl Fault {
    fn status(self) -> i32 {
        match self {
            Self::Once(status) | Self::Sticky(status) => status,
            Self::DriverGone => 4,
        }
    }

    /// Says that the context is gone, and all memory with it: nothing is left to free.
    fn says_it_is_gone(self) -> bool {
        matches!(self.status(), 4 | 201 | 709)
    }
}

/// Calls that work on streams or in captures.
fn is_about_streams(function: DriverFn) -> bool {
    let name = function.name();
    ["Stream", "Event", "Graph", "Launch", "Async", "Memcpy", "Memset"].iter().any(|part| name.contains(part))
}

/// What a program does once a step has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// Drops everything.
    Stops,
    /// Drops what the failed part had, and goes on with the next part.
    GoesOn,
}

/// One run of the scenario, whose arenas a later backend frees.
struct Run {
    driver: Arc<SimDriver>,
    program: Program,
    /// Whether the ledger and the driver agreed until now: what the driver was told to answer may be a lie.
    comparable: Box<dyn Fn() -> bool>,
    errors: Vec<(&'static str, Error)>,
    drift: Vec<String>,
}

impl Run {
    /// The step's answer; an error is kept and ends the part.
    fn step<T>(
        &mut self,
        backend: &Arc<MetraleCudaBackend>,
        what: &'static str,
        answer: Result<T>,
    ) -> Option<T> {
        self.compare(backend, what);
        answer.map_err(|error| self.errors.push((what, error))).ok()
    }

    /// The ledger's live bytes are those that the driver has for this backend.
    fn compare(&mut self, backend: &Arc<MetraleCudaBackend>, what: &'static str) {
        if !(self.comparable)() {
            return;
        }
        let probe = backend.ledger_probe();
        let ledger = probe.live_bytes() + probe.arena_bytes() + probe.pinned_bytes() + probe.padding_bytes();
        let driver = self.driver.leaks().memory_bytes() as usize;
        if ledger != driver {
            self.drift.push(format!("after {what}: {ledger} bytes on the ledger, {driver} in the driver"));
        }
    }
}

/// One step: its value, or the end of the part.
macro_rules! step {
    ($run:ident, $backend:ident, $what:literal, $call:expr) => {{
        let answer = $call.map_err(Error::from);
        $run.step($backend, $what, answer)?
    }};
}

fn memory(run: &mut Run, backend: &Arc<MetraleCudaBackend>) -> Option<()> {
    let stream = backend.stream();
    let small = step!(run, backend, "alloc", backend.alloc(64 * KIB));
    let large = step!(run, backend, "alloc of pages", backend.alloc(3 * MIB));
    let managed = step!(run, backend, "alloc_managed", backend.alloc_managed(MIB));
    let pinned = PinnedBuffer::<u8>::new(backend, 64 * KIB);
    let mut pinned = step!(run, backend, "alloc_pinned", pinned);
    step!(run, backend, "memory_info", backend.memory_info());
    step!(run, backend, "effective_free", backend.effective_free());
    step!(run, backend, "copy_h2d", backend.copy_h2d(&[1; 1000], small));
    step!(run, backend, "copy_h2d_async", backend.copy_h2d_async(&[2; 1000], small, stream));
    let own = Stream::of_backend(backend);
    let mut buffer = step!(run, backend, "a buffer", DeviceBuffer::<u8>::new(backend, 64 * KIB));
    step!(run, backend, "copy_from_pinned", own.copy_from_pinned(&pinned, &mut buffer));
    step!(run, backend, "copy_to_pinned", own.copy_to_pinned(&buffer, &mut pinned));
    step!(run, backend, "pinned elements", pinned.as_slice().map(|bytes| assert_eq!(bytes.len(), 64 * KIB)));
    drop(buffer);
    step!(run, backend, "copy_d2d", backend.copy_d2d(small, large, 1000));
    step!(run, backend, "copy_d2d_async", backend.copy_d2d_async(small, large, 1000, stream));
    step!(run, backend, "copy_d2h_on_stream", backend.copy_d2h_on_stream(small, &mut [0; 100], stream));
    let square = Copy2d::device(small, 256, large, 512, 64, 16);
    // SAFETY: both sides are on the device.
    step!(run, backend, "copy_2d_async", unsafe { backend.copy_2d_async(&square, stream) });
    step!(run, backend, "memset", backend.memset(large, 3, MIB));
    step!(run, backend, "memset_async", backend.memset_async(managed, 3, 100, stream));
    step!(run, backend, "memset_d32_async", backend.memset_d32_async(small, 3, 100, stream));
    step!(run, backend, "synchronize_stream", backend.synchronize_stream(stream));
    step!(run, backend, "copy_d2h", backend.copy_d2h(small, &mut [0; 16]));
    let mut uploader = step!(run, backend, "an uploader", Uploader::new(backend, 4 * KIB));
    step!(run, backend, "upload", uploader.upload(&[5; 10_000], large));
    step!(run, backend, "finish", uploader.finish());
    drop(uploader);
    run.compare(backend, "the uploader's end");
    drop(pinned);
    run.compare(backend, "the pinned buffer's end");
    step!(run, backend, "scan_redzones", backend.scan_redzones());
    step!(run, backend, "free of managed memory", backend.free(managed));
    step!(run, backend, "free", backend.free(small));
    step!(run, backend, "free of pages", backend.free(large));
    Some(())
}

fn arenas(run: &mut Run, backend: &Arc<MetraleCudaBackend>) -> Option<()> {
    let stream = step!(run, backend, "create_stream", backend.create_stream());
    let arena = step!(run, backend, "alloc_arena", backend.alloc_arena(3 * MIB));
    let packed = step!(run, backend, "packed_arena", backend.packed_arena(MIB));
    let part = step!(run, backend, "a part", packed.alloc("part", 4 * KIB));
    step!(run, backend, "memset of a part", backend.memset_async(part, 1, 4 * KIB, stream));
    step!(run, backend, "op_scratch", backend.op_scratch("gemm", 4 * KIB, stream));
    step!(run, backend, "larger op_scratch", backend.op_scratch("gemm", 3 * MIB, stream));
    step!(run, backend, "free of the packed arena", packed.free());
    step!(run, backend, "free_arena", backend.free_arena(arena));
    step!(run, backend, "release_op_cache", backend.release_op_cache());
    step!(run, backend, "destroy_stream", backend.destroy_stream(stream));
    Some(())
}

fn streams(run: &mut Run, backend: &Arc<MetraleCudaBackend>) -> Option<()> {
    let (mine, theirs) = (backend.stream(), step!(run, backend, "create_stream", backend.create_stream()));
    let event = step!(run, backend, "create_event", backend.create_event());
    let start = step!(run, backend, "create_timing_event", backend.create_timing_event());
    let end = step!(run, backend, "create_timing_event", backend.create_timing_event());
    step!(run, backend, "record_event", backend.record_event(start, mine));
    step!(run, backend, "record_event", backend.record_event(event, mine));
    step!(run, backend, "wait_event", backend.wait_event(theirs, event));
    step!(run, backend, "query_event", backend.query_event(event));
    step!(run, backend, "record_event", backend.record_event(end, mine));
    step!(run, backend, "synchronize_event", backend.synchronize_event(end));
    step!(run, backend, "elapsed_ms", backend.elapsed_ms(start, end));
    step!(run, backend, "query_stream", backend.query_stream(theirs));
    step!(run, backend, "synchronize", backend.synchronize());
    step!(run, backend, "destroy_event", backend.destroy_event(event));
    step!(run, backend, "destroy_event", backend.destroy_event(start));
    step!(run, backend, "destroy_stream", backend.destroy_stream(theirs));
    Some(())
}

fn graphs(run: &mut Run, backend: &Arc<MetraleCudaBackend>) -> Option<()> {
    let stream = step!(run, backend, "create_stream", backend.create_stream());
    let fill = step!(run, backend, "kernel", backend.kernel("kernels", "fill"));
    step!(run, backend, "optional_kernel", backend.optional_kernel("kernels", "absent"));
    step!(run, backend, "device_symbol", backend.device_symbol("kernels", "steps"));
    let at = step!(run, backend, "alloc", backend.alloc(4 * KIB));
    let launch = |value| KernelLaunch::new(fill).block([64, 1, 1]).ptr(at).u32(value).u32(64);
    // SAFETY: a pointer, a value and a count that fits the allocation; so below.
    step!(run, backend, "launch", unsafe { launch(4).on_stream(&**backend, stream) });
    step!(run, backend, "begin_capture", backend.begin_capture(stream));
    // SAFETY: as above.
    step!(run, backend, "captured launch", unsafe { launch(5).on_stream(&**backend, stream) });
    step!(run, backend, "captured fill", backend.memset_async(at, 1, 16, stream));
    let graph = step!(run, backend, "end_capture", backend.end_capture_named(stream, "step"));
    step!(run, backend, "launch_graph", backend.launch_graph(graph, stream));
    step!(run, backend, "begin_capture", backend.begin_capture(stream));
    // SAFETY: as above.
    step!(run, backend, "captured launch", unsafe { launch(6).on_stream(&**backend, stream) });
    step!(run, backend, "captured fill", backend.memset_async(at, 2, 16, stream));
    let _ = step!(run, backend, "update_graph", backend.update_graph(graph, stream));
    step!(run, backend, "launch_graph", backend.launch_graph(graph, stream));
    step!(run, backend, "synchronize_stream", backend.synchronize_stream(stream));
    step!(run, backend, "begin_capture", backend.begin_capture(stream));
    step!(run, backend, "abort_capture", backend.abort_capture_if_active(stream));
    step!(run, backend, "destroy_graph", backend.destroy_graph(graph));
    step!(run, backend, "free", backend.free(at));
    step!(run, backend, "destroy_stream", backend.destroy_stream(stream));
    Some(())
}

fn diagnostics(run: &mut Run, backend: &Arc<MetraleCudaBackend>) -> Option<()> {
    step!(run, backend, "alloc", backend.alloc(64 * KIB));
    step!(run, backend, "alloc_managed", backend.alloc_managed(64 * KIB));
    step!(run, backend, "scan_redzones_report", backend.scan_redzones_report());
    step!(run, backend, "account", backend.account());
    step!(run, backend, "poll_free_memory", backend.poll_free_memory());
    step!(run, backend, "sweep_unreleased", backend.sweep_unreleased());
    Some(())
}

/// What the drop finds.
fn left_behind(run: &mut Run, backend: &Arc<MetraleCudaBackend>) -> Option<()> {
    let stream = step!(run, backend, "create_stream", backend.create_stream());
    step!(run, backend, "create_event", backend.create_event());
    let at = step!(run, backend, "alloc", backend.alloc(64 * KIB));
    step!(run, backend, "alloc_arena", backend.alloc_arena(64 * KIB));
    step!(run, backend, "alloc_pinned", backend.alloc_pinned(64 * KIB));
    step!(run, backend, "op_scratch", backend.op_scratch("left", 4 * KIB, stream));
    step!(run, backend, "begin_capture", backend.begin_capture(stream));
    step!(run, backend, "captured fill", backend.memset_async(at, 1, 16, stream));
    step!(run, backend, "end_capture", backend.end_capture(stream));
    step!(run, backend, "begin_capture", backend.begin_capture(backend.stream()));
    Some(())
}

type Part = fn(&mut Run, &Arc<MetraleCudaBackend>) -> Option<()>;
const PARTS: [Part; 6] = [memory, arenas, streams, graphs, diagnostics, left_behind];

/// From making a backend to its drop.
fn scenario(run: &mut Run, driver: Arc<dyn DriverApi>, config: &BackendConfig) {
    let builder = MetraleCudaBackend::builder().driver(driver).modules(&[("kernels", KERNELS)]);
    let backend = match builder.config(config.clone()).build() {
        Ok(backend) => Arc::new(backend),
        Err(error) => return run.errors.push(("build", error)),
    };
    for part in PARTS {
        if part(run, &backend).is_none() && run.program == Program::Stops {
            break;
        }
    }
    drop(backend);
}

/// What one run showed.
struct Shown {
    panicked: bool,
    leaks: Leaks,
    errors: Vec<(&'static str, String)>,
    drift: Vec<String>,
    lines: Vec<String>,
    diagnostics: Vec<String>,
}

fn sim() -> Arc<SimDriver> {
    let driver = sim_with_kernels();
    functions::register(&driver);
    Arc::new(driver)
}

fn shown(
    driver: &Arc<SimDriver>,
    outer: Arc<dyn DriverApi>,
    config: &BackendConfig,
    program: Program,
    comparable: impl Fn() -> bool + 'static,
    ended: impl FnOnce(),
) -> Shown {
    let mut run = Run {
        driver: Arc::clone(driver),
        program,
        comparable: Box::new(comparable),
        errors: Vec::new(),
        drift: Vec::new(),
    };
    let scenario_driver = Arc::clone(&outer);
    let act = || catch_unwind(AssertUnwindSafe(|| scenario(&mut run, scenario_driver, config))).is_err();
    let (panicked, lines) = logged(act);
    ended();
    let later = MetraleCudaBackend::builder().driver(outer).config(BackendConfig::default()).build();
    // Refused where the context is lost, and every arena with it.
    if let Ok(later) = later {
        for (addr, _) in later.ledger_probe().allocations_of(AllocKind::Arena) {
            later.free_arena(address(addr)).unwrap();
        }
    }
    Shown {
        panicked,
        leaks: driver.leaks(),
        errors: run.errors.iter().map(|(what, error)| (*what, format!("{error:#}"))).collect(),
        drift: run.drift,
        lines,
        diagnostics: driver.diagnostics(),
    }
}

/// The calls of a run in which nothing fails.
fn clean(config: &BackendConfig) -> Vec<TraceCall> {
    let driver = sim();
    let trace = Arc::new(TraceDriver::new(driver.clone()));
    let mut calls = Vec::new();
    let shown = shown(&driver, trace.clone(), config, Program::Stops, || true, || calls = trace.calls());
    assert!(!shown.panicked && shown.errors.is_empty() && shown.drift.is_empty(), "{shown}");
    assert!(shown.leaks.is_empty() && shown.diagnostics.is_empty(), "{shown}");
    calls
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "    {}", self.leaks.to_string().replace('\n', "\n    "))?;
        self.drift.iter().try_for_each(|line| writeln!(f, "    drift {line}"))?;
        self.errors.iter().try_for_each(|(what, error)| writeln!(f, "    {what}: {error}"))?;
        self.lines.iter().try_for_each(|line| writeln!(f, "    log {line}"))?;
        self.diagnostics.iter().try_for_each(|line| writeln!(f, "    diagnostic {line}"))
    }
}

/// Whether a function frees, destroys or releases, so that what it was called for stays when it fails.
fn releases(function: DriverFn) -> bool {
    ["Free", "Destroy", "Unload", "Release"].iter().any(|part| function.name().contains(part))
}

/// What leaked and need not have.
fn leaked(function: DriverFn, fault: Fault, leaks: &Leaks) -> bool {
    let handles = [&leaks.modules, &leaks.streams, &leaks.events, &leaks.graphs, &leaks.graph_execs];
    let count = leaks.contexts.len() + leaks.memory.len() + handles.map(Vec::len).iter().sum::<usize>();
    match fault {
        // The context must go, and everything with it.
        Fault::Sticky(_) => {
            !leaks.contexts.is_empty()
                || leaks.memory.iter().any(|memory| !memory.context_ended)
                || handles.iter().any(|handles| handles.iter().any(|handle| !handle.context_ended))
        }
        // The driver said that all was gone, so nothing more was freed.
        Fault::Once(_) if fault.says_it_is_gone() && releases(function) => {
            function.name() != "cuDevicePrimaryCtxRelease_v2" && !leaks.contexts.is_empty()
        }
        Fault::Once(_) if releases(function) => count > 1,
        Fault::Once(_) => count > 0,
        // Nobody is left to free it.
        Fault::DriverGone => false,
    }
}

#[derive(Default)]
struct Row {
    calls: u64,
    runs: u64,
    panics: u64,
    leaks: u64,
    drift: u64,
    unnamed: u64,
    silent: u64,
}

fn table(name: &str, config: &BackendConfig) -> String {
    let calls = clean(config);
    let mut rows: BTreeMap<&'static str, Row> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (nth, call) in calls.iter().enumerate() {
        let function = call.function;
        let before = calls[..nth].iter().filter(|earlier| earlier.function == function).count() as u64;
        let row = rows.entry(function.name()).or_default();
        row.calls += 1;
        let more: &[Fault] = if is_about_streams(function) { &STREAM_CALLS } else { &[] };
        for &fault in ANY_CALL.iter().chain(more) {
            for program in [Program::Stops, Program::GoesOn] {
                let driver = sim();
                let faulty = Arc::new(FaultDriver::new(driver.clone()));
                match fault {
                    Fault::Once(status) => faulty.fail_nth(function, before + 1, status),
                    Fault::Sticky(status) => faulty.fail_sticky(function, before + 1, status),
                    Fault::DriverGone => faulty.end_at(function, before + 1, 4),
                }
                let asked = faulty.clone();
                let lies = fault.says_it_is_gone();
                let comparable = move || !lies || asked.injected().is_empty();
                let mut injected = Vec::new();
                let shown = shown(&driver, faulty.clone(), config, program, comparable, || {
                    injected = faulty.injected();
                    faulty.clear();
                });
                if injected.is_empty() {
                    // The last call, and one that a lost context does not hinder.
                    assert!(matches!(fault, Fault::Sticky(_)), "call {nth}, {function}: never reached");
                    continue;
                }

                // After a lasting failure the engine may pass over the first call that failed, and tell of another.
                let named = |text: &str| injected.iter().any(|call| text.contains(call.function.name()));
                let first = shown.errors.first();
                let is_unnamed = first.is_some_and(|(_, error)| !named(error));
                let is_silent = first.is_none() && !shown.lines.iter().any(|line| named(line));
                let leaks = leaked(function, fault, &shown.leaks);
                row.runs += 1;
                row.panics += u64::from(shown.panicked);
                row.leaks += u64::from(leaks);
                row.drift += u64::from(!shown.drift.is_empty());
                row.unnamed += u64::from(is_unnamed);
                row.silent += u64::from(is_silent);
                if shown.panicked || leaks || !shown.drift.is_empty() || is_unnamed {
                    let what = [
                        (shown.panicked, "panic"),
                        (leaks, "leak"),
                        (!shown.drift.is_empty(), "drift"),
                        (is_unnamed, "unnamed"),
                    ];
                    let what: Vec<_> = what.iter().filter(|(is, _)| *is).map(|(_, what)| *what).collect();
                    let what = what.join(", ");
                    wrong.push(format!(
                        "  call {nth}, {function}, {}, {program:?}: {what}\n{shown}",
                        fault.status()
                    ));
                }
            }
        }
    }
    let line = |name: &str, row: &Row| {
        let Row { calls, runs, panics, leaks, drift, unnamed, silent } = row;
        println!(
            "{name:<34} {calls:>6} {runs:>7} {panics:>7} {leaks:>6} {drift:>6} {unnamed:>8} {silent:>7}"
        );
    };
    println!("{name}\n{:<34}  calls    runs  panics  leaks  drift  unnamed  silent", "function");
    let mut sum = Row::default();
    for (name, row) in &rows {
        line(name, row);
        sum.calls += row.calls;
        sum.runs += row.runs;
        sum.panics += row.panics;
        sum.leaks += row.leaks;
        sum.drift += row.drift;
        sum.unnamed += row.unnamed;
        sum.silent += row.silent;
    }
    line("together", &sum);
    wrong.join("\n")
}

#[test]
fn each_call_fails_once() {
    let wrong = table("without red zones", &BackendConfig::default());
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn each_call_fails_once_with_red_zones() {
    let mut config = BackendConfig::default();
    config.redzone.band_bytes = 256;
    let wrong = table("with red zones", &config);
    assert!(wrong.is_empty(), "{wrong}");
}

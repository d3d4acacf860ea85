// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run's accounting, all parts together, and the process's own instance of it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::baseline::FreeMemoryBaseline;
use crate::counters::Counters;
use crate::kernel_audit::KernelAudit;
use crate::launch_trace::LaunchTrace;
use crate::spans::SpanTotals;

static PROCESS: RunMetrics = RunMetrics::new();

/// Everything that is kept about a run.
// In this order, so that what each launch looks at is in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RunMetrics {
    counters: Counters,
    trace: LaunchTrace,
    run: AtomicU64,
    audit: KernelAudit,
    spans: SpanTotals,
    baseline: FreeMemoryBaseline,
}

impl RunMetrics {
    /// An empty accounting with run number 0.
    pub const fn new() -> Self {
        Self {
            run: AtomicU64::new(0),
            audit: KernelAudit::new(),
            counters: Counters::new(),
            trace: LaunchTrace::new(),
            spans: SpanTotals::new(),
            baseline: FreeMemoryBaseline::new(),
        }
    }

    /// Starts a run: forgets lookups, modules and the seal, zeroes the counters and span times, empties the
    /// launch trace and the memory baseline. What is switched on stays on; kernels declared absent stay
    /// declared, since that speaks of the program and not of the run. Returns the new run's number, from 1.
    pub fn reset_for_new_run(&self) -> u64 {
        self.audit.reset();
        self.counters.reset();
        self.trace.clear();
        self.spans.reset();
        self.baseline.clear();
        self.run.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The number of the present run; 0 before the first.
    pub fn run(&self) -> u64 {
        self.run.load(Ordering::Relaxed)
    }

    /// Kernel lookups, the seal, modules.
    pub const fn audit(&self) -> &KernelAudit {
        &self.audit
    }

    /// Waits, blocking copies, graph captures and replays.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The launches of a step, when switched on.
    pub const fn trace(&self) -> &LaunchTrace {
        &self.trace
    }

    /// Device time by span name.
    pub const fn spans(&self) -> &SpanTotals {
        &self.spans
    }

    /// Free device memory at the start of the run.
    pub const fn baseline(&self) -> &FreeMemoryBaseline {
        &self.baseline
    }
}

/// The process's own accounting.
pub fn process() -> &'static RunMetrics {
    &PROCESS
}

/// Starts a run on the process's accounting, see [`RunMetrics::reset_for_new_run`]. A backend calls it
/// when it is made, before its first kernel lookup, so that the audit lists only that backend's lookups.
pub fn reset_for_new_run() -> u64 {
    PROCESS.reset_for_new_run()
}

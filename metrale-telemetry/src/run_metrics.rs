// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run's accounting, all parts together, and the process's own instance of it.
//!
//! A run begins when its first member joins and none is there, and goes on while one of them is left:
//!
//! ```text
//!   no members ── join_run: reset, new number ──▶ 1 member ── join_run ──▶ 2 members   (nothing is reset)
//!        ◀──────────── the last guard is dropped: what was counted stays to be read ─────────
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

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
    members: Mutex<usize>,
}

/// A part in a run, from [`RunMetrics::join_run`] until it is dropped.
#[derive(Debug)]
#[must_use = "a run whose members have all left is reset by the next to join"]
pub struct RunGuard<'metrics> {
    metrics: &'metrics RunMetrics,
    began: bool,
}

impl RunGuard<'_> {
    /// Whether the run began with this member, or was there already.
    #[must_use]
    pub const fn began(&self) -> bool {
        self.began
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        *self.metrics.members.lock() -= 1;
    }
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
            members: Mutex::new(0),
        }
    }

    /// Takes part in the present run, or begins one ([`reset_for_new_run`](Self::reset_for_new_run)) where nobody does:
    /// what one member counts is never zeroed because another joins. A seal that is in force stays in force; unseal
    /// before more is loaded.
    ///
    /// ```
    /// use metrale_telemetry::RunMetrics;
    ///
    /// let metrics = RunMetrics::new();
    /// let (first, second) = (metrics.join_run(), metrics.join_run());
    /// assert_eq!((first.began(), second.began(), metrics.run()), (true, false, 1));
    /// drop((first, second));
    /// assert!(metrics.join_run().began());
    /// ```
    pub fn join_run(&self) -> RunGuard<'_> {
        let mut members = self.members.lock();
        let began = *members == 0;
        if began {
            // Under the lock: who joins meanwhile must find the run begun.
            self.reset_for_new_run();
        }
        *members += 1;
        RunGuard { metrics: self, began }
    }

    /// Starts a run: forgets lookups, modules and the seal, zeroes the counters and span times, empties the
    /// launch trace and the memory baseline. What is switched on stays on; kernels declared absent stay
    /// declared, since that speaks of the program and not of the run. Returns the new run's number, from 1.
    ///
    /// All members of the run lose their counts: [`join_run`](Self::join_run) does it only where there is none.
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

/// Takes part in the process's run, see [`RunMetrics::join_run`]. A backend does when it is made, before its first kernel
/// lookup, and leaves when it is dropped: the only backend of a process begins a run, and its audit lists only that
/// backend's lookups. Of several at a time each has an audit of its own beside the process's.
pub fn join_run() -> RunGuard<'static> {
    PROCESS.join_run()
}

/// Starts a run on the process's accounting, see [`RunMetrics::reset_for_new_run`].
pub fn reset_for_new_run() -> u64 {
    PROCESS.reset_for_new_run()
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run did with the GPU, recorded without a driver: which kernels were looked up and
//! from where, how often the host waited, what one step launched and how the next step differs.
//!
//! ```text
//!                         run_metrics  (one per process, or your own)
//!        ┌───────────────┬─────┴─────┬──────────────┬───────────────┐
//!   kernel_audit      counters   launch_trace    baseline         spans
//!   lookups, seal,    syncs,     one step,       free bytes       time per name,
//!   modules, unused   copies     diff of two     at the start     harvested, no sync
//! ```
//!
//! The crate owns no driver, starts no thread, reads no clock and prints nothing by itself, with one
//! exception that its contract asks for: [`kernel_audit::record`] ends the process when a required
//! kernel is missing after start-up was sealed. Everything else is a value for the caller to log.
//!
//! Each part is an ordinary type with its own state, so a test or a second engine makes its own;
//! the module-level functions of [`run_metrics`] and [`kernel_audit`] work on the process's one.
//! What is switched off costs one relaxed atomic load.
//!
//! ```
//! use metrale_telemetry::{Counter, RunMetrics};
//!
//! let metrics = RunMetrics::new();
//! metrics.counters().count(Counter::StreamSyncs);
//! let before = metrics.counters().snapshot();
//! metrics.counters().add(Counter::BlockingD2hBytes, 64);
//! let step = metrics.counters().snapshot().since(&before);
//! assert_eq!(step[Counter::BlockingD2hBytes], 64);
//! assert_eq!(step[Counter::StreamSyncs], 0);
//! ```
#![forbid(unsafe_code)]

mod align;
mod audit_snapshot;
pub mod baseline;
pub mod counters;
pub mod kernel_audit;
pub mod launch_trace;
pub mod run_metrics;
pub mod spans;
mod trace_diff;

pub use audit_snapshot::{AuditSnapshot, KernelRow, LookupState, ModuleRow};
pub use baseline::FreeMemoryBaseline;
pub use counters::{Counter, CounterSnapshot, Counters};
pub use kernel_audit::{KernelAudit, KernelUsage, Lookup, ModuleLoad, Need, SealVerdict};
pub use launch_trace::{Launch, LaunchArg, LaunchKind, LaunchTrace, Trace};
pub use run_metrics::{RunGuard, RunMetrics};
pub use spans::{Harvest, PendingSpans, SpanFull, SpanRow, SpanTotals};
pub use trace_diff::{Difference, FieldChange, PointerRule, TraceDiff};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;

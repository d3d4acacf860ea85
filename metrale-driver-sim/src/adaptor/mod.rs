// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adaptors: drivers that wrap another driver, the software one or a real one, and do one thing each.

mod fault;
mod live;
mod trace;

pub use fault::{FaultDriver, InjectedFault};
pub use trace::{TraceArgument, TraceCall, TraceDriver, first_difference};

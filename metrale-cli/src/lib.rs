// SPDX-License-Identifier: MIT OR Apache-2.0
//! The metrale program: load, plan, replay, report, diff, doctor.
//!
//! The library half, so that tests and other tools reach the parts; `src/main.rs` is the program.

pub mod model;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs of driver calls: made by a seed, run on any driver, compared by their transcripts, made small when they
//! fail. Used by the tests and by the program that `cargo xtask conformance` runs.
#![allow(dead_code, reason = "each program uses a part of it")]

pub(crate) mod cases;
pub(crate) mod compare;
mod content;
mod machine;
pub(crate) mod op;
pub(crate) mod shrink;
pub(crate) mod transcript;

pub(crate) use machine::run;
pub(crate) use op::Program;

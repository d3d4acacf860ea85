// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that failed once, by name, and those that show what programs are.

/// Name and text. `cargo xtask conformance` saves one more as a file; a line here has it replayed for ever.
pub(crate) const CASES: &[(&str, &str)] = &[("every_operation", include_str!("cases/every_operation.txt"))];

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of this repository, run as `cargo xtask <command>`.

fn main() {}

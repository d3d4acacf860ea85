// SPDX-License-Identifier: MIT OR Apache-2.0
//! One table of what things cost on this machine, beside the other ways to do them.
//!
//! `cargo xtask bench` runs it; `cargo xtask bench --bundle DIR` takes it to a machine without Rust, because it needs nothing
//! else when it runs. Arguments choose groups: `ratios ledger rmm reads plan software gpu scan`; none is all.
//!
//! Sides alternate in short rounds in one process, and a figure is the median of its rounds. What misses its target is
//! marked, and no more: a time depends on the machine.
#![allow(clippy::print_stderr, reason = "a program that says what is wrong with its arguments")]

#[path = "../../benches/bands/mod.rs"]
mod bands;
#[path = "../../benches/calls/mod.rs"]
mod calls;
mod device;
mod ledger;
mod rmm;
mod scan;
#[path = "../../../metrale-ledger/benches/sides/mod.rs"]
mod sides;
mod table;

use std::process::ExitCode;

use calls::Calls;
use table::Table;

/// A group of rows: its argument, and what fills it.
type Group = (&'static str, fn(&mut Table));

const GROUPS: [Group; 7] = [
    ("ledger", ledger::pairs),
    ("rmm", rmm::pairs),
    ("reads", ledger::reads),
    ("plan", ledger::plan),
    ("software", |table| device::calls(table, "software", Calls::software())),
    ("gpu", |table| device::calls(table, "gpu", Calls::gpu())),
    ("scan", scan::rows),
];

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = chosen.iter().find(|name| !GROUPS.iter().any(|(group, _)| group == name)) {
        let names = GROUPS.map(|(name, _)| name).join(" ");
        eprintln!("error: there is no group `{unknown}`; there are: {names}");
        return ExitCode::from(2);
    }
    let mut table = Table::default();
    for (name, fill) in GROUPS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            fill(&mut table);
        }
    }
    table.close();
    ExitCode::SUCCESS
}

/// The middle one.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the ledger beside RMM's tracking adaptor.
//!
//! That one is C++: `metrale-ledger/benches/peers/rmm_pair.cpp` is built by hand, and [`VARIABLE`] names the program. It does
//! the same at the same addresses; the two alternate, each in a process of its own.

use std::process::Command;

use metrale_ledger::Ledger;

use crate::ledger::{Rounds, Threads};
use crate::median;
use crate::sides::{LIVE, Order, Pattern, filled};
use crate::table::{Figure, Table, Target};

/// The program's path.
const VARIABLE: &str = "METRALE_RMM_PAIR";
/// Runs of either side.
const RUNS: usize = 5;
/// Threads that both do it with.
const THREADS: [u64; 2] = [1, 8];

/// Record and forget, beside RMM's allocate and deallocate over an upstream that does nothing.
pub(crate) fn pairs(table: &mut Table) {
    table.group("ledger: record + forget, beside RMM's tracking adaptor over an upstream that does nothing");
    let Some(program) = std::env::var_os(VARIABLE) else {
        table.not_run(&format!(
            "{VARIABLE} names no program; metrale-ledger/benches/peers/rmm_pair.cpp says how to build it"
        ));
        return;
    };
    for (live, order) in LIVE.into_iter().flat_map(|n| [(n, Order::Ascending), (n, Order::Scattered)]) {
        // Where nothing is live, there is no order.
        if live == 0 && order == Order::Scattered {
            continue;
        }
        let rows: Vec<(u64, Pattern)> =
            THREADS.into_iter().flat_map(|n| Pattern::at(live, order).map(move |p| (n, p))).collect();
        let mut times = vec![(Vec::new(), Vec::new()); rows.len()];
        for _ in 0..RUNS {
            let said = match said(Command::new(&program).arg(live.to_string()).arg(order.word())) {
                Ok(said) => said,
                Err(why) => return table.not_run(&format!("{}: {why}", program.to_string_lossy())),
            };
            let ledger: Ledger = filled(live, order);
            for (&(threads, pattern), (ours, theirs)) in rows.iter().zip(&mut times) {
                let Some(ns) =
                    said.iter().find(|line| (line.0.as_str(), line.1) == (pattern.word(), threads))
                else {
                    return table
                        .not_run(&format!("the program says nothing of {} {threads}", pattern.word()));
                };
                let mut rounds = Rounds::default();
                for round in 0..Rounds::of(threads).0 {
                    rounds.run(&ledger, (live, order), threads, pattern, round);
                }
                ours.push(rounds.median());
                theirs.push(ns.2);
            }
        }
        for ((threads, pattern), (ours, theirs)) in rows.into_iter().zip(times) {
            let what = format!("{live} live, {}, {}, {}", order.word(), Threads(threads), pattern.words());
            let side = ("RMM tracking", Figure::Nanos(median(theirs)));
            table.ratio(&what, Figure::Nanos(median(ours)), side, target(live, threads));
        }
    }
}

/// At most this part of the other side's time, wherever the pairs are. In one place among scattered ones that is hard to have:
/// the way down a tree is then in the innermost cache, however many are live.
fn target(live: u64, threads: u64) -> Target {
    Target::Ratio(match (threads, live) {
        (8, _) => 0.1,
        (_, 0) => 1.0 / 1.5,
        _ => 1.0 / 3.0,
    })
}

/// What the program prints: pattern, threads, nanoseconds a pair.
fn said(program: &mut Command) -> Result<Vec<(String, u64, f64)>, String> {
    let output = program.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().map(|said| line(said).ok_or_else(|| format!("not a row: {said}"))).collect()
}

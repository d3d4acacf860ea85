// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the ledger alone: pairs, reads, how long a reader holds recorders up, the planner.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use metrale_ledger::Ledger;
use parking_lot::Mutex;

use crate::median;
use crate::sides::{
    LIVE, Least, Order, Pair, Pattern, Records, THREADS, filled, one_pair, planned, run, scoped,
};
use crate::table::{Figure, Table, Target};

/// Rounds of a read.
const ROUNDS: usize = 9;
/// Live allocations at which reads are measured.
const READ: [u64; 3] = [1_000, 25_000, 1_000_000];
/// Recorders held up while others read.
const RECORDERS: u64 = 2;

/// So many threads, in words.
pub(crate) struct Threads(pub(crate) u64);

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} thread{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Times of rounds of pairs on one side, nanoseconds a pair.
#[derive(Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    /// How many of them, and how many pairs in each: one thread is mostly through before the operating system puts it aside;
    /// several must meet for a while.
    pub(crate) fn of(threads: u64) -> (u64, u64) {
        if threads == 1 { (201, 5_000) } else { (3, 100_000 / threads) }
    }

    pub(crate) fn run(
        &mut self,
        side: &impl Pair,
        filled: (u64, Order),
        threads: u64,
        pattern: Pattern,
        round: u64,
    ) {
        let (_, pairs) = Self::of(threads);
        let took = run(side, filled, threads, pairs, pattern, round);
        self.0.push(took.as_nanos() as f64 / pairs as f64);
    }

    pub(crate) fn median(self) -> f64 {
        median(self.0)
    }
}

/// Record and forget, beside two plain maps.
pub(crate) fn pairs(table: &mut Table) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    table.group(&format!("ledger: record + forget, as each thread sees it, {cores} cores"));
    let order = Order::Scattered;
    for live in LIVE {
        let (ledger, least, records): (Ledger, Least, Mutex<Records>) =
            (filled(live, order), filled(live, order), filled(live, order));
        for (threads, pattern) in
            THREADS.into_iter().flat_map(|n| Pattern::at(live, order).map(move |p| (n, p)))
        {
            let mut times: [Rounds; 3] = Default::default();
            for round in 0..Rounds::of(threads).0 {
                times[0].run(&ledger, (live, order), threads, pattern, round);
                times[1].run(&least, (live, order), threads, pattern, round);
                times[2].run(&records, (live, order), threads, pattern, round);
            }
            let [ledger, least, records] = times.map(|of| Figure::Nanos(of.median()));
            let what = format!("{live} live, {}, {}", Threads(threads), pattern.words());
            table.ratio(&what, ledger, ("map of records", records), Target::None);
            table.ratio(&what, ledger, ("map of size and line", least), Target::None);
        }
    }
}

/// Nanoseconds a call.
fn per_call(calls: u32, mut call: impl FnMut()) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        for _ in 0..calls {
            call();
        }
        begin.elapsed().as_nanos() as f64 / f64::from(calls)
    });
    median(rounds.collect())
}

/// Totals, snapshot and report; and how long these hold a recorder up.
pub(crate) fn reads(table: &mut Table) {
    table.group("reads of the ledger, allocations spread over 1000 scopes");
    let nanos = Figure::Nanos;
    for live in READ {
        let ledger = scoped(live);
        let mut total = |name: &str, read: &dyn Fn() -> usize| {
            let ns = per_call(1_000_000, || {
                black_box(read());
            });
            table.figure(&format!("{name} at {live} live"), nanos(ns), Target::Below(nanos(20.0)));
        };
        total("live_bytes", &|| ledger.live_bytes());
        total("slack_bytes", &|| ledger.slack_bytes());
        total("resident_bytes", &|| ledger.resident_bytes());
        let beside = while_recording(&ledger, || {
            per_call(100_000, || {
                black_box(ledger.slack_bytes());
            })
        });
        table.figure(&format!("slack_bytes at {live} live, beside a recorder"), nanos(beside), Target::None);
        let snapshot = per_call(20, || {
            black_box(ledger.snapshot());
        });
        table.figure(&format!("snapshot at {live} live"), nanos(snapshot), Target::None);
        let report = per_call(20, || {
            black_box(ledger.report(20, 1));
        });
        table.figure(&format!("report at {live} live"), nanos(report), Target::Below(nanos(100e6)));
        let (waits, idle) = longest_waits(&ledger);
        let side = ("longest with no reader", nanos(idle));
        let what = format!("longest wait of a recorder at {live} live");
        table.ratio(&what, nanos(waits), side, Target::Below(nanos(1e6)));
    }
}

/// Reads while another thread records and frees without a pause: such a read may wait for its lock.
fn while_recording(ledger: &Ledger, read: impl FnOnce() -> f64) -> f64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                one_pair(ledger, 0);
            }
        });
        let took = read();
        stop.store(true, Ordering::Relaxed);
        took
    })
}

/// The longest that one pair takes while another thread takes reports, and while none does: the medians over many rounds,
/// since now and then the operating system puts a recorder aside for longer than any reader does.
fn longest_waits(ledger: &Ledger) -> (f64, f64) {
    let (longest, pairs) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for n in 0..RECORDERS {
            let (longest, pairs, stop) = (&longest, &pairs, &stop);
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    one_pair(ledger, n);
                    longest.fetch_max(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let while_busy = |read: &dyn Fn()| {
            let rounds = (0..51).map(|_| {
                longest.store(0, Ordering::Relaxed);
                let first = pairs.load(Ordering::Relaxed);
                while pairs.load(Ordering::Relaxed) < first + 1000 {
                    read();
                }
                longest.load(Ordering::Relaxed) as f64
            });
            median(rounds.collect())
        };
        let waits = while_busy(&|| {
            black_box(ledger.report(20, 1));
        });
        let idle = while_busy(&std::hint::spin_loop);
        stop.store(true, Ordering::Relaxed);
        (waits, idle)
    })
}

/// A plan of a million operations.
pub(crate) fn plan(table: &mut Table) {
    const OPERATIONS: u64 = 1_000_000;
    table.group("planner");
    for live in [1_000, 100_000] {
        let mut bytes_each = 0.0;
        let rounds = (0..3).map(|_| {
            let begin = Instant::now();
            let plan = planned(OPERATIONS, live);
            let took = begin.elapsed();
            bytes_each = plan.memory_bytes() as f64 / plan.live_count() as f64;
            took.as_nanos() as f64
        });
        let took = median(rounds.collect());
        table.figure(
            &format!("{OPERATIONS} operations, {live} live"),
            Figure::Nanos(took),
            Target::Below(Figure::Nanos(1e9)),
        );
        // With few live ones the fixed part outweighs theirs.
        let target = if live < 10_000 { Target::None } else { Target::Below(Figure::Bytes(200.0)) };
        table.figure(&format!("memory a live allocation, {live} live"), Figure::Bytes(bytes_each), target);
    }
}

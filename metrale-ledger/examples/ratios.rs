// SPDX-License-Identifier: MIT OR Apache-2.0
//! One table: the ledger beside a plain map behind a lock, and what its reads cost, on this machine.
//!
//! `cargo run --release -p metrale-ledger --example ratios`. The program needs nothing else when it runs, so that it can be
//! taken to another machine. Every figure is the median of several rounds, the sides in turns.
//!
//! Three sides: the ledger; `least`, a map that knows size and source line and nothing else; `records`, a map of whole
//! records with an index, the live sum and its peak, which is what a program keeps that needs those answers. Two patterns:
//! `place`, each thread frees and allocates in one place, as a driver that gives out the same hole again makes it; `jump`,
//! each pair elsewhere among two million places.

use std::collections::HashMap;
use std::hint::black_box;
use std::panic::Location;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use metrale_ledger::plan::Plan;
use metrale_ledger::{AllocKind, Ledger};
use parking_lot::Mutex;

const BASE: u64 = 0x7f0e_0000_0000;
const BYTES: usize = 1000;
const LIVE: [u64; 3] = [0, 25_000, 1_000_000];
const THREADS: [u64; 4] = [1, 2, 4, 8];
const ROUNDS: usize = 9;
/// Addresses of 1 KiB side by side; a power of two, so that an odd factor makes them jump about without meeting.
const PLACES: u64 = 1 << 21;

/// The nth address of a jumping sequence.
fn address(n: u64) -> u64 {
    BASE + (n.wrapping_mul(0x9e37_79b9) % PLACES) * 1024
}

/// Size and source line per address.
type Least = Mutex<HashMap<u64, (usize, &'static Location<'static>)>>;

/// What the ledger answers a free with.
struct Record {
    bytes: usize,
    site: &'static Location<'static>,
    kind: AllocKind,
    scope: Option<Arc<str>>,
    tag: Option<Arc<str>>,
    index: u64,
    free_refused: bool,
}

/// Whole records, and the sums beside them.
#[derive(Default)]
struct Records {
    live: HashMap<u64, Record>,
    next_index: u64,
    live_bytes: usize,
    peak_bytes: usize,
}

/// A side of the comparison: one record and forget.
trait Pair: Sync {
    fn record(&self, addr: u64);
    fn forget(&self, addr: u64);
}

impl Pair for Ledger {
    fn record(&self, addr: u64) {
        black_box(Ledger::record(self, addr, BYTES, Location::caller()));
    }

    fn forget(&self, addr: u64) {
        black_box(Ledger::forget(self, addr));
    }
}

impl Pair for Least {
    fn record(&self, addr: u64) {
        black_box(self.lock().insert(addr, (BYTES, Location::caller())));
    }

    fn forget(&self, addr: u64) {
        black_box(self.lock().remove(&addr));
    }
}

impl Pair for Mutex<Records> {
    fn record(&self, addr: u64) {
        let mut records = self.lock();
        let record = Record {
            bytes: BYTES,
            site: Location::caller(),
            kind: AllocKind::Device,
            scope: None,
            tag: None,
            index: records.next_index,
            free_refused: false,
        };
        records.next_index += 1;
        records.live_bytes += record.bytes;
        records.peak_bytes = records.peak_bytes.max(records.live_bytes);
        black_box(records.live.insert(addr, record));
    }

    fn forget(&self, addr: u64) {
        let mut records = self.lock();
        if let Some(record) = records.live.remove(&addr) {
            records.live_bytes -= record.bytes;
            black_box((record.bytes, record.site, record.kind, record.scope, record.tag));
            black_box((record.index, record.free_refused));
        }
    }
}

/// Nanoseconds a pair takes the thread that makes it, `threads` of them at once.
fn pair_ns(side: &dyn Pair, live: u64, threads: u64, pairs: u64, jumps: bool) -> f64 {
    let start = Barrier::new(threads as usize);
    let times: Vec<f64> = std::thread::scope(|s| {
        let run = |t: u64| {
            let start = &start;
            move || {
                start.wait();
                let begin = Instant::now();
                for i in 0..pairs {
                    // What is live takes the first `live` places; threads take turns in the rest.
                    let turn = if jumps { i * threads + t } else { t };
                    let addr = address(live + turn % (PLACES - live));
                    side.record(black_box(addr));
                    side.forget(black_box(addr));
                }
                begin.elapsed().as_nanos() as f64 / pairs as f64
            }
        };
        let handles: Vec<_> = (0..threads).map(|t| s.spawn(run(t))).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn filled<T: Pair + Default>(live: u64) -> T {
    let side = T::default();
    for n in 0..live {
        side.record(address(n));
    }
    side
}

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

#[expect(clippy::print_stdout, reason = "a table is what it is for")]
fn main() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("record + forget, ns a pair as each thread sees it ({cores} cores)");
    println!(
        "{:>9} {:>7} {:>6} {:>9} {:>9} {:>7} {:>9} {:>7}",
        "live", "threads", "", "ledger", "least", "ratio", "records", "ratio"
    );
    for live in LIVE {
        let (ledger, least, records): (Ledger, Least, Mutex<Records>) =
            (filled(live), filled(live), filled(live));
        let sides: [&dyn Pair; 3] = [&ledger, &least, &records];
        for (threads, jumps) in THREADS.into_iter().flat_map(|n| [(n, false), (n, true)]) {
            let pairs = 200_000 / threads;
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                for (times, side) in times.iter_mut().zip(sides) {
                    times.push(pair_ns(side, live, threads, pairs, jumps));
                }
            }
            let [ledger, least, records] = times.map(median);
            println!(
                "{live:>9} {threads:>7} {:>6} {ledger:>9.1} {least:>9.1} {:>7.2} {records:>9.1} {:>7.2}",
                if jumps { "jump" } else { "place" },
                ledger / least,
                ledger / records
            );
        }
    }
    println!("\nreads, ns");
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>11} {:>11}",
        "live", "live", "slack", "resident", "snapshot", "report"
    );
    for live in [1_000, 25_000, 1_000_000] {
        let ledger: Ledger = filled(live);
        println!(
            "{live:>9} {:>9.2} {:>9.2} {:>9.2} {:>11.0} {:>11.0}",
            per_call(1_000_000, || {
                black_box(ledger.live_bytes());
            }),
            per_call(1_000_000, || {
                black_box(ledger.slack_bytes());
            }),
            per_call(1_000_000, || {
                black_box(ledger.resident_bytes());
            }),
            per_call(50, || {
                black_box(ledger.snapshot());
            }),
            per_call(50, || {
                black_box(ledger.report(20, 1));
            }),
        );
    }

    let begin = Instant::now();
    let plan = planned(1_000_000, 100_000);
    let took = begin.elapsed();
    println!(
        "\nplan of 1000000 operations, 100000 live: {} ms, {} bytes of memory a live allocation",
        took.as_millis(),
        plan.memory_bytes() / plan.live_count()
    );
}

/// As many operations, with at most so many live: then each new allocation is for an older one's place.
fn planned(operations: u64, live: u64) -> Plan {
    let mut plan = Plan::h200();
    for id in 0..live + (operations - live) / 2 {
        if id >= live {
            let _ = plan.free(id - live);
        }
        let _ = plan.alloc(id, 1 + id.wrapping_mul(0x9e37_79b9) % (3 << 20), None);
    }
    plan
}

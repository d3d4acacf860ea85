// SPDX-License-Identifier: MIT OR Apache-2.0
//! One record and forget at growing numbers of live allocations and threads, beside a plain map behind a lock in the same
//! run; reads; the plan of a million operations.
//!
//! `examples/ratios.rs` prints the same as one table and needs nothing else when it runs.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::collections::HashMap;
use std::hint::black_box;
use std::panic::Location;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use metrale_ledger::Ledger;
use metrale_ledger::placement::Placement;
use metrale_ledger::plan::Plan;
use parking_lot::Mutex;

const LIVE: [u64; 3] = [0, 25_000, 1_000_000];
const THREADS: [u64; 4] = [1, 2, 4, 8];
const BASE: u64 = 0x7f0e_0000_0000;
const BYTES: usize = 1000;
/// Addresses of 1 KiB side by side; a power of two, so that an odd factor makes them jump about without meeting.
const PLACES: u64 = 1 << 21;

fn address(n: u64) -> u64 {
    BASE + (n.wrapping_mul(0x9e37_79b9) % PLACES) * 1024
}

/// What a plain tracker keeps: the least that answers what was live.
type Plain = Mutex<HashMap<u64, (usize, &'static Location<'static>)>>;

/// `pairs` of each thread, all at once, in places of their own; as long as the slowest took.
fn run(threads: u64, pairs: u64, live: u64, pair: impl Fn(u64) + Sync) -> Duration {
    let begin = Instant::now();
    std::thread::scope(|s| {
        for t in 0..threads {
            let pair = &pair;
            s.spawn(move || {
                for i in 0..pairs {
                    pair(address(live + (i * threads + t) % (PLACES - live)));
                }
            });
        }
    });
    begin.elapsed()
}

fn pair(c: &mut Criterion) {
    let site = Location::caller();
    let mut group = c.benchmark_group("record+forget");
    group.sample_size(20);
    for live in LIVE {
        let ledger = Ledger::new();
        let plain = Plain::default();
        for n in 0..live {
            ledger.record(address(n), BYTES, site);
            plain.lock().insert(address(n), (BYTES, site));
        }
        assert_eq!(ledger.live_count() as u64, live);
        for threads in THREADS {
            let name =
                |side: &str| BenchmarkId::new(format!("{side}, {live} live"), format!("{threads} threads"));
            group.bench_function(name("ledger"), |b| {
                b.iter_custom(|pairs| {
                    run(threads, pairs, live, |addr| {
                        ledger.record(black_box(addr), BYTES, site);
                        black_box(ledger.forget(black_box(addr)));
                    })
                });
            });
            group.bench_function(name("plain map"), |b| {
                b.iter_custom(|pairs| {
                    run(threads, pairs, live, |addr| {
                        plain.lock().insert(black_box(addr), (BYTES, site));
                        black_box(plain.lock().remove(&black_box(addr)));
                    })
                });
            });
        }
    }
    group.finish();
}

fn reads(c: &mut Criterion) {
    for live in [1_000, 25_000, 1_000_000] {
        let mut group = c.benchmark_group(format!("reads at {live} live"));
        let ledger = Ledger::new();
        for n in 0..live {
            ledger.record(address(n), BYTES, Location::caller());
        }
        group.bench_function("live_bytes", |b| b.iter(|| ledger.live_bytes()));
        group.bench_function("slack_bytes", |b| b.iter(|| ledger.slack_bytes()));
        group.bench_function("snapshot", |b| b.iter(|| ledger.snapshot()));
        group.bench_function("report", |b| b.iter(|| ledger.report(20, 1)));
        group.finish();
    }
}

/// Sizes from 1 byte to 3 MiB.
fn sizes(n: u64) -> impl Iterator<Item = u64> {
    (1..=n).map(|n| 1 + n.wrapping_mul(0x9e37_79b9) % (3 << 20))
}

fn placement(c: &mut Criterion) {
    let sizes: Vec<u64> = sizes(10_000).collect();
    c.bench_function("placement of 10000, half freed", |b| {
        b.iter_batched(
            Placement::h200,
            |mut device| {
                let ids: Vec<_> = sizes.iter().filter_map(|&bytes| device.alloc(bytes).ok()).collect();
                for placed in ids.iter().step_by(2) {
                    let _ = black_box(device.free(placed.id));
                }
                device
            },
            BatchSize::LargeInput,
        );
    });
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    group.sample_size(10);
    group.bench_function("1000000 operations, 100000 live", |b| b.iter(|| planned(1_000_000, 100_000)));
    group.finish();
}

/// As many operations, with at most so many live: then each new allocation is for an older one's place.
fn planned(operations: u64, live: u64) -> Plan {
    let mut plan = Plan::h200();
    for (id, bytes) in (0..).zip(sizes(live + (operations - live) / 2)) {
        if id >= live {
            let _ = plan.free(id - live);
        }
        let _ = plan.alloc(id, bytes, None);
    }
    plan
}

criterion_group!(benches, pair, reads, placement, plan);
criterion_main!(benches);

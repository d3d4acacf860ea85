// SPDX-License-Identifier: MIT OR Apache-2.0
//! One record and forget at growing numbers of live allocations and threads, beside plain maps behind a lock in the same
//! run; reads; the plan of a million operations.
//!
//! `cargo xtask bench` prints the same as one table of ratios, and pairs in other places too.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

mod sides;

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use metrale_ledger::Ledger;
use metrale_ledger::placement::Placement;
use parking_lot::Mutex;

use sides::{LIVE, Least, Order, Pair, Pattern, Records, THREADS, filled, planned, run, scoped, sizes};

fn pair(c: &mut Criterion) {
    let mut group = c.benchmark_group("record+forget");
    group.sample_size(20);
    for live in LIVE {
        side::<Ledger>(&mut group, "ledger", live);
        side::<Least>(&mut group, "map of size and line", live);
        side::<Mutex<Records>>(&mut group, "map of records", live);
    }
    group.finish();
}

fn side<T: Pair + Default>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, live: u64) {
    let order = Order::Scattered;
    let side: T = filled(live, order);
    for threads in THREADS {
        let id = BenchmarkId::new(format!("{name}, {live} live"), format!("{threads} threads"));
        group.bench_function(id, |b| {
            b.iter_custom(|pairs| run(&side, (live, order), threads, pairs, Pattern::Elsewhere, 0));
        });
    }
}

fn reads(c: &mut Criterion) {
    for live in [1_000, 25_000, 1_000_000] {
        let mut group = c.benchmark_group(format!("reads at {live} live"));
        let ledger = scoped(live);
        group.bench_function("live_bytes", |b| b.iter(|| ledger.live_bytes()));
        group.bench_function("slack_bytes", |b| b.iter(|| ledger.slack_bytes()));
        group.bench_function("snapshot", |b| b.iter(|| ledger.snapshot()));
        group.bench_function("report", |b| b.iter(|| ledger.report(20, 1)));
        group.finish();
    }
}

fn placement(c: &mut Criterion) {
    let sizes: Vec<u64> = sizes().take(10_000).collect();
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

criterion_group!(benches, pair, reads, placement, plan);
criterion_main!(benches);

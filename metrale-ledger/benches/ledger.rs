// SPDX-License-Identifier: MIT OR Apache-2.0
//! One record and forget at growing numbers of live allocations, beside a plain map behind a lock in the same run.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::collections::HashMap;
use std::hint::black_box;
use std::panic::Location;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use metrale_ledger::Ledger;
use metrale_ledger::placement::Placement;
use parking_lot::Mutex;

const LIVE: [u64; 3] = [0, 25_000, 1_000_000];
const BASE: u64 = 0x7f0e_0000_0000;
const BYTES: usize = 1000;

/// The nth address of 1 KiB allocations side by side, in an order that jumps about.
fn address(n: u64) -> u64 {
    BASE + (n.wrapping_mul(0x9e37_79b9) % (1 << 21)) * 1024
}

/// What a plain tracker keeps: the least that answers what was live.
struct Plain {
    bytes: usize,
    site: &'static Location<'static>,
}

fn pair(c: &mut Criterion) {
    let site = Location::caller();
    let mut group = c.benchmark_group("record+forget");
    for live in LIVE {
        let ledger = Ledger::new();
        let plain = Mutex::new(HashMap::new());
        for n in 0..live {
            ledger.record(address(n), BYTES, site);
            plain.lock().insert(address(n), Plain { bytes: BYTES, site });
        }
        assert_eq!(ledger.live_count() as u64, live);
        let mut n = live;
        group.bench_function(BenchmarkId::new("ledger", live), |b| {
            b.iter(|| {
                n = if n + 1 < 1 << 21 { n + 1 } else { live };
                ledger.record(black_box(address(n)), BYTES, site);
                ledger.forget(black_box(address(n)))
            });
        });
        group.bench_function(BenchmarkId::new("plain map", live), |b| {
            b.iter(|| {
                n = if n + 1 < 1 << 21 { n + 1 } else { live };
                plain.lock().insert(black_box(address(n)), Plain { bytes: BYTES, site });
                let gone = plain.lock().remove(&black_box(address(n)));
                gone.map(|plain| (plain.bytes, plain.site))
            });
        });
    }
    group.finish();
}

fn reads(c: &mut Criterion) {
    let mut group = c.benchmark_group("reads at 1000000 live");
    group.sample_size(10);
    let ledger = Ledger::new();
    for n in 0..1_000_000 {
        ledger.record(address(n), BYTES, Location::caller());
    }
    group.bench_function("live_bytes", |b| b.iter(|| ledger.live_bytes()));
    group.bench_function("slack_bytes", |b| b.iter(|| ledger.slack_bytes()));
    group.bench_function("report", |b| b.iter(|| ledger.report(20, 1)));
    group.finish();
}

fn placement(c: &mut Criterion) {
    // Sizes from 512 bytes to 3 MiB, half of them freed again in another order.
    let sizes: Vec<u64> = (1..10_000u64).map(|n| 1 + n.wrapping_mul(0x9e37_79b9) % (3 << 20)).collect();
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

criterion_group!(benches, pair, reads, placement);
criterion_main!(benches);

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation, launch, replay of graphs and load through the backend, beside the driver's bare calls: on the driver in
//! software, and on the GPU where there is one.
//!
//! `cargo xtask bench` prints these, fills, events and the scan of red zones as one table of ratios, the two sides taking turns.
#![allow(missing_docs, reason = "criterion's macros make public items")]

mod calls;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use calls::{Calls, GRAPH_NODES};

/// Calls between two waits: fewer than a stream queues.
const BATCH: u64 = 256;
const LOAD_BYTES: usize = 64 << 20;

/// So many calls, without the waits in between.
fn timed(calls: &mut Calls, times: u64, mut call: impl FnMut(&mut Calls)) -> Duration {
    let mut took = Duration::ZERO;
    for first in (0..times).step_by(BATCH as usize) {
        let begin = Instant::now();
        for _ in first..times.min(first + BATCH) {
            call(calls);
        }
        took += begin.elapsed();
        calls.settle();
    }
    took
}

fn on(c: &mut Criterion, driver: &str, calls: &mut Calls) {
    let mut group = c.benchmark_group(driver);
    let mut bench = |name: &str, call: &mut dyn FnMut(&mut Calls)| {
        group.bench_function(name, |b| b.iter_custom(|times| timed(calls, times, &mut *call)));
    };
    bench("alloc + free", &mut |calls| calls.alloc_free());
    bench("alloc + free, bare", &mut |calls| calls.bare_alloc_free());
    for place in 0..2 {
        let on = ["own stream", "a made stream"][place];
        bench(&format!("launch on {on}"), &mut |calls| calls.launch(calls.streams()[place].1));
        bench(&format!("launch on {on}, bare"), &mut |calls| calls.bare_launch(calls.streams()[place].1));
    }
    for (place, nodes) in GRAPH_NODES.into_iter().enumerate() {
        bench(&format!("replay of {nodes} nodes"), &mut |calls| calls.replay(place));
        bench(&format!("replay of {nodes} nodes, bare"), &mut |calls| calls.bare_replay(place));
    }
    group.sample_size(10).throughput(Throughput::Bytes(LOAD_BYTES as u64));
    let Ok(mut load) = calls.load(LOAD_BYTES) else { return };
    group.bench_function("load", |b| b.iter(|| load.upload()));
    group.bench_function("load, bare from pinned memory", |b| b.iter(|| load.bare_pinned()));
    group.bench_function("load, bare from pageable memory", |b| b.iter(|| load.bare_pageable()));
    drop(load);
    group.finish();
}

fn software(c: &mut Criterion) {
    on(c, "software", &mut Calls::software().expect("the software driver"));
}

fn gpu(c: &mut Criterion) {
    // Without a GPU there is nothing to measure.
    if let Ok(mut calls) = Calls::gpu() {
        on(c, "gpu", &mut calls);
    }
}

criterion_group!(benches, software, gpu);
criterion_main!(benches);

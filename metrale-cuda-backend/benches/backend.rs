// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation, launch, replay of graphs and load through the backend, beside the driver's bare calls, and the scan of red zones:
//! on the driver in software, and on the GPU where there is one.
//!
//! `cargo xtask bench` prints these, fills and events as one table of ratios, the two sides alternating.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

mod bands;
mod calls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use bands::{BANDS, Bands};
use calls::{Calls, GRAPH_NODES};
use metrale_cuda_backend::DriverApi;
use metrale_cuda_backend::redzone::ScanBy;
use metrale_driver_sim::{Profile, SimDriver};

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

fn scan(c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("scan of {BANDS} red zones"));
    group.sample_size(10);
    let mut bench = |name: &str, driver: &Arc<dyn DriverApi>, scan_by: ScanBy| {
        let bands = Bands::new(driver, scan_by).expect("there is memory for the bands");
        group.bench_function(name, |b| b.iter(|| bands.scan_clean().expect("nothing was written")));
        bands.finds_a_planted_byte().expect("what was written");
    };
    let software: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::h200()));
    bench("software, by copies", &software, ScanBy::Copies);
    if let Ok(gpu) = metrale_driver_sys::system() {
        bench("gpu, by kernel", &gpu, ScanBy::Kernel);
    }
    group.finish();
}

criterion_group!(benches, software, gpu, scan);
criterion_main!(benches);

// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock taken and let go by one thread: biased to it, never biased, and the standard library's.
#![allow(missing_docs, reason = "criterion's macros make a function")]

use std::hint::black_box;
use std::sync::Mutex;
use std::thread;

use criterion::{Criterion, criterion_group, criterion_main};
use metrale_lock::BiasedMutex;

fn turns(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one thread");
    let biased = BiasedMutex::new(0_u64);
    group.bench_function("BiasedMutex", |bencher| bencher.iter(|| *black_box(&biased).lock() += 1));
    let standard = Mutex::new(0_u64);
    group.bench_function("std Mutex", |bencher| {
        bencher.iter(|| *black_box(&standard).lock().expect("nothing panics with it") += 1);
    });
    group.finish();

    // What the first one pays that comes to another's.
    criterion.bench_function("taking a bias back", |bencher| {
        bencher.iter_batched(
            || {
                let mutex = BiasedMutex::new(0_u64);
                thread::scope(|scope| {
                    scope.spawn(|| (0..100_000).for_each(|_| *mutex.lock() += 1));
                });
                mutex
            },
            |mutex| *mutex.lock() += 1,
            criterion::BatchSize::PerIteration,
        );
    });
}

criterion_group!(benches, turns);
criterion_main!(benches);

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the threads of an engine do at once, for as long as is asked: every buffer is checked against what its owner wrote, every
//! error against what its call may answer, and at the end the ledger against the driver.
//!
//! `cargo run --release -p metrale-cuda-backend --example stress -- [--gpu] [--seconds N] [--threads N] [--seed N]`

mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use metrale_cuda_backend::{BackendConfig, DriverApi, MetraleCudaBackend};
use metrale_driver_sim::{Profile, SimDriver};
use worker::{Counts, Worker};

/// A run in which no thread gets anything done for so long stands still.
const STANDSTILL: Duration = Duration::from_secs(60);

struct Options {
    gpu: bool,
    seconds: u64,
    threads: usize,
    seed: u64,
}

fn options() -> Option<Options> {
    let cores = thread::available_parallelism().map_or(4, usize::from);
    let mut options = Options { gpu: false, seconds: 60, threads: cores.max(4), seed: 1 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next()?.parse().ok();
        match word.as_str() {
            "--gpu" => options.gpu = true,
            "--seconds" => options.seconds = number()?,
            "--threads" => options.threads = usize::try_from(number()?).ok()?.max(1),
            "--seed" => options.seed = number()?,
            _ => return None,
        }
    }
    Some(options)
}

fn backend(driver: &Arc<dyn DriverApi>) -> Arc<MetraleCudaBackend> {
    let builder = MetraleCudaBackend::builder().driver(Arc::clone(driver)).config(BackendConfig::default());
    Arc::new(builder.build().expect("a device"))
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]
fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: stress [--gpu] [--seconds N] [--threads N] [--seed N]");
        return ExitCode::from(2);
    };
    let sim = Arc::new(SimDriver::new(Profile::h200()));
    let driver: Arc<dyn DriverApi> = match options.gpu {
        true => metrale_driver_sys::system().expect("a driver"),
        false => Arc::<SimDriver>::clone(&sim),
    };
    // Two backends of one device, which share its context.
    let backends = [backend(&driver), backend(&driver)];
    let stop = AtomicBool::new(false);
    let counts: Vec<Counts> = (0..options.threads).map(|_| Counts::default()).collect();
    let end = Instant::now() + Duration::from_secs(options.seconds);
    thread::scope(|scope| {
        for (index, counts) in counts.iter().enumerate() {
            let (stop, backends) = (&stop, &backends);
            scope.spawn(move || {
                // Threads come and go: each does a share of the work.
                let mut share = 0;
                while !stop.load(Relaxed) {
                    let gpu = Arc::clone(&backends[(index + share) % backends.len()]);
                    let seed = options.seed ^ ((index as u64) << 32) ^ ((share as u64) << 8);
                    thread::scope(|inner| {
                        inner.spawn(|| Worker::new(gpu, seed, counts).work(500, stop));
                    });
                    share += 1;
                }
            });
        }
        let (mut last, mut moved) = (0, Instant::now());
        while Instant::now() < end {
            thread::sleep(Duration::from_secs(1));
            let now = counts.iter().map(Counts::total).sum();
            if now > last {
                (last, moved) = (now, Instant::now());
            }
            if moved.elapsed() > STANDSTILL {
                let each: Vec<_> = counts.iter().map(Counts::total).collect();
                eprintln!("nothing was done for {STANDSTILL:?}; operations of each thread: {each:?}");
                std::process::exit(1);
            }
        }
        stop.store(true, Relaxed);
    });
    for (name, sum) in Counts::sums(&counts) {
        println!("{name:<12} {sum:>12}");
    }
    for backend in &backends {
        backend.synchronize().expect("a sound device");
        backend.release_op_cache().expect("a sound device");
        backend.ledger_probe().assert_nothing_live();
        assert!(backend.context_fault().is_none());
    }
    drop(backends);
    assert!(options.gpu || sim.leaks().is_empty(), "{:?}", sim.leaks());
    println!("nothing is left");
    ExitCode::SUCCESS
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the backend adds to the driver: allocation, launch, fill and event through it, against the driver's bare calls.
//!
//! On the driver in software, whose own cost stands in for a real one's (4.1 µs for a launch and 2 µs for an allocation
//! with its free on an H200): `cargo run --release --example overhead`.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrale_cuda_backend::{BackendConfig, KernelLaunch, MetraleCudaBackend};
use metrale_driver_sim::{Profile, SimDriver};

static PTX: &[u8] =
    b".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry idle(.param .u64 at) { ret; }\n";

/// Calls timed together.
const BATCH: u32 = 2000;
/// Batches of which the fastest counts: what disturbs a batch only ever makes it slower.
const ROUNDS: u32 = 60;

/// Nanoseconds a call of the two, measured in turns; `settle` runs untimed behind each batch.
fn compare(mut bare: impl FnMut(), mut through: impl FnMut(), settle: impl Fn()) -> [f64; 2] {
    let time = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..BATCH).for_each(|_| call());
        let took = start.elapsed();
        settle();
        took
    };
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        best[0] = best[0].min(time(&mut bare));
        best[1] = best[1].min(time(&mut through));
    }
    best.map(|best| best.as_secs_f64() * 1e9 / f64::from(BATCH))
}

fn print(what: &str, [bare, through]: [f64; 2]) {
    println!("{what:<28} {bare:>8.1} ns bare {through:>8.1} ns through the backend  x{:.2}", through / bare);
}

fn main() -> anyhow::Result<()> {
    let driver = Arc::new(SimDriver::new(Profile::h200()));
    driver.register_kernel("idle", |_| Ok(()));
    let backend = MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("demo", PTX)])
        .config(BackendConfig::default())
        .build()?;
    let driver = backend.driver();
    let drain = || backend.synchronize().expect("nothing fails here");
    // Keeps its 2 MiB chunk mapped, as the weights of a model do.
    let held = backend.alloc(4096)?;

    let figures = compare(
        || {
            let mut at = 0;
            // SAFETY: the result pointer is a local.
            assert_eq!(unsafe { driver.cuMemAlloc_v2(&mut at, 4096) }, 0);
            // SAFETY: the driver gave the address above.
            assert_eq!(unsafe { driver.cuMemFree_v2(black_box(at)) }, 0);
        },
        || backend.free(black_box(backend.alloc(4096).expect("memory"))).expect("live"),
        drain,
    );
    print("alloc + free of 4 KiB", figures);

    let idle = backend.kernel("demo", "idle")?;
    let made = backend.create_stream()?;
    for (name, stream) in [("own stream", backend.stream()), ("a made stream", made)] {
        let mut at = held.0;
        let mut params = [(&raw mut at).cast()];
        let params = params.as_mut_ptr();
        let mut launch = KernelLaunch::new(idle).ptr(held);
        let figures = compare(
            || {
                let none = core::ptr::null_mut();
                // SAFETY: one pointer for the one parameter, to a local that outlives the call.
                let status =
                    unsafe { driver.cuLaunchKernel(idle.0, 1, 1, 1, 1, 1, 1, 0, stream, params, none) };
                assert_eq!(status, 0);
            },
            || {
                // SAFETY: the argument is the kernel's one parameter, and the kernel touches nothing.
                unsafe { launch.on_stream(&backend, stream) }.expect("a launch");
            },
            drain,
        );
        print(&format!("launch on {name}"), figures);

        let figures = compare(
            || {
                // SAFETY: the address is the backend's and holds as many bytes.
                assert_eq!(unsafe { driver.cuMemsetD8Async(held.0, 1, 4096, stream) }, 0);
            },
            || backend.memset_async(held, 1, 4096, stream).expect("a fill"),
            drain,
        );
        print(&format!("fill on {name}"), figures);
    }

    let event = backend.create_event()?;
    let figures = compare(
        || {
            // SAFETY: the event and the stream are the backend's and live.
            assert_eq!(unsafe { driver.cuEventRecord(event, made) }, 0);
        },
        || backend.record_event(event, made).expect("an event"),
        drain,
    );
    print("record an event", figures);

    backend.destroy_event(event)?;
    backend.destroy_stream(made)?;
    backend.free(held)
}

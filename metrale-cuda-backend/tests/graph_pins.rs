// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a capture uses is pinned before the driver is asked, on whichever backend's ledger, and unpinned where it refuses.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use common::hooked::HookedDriver;
use common::{address, backend, backend_with_kernels, sim, sim_with_kernels};
use metrale_cuda_backend::Result;
use metrale_cuda_backend::{
    BadArgument, Copy2d, DevicePtr, DriverApi, DriverFn, KernelLaunch, MetraleCudaBackend, PinnedByGraph,
    StreamHandle,
};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, on_both_drivers};

type Call = fn(&MetraleCudaBackend, at: DevicePtr, other: DevicePtr, stream: StreamHandle) -> Result<()>;

/// Every call that a capture records, and the driver's function it ends in; each uses `at`.
const RECORDED: &[(DriverFn, Call)] = &[
    (DriverFn::cuMemsetD8Async, |b, at, _, s| b.memset_async(at, 1, 64, s)),
    (DriverFn::cuMemsetD32Async, |b, at, _, s| b.memset_d32_async(at, 1, 16, s)),
    (DriverFn::cuMemcpyHtoDAsync_v2, |b, at, _, s| {
        // SAFETY: the source is static.
        unsafe { b.copy_h2d_async_retained(SOURCE.as_ptr(), SOURCE.len(), at, s) }
    }),
    (DriverFn::cuMemcpyDtoHAsync_v2, |b, at, _, s| {
        let target = Box::leak(Box::new([0_u8; 64]));
        // SAFETY: the target is never freed, and nobody reads it.
        unsafe { b.copy_d2h_async_retained(at, target.as_mut_ptr(), 64, s) }
    }),
    (DriverFn::cuMemcpyDtoDAsync_v2, |b, at, other, s| b.copy_d2d_async(other, at, 64, s)),
    (DriverFn::cuMemcpyDtoDAsync_v2, |b, at, other, s| b.copy_d2d_async(at, other, 64, s)),
    (DriverFn::cuMemcpyDtoDAsync_v2, |b, at, other, s| b.copy_peer_async(other, b, at, 64, s)),
    (DriverFn::cuMemcpy2DAsync_v2, |b, at, other, s| {
        // SAFETY: no side is host memory.
        unsafe { b.copy_2d_async(&Copy2d::device(other, 16, at, 16, 16, 4), s) }
    }),
    (DriverFn::cuLaunchKernel, |b, at, _, s| {
        let mut launch = KernelLaunch::new(b.kernel("kernels", "fill")?).ptr(at).u32(1).u32(1);
        // SAFETY: the arguments are the kernel's parameters; it writes one word.
        unsafe { launch.on_stream(b, s) }
    }),
];

static SOURCE: [u8; 64] = [1; 64];

/// A free of `at` by a thread of its own.
fn freed_elsewhere(backend: &Arc<MetraleCudaBackend>, at: DevicePtr) -> Result<()> {
    let by = Arc::clone(backend);
    thread::spawn(move || {
        by.bind_to_thread().unwrap();
        by.free(at)
    })
    .join()
    .unwrap()
}

#[test]
fn no_free_comes_between_the_record_of_a_use_and_its_note() {
    for &(function, call) in RECORDED {
        for before in [true, false] {
            let driver = Arc::new(HookedDriver::new(Arc::new(sim_with_kernels())));
            let backend = Arc::new(backend_with_kernels(driver.clone()));
            let (at, other) = (backend.alloc(64).unwrap(), backend.alloc(64).unwrap());
            let stream = backend.create_stream().unwrap();
            let freed: Arc<Mutex<Option<Result<()>>>> = Arc::default();
            let (answer, by) = (Arc::clone(&freed), Arc::clone(&backend));
            let hook = move |called| {
                if called == function {
                    answer.lock().unwrap().get_or_insert_with(|| freed_elsewhere(&by, at));
                }
            };
            let capture = backend.capture(stream).unwrap();
            if before {
                driver.before_each(hook)
            } else {
                driver.after_each(hook)
            }
            call(&backend, at, other, stream).unwrap();
            driver.before_each(|_| {});
            driver.after_each(|_| {});
            let refused = freed.lock().unwrap().take().expect("the driver was asked").unwrap_err();
            let refused = refused.downcast::<PinnedByGraph>().expect("typed");
            assert_eq!((refused.allocation.addr, refused.holders[0].graph), (at.addr(), None), "{function}");
            let graph = capture.end().unwrap();
            assert!(backend.graphs()[0].pinned.iter().any(|pinned| pinned.addr == at.addr()), "{function}");
            let refused = backend.free(at).unwrap_err().downcast::<PinnedByGraph>().expect("typed");
            assert_eq!(refused.holders.len(), 1, "the graph alone");
            backend.destroy_graph(graph).unwrap();
            backend.free(at).unwrap();
            backend.free(other).unwrap();
        }
    }
}

#[test]
fn a_use_that_the_driver_refuses_pins_nothing() {
    for &(function, call) in RECORDED {
        let faulty = Arc::new(FaultDriver::new(Arc::new(sim_with_kernels())));
        let backend = backend_with_kernels(faulty.clone());
        let (at, other) = (backend.alloc(64).unwrap(), backend.alloc(64).unwrap());
        let stream = backend.create_stream().unwrap();
        let capture = backend.capture(stream).unwrap();
        faulty.fail_nth(function, 1, 1);
        call(&backend, at, other, stream).unwrap_err();
        let graph = capture.end().unwrap();
        assert!(backend.graphs()[0].pinned.is_empty(), "{function}");
        backend.free(at).unwrap();
        backend.free(other).unwrap();
        backend.destroy_graph(graph).unwrap();
    }
}

/// One that was seen only when the driver had recorded the use: what is there still is pinned, and else no graph is made.
#[test]
fn a_capture_that_begins_while_the_driver_is_asked_misses_no_use() {
    for frees in [false, true] {
        let driver = Arc::new(HookedDriver::new(sim()));
        let backend = Arc::new(backend(driver.clone()));
        let (at, _kept) = (backend.alloc(64).unwrap(), backend.alloc(64).unwrap());
        let stream = backend.create_stream().unwrap();
        let elsewhere = |act: fn(&MetraleCudaBackend, DevicePtr, StreamHandle) -> Result<()>| {
            let by = Arc::clone(&backend);
            move |called| {
                if called == DriverFn::cuMemsetD8Async {
                    let by = Arc::clone(&by);
                    let acted = thread::spawn(move || {
                        by.bind_to_thread()?;
                        act(&by, at, stream)
                    });
                    acted.join().unwrap().unwrap();
                }
            }
        };
        driver.before_each(elsewhere(|backend, _, stream| backend.begin_capture(stream)));
        if frees {
            driver.after_each(elsewhere(|backend, at, _| backend.free(at)));
        }
        backend.memset_async(at, 1, 64, stream).unwrap();
        driver.before_each(|_| {});
        driver.after_each(|_| {});
        let ended = backend.end_capture(stream);
        if frees {
            let error = ended.unwrap_err().downcast::<BadArgument>().expect("typed");
            assert!(error.to_string().contains("freed") && error.to_string().contains("no graph"), "{error}");
            assert!(!backend.stream_is_capturing(stream) && backend.graphs().is_empty());
        } else {
            assert!(backend.free(at).unwrap_err().is::<PinnedByGraph>());
            backend.destroy_graph(ended.unwrap()).unwrap();
            backend.free(at).unwrap();
        }
    }
}

/// By threads: in no round is memory both used by a graph and freed.
#[test]
fn a_free_that_races_a_captured_use_is_refused_or_refuses_it() {
    const ROUNDS: usize = 2000;
    let backend = backend(sim());
    // Keeps the chunk, so that the driver takes the address of what was freed.
    let _kept = backend.alloc(64).unwrap();
    let stream = backend.create_stream().unwrap();
    let (meet, at, freed) = (Barrier::new(2), AtomicU64::new(0), AtomicBool::new(false));
    // Judged at the end: a panic between would leave the other thread waiting.
    let (mut both, mut unpinned) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            backend.bind_to_thread().unwrap();
            for round in 0..ROUNDS {
                meet.wait();
                (0..round % 400).for_each(|_| std::hint::spin_loop());
                freed.store(backend.free(address(at.load(SeqCst))).is_ok(), SeqCst);
                meet.wait();
            }
        });
        for round in 0..ROUNDS {
            let used = backend.alloc(64).unwrap();
            at.store(used.addr(), SeqCst);
            // Begun by both sides of the race: a free on another thread need not have seen it.
            let early = round % 2 == 0;
            if early {
                backend.begin_capture(stream).unwrap();
            }
            meet.wait();
            if !early {
                backend.begin_capture(stream).unwrap();
            }
            let recorded = backend.memset_async(used, 1, 64, stream).is_ok();
            meet.wait();
            let graph = backend.end_capture(stream).unwrap();
            let freed = freed.load(SeqCst);
            both += usize::from(recorded == freed);
            unpinned += usize::from(backend.graphs()[0].pinned.len() != usize::from(recorded));
            backend.destroy_graph(graph).unwrap();
            if !freed {
                backend.free(used).unwrap();
            }
        }
    });
    assert_eq!((both, unpinned), (0, 0), "of {ROUNDS} rounds");
}

on_both_drivers! {
    memory_of_another_backend_is_pinned_by_whatever_uses_it(driver; sim: sim_with_kernels()) {
        let owner = backend(Arc::clone(&driver));
        let user = backend_with_kernels(driver);
        for (index, &(_, call)) in RECORDED.iter().enumerate() {
            let (at, other) = (owner.alloc(64).unwrap(), user.alloc(64).unwrap());
            let stream = user.create_stream().unwrap();
            let capture = user.capture(stream).unwrap();
            call(&user, at, other, stream).unwrap();
            let graph = capture.finish("foreign").unwrap();
            let refused = owner.free(at).unwrap_err().downcast::<PinnedByGraph>().expect("typed");
            assert!(refused.to_string().contains("graph \"foreign\""), "{index}: {refused}");
            user.destroy_graph(graph).unwrap();
            owner.free(at).unwrap();
            user.free(other).unwrap();
            user.destroy_stream(stream).unwrap();
        }
        // A part of an arena too.
        let arena = owner.packed_arena(4096).unwrap();
        let part = arena.alloc("state", 512).unwrap();
        let stream = user.create_stream().unwrap();
        let capture = user.capture(stream).unwrap();
        user.memset_async(part, 1, 64, stream).unwrap();
        let graph = capture.end().unwrap();
        assert!(arena.free_part(part).unwrap_err().is::<PinnedByGraph>());
        user.destroy_graph(graph).unwrap();
        arena.free_part(part).unwrap();
        arena.free().unwrap();
    }

    a_copy_or_fill_of_freed_memory_is_not_captured(driver; sim: sim_with_kernels()) {
        let backend = backend_with_kernels(driver);
        let (at, other) = (backend.alloc(64).unwrap(), backend.alloc(64).unwrap());
        let _kept = backend.alloc(64).unwrap();
        backend.free(at).unwrap();
        let stream = backend.create_stream().unwrap();
        let capture = backend.capture(stream).unwrap();
        for &(function, call) in RECORDED {
            if function == DriverFn::cuLaunchKernel {
                // An argument need not be followed.
                continue;
            }
            let error = call(&backend, at, other, stream).unwrap_err().downcast::<BadArgument>().expect("typed");
            assert!(error.to_string().contains("freed") && error.to_string().contains("replay"), "{error}");
        }
        // The capture goes on.
        backend.memset_async(other, 1, 64, stream).unwrap();
        let graph = capture.end().unwrap();
        assert_eq!(backend.graphs()[0].nodes, 1);
        backend.destroy_graph(graph).unwrap();
    }
}

/// Rank 1 begins a capture, and launches its half of a collective, while rank 0 waits in a copy for both halves.
#[test]
fn a_capture_begins_while_a_copy_waits_on_another_stream() {
    for devices in [1, 2] {
        let sim = SimDriver::builder().device(Profile::h200()).device(Profile::h200()).build();
        let driver = Arc::new(HookedDriver::new(Arc::new(sim)));
        let on = |ordinal| {
            let driver: Arc<dyn DriverApi> = driver.clone();
            Arc::new(MetraleCudaBackend::builder().driver(driver).ordinal(ordinal).build().unwrap())
        };
        let (second, first) = (on(devices - 1), on(0));
        let (stream, at) = (first.create_stream().unwrap(), first.alloc(64).unwrap());
        let (rank, once) = (thread::current().id(), AtomicBool::new(false));
        // The hook must not be the last to hold a backend, whose drop calls the driver.
        let _kept = Arc::clone(&second);
        driver.before_each(move |called| {
            if called == DriverFn::cuStreamSynchronize
                && thread::current().id() == rank
                && !once.swap(true, SeqCst)
            {
                let (second, (done, wait)) = (Arc::clone(&second), std::sync::mpsc::channel());
                thread::spawn(move || {
                    second.bind_to_thread().unwrap();
                    let stream = second.create_stream().unwrap();
                    second.capture(stream).unwrap().abort().unwrap();
                    done.send(()).unwrap();
                });
                wait.recv_timeout(std::time::Duration::from_secs(20)).expect("both wait for each other");
            }
        });
        first.copy_d2h_on_stream(at, &mut [0; 64], stream).unwrap();
        driver.before_each(|_| {});
        first.free(at).unwrap();
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads: one backend for all of them, with its context made current where another is, or none.

mod common;

use std::sync::Arc;
use std::thread;

use common::{KERNELS, KIB, MIB, backend, sim_with_kernels};
use metrale_cuda_backend::{
    BackendConfig, DriverApi, GpuBackend, KernelLaunch, LEGACY_STREAM, MetraleCudaBackend, Result,
};
use metrale_driver_sim::{Profile, SimDriver, on_both_drivers};

fn is_shareable<T: Send + Sync>() {}

#[test]
fn the_backend_and_its_handles_are_send_and_sync() {
    is_shareable::<metrale_cuda_backend::MetraleCudaBackend>();
    is_shareable::<Arc<dyn GpuBackend>>();
    is_shareable::<metrale_cuda_backend::PinnedPtr>();
    is_shareable::<metrale_cuda_backend::PinnedBuffer<u64>>();
    is_shareable::<metrale_cuda_backend::Uploader>();
    is_shareable::<metrale_cuda_backend::KernelLaunch>();
}

fn with_kernels(driver: Arc<dyn DriverApi>) -> MetraleCudaBackend {
    MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("kernels", KERNELS)])
        .config(BackendConfig::default())
        .build()
        .unwrap()
}

on_both_drivers! {
    many_threads_launch_on_streams_of_their_own(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver);
        let words = 4096_u32;
        let shared = backend.alloc(4 * 4 * words as usize).unwrap();
        thread::scope(|scope| {
            for seed in 0..4_u32 {
                let (backend, face) = (&backend, &backend as &dyn GpuBackend);
                scope.spawn(move || {
                    backend.bind_to_thread().unwrap();
                    let stream = backend.create_stream().unwrap();
                    // Looked up by all at once.
                    let fill = backend.kernel("kernels", "fill").unwrap();
                    let own = backend.alloc(4 * words as usize).unwrap();
                    let part = shared.offset(u64::from(4 * words * seed));
                    for round in 0..50_u32 {
                        let value = round << 8 | seed;
                        for out in [own, part] {
                            let mut launch = KernelLaunch::new(fill)
                                .grid([words / 256, 1, 1])
                                .block([256, 1, 1])
                                .ptr(out)
                                .u32(value)
                                .u32(words);
                            // SAFETY: the arguments are the kernel's parameters; the words are this thread's own.
                            unsafe { launch.on_stream(face, stream) }.unwrap();
                        }
                        let mut back = vec![0; 4 * words as usize];
                        backend.copy_d2h_on_stream(own, &mut back, stream).unwrap();
                        assert!(
                            back.chunks_exact(4).all(|word| word == value.to_ne_bytes()),
                            "thread {seed}, round {round}"
                        );
                    }
                    let scratch = backend.op_scratch("sum", 1000, stream).unwrap();
                    backend.memset_async(scratch.ptr, 0, 1000, stream).unwrap();
                    backend.free(own).unwrap();
                    backend.destroy_stream(stream).unwrap();
                });
            }
        });
        backend.synchronize().unwrap();
        let mut back = vec![0; 4 * 4 * words as usize];
        backend.copy_d2h(shared, &mut back).unwrap();
        for (seed, part) in back.chunks_exact(4 * words as usize).enumerate() {
            assert!(part.chunks_exact(4).all(|word| word == (49 << 8 | seed as u32).to_ne_bytes()), "{seed}");
        }
        backend.free(shared).unwrap();
        // Each stream's scratch memory went with the stream.
        assert_eq!(backend.op_scratch_bytes().0, 0);
        assert_eq!(backend.release_op_cache().unwrap(), 0);
        backend.ledger_probe().assert_nothing_live();
    }

    a_thread_that_never_bound_launches_as_the_others(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver);
        let out = backend.alloc(64).unwrap();
        backend.memset(out, 0, 64).unwrap();
        let fill = backend.kernel("kernels", "fill").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut launch = KernelLaunch::new(fill).ptr(out).u32(1).u32(1);
                // SAFETY: the arguments are the kernel's parameters; it writes one word.
                unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
                let mut word = [0; 4];
                backend.copy_d2h(out, &mut word).unwrap();
                assert_eq!(u32::from_ne_bytes(word), 1);
            });
            scope.spawn(|| {
                backend.op_scratch("sum", 1, backend.stream()).unwrap();
                backend.harvest_spans().unwrap();
                backend.copy_peer(out.offset(8), &backend, out.offset(16), 8).unwrap();
            });
        });
        backend.free(out).unwrap();
    }

    a_context_that_another_library_takes_away_is_made_current_again(driver; sim: sim_with_kernels()) {
        let foreign = Arc::clone(&driver);
        let backend = with_kernels(driver);
        let (launched, replayed) = (backend.alloc(4).unwrap(), backend.alloc(4).unwrap());
        backend.memset(launched, 0, 4).unwrap();
        backend.memset(replayed, 0, 4).unwrap();
        let stream = backend.create_stream().unwrap();
        let graph = cfg!(feature = "graph").then(|| {
            let capture = backend.capture(stream).unwrap();
            backend.memset_async(replayed, 1, 4, stream).unwrap();
            capture.end().unwrap()
        });
        let take_away = || {
            // SAFETY: no memory is passed; 0 leaves the thread without a context.
            assert_eq!(unsafe { foreign.cuCtxSetCurrent(0) }, 0);
        };
        let word = |ptr| {
            let mut word = [0; 4];
            take_away();
            backend.copy_d2h(ptr, &mut word).unwrap();
            u32::from_ne_bytes(word)
        };
        let fill = backend.kernel("kernels", "fill").unwrap();
        // On the driver's own stream the context that is current decides where the work goes.
        for (on, value) in [(stream, 7), (LEGACY_STREAM, 8)] {
            let mut launch = KernelLaunch::new(fill).ptr(launched).u32(value).u32(1);
            take_away();
            // SAFETY: the arguments are the kernel's parameters; it writes one word.
            unsafe { launch.on_stream(&backend, on) }.unwrap();
            backend.synchronize_stream(on).unwrap();
            assert_eq!(word(launched), value);
            if let Some(graph) = graph {
                backend.memset(replayed, 0, 4).unwrap();
                take_away();
                backend.launch_graph(graph, on).unwrap();
                backend.synchronize_stream(on).unwrap();
                assert_eq!(word(replayed), 0x0101_0101);
            }
        }
        // Streams and events say themselves where they are, the driver's own streams do not.
        let event = backend.create_event().unwrap();
        let mut back = [0; 4];
        for on in [stream, backend.stream(), LEGACY_STREAM] {
            let each: [&dyn Fn() -> Result<()>; 8] = [
                &|| backend.memset_async(launched, 9, 4, on),
                &|| backend.memset_d32_async(launched, 0x0a0a_0a0a, 1, on),
                &|| backend.copy_d2d_async(launched, replayed, 4, on),
                &|| backend.record_event(event, on),
                &|| backend.wait_event(on, event),
                &|| backend.synchronize_event(event),
                &|| backend.synchronize_stream(on),
                &|| backend.query_event(event).and(backend.query_stream(on)).map(drop),
            ];
            for (index, call) in each.iter().enumerate() {
                take_away();
                call().unwrap_or_else(|error| panic!("call {index} on {on}: {error:#}"));
            }
            take_away();
            backend.copy_d2h_on_stream(replayed, &mut back, on).unwrap();
            assert_eq!(back, [10; 4], "{on}");
            take_away();
            backend.copy_h2d_async(&[1, 2, 3, 4], replayed, on).unwrap();
            backend.synchronize_stream(on).unwrap();
            assert_eq!(word(replayed), u32::from_ne_bytes([1, 2, 3, 4]), "{on}");
        }
        backend.destroy_event(event).unwrap();
        if let Some(graph) = graph {
            backend.destroy_graph(graph).unwrap();
        }
        backend.destroy_stream(stream).unwrap();
        backend.free(launched).unwrap();
        backend.free(replayed).unwrap();
    }

    a_thread_that_never_bound_may_call_everything(driver) {
        let backend = backend(driver);
        let held = backend.alloc(4096).unwrap();
        let pinned = backend.alloc_pinned(4096).unwrap();
        let each: [&(dyn Fn() + Sync); 10] = [
            &|| backend.free(backend.alloc(4096).unwrap()).unwrap(),
            &|| backend.free_pinned(backend.alloc_pinned(4096).unwrap()).unwrap(),
            &|| backend.copy_h2d(&[1], held).unwrap(),
            &|| backend.copy_d2h(held, &mut [1]).unwrap(),
            &|| backend.memset_async(held, 0, 1, backend.stream()).unwrap(),
            &|| backend.destroy_stream(backend.create_stream().unwrap()).unwrap(),
            &|| backend.destroy_event(backend.create_event().unwrap()).unwrap(),
            &|| backend.synchronize().unwrap(),
            &|| assert!(backend.memory_info().unwrap().free_bytes > 0),
            &|| backend.bind_to_thread().unwrap(),
        ];
        for call in each {
            thread::scope(|scope| {
                scope.spawn(call);
            });
        }
        thread::scope(|scope| {
            scope.spawn(|| backend.free_pinned(pinned).unwrap());
            scope.spawn(|| backend.free(held).unwrap());
        });
        backend.ledger_probe().assert_nothing_live();
        assert_eq!(backend.ledger_probe().pinned_count(), 0);
    }

    many_threads_allocate_copy_and_free_concurrently(driver) {
        let backend = backend(driver);
        let fresh = backend.memory_info().unwrap();
        thread::scope(|scope| {
            for seed in 0..4_usize {
                let backend = &backend;
                scope.spawn(move || {
                    backend.bind_to_thread().unwrap();
                    let stream = backend.create_stream().unwrap();
                    let mut held = Vec::new();
                    for round in 0..100_usize {
                        let bytes = 1 + (round * 7919 + seed * 104_729) % (100 * KIB);
                        let at = backend.alloc(bytes).unwrap();
                        let data = vec![(round + seed) as u8; bytes];
                        backend.copy_h2d_async(&data, at, stream).unwrap();
                        held.push((at, data));
                        if round % 3 == 2 {
                            let (at, data) = held.swap_remove(round % held.len());
                            let mut back = vec![0; data.len()];
                            backend.copy_d2h_on_stream(at, &mut back, stream).unwrap();
                            assert_eq!(back, data, "thread {seed}, round {round}");
                            backend.free(at).unwrap();
                        }
                    }
                    for (at, _) in held {
                        backend.free(at).unwrap();
                    }
                    backend.destroy_stream(stream).unwrap();
                });
            }
        });
        backend.ledger_probe().assert_nothing_live();
        assert_eq!(backend.resident_bytes(), 0);
        // Streams may keep their half MiB; allocations keep nothing.
        let kept = fresh.free_bytes - backend.memory_info().unwrap().free_bytes;
        assert!(kept <= 32 * MIB as u64, "{kept}");
    }
}

#[test]
fn owners_may_be_dropped_on_a_thread_that_never_bound() {
    let driver = common::sim();
    let backend = Arc::new(backend(driver.clone()));
    let buffer = metrale_cuda_backend::PinnedBuffer::<u8>::new(&backend, 4096).unwrap();
    let uploader = metrale_cuda_backend::Uploader::new(&backend, 4096).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || drop((buffer, uploader)));
    });
    backend.ledger_probe().assert_nothing_live();
    assert!(driver.leaks().memory.is_empty() && driver.leaks().events.is_empty(), "{:?}", driver.leaks());
}

#[test]
fn a_call_works_on_its_own_device_and_leaves_the_thread_the_context_it_had() {
    let driver = Arc::new(SimDriver::builder().device(Profile::h200()).device(Profile::rtx()).build());
    let first = backend(driver.clone());
    let second = MetraleCudaBackend::builder().driver(driver).ordinal(1).build().unwrap();
    let theirs = second.host().context();
    let current = || second.host().current_context().unwrap();
    assert_eq!(current(), theirs);
    let before = second.memory_info().unwrap();
    let mut held = Vec::new();
    // In a page of its own, beside others, and above a page.
    for bytes in [4096, 1, 4096, 3 << 20] {
        held.push(first.alloc(bytes).unwrap());
        assert_eq!(current(), theirs);
    }
    first.memset(held[0], 3, 4096).unwrap();
    let mut back = [0; 4096];
    first.copy_d2h(held[0], &mut back).unwrap();
    assert_eq!((back, current()), ([3; 4096], theirs));
    assert_eq!(second.memory_info().unwrap(), before, "nothing of the other device's was used");
    assert_eq!(first.memory_info().unwrap().total_bytes, first.total_memory());
    // What goes where its stream or event says needs no look at which context is current.
    let (stream, event) = (first.create_stream().unwrap(), first.create_event().unwrap());
    second.bind_to_thread().unwrap();
    first.memset_async(held[0], 5, 4096, stream).unwrap();
    first.record_event(event, stream).unwrap();
    first.wait_event(first.stream(), event).unwrap();
    first.copy_d2d_async(held[0], held[2], 4096, first.stream()).unwrap();
    first.synchronize_stream(first.stream()).unwrap();
    assert!(first.query_event(event).unwrap() && first.query_stream(stream).unwrap());
    first.copy_d2h(held[2], &mut back).unwrap();
    assert_eq!((back, current()), ([5; 4096], theirs));
    first.destroy_event(event).unwrap();
    first.destroy_stream(stream).unwrap();
    let there = second.alloc(4096).unwrap();
    for ptr in held {
        first.free(ptr).unwrap();
    }
    second.free(there).unwrap();
    assert_eq!(current(), theirs);
    first.ledger_probe().assert_nothing_live();
    second.ledger_probe().assert_nothing_live();
}

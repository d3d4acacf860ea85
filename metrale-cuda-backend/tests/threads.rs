// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads: one backend for all of them, once each is bound.

mod common;

use std::sync::Arc;
use std::thread;

use common::{KIB, MIB, backend};
use metrale_cuda_backend::{GpuBackend, NotBound, Remedy, remedy};
use metrale_driver_sim::{Profile, SimDriver, on_both_drivers};

fn is_shareable<T: Send + Sync>() {}

#[test]
fn the_backend_and_its_handles_are_send_and_sync() {
    is_shareable::<metrale_cuda_backend::MetraleCudaBackend>();
    is_shareable::<Arc<dyn GpuBackend>>();
    is_shareable::<metrale_cuda_backend::PinnedPtr>();
    is_shareable::<metrale_cuda_backend::PinnedBuffer<'_>>();
    is_shareable::<metrale_cuda_backend::Uploader<'_>>();
    is_shareable::<metrale_cuda_backend::KernelLaunch>();
}

on_both_drivers! {
    a_thread_that_forgot_is_told_and_nothing_is_done(driver) {
        let backend = backend(driver);
        let held = backend.alloc(4096).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let stream = backend.stream();
                for error in [
                    backend.alloc(4096).unwrap_err(),
                    backend.alloc_pinned(4096).unwrap_err(),
                    backend.free(held).unwrap_err(),
                    backend.copy_h2d(&[1], held).unwrap_err(),
                    backend.copy_d2h(held, &mut [1]).unwrap_err(),
                    backend.memset_async(held, 0, 1, stream).unwrap_err(),
                    backend.create_stream().unwrap_err(),
                    backend.create_event().unwrap_err(),
                    backend.synchronize().unwrap_err(),
                    backend.memory_info().unwrap_err(),
                ] {
                    assert_eq!(remedy(&error), Some(Remedy::FixCall));
                    let error = error.downcast::<NotBound>().expect("typed");
                    assert_eq!((error.ordinal, error.current), (0, 0));
                    assert!(error.to_string().contains("bind_to_thread"), "{error}");
                }
                assert_eq!(backend.ledger_probe().live_count(), 1, "the free changed nothing");

                backend.bind_to_thread().unwrap();
                backend.free(held).unwrap();
            });
        });
        backend.ledger_probe().assert_nothing_live();
    }

    many_threads_allocate_copy_and_free_at_once(driver) {
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
    let backend = backend(driver.clone());
    let buffer = metrale_cuda_backend::PinnedBuffer::new(&backend, 4096).unwrap();
    let uploader = metrale_cuda_backend::Uploader::new(&backend, 4096).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || drop((buffer, uploader)));
    });
    backend.ledger_probe().assert_nothing_live();
    assert!(driver.leaks().memory.is_empty() && driver.leaks().events.is_empty(), "{:?}", driver.leaks());
}

#[test]
fn another_devices_context_is_not_worked_on_by_mistake() {
    let driver = Arc::new(SimDriver::builder().device(Profile::h200()).device(Profile::rtx()).build());
    let first = backend(driver.clone());
    let second =
        metrale_cuda_backend::MetraleCudaBackend::builder().driver(driver).ordinal(1).build().unwrap();
    let error = first.alloc(4096).unwrap_err().downcast::<NotBound>().expect("typed");
    assert_eq!((error.ordinal, error.current), (0, second.host().context()));
    first.bind_to_thread().unwrap();
    let ptr = first.alloc(4096).unwrap();
    assert!(second.alloc(4096).unwrap_err().is::<NotBound>());
    first.free(ptr).unwrap();
}

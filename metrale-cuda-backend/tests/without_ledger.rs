// SPDX-License-Identifier: MIT OR Apache-2.0
//! Without the feature `ledger`: the same methods, reads that answer zero, and frees of what is left all the same.
//! Run with `cargo test -p metrale-cuda-backend --no-default-features`.
#![cfg(not(feature = "ledger"))]

mod common;

use std::sync::Arc;

use common::pinned::PinnedGuard;
use common::{MIB, backend, logged, reused, sim};
use metrale_cuda_backend::{DriverFn, FeatureOff, GpuBackend, StalePinned};
use metrale_driver_sim::{FaultDriver, on_both_drivers};

#[test]
fn a_drop_frees_what_is_left() {
    let driver = sim();
    let backend = backend(driver.clone());
    let freed = backend.alloc(MIB).unwrap();
    backend.alloc(MIB).unwrap();
    backend.alloc_managed(MIB).unwrap();
    std::mem::forget(backend.packed_arena(MIB).unwrap());
    backend.alloc_pinned(64).unwrap();
    backend.free(freed).unwrap();
    assert_eq!(driver.leaks().memory.len(), 4);
    let ((), lines) = logged(|| drop(backend));
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
    let said = |part: &str| lines.iter().any(|line| line.contains("WARN") && line.contains(part));
    assert!(
        said("2 device allocations") && said("1 arena allocation") && said("1 pinned allocation"),
        "{lines:?}"
    );
}

/// What the driver would not free is still there, and is freed at last.
#[test]
fn a_refused_free_is_made_again_by_the_drop() {
    let driver = sim();
    let faulty = Arc::new(FaultDriver::new(driver.clone()));
    let backend = backend(faulty.clone());
    let (at, arena, pinned) =
        (backend.alloc(MIB).unwrap(), backend.alloc_arena(MIB).unwrap(), backend.alloc_pinned(64).unwrap());
    faulty.fail_every(DriverFn::cuMemFree_v2, 999);
    faulty.fail_every(DriverFn::cuMemFreeHost, 999);
    assert!(backend.free(at).is_err() && backend.free_arena(arena).is_err());
    assert!(backend.free_pinned(pinned).is_err());
    faulty.clear();
    drop(backend);
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
}

on_both_drivers! {
    a_stale_handle_frees_nobody_elses_memory(driver) {
        let (backend, other) = (backend(driver.clone()), backend(driver));
        let (stale, mut buffer) = reused(|| backend.alloc_pinned(4096).unwrap(), |pinned| {
            backend.free_pinned(*pinned).unwrap();
            PinnedGuard::new(&backend, 4096).unwrap()
        }, |pinned, buffer| pinned.as_ptr().cast_const() == buffer.as_ptr());
        buffer.fill(0x5A);
        for wrong in [backend.free_pinned(stale), other.free_pinned(stale)] {
            assert!(wrong.unwrap_err().is::<StalePinned>());
        }
        assert!(buffer.iter().all(|&byte| byte == 0x5A), "the buffer is still there");
        drop(buffer);
        let error = backend.free_pinned(stale).unwrap_err().downcast::<StalePinned>().expect("typed");
        assert!(error.freed_at.is_some() && error.now.is_none(), "{error}");
        let live = other.alloc_pinned(64).unwrap();
        assert!(backend.free_pinned(live).unwrap_err().is::<StalePinned>(), "it is another backend's");
        other.free_pinned(live).unwrap();
    }

    everything_works_and_the_reads_answer_zero(driver) {
        let backend = backend(driver);
        let face: &dyn GpuBackend = &backend;
        let _scope = face.scope("weights");
        let (at, arena) = (face.alloc(MIB).unwrap(), face.alloc_arena(MIB).unwrap());
        let mut pinned = PinnedGuard::new(&backend, 64).unwrap();
        pinned.fill(7);
        backend.copy_h2d_async(&pinned, at, face.stream()).unwrap();
        pinned.fill(0xEE);
        let mut back = [0; 64];
        backend.copy_d2h(at, &mut back).unwrap();
        assert_eq!(back, [7; 64], "a pinned source still forces the wait");

        let probe = face.ledger_probe();
        assert_eq!((face.live_bytes(), face.resident_bytes(), face.chunk_slack_bytes()), (0, 0, 0));
        assert_eq!((face.live_allocations(), probe.live_count(), probe.pinned_count()), (vec![], 0, 0));
        drop(pinned);
        face.free(at).unwrap();
        face.free_arena(arena).unwrap();
        assert!(face.free(at).is_err(), "the driver says so");
    }

    a_sweep_frees_what_is_left_and_leaves_arenas_alone(driver) {
        let backend = backend(driver);
        let before = backend.device_free_memory().unwrap();
        let (one, two) = (backend.alloc(4 * MIB).unwrap(), backend.alloc(4 * MIB).unwrap());
        let arena = backend.alloc_arena(4 * MIB).unwrap();
        backend.free(one).unwrap();
        let (count, lines) = logged(|| backend.sweep_unreleased().unwrap());
        assert_eq!((count, lines.len()), (1, 1), "{lines:?}");
        assert!(lines[0].contains("1 device allocation") && lines[0].contains("feature \"ledger\""), "{lines:?}");
        assert_eq!(before - backend.device_free_memory().unwrap(), 4 << 20, "the arena is there");
        assert!(backend.free(two).is_err(), "the driver says so");
        assert_eq!(logged(|| backend.sweep_unreleased().unwrap()), (0, vec![]));
        backend.free_arena(arena).unwrap();
        assert_eq!(backend.device_free_memory().unwrap(), before);
    }

    /// Without records nothing can be pinned, and the rest of graphs is as ever, where they are built in.
    graphs_pin_nothing(driver) {
        let backend = backend(driver);
        let (stream, at) = (backend.stream(), backend.alloc(64).unwrap());
        if cfg!(feature = "graph") {
            let capture = backend.capture(stream).unwrap();
            backend.memset_async(at, 7, 64, stream).unwrap();
            capture.pin(at).unwrap();
            let graph = capture.end().unwrap();
            backend.launch_graph(graph, stream).unwrap();
            backend.synchronize_stream(stream).unwrap();
            assert_eq!(backend.graphs()[0].pinned, []);
            backend.destroy_graph(graph).unwrap();
        } else {
            let error = backend.begin_capture(stream).unwrap_err();
            assert!(error.is::<FeatureOff>() && error.to_string().contains("\"graph\""), "{error}");
            assert!(!backend.stream_is_capturing(stream) && !backend.abort_capture_if_active(stream).unwrap());
            assert_eq!(backend.graphs(), []);
        }
        backend.free(at).unwrap();
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operations keep between calls: handles, and scratch memory that only grows.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{KERNELS, KIB, MIB, backend, logged, sim, sim_with_kernels};
use metrale_cuda_backend::{
    AllocKind, BackendConfig, BadArgument, DriverFn, KernelLaunch, LEGACY_STREAM, MetraleCudaBackend,
    OutOfMemory, StreamHandle,
};
use metrale_driver_sim::{FaultDriver, TraceDriver, on_both_drivers};

/// Releases the cache, waits for a stream, and looks again: the bytes that are still held.
fn released(backend: &MetraleCudaBackend, stream: StreamHandle) -> usize {
    backend.release_op_cache().unwrap();
    backend.synchronize_stream(stream).unwrap();
    backend.release_op_cache().unwrap()
}

on_both_drivers! {
    scratch_grows_and_the_outgrown_buffer_goes_when_its_stream_has_passed(driver; sim: sim_with_kernels()) {
        let backend = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&[("kernels", KERNELS)])
            .config(BackendConfig::default())
            .build()
            .unwrap();
        let stream = backend.create_stream().unwrap();
        let fill = backend.kernel("kernels", "fill").unwrap();
        let words = 4 * KIB as u32;
        let small = backend.op_scratch("gemm", 4 * words as usize, stream).unwrap();
        assert_eq!(backend.op_scratch("gemm", 1, stream).unwrap(), small, "it fits");
        let mut launch = KernelLaunch::new(fill).grid([words / 256, 1, 1]).block([256, 1, 1]).ptr(small.ptr);
        launch = launch.u32(77).u32(words);
        // SAFETY: the arguments are the kernel's parameters; it writes as many words as the scratch memory has.
        unsafe { launch.on_stream(&backend, stream) }.unwrap();

        // Outgrown while the kernel may still be at work in it.
        let large = backend.op_scratch("gemm", 3 * MIB, stream).unwrap();
        assert_eq!(large.bytes, 4 * MIB, "whole pages, which the driver keeps anyway");
        assert_ne!(large.ptr, small.ptr);
        let (present, outgrown) = backend.op_scratch_bytes();
        assert_eq!((present, outgrown), (4 * MIB, small.bytes));
        backend.synchronize_stream(stream).unwrap();
        let larger = backend.op_scratch("gemm", 5 * MIB, stream).unwrap();
        assert_eq!(backend.op_scratch_bytes(), (6 * MIB, 4 * MIB), "the first one is freed");
        assert!(backend.free_arena(small.ptr).is_err());
        // Nobody frees by its number what the cache still gives out.
        for held in [larger, large] {
            let refused = backend.free_arena(held.ptr).unwrap_err().downcast::<BadArgument>().expect("typed");
            assert!(refused.to_string().contains("release_op_cache"), "{refused}");
        }

        // On the ledger, apart from what a sweep takes, under a scope of its own.
        let held = backend.ledger_probe().allocations_of(AllocKind::Arena);
        let labels: Vec<_> = held.iter().map(|(_, record)| record.scope.as_deref().unwrap()).collect();
        assert_eq!(labels, ["op_cache/gemm"; 2]);
        assert!(held.iter().all(|(_, record)| record.site.file() == file!()));
        assert_eq!((backend.live_bytes(), backend.sweep_unreleased().unwrap()), (0, 0));
        assert_eq!(backend.op_scratch("gemm", 5 * MIB, stream).unwrap(), larger);

        assert_eq!(released(&backend, stream), 0);
        assert!(backend.ledger_probe().allocations_of(AllocKind::Arena).is_empty());
        backend.destroy_stream(stream).unwrap();
    }

    each_operation_and_stream_has_scratch_of_its_own(driver) {
        let backend = backend(driver);
        let streams = [backend.create_stream().unwrap(), backend.create_stream().unwrap()];
        let mut seen = std::collections::BTreeSet::new();
        for op in ["gemm", "softmax"] {
            for stream in streams {
                seen.insert(backend.op_scratch(op, 4 * KIB, stream).unwrap().ptr);
            }
        }
        assert_eq!(seen.len(), 4);
        // What a stream had is released with it, and freed once its work is done.
        for stream in streams {
            backend.destroy_stream(stream).unwrap();
        }
        assert_eq!(backend.op_scratch_bytes().0, 0);
        backend.synchronize().unwrap();
        assert_eq!(released(&backend, backend.stream()), 0);
    }
}

/// A kernel that has not run yet keeps its buffer.
#[test]
fn nothing_is_freed_under_queued_work() {
    let driver = Arc::new(sim_with_kernels());
    let trace = Arc::new(TraceDriver::new(driver.clone()));
    let backend = backend(trace.clone());
    let stream = backend.create_stream().unwrap();
    let first = backend.op_scratch("gemm", KIB, stream).unwrap();
    // The software driver's streams run late: until somebody waits or asks.
    backend.memset_async(first.ptr, 1, KIB, stream).unwrap();
    let frees = || trace.calls().iter().filter(|call| call.function == DriverFn::cuMemFree_v2).count();
    backend.op_scratch("gemm", 2 * KIB, stream).unwrap();
    assert_eq!((frees(), backend.op_scratch_bytes().1), (0, KIB));
    assert_eq!((released(&backend, stream), frees()), (0, 2));
    assert!(driver.leaks().memory.is_empty() && driver.leaks().events.is_empty(), "{:?}", driver.leaks());
}

#[test]
fn a_drop_gives_everything_back_in_silence() {
    let driver = sim();
    let ((), lines) = logged(|| {
        let backend = backend(driver.clone());
        let stream = backend.stream();
        let first = backend.op_scratch("gemm", KIB, stream).unwrap();
        backend.memset_async(first.ptr, 1, KIB, stream).unwrap();
        backend.op_scratch("gemm", 3 * MIB, stream).unwrap();
        backend.op_scratch("softmax", 1, LEGACY_STREAM).unwrap();
        backend.op_handle("gemm", || Ok(7_u8)).unwrap();
    });
    assert!(lines.iter().all(|line| line.contains("INFO device 0")), "no more than the start: {lines:?}");
    assert!(driver.leaks().is_empty(), "{:?}", driver.leaks());
}

#[test]
fn growing_inside_a_capture_is_refused_and_what_is_there_is_given() {
    if metrale_driver_sim::driver_sys::SCALE {
        // Its driver cannot be asked whether a stream captures.
        return;
    }
    let driver = sim();
    let backend = backend(driver.clone());
    let stream = backend.create_stream().unwrap();
    let before = backend.op_scratch("gemm", 4 * KIB, stream).unwrap();
    let raw: &dyn metrale_cuda_backend::DriverApi = &*driver;
    // SAFETY: takes a handle.
    assert_eq!(unsafe { raw.cuStreamBeginCapture_v2(stream.raw(), 2) }, 0);
    assert_eq!(backend.op_scratch("gemm", 4 * KIB, stream).unwrap(), before);
    let error = backend.op_scratch("gemm", 8 * KIB, stream).unwrap_err();
    assert!(error.is::<BadArgument>() && error.to_string().contains("before the capture"), "{error}");
    let mut graph = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!(unsafe { raw.cuStreamEndCapture(stream.raw(), &mut graph) }, 0, "the capture is intact");
    // SAFETY: the handle was given above.
    assert_eq!(unsafe { raw.cuGraphDestroy(graph) }, 0);
    backend.op_scratch("gemm", 8 * KIB, stream).unwrap();
    backend.destroy_stream(stream).unwrap();
}

#[test]
fn a_failed_growth_leaves_the_old_buffer() {
    let faulty = Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    let before = backend.op_scratch("gemm", 4 * KIB, backend.stream()).unwrap();
    faulty.fail_nth(DriverFn::cuMemAlloc_v2, 1, 2);
    assert!(backend.op_scratch("gemm", MIB, backend.stream()).unwrap_err().is::<OutOfMemory>());
    assert_eq!(backend.op_scratch("gemm", 1, backend.stream()).unwrap(), before);
    assert!(backend.op_scratch("gemm", usize::MAX, backend.stream()).unwrap_err().is::<OutOfMemory>());
    // Without an event nothing tells when the outgrown buffer is free: it goes with the backend.
    faulty.fail_nth(DriverFn::cuEventCreate, 1, 999);
    backend.op_scratch("gemm", MIB, backend.stream()).unwrap();
    assert_eq!(backend.op_scratch_bytes(), (MIB, 4 * KIB));
    assert_eq!(released(&backend, backend.stream()), 4 * KIB);
}

#[test]
fn a_handle_is_made_once_for_each_name_and_type() {
    let backend = backend(sim());
    let made = AtomicU32::new(0);
    let make = || {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(made.load(Ordering::Relaxed))
    };
    let first = backend.op_handle("gemm", make).unwrap();
    assert!(Arc::ptr_eq(&first, &backend.op_handle("gemm", make).unwrap()));
    backend.op_handle("attention", make).unwrap();
    backend.op_handle("gemm", || Ok("another type")).unwrap();
    assert_eq!(made.load(Ordering::Relaxed), 2);
    backend.op_handle::<u64>("failing", || Err(anyhow::anyhow!("no library").into())).unwrap_err();
    assert_eq!(*backend.op_handle("failing", || Ok(3_u64)).unwrap(), 3, "a failure is not kept");
    // One that makes another while it is made.
    let nested = backend.op_handle("outer", || Ok(*backend.op_handle("inner", || Ok(4_u16))? + 1)).unwrap();
    assert_eq!(*nested, 5);
    backend.release_op_cache().unwrap();
    assert_eq!(*backend.op_handle("gemm", make).unwrap(), 3);
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The adaptors: failures on demand, and logs of calls.

mod common;

use std::sync::Arc;

use common::memory::on_device;
use common::{Cuda, status};
use metrale_driver_sim::driver_sys::{CUmemAllocationProp, DriverApi, DriverFn};
use metrale_driver_sim::{
    ContextGuard, FaultDriver, Profile, SimDriver, TraceArgument, TraceDriver, first_difference,
};

fn faulty() -> (Arc<FaultDriver>, Cuda, ContextGuard) {
    let faulty = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(Profile::h200()))));
    let api: Arc<dyn DriverApi> = faulty.clone();
    let guard = ContextGuard::new(&api, 0).unwrap();
    (faulty, Cuda::new(&api), guard)
}

fn allocs(cuda: &Cuda, bytes: usize, count: usize) -> Vec<i32> {
    (0..count).map(|_| status(cuda.alloc(bytes))).collect()
}

#[test]
fn the_nth_call_fails_and_never_reaches_the_driver() {
    let (faulty, cuda, guard) = faulty();
    let free = guard.memory_info().unwrap().0;
    faulty.fail_nth(DriverFn::cuMemAlloc_v2, 1, 2);
    faulty.fail_nth(DriverFn::cuMemAlloc_v2, 3, 999);
    assert_eq!(allocs(&cuda, 2 << 20, 4), [2, 0, 999, 0]);
    assert_eq!(free - guard.memory_info().unwrap().0, 2 * (2 << 20));
    // Counted from the moment the rule is given.
    faulty.fail_nth(DriverFn::cuMemAlloc_v2, 2, 2);
    assert_eq!(allocs(&cuda, 1, 3), [0, 2, 0]);
    let injected: Vec<_> = faulty.injected().iter().map(|fault| (fault.call, fault.status)).collect();
    assert_eq!(injected, [(1, 2), (3, 999), (6, 2)]);
    assert_eq!(faulty.calls(DriverFn::cuMemAlloc_v2), 7);
}

#[test]
fn every_call_fails_until_the_rules_are_cleared() {
    let (faulty, cuda, _guard) = faulty();
    let address = cuda.alloc(64).unwrap();
    faulty.fail_every(DriverFn::cuMemFree_v2, 0);
    assert_eq!((cuda.free(address), cuda.free(address)), (999, 999), "0 would be no failure");
    assert_eq!(faulty.live_bytes(), 64);
    faulty.fail_from(DriverFn::cuCtxSynchronize, 3, 719);
    assert_eq!([cuda.sync(), cuda.sync(), cuda.sync(), cuda.sync()], [0, 0, 719, 719]);
    faulty.clear();
    assert_eq!((cuda.free(address), cuda.sync()), (0, 0));
    assert_eq!(faulty.live_bytes(), 0);
}

#[test]
fn memory_runs_out_at_a_size_and_at_a_total() {
    let (faulty, cuda, _guard) = faulty();
    faulty.out_of_memory_at_size(1000);
    assert_eq!(allocs(&cuda, 999, 1), [0]);
    assert_eq!(allocs(&cuda, 1000, 1), [2]);
    faulty.clear();
    faulty.out_of_memory_at_total(3000);
    assert_eq!(allocs(&cuda, 1000, 3), [0, 0, 2], "999 are live already");
    let exact = cuda.alloc(1).unwrap();
    assert_eq!(status(cuda.alloc_managed(1, 1)), 2, "managed memory counts too");
    assert_eq!(cuda.free(exact), 0);
    let managed = cuda.alloc_managed(1, 1).unwrap();
    assert_eq!(faulty.live_bytes(), 3000);
    assert_eq!((cuda.free(managed), faulty.live_bytes()), (0, 2999));
    // What the driver itself refuses is not live.
    faulty.clear();
    assert_eq!(allocs(&cuda, 1 << 50, 1), [2]);
    assert_eq!((cuda.free(0x1234), faulty.live_bytes()), (1, 2999));
}

#[test]
fn memory_of_pools_and_physical_memory_counts_too() {
    let (faulty, cuda, _guard) = faulty();
    let granule = 2 << 20;
    faulty.out_of_memory_at_total(2 * granule as u64);
    let prop = CUmemAllocationProp { type_: 1, location: on_device(0), ..CUmemAllocationProp::default() };
    let handle = cuda.create(granule, &prop, 0).unwrap();
    let small = cuda.alloc_async(1000, 0).unwrap();
    assert_eq!((status(cuda.create(granule, &prop, 0)), faulty.live_bytes()), (2, granule as u64 + 1000));
    assert_eq!(status(cuda.alloc_of_pool(granule, cuda.default_pool(0).unwrap(), 0)), 2);
    assert_eq!(cuda.free_async(small, 0), 0);
    // Released and still mapped, it is live.
    let address = cuda.reserve(granule, 0, 0, 0).unwrap();
    assert_eq!((cuda.map(address, granule, 0, handle, 0), cuda.release_physical(handle)), (0, 0));
    assert_eq!(faulty.live_bytes(), granule as u64);
    assert_eq!(cuda.retain_physical(address), Ok(handle));
    assert_eq!((cuda.unmap(address, granule), faulty.live_bytes()), (0, granule as u64));
    assert_eq!((cuda.release_physical(handle), faulty.live_bytes()), (0, 0));
    assert_eq!((cuda.release_physical(handle), faulty.live_bytes()), (1, 0));
    assert_eq!((cuda.alloc_async(0, 0), faulty.live_bytes()), (Ok(0), 0));
}

#[test]
fn a_sticky_fault_answers_everything_that_needs_a_context() {
    let (faulty, cuda, guard) = faulty();
    let address = cuda.alloc(64).unwrap();
    faulty.fail_sticky(DriverFn::cuCtxSynchronize, 2, 700);
    assert_eq!((cuda.sync(), cuda.sync()), (0, 700));
    assert_eq!(
        (status(cuda.alloc(1)), cuda.free(address), status(cuda.info()), cuda.sync()),
        (700, 700, 700, 700)
    );
    assert_eq!(cuda.device_count(), Ok(1), "what needs no context goes on");
    assert_eq!(guard.enter(), Ok(()));
    faulty.clear();
    assert_eq!((cuda.free(address), cuda.sync()), (0, 0));
}

#[test]
fn after_the_drivers_end_every_function_answers_the_same() {
    let (faulty, cuda, guard) = faulty();
    faulty.end_at(DriverFn::cuCtxSynchronize, 2, 4);
    assert_eq!((cuda.sync(), cuda.sync()), (0, 4));
    assert_eq!((status(cuda.alloc(1)), cuda.device_count(), status(cuda.current())), (4, Err(4), 4));
    assert_eq!(guard.enter().map_err(|error| error.status), Err(4));
    faulty.clear();
    assert_eq!(cuda.sync(), 0);
}

#[test]
fn chance_is_the_same_for_the_same_seed_and_calls() {
    let run = |seed: u64, order: bool| {
        let (faulty, cuda, _guard) = faulty();
        faulty.fail_randomly(seed, 4, &[DriverFn::cuMemAlloc_v2, DriverFn::cuEventCreate], 2);
        if order {
            // Other calls in between change nothing.
            assert_eq!(cuda.sync(), 0);
            let _ = (0..50).map(|_| status(cuda.event(0))).collect::<Vec<_>>();
        }
        allocs(&cuda, 1, 400)
    };
    let first = run(7, false);
    assert_eq!(first, run(7, true));
    assert_ne!(first, run(8, false));
    let failed = first.iter().filter(|&&status| status == 2).count();
    // One in four of 400, far beyond any doubt of the mixing.
    assert!((50..150).contains(&failed), "{failed}");
    let (faulty, cuda, _guard) = faulty();
    faulty.fail_randomly(1, 1, &[DriverFn::cuMemAlloc_v2], 2);
    assert_eq!(allocs(&cuda, 1, 3), [2, 2, 2]);
    faulty.fail_randomly(1, 0, &[DriverFn::cuMemAlloc_v2], 2);
    assert_eq!(allocs(&cuda, 1, 3), [0, 0, 0]);
}

#[test]
fn a_trace_has_every_call_with_arguments_thread_and_status() {
    let run = |bytes: usize| {
        let trace = Arc::new(TraceDriver::new(Arc::new(SimDriver::new(Profile::h200()))));
        let api: Arc<dyn DriverApi> = trace.clone();
        let guard = ContextGuard::new(&api, 0).unwrap();
        let cuda = Cuda::new(&api);
        let address = cuda.alloc(bytes).unwrap();
        assert_eq!(cuda.upload(address, &[1; 16]), 0);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| status(cuda.alloc(1)));
            assert_eq!(thread.join().unwrap(), 201);
        });
        assert_eq!(cuda.free(address), 0);
        drop(guard);
        assert_eq!(trace.count(DriverFn::cuMemAlloc_v2), 2);
        trace.take()
    };
    let calls = run(1000);
    let functions: Vec<_> = calls.iter().map(|call| call.function.name()).collect();
    assert_eq!(
        functions,
        [
            "cuInit",
            "cuDeviceGet",
            "cuDevicePrimaryCtxRetain",
            "cuCtxSetCurrent",
            "cuMemAlloc_v2",
            "cuMemcpyHtoD_v2",
            "cuMemAlloc_v2",
            "cuMemFree_v2",
            "cuCtxGetCurrent",
            "cuCtxSetCurrent",
            "cuDevicePrimaryCtxRelease_v2",
        ]
    );
    let threads: Vec<_> = calls.iter().map(|call| call.thread).collect();
    assert_eq!(threads, [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(calls[4].arguments[1], TraceArgument::Number(1000));
    assert_eq!((calls[6].status, calls[7].status), (201, 0));
    assert!(calls[5].to_string().ends_with(", host, 16) -> 0"), "{}", calls[5]);
    // Host addresses differ between the runs and do not count; the size does.
    assert_eq!(first_difference(&calls, &run(1000)), None);
    assert_eq!(first_difference(&calls, &run(1001)), Some(4));
    assert_eq!(first_difference(&calls, &calls[..3]), Some(3));
}

#[test]
fn adaptors_stack() {
    let sim = SimDriver::new(Profile::gb10());
    let faulty = Arc::new(FaultDriver::new(Arc::new(sim.clone())));
    let trace = Arc::new(TraceDriver::new(faulty.clone()));
    assert_eq!(trace.source(), "software gb10 with faults");
    let api: Arc<dyn DriverApi> = trace.clone();
    let guard = ContextGuard::new(&api, 0).unwrap();
    faulty.fail_nth(DriverFn::cuMemAlloc_v2, 1, 2);
    assert_eq!(status(Cuda::new(&api).alloc(1)), 2);
    assert_eq!(trace.calls().last().map(|call| call.status), Some(2));
    drop(guard);
    assert!(sim.leaks().is_empty());
}

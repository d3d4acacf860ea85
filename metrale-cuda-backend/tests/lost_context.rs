// SPDX-License-Identifier: MIT OR Apache-2.0
//! After a kernel's fault: the first reason is kept, later calls fail with it at once, and the end is short and quiet.

mod common;

use std::sync::Arc;

use common::pinned::PinnedGuard;
use common::{KERNELS, logged, sim_with_kernels};
use metrale_cuda_backend::{
    BackendConfig, ContextLost, DevicePtr, DriverApi, DriverFn, FaultLatch, GpuBackend, KernelLaunch,
    LaunchError, MetraleCudaBackend, Remedy,
};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, TraceDriver, on_both_drivers};

fn backend(driver: Arc<dyn DriverApi>) -> MetraleCudaBackend {
    MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("kernels", KERNELS), ("more", KERNELS), ("most", KERNELS)])
        .config(BackendConfig::default())
        .build()
        .unwrap()
}

/// Launches the kernel that writes to an address that is mapped nowhere.
fn stray(backend: &MetraleCudaBackend) {
    let kernel = backend.kernel("kernels", "stray").unwrap();
    let mut launch = KernelLaunch::new(kernel).u64(0x10_0000);
    // SAFETY: none of the kernel's writes reaches memory, which is what is tested.
    unsafe { launch.on_stream(backend, backend.stream()) }.unwrap();
}

#[track_caller]
fn lost(error: &metrale_cuda_backend::Error) -> &ContextLost {
    assert_eq!(error.remedy(), Remedy::Relaunch, "{error:#}");
    error.downcast_ref().unwrap_or_else(|| panic!("{error:#}"))
}

on_both_drivers! {
    the_first_reason_answers_everything_and_the_drop_is_one_line(driver; sim: sim_with_kernels()) {
        let trace = Arc::new(TraceDriver::new(driver));
        let ((), lines) = logged(|| {
            let backend = backend(trace.clone());
            let stream = backend.stream();
            let fill = backend.kernel("kernels", "fill").unwrap();
            let held: Vec<_> = (0..100).map(|_| backend.alloc(4096).unwrap()).collect();
            let event = backend.create_event().unwrap();
            let pinned: Vec<_> = (0..10).map(|_| PinnedGuard::new(&backend, 4096).unwrap()).collect();
            assert_eq!(backend.context_fault(), None);

            stray(&backend);
            let error = backend.synchronize_stream(stream).unwrap_err();
            assert_eq!((lost(&error).driver.status, &lost(&error).first), (700, &None));
            let reason = backend.context_fault().expect("latched").clone();
            assert_eq!((reason.ordinal, reason.driver), (0, lost(&error).driver));

            let before = trace.calls().len();
            let mut launch = KernelLaunch::new(fill).ptr(held[0]).u32(1).u32(1);
            for error in [
                backend.alloc(64).unwrap_err(),
                backend.alloc_managed(64).unwrap_err(),
                backend.alloc_arena(64).unwrap_err(),
                backend.alloc_pinned(64).unwrap_err(),
                backend.free(held[0]).unwrap_err(),
                backend.copy_h2d(&[1], held[0]).unwrap_err(),
                backend.copy_d2h(held[0], &mut [1]).unwrap_err(),
                backend.memset_async(held[0], 0, 1, stream).unwrap_err(),
                backend.create_stream().unwrap_err(),
                backend.create_event().unwrap_err(),
                backend.query_event(event).unwrap_err(),
                backend.synchronize().unwrap_err(),
                backend.memory_info().unwrap_err(),
                backend.kernel("kernels", "fill").unwrap_err(),
                backend.device_symbol("kernels", "steps").unwrap_err(),
                backend.bind_to_thread().unwrap_err(),
                backend.sweep_unreleased().unwrap_err(),
                // SAFETY: nothing is launched, which is what is tested.
                unsafe { launch.on_stream(&backend, stream) }.unwrap_err(),
            ] {
                assert_eq!(lost(&error).first.as_deref(), Some(&reason), "{error:#}");
                assert!(error.to_string().contains("not tried"), "{error}");
            }
            assert_eq!(trace.calls().len(), before, "the driver was asked nothing");
            assert_eq!(backend.ledger_probe().live_count(), 100, "no free changed anything");
            drop(pinned);
        });
        // One for the fault, one for what the drop leaves.
        let [start, fault, left] = &lines[..] else { panic!("{lines:#?}") };
        assert!(start.contains("INFO"), "{start}");
        assert!(fault.contains("ERROR") && fault.contains("(700)"), "{fault}");
        assert!(left.contains("110 allocations"), "{left}");

        // The process has no other context for the device: a backend made anew is told so, and nothing is tried.
        let error = MetraleCudaBackend::builder().driver(trace).build().unwrap_err();
        assert!(lost(&error).first.is_some(), "{error:#}");
    }

    a_fault_found_after_its_launch_is_the_reason_with_the_kernels_name(driver; sim: sim_with_kernels()) {
        let mut config = BackendConfig::default();
        config.debug_sync_kernels = true;
        let backend = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&[("kernels", KERNELS)])
            .config(config)
            .build()
            .unwrap();
        let kernel = backend.kernel("kernels", "stray").unwrap();
        let mut launch = KernelLaunch::new(kernel).u64(0x10_0000);
        // SAFETY: as above.
        unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap_err();
        let after = backend.context_fault().and_then(|reason| reason.after.clone());
        assert_eq!(after.as_deref(), Some("the launch of kernels::stray"));
        let error = backend.alloc(1).unwrap_err().to_string();
        assert!(error.contains("kernels::stray") && !error.contains("DEBUG_SYNC"), "{error}");
    }

    a_refused_launch_on_a_sound_context_latches_nothing(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let fill = backend.kernel("kernels", "fill").unwrap();
        let mut launch = KernelLaunch::new(fill).block([4096, 1, 1]).ptr(DevicePtr::NULL).u32(0).u32(0);
        // SAFETY: nothing is launched: no block has so many threads.
        let error = unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap_err();
        assert!(error.is::<LaunchError>());
        assert_eq!(backend.context_fault(), None);
        let ptr = backend.alloc(64).unwrap();
        backend.free(ptr).unwrap();
    }

    a_fault_shows_to_the_probe_of_a_refused_launch(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let fill = backend.kernel("kernels", "fill").unwrap();
        stray(&backend);
        let mut launch = KernelLaunch::new(fill).block([4096, 1, 1]).ptr(DevicePtr::NULL).u32(0).u32(0);
        // SAFETY: nothing is launched: no block has so many threads.
        let error = unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap_err();
        // The caller gets the launch's own error, whatever the check found.
        assert!(error.is::<LaunchError>(), "{error:#}");
        assert_eq!(backend.context_fault().expect("checked").driver.status, 700);
    }
}

#[test]
fn the_probe_waits_for_the_stream_of_a_failed_launch_or_fill_and_changes_no_answer() {
    for function in [DriverFn::cuLaunchKernel, DriverFn::cuMemsetD8Async, DriverFn::cuMemsetD8_v2] {
        let sim = sim_with_kernels();
        let faulty = Arc::new(FaultDriver::new(Arc::new(sim.clone())));
        let trace = Arc::new(TraceDriver::new(faulty.clone()));
        let backend = backend(trace.clone());
        let out = backend.alloc(64).unwrap();
        let fill = backend.kernel("kernels", "fill").unwrap();
        let fails = |status| {
            faulty.fail_nth(function, 1, status);
            let mut launch = KernelLaunch::new(fill).ptr(out).u32(1).u32(1);
            let error = match function {
                DriverFn::cuMemsetD8_v2 => backend.memset(out, 0, 64),
                DriverFn::cuMemsetD8Async => backend.memset_async(out, 0, 64, backend.stream()),
                // SAFETY: the arguments are the kernel's parameters; it writes one word to `out`.
                _ => unsafe { launch.on_stream(&backend, backend.stream()) },
            };
            let error = error.unwrap_err();
            assert!(format!("{error:#}").contains(&format!("({status})")), "{error:#}");
        };
        fails(999);
        assert_eq!(trace.calls().last().unwrap().function, DriverFn::cuStreamSynchronize);
        assert_eq!(backend.context_fault(), None, "{function}");
        backend.memset_async(out, 0, 64, backend.stream()).unwrap();

        // The wait that is to tell meets the fault.
        faulty.fail_nth(
            DriverFn::cuStreamSynchronize,
            if function == DriverFn::cuMemsetD8_v2 { 2 } else { 1 },
            719,
        );
        fails(999);
        let reason = backend.context_fault().expect("checked");
        assert_eq!((reason.driver.function, reason.driver.status), (DriverFn::cuStreamSynchronize, 719));
        let after = reason.after.as_deref().unwrap();
        assert!(after.contains("kernels::fill") || after.contains("64 B at"), "{after}");
        assert!(lost(&backend.alloc(1).unwrap_err()).first.is_some());
        sim.inject_fault(0, 719);
    }
}

#[test]
fn a_refused_launch_inside_a_capture_is_not_waited_for() {
    if metrale_driver_sim::driver_sys::SCALE {
        // Its driver cannot be asked whether a stream captures.
        return;
    }
    let driver = Arc::new(sim_with_kernels());
    let trace = Arc::new(TraceDriver::new(driver));
    let backend = backend(trace.clone());
    let fill = backend.kernel("kernels", "fill").unwrap();
    let stream = backend.create_stream().unwrap();
    // SAFETY: takes a handle.
    assert_eq!(unsafe { trace.cuStreamBeginCapture_v2(stream.raw(), 2) }, 0);
    let before = trace.calls().len();
    let mut launch = KernelLaunch::new(fill).grid([0, 1, 1]).ptr(DevicePtr::NULL).u32(0).u32(0);
    // SAFETY: nothing is launched: a dimension is 0.
    unsafe { launch.on_stream(&backend, stream) }.unwrap_err();
    let calls = trace.calls();
    assert!(calls[before..].iter().all(|call| call.function != DriverFn::cuStreamSynchronize));
    let mut graph = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!(unsafe { trace.cuStreamEndCapture(stream.raw(), &mut graph) }, 0);
    // SAFETY: the handle was given above.
    assert_eq!(unsafe { trace.cuGraphDestroy(graph) }, 0);
    backend.destroy_stream(stream).unwrap();
}

#[test]
fn backends_of_one_device_share_the_reason_and_other_devices_do_not() {
    let sim = SimDriver::builder().device(Profile::h200()).device(Profile::rtx()).build();
    let driver: Arc<dyn DriverApi> = Arc::new(sim.clone());
    let on = |ordinal| MetraleCudaBackend::builder().driver(driver.clone()).ordinal(ordinal).build().unwrap();
    let (first, other, second) = (on(0), on(0), on(1));
    sim.inject_fault(0, 716);
    first.bind_to_thread().unwrap();
    let shown = first.alloc(64).unwrap_err();
    assert_eq!(lost(&shown).first, None);
    assert!(lost(&other.alloc(64).unwrap_err()).first.is_some());
    assert_eq!(FaultLatch::of(other.host()).reason(), other.context_fault());
    assert_eq!(other.context_fault().map(|reason| reason.driver.status), Some(716));
    assert_eq!(second.context_fault(), None);
    second.bind_to_thread().unwrap();
    let face: &dyn GpuBackend = &second;
    let ptr = face.alloc(64).unwrap();
    face.free(ptr).unwrap();
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Timing spans: read without a wait, left out of captures, and nothing while they are off.

mod common;

use std::sync::Arc;

use common::{KERNELS, MIB, backend, sim_with_kernels};
use metrale_cuda_backend::{
    BackendConfig, DriverApi, DriverFn, KernelLaunch, MetraleCudaBackend, TIME_KERNELS,
};
use metrale_driver_sim::{FaultDriver, TraceDriver, on_both_drivers};
use metrale_telemetry::run_metrics;
use parking_lot::{Mutex, MutexGuard};

/// Sums are the process's, and a new backend clears them: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Spans switched on, until the test is over.
struct On(#[allow(dead_code, reason = "held for its drop")] MutexGuard<'static, ()>);

impl On {
    fn new() -> Self {
        let turn = TURN.lock();
        run_metrics::process().spans().set_enabled(true);
        Self(turn)
    }
}

impl Drop for On {
    fn drop(&mut self) {
        run_metrics::process().spans().set_enabled(false);
    }
}

fn counts() -> Vec<(String, u64)> {
    let mut rows: Vec<_> =
        run_metrics::process().spans().rows().iter().map(|row| (row.name.to_string(), row.count)).collect();
    rows.sort();
    rows
}

on_both_drivers! {
    spans_are_read_once_they_have_passed(driver) {
        let _on = On::new();
        let backend = backend(driver);
        let data = backend.alloc(16 * MIB).unwrap();
        let streams = [backend.stream(), backend.create_stream().unwrap()];
        for round in 0..10 {
            let stream = streams[round % 2];
            let outer = backend.span("layer", stream).unwrap();
            let inner = backend.span("clear", stream).unwrap();
            assert!(inner.is_recording());
            backend.memset_async(data, 0, 16 * MIB, stream).unwrap();
            inner.end().unwrap();
            drop(outer);
        }
        for stream in streams {
            backend.synchronize_stream(stream).unwrap();
        }
        let harvest = backend.harvest_spans().unwrap();
        assert_eq!((harvest.read, harvest.failed, harvest.pending, harvest.refused), (20, 0, 0, 0));
        assert_eq!(counts(), [("clear".to_owned(), 10), ("layer".to_owned(), 10)]);
        let rows = run_metrics::process().spans().rows();
        let total = |name: &str| rows.iter().find(|row| &*row.name == name).unwrap().total_ns;
        assert!(total("layer") >= total("clear") && total("clear") > 0, "{rows:?}");
        backend.destroy_stream(streams[1]).unwrap();
        backend.free(data).unwrap();
    }

    launches_are_timed_by_name_where_the_configuration_says_so(driver; sim: sim_with_kernels()) {
        let _on = On::new();
        let mut config = BackendConfig::default();
        config.time_kernels = true;
        let backend =
            MetraleCudaBackend::builder().driver(driver).modules(&[("kernels", KERNELS)]).config(config).build().unwrap();
        let out = backend.alloc(1024).unwrap();
        let fill = backend.kernel("kernels", "fill").unwrap();
        let mut launch = KernelLaunch::new(fill).block([256, 1, 1]).ptr(out).u32(1).u32(256);
        for _ in 0..5 {
            // SAFETY: the arguments are the kernel's parameters; it writes 256 words to `out`.
            unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
        }
        let mut refused = KernelLaunch::new(fill).grid([0, 1, 1]).ptr(out).u32(1).u32(256);
        // SAFETY: nothing is launched: a dimension is 0.
        unsafe { refused.on_stream(&backend, backend.stream()) }.unwrap_err();
        backend.synchronize_stream(backend.stream()).unwrap();
        assert_eq!(backend.harvest_spans().unwrap().read, 5);
        assert_eq!(counts(), [("kernels::fill".to_owned(), 5)]);
        backend.free(out).unwrap();
    }
}

/// As with `METRALE_TIME_KERNELS=1` and nothing else.
#[test]
fn the_variable_alone_times_launches() {
    let _turn = On::new();
    run_metrics::process().spans().set_enabled(false);
    let config =
        BackendConfig::from_variables(|name| (name == TIME_KERNELS).then(|| std::ffi::OsString::from("1")));
    let backend = MetraleCudaBackend::builder()
        .driver(Arc::new(sim_with_kernels()))
        .modules(&[("kernels", KERNELS)])
        .config(config.unwrap())
        .build()
        .unwrap();
    let out = backend.alloc(1024).unwrap();
    let fill = backend.kernel("kernels", "fill").unwrap();
    let mut launch = KernelLaunch::new(fill).block([256, 1, 1]).ptr(out).u32(1).u32(256);
    // SAFETY: the arguments are the kernel's parameters; it writes 256 words to `out`.
    unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
    backend.synchronize_stream(backend.stream()).unwrap();
    assert_eq!(backend.harvest_spans().unwrap().read, 1);
    assert_eq!(counts(), [("kernels::fill".to_owned(), 1)]);
    backend.free(out).unwrap();
}

#[test]
fn a_harvest_asks_and_never_waits() {
    let _on = On::new();
    let trace = Arc::new(TraceDriver::new(Arc::new(sim_with_kernels())));
    let backend = backend(trace.clone());
    let before = trace.calls().len();
    for _ in 0..3 {
        backend.span("step", backend.stream()).unwrap().end().unwrap();
        backend.harvest_spans().unwrap();
    }
    let calls = trace.calls().split_off(before);
    assert!(calls.iter().all(|call| !call.function.name().contains("Synchronize")), "{calls:?}");
    backend.synchronize_stream(backend.stream()).unwrap();
    backend.harvest_spans().unwrap();
    // Events are used again.
    let events = trace.calls().iter().filter(|call| call.function == DriverFn::cuEventCreate).count();
    assert!(events <= 6, "{events}");
    for _ in 0..10 {
        backend.span("step", backend.stream()).unwrap().end().unwrap();
        backend.synchronize_stream(backend.stream()).unwrap();
        backend.harvest_spans().unwrap();
    }
    assert_eq!(trace.calls().iter().filter(|call| call.function == DriverFn::cuEventCreate).count(), events);
    assert_eq!(counts(), [("step".to_owned(), 13)]);
}

#[test]
fn off_makes_no_call() {
    let _turn = TURN.lock();
    let trace = Arc::new(TraceDriver::new(Arc::new(sim_with_kernels())));
    let backend = backend(trace.clone());
    let before = trace.calls().len();
    let span = backend.span("step", backend.stream()).unwrap();
    assert!(!span.is_recording());
    span.end().unwrap();
    assert_eq!(trace.calls().len(), before);
}

#[test]
fn a_capture_is_left_alone_by_spans_begun_in_it_and_before_it() {
    if metrale_driver_sim::driver_sys::SCALE {
        // Its driver cannot be asked whether a stream captures.
        return;
    }
    let _on = On::new();
    let driver = Arc::new(sim_with_kernels());
    let backend = backend(driver.clone());
    let stream = backend.create_stream().unwrap();
    let before = backend.span("before", stream).unwrap();
    // SAFETY: takes a handle.
    assert_eq!(unsafe { driver.cuStreamBeginCapture_v2(stream.raw(), 2) }, 0);
    let inside = backend.span("inside", stream).unwrap();
    assert!(before.is_recording() && !inside.is_recording());
    inside.end().unwrap();
    before.end().unwrap();
    backend.harvest_spans().unwrap();
    let mut graph = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!(unsafe { driver.cuStreamEndCapture(stream.raw(), &mut graph) }, 0);
    let mut nodes = 0;
    // SAFETY: the result pointer is a local; without a place for nodes only their number is asked for.
    assert_eq!(unsafe { driver.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) }, 0);
    assert_eq!(nodes, 0, "nothing was recorded");
    // SAFETY: the handle was given above.
    assert_eq!(unsafe { driver.cuGraphDestroy(graph) }, 0);
    assert_eq!(backend.harvest_spans().unwrap().read, 0);
    backend.destroy_stream(stream).unwrap();
    drop(backend);
    assert!(driver.leaks().is_empty(), "{:?}", driver.leaks());
}

#[test]
fn what_fails_is_in_no_sum_and_leaves_nothing() {
    let _on = On::new();
    let driver = Arc::new(sim_with_kernels());
    for function in [
        DriverFn::cuEventCreate,
        DriverFn::cuEventRecord,
        DriverFn::cuEventQuery,
        DriverFn::cuEventElapsedTime,
    ] {
        let faulty = Arc::new(FaultDriver::new(driver.clone()));
        let backend = backend(faulty.clone());
        faulty.fail_nth(function, 1, 999);
        let begun = backend.span("step", backend.stream());
        assert_eq!(begun.is_err(), matches!(function, DriverFn::cuEventCreate | DriverFn::cuEventRecord));
        drop(begun);
        backend.synchronize_stream(backend.stream()).unwrap();
        assert_eq!(backend.harvest_spans().unwrap().read, 0, "{function}");
        backend.span("step", backend.stream()).unwrap().end().unwrap();
        backend.synchronize_stream(backend.stream()).unwrap();
        assert_eq!(backend.harvest_spans().unwrap().read, 1);
        drop(backend);
        assert!(driver.leaks().is_empty(), "{function}: {:?}", driver.leaks());
    }
}

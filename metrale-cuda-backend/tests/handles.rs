// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stream and event handles: a dead or invented one never reaches the driver, which it would take the process down with.

mod common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use common::hooked::HookedDriver;
use common::{KERNELS, backend, forged_event, forged_stream, logged, sim, sim_with_kernels};
use metrale_cuda_backend::{
    BackendConfig, BadArgument, Copy2d, DevicePtr, DriverApi, DriverFn, EventHandle, GraphHandle,
    KernelLaunch, LEGACY_STREAM, MetraleCudaBackend, Remedy, StreamHandle,
};
use metrale_driver_sim::driver_sys::SCALE;
use metrale_driver_sim::{TraceDriver, on_both_drivers};

fn with_kernels(driver: Arc<dyn DriverApi>) -> MetraleCudaBackend {
    let builder = MetraleCudaBackend::builder().driver(driver).modules(&[("kernels", KERNELS)]);
    builder.config(BackendConfig::default()).build().unwrap()
}

/// The outcome of every call that takes a stream, and one that takes an event, on that stream.
fn every_use_of_a_stream(
    backend: &MetraleCudaBackend,
    at: DevicePtr,
    stream: StreamHandle,
) -> Vec<(&'static str, metrale_cuda_backend::Result<()>)> {
    let event = backend.create_event().unwrap();
    let mut host = [7; 16];
    let fill = backend.kernel("kernels", "fill").unwrap();
    let (mut ptr, mut value, mut count) = (at.addr(), 7_u32, 4_u32);
    let mut params: [*mut c_void; 3] =
        [(&raw mut ptr).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
    let rows = Copy2d::device(at, 16, at.offset(64), 16, 8, 2);
    let host_ptr = host.as_mut_ptr();
    let mut outcomes = vec![
        ("copy_h2d_async", backend.copy_h2d_async(&[1; 16], at, stream)),
        ("copy_d2d_async", backend.copy_d2d_async(at, at.offset(64), 16, stream)),
        ("memset_async", backend.memset_async(at, 1, 16, stream)),
        ("memset_d32_async", backend.memset_d32_async(at, 1, 4, stream)),
        // SAFETY: both sides are device memory.
        ("copy_2d_async", unsafe { backend.copy_2d_async(&rows, stream) }),
        // SAFETY: the values are the kernel's parameters and outlive the call; it writes four words to `at`.
        ("launch", unsafe { backend.launch(fill, [1; 3], [4, 1, 1], 0, stream, &mut params) }),
        // SAFETY: as above.
        ("launch_typed", unsafe {
            KernelLaunch::new(fill).block([4, 1, 1]).ptr(at).u32(7).u32(4).on_stream(backend, stream)
        }),
        ("record_event", backend.record_event(event, stream)),
        ("wait_event", backend.wait_event(stream, event)),
        // SAFETY: the local is waited for below, where the copy was queued at all.
        ("copy_h2d_async_retained", unsafe { backend.copy_h2d_async_retained(host_ptr, 16, at, stream) }),
        // SAFETY: as above.
        ("copy_d2h_async_retained", unsafe { backend.copy_d2h_async_retained(at, host_ptr, 16, stream) }),
        ("synchronize_stream", backend.synchronize_stream(stream)),
        ("query_stream", backend.query_stream(stream).map(drop)),
    ];
    let mut back = [0; 16];
    outcomes.push(("copy_d2h_on_stream", backend.copy_d2h_on_stream(at, &mut back, stream)));
    backend.destroy_event(event).unwrap();
    outcomes
}

/// The outcome of every call about captures and graphs that takes a stream, and one that takes an event, on that stream.
fn every_capture_of_a_stream(
    backend: &MetraleCudaBackend,
    stream: StreamHandle,
) -> Vec<(&'static str, metrale_cuda_backend::Result<()>)> {
    let empty = backend.capture(backend.stream()).unwrap().end().unwrap();
    let event = backend.create_event().unwrap();
    let outcomes = vec![
        ("begin_capture", backend.begin_capture(stream)),
        ("end_capture", backend.end_capture(stream).and_then(|graph| backend.destroy_graph(graph))),
        ("capture", backend.capture(stream).map(drop)),
        ("update_graph", backend.begin_capture(stream).and(backend.update_graph(empty, stream)).map(drop)),
        ("abort_capture_if_active", backend.abort_capture_if_active(stream).map(drop)),
        ("launch_graph", backend.launch_graph(empty, stream)),
        ("op_scratch", backend.op_scratch("gemm", 64, stream).map(drop)),
        ("wait_peer_event", backend.wait_peer_event(stream, backend, event)),
    ];
    backend.destroy_event(event).unwrap();
    backend.destroy_graph(empty).unwrap();
    outcomes
}

/// The outcome of every call that takes an event. `live` is another, made before: a new one might get a dead one's number.
fn every_use_of_an_event(
    backend: &MetraleCudaBackend,
    live: EventHandle,
    event: EventHandle,
) -> Vec<(&'static str, metrale_cuda_backend::Result<()>)> {
    backend.record_event(live, backend.stream()).unwrap();
    backend.synchronize_event(live).unwrap();
    vec![
        ("record_event", backend.record_event(event, backend.stream())),
        ("wait_event", backend.wait_event(backend.stream(), event)),
        ("query_event", backend.query_event(event).map(drop)),
        ("synchronize_event", backend.synchronize_event(event)),
        ("elapsed_ms, start", backend.elapsed_ms(event, live).map(drop)),
        ("elapsed_ms, end", backend.elapsed_ms(live, event).map(drop)),
    ]
}

/// All were refused, each with these words.
fn assert_refused(outcomes: Vec<(&'static str, metrale_cuda_backend::Result<()>)>, words: &[&str]) {
    for (call, outcome) in outcomes {
        let error = outcome.expect_err(call);
        assert_eq!(error.remedy(), Remedy::FixCall, "{call}");
        let error = error.downcast::<BadArgument>().expect(call);
        assert!(
            words.iter().all(|word| error.what.contains(word)),
            "{call}: {error}, which lacks one of {words:?}"
        );
    }
}

fn assert_done(outcomes: Vec<(&'static str, metrale_cuda_backend::Result<()>)>) {
    for (call, outcome) in outcomes {
        outcome.unwrap_or_else(|error| panic!("{call}: {error:#}"));
    }
}

on_both_drivers! {
    a_stream_that_was_destroyed_is_refused_with_the_line(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver);
        let at = backend.alloc(256).unwrap();
        let stream = backend.create_stream().unwrap();
        assert_done(every_use_of_a_stream(&backend, at, stream));
        assert_done(every_capture_of_a_stream(&backend, stream));
        let line = line!() + 1;
        backend.destroy_stream(stream).unwrap();
        let words = [format!("stream {stream:#x} was destroyed at"), format!("{}:{line}", file!())];
        let words = words.each_ref().map(String::as_str);
        assert_refused(every_use_of_a_stream(&backend, at, stream), &words);
        assert_refused(every_capture_of_a_stream(&backend, stream), &words);
        assert_refused(vec![("destroy_stream", backend.destroy_stream(stream))], &words);
        assert_refused(vec![("release_stream", backend.release_stream(stream))], &words);
        backend.free(at).unwrap();
    }

    a_stream_that_never_was_one_is_refused(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver);
        let at = backend.alloc(256).unwrap();
        let event = backend.create_event().unwrap();
        let local = 0_u64;
        let live = backend.create_stream().unwrap();
        let numbers =
            [3, 0x10, 0xDEAD_BEEF_0000, u64::MAX, event.raw(), live.raw(), at.addr(), (&raw const local).addr() as u64];
        for stream in numbers.map(forged_stream) {
            let words = [format!("{stream:#x} is no stream"), "create_stream".into(), "adopt_stream".into()];
            let words = words.each_ref().map(String::as_str);
            assert_refused(every_use_of_a_stream(&backend, at, stream), &words);
            assert_refused(every_capture_of_a_stream(&backend, stream), &words);
            // A query that fails counts as capturing, where the driver can tell at all.
            assert_eq!(backend.stream_is_capturing(stream), !SCALE);
            assert_refused(vec![("destroy_stream", backend.destroy_stream(stream))], &words);
            assert_refused(vec![("release_stream", backend.release_stream(stream))], &words);
        }
        backend.destroy_stream(live).unwrap();
        backend.destroy_event(event).unwrap();
        backend.free(at).unwrap();
    }

    the_streams_that_are_always_there_pass(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver);
        let at = backend.alloc(256).unwrap();
        for stream in [LEGACY_STREAM, forged_stream(1), StreamHandle::PER_THREAD, backend.stream()] {
            assert_done(every_use_of_a_stream(&backend, at, stream));
            assert!(backend.destroy_stream(stream).unwrap_err().is::<BadArgument>());
            assert!(backend.release_stream(stream).unwrap_err().is::<BadArgument>());
            // SAFETY: the streams are live as long as the backend.
            assert!(unsafe { backend.adopt_stream(stream.raw()) }.unwrap_err().is::<BadArgument>());
        }
        backend.free(at).unwrap();
    }

    an_event_that_was_destroyed_or_never_was_one_is_refused(driver) {
        let backend = backend(driver);
        let (live, event) = (backend.create_timing_event().unwrap(), backend.create_event().unwrap());
        let line = line!() + 1;
        backend.destroy_event(event).unwrap();
        let words = [format!("event {event:#x} was destroyed at"), format!("{}:{line}", file!())];
        let words = words.each_ref().map(String::as_str);
        assert_refused(every_use_of_an_event(&backend, live, event), &words);
        assert_refused(vec![("destroy_event", backend.destroy_event(event))], &words);
        let local = 0_u64;
        let numbers =
            [0, 1, 0xDEAD_BEEF_0000, u64::MAX, live.raw(), backend.stream().raw(), (&raw const local).addr() as u64];
        for event in numbers.map(forged_event) {
            let words = [format!("{event:#x} is no event"), "create_event".into(), "adopt_event".into()];
            let words = words.each_ref().map(String::as_str);
            assert_refused(every_use_of_an_event(&backend, live, event), &words);
            assert_refused(vec![("destroy_event", backend.destroy_event(event))], &words);
        }
        backend.destroy_event(live).unwrap();
    }

    another_backends_handles_are_not_this_ones(driver) {
        let (one, other) = (backend(driver.clone()), backend(driver));
        let (stream, event) = (one.create_stream().unwrap(), one.create_event().unwrap());
        assert!(other.synchronize_stream(stream).unwrap_err().is::<BadArgument>());
        assert!(other.query_event(event).unwrap_err().is::<BadArgument>());
        // The own stream is the device's, and so both backends'.
        other.synchronize_stream(one.stream()).unwrap();
        // SAFETY: the two live to the end of this test.
        let there = unsafe { other.adopt_stream(stream.raw()) }.unwrap();
        // SAFETY: as above.
        let mark = unsafe { other.adopt_event(event.raw()) }.unwrap();
        other.record_event(mark, there).unwrap();
        other.synchronize_event(mark).unwrap();
        other.release_stream(there).unwrap();
        other.release_event(mark).unwrap();
        one.destroy_stream(stream).unwrap();
        one.destroy_event(event).unwrap();
    }

    a_stale_stream_is_refused_though_its_number_is_a_capturing_streams(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver.clone());
        let at = backend.alloc(256).unwrap();
        let (stale, line) = (backend.create_stream().unwrap(), line!() + 1);
        backend.release_stream(stale).unwrap();
        // SAFETY: it is alive, and destroyed after its release below.
        let stream = unsafe { backend.adopt_stream(stale.raw()) }.unwrap();
        assert_eq!((stream.raw(), stream == stale), (stale.raw(), false));
        let words = [format!("stream {stale:#x} was released at"), format!("{}:{line}", file!())];
        let words = words.each_ref().map(String::as_str);
        let refused = |backend: &MetraleCudaBackend| {
            assert_refused(every_use_of_a_stream(backend, at, stale), &words);
            assert_refused(every_capture_of_a_stream(backend, stale), &words);
            assert_refused(vec![("pin_in_capture", backend.pin_in_capture(stale, at))], &words);
            assert_refused(vec![("destroy_stream", backend.destroy_stream(stale))], &words);
            assert_refused(vec![("release_stream", backend.release_stream(stale))], &words);
        };
        refused(&backend);
        let capture = backend.capture(stream).unwrap();
        refused(&backend);
        backend.memset_async(at, 1, 16, stream).unwrap();
        let graph = capture.end().unwrap();
        assert_eq!(backend.graphs()[0].nodes, 1, "the capture was left alone");
        backend.destroy_graph(graph).unwrap();
        assert_done(every_use_of_a_stream(&backend, at, stream));
        backend.release_stream(stream).unwrap();
        // SAFETY: the stream is this test's own again, and live.
        assert_eq!(unsafe { driver.cuStreamDestroy_v2(stale.raw()) }, 0);
        backend.free(at).unwrap();
    }

    a_stale_event_is_refused_though_its_number_is_anothers(driver) {
        let backend = backend(driver.clone());
        let live = backend.create_timing_event().unwrap();
        let (stale, line) = (backend.create_timing_event().unwrap(), line!() + 1);
        backend.release_event(stale).unwrap();
        // SAFETY: it is alive, and destroyed after its release below.
        let event = unsafe { backend.adopt_event(stale.raw()) }.unwrap();
        assert_eq!((event.raw(), event == stale), (stale.raw(), false));
        let words = [format!("event {stale:#x} was released at"), format!("{}:{line}", file!())];
        let words = words.each_ref().map(String::as_str);
        assert_refused(every_use_of_an_event(&backend, live, stale), &words);
        assert_refused(vec![("destroy_event", backend.destroy_event(stale))], &words);
        assert_refused(vec![("release_event", backend.release_event(stale))], &words);
        backend.record_event(event, backend.stream()).unwrap();
        backend.synchronize_event(event).unwrap();
        backend.release_event(event).unwrap();
        // SAFETY: the event is this test's own again, and live.
        assert_eq!(unsafe { driver.cuEventDestroy_v2(stale.raw()) }, 0);
        backend.destroy_event(live).unwrap();
    }

    what_is_made_after_a_destruction_does_not_revive_the_old_handle(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver);
        let at = backend.alloc(256).unwrap();
        let live = backend.create_timing_event().unwrap();
        let (stream, event) = (backend.create_stream().unwrap(), backend.create_event().unwrap());
        let line = line!() + 1;
        backend.destroy_stream(stream).unwrap();
        backend.destroy_event(event).unwrap();
        // The driver may give the numbers again, and need not.
        let streams = [(); 16].map(|()| backend.create_stream().unwrap());
        let events = [(); 16].map(|()| backend.create_event().unwrap());
        assert!(!streams.contains(&stream) && !events.contains(&event));
        let site = format!("{}:{line}", file!());
        assert_refused(every_use_of_a_stream(&backend, at, stream), &["was destroyed at", &site]);
        assert_refused(vec![("destroy_stream", backend.destroy_stream(stream))], &["was destroyed at", &site]);
        let site = format!("{}:{}", file!(), line + 1);
        assert_refused(every_use_of_an_event(&backend, live, event), &["was destroyed at", &site]);
        assert_refused(vec![("destroy_event", backend.destroy_event(event))], &["was destroyed at", &site]);
        for (stream, event) in streams.into_iter().zip(events) {
            backend.record_event(event, stream).unwrap();
            backend.synchronize_event(event).unwrap();
            backend.destroy_stream(stream).unwrap();
            backend.destroy_event(event).unwrap();
        }
        backend.destroy_event(live).unwrap();
        backend.free(at).unwrap();
    }

    a_stale_graph_is_refused_by_name_whatever_is_captured_after_it(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        let capture = |name: &str| {
            let capture = backend.capture(backend.stream()).unwrap();
            backend.memset_async(at, 7, 64, backend.stream()).unwrap();
            capture.finish(name).unwrap()
        };
        let stale = capture("first");
        backend.destroy_graph(stale).unwrap();
        // The driver may give the number again, and need not.
        let graphs = [(); 16].map(|()| capture("later"));
        assert!(!graphs.contains(&stale));
        let words = ["graph \"first\"", "destroyed before"];
        assert_refused(
            vec![
                ("launch_graph", backend.launch_graph(stale, backend.stream())),
                ("update_graph", backend.update_graph(stale, backend.stream()).map(drop)),
                ("pin_graph", backend.pin_graph(stale, at)),
                ("destroy_graph", backend.destroy_graph(stale)),
            ],
            &words,
        );
        for graph in graphs {
            backend.launch_graph(graph, backend.stream()).unwrap();
            backend.synchronize_stream(backend.stream()).unwrap();
            backend.destroy_graph(graph).unwrap();
        }
        backend.free(at).unwrap();
    }

    a_foreign_stream_comes_in_and_leaves_alive(driver; sim: sim_with_kernels()) {
        let backend = with_kernels(driver.clone());
        let at = backend.alloc(256).unwrap();
        let mut raw = 0;
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { driver.cuStreamCreate(&mut raw, 1) }, 0);
        assert_refused(every_use_of_a_stream(&backend, at, forged_stream(raw)), &["adopt_stream"]);
        let line = line!() + 2;
        // SAFETY: made above, and destroyed after its release below.
        let stream = unsafe { backend.adopt_stream(raw) }.unwrap();
        assert_done(every_use_of_a_stream(&backend, at, stream));
        // SAFETY: as above.
        let again = unsafe { backend.adopt_stream(raw) }.unwrap_err().to_string();
        let site = format!("{}:{line}", file!());
        assert!(again.contains("known already, adopted at") && again.contains(&site), "{again}");
        let words = ["was adopted at", "only its maker may destroy it", "release_stream", &site];
        assert_refused(vec![("destroy_stream", backend.destroy_stream(stream))], &words);

        backend.release_stream(stream).unwrap();
        assert_refused(every_use_of_a_stream(&backend, at, stream), &["was released at", "adopt_stream"]);
        // SAFETY: the stream is this test's own again, and live.
        assert_eq!(unsafe { driver.cuStreamDestroy_v2(raw) }, 0);
        backend.free(at).unwrap();
    }

    what_is_made_here_can_leave_too(driver) {
        let backend = backend(driver.clone());
        let (stream, event) = (backend.create_stream().unwrap(), backend.create_event().unwrap());
        backend.release_stream(stream).unwrap();
        backend.release_event(event).unwrap();
        assert!(backend.query_event(event).unwrap_err().to_string().contains("was released at"));
        let ((), lines) = logged(|| drop(backend));
        assert!(lines.is_empty(), "what was released is not the backend's to destroy: {lines:?}");
    }

    what_is_left_at_the_drop_is_destroyed_with_one_warning(driver) {
        let trace = Arc::new(TraceDriver::new(driver));
        let backend = backend(trace.clone());
        let (streams, line) = ([(); 3].map(|()| backend.create_stream().unwrap()), line!());
        let event = backend.create_event().unwrap();
        backend.record_event(event, streams[0]).unwrap();
        let mut foreign = 0;
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { trace.cuEventCreate(&mut foreign, 2) }, 0);
        // SAFETY: the event lives longer than the backend.
        unsafe { backend.adopt_event(foreign) }.unwrap();
        let host = backend.host().clone();
        let before = trace.calls().len();
        let ((), lines) = logged(|| drop(backend));
        assert_eq!(lines.len(), 1, "{lines:?}");
        let site = format!("{}:{line}", file!());
        assert!(lines[0].contains("3 streams and 1 event left") && lines[0].contains(&site), "{lines:?}");
        assert!(lines[0].contains("(3), "), "{lines:?}");
        let destroyed = |function| trace.calls()[before..].iter().filter(|call| call.function == function).count();
        assert_eq!(destroyed(DriverFn::cuStreamDestroy_v2), 3);
        assert_eq!(destroyed(DriverFn::cuEventDestroy_v2), 1, "an adopted event is its maker's");
        // SAFETY: made above, and destroyed nowhere.
        assert_eq!(unsafe { trace.cuEventDestroy_v2(foreign) }, 0);
        drop(host);
    }
}

/// The driver is never shown a handle that is refused: on hardware that would be the end.
#[test]
fn a_thread_tells_equal_handles_of_two_backends_apart() {
    let driver = common::sim();
    let [first, second] = [0, 1].map(|_| backend(driver.clone()));
    let stream = first.create_stream().unwrap();
    first.synchronize_stream(stream).unwrap();
    let error = second.synchronize_stream(stream).unwrap_err();
    assert!(error.to_string().contains("is no stream of this backend"), "{error}");
    // SAFETY: the first backend keeps it until it is released.
    let there = unsafe { second.adopt_stream(stream.raw()) }.unwrap();
    for (backend, handle) in [(&first, stream), (&second, there), (&first, stream)] {
        backend.synchronize_stream(handle).unwrap();
    }
    assert!(first.synchronize_stream(there).unwrap_err().is::<BadArgument>());
    second.release_stream(there).unwrap();
    let error = second.synchronize_stream(there).unwrap_err();
    assert!(error.to_string().contains("was released at"), "{error}");
    // SAFETY: as above.
    let again = unsafe { second.adopt_stream(stream.raw()) }.unwrap();
    second.synchronize_stream(again).unwrap();
    let error = second.synchronize_stream(there).unwrap_err();
    assert!(
        error.to_string().contains("was released at"),
        "the new handle does not revive the old one: {error}"
    );
    second.release_stream(again).unwrap();
    first.synchronize_stream(stream).unwrap();
    first.destroy_stream(stream).unwrap();
    let error = first.synchronize_stream(stream).unwrap_err();
    assert!(error.to_string().contains("was destroyed at"), "{error}");
    drop((first, second));
    assert_eq!(Arc::strong_count(&driver), 1, "what a thread used last keeps no driver alive");
}

#[test]
fn the_own_stream_of_a_device_is_one_for_its_backends_and_another_after_the_last() {
    let driver = sim();
    let [one, other] = [(); 2].map(|()| backend(driver.clone()));
    let stale = one.stream();
    assert_eq!(other.stream(), stale);
    drop(one);
    other.synchronize_stream(stale).unwrap();
    drop(other);
    let next = backend(driver);
    assert_ne!(next.stream(), stale);
    let error = next.synchronize_stream(stale).unwrap_err();
    assert!(error.to_string().contains("is no stream of this backend"), "{error}");
    next.synchronize_stream(next.stream()).unwrap();
}

#[test]
fn what_is_refused_never_reaches_the_driver() {
    let driver = Arc::new(sim_with_kernels());
    let trace = Arc::new(TraceDriver::new(driver.clone()));
    let backend = with_kernels(trace.clone());
    let at = backend.alloc(256).unwrap();
    let (stream, event) = (backend.create_stream().unwrap(), backend.create_event().unwrap());
    let live = backend.create_timing_event().unwrap();
    backend.destroy_stream(stream).unwrap();
    backend.destroy_event(event).unwrap();
    let before = trace.calls().len();
    assert_refused(every_use_of_a_stream(&backend, at, stream), &[]);
    assert_refused(every_capture_of_a_stream(&backend, stream), &[]);
    assert_refused(every_use_of_an_event(&backend, live, event), &[]);
    for call in &trace.calls()[before..] {
        let text = call.to_string();
        assert!(!text.contains(&format!("{stream:#x}")) && !text.contains(&format!("{event:#x}")), "{text}");
    }
    assert!(driver.diagnostics().is_empty(), "{:?}", driver.diagnostics());
    backend.destroy_event(live).unwrap();
    backend.free(at).unwrap();
}

/// A driver on which one call of the thread `waits` takes as long as the test wants, after `earlier` such calls:
/// `(driver, entered, go)`.
fn with_a_long_call(
    function: DriverFn,
    earlier: usize,
) -> (Arc<HookedDriver>, std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>) {
    let driver = Arc::new(HookedDriver::new(sim()));
    let ((enter, entered), (go, gone)) = (channel(), channel());
    let (gone, calls) = (Mutex::new(gone), AtomicUsize::new(0));
    driver.before_each(move |called| {
        let counts = called == function && thread::current().name() == Some("waits");
        if counts && calls.fetch_add(1, Ordering::Relaxed) == earlier {
            enter.send(()).unwrap();
            gone.lock().unwrap().recv().unwrap();
        }
    });
    (driver, entered, go)
}

#[test]
fn a_handle_destroyed_under_a_wait_lives_until_the_wait_is_over() {
    for (function, destroys) in [
        (DriverFn::cuStreamSynchronize, DriverFn::cuStreamDestroy_v2),
        (DriverFn::cuEventSynchronize, DriverFn::cuEventDestroy_v2),
    ] {
        let (driver, entered, go) = with_a_long_call(function, 0);
        let trace = Arc::new(TraceDriver::new(driver));
        let backend = backend(trace.clone());
        let of_streams = function == DriverFn::cuStreamSynchronize;
        let (stream, event) = (backend.create_stream().unwrap(), backend.create_event().unwrap());
        let wait =
            || if of_streams { backend.synchronize_stream(stream) } else { backend.synchronize_event(event) };
        let destroy =
            || if of_streams { backend.destroy_stream(stream) } else { backend.destroy_event(event) };
        let release =
            || if of_streams { backend.release_stream(stream) } else { backend.release_event(event) };
        thread::scope(|scope| {
            let waiting = thread::Builder::new().name("waits".into()).spawn_scoped(scope, || {
                backend.bind_to_thread().unwrap();
                wait().unwrap();
            });
            entered.recv().unwrap();
            let refused = release().unwrap_err().to_string();
            assert!(refused.contains("using") && refused.contains("try again"), "{refused}");
            // Neither waits for the other thread.
            destroy().unwrap();
            assert!(wait().unwrap_err().to_string().contains("was destroyed at"));
            assert!(destroy().unwrap_err().is::<BadArgument>());
            assert_eq!(trace.count(destroys), 0, "the wait still has it");
            go.send(()).unwrap();
            waiting.unwrap().join().unwrap();
            assert_eq!(trace.count(destroys), 1, "the last call to return destroys it");
        });
    }
}

#[test]
fn a_stream_ended_under_a_graphs_launch_lives_until_that_has_returned() {
    let (driver, entered, go) = with_a_long_call(DriverFn::cuGraphLaunch, 2);
    let trace = Arc::new(TraceDriver::new(driver));
    let backend = backend(trace.clone());
    let (at, stream) = (backend.alloc(64).unwrap(), backend.create_stream().unwrap());
    let graph = filling(&backend, at);
    (0..100).for_each(|_| backend.launch_graph(graph, stream).unwrap());
    thread::scope(|scope| {
        let launching = thread::Builder::new().name("waits".into()).spawn_scoped(scope, || {
            backend.bind_to_thread().unwrap();
            (0..3).for_each(|_| backend.launch_graph(graph, stream).unwrap());
        });
        entered.recv().unwrap();
        let refused = backend.release_stream(stream).unwrap_err().to_string();
        assert!(refused.contains("using") && refused.contains("try again"), "{refused}");
        // Does not wait for the launch.
        backend.destroy_stream(stream).unwrap();
        let refused = backend.launch_graph(graph, stream).unwrap_err();
        assert!(
            refused.is::<BadArgument>() && refused.to_string().contains("was destroyed at"),
            "{refused:#}"
        );
        assert_eq!(trace.count(DriverFn::cuStreamDestroy_v2), 0, "the launch still uses it");
        go.send(()).unwrap();
        launching.unwrap().join().unwrap();
        assert_eq!(trace.count(DriverFn::cuStreamDestroy_v2), 1, "the thread that launched destroys it");
    });
    assert_eq!(trace.count(DriverFn::cuGraphLaunch), 103);
    backend.synchronize().unwrap();
    backend.destroy_graph(graph).unwrap();
    backend.free(at).unwrap();
}

#[test]
fn a_stream_released_after_launches_of_a_graph_can_be_adopted_and_used_again() {
    let backend = backend(sim());
    let (at, stream) = (backend.alloc(64).unwrap(), backend.create_stream().unwrap());
    let graph = filling(&backend, at);
    (0..100).for_each(|_| backend.launch_graph(graph, stream).unwrap());
    backend.release_stream(stream).unwrap();
    let refused = backend.launch_graph(graph, stream).unwrap_err();
    assert!(refused.is::<BadArgument>() && refused.to_string().contains("was released at"), "{refused:#}");
    // SAFETY: it is alive, and this test's own.
    let stream = unsafe { backend.adopt_stream(stream.raw()) }.unwrap();
    (0..100).for_each(|_| backend.launch_graph(graph, stream).unwrap());
    backend.synchronize().unwrap();
    backend.destroy_graph(graph).unwrap();
    backend.free(at).unwrap();
}

/// Both backends may launch the graph, but each only on streams that it knows.
#[test]
fn a_graph_launched_on_one_backends_stream_is_refused_there_by_another() {
    let driver = sim();
    let [one, other] = [backend(driver.clone()), backend(driver)];
    let (at, stream) = (one.alloc(64).unwrap(), one.create_stream().unwrap());
    let graph = filling(&one, at);
    (0..1000).for_each(|_| one.launch_graph(graph, stream).unwrap());
    (0..3).for_each(|_| other.launch_graph(graph, other.stream()).unwrap());
    let refused = other.launch_graph(graph, stream).unwrap_err();
    assert!(refused.to_string().contains("is no stream of this backend"), "{refused:#}");
    one.launch_graph(graph, stream).unwrap();
    one.synchronize().unwrap();
    one.destroy_graph(graph).unwrap();
    one.destroy_stream(stream).unwrap();
    one.free(at).unwrap();
}

/// A thread that replays a graph without a pause does not keep another from destroying a stream of that graph.
#[test]
fn a_stream_is_ended_beside_endless_replays_elsewhere() {
    let backend = backend(sim());
    let at = backend.alloc(64).unwrap();
    let graph = filling(&backend, at);
    let over = AtomicBool::new(false);
    for to_own in [true, false] {
        let [stream, other] = [(); 2].map(|()| backend.create_stream().unwrap());
        let (launched, elsewhere) = (AtomicUsize::new(0), if to_own { backend.stream() } else { other });
        over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| {
                backend.bind_to_thread().unwrap();
                (0..100).for_each(|_| backend.launch_graph(graph, stream).unwrap());
                while !over.load(Ordering::Relaxed) {
                    backend.launch_graph(graph, elsewhere).unwrap();
                    launched.fetch_add(1, Ordering::Relaxed);
                }
            });
            while launched.load(Ordering::Relaxed) < 100 {
                thread::yield_now();
            }
            backend.destroy_stream(stream).unwrap();
            over.store(true, Ordering::Relaxed);
        });
        backend.destroy_stream(other).unwrap();
    }
    backend.destroy_graph(graph).unwrap();
    backend.free(at).unwrap();
}

/// A graph that fills what is allocated there.
fn filling(backend: &MetraleCudaBackend, at: DevicePtr) -> GraphHandle {
    let capture = backend.capture(backend.stream()).unwrap();
    backend.memset_async(at, 1, 64, backend.stream()).unwrap();
    capture.end().unwrap()
}

on_both_drivers! {
    /// Graphs that many threads launch on streams which come and go: each launch is done, or refused with how the stream ended.
    streams_come_and_go_under_launches_of_graphs(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        let graphs = [(); 3].map(|()| filling(&backend, at));
        for round in 0..30 {
            let streams = [(); 2].map(|()| backend.create_stream().unwrap());
            let launched = AtomicUsize::new(0);
            thread::scope(|scope| {
                for seed in 0..3_usize {
                    let (backend, launched) = (&backend, &launched);
                    scope.spawn(move || {
                        backend.bind_to_thread().unwrap();
                        // Each thread launches on one stream, and now and then on the other.
                        for count in 0_usize.. {
                            let place = if count % 50 == seed { 1 } else { seed % 2 };
                            let graph = graphs[if count % 7 == 0 { (seed + 1) % 3 } else { seed }];
                            if let Err(error) = backend.launch_graph(graph, streams[place]) {
                                let text = error.to_string();
                                assert!(
                                    error.is::<BadArgument>() && text.contains("was destroyed at"),
                                    "{error:#}"
                                );
                                break;
                            }
                            launched.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                while launched.load(Ordering::Relaxed) < 100 + 20 * round {
                    thread::yield_now();
                }
                streams.into_iter().for_each(|stream| backend.destroy_stream(stream).unwrap());
            });
        }
        backend.synchronize().unwrap();
        // They go on elsewhere.
        let stream = backend.create_stream().unwrap();
        (0..100).for_each(|_| backend.launch_graph(graphs[0], stream).unwrap());
        backend.synchronize_stream(stream).unwrap();
        backend.destroy_stream(stream).unwrap();
        graphs.into_iter().for_each(|graph| backend.destroy_graph(graph).unwrap());
        backend.free(at).unwrap();
    }
}

#[test]
fn threads_that_use_and_destroy_each_others_handles_never_show_the_driver_a_dead_one() {
    let driver = sim();
    let backend = backend(driver.clone());
    let handles = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for seed in 0..4_usize {
            let (backend, handles) = (&backend, &handles);
            scope.spawn(move || {
                backend.bind_to_thread().unwrap();
                for round in 0..500_usize {
                    let (stream, event) = match (round * 7 + seed) % 3 {
                        0 => {
                            let made = (backend.create_stream().unwrap(), backend.create_event().unwrap());
                            handles.lock().unwrap().push(made);
                            made
                        }
                        _ => {
                            let handles = handles.lock().unwrap();
                            let Some(&any) = handles.get((round * 31 + seed) % handles.len().max(1)) else {
                                continue;
                            };
                            any
                        }
                    };
                    // Done, or refused because another thread has destroyed the handle.
                    let outcomes = [
                        backend.record_event(event, stream),
                        backend.synchronize_stream(stream),
                        backend.wait_event(stream, event),
                        backend.query_event(event).map(drop),
                        if round % 5 == seed { backend.destroy_stream(stream) } else { Ok(()) },
                        if round % 7 == seed { backend.destroy_event(event) } else { Ok(()) },
                    ];
                    for error in outcomes.into_iter().filter_map(Result::err) {
                        assert!(
                            error.is::<BadArgument>() && error.to_string().contains("was destroyed at"),
                            "{error:#}"
                        );
                    }
                }
            });
        }
    });
    let ((), _) = logged(|| drop(backend));
    assert!(driver.diagnostics().is_empty(), "{:?}", driver.diagnostics());
    assert!(driver.leaks().is_empty(), "{:?}", driver.leaks());
}

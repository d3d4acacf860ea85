// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a capture in flight refuses: each such call is answered before the driver is asked, the capture stays valid, and
//! its end gives a graph that replays right.

mod common;

use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use common::hooked::HookedDriver;
use common::{
    MIB, address, assert_site, backend, backend_with_kernels, forged_stream, sim, sim_with_kernels,
};
use metrale_cuda_backend::{
    BadArgument, CallFailed, CaptureGuard, Capturing, Copy2d, DevicePtr, DriverApi, DriverFn, KernelLaunch,
    MetraleCudaBackend, NotCapturing, PinnedByGraph, PinnedPtr, Remedy,
};
use metrale_cuda_backend::{Error, EventHandle, LEGACY_STREAM, StreamHandle};
use metrale_driver_sim::driver_sys::SCALE;
use metrale_driver_sim::{Profile, SimDriver, TraceDriver, on_both_drivers};

const BYTES: usize = 4096;

/// What the refused calls are made on.
struct Scene {
    backend: MetraleCudaBackend,
    /// The capturing stream, which is not the backend's own.
    stream: StreamHandle,
    at: DevicePtr,
    other: DevicePtr,
    arena: DevicePtr,
    pinned: PinnedPtr,
    /// Recorded and passed before the capture.
    before: EventHandle,
    /// Recorded in the capture.
    inside: EventHandle,
    graph: metrale_cuda_backend::GraphHandle,
}

impl Scene {
    fn new(driver: Arc<dyn DriverApi>) -> Self {
        let backend = backend_with_kernels(driver);
        let stream = backend.create_stream().unwrap();
        let (before, inside) =
            (backend.create_timing_event().unwrap(), backend.create_timing_event().unwrap());
        backend.record_event(before, stream).unwrap();
        let graph = backend.capture(backend.stream()).unwrap().end().unwrap();
        let scene = Self {
            stream,
            at: backend.alloc(BYTES).unwrap(),
            other: backend.alloc(BYTES).unwrap(),
            arena: backend.alloc_arena(BYTES).unwrap(),
            pinned: backend.alloc_pinned(BYTES).unwrap(),
            before,
            inside,
            graph,
            backend,
        };
        scene.backend.synchronize().unwrap();
        scene
    }

    /// Captures a fill, makes the call in the middle, and checks the capture's end: the graph does both fills.
    fn in_a_capture<T>(
        &self,
        value: u8,
        stream: StreamHandle,
        call: impl FnOnce(&Self, &CaptureGuard<'_>) -> T,
    ) -> (u32, T) {
        let backend = &self.backend;
        backend.memset(self.at, 0, BYTES).unwrap();
        let (line, capture) = (line!(), backend.capture(stream).unwrap());
        backend.memset_async(self.at, value, BYTES / 2, stream).unwrap();
        backend.record_event(self.inside, stream).unwrap();
        let answer = call(self, &capture);
        let half = self.at.offset(BYTES as u64 / 2);
        backend.memset_async(half, value.wrapping_add(1), BYTES / 2, stream).unwrap();
        let graph = capture.finish("after a refusal").unwrap();
        for _ in 0..2 {
            backend.memset(self.at, 0, BYTES).unwrap();
            backend.launch_graph(graph, stream).unwrap();
            backend.synchronize_stream(stream).unwrap();
            let mut back = vec![0; BYTES];
            backend.copy_d2h(self.at, &mut back).unwrap();
            assert!(back[..BYTES / 2].iter().all(|&byte| byte == value), "the first fill");
            assert!(back[BYTES / 2..].iter().all(|&byte| byte == value.wrapping_add(1)), "the second fill");
        }
        let info = backend.graphs().into_iter().find(|info| info.handle == graph).unwrap();
        assert_eq!(info.nodes, 2, "nothing else was captured");
        backend.destroy_graph(graph).unwrap();
        (line, answer)
    }

    fn clean(self) {
        let Self { backend, stream, at, other, arena, pinned, before, inside, graph } = self;
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
        backend.free(other).unwrap();
        backend.free_arena(arena).unwrap();
        backend.free_pinned(pinned).unwrap();
        for event in [before, inside] {
            backend.destroy_event(event).unwrap();
        }
        backend.destroy_stream(stream).unwrap();
        backend.ledger_probe().assert_nothing_live();
    }
}

type Call = fn(&Scene) -> Error;

/// Every call that is refused on the thread and stream that capture, and a word of its advice.
fn refused() -> Vec<(&'static str, &'static str, Call)> {
    vec![
        ("alloc", "before", |s| s.backend.alloc(64).unwrap_err()),
        ("alloc_managed", "before", |s| s.backend.alloc_managed(64).unwrap_err()),
        ("alloc_arena", "before", |s| s.backend.alloc_arena(64).unwrap_err()),
        ("alloc_pinned", "before", |s| s.backend.alloc_pinned(64).unwrap_err()),
        ("free", "after", |s| s.backend.free(s.other).unwrap_err()),
        ("free of what is captured", "after", |s| s.backend.free(s.at).unwrap_err()),
        ("free_arena", "after", |s| s.backend.free_arena(s.arena).unwrap_err()),
        ("free_pinned", "after", |s| s.backend.free_pinned(s.pinned).unwrap_err()),
        ("copy_h2d", "asynchronous", |s| s.backend.copy_h2d(&[1; 64], s.other).unwrap_err()),
        ("copy_d2h", "asynchronous", |s| s.backend.copy_d2h(s.other, &mut [1; 64]).unwrap_err()),
        ("copy_d2d", "asynchronous", |s| s.backend.copy_d2d(s.other, s.arena, 64).unwrap_err()),
        ("memset", "asynchronous", |s| s.backend.memset(s.other, 1, 64).unwrap_err()),
        ("copy_h2d_async", "copy_h2d_async_retained", |s| {
            s.backend.copy_h2d_async(&[1; 64], s.other, s.stream).unwrap_err()
        }),
        ("copy_d2h_on_stream", "copy_d2h_async_retained", |s| {
            s.backend.copy_d2h_on_stream(s.other, &mut [1; 64], s.stream).unwrap_err()
        }),
        ("synchronize_stream", "launch", |s| s.backend.synchronize_stream(s.stream).unwrap_err()),
        ("query_stream", "launch", |s| s.backend.query_stream(s.stream).unwrap_err()),
        ("destroy_stream", "end the capture", |s| s.backend.destroy_stream(s.stream).unwrap_err()),
        ("release_stream", "end the capture", |s| s.backend.release_stream(s.stream).unwrap_err()),
        ("release_op_cache", "after", |s| s.backend.release_op_cache().unwrap_err()),
        ("copy_peer", "asynchronous", |s| s.backend.copy_peer(s.other, &s.backend, s.arena, 64).unwrap_err()),
        ("copy_peer_async on the legacy stream", "missing from the graph", |s| {
            s.backend.copy_peer_async(s.other, &s.backend, s.arena, 64, LEGACY_STREAM).unwrap_err()
        }),
        ("wait_peer_event of before", "not recorded in this capture", |s| {
            s.backend.wait_peer_event(s.stream, &s.backend, s.before).unwrap_err()
        }),
        ("wait_event on the stream of the thread", "that of each thread", |s| {
            s.backend.wait_event(StreamHandle::PER_THREAD, s.inside).unwrap_err()
        }),
        ("synchronize", "every capture", |s| s.backend.synchronize().unwrap_err()),
        ("query_event", "recorded in the capture", |s| s.backend.query_event(s.inside).unwrap_err()),
        ("synchronize_event", "recorded in the capture", |s| {
            s.backend.synchronize_event(s.inside).unwrap_err()
        }),
        ("elapsed_ms", "recorded in the capture", |s| s.backend.elapsed_ms(s.before, s.inside).unwrap_err()),
        ("memory_info", "before", |s| s.backend.memory_info().unwrap_err()),
        ("sweep_unreleased", "after", |s| s.backend.sweep_unreleased().unwrap_err()),
        ("begin_capture", "already", |s| s.backend.begin_capture(s.stream).unwrap_err()),
        ("launch_graph", "no graph into a capture", |s| {
            s.backend.launch_graph(s.graph, s.stream).unwrap_err()
        }),
        ("wait_event of before", "not recorded in this capture", |s| {
            s.backend.wait_event(s.stream, s.before).unwrap_err()
        }),
        ("wait_event on the legacy stream", "legacy", |s| {
            s.backend.wait_event(LEGACY_STREAM, s.inside).unwrap_err()
        }),
        ("memset_async on the legacy stream", "missing from the graph", |s| {
            s.backend.memset_async(s.other, 1, 64, LEGACY_STREAM).unwrap_err()
        }),
        ("memset_d32_async on the legacy stream", "missing from the graph", |s| {
            s.backend.memset_d32_async(s.other, 1, 1, forged_stream(1)).unwrap_err()
        }),
        ("copy_d2d_async on the legacy stream", "missing from the graph", |s| {
            s.backend.copy_d2d_async(s.other, s.arena, 64, LEGACY_STREAM).unwrap_err()
        }),
        ("copy_2d_async on the legacy stream", "missing from the graph", |s| {
            let copy = Copy2d::device(s.other, 8, s.arena, 8, 8, 2);
            // SAFETY: no host memory takes part.
            unsafe { s.backend.copy_2d_async(&copy, LEGACY_STREAM) }.unwrap_err()
        }),
        ("copy_h2d_async_retained on the legacy stream", "missing from the graph", |s| {
            // SAFETY: nothing is queued, which is what is tested.
            unsafe { s.backend.copy_h2d_async_retained(s.pinned.as_ptr(), 64, s.other, LEGACY_STREAM) }
                .unwrap_err()
        }),
        ("copy_d2h_async_retained on the legacy stream", "missing from the graph", |s| {
            // SAFETY: as above.
            unsafe { s.backend.copy_d2h_async_retained(s.other, s.pinned.as_ptr(), 64, LEGACY_STREAM) }
                .unwrap_err()
        }),
        ("launch_graph on the legacy stream", "missing from the graph", |s| {
            s.backend.launch_graph(s.graph, LEGACY_STREAM).unwrap_err()
        }),
        ("launch on the legacy stream", "missing from the graph", |s| {
            let fill = s.backend.kernel("kernels", "fill").unwrap();
            let mut launch = KernelLaunch::new(fill).ptr(s.other).u32(1).u32(1);
            // SAFETY: the arguments are the kernel's parameters; it writes one word.
            unsafe { launch.on_stream(&s.backend, LEGACY_STREAM) }.unwrap_err()
        }),
    ]
}

on_both_drivers! {
    every_refusal_leaves_the_capture_valid(driver; sim: sim_with_kernels()) {
        let scene = Scene::new(driver);
        for ((name, word, call), value) in refused().into_iter().zip(1..) {
            let (line, error) = scene.in_a_capture(value, scene.stream, |scene, _| call(scene));
            assert_eq!(error.remedy(), Remedy::FixCall, "{name}");
            let text = error.to_string();
            let refusal = error.downcast::<Capturing>().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(refusal.stream, scene.stream, "{name}");
            assert_site(&refusal.begun_at.to_string(), file!(), line);
            assert!(text.contains(word) && text.contains("the capture goes on"), "{name}: {text}");
            assert!(text.contains(&format!("{}:{line}", file!())), "{name}: {text}");
        }
        scene.clean();
    }

    /// Some calls are allowed in a relaxed capture, on its very thread.
    what_disturbs_nothing_is_allowed(driver; sim: sim_with_kernels()) {
        let scene = Scene::new(driver);
        scene.in_a_capture(50, scene.stream, |scene, _| {
            let backend = &scene.backend;
            backend.free(DevicePtr::NULL).unwrap();
            backend.kernel("kernels", "fill").unwrap();
            let (stream, event) = (backend.create_stream().unwrap(), backend.create_event().unwrap());
            backend.memset_async(scene.other, 9, BYTES, stream).unwrap();
            backend.record_event(event, stream).unwrap();
            backend.query_stream(stream).unwrap();
            backend.synchronize_event(event).unwrap();
            backend.synchronize_stream(stream).unwrap();
            assert!(backend.query_event(scene.before).unwrap());
            // Another capture on the same thread, from its beginning to the end of its graph.
            let other = backend.capture(stream).unwrap();
            backend.memset_async(scene.other, 8, BYTES, stream).unwrap();
            let other = other.end().unwrap();
            backend.launch_graph(other, stream).unwrap();
            backend.synchronize_stream(stream).unwrap();
            backend.destroy_graph(other).unwrap();
            backend.destroy_event(event).unwrap();
            backend.destroy_stream(stream).unwrap();
            assert_eq!(backend.stream_is_capturing(scene.stream), !SCALE);
            assert!(!backend.stream_is_capturing(backend.stream()));
        });
        let mut back = [0; 1];
        scene.backend.copy_d2h(scene.other, &mut back).unwrap();
        assert_eq!(back, [8], "work on a stream that does not capture is done as ever");
        scene.clean();
    }

    /// What waits for the backend's own stream is refused on every thread while that captures.
    blocking_operations_wait_for_the_backends_own_stream(driver; sim: sim_with_kernels()) {
        let scene = Scene::new(driver);
        let own = scene.backend.stream();
        scene.in_a_capture(60, own, |scene, _| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let backend = &scene.backend;
                    backend.bind_to_thread().unwrap();
                    for error in [
                        backend.copy_h2d(&[1], scene.other).unwrap_err(),
                        backend.copy_d2h(scene.other, &mut [1]).unwrap_err(),
                        backend.copy_d2d(scene.other, scene.arena, 1).unwrap_err(),
                        backend.memset(scene.other, 1, 1).unwrap_err(),
                        backend.synchronize_stream(own).unwrap_err(),
                        backend.synchronize().unwrap_err(),
                        backend.sweep_unreleased().unwrap_err(),
                    ] {
                        assert!(error.is::<Capturing>(), "{error}");
                    }
                    let at = backend.alloc(MIB).unwrap();
                    backend.memory_info().unwrap();
                    backend.free(at).unwrap();
                });
            });
        });
        scene.clean();
    }
}

#[test]
fn no_refusal_reaches_the_driver() {
    let trace = Arc::new(TraceDriver::new(Arc::new(sim_with_kernels())));
    let scene = Scene::new(trace.clone());
    // Found once, a kernel is not asked for again.
    scene.backend.kernel("kernels", "fill").unwrap();
    scene.backend.begin_capture(scene.stream).unwrap();
    scene.backend.record_event(scene.inside, scene.stream).unwrap();
    let before = trace.calls().len();
    for (name, _, call) in refused() {
        assert!(call(&scene).is::<Capturing>(), "{name}");
    }
    let asked: Vec<_> = trace.calls()[before..].iter().map(|call| call.function).collect();
    assert!(asked.iter().all(|function| *function == DriverFn::cuCtxGetCurrent), "{asked:?}");
    assert!(scene.backend.abort_capture_if_active(scene.stream).unwrap());
    scene.clean();
}

/// Memory that is on no ledger costs a question to the driver, which is not put where the answer does not matter.
#[test]
fn no_refusal_asks_what_memory_of_others_is() {
    let sim = Arc::new(sim_with_kernels());
    let trace = Arc::new(TraceDriver::new(sim));
    let scene = Scene::new(trace.clone());
    let mut foreign = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!(unsafe { trace.cuMemAlloc_v2(&mut foreign, 64) }, 0);
    let (backend, ptr) = (&scene.backend, address(foreign));
    backend.begin_capture(scene.stream).unwrap();
    let before = trace.calls().len();
    for error in [
        backend.memset(ptr, 1, 64).unwrap_err(),
        backend.copy_h2d(&[1; 64], ptr).unwrap_err(),
        backend.copy_d2h(ptr, &mut [1; 64]).unwrap_err(),
        backend.copy_d2d(ptr, ptr, 64).unwrap_err(),
        backend.memset_async(ptr, 1, 64, LEGACY_STREAM).unwrap_err(),
        backend.copy_d2d_async(ptr, ptr, 64, LEGACY_STREAM).unwrap_err(),
        backend.copy_h2d_async(&[1; 64], ptr, scene.stream).unwrap_err(),
        backend.copy_d2h_on_stream(ptr, &mut [1; 64], scene.stream).unwrap_err(),
        backend.copy_peer(ptr, backend, ptr, 64).unwrap_err(),
        backend.copy_peer_async(ptr, backend, ptr, 64, LEGACY_STREAM).unwrap_err(),
    ] {
        assert!(error.is::<Capturing>(), "{error}");
    }
    let asked: Vec<_> = trace.calls()[before..].iter().map(|call| call.function).collect();
    assert!(asked.iter().all(|function| *function == DriverFn::cuCtxGetCurrent), "{asked:?}");
    assert!(backend.abort_capture_if_active(scene.stream).unwrap());
    // SAFETY: allocated above.
    assert_eq!(unsafe { trace.cuMemFree_v2(foreign) }, 0);
    scene.clean();
}

/// Situations reported for other projects, by their ids in data/capture_cases.tsv.
mod cases {
    use super::*;

    const CASES: &str = include_str!("data/capture_cases.tsv");

    /// The rows that a test of this module, or of those named, shows; and why the rest is not the backend's.
    const ROWS: &[(&str, &str)] = &[
        ("g01", "allocations"),
        ("g02", "allocations: captures are relaxed here, and the refusal is the same"),
        ("g04", "other_threads: captures are relaxed here, so that another thread's allocation breaks none"),
        ("g05", "other_threads"),
        ("g07", "device_wide"),
        ("g08", "another_device"),
        ("g10", "legacy_launch"),
        ("g11", "legacy_capture"),
        ("g13", "event_of_before"),
        ("g14", "unjoined"),
        ("g16", "end_elsewhere"),
        ("g17", "merge"),
        ("g19", "broken"),
        (
            "g20",
            "not the backend's: a module load left captures of every mode intact on an H200, and the docs of \
                 begin_capture advise to load before",
        ),
        ("g22", "other_threads: relaxed captures let helper threads query what is not captured"),
        (
            "g23",
            "other_threads: relaxed captures let a watchdog ask for the free memory; the capturing thread is refused",
        ),
        ("g25", "not the backend's: neither call is among the driver functions of this project"),
        ("g26", "freed_argument"),
        (
            "g28",
            "what_a_graph_takes_is_measured, in graphs.rs: memory of graphs is told apart from the ledger; captured \
                 allocations cannot arise, because they are refused",
        ),
        ("g29", "captured_twice"),
    ];

    #[test]
    fn every_row_is_shown_or_said_not_to_apply() {
        let ids: Vec<_> = CASES
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split('\t').next())
            .collect();
        assert_eq!(ids, ROWS.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        assert!(ROWS.iter().all(|(_, how)| !how.is_empty()));
    }

    on_both_drivers! {
        allocations(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let (line, error) = scene.in_a_capture(1, scene.stream, |s, _| s.backend.alloc(64).unwrap_err());
            assert_site(&error.downcast::<Capturing>().unwrap().begun_at.to_string(), file!(), line);
            scene.clean();
        }

        other_threads(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            scene.in_a_capture(2, scene.stream, |scene, _| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        let backend = &scene.backend;
                        backend.bind_to_thread().unwrap();
                        let at = backend.alloc(64).unwrap();
                        backend.free(at).unwrap();
                        assert!(backend.query_event(scene.before).unwrap());
                        backend.memory_info().unwrap();
                    });
                });
                assert!(scene.backend.memory_info().is_err());
            });
            scene.clean();
        }

        device_wide(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            scene.in_a_capture(3, scene.stream, |scene, _| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        scene.backend.bind_to_thread().unwrap();
                        let error = scene.backend.synchronize().unwrap_err();
                        assert_eq!(error.downcast::<Capturing>().unwrap().stream, scene.stream);
                    });
                });
            });
            scene.clean();
        }

        legacy_launch(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            scene.in_a_capture(4, scene.stream, |scene, _| {
                let fill = scene.backend.kernel("kernels", "fill").unwrap();
                let mut launch = KernelLaunch::new(fill).ptr(scene.other).u32(1).u32(1);
                // SAFETY: the arguments are the kernel's parameters; it writes one word.
                let error = unsafe { launch.on_stream(&scene.backend, LEGACY_STREAM) }.unwrap_err();
                assert!(error.to_string().contains("missing from the graph"), "{error}");
            });
            scene.clean();
        }

        legacy_capture(driver) {
            let backend = backend(driver);
            // The stream of each thread waits for the legacy one.
            for own in [LEGACY_STREAM, forged_stream(1), StreamHandle::PER_THREAD] {
                let error = backend.begin_capture(own).unwrap_err();
                assert_eq!(error.remedy(), Remedy::FixCall);
                assert!(error.is::<BadArgument>() && error.to_string().contains("use another stream"), "{error}");
            }
            backend.synchronize().unwrap();
        }

        event_of_before(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let (_, error) =
                scene.in_a_capture(5, scene.stream, |s, _| s.backend.wait_event(s.stream, s.before).unwrap_err());
            assert!(error.is::<Capturing>() && error.to_string().contains("before the capture begins"), "{error}");
            scene.clean();
        }

        unjoined(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let (backend, s2) = (&scene.backend, scene.backend.stream());
            let capture = backend.capture(scene.stream).unwrap();
            backend.record_event(scene.inside, scene.stream).unwrap();
            backend.wait_event(s2, scene.inside).unwrap();
            backend.memset_async(scene.other, 1, 64, s2).unwrap();
            let error = capture.end().unwrap_err();
            assert!(error.to_string().contains(&format!("{s2:#x} was not joined")), "{error}");
            assert_eq!(error.downcast::<CallFailed>().unwrap().driver.status, 904);
            scene.in_a_capture(6, scene.stream, |_, _| ());
            scene.clean();
        }

        end_elsewhere(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let s2 = scene.backend.create_stream().unwrap();
            scene.in_a_capture(7, scene.stream, |scene, _| {
                let backend = &scene.backend;
                let join = backend.create_event().unwrap();
                backend.wait_event(s2, scene.inside).unwrap();
                let error = backend.end_capture(s2).unwrap_err().downcast::<NotCapturing>().expect("typed");
                assert_eq!(error.part_of.map(|(origin, _)| origin), Some(scene.stream));
                backend.record_event(join, s2).unwrap();
                backend.wait_event(scene.stream, join).unwrap();
                backend.destroy_event(join).unwrap();
            });
            scene.backend.destroy_stream(s2).unwrap();
            scene.clean();
        }

        merge(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let (own, mut second) = (scene.backend.stream(), None);
            scene.in_a_capture(8, scene.stream, |scene, _| {
                let capture = scene.backend.capture(own).unwrap();
                let error = scene.backend.wait_event(own, scene.inside).unwrap_err();
                assert!(error.to_string().contains("merge"), "{error}");
                assert_eq!(error.downcast::<Capturing>().unwrap().stream, own);
                second = Some(capture.end().unwrap());
            });
            scene.backend.launch_graph(second.unwrap(), own).unwrap();
            scene.backend.synchronize_stream(own).unwrap();
            scene.backend.destroy_graph(second.unwrap()).unwrap();
            scene.clean();
        }

        freed_argument(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let backend = &scene.backend;
            let fill = backend.kernel("kernels", "fill").unwrap();
            let capture = backend.capture(scene.stream).unwrap();
            let mut launch = KernelLaunch::new(fill).ptr(scene.other).u32(1).u32(1);
            // SAFETY: the arguments are the kernel's parameters; it writes one word.
            unsafe { launch.on_stream(backend, scene.stream) }.unwrap();
            let graph = capture.finish("uses it").unwrap();
            let error = backend.free(scene.other).unwrap_err();
            assert!(error.is::<PinnedByGraph>() && error.to_string().contains("\"uses it\""), "{error}");
            backend.destroy_graph(graph).unwrap();
            scene.clean();
        }

        captured_twice(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let s2 = scene.backend.create_stream().unwrap();
            scene.in_a_capture(9, scene.stream, |scene, _| {
                let backend = &scene.backend;
                let join = backend.create_event().unwrap();
                backend.wait_event(s2, scene.inside).unwrap();
                let error = backend.begin_capture(s2).unwrap_err().downcast::<Capturing>().expect("typed");
                assert_eq!(error.stream, scene.stream);
                backend.record_event(join, s2).unwrap();
                backend.wait_event(scene.stream, join).unwrap();
                backend.destroy_event(join).unwrap();
            });
            scene.backend.destroy_stream(s2).unwrap();
            scene.clean();
        }
    }

    on_both_drivers! {
        /// Broken by a call outside the backend, a capture must still be ended; then its stream is as before.
        broken(driver; sim: sim_with_kernels()) {
            let scene = Scene::new(driver);
            let backend = &scene.backend;
            let capture = backend.capture(scene.stream).unwrap();
            // SAFETY: takes a handle.
            assert_eq!(unsafe { backend.driver().cuStreamQuery(scene.stream.raw()) }, 900);
            assert_eq!(backend.stream_is_capturing(scene.stream), !SCALE, "until it is ended");
            let error = backend.memset_async(scene.at, 1, 64, scene.stream).unwrap_err();
            assert_eq!(error.downcast::<CallFailed>().unwrap().driver.status, 901);
            let error = capture.end().unwrap_err();
            assert!(error.to_string().contains("the stream can be used again"), "{error}");
            assert_eq!(error.downcast::<CallFailed>().unwrap().driver.status, 901);
            assert!(!backend.stream_is_capturing(scene.stream));
            scene.in_a_capture(10, scene.stream, |_, _| ());
            scene.clean();
        }
    }

    #[test]
    fn another_device() {
        let driver = Arc::new(SimDriver::builder().device(Profile::h200()).device(Profile::rtx()).build());
        let first = backend(driver.clone());
        let at = first.alloc(64).unwrap();
        let capture = first.capture(first.stream()).unwrap();
        first.memset_async(at, 1, 64, first.stream()).unwrap();
        let second = MetraleCudaBackend::builder().driver(driver).ordinal(1).build().unwrap();
        let there = second.alloc(64).unwrap();
        second.synchronize().unwrap();
        second.free(there).unwrap();
        first.bind_to_thread().unwrap();
        let graph = capture.end().unwrap();
        first.launch_graph(graph, first.stream()).unwrap();
        first.synchronize().unwrap();
        first.destroy_graph(graph).unwrap();
        first.free(at).unwrap();
    }
}

#[test]
fn a_free_that_races_with_a_capture_was_first_or_is_refused() {
    let backend = &backend(sim());
    for _ in 0..50 {
        let at = backend.alloc(64).unwrap();
        let (send, receive) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let freeing = scope.spawn(move || {
                backend.bind_to_thread().unwrap();
                let _ = receive.recv();
                backend.free(at)
            });
            let capture = backend.capture(backend.stream()).unwrap();
            send.send(()).unwrap();
            // Where the free was first the driver may well refuse the fill.
            let _ = backend.memset_async(at, 1, 64, backend.stream());
            let freed = freeing.join().unwrap();
            let graph = capture.end().unwrap();
            assert_eq!(freed.is_err(), backend.graphs()[0].pinned.len() == 1);
            backend.destroy_graph(graph).unwrap();
            if freed.is_err() {
                backend.free(at).unwrap();
            }
        });
    }
    backend.ledger_probe().assert_nothing_live();
}

/// A capture that begins while another thread destroys or releases its stream comes first, or not at all: the driver is
/// never asked to end one on a stream that is gone.
#[test]
fn a_stream_that_goes_while_a_capture_begins_was_first_or_is_refused() {
    let driver = sim();
    let backend = &backend(driver.clone());
    let (mut captured, mut gone) = (0, 0);
    for round in 0..200 {
        let stream = backend.create_stream().unwrap();
        let (ready, set) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let going = scope.spawn(move || {
                backend.bind_to_thread().unwrap();
                set.recv().unwrap();
                if round % 2 == 0 { backend.destroy_stream(stream) } else { backend.release_stream(stream) }
            });
            ready.send(()).unwrap();
            let begun = backend.capture(stream);
            let went = going.join().unwrap();
            match begun {
                Ok(capture) => {
                    captured += 1;
                    // A release may also meet the call that begins the capture.
                    let error = went.unwrap_err();
                    assert_eq!(error.remedy(), Remedy::FixCall, "{error}");
                    backend.destroy_graph(capture.end().unwrap()).unwrap();
                    backend.destroy_stream(stream).unwrap();
                }
                Err(error) => {
                    gone += 1;
                    assert!(error.is::<BadArgument>(), "{error}");
                    if round % 2 == 0 {
                        went.unwrap();
                    } else if went.is_ok() {
                        // SAFETY: released, so nobody else destroys it.
                        assert_eq!(unsafe { driver.cuStreamDestroy_v2(stream.raw()) }, 0);
                    }
                }
            }
        });
    }
    assert_eq!(captured + gone, 200);
    assert!(driver.diagnostics().is_empty(), "{:?}", driver.diagnostics());
}

/// As above, at the worst moment: the driver is just beginning the capture.
#[test]
fn a_stream_is_not_destroyed_while_the_driver_begins_its_capture() {
    let driver = Arc::new(HookedDriver::new(sim()));
    let ((enter, entered), (go, gone)) = (mpsc::channel(), mpsc::channel::<()>());
    let gone = Mutex::new(gone);
    driver.before_each(move |called| {
        if called == DriverFn::cuStreamBeginCapture_v2 {
            enter.send(()).unwrap();
            gone.lock().unwrap().recv().unwrap();
        }
    });
    let backend = &backend(driver);
    let stream = backend.create_stream().unwrap();
    thread::scope(|scope| {
        let beginning = scope.spawn(move || {
            backend.bind_to_thread().unwrap();
            backend.begin_capture(stream)
        });
        entered.recv().unwrap();
        for error in
            [backend.destroy_stream(stream).unwrap_err(), backend.release_stream(stream).unwrap_err()]
        {
            assert_eq!(error.downcast::<Capturing>().expect("typed").stream, stream);
        }
        go.send(()).unwrap();
        beginning.join().unwrap().unwrap();
    });
    let graph = backend.end_capture(stream).unwrap();
    backend.destroy_graph(graph).unwrap();
    backend.destroy_stream(stream).unwrap();
}

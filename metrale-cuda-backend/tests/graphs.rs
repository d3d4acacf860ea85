// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs: capture, replay, update, what stays pinned, and what becomes of all that at the end.

mod common;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use common::hooked::HookedDriver;
use common::{
    KIB, MIB, address, assert_site, backend, backend_with_kernels, forged_graph, logged, sim,
    sim_with_kernels, with_kernels, words32,
};
use metrale_cuda_backend::{
    BackendConfig, BadArgument, CallFailed, CaptureGuard, Capturing, ContextLost, DevicePtr, DriverApi,
    DriverFn, ErrorKind, FreeError, GpuBackend, GraphFault, GraphHandle, GraphUpdate, KernelLaunch,
    MetraleCudaBackend, NotCapturing, NotSupported, PinnedByGraph, Remedy, Result, StreamHandle, StreamInUse,
};
use metrale_driver_sim::driver_sys::SCALE;
use metrale_driver_sim::{FaultDriver, Profile, TraceDriver, on_both_drivers};

/// Launches `mix` on `n` words at `at`.
fn mix(backend: &MetraleCudaBackend, at: DevicePtr, value: u32, n: u32, stream: StreamHandle) -> Result<()> {
    let kernel = backend.kernel("kernels", "mix")?;
    let mut launch = KernelLaunch::new(kernel).block([n, 1, 1]).ptr(at).u32(value).u32(n);
    // SAFETY: the arguments are the kernel's parameters; every caller's allocation has `n` words.
    unsafe { launch.on_stream(backend, stream) }
}

/// What `mix` makes of a word.
fn mixed(word: u32, value: u32) -> u32 {
    word.wrapping_mul(3).wrapping_add(value)
}

/// A graph that fills `bytes` at `at`.
fn filling(backend: &MetraleCudaBackend, at: DevicePtr, value: u8, bytes: usize, name: &str) -> GraphHandle {
    let stream = backend.stream();
    let capture = backend.capture(stream).unwrap();
    backend.memset_async(at, value, bytes, stream).unwrap();
    capture.finish(name).unwrap()
}

fn replay(backend: &MetraleCudaBackend, graph: GraphHandle) {
    backend.launch_graph(graph, backend.stream()).unwrap();
    backend.synchronize_stream(backend.stream()).unwrap();
}

fn byte(backend: &MetraleCudaBackend, at: DevicePtr) -> u8 {
    let mut back = [0];
    backend.copy_d2h(at, &mut back).unwrap();
    back[0]
}

/// A graph that was launched often is waited for like one that was not, where each launch is to be.
#[test]
fn each_of_many_launches_is_waited_for_where_that_was_asked_for() {
    let trace = Arc::new(TraceDriver::new(Arc::new(sim())));
    let mut config = BackendConfig::default();
    config.debug_sync_kernels = true;
    let backend = MetraleCudaBackend::builder().driver(trace.clone()).config(config).build().unwrap();
    let at = backend.alloc(64).unwrap();
    let graph = filling(&backend, at, 1, 64, "often");
    let made = backend.create_stream().unwrap();
    for stream in [backend.stream(), made] {
        let before = trace.count(DriverFn::cuStreamSynchronize);
        (0..100).for_each(|_| backend.launch_graph(graph, stream).unwrap());
        assert_eq!(trace.count(DriverFn::cuStreamSynchronize) - before, 100);
    }
    backend.destroy_stream(made).unwrap();
    backend.destroy_graph(graph).unwrap();
    backend.free(at).unwrap();
}

/// A graph that was launched often is kept out of a capture like one that was not.
#[test]
fn a_graph_that_was_launched_often_is_launched_into_no_capture() {
    let backend = backend(sim());
    let at = backend.alloc(64).unwrap();
    let graph = filling(&backend, at, 1, 64, "often");
    let made = backend.create_stream().unwrap();
    for stream in [backend.stream(), made] {
        (0..100).for_each(|_| backend.launch_graph(graph, stream).unwrap());
        let capture = backend.capture(stream).unwrap();
        let refused = backend.launch_graph(graph, stream).unwrap_err();
        assert!(refused.is::<Capturing>(), "{refused:#}");
        drop(capture);
        backend.launch_graph(graph, stream).unwrap();
    }
    backend.synchronize_stream(made).unwrap();
    backend.destroy_stream(made).unwrap();
    backend.destroy_graph(graph).unwrap();
    backend.free(at).unwrap();
}

on_both_drivers! {
    /// The software driver runs every node on one thread in a debug build, so it replays fewer times; a GPU does all.
    a_graph_of_500_nodes_replays_10_000_times(driver; sim: sim_with_kernels()) {
        const NODES: u32 = 500;
        let replays = if driver.source().starts_with("software") { 100 } else { 10_000 };
        let backend = backend_with_kernels(driver);
        let stream = backend.create_stream().unwrap();
        let at = backend.alloc(64 * 4).unwrap();
        backend.memset(at, 0, 64 * 4).unwrap();
        // Once outside, so that nothing is loaded in the capture.
        mix(&backend, at, 1, 64, stream).unwrap();
        backend.synchronize_stream(stream).unwrap();
        assert_eq!(words32(&backend, at, 64), [1; 64]);

        let capture = backend.capture(stream).unwrap();
        for value in 0..NODES {
            mix(&backend, at, value, 64, stream).unwrap();
        }
        let graph = capture.finish("step").unwrap();
        assert_eq!(words32(&backend, at, 64), [1; 64], "a capture does nothing");
        assert_eq!(backend.graphs()[0].nodes, NODES as usize);

        for _ in 0..replays {
            backend.launch_graph(graph, stream).unwrap();
        }
        backend.synchronize_stream(stream).unwrap();
        let expected = (0..replays).fold(1, |word, _| (0..NODES).fold(word, mixed));
        assert_eq!(words32(&backend, at, 64), [expected; 64]);
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
        backend.destroy_stream(stream).unwrap();
    }

    what_a_graph_uses_cannot_be_freed(driver; sim: sim_with_kernels()) {
        let backend = backend_with_kernels(driver);
        let stream = backend.stream();
        let (alloc_line, at) = (line!(), backend.alloc(4 * KIB).unwrap());
        let arena = backend.alloc_arena(4 * KIB).unwrap();
        let (source, target) = (backend.alloc_pinned(64).unwrap(), backend.alloc_pinned(64).unwrap());
        let (managed, other) = (backend.alloc_managed(64).unwrap(), backend.alloc(64).unwrap());

        let (capture_line, capture) = (line!(), CaptureGuard::begin(&backend, stream).unwrap());
        // Interior pointers pin the allocation around them.
        mix(&backend, at.offset(64), 1, 16, stream).unwrap();
        backend.copy_d2d_async(managed, arena.offset(100), 64, stream).unwrap();
        // SAFETY: the pinned memory is freed after the graph has been destroyed.
        unsafe { backend.copy_h2d_async_retained(source.as_ptr(), 64, at, stream) }.unwrap();
        // SAFETY: as above.
        unsafe { backend.copy_d2h_async_retained(at, target.as_ptr(), 64, stream) }.unwrap();

        // On another thread nothing but the pin refuses it: relaxed captures let other threads free.
        thread::scope(|scope| {
            scope.spawn(|| {
                backend.bind_to_thread().unwrap();
                let error = backend.free(at).unwrap_err();
                assert!(error.to_string().contains("which has not ended"), "{error}");
                backend.free(other).unwrap();
            });
        });

        let graph = capture.finish("decode").unwrap();
        let (free_line, error) = (line!(), backend.free(at).unwrap_err());
        assert_eq!(error.remedy(), Remedy::FixCall);
        let text = error.to_string();
        let pinned = error.downcast::<PinnedByGraph>().expect("typed");
        assert_eq!((pinned.call, pinned.allocation.addr, pinned.holders.len()), ("free", at.addr(), 1));
        assert_site(&pinned.site.to_string(), file!(), free_line);
        assert_site(&pinned.allocation.record.site.to_string(), file!(), alloc_line);
        assert_site(&pinned.holders[0].captured_at.to_string(), file!(), capture_line);
        assert_eq!((pinned.holders[0].graph, pinned.holders[0].name.as_deref()), (Some(graph), Some("decode")));
        for part in ["graph \"decode\"", &format!("{}:{alloc_line}", file!()), &format!("{}:{capture_line}", file!())] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(backend.ledger_probe().live_count(), 2, "the ledger is untouched");
        assert!(backend.free(at.offset(64)).unwrap_err().is::<FreeError>(), "an interior pointer is that first");
        for error in [
            backend.free(managed).unwrap_err(),
            backend.free_arena(arena).unwrap_err(),
            backend.free_pinned(source).unwrap_err(),
            backend.free_pinned(target).unwrap_err(),
        ] {
            assert!(error.is::<PinnedByGraph>(), "{error}");
        }

        let infos = backend.graphs();
        assert_eq!((infos.len(), infos[0].handle, &*infos[0].name, infos[0].nodes), (1, graph, "decode", 4));
        assert_eq!((infos[0].pinned.len(), infos[0].opaque_launches), (5, 0));
        assert_eq!(infos[0].pinned_bytes(), 2 * 4096 + 3 * 64);
        let report = backend.alloc_report(3, 0);
        assert!(report.lines().last().unwrap().starts_with("graph \"decode\": 4 nodes"), "{report}");

        replay(&backend, graph);
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
        backend.free(managed).unwrap();
        backend.free_arena(arena).unwrap();
        backend.free_pinned(source).unwrap();
        backend.free_pinned(target).unwrap();
        backend.ledger_probe().assert_nothing_live();
        assert_eq!(backend.graphs(), []);
    }

    memory_of_two_graphs_is_pinned_until_both_are_gone(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        let (one, two) = (filling(&backend, at, 1, 64, "one"), filling(&backend, at, 2, 64, "two"));
        let text = backend.free(at).unwrap_err().to_string();
        assert!(text.contains("graph \"one\"") && text.contains("; graph \"two\""), "{text}");
        backend.destroy_graph(one).unwrap();
        let text = backend.free(at).unwrap_err().to_string();
        assert!(!text.contains("\"one\"") && text.contains("graph \"two\""), "{text}");
        replay(&backend, two);
        assert_eq!(byte(&backend, at), 2);
        backend.destroy_graph(two).unwrap();
        backend.free(at).unwrap();
    }

    what_no_argument_tells_is_pinned_when_asked(driver; sim: sim_with_kernels()) {
        let backend = backend_with_kernels(driver);
        let stream = backend.stream();
        let [by_launch, by_capture, by_graph, hidden] = [(); 4].map(|()| backend.alloc(64).unwrap());
        let kernel = backend.kernel("kernels", "fill").unwrap();
        let capture = backend.capture(stream).unwrap();
        let mut launch = KernelLaunch::new(kernel).ptr(DevicePtr::NULL).u32(1).u32(0).touches(by_launch.offset(8));
        // SAFETY: the arguments are the kernel's parameters; it writes no word.
        unsafe { launch.on_stream(&backend, stream) }.unwrap();
        let (mut at, mut value, mut n) = (hidden.addr(), 1_u32, 0_u32);
        let mut params = [(&raw mut at).cast(), (&raw mut value).cast(), (&raw mut n).cast()];
        // SAFETY: as above.
        unsafe { backend.launch(kernel, [1; 3], [1; 3], 0, stream, &mut params) }.unwrap();
        capture.pin(by_capture).unwrap();
        assert!(capture.pin(address(0x10)).unwrap_err().is::<BadArgument>());
        let graph = capture.end().unwrap();
        backend.pin_graph(graph, by_graph.offset(63)).unwrap();
        assert!(backend.pin_graph(graph, DevicePtr::NULL).unwrap_err().is::<BadArgument>());
        assert!(backend.pin_in_capture(stream, by_graph).unwrap_err().is::<NotCapturing>());

        let infos = backend.graphs();
        assert_eq!((&*infos[0].name, infos[0].pinned.len(), infos[0].opaque_launches), ("graph-1", 3, 1));
        for at in [by_launch, by_capture, by_graph] {
            assert!(backend.free(at).unwrap_err().is::<PinnedByGraph>());
        }
        // Of an untyped launch nothing is known.
        backend.free(hidden).unwrap();
        backend.destroy_graph(graph).unwrap();
        for at in [by_launch, by_capture, by_graph] {
            backend.free(at).unwrap();
        }
    }

    an_update_in_place_changes_the_work_and_what_is_pinned(driver; sim: sim_with_kernels()) {
        let backend = backend_with_kernels(driver);
        let stream = backend.stream();
        let (old, new) = (backend.alloc(64).unwrap(), backend.alloc(64).unwrap());
        backend.memset(old, 0, 64).unwrap();
        backend.memset(new, 0, 64).unwrap();
        let step = |at, value| {
            let capture = backend.capture(stream).unwrap();
            mix(&backend, at, value, 16, stream).unwrap();
            mix(&backend, at, 7, 16, stream).unwrap();
            capture
        };
        let graph = step(old, 5).finish("step").unwrap();
        replay(&backend, graph);
        assert_eq!(words32(&backend, old, 16), [mixed(5, 7); 16]);

        assert_eq!(step(new, 11).update(graph).unwrap(), GraphUpdate::Updated);
        let infos = backend.graphs();
        assert_eq!((infos.len(), infos[0].handle, &*infos[0].name), (1, graph, "step"));
        assert_eq!(infos[0].pinned.iter().map(|pin| pin.addr).collect::<Vec<_>>(), [new.addr()]);
        replay(&backend, graph);
        assert_eq!(words32(&backend, new, 16), [mixed(11, 7); 16]);
        assert_eq!(words32(&backend, old, 16), [mixed(5, 7); 16], "the old work is not done any more");
        backend.free(old).unwrap();
        assert!(backend.free(new).unwrap_err().is::<PinnedByGraph>());
        backend.destroy_graph(graph).unwrap();
        backend.free(new).unwrap();
    }

    a_changed_topology_is_an_answer_and_the_graph_stays_as_it_was(driver; sim: sim_with_kernels()) {
        let backend = backend_with_kernels(driver);
        let stream = backend.stream();
        let (at, other) = (backend.alloc(64).unwrap(), backend.alloc(64).unwrap());
        let graph = filling(&backend, at, 1, 64, "step");

        let capture = backend.capture(stream).unwrap();
        backend.memset_async(other, 2, 64, stream).unwrap();
        mix(&backend, other, 1, 16, stream).unwrap();
        let update = capture.update(graph).unwrap();
        assert!(
            matches!(update, GraphUpdate::TopologyChanged { nodes_before: 1, nodes_now: 2, .. }),
            "{update:?}"
        );
        assert!(update.to_string().contains("1 nodes before, 2 now"), "{update}");

        let capture = backend.capture(stream).unwrap();
        mix(&backend, other, 1, 16, stream).unwrap();
        let update = capture.update(graph).unwrap();
        assert!(!update.is_updated(), "a kernel in place of a fill: {update:?}");

        assert!(!backend.stream_is_capturing(stream));
        backend.free(other).unwrap();
        assert!(backend.free(at).unwrap_err().is::<PinnedByGraph>());
        backend.memset(at, 0, 64).unwrap();
        replay(&backend, graph);
        assert_eq!(byte(&backend, at), 1);
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
    }

    a_guard_gives_up_on_drop_on_an_early_return_and_on_a_panic(driver) {
        let backend = backend(driver);
        let stream = backend.stream();
        let at = backend.alloc(64).unwrap();
        backend.memset(at, 9, 64).unwrap();
        let usable = || {
            assert!(!backend.stream_is_capturing(stream));
            backend.synchronize_stream(stream).unwrap();
            assert_eq!(byte(&backend, at), 9, "what was captured was never done");
            assert_eq!(backend.graphs(), []);
        };

        drop(backend.capture(stream).unwrap());
        usable();
        let early = || -> Result<GraphHandle> {
            let capture = backend.capture(stream)?;
            backend.memset_async(at, 1, 64, stream)?;
            backend.alloc(64)?;
            capture.end()
        };
        assert!(early().unwrap_err().is::<Capturing>());
        usable();
        let panicked = thread::scope(|scope| {
            scope
                .spawn(|| {
                    backend.bind_to_thread().unwrap();
                    let _capture = backend.capture(stream).unwrap();
                    backend.memset_async(at, 1, 64, stream).unwrap();
                    panic!("in the middle of a capture");
                })
                .join()
        });
        assert!(panicked.is_err());
        usable();
        backend.capture(stream).unwrap().abort().unwrap();
        usable();
        assert!(!backend.abort_capture_if_active(stream).unwrap());
        backend.free(at).unwrap();
    }

    threads_that_replay_one_graph_are_ordered_until_it_is_destroyed(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        let graph = filling(&backend, at, 5, 64, "shared");
        let (enough, has_enough) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..4 {
                let (backend, enough) = (&backend, enough.clone());
                scope.spawn(move || {
                    backend.bind_to_thread().unwrap();
                    for launched in 0.. {
                        match backend.launch_graph(graph, backend.stream()) {
                            Ok(()) => {}
                            Err(gone) => {
                                assert!(gone.is::<BadArgument>() && gone.to_string().contains("graph \"shared\""), "{gone}");
                                break;
                            }
                        }
                        if launched == 50 {
                            let _ = enough.send(());
                        }
                    }
                });
            }
            (0..4).for_each(|_| has_enough.recv().unwrap());
            backend.destroy_graph(graph).unwrap();
        });
        backend.synchronize_stream(backend.stream()).unwrap();
        assert_eq!(byte(&backend, at), 5);
        backend.free(at).unwrap();
    }

    one_thread_captures_while_another_allocates(driver) {
        let backend = backend(driver);
        let at = backend.alloc(4 * KIB).unwrap();
        // Channels and no barriers: whoever fails sets the other free.
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let graph = thread::scope(|scope| {
            let backend = &backend;
            let capturing = scope.spawn(move || {
                backend.bind_to_thread().unwrap();
                let stream = backend.create_stream().unwrap();
                let capture = backend.capture(stream).unwrap();
                begun.send(()).unwrap();
                for value in 0..100 {
                    backend.memset_async(at, value, 4 * KIB, stream).unwrap();
                }
                let _ = may_go_on.recv();
                let graph = capture.finish("elsewhere").unwrap();
                backend.destroy_stream(stream).unwrap();
                graph
            });
            has_begun.recv().unwrap();
            for round in 0..100_usize {
                let (own, pinned) = (backend.alloc(1 + round * KIB).unwrap(), backend.alloc_pinned(64).unwrap());
                backend.copy_h2d(&[7; 1], own).unwrap();
                assert_eq!(byte(backend, own), 7);
                backend.memory_info().unwrap();
                backend.synchronize_stream(backend.stream()).unwrap();
                assert!(backend.synchronize().unwrap_err().is::<Capturing>(), "from any thread");
                backend.free(own).unwrap();
                backend.free_pinned(pinned).unwrap();
            }
            drop(go_on);
            capturing.join().unwrap()
        });
        backend.memset(at, 0, 4 * KIB).unwrap();
        replay(&backend, graph);
        assert_eq!(byte(&backend, at), 99);
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
    }

    forked_work_takes_part_and_must_be_joined(driver) {
        let backend = backend(driver);
        let (s1, s2) = (backend.stream(), backend.create_stream().unwrap());
        let (fork, join) = (backend.create_event().unwrap(), backend.create_event().unwrap());
        let (one, two) = (backend.alloc(64).unwrap(), backend.alloc(64).unwrap());
        let forked = || {
            let capture = backend.capture(s1).unwrap();
            backend.memset_async(one, 1, 64, s1).unwrap();
            backend.record_event(fork, s1).unwrap();
            backend.wait_event(s2, fork).unwrap();
            backend.memset_async(two, 2, 64, s2).unwrap();
            capture
        };

        let capture = forked();
        // The end belongs where it was begun; elsewhere it would break the capture.
        let elsewhere = backend.end_capture(s2).unwrap_err();
        assert!(elsewhere.to_string().contains(&format!("{s1:#x} at {}", file!())), "{elsewhere}");
        assert!(elsewhere.downcast::<NotCapturing>().unwrap().part_of.is_some());
        assert!(backend.synchronize_stream(s2).unwrap_err().is::<Capturing>());
        backend.record_event(join, s2).unwrap();
        backend.wait_event(s1, join).unwrap();
        let graph = capture.finish("forked").unwrap();
        assert_eq!(backend.graphs()[0].pinned.len(), 2);
        replay(&backend, graph);
        assert_eq!((byte(&backend, one), byte(&backend, two)), (1, 2));
        backend.synchronize_stream(s2).unwrap();
        backend.destroy_graph(graph).unwrap();

        let error = forked().end().unwrap_err();
        assert_eq!(error.downcast_ref::<CallFailed>().unwrap().driver.status, 904);
        assert!(error.to_string().contains(&format!("stream {s2:#x} was not joined")), "{error}");
        assert!(!backend.stream_is_capturing(s1) && !backend.stream_is_capturing(s2));

        // Given up by any of its streams, all are free again.
        let capture = forked();
        assert!(backend.abort_capture_if_active(s2).unwrap());
        backend.synchronize_stream(s1).unwrap();
        backend.synchronize_stream(s2).unwrap();
        assert!(capture.end().unwrap_err().is::<NotCapturing>());

        // What was recorded in a capture that is over marks nothing.
        let text = backend.query_event(fork).unwrap_err().to_string();
        assert!(text.contains("record it anew"), "{text}");
        backend.record_event(fork, s1).unwrap();
        backend.synchronize_event(fork).unwrap();
        for event in [fork, join] {
            backend.destroy_event(event).unwrap();
        }
        for at in [one, two] {
            backend.free(at).unwrap();
        }
        backend.destroy_stream(s2).unwrap();
    }

    an_empty_capture_is_a_graph_too(driver) {
        let backend = backend(driver);
        let graph = backend.capture(backend.stream()).unwrap().end().unwrap();
        assert_eq!((backend.graphs()[0].nodes, backend.graphs()[0].pinned.len()), (0, 0));
        replay(&backend, graph);
        backend.destroy_graph(graph).unwrap();
    }

    a_handle_that_is_no_graph_never_reaches_the_driver(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        let graph = filling(&backend, at, 1, 64, "gone");
        backend.destroy_graph(graph).unwrap();
        for (handle, part) in [(graph, "graph \"gone\""), (forged_graph(0), "is no graph"), (forged_graph(0x1234), "is no graph")] {
            for error in [
                backend.launch_graph(handle, backend.stream()).unwrap_err(),
                backend.destroy_graph(handle).unwrap_err(),
                backend.pin_graph(handle, at).unwrap_err(),
            ] {
                assert_eq!(error.remedy(), Remedy::FixCall);
                assert!(error.is::<BadArgument>() && error.to_string().contains(part), "{error}");
            }
        }
        // An update that finds no graph leaves the capture as it is.
        let capture = backend.capture(backend.stream()).unwrap();
        backend.memset_async(at, 3, 64, backend.stream()).unwrap();
        assert!(backend.update_graph(graph, backend.stream()).unwrap_err().is::<BadArgument>());
        let graph = capture.end().unwrap();
        replay(&backend, graph);
        assert_eq!(byte(&backend, at), 3);
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
    }

    what_a_graph_takes_is_measured(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        let before = backend.memory_info().unwrap().free_bytes as i64;
        let one = filling(&backend, at, 1, 64, "one");
        let two = filling(&backend, at, 1, 64, "two");
        let taken = before - backend.memory_info().unwrap().free_bytes as i64;
        let infos = backend.graphs();
        assert_eq!(infos.iter().map(|info| info.bytes_measured.unwrap()).sum::<i64>(), taken);
        // Measured on an H200: 2 MiB, unless the streams' pool has enough left, as where the process sees several devices.
        let [first, second] = [0, 1].map(|n: usize| infos[n].bytes_measured.unwrap());
        assert!([0, 2 * MIB as i64].contains(&first) && second == 0, "{first}, {second}");
        assert_eq!(backend.graph_bytes_measured(), taken);
        backend.destroy_graph(one).unwrap();
        backend.destroy_graph(two).unwrap();
        assert_eq!(backend.graph_bytes_measured(), taken, "the driver keeps it");
        backend.free(at).unwrap();
    }

    a_sweep_destroys_the_graphs_of_what_it_frees_and_no_others(driver; sim: sim_with_kernels()) {
        let backend = backend_with_kernels(driver);
        let (arena, line, at) = (backend.alloc_arena(64).unwrap(), line!(), backend.alloc(64).unwrap());
        let (kept, lost) = (filling(&backend, arena, 5, 64, "kept"), filling(&backend, at, 6, 64, "lost"));
        let kernel = backend.kernel("kernels", "fill").unwrap();
        let capture = backend.capture(backend.stream()).unwrap();
        let (mut to, mut value, mut n) = (at.addr(), 1_u32, 1_u32);
        let mut params = [(&raw mut to).cast(), (&raw mut value).cast(), (&raw mut n).cast()];
        // SAFETY: the parameters are the kernel's; it writes one word.
        unsafe { backend.launch(kernel, [1; 3], [1; 3], 0, backend.stream(), &mut params) }.unwrap();
        let opaque = capture.finish("opaque").unwrap();

        let (count, lines) = logged(|| backend.sweep_unreleased().unwrap());
        assert_eq!((count, lines.len()), (1, 1), "{lines:?}");
        assert!(lines[0].contains(&format!("{}:{line}", file!())), "{lines:?}");
        assert!(lines[0].ends_with("Graphs that used them, destroyed before: \"lost\", \"opaque\""), "{lines:?}");
        for graph in [lost, opaque] {
            let text = backend.launch_graph(graph, backend.stream()).unwrap_err().to_string();
            assert!(text.contains("memory that it used"), "{text}");
        }
        replay(&backend, kept);
        assert_eq!(byte(&backend, arena), 5);
        assert_eq!(logged(|| backend.sweep_unreleased().unwrap()), (0, vec![]));
        backend.destroy_graph(kept).unwrap();
        backend.free_arena(arena).unwrap();
    }

    backends_of_one_device_know_each_others_captures(driver) {
        let first = backend(driver.clone());
        let second = backend(driver);
        assert_eq!(first.stream(), second.stream(), "they share the device's stream");
        let at = second.alloc(64).unwrap();
        let capture = first.capture(first.stream()).unwrap();
        for error in [
            second.synchronize().unwrap_err(),
            second.synchronize_stream(second.stream()).unwrap_err(),
            second.copy_h2d(&[1], at).unwrap_err(),
            second.alloc(64).unwrap_err(),
            second.begin_capture(second.stream()).unwrap_err(),
        ] {
            assert!(error.is::<Capturing>(), "{error}");
        }
        second.memset_async(at, 4, 64, second.stream()).unwrap();
        let graph = capture.finish("shared").unwrap();
        assert!(second.free(at).unwrap_err().to_string().contains("\"shared\""));
        assert_eq!((first.graphs().len(), second.graphs().len()), (1, 0));
        second.launch_graph(graph, second.stream()).unwrap();
        second.synchronize().unwrap();
        assert_eq!(byte(&second, at), 4);

        // The memory is freed with its backend, and the graph that would use it is destroyed.
        let ((), lines) = logged(|| drop(second));
        assert!(lines.len() == 1 && lines[0].contains("\"shared\""), "{lines:?}");
        let text = first.launch_graph(graph, first.stream()).unwrap_err().to_string();
        assert!(text.contains("memory that it used"), "{text}");
    }

    a_drop_gives_up_captures_and_destroys_graphs_before_memory(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        let at = backend.alloc(64).unwrap();
        filling(&backend, at, 1, 64, "left");
        let (line, stream) = (line!() + 1, backend.stream());
        backend.begin_capture(stream).unwrap();
        backend.memset_async(at, 2, 64, stream).unwrap();
        let ((), lines) = logged(|| drop(backend));
        assert_eq!((lines.len(), probe.live_count()), (2, 0), "{lines:?}");
        assert!(lines[0].contains(&format!("{}:{line}", file!())) && lines[0].contains("CaptureGuard"), "{lines:?}");
        assert!(lines[1].contains("1 device allocation"), "{lines:?}");
    }

    a_drop_with_graphs_and_no_memory_is_silent(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        let graph = filling(&backend, at, 1, 64, "left");
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
        backend.capture(backend.stream()).unwrap().end().unwrap();
        assert_eq!(logged(|| drop(backend)).1, Vec::<String>::new());
    }

    captures_go_on_under_debug_sync_and_a_faulty_graph_is_named(driver; sim: sim_with_kernels()) {
        let mut config = BackendConfig::default();
        config.debug_sync_kernels = true;
        let backend = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&[("kernels", common::KERNELS)])
            .config(config)
            .build()
            .unwrap();
        let stream = backend.stream();
        let at = backend.alloc(64).unwrap();
        backend.memset(at, 0, 64).unwrap();
        let capture = backend.capture(stream).unwrap();
        mix(&backend, at, 5, 16, stream).unwrap();
        let graph = capture.finish("sound").unwrap();
        backend.launch_graph(graph, stream).unwrap();
        assert_eq!(words32(&backend, at, 16), [5; 16]);

        let stray = backend.kernel("kernels", "stray").unwrap();
        let capture = backend.capture(stream).unwrap();
        let mut launch = KernelLaunch::new(stray).u64(0x10_0000);
        // SAFETY: none of the kernel's writes reaches memory: the address is mapped nowhere, which is what is tested.
        unsafe { launch.on_stream(&backend, stream) }.unwrap();
        let graph = capture.finish("faulty").unwrap();
        let error = backend.launch_graph(graph, stream).unwrap_err();
        assert_eq!(error.remedy(), Remedy::Relaunch);
        let fault = error.downcast_ref::<GraphFault>().expect("typed");
        assert_eq!((&*fault.name, fault.driver.status), ("faulty", 700));
        // Latched, with what is known of it.
        let reason = backend.context_fault().expect("latched");
        assert_eq!(reason.driver, fault.driver);
        assert_eq!(reason.after.as_deref(), Some("the launch of graph \"faulty\""));
        assert!(backend.alloc(1).unwrap_err().downcast::<ContextLost>().expect("typed").first.is_some());
        // The context is lost: whatever a driver can still do, nothing is told more than once.
        if let Err(error) = backend.destroy_graph(graph) {
            assert!(error.is::<ContextLost>(), "{error}");
        }
        let ((), lines) = logged(|| drop(backend));
        assert!(lines.iter().filter(|line| line.contains("graphs cannot be destroyed")).count() <= 1, "{lines:?}");
    }

    arenas_and_scratch_stay_while_a_graph_uses_them(driver) {
        let backend = backend(driver);
        let stream = backend.create_stream().unwrap();
        let arena = backend.alloc_arena(64).unwrap();
        let scratch = backend.op_scratch("gemm", 64, stream).unwrap();
        let capture = backend.capture(stream).unwrap();
        backend.memset_async(arena, 3, 64, stream).unwrap();
        backend.copy_d2d_async(arena, scratch.ptr, 64, stream).unwrap();
        let graph = capture.finish("step").unwrap();
        let error = backend.free_arena(arena).unwrap_err().downcast::<PinnedByGraph>().expect("typed");
        assert_eq!((error.call, error.allocation.addr), ("free_arena", arena.addr()));
        // Outgrown, it stays as long as the graph does.
        let larger = backend.op_scratch("gemm", 4096, stream).unwrap();
        assert_ne!(larger.ptr, scratch.ptr);
        backend.launch_graph(graph, stream).unwrap();
        backend.synchronize_stream(stream).unwrap();
        assert_eq!(byte(&backend, scratch.ptr), 3);
        backend.release_op_cache().unwrap();
        backend.synchronize_stream(stream).unwrap();
        assert_eq!(backend.release_op_cache().unwrap(), scratch.bytes);
        backend.destroy_graph(graph).unwrap();
        assert_eq!(backend.release_op_cache().unwrap(), 0);
        backend.free_arena(arena).unwrap();
        backend.destroy_stream(stream).unwrap();
    }

    /// Its handle may be one that a capture has a mark of.
    a_new_event_is_none_of_a_capture(driver) {
        let backend = backend(driver);
        let stream = backend.create_stream().unwrap();
        let event = backend.create_event().unwrap();
        let capture = backend.capture(stream).unwrap();
        backend.record_event(event, stream).unwrap();
        assert!(backend.query_event(event).unwrap_err().is::<Capturing>());
        backend.destroy_event(event).unwrap();
        let events: Vec<_> = (0..16).map(|_| backend.create_event().unwrap()).collect();
        for event in events {
            assert!(backend.query_event(event).unwrap(), "never recorded, it has passed");
            backend.destroy_event(event).unwrap();
        }
        backend.destroy_graph(capture.end().unwrap()).unwrap();
        backend.destroy_stream(stream).unwrap();
    }

    /// A graph's use of one part does not keep the other parts from being freed.
    a_part_of_an_arena_that_a_graph_uses_is_not_freed(driver) {
        let backend = backend(driver);
        let arena = backend.packed_arena(8 * KIB).unwrap();
        let [first, used, pinned] = ["first", "used", "pinned"].map(|name| arena.alloc(name, KIB).unwrap());
        let graph = filling(&backend, used.offset(512), 4, 512, "fill");
        backend.pin_graph(graph, pinned).unwrap();
        for part in [used, pinned] {
            let error = arena.free_part(part).unwrap_err().downcast::<PinnedByGraph>().expect("typed");
            assert!(error.to_string().contains("free_part") && error.to_string().contains("\"fill\""), "{error}");
        }
        arena.free_part(first).unwrap();
        assert_eq!(arena.parts(), 2);
        replay(&backend, graph);
        assert_eq!(byte(&backend, used.offset(512)), 4);
        backend.destroy_graph(graph).unwrap();
        arena.free_part(used).unwrap();
        arena.free_part(pinned).unwrap();
        arena.free().unwrap();
    }

    /// Each end of a copy between backends is pinned, by the ledger it is on.
    both_ends_of_a_copy_between_backends_are_pinned(driver) {
        let (first, second) = (backend(driver.clone()), backend(driver));
        let (here, there) = (first.alloc(64).unwrap(), second.alloc(64).unwrap());
        let stream = first.stream();
        first.memset(here, 5, 64).unwrap();
        let capture = first.capture(stream).unwrap();
        first.copy_peer_async(here, &second, there, 64, stream).unwrap();
        let graph = capture.finish("handover").unwrap();
        assert_eq!(first.graphs()[0].pinned.len(), 2);
        for error in [first.free(here).unwrap_err(), second.free(there).unwrap_err()] {
            assert!(error.is::<PinnedByGraph>() && error.to_string().contains("\"handover\""), "{error}");
        }
        replay(&first, graph);
        assert_eq!(byte(&second, there), 5);
        // Another backend's own stream is the same, and a capture of it keeps both from blocking copies.
        let capture = first.capture(stream).unwrap();
        let error = second.copy_peer(there, &first, here, 64).unwrap_err();
        assert!(error.is::<Capturing>(), "{error}");
        capture.abort().unwrap();
        first.destroy_graph(graph).unwrap();
        second.free(there).unwrap();
        first.free(here).unwrap();
    }

    /// The cache of a backend that goes waits for nothing where another captures.
    a_drop_leaves_the_capture_of_another_backend_alone(driver) {
        let (first, second) = (backend(driver.clone()), backend(driver));
        let (stream, at) = (first.stream(), first.alloc(64).unwrap());
        second.op_scratch("gemm", 64, stream).unwrap();
        let own = second.create_stream().unwrap();
        second.op_scratch("gemm", 64, own).unwrap();
        let capture = first.capture(stream).unwrap();
        first.memset_async(at, 6, 64, stream).unwrap();
        assert!(second.release_op_cache().unwrap_err().is::<Capturing>());
        second.destroy_stream(own).unwrap();
        drop(second);
        let graph = capture.end().unwrap();
        replay(&first, graph);
        assert_eq!(byte(&first, at), 6);
        first.destroy_graph(graph).unwrap();
        first.free(at).unwrap();
    }

    through_the_trait_object(driver) {
        let backend: Arc<dyn GpuBackend> = Arc::new(backend(driver));
        let (stream, at) = (backend.stream(), backend.alloc(64).unwrap());
        let (line, capture) = (line!(), CaptureGuard::begin(&*backend, stream).unwrap());
        backend.memset_async(at, 8, 64, stream).unwrap();
        let error = backend.free(at).unwrap_err().downcast::<Capturing>().expect("typed");
        assert_site(&error.begun_at.to_string(), file!(), line);
        let graph = capture.end().unwrap();
        backend.launch_graph(graph, stream).unwrap();
        backend.synchronize_stream(stream).unwrap();
        assert_site(&backend.graphs()[0].captured_at.to_string(), file!(), line);
        backend.destroy_graph(graph).unwrap();
        backend.free(at).unwrap();
    }
}

#[test]
fn a_driver_that_cannot_update_says_so_and_the_capture_goes_on() {
    let driver = Arc::new(HookedDriver::lacking(sim(), DriverFn::cuGraphExecUpdate_v2));
    let backend = backend(driver);
    let at = backend.alloc(64).unwrap();
    let graph = filling(&backend, at, 1, 64, "old");
    backend.begin_capture(backend.stream()).unwrap();
    backend.memset_async(at, 2, 64, backend.stream()).unwrap();
    let error = backend.update_graph(graph, backend.stream()).unwrap_err();
    assert_eq!(error.remedy(), Remedy::FixCall);
    assert!(error.is::<NotSupported>() && error.to_string().contains("CUDA 12"), "{error}");
    let new = backend.end_capture_named(backend.stream(), "new").unwrap();
    replay(&backend, new);
    assert_eq!(byte(&backend, at), 2);
}

/// Lacks `cuStreamIsCapturing`, which nothing but the query itself needs.
#[test]
fn everything_but_the_query_works_on_scales_driver() {
    let backend = backend_with_kernels(Arc::new(with_kernels(Profile::scale())));
    let stream = backend.stream();
    let at = backend.alloc(64).unwrap();
    backend.memset(at, 0, 64).unwrap();
    let capture = backend.capture(stream).unwrap();
    mix(&backend, at, 4, 16, stream).unwrap();
    assert!(backend.synchronize_stream(stream).unwrap_err().is::<Capturing>());
    // What asks by itself whether the stream captures goes by the backend's notes where the driver cannot tell.
    let error = backend.op_scratch("gemm", 64, stream).unwrap_err();
    assert!(error.is::<BadArgument>() && error.to_string().contains("before the capture begins"), "{error}");
    let graph = capture.end().unwrap();
    replay(&backend, graph);
    assert_eq!(words32(&backend, at, 16), [4; 16]);
    drop(backend.capture(stream).unwrap());
    replay(&backend, graph);
    // A failed query counts as capturing, where this build asks at all.
    assert_eq!(backend.stream_is_capturing(stream), !SCALE);
    assert!(!backend.abort_capture_if_active(stream).unwrap());
}

#[test]
fn captures_begun_elsewhere_are_left_alone_or_given_up() {
    if SCALE {
        // Nobody can be asked there whether a stream captures.
        return;
    }
    let driver = sim();
    let backend = backend(driver.clone());
    let stream = backend.create_stream().unwrap();
    let begin = || {
        // SAFETY: takes a handle and a number.
        assert_eq!(unsafe { driver.cuStreamBeginCapture_v2(stream.raw(), 2) }, 0);
    };
    begin();
    assert!(backend.end_capture(stream).unwrap_err().is::<NotCapturing>());
    let error = backend.begin_capture(stream).unwrap_err();
    assert!(error.is::<CallFailed>() && error.to_string().contains("outside this backend"), "{error}");
    // What failed left nothing behind.
    backend.alloc(64).unwrap();
    assert!(backend.stream_is_capturing(stream));
    assert!(backend.abort_capture_if_active(stream).unwrap());
    assert!(!backend.abort_capture_if_active(stream).unwrap());

    // Ended, or broken, outside.
    let capture = backend.capture(stream).unwrap();
    let mut graph = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!(unsafe { driver.cuStreamEndCapture(stream.raw(), &mut graph) }, 0);
    // SAFETY: takes a handle.
    assert_eq!(unsafe { driver.cuGraphDestroy(graph) }, 0);
    let text = capture.end().unwrap_err().to_string();
    assert!(text.contains("ended outside this backend"), "{text}");
    let capture = backend.capture(stream).unwrap();
    // SAFETY: takes nothing.
    assert_eq!(unsafe { driver.cuCtxSynchronize() }, 900);
    let text = capture.end().unwrap_err().to_string();
    assert!(text.contains("broken by a call outside this backend"), "{text}");
    backend.synchronize_stream(stream).unwrap();
    assert!(driver.leaks().graphs.is_empty());
}

#[test]
fn a_capture_that_will_not_end_stays_on_the_books_until_it_does() {
    let driver = sim();
    let faulty = Arc::new(FaultDriver::new(driver.clone()));
    let backend = backend(faulty.clone());
    let stream = backend.stream();
    backend.begin_capture(stream).unwrap();
    faulty.fail_nth(DriverFn::cuStreamEndCapture, 1, 999);
    let text = backend.end_capture(stream).unwrap_err().to_string();
    assert!(text.contains("still captures"), "{text}");
    assert!(backend.synchronize_stream(stream).unwrap_err().is::<Capturing>());
    assert!(backend.abort_capture_if_active(stream).unwrap());
    backend.synchronize_stream(stream).unwrap();

    // The guard's own end fails, its giving up does not.
    faulty.fail_nth(DriverFn::cuStreamEndCapture, 1, 999);
    assert!(backend.capture(stream).unwrap().end().is_err());
    backend.synchronize_stream(stream).unwrap();
}

/// Capture, instantiate, replay, update, destroy, with two streams.
fn everything(driver: Arc<dyn DriverApi>) -> Result<()> {
    let backend = MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("kernels", common::KERNELS)])
        .config(BackendConfig::default())
        .build()?;
    let (s1, s2) = (backend.stream(), backend.create_stream()?);
    let outcome = (|| {
        let event = backend.create_event()?;
        let at = backend.alloc(4 * KIB)?;
        let step = |value| {
            let capture = backend.capture(s1)?;
            mix(&backend, at, value, 16, s1)?;
            backend.record_event(event, s1)?;
            backend.wait_event(s2, event)?;
            backend.memset_async(at.offset(512), 2, 64, s2)?;
            backend.record_event(event, s2)?;
            backend.wait_event(s1, event)?;
            Ok::<_, metrale_cuda_backend::Error>(capture)
        };
        let graph = step(1)?.finish("step")?;
        backend.launch_graph(graph, s1)?;
        assert!(step(2)?.update(graph)?.is_updated());
        let capture = backend.capture(s1)?;
        backend.memset_async(at, 1, 64, s1)?;
        assert!(!capture.update(graph)?.is_updated());
        backend.launch_graph(graph, s1)?;
        backend.synchronize_stream(s1)?;
        step(3)?.abort()?;
        backend.destroy_graph(graph)?;
        backend.free(at)?;
        backend.destroy_event(event)
    })();
    outcome.and(backend.destroy_stream(s2))
}

#[test]
fn nothing_leaks_whichever_call_fails() {
    let driver = Arc::new(sim_with_kernels());
    let trace = Arc::new(TraceDriver::new(driver.clone()));
    everything(trace.clone()).unwrap();
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
    let calls = trace.calls();
    assert!(calls.len() > 60, "{}", calls.len());

    for status in [2, 999] {
        for (nth, call) in calls.iter().map(|call| call.function).enumerate() {
            let driver = Arc::new(sim_with_kernels());
            let faulty = Arc::new(FaultDriver::new(driver.clone()));
            let before = calls[..nth].iter().filter(|earlier| earlier.function == call).count() as u64;
            faulty.fail_nth(call, before + 1, status);
            let (result, _) = logged(|| everything(faulty));
            let leaks = driver.leaks();
            // What a failing call was to free or release stays, nothing drops events, and a thread that cannot learn its
            // context destroys no stream. The rest must be gone.
            let kept = match call {
                DriverFn::cuGraphDestroy => leaks.graphs.len() == 1,
                DriverFn::cuGraphExecDestroy => leaks.graphs.is_empty() && leaks.graph_execs.len() <= 1,
                _ => leaks.graphs.is_empty() && leaks.graph_execs.is_empty(),
            };
            let releases = matches!(
                call,
                DriverFn::cuMemFree_v2 | DriverFn::cuModuleUnload | DriverFn::cuDevicePrimaryCtxRelease_v2
            );
            assert!(kept, "call {nth}, {call}: {leaks}");
            assert!(releases || leaks.memory.is_empty(), "call {nth}, {call}: {leaks}");
            if let Err(error) = result {
                assert!(
                    format!("{error:#}").contains(&format!("({status})")),
                    "call {nth}, {call}: {error:#}"
                );
            }
        }
    }
}

#[test]
fn a_graph_that_the_driver_keeps_stays_with_its_pins() {
    let driver = sim();
    let faulty = Arc::new(FaultDriver::new(driver.clone()));
    let backend = backend(faulty.clone());
    let at = backend.alloc(64).unwrap();
    let graph = filling(&backend, at, 1, 64, "kept");
    faulty.fail_nth(DriverFn::cuGraphExecDestroy, 1, 999);
    let error = backend.destroy_graph(graph).unwrap_err();
    assert!(error.is::<CallFailed>() && error.to_string().contains("graph \"kept\""), "{error}");
    assert!(backend.free(at).unwrap_err().is::<PinnedByGraph>());
    replay(&backend, graph);
    backend.destroy_graph(graph).unwrap();
    backend.free(at).unwrap();

    // Without memory for the graph the capture is over, and nothing is pinned.
    // Its name depends on the build.
    let instantiate = DriverFn::ALL.iter().find(|function| function.name().starts_with("cuGraphInstantiate"));
    faulty.fail_nth(*instantiate.unwrap(), 1, 2);
    let at = backend.alloc(64).unwrap();
    let capture = backend.capture(backend.stream()).unwrap();
    backend.memset_async(at, 1, 64, backend.stream()).unwrap();
    let error = capture.finish("large").unwrap_err();
    assert_eq!(error.remedy(), Remedy::FreeAndRetry);
    assert!(error.to_string().contains("instantiating graph \"large\""), "{error}");
    backend.free(at).unwrap();
    assert!(driver.leaks().graphs.is_empty());
}

/// What a graph used is gone whether or not the driver lets the graph go.
#[test]
fn a_swept_graph_that_the_driver_keeps_cannot_be_launched() {
    let faulty = Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    let at = backend.alloc(64).unwrap();
    let graph = filling(&backend, at, 1, 64, "kept");
    faulty.fail_nth(DriverFn::cuGraphExecDestroy, 1, 999);
    let (count, lines) = logged(|| backend.sweep_unreleased().unwrap());
    assert_eq!((count, lines.len()), (1, 2), "{lines:?}");
    assert!(lines[0].starts_with("ERROR") && lines[0].contains("\"kept\""), "{lines:?}");
    assert!(backend.launch_graph(graph, backend.stream()).unwrap_err().is::<BadArgument>());
    let again = backend.alloc(64).unwrap();
    assert_eq!(again, at, "the driver gives the address out anew");
    backend.free(again).unwrap();
}

#[test]
fn a_context_that_is_gone_is_quiet() {
    for status in [4, 201, 709] {
        let driver = sim();
        let backend = backend(driver.clone());
        let probe = backend.ledger_probe();
        let at = backend.alloc(64).unwrap();
        let (one, _two) = (filling(&backend, at, 1, 64, "one"), filling(&backend, at, 1, 64, "two"));
        let capture = backend.capture(backend.stream()).unwrap();
        driver.inject_fault(0, status);
        let ((), lines) = logged(|| {
            backend.destroy_graph(one).unwrap();
            drop(capture);
        });
        assert_eq!(lines, Vec::<String>::new(), "{status}");
        assert_eq!(backend.graphs().len(), 1);
        let ((), lines) = logged(|| drop(backend));
        assert!(!lines.iter().any(|line| line.starts_with("ERROR")), "{status}: {lines:?}");
        probe.assert_nothing_live();
    }
}

#[test]
fn a_lost_context_says_so_once_for_all_graphs() {
    let driver = sim();
    let backend = backend(driver.clone());
    let at = backend.alloc(64).unwrap();
    for index in 0..100 {
        filling(&backend, at, 1, 64, &format!("step {index}"));
    }
    driver.inject_fault(0, 700);
    let ((), lines) = logged(|| drop(backend));
    let errors: Vec<_> = lines.iter().filter(|line| line.contains("graphs cannot be destroyed")).collect();
    assert_eq!(errors.len(), 1, "{lines:?}");
    assert!(errors[0].contains("100 of 100") && lines.len() <= 4, "{lines:?}");
}

#[test]
fn a_thread_tells_equal_handles_of_two_drivers_apart() {
    for round in 0..3_u8 {
        let sides = [0, 1].map(|side| {
            let backend = backend(common::sim());
            let at = backend.alloc(1).unwrap();
            let graph = filling(&backend, at, 10 * round + side, 1, "fill");
            (backend, at, graph)
        });
        assert_eq!(sides[0].2.raw(), sides[1].2.raw(), "the software driver's handles are no addresses");
        for _ in 0..2 {
            for (side, (backend, at, graph)) in sides.iter().enumerate() {
                backend.bind_to_thread().unwrap();
                backend.memset(*at, 255, 1).unwrap();
                replay(backend, *graph);
                assert_eq!(byte(backend, *at), 10 * round + side as u8);
            }
        }
        let (backend, at, graph) = &sides[0];
        backend.bind_to_thread().unwrap();
        backend.destroy_graph(*graph).unwrap();
        let error = backend.launch_graph(*graph, backend.stream()).unwrap_err();
        assert!(error.to_string().contains("destroyed before"), "{error}");
        backend.free(*at).unwrap();
        let (backend, _, graph) = &sides[1];
        backend.bind_to_thread().unwrap();
        replay(backend, *graph);
    }
}

#[test]
fn threads_launch_destroy_and_free_concurrently() {
    let backend = backend(sim());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                backend.bind_to_thread().unwrap();
                let stream = backend.create_stream().unwrap();
                for round in 0..50 {
                    let at = backend.alloc(64).unwrap();
                    let capture = backend.capture(stream).unwrap();
                    backend.memset_async(at, round, 64, stream).unwrap();
                    let graph = capture.finish("mine").unwrap();
                    assert!(backend.free(at).is_err());
                    backend.launch_graph(graph, stream).unwrap();
                    backend.synchronize_stream(stream).unwrap();
                    assert!(backend.graphs().iter().any(|info| info.handle == graph));
                    backend.destroy_graph(graph).unwrap();
                    backend.free(at).unwrap();
                }
                backend.destroy_stream(stream).unwrap();
            });
        }
    });
    backend.ledger_probe().assert_nothing_live();
    assert_eq!(backend.graphs(), []);
}

/// The first fault is latched wherever it shows, with what was being done where that helps.
#[test]
fn a_fault_that_shows_in_a_call_about_graphs_is_latched() {
    let instantiate = DriverFn::ALL
        .iter()
        .copied()
        .find(|function| function.name().starts_with("cuGraphInstantiate"))
        .unwrap();
    for (function, after) in [
        (DriverFn::cuStreamBeginCapture_v2, None),
        (DriverFn::cuStreamEndCapture, None),
        (DriverFn::cuGraphGetNodes, None),
        (instantiate, None),
        (DriverFn::cuGraphLaunch, Some("the launch of graph \"step\"")),
        (DriverFn::cuGraphExecDestroy, None),
    ] {
        let faulty = Arc::new(FaultDriver::new(sim()));
        let backend = backend(faulty.clone());
        let at = backend.alloc(64).unwrap();
        faulty.fail_nth(function, 1, 700);
        let step = || {
            let capture = backend.capture(backend.stream())?;
            backend.memset_async(at, 1, 64, backend.stream())?;
            let graph = capture.finish("step")?;
            backend.launch_graph(graph, backend.stream())?;
            backend.destroy_graph(graph)
        };
        let (error, lines) = logged(|| step().unwrap_err());
        assert_eq!(error.downcast::<ContextLost>().expect("typed").driver.status, 700, "{function}");
        let reason = backend.context_fault().unwrap_or_else(|| panic!("{function} is not latched"));
        assert_eq!((reason.driver.function, reason.after.as_deref()), (function, after));
        assert_eq!(lines.iter().filter(|line| line.contains("is lost since")).count(), 1, "{lines:?}");
        // The drop says in one line that nothing can be freed.
        let ((), lines) = logged(|| drop(backend));
        assert!(
            lines.len() <= 2 && lines.iter().any(|line| line.contains("cannot be freed")),
            "{function}: {lines:?}"
        );
    }
}

/// A launch of a graph that the driver refuses is followed by the wait that finds a fault out.
#[test]
fn a_refused_launch_of_a_graph_is_checked_for_a_fault() {
    let faulty = Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    let graph = backend.capture(backend.stream()).unwrap().finish("step").unwrap();
    faulty.fail_nth(DriverFn::cuGraphLaunch, 1, 999);
    let error = backend.launch_graph(graph, backend.stream()).unwrap_err();
    assert_eq!(error.downcast::<CallFailed>().expect("typed").driver.status, 999);
    assert_eq!(backend.context_fault(), None, "the wait found nothing");
    faulty.fail_nth(DriverFn::cuGraphLaunch, 1, 999);
    faulty.fail_nth(DriverFn::cuStreamSynchronize, 1, 719);
    backend.launch_graph(graph, backend.stream()).unwrap_err();
    let reason = backend.context_fault().expect("checked");
    assert_eq!((reason.driver.status, reason.after.as_deref()), (719, Some("the launch of graph \"step\"")));
}

/// A fault in the middle of a capture is what every later call says, and the drop's one line.
#[test]
fn a_context_lost_in_a_capture_is_told_before_the_capture() {
    let driver = sim();
    let backend = backend(driver.clone());
    let at = backend.alloc(64).unwrap();
    let pinned = backend.alloc_pinned(64).unwrap();
    backend.begin_capture(backend.stream()).unwrap();
    driver.inject_fault(0, 700);
    backend.memset_async(at, 1, 64, backend.stream()).unwrap_err();
    assert!(backend.context_fault().is_some());
    for error in [
        backend.alloc(64).unwrap_err(),
        backend.free(at).unwrap_err(),
        backend.alloc_pinned(64).unwrap_err(),
        backend.free_pinned(pinned).unwrap_err(),
        backend.memory_info().unwrap_err(),
        backend.memset(at, 1, 64).unwrap_err(),
        backend.sweep_unreleased().unwrap_err(),
        backend.synchronize().unwrap_err(),
        backend.end_capture(backend.stream()).unwrap_err(),
    ] {
        assert!(error.downcast_ref::<ContextLost>().is_some_and(|lost| lost.first.is_some()), "{error}");
    }
    let ((), lines) = logged(|| drop(backend));
    assert!(lines.len() == 1 && lines[0].contains("2 allocations"), "{lines:?}");
}

/// The wait would break the capture that began while it waits.
#[test]
fn no_capture_begins_while_the_whole_device_is_waited_for() {
    let driver = Arc::new(HookedDriver::new(Arc::new(sim())));
    let [waiting, capturing] = [(); 2].map(|()| Arc::new(backend(driver.clone())));
    let stream = capturing.create_stream().unwrap();
    let refused = Arc::new(std::sync::Mutex::new(None));
    let (other, answer) = (Arc::clone(&capturing), Arc::clone(&refused));
    driver.before_each(move |called| {
        if called == DriverFn::cuCtxSynchronize {
            let other = Arc::clone(&other);
            let begun = thread::spawn(move || other.begin_capture(stream)).join().unwrap();
            *answer.lock().unwrap() = Some(begun.unwrap_err());
        }
    });
    waiting.synchronize().unwrap();
    driver.before_each(|_| {});
    let refused = refused.lock().unwrap().take().expect("it was waited for");
    assert_eq!((refused.kind(), refused.remedy()), (ErrorKind::Capture, Remedy::FixCall));
    let refused = refused.downcast::<StreamInUse>().expect("typed");
    assert!(
        refused.stream == stream && refused.to_string().contains("waits for the whole device"),
        "{refused}"
    );
    capturing.begin_capture(stream).unwrap();
    assert!(waiting.synchronize().unwrap_err().is::<Capturing>(), "and the other way round");
    capturing.end_capture(stream).unwrap();
    waiting.synchronize().unwrap();
}

/// What is only lent for the call must not become a node, which would read or write it at every replay.
#[test]
fn no_capture_begins_while_host_memory_is_lent_to_a_copy() {
    for function in [DriverFn::cuMemcpyHtoDAsync_v2, DriverFn::cuMemcpyDtoHAsync_v2] {
        for joins in [false, true] {
            let driver = Arc::new(HookedDriver::new(Arc::new(sim())));
            let backend = Arc::new(backend(driver.clone()));
            let (at, stream, other) = (
                backend.alloc(64).unwrap(),
                backend.create_stream().unwrap(),
                backend.create_stream().unwrap(),
            );
            let forked = backend.create_event().unwrap();
            if joins {
                backend.begin_capture(other).unwrap();
                backend.record_event(forked, other).unwrap();
            }
            let capture = {
                let backend = Arc::clone(&backend);
                move || {
                    backend.bind_to_thread().unwrap();
                    if joins { backend.wait_event(stream, forked) } else { backend.begin_capture(stream) }
                }
            };
            let (again, refused) = (capture.clone(), Arc::new(std::sync::Mutex::new(None)));
            let answer = Arc::clone(&refused);
            driver.before_each(move |called| {
                if called == function {
                    *answer.lock().unwrap() =
                        Some(thread::spawn(capture.clone()).join().unwrap().unwrap_err());
                }
            });
            let copied = match function {
                DriverFn::cuMemcpyHtoDAsync_v2 => backend.copy_h2d_async(&[7; 64], at, stream),
                _ => backend.copy_d2h_on_stream(at, &mut [0; 64], stream),
            };
            driver.before_each(|_| {});
            copied.unwrap();
            let refused = refused.lock().unwrap().take().expect("the copy was queued");
            assert_eq!(refused.remedy(), Remedy::FixCall);
            let refused = refused.downcast::<StreamInUse>().expect("typed");
            assert!(refused.stream == stream && refused.to_string().contains("another stream"), "{refused}");
            thread::spawn(again).join().unwrap().unwrap();
            if joins {
                backend.record_event(forked, stream).unwrap();
                backend.wait_event(other, forked).unwrap();
            }
            let graph = backend.end_capture(if joins { other } else { stream }).unwrap();
            assert_eq!(backend.graphs()[0].nodes, 0, "{function:?}");
            backend.destroy_graph(graph).unwrap();
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams run late: what was not waited for has not happened, and what was waited for has, on both drivers.

mod common;

use std::sync::Arc;

use common::{Cuda, PTX, sim, status};
use metrale_driver_sim::driver_sys::DriverApi;
use metrale_driver_sim::{ContextGuard, PageableCopies, Profile, SimDriver, on_both_drivers};

const NON_BLOCKING: u32 = 1;
const NO_TIMING: u32 = 2;

/// A software driver with its context, for tests of lateness itself, which a GPU need not show.
fn late(profile: Profile) -> (Cuda, ContextGuard) {
    let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(profile));
    let guard = ContextGuard::new(&driver, 0).unwrap();
    (Cuda::new(&driver), guard)
}

/// Pinned memory as a slice.
fn pinned(cuda: &Cuda, bytes: usize) -> &'static mut [u8] {
    let pointer = cuda.alloc_host(bytes).unwrap();
    // SAFETY: fresh memory of that size, which no test frees before it ends.
    unsafe { std::slice::from_raw_parts_mut(pointer.cast(), bytes) }
}

/// Memory that holds `byte`.
fn memory(cuda: &Cuda, byte: u8, bytes: usize) -> u64 {
    let address = cuda.alloc(bytes).unwrap();
    assert_eq!(cuda.memset(address, byte, bytes), 0);
    assert_eq!(cuda.sync(), 0);
    address
}

#[test]
fn an_async_download_to_pinned_memory_is_not_there_before_the_sync() {
    let (cuda, _guard) = late(Profile::h200());
    let (s, from, to) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 7, 64), pinned(&cuda, 64));
    // SAFETY: pinned memory stays.
    assert_eq!(unsafe { cuda.download_async(to.as_mut_ptr(), from, 64, s) }, 0);
    assert_eq!(to, [0; 64]);
    assert_eq!(cuda.stream_sync(s), 0);
    assert_eq!(to, [7; 64]);
}

#[test]
fn an_async_upload_reads_pinned_memory_late_and_pageable_memory_immediately() {
    let (cuda, _guard) = late(Profile::h200());
    let (s, to) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 0, 128));
    let from = pinned(&cuda, 64);
    from.fill(1);
    let mut pageable = vec![1; 64];
    // SAFETY: pinned memory stays.
    assert_eq!(unsafe { cuda.upload_async(to, from.as_ptr(), 64, s) }, 0);
    // SAFETY: pageable memory is staged at the call.
    assert_eq!(unsafe { cuda.upload_async(to + 64, pageable.as_ptr(), 64, s) }, 0);
    from.fill(2);
    pageable.fill(2);
    drop(pageable);
    assert_eq!(cuda.stream_sync(s), 0);
    assert_eq!(cuda.bytes(to), [2; 64]);
    assert_eq!(cuda.bytes(to + 64), [1; 64]);
}

#[test]
fn a_non_blocking_stream_is_not_waited_for_by_a_blocking_copy() {
    let (cuda, _guard) = late(Profile::h200());
    let (s, a) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 0, 64));
    assert_eq!(cuda.memset_async(a, 9, 64, s), 0);
    assert_eq!(cuda.bytes(a), [0; 64]);
    assert_eq!(cuda.stream_sync(s), 0);
    assert_eq!(cuda.bytes(a), [9; 64]);
}

#[test]
fn another_streams_sync_does_not_help_and_an_event_does() {
    let (cuda, _guard) = late(Profile::h200());
    let (s1, s2) = (cuda.stream(NON_BLOCKING).unwrap(), cuda.stream(NON_BLOCKING).unwrap());
    let (a, b) = (memory(&cuda, 0, 64), memory(&cuda, 0, 64));
    // The consumer on s2 does not wait for the producer on s1.
    assert_eq!(cuda.memset_async(a, 5, 64, s1), 0);
    assert_eq!(cuda.copy_on_device_async(b, a, 64, s2), 0);
    assert_eq!(cuda.stream_sync(s2), 0);
    assert_eq!(cuda.bytes(b), [0; 64]);
    // Now it does.
    let event = cuda.event(NO_TIMING).unwrap();
    assert_eq!(cuda.event_record(event, s1), 0);
    assert_eq!(cuda.stream_wait(s2, event, 0), 0);
    assert_eq!(cuda.copy_on_device_async(b, a, 64, s2), 0);
    assert_eq!(cuda.stream_sync(s2), 0);
    assert_eq!(cuda.bytes(b), [5; 64]);
}

#[test]
fn device_copies_and_memsets_are_late_even_where_they_do_not_say_async() {
    let (cuda, _guard) = late(Profile::h200());
    let (s, a, b) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 1, 64), memory(&cuda, 0, 64));
    assert_eq!(cuda.memset(a, 2, 64), 0);
    assert_eq!(cuda.copy_on_device_async(b, a, 64, s), 0);
    assert_eq!(cuda.stream_sync(s), 0);
    assert_eq!(cuda.bytes(b), [1; 64]);
}

#[test]
fn the_strict_profile_delays_pageable_copies_too() {
    let (cuda, _guard) = late(Profile::h200().with_pageable_copies(PageableCopies::Late));
    let (s, a, b) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 1, 64), memory(&cuda, 0, 64));
    assert_eq!(cuda.upload(a, &[3; 64]), 0);
    assert_eq!(cuda.copy_on_device_async(b, a, 64, s), 0);
    assert_eq!(cuda.stream_sync(s), 0);
    assert_eq!(cuda.bytes(b), [1; 64]);
    let mut host = [0; 64];
    // SAFETY: the buffer outlives the synchronization.
    assert_eq!(unsafe { cuda.download_async(host.as_mut_ptr(), a, 64, s) }, 0);
    assert_eq!(host, [0; 64]);
    assert_eq!(cuda.stream_sync(s), 0);
    assert_eq!(host, [3; 64]);
}

#[test]
fn a_query_says_not_ready_once_and_the_next_one_has_run_the_work() {
    let (cuda, _guard) = late(Profile::h200());
    let (s, from, to) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 7, 64), pinned(&cuda, 64));
    let event = cuda.event(NO_TIMING).unwrap();
    assert_eq!(cuda.stream_query(s), 0);
    // SAFETY: pinned memory stays.
    assert_eq!(unsafe { cuda.download_async(to.as_mut_ptr(), from, 64, s) }, 0);
    assert_eq!(cuda.event_record(event, s), 0);
    assert_eq!((cuda.stream_query(s), to[0]), (600, 0));
    assert_eq!((cuda.stream_query(s), to[0]), (0, 7));
    assert_eq!(cuda.event_query(event), 0);
    // The same by the event, and by the legacy stream behind a blocking one.
    to.fill(0);
    let blocking = cuda.stream(0).unwrap();
    // SAFETY: pinned memory stays.
    assert_eq!(unsafe { cuda.download_async(to.as_mut_ptr(), from, 64, blocking) }, 0);
    assert_eq!(cuda.event_record(event, blocking), 0);
    assert_eq!((cuda.event_query(event), to[0]), (600, 0));
    assert_eq!((cuda.event_query(event), to[0]), (0, 7));
    assert_eq!(cuda.memset_async(from, 8, 64, blocking), 0);
    assert_eq!((cuda.stream_query(0), cuda.stream_query(0)), (600, 0));
    assert_eq!(cuda.stream_query(blocking), 0);
}

#[test]
fn long_chains_between_streams_neither_overflow_nor_deadlock() {
    let (cuda, _guard) = late(Profile::h200());
    let (s1, s2) = (cuda.stream(NON_BLOCKING).unwrap(), cuda.stream(NON_BLOCKING).unwrap());
    let (event, a) = (cuda.event(NO_TIMING).unwrap(), memory(&cuda, 0, 4));
    for round in 0..20_000u32 {
        let (from, to) = if round % 2 == 0 { (s1, s2) } else { (s2, s1) };
        assert_eq!(cuda.memset_words(a, round, 1, from), 0);
        assert_eq!(cuda.event_record(event, from), 0);
        assert_eq!(cuda.stream_wait(to, event, 0), 0);
    }
    assert_eq!(cuda.stream_sync(s1), 0);
    assert_eq!(cuda.bytes(a), 19_999u32.to_le_bytes());
}

/// On the software driver only: the H200 answered 709 in one run and crashed in another.
#[test]
fn destroyed_event_is_told_from_a_null_one() {
    let driver: Arc<dyn DriverApi> = Arc::new(sim());
    let _guard = ContextGuard::new(&driver, 0).unwrap();
    let cuda = Cuda::new(&driver);
    let event = cuda.event(0).unwrap();
    assert_eq!(cuda.event_destroy(event), 0);
    assert_eq!((cuda.event_query(event), cuda.event_sync(event)), (709, 709));
    assert_eq!(cuda.event_destroy(event), 709);
}

on_both_drivers! {
    /// Blocking streams and the legacy stream wait for each other; non-blocking ones join by events.
    legacy_order(driver; sim: sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let blocking = cuda.stream(0).unwrap();
        let (a, b) = (memory(&cuda, 0, 64), memory(&cuda, 0, 64));
        // blocking, then legacy, then blocking
        assert_eq!(cuda.memset_async(a, 1, 64, blocking), 0);
        assert_eq!(cuda.copy_on_device(b, a, 64), 0);
        assert_eq!(cuda.copy_on_device_async(a, b, 32, blocking), 0);
        assert_eq!(cuda.memset_async(a + 32, 2, 32, blocking), 0);
        assert_eq!((cuda.bytes(a), cuda.bytes(a + 32)), ([1; 32], [2; 32]));
        assert_eq!(cuda.bytes(b), [1; 64]);
        assert_eq!(cuda.stream_destroy(blocking), 0);
        assert_eq!((cuda.free(a), cuda.free(b)), (0, 0));
    }

    /// A stream that is destroyed finishes its work first.
    destroy_finishes(driver; sim: sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (s, a) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 0, 64));
        assert_eq!(cuda.memset_async(a, 4, 64, s), 0);
        assert_eq!((cuda.stream_destroy(s), cuda.sync()), (0, 0));
        assert_eq!(cuda.bytes(a), [4; 64]);
        assert_eq!(cuda.free(a), 0);
    }

    /// Events that keep time give it in order; those that do not refuse.
    elapsed(driver; sim: sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (s, a) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 0, 1 << 20));
        let (start, end) = (cuda.event(0).unwrap(), cuda.event(0).unwrap());
        let silent = cuda.event(NO_TIMING).unwrap();
        assert_eq!(cuda.elapsed(start, end), Err(400), "neither was recorded");
        assert_eq!(cuda.event_record(start, s), 0);
        for _ in 0..100 {
            assert_eq!(cuda.memset_async(a, 1, 1 << 20, s), 0);
        }
        assert_eq!(cuda.event_record(end, s), 0);
        assert_eq!(cuda.event_record(silent, s), 0);
        assert_eq!(cuda.event_sync(end), 0);
        assert!(cuda.elapsed(start, end).unwrap() > 0.0);
        assert_eq!(cuda.elapsed(start, start), Ok(0.0));
        assert_eq!(cuda.stream_sync(s), 0);
        assert_eq!(cuda.elapsed(start, silent), Err(400));
        for event in [start, end, silent] {
            assert_eq!(cuda.event_destroy(event), 0);
        }
        assert_eq!((cuda.stream_destroy(s), cuda.free(a)), (0, 0));
    }

    null_event(driver; sim: sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        assert_eq!((cuda.event_query(0), cuda.event_sync(0), cuda.event_destroy(0)), (400, 400, 400));
    }

    /// A replay sees the memory of its own time, and the order of the capture.
    graphs_replay(driver; sim: sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let poke = cuda.function(module, "poke").unwrap();
        let (s, a, b) = (cuda.stream(NON_BLOCKING).unwrap(), memory(&cuda, 0, 64), memory(&cuda, 0, 64));
        let capture = |value: u32| {
            assert_eq!(cuda.capture_begin(s, 2), 0);
            assert_eq!(cuda.copy_on_device_async(b, a, 64, s), 0);
            assert_eq!(cuda.poke(poke, a, value, s), 0);
            let (end, graph) = cuda.end(s);
            assert_eq!((end, cuda.nodes(graph)), (0, Ok(2)));
            graph
        };
        let graph = capture(0x0101_0101);
        assert_eq!(cuda.bytes(a), [0; 4], "a capture runs nothing");
        let exec = cuda.instantiate(graph).unwrap();
        assert_eq!(cuda.graph_destroy(graph), 0);
        assert_eq!((cuda.graph_launch(exec, s), cuda.stream_sync(s)), (0, 0));
        assert_eq!((cuda.bytes(a), cuda.bytes(b)), ([1; 4], [0; 4]));
        assert_eq!((cuda.graph_launch(exec, s), cuda.stream_sync(s)), (0, 0));
        assert_eq!((cuda.bytes(a), cuda.bytes(b)), ([1; 4], [1; 4]));

        let mut info = Default::default();
        let other = capture(0x0202_0202);
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { driver.cuGraphExecUpdate_v2(exec, other, &mut info) }, 0);
        assert_eq!((cuda.graph_launch(exec, s), cuda.stream_sync(s)), (0, 0));
        assert_eq!((cuda.bytes(a), cuda.bytes(b)), ([2; 4], [1; 4]));
        assert_eq!(cuda.graph_destroy(other), 0);

        assert_eq!(cuda.capture_begin(s, 2), 0);
        assert_eq!(cuda.poke(poke, a, 3, s), 0);
        let (end, shorter) = cuda.end(s);
        assert_eq!(end, 0);
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { driver.cuGraphExecUpdate_v2(exec, shorter, &mut info) }, 910);
        assert_ne!(info.result, 0);
        assert_eq!((cuda.graph_destroy(shorter), cuda.exec_destroy(exec)), (0, 0));
        assert_eq!((cuda.stream_destroy(s), cuda.free(a), cuda.free(b), cuda.unload(module)), (0, 0, 0, 0));
    }

    /// A launch waits for the launches before of the same graph, on whichever streams they are.
    launches_of_one_graph(driver; sim: sim()) {
        const MANY: usize = 256 << 20;
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (s1, s2) = (cuda.stream(NON_BLOCKING).unwrap(), cuda.stream(NON_BLOCKING).unwrap());
        let (from, to) = (memory(&cuda, 0, MANY), memory(&cuda, 0, 64));
        assert_eq!(cuda.capture_begin(s1, 2), 0);
        assert_eq!(cuda.copy_on_device_async(to, from + MANY as u64 - 64, 64, s1), 0);
        let (end, graph) = cuda.end(s1);
        assert_eq!(end, 0);
        let exec = cuda.instantiate(graph).unwrap();
        for value in 1..=20 {
            // Long enough that the second launch would be done before.
            assert_eq!(cuda.memset_async(from, value, MANY, s1), 0);
            assert_eq!((cuda.graph_launch(exec, s1), cuda.graph_launch(exec, s2)), (0, 0));
            assert_eq!(cuda.stream_sync(s2), 0);
            assert_eq!(cuda.bytes(to), [value; 4]);
        }
        assert_eq!((cuda.graph_destroy(graph), cuda.exec_destroy(exec)), (0, 0));
        assert_eq!((cuda.stream_destroy(s1), cuda.stream_destroy(s2), cuda.free(from), cuda.free(to)), (0, 0, 0, 0));
    }

    /// Host memory that the device reaches: pinned by its own address, managed from both sides.
    shared_memory(driver; sim: sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let poke = cuda.function(module, "poke").unwrap();
        let pointer = cuda.alloc_host(4096).unwrap();
        let address = cuda.device_pointer(pointer).unwrap();
        let managed = cuda.alloc_managed(4096, 1).unwrap();
        assert_eq!((cuda.poke(poke, address + 8, 77, 0), cuda.poke(poke, managed + 8, 78, 0)), (0, 0));
        assert_eq!(cuda.sync(), 0);
        for (base, value) in [(pointer.cast::<u32>(), 77), (managed as *mut u32, 78)] {
            // SAFETY: both have 4096 bytes, and the device is done with them.
            let word = unsafe { base.add(2) };
            // SAFETY: as above.
            assert_eq!(unsafe { word.read_volatile() }, value);
        }
        assert_eq!((cuda.free(managed), cuda.free_host(pointer), cuda.unload(module)), (0, 0, 0));
    }

    /// Lifetimes of contexts and what a thread sees of them.
    contexts(driver; sim: sim()) {
        let cuda = Cuda::new(&driver);
        assert_eq!(cuda.init(0), 0);
        assert_eq!(cuda.current(), Ok(0));
        assert_eq!(status(cuda.alloc(1)), 201);
        assert_eq!(cuda.context_device(), Err(201));
        let context = cuda.retain(0).unwrap();
        assert_eq!(cuda.retain(0), Ok(context), "one primary context");
        assert_eq!(cuda.current(), Ok(0), "retaining makes nothing current");
        assert_eq!(cuda.set_current(context), 0);
        assert_eq!((cuda.current(), cuda.context_device()), (Ok(context), Ok(0)));
        let other = std::thread::scope(|scope| scope.spawn(|| cuda.current()).join().unwrap());
        assert_eq!(other, Ok(0), "contexts are current per thread");
        let address = cuda.alloc(1).unwrap();
        assert_eq!(cuda.release(0), 0);
        assert_eq!(cuda.free(address), 0, "one reference is left");
        assert_eq!(cuda.set_current(0), 0);
        assert_eq!(status(cuda.info()), 201);
        assert_eq!(cuda.release(0), 0);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arenas as owners: buffers that are parts of one allocation, and what becomes of both.

mod common;

use std::sync::Arc;
use std::thread;

use common::{MIB, backend, logged, sim};
use metrale_cuda_backend::{Arena, ArenaError, BadArgument, DeviceBuffer, DriverApi, Freed, GpuBackend};
#[cfg(all(feature = "graph", feature = "ledger"))]
use metrale_cuda_backend::{PinnedByGraph, Stream};
use metrale_driver_sim::on_both_drivers;

fn shared(driver: Arc<dyn DriverApi>) -> Arc<dyn GpuBackend> {
    Arc::new(backend(driver))
}

fn stays_beside<T: Send + Sync + 'static>() {}

#[test]
fn an_arena_is_kept_beside_its_backend_and_goes_to_any_thread() {
    stays_beside::<Arena>();
}

on_both_drivers! {
    buffers_of_an_arena_are_buffers_and_give_their_places_back(driver) {
        let gpu = shared(driver);
        let arena = Arena::new(&gpu, MIB).unwrap();
        assert_eq!((arena.bytes(), arena.parts(), arena.free_bytes()), (MIB, 0, MIB as u64));
        let mut one = arena.alloc::<f32>("one", 1000).unwrap();
        let two = arena.alloc::<u64>("two", 10).unwrap();
        assert_eq!((one.ptr(), two.ptr()), (arena.base(), arena.base().offset(4096)));
        one.copy_from(&[0.5; 1000]).unwrap();
        assert_eq!(one.to_vec().unwrap(), [0.5; 1000]);
        if cfg!(feature = "ledger") {
            let report = gpu.alloc_report(10, 0);
            assert!(report.contains("one") && report.contains("two"), "{report}");
            let past = gpu.copy_h2d(&[0; 81], two.ptr()).unwrap_err();
            assert!(past.to_string().contains("two"), "a part's end is as good as an allocation's: {past}");
        }
        assert_eq!(arena.parts(), 2);
        drop(one);
        assert!(matches!(two.close().unwrap(), Freed::Now));
        assert_eq!((arena.parts(), arena.free_bytes()), (0, MIB as u64));
        let again = arena.alloc::<u8>("again", MIB).unwrap();
        assert_eq!(again.ptr(), arena.base());
        let error = arena.alloc::<u8>("more", 1).unwrap_err();
        assert!(matches!(error.downcast::<ArenaError>().unwrap(), ArenaError::NoSpace { .. }));
        let none = arena.alloc::<u64>("none", 0).unwrap();
        assert!(none.is_empty() && none.ptr().is_null());
        assert!(arena.alloc::<u64>("huge", usize::MAX).unwrap_err().is::<BadArgument>());
    }

    an_arena_goes_with_its_last_clone_and_its_last_buffer(driver) {
        let gpu = shared(driver);
        let probe = gpu.ledger_probe();
        let arena = Arena::new(&gpu, MIB).unwrap();
        let clone = arena.clone();
        let buffer: DeviceBuffer<u32> = arena.alloc("kept", 4).unwrap();
        drop(arena);
        let mut other = clone.alloc::<u32>("other", 4).unwrap();
        drop(clone);
        other.copy_from(&[1, 2, 3, 4]).unwrap();
        drop(other);
        if cfg!(feature = "ledger") {
            assert_eq!(probe.arena_count(), 1);
        }
        // On a thread that never used the backend.
        thread::spawn(move || drop(buffer)).join().unwrap();
        assert_eq!(probe.arena_count(), 0);
    }
}

#[cfg(all(feature = "graph", feature = "ledger"))]
on_both_drivers! {
    what_a_graph_uses_is_nobody_elses_until_it_is_destroyed(driver) {
        let gpu = shared(driver);
        let probe = gpu.ledger_probe();
        let stream = Stream::new(&gpu).unwrap();
        let arena = Arena::new(&gpu, 1024).unwrap();
        let mut state = arena.alloc::<u8>("state", 512).unwrap();
        let capture = stream.capture().unwrap();
        stream.fill_bytes(&mut state, 7).unwrap();
        let graph = capture.finish("fill").unwrap();
        assert!(matches!(state.close().unwrap(), Freed::Later(error) if error.is::<PinnedByGraph>()));
        assert_eq!((arena.parts(), arena.free_bytes()), (1, 512), "the place is not free yet");
        assert!(arena.alloc::<u8>("next", 1024).is_err());
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        drop(graph);
        let next = arena.alloc::<u8>("next", 1024).unwrap();
        drop((next, arena));
        assert_eq!(probe.arena_count(), 0);
    }

    an_arena_dropped_in_a_capture_or_while_a_graph_uses_it_is_freed_after_it(driver) {
        let gpu = shared(driver);
        let probe = gpu.ledger_probe();
        let stream = Stream::new(&gpu).unwrap();
        let (dropped, used) = (Arena::new(&gpu, 512).unwrap(), Arena::new(&gpu, 512).unwrap());
        let mut state = used.alloc::<u8>("state", 512).unwrap();
        let capture = stream.capture().unwrap();
        stream.fill_bytes(&mut state, 7).unwrap();
        drop(dropped);
        assert_eq!(probe.arena_count(), 2, "this thread captures");
        let graph = capture.finish("fill").unwrap();
        assert_eq!(probe.arena_count(), 1, "the end of the capture frees it");
        drop((state, used));
        assert_eq!(probe.arena_count(), 1, "the graph fills it at every launch");
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        drop(graph);
        assert_eq!(probe.arena_count(), 0);
    }
}

#[test]
fn the_end_of_everything_leaves_nothing_at_the_driver() {
    let driver = sim();
    let gpu = shared(driver.clone());
    let arena = Arena::new(&gpu, 3 * MIB).unwrap();
    let buffer = arena.alloc::<u8>("last", 5).unwrap();
    drop((arena, gpu));
    let ((), lines) = logged(|| drop(buffer));
    assert!(lines.is_empty() && driver.leaks().is_empty(), "{lines:?} {:?}", driver.leaks());
}

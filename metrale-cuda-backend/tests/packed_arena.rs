// SPDX-License-Identifier: MIT OR Apache-2.0
//! A packed arena: parts without a driver call, as close as promised, copied to and fro within their bounds, ended with it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{KIB, MIB, address, assert_site, backend, logged};
use metrale_cuda_backend::{
    AllocKind, ArenaError, BackendConfig, BadArgument, CopyOutOfBounds, DevicePtr, ForgetError, FreeError,
    GpuBackend, MetraleCudaBackend, PackedArena, PinnedByGraph, Remedy, SubRangeError,
};
use metrale_driver_sim::{TraceDriver, on_both_drivers};

fn used(backend: &MetraleCudaBackend, before: u64) -> u64 {
    before - backend.memory_info().unwrap().free_bytes
}

on_both_drivers! {
    parts_take_what_the_arena_takes_and_hold_their_data(driver) {
        let backend = backend(driver);
        let before = backend.memory_info().unwrap().free_bytes;
        // One by one these would take 2 pages each and a chunk.
        let sizes = [2 * MIB + 1, 100, 2 * MIB + 1, 513, 3 * MIB - 5];
        let arena = backend.packed_arena(PackedArena::bytes_for(sizes).unwrap()).unwrap();
        let kept = used(&backend, before);
        assert_eq!(kept, 8 << 20);
        let mut line = 0;
        let parts: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, &bytes)| {
                let data: Vec<u8> = (0..bytes).map(|n| (n * 7 + i) as u8).collect();
                line = line!() + 1;
                let part = arena.alloc(&format!("part {i}"), bytes).unwrap();
                assert_eq!(part.addr() % 512, 0);
                backend.copy_h2d(&data, part).unwrap();
                (part, data)
            })
            .collect();
        for (part, data) in &parts {
            let mut back = vec![0; data.len()];
            backend.copy_d2h(*part, &mut back).unwrap();
            assert!(back == *data);
        }
        assert_eq!((used(&backend, before), backend.live_bytes()), (kept, 0));
        assert_eq!((arena.parts(), arena.free_bytes()), (5, 0));
        let probe = backend.ledger_probe();
        assert_eq!((probe.arena_count(), probe.arena_resident_bytes() as u64), (1, kept));
        let report = backend.alloc_report(2, 0);
        assert!(report.contains("arenas:") && report.contains("part 4") && report.contains("in 3 more parts"), "{report}");
        assert_site(&probe.sub_ranges(arena.base().addr())[0].site.to_string(), file!(), line);
        arena.free().unwrap();
        assert_eq!(used(&backend, before), 0);
        probe.assert_nothing_live();
    }

    an_arena_with_a_share_in_its_backend_may_be_kept_beside_it(driver) {
        struct Engine {
            backend: Arc<MetraleCudaBackend>,
            weights: PackedArena<Arc<MetraleCudaBackend>>,
        }
        let backend = Arc::new(backend(driver));
        let probe = backend.ledger_probe();
        let (weights, line) = ((Arc::clone(&backend) as Arc<dyn GpuBackend>).packed_arena_shared(MIB).unwrap(), line!());
        let engine = Engine { backend, weights };
        let part = engine.weights.alloc("weight", 4096).unwrap();
        engine.backend.copy_h2d(&[7; 4096], part).unwrap();
        assert!(engine.backend.copy_h2d(&[7; 4097], part).is_err());
        assert_site(&probe.allocations_of(AllocKind::Arena)[0].1.site.to_string(), file!(), line);
        let Engine { backend, weights } = engine;
        // The backend lives as long as the arena.
        drop(backend);
        assert_eq!(probe.arena_count(), 1);
        drop(weights);
        probe.assert_nothing_live();
    }

    an_arena_of_any_size_gives_all_of_it_in_one_part(driver) {
        let backend = backend(driver);
        for bytes in [1, 511, 512, 1000, 2 * MIB - 1, 2 * MIB + 1] {
            let arena = backend.packed_arena(bytes).unwrap();
            assert_eq!(arena.bytes(), bytes.next_multiple_of(512));
            arena.alloc("all", bytes).unwrap();
            assert_eq!(arena.free_bytes(), 0);
            arena.free().unwrap();
        }
    }

    mistakes_are_answered_and_change_nothing(driver) {
        let backend = backend(driver);
        let arena = backend.packed_arena(8 * KIB).unwrap();
        let first = arena.alloc("first", 4096).unwrap();
        let part = arena.alloc_aligned("second", 1000, 2048).unwrap();
        assert_eq!(part.addr() % 2048, 0);

        let error = arena.alloc("large", 4 * KIB).unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall);
        let error = error.downcast::<ArenaError>().expect("typed");
        assert!(matches!(&error, ArenaError::NoSpace { bytes: 4096, parts: 2, free_bytes: 3072, .. }), "{error}");
        assert!(arena.alloc("nothing", 0).unwrap_err().is::<BadArgument>());
        assert!(arena.alloc_aligned("odd", 1, 3).unwrap_err().is::<BadArgument>());
        assert!(arena.alloc_aligned("far", 1, 1 << 62).unwrap_err().is::<ArenaError>());

        let cause = |result: metrale_cuda_backend::Result<()>| {
            let error = result.unwrap_err().downcast::<ArenaError>().expect("typed");
            let ArenaError::NotAPart { cause, .. } = error else { panic!("{error}") };
            cause
        };
        arena.free_part(DevicePtr::NULL).unwrap();
        assert!(matches!(cause(arena.free_part(part.offset(16))), SubRangeError::Interior { .. }));
        assert!(matches!(cause(arena.free_part(address(0x1234_5600))), SubRangeError::Unknown { .. }));
        assert!(matches!(cause(arena.free_part(arena.base().offset(8 << 10))), SubRangeError::Unknown { .. }));
        arena.free_part(part).unwrap();
        assert!(matches!(cause(arena.free_part(part)), SubRangeError::EndedBefore { ended_at, .. } if ended_at.line() == line!() - 1));
        assert_eq!(arena.alloc("third", 4 * KIB).unwrap(), part, "its place is used again");

        // A part is none of the sweep's and none of `free`'s.
        let error = backend.free(first).unwrap_err().downcast::<FreeError>().expect("typed");
        assert!(matches!(&error.cause, ForgetError::SubRange { part } if &*part.name == "first"), "{error}");
        assert_eq!(backend.sweep_unreleased().unwrap(), 0);
        assert_eq!(arena.parts(), 2);
        arena.free().unwrap();
        backend.ledger_probe().assert_nothing_live();
    }

    a_copy_or_fill_that_leaves_its_part_is_refused_and_whole_parts_go_as_one(driver) {
        let backend = backend(driver);
        let arena = backend.packed_arena(4096).unwrap();
        let (one, two) = (arena.alloc("one", 1000).unwrap(), arena.alloc("two", 1024).unwrap());
        backend.memset(arena.base(), 1, 4096).unwrap();
        let refused = |result: metrale_cuda_backend::Result<()>| {
            let error = result.unwrap_err().downcast::<CopyOutOfBounds>().expect("typed");
            assert!(error.to_string().contains("tag one") || error.to_string().contains("tag two"), "{error}");
        };
        refused(backend.copy_h2d(&[2; 1001], one));
        refused(backend.copy_h2d(&[2; 1024], one));
        refused(backend.memset(two, 2, 1025));
        refused(backend.copy_d2d(one.offset(1), two, 1000));
        refused(backend.copy_d2h(one, &mut [0; 1025]));
        // Two whole parts, and the gap between them.
        let mut both = [0; 2048];
        backend.copy_d2h(one, &mut both).unwrap();
        assert!(both.iter().all(|&byte| byte == 1));
        // Outside any part the arena's end counts.
        backend.memset(arena.base().offset(2048), 3, 2048).unwrap();
        assert!(backend.memset(arena.base().offset(2048), 3, 2049).unwrap_err().is::<CopyOutOfBounds>());
        arena.free().unwrap();
    }

    /// Freed by its number, it could be another's by the time its owner goes.
    an_arena_is_freed_by_its_owner_alone_and_once(driver) {
        let backend = backend(driver);
        let before = backend.memory_info().unwrap().free_bytes;
        {
            let arena = backend.packed_arena(3 * MIB).unwrap();
            arena.alloc("weights", MIB).unwrap();
        }
        assert_eq!(used(&backend, before), 0);
        let arena = backend.packed_arena(3 * MIB).unwrap();
        let base = arena.base();
        let refused = backend.free_arena(base).unwrap_err().downcast::<BadArgument>().expect("typed");
        assert!(refused.to_string().contains("belongs to a PackedArena"), "{refused}");
        arena.alloc("late", 1).unwrap();
        let ((), lines) = logged(|| drop(arena));
        assert!(lines.is_empty(), "{lines:?}");
        assert_eq!(used(&backend, before), 0);
        // What has the address next is freed by whoever has it, and by no owner of before.
        let next = backend.alloc_arena(3 * MIB).unwrap();
        backend.free_arena(next).unwrap();
        let mut first = backend.packed_arena(MIB).unwrap();
        drop(std::mem::replace(&mut first, backend.packed_arena(MIB).unwrap()));
        first.alloc("lives", MIB).unwrap();
        assert_eq!(backend.ledger_probe().arena_count(), 1);
        first.free().unwrap();
        assert_eq!(used(&backend, before), 0);
    }

    /// A free by the owner that is refused leaves the arena to whoever knows its address.
    an_arena_whose_owner_could_not_free_it_has_none(driver) {
        let backend = backend(driver);
        let arena = backend.packed_arena(MIB).unwrap();
        let (base, stream) = (arena.base(), backend.stream());
        let capture = backend.capture(stream).unwrap();
        backend.memset_async(base, 1, 64, stream).unwrap();
        let graph = capture.end().unwrap();
        let refused = arena.free().unwrap_err().downcast::<PinnedByGraph>().expect("typed");
        assert_eq!(refused.call, "PackedArena::free");
        backend.destroy_graph(graph).unwrap();
        backend.free_arena(base).unwrap();
        backend.ledger_probe().assert_nothing_live();
    }

    threads_take_and_give_parts_that_share_nothing(driver) {
        let backend = backend(driver);
        let arena = backend.packed_arena(64 * KIB).unwrap();
        let full = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (arena, full) = (&arena, &full);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for step in 0..500_usize {
                        match arena.alloc("part", 1 + (thread * 977 + step * 131) % 5000) {
                            Ok(part) => held.push(part),
                            Err(_) => {
                                full.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        if held.len() > 3 {
                            arena.free_part(held.swap_remove(step % 3)).unwrap();
                        }
                    }
                    for part in held {
                        arena.free_part(part).unwrap();
                    }
                });
            }
        });
        assert_eq!((arena.parts(), arena.free_bytes()), (0, 64 << 10), "full {full:?} times");
        assert!(backend.ledger_probe().sub_ranges(arena.base().addr()).is_empty());
        arena.free().unwrap();
    }
}

#[test]
fn parts_ask_no_driver() {
    let driver = Arc::new(TraceDriver::new(common::sim()));
    let backend = MetraleCudaBackend::builder()
        .driver(Arc::clone(&driver) as Arc<_>)
        .config(BackendConfig::default())
        .build()
        .unwrap();
    let arena = backend.packed_arena(MIB).unwrap();
    let calls = driver.calls().len();
    for n in 0..100 {
        let part = arena.alloc("part", 1000).unwrap();
        if n % 2 == 0 {
            arena.free_part(part).unwrap();
        }
    }
    assert_eq!(driver.calls().len(), calls);
}

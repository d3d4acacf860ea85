// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arenas that nobody owns outlive their backend, with their contents, and any backend of the device frees them, once.

mod common;

use std::sync::{Arc, Barrier};
use std::thread;

use common::{KIB, MIB, backend, logged, sim};
use metrale_cuda_backend::{AllocKind, DevicePtr, DriverApi, DriverFn, MetraleCudaBackend};
use metrale_driver_sim::{FaultDriver, on_both_drivers};

const KEEPS_LEDGER: bool = cfg!(feature = "ledger");

/// An arena of 3 MiB, full of `value`, whose backend is dropped.
fn survivor(driver: &Arc<dyn DriverApi>, value: u8) -> DevicePtr {
    let first = backend(driver.clone());
    let arena = first.alloc_arena(3 * MIB).unwrap();
    first.memset(arena, value, 3 * MIB).unwrap();
    arena
}

fn first_bytes(backend: &MetraleCudaBackend, arena: DevicePtr) -> [u8; 64] {
    let mut back = [0; 64];
    backend.copy_d2h(arena, &mut back).unwrap();
    back
}

/// The arenas on a backend's ledger.
fn arenas(backend: &MetraleCudaBackend) -> Vec<u64> {
    backend.ledger_probe().allocations_of(AllocKind::Arena).into_iter().map(|(addr, _)| addr).collect()
}

fn assert_account_closes(backend: &MetraleCudaBackend) {
    if KEEPS_LEDGER {
        let account = backend.account().unwrap();
        assert_eq!(account.remainder_bytes(), 0, "{account}");
    }
}

on_both_drivers! {
    an_arena_outlives_its_backend_with_its_contents(driver) {
        let first = backend(driver.clone());
        let (arena, line) = {
            let _outer = first.scope("model");
            let _inner = first.scope("kv");
            (first.alloc_arena(3 * MIB).unwrap(), line!())
        };
        assert_eq!(first.tag(arena, "cache"), KEEPS_LEDGER);
        let small = first.alloc_arena(KIB).unwrap();
        first.memset(arena, 0x5A, 3 * MIB).unwrap();
        let (probe, free_bytes) = (first.ledger_probe(), first.memory_info().unwrap().free_bytes);
        let record = probe.allocations_of(AllocKind::Arena).into_iter().next();
        let ((), lines) = logged(|| drop(first));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("INFO 2 arena allocations"), "{lines:?}");
        if KEEPS_LEDGER {
            assert!(lines[0].contains("(3.00 MiB)"), "{lines:?}");
            assert!(lines[0].contains(&format!("{}:{line}", file!())), "{lines:?}");
            assert_eq!(probe.arena_count(), 2, "they are still there");
        }

        let (second, lines) = logged(|| backend(driver.clone()));
        assert!(second.memory_info().unwrap().free_bytes <= free_bytes);
        assert!(lines.iter().any(|line| line.starts_with("INFO 2 arena allocations")), "{lines:?}");
        assert_eq!(first_bytes(&second, arena), [0x5A; 64]);
        assert_account_closes(&second);
        if let Some((addr, record)) = record {
            let (now_at, now) = second.ledger_probe().allocations_of(AllocKind::Arena).swap_remove(0);
            assert_eq!((addr, now_at), (arena.addr(), arena.addr()));
            assert_eq!((now.bytes, now.site, now.index), (record.bytes, record.site, 0));
            assert_eq!((now.scope.as_deref(), now.tag.as_deref()), (Some("model/kv"), Some("cache")));
            assert_eq!((probe.arena_count(), second.account().unwrap().term("arenas").unwrap().bytes), (0, 6 << 20));
        }
        // It knows them as its own: beside what it allocates, and past an end.
        let beside = second.alloc(100).unwrap();
        assert_account_closes(&second);
        let error = second.memset(arena, 0, 4 * MIB + 1).unwrap_err();
        assert_eq!(error.is::<metrale_cuda_backend::CopyOutOfBounds>(), KEEPS_LEDGER, "{error:#}");
        second.free_arena(arena).unwrap();
        assert_account_closes(&second);
        second.free_arena(small).unwrap();
        second.free(beside).unwrap();
        assert_account_closes(&second);
        if KEEPS_LEDGER {
            let text = second.free_arena(arena).unwrap_err().to_string();
            assert!(text.contains("freed before"), "{text}");
        }
        assert_eq!(logged(|| drop(second)).1, [""; 0]);
    }

    a_backend_that_is_already_live_frees_it(driver) {
        let live = backend(driver.clone());
        let before = live.memory_info().unwrap().free_bytes;
        let arena = survivor(&driver, 7);
        assert_eq!((first_bytes(&live, arena), arenas(&live)), ([7; 64], vec![]));
        live.free_arena(arena).unwrap();
        assert_eq!(live.memory_info().unwrap().free_bytes, before);
        assert_account_closes(&live);
        let text = live.free_arena(arena).unwrap_err().to_string();
        assert!(!KEEPS_LEDGER || text.contains("freed before"), "{text}");
        let later = backend(driver);
        assert_eq!(arenas(&later), [0; 0]);
        assert_account_closes(&later);
    }

    /// It is on the ledger of one, and free to both.
    of_two_later_backends_either_frees_it(driver) {
        for by_holder in [true, false] {
            let arena = survivor(&driver, 1);
            let (holder, other) = (backend(driver.clone()), backend(driver.clone()));
            if KEEPS_LEDGER {
                assert_eq!((arenas(&holder), arenas(&other)), (vec![arena.addr()], vec![]));
            }
            assert_account_closes(&holder);
            let (frees, fails) = if by_holder { (&holder, &other) } else { (&other, &holder) };
            frees.free_arena(arena).unwrap();
            fails.free_arena(arena).unwrap_err();
            frees.free_arena(arena).unwrap_err();
            assert_account_closes(&holder);
        }
    }

    /// What a later backend has taken over outlives that too.
    it_outlives_every_backend(driver) {
        let arena = survivor(&driver, 0xA5);
        for _ in 0..3 {
            let next = backend(driver.clone());
            assert_eq!(first_bytes(&next, arena), [0xA5; 64]);
            assert_account_closes(&next);
            let ((), lines) = logged(|| drop(next));
            assert!(lines.len() == 1 && lines[0].starts_with("INFO 1 arena allocation"), "{lines:?}");
        }
        backend(driver).free_arena(arena).unwrap();
    }

    what_the_crate_owns_is_freed_with_its_backend(driver) {
        let first = backend(driver.clone());
        first.op_scratch("gemm", 3 * MIB, first.stream()).unwrap();
        std::mem::forget(first.packed_arena(5 * MIB).unwrap());
        let (probe, ((), lines)) = (first.ledger_probe(), logged(|| drop(first)));
        assert_eq!(probe.arena_count(), 0);
        assert_eq!(lines.iter().filter(|line| line.starts_with("INFO")).count(), 0, "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("WARN 1 arena allocation")).count(), 1, "{lines:?}");
        let next = backend(driver);
        assert_eq!(arenas(&next), [0; 0]);
        assert_account_closes(&next);
    }
}

#[cfg(all(feature = "ledger", feature = "graph"))]
on_both_drivers! {
    a_graph_keeps_it_from_being_freed_by_any_backend(driver) {
        let user = backend(driver.clone());
        let stream = user.stream();
        let first = backend(driver.clone());
        let (early, late) = (first.alloc_arena(3 * MIB).unwrap(), first.alloc_arena(3 * MIB).unwrap());
        let capture = user.capture(stream).unwrap();
        user.memset_async(early, 1, 64, stream).unwrap();
        let before_the_drop = capture.finish("before").unwrap();
        let ((), lines) = logged(|| drop(first));
        assert_eq!(lines.len(), 1, "the graph stays: {lines:?}");
        user.launch_graph(before_the_drop, stream).unwrap();
        let capture = user.capture(stream).unwrap();
        user.memset_async(late, 2, 64, stream).unwrap();
        let behind_the_drop = capture.finish("behind").unwrap();

        let refused = |backend: &MetraleCudaBackend, arena, graph: &str| {
            let error = backend.free_arena(arena).unwrap_err().downcast::<metrale_cuda_backend::PinnedByGraph>().expect("typed");
            assert!(error.to_string().contains(graph), "{error}");
        };
        refused(&user, early, "before");
        refused(&user, late, "behind");
        let later = backend(driver);
        assert_eq!(arenas(&later), [early.addr(), late.addr()]);
        refused(&later, early, "before");
        refused(&later, late, "behind");
        refused(&user, late, "behind");
        user.launch_graph(behind_the_drop, stream).unwrap();
        user.synchronize().unwrap();
        assert_eq!((first_bytes(&later, early), first_bytes(&later, late)), ([1; 64], [2; 64]));
        user.destroy_graph(before_the_drop).unwrap();
        user.destroy_graph(behind_the_drop).unwrap();
        later.free_arena(early).unwrap();
        user.free_arena(late).unwrap();
        assert_account_closes(&later);
    }
}

/// Its device's context is there as long as it is, and goes with the backend that frees it.
#[test]
fn it_keeps_the_context() {
    let driver = sim();
    let arena = survivor(&(driver.clone() as Arc<dyn DriverApi>), 3);
    let leaks = driver.leaks();
    assert_eq!((leaks.contexts.len(), leaks.memory.len(), leaks.streams.len()), (1, 1, 1), "{leaks}");
    let later = backend(driver.clone());
    later.free_arena(arena).unwrap();
    drop(later);
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
}

#[test]
fn another_driver_and_another_device_have_no_part_in_it() {
    let driver = sim();
    let arena = survivor(&(driver.clone() as Arc<dyn DriverApi>), 3);
    let elsewhere = backend(sim());
    assert_eq!(arenas(&elsewhere), [0; 0]);
    elsewhere.free_arena(arena).unwrap_err();
    assert_eq!(driver.leaks().memory.len(), 1);
    let later = backend(driver.clone());
    later.free_arena(arena).unwrap();
}

/// Its record is on the ledger of the dropped backend, or of one of the two that free it.
#[test]
fn of_two_frees_on_two_threads_one_succeeds() {
    let driver: Arc<dyn DriverApi> = sim();
    for round in 0..300 {
        let early = (round % 3 != 0).then(|| [backend(driver.clone()), backend(driver.clone())]);
        let arena = survivor(&driver, 1);
        let [one, two] = early.unwrap_or_else(|| [backend(driver.clone()), backend(driver.clone())]);
        let barrier = Barrier::new(2);
        let free = |backend: &MetraleCudaBackend| {
            backend.bind_to_thread().unwrap();
            barrier.wait();
            usize::from(backend.free_arena(arena).is_ok())
        };
        let freed: usize = thread::scope(|scope| {
            let threads = [&one, &two].map(|backend| scope.spawn(|| free(backend)));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(freed, 1, "round {round}");
        assert_eq!((arenas(&one), arenas(&two)), (vec![], vec![]));
    }
}

/// A free and the drop of the backend that has it on its ledger, and a start that takes over.
#[test]
fn frees_drops_and_starts_on_many_threads_lose_nothing() {
    let sim = sim();
    let driver: Arc<dyn DriverApi> = sim.clone();
    for round in 0..200 {
        let arena = survivor(&driver, 1);
        let (holder, other) = (backend(driver.clone()), backend(driver.clone()));
        let freed = thread::scope(|scope| {
            let free = scope.spawn(|| {
                other.bind_to_thread().unwrap();
                other.free_arena(arena)
            });
            scope.spawn(move || drop(holder));
            scope.spawn(|| drop(backend(driver.clone())));
            free.join().unwrap()
        });
        freed.unwrap_or_else(|error| panic!("round {round}: {error:#}"));
        assert_eq!(sim.leaks().memory.len(), 0, "round {round}");
        assert_eq!(arenas(&backend(driver.clone())), [0; 0]);
    }
}

/// A free that the driver refuses leaves it with the backend that tried, whose drop tries again.
#[test]
fn a_refused_free_is_made_again_by_the_drop() {
    let sim = sim();
    let faulty = Arc::new(FaultDriver::new(sim.clone()));
    let driver: Arc<dyn DriverApi> = faulty.clone();
    let arena = survivor(&driver, 1);
    let (_holder, other) = (backend(driver.clone()), backend(driver.clone()));
    faulty.fail_nth(DriverFn::cuMemFree_v2, 1, 999);
    other.free_arena(arena).unwrap_err();
    assert_eq!(sim.leaks().memory.len(), 1);
    if KEEPS_LEDGER {
        assert_eq!(arenas(&other), [arena.addr()]);
    }
    drop(other);
    assert_eq!(sim.leaks().memory.len(), 0);
}

/// With a lost context there is nothing to free later, and nothing to say of it.
#[test]
fn a_lost_context_takes_it_silently() {
    for taken_over in [false, true] {
        let driver = sim();
        let arena = survivor(&(driver.clone() as Arc<dyn DriverApi>), 1);
        let last = backend(driver.clone());
        if !taken_over {
            last.free_arena(arena).unwrap();
            last.alloc_arena(MIB).unwrap();
        }
        driver.inject_fault(0, 700);
        logged(|| last.synchronize().unwrap_err());
        let ((), lines) = logged(|| drop(last));
        assert_eq!(lines, [""; 0]);
        assert_eq!(driver.leaks().contexts.len(), 0, "the host is released: {}", driver.leaks());
    }
}

#[test]
fn a_context_that_is_gone_takes_it_silently() {
    for status in [4, 201, 709] {
        let driver = sim();
        survivor(&(driver.clone() as Arc<dyn DriverApi>), 1);
        let last = backend(driver.clone());
        last.alloc_arena(MIB).unwrap();
        let probe = last.ledger_probe();
        driver.inject_fault(0, status);
        let ((), lines) = logged(|| drop(last));
        assert_eq!(lines, [""; 0], "{status}");
        assert_eq!(probe.arena_count(), 0, "{status}");
        assert_eq!(driver.leaks().contexts.len(), 0, "{status}: {}", driver.leaks());
    }
}

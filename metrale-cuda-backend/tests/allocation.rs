// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocating and freeing: the ledger and the driver agree after every step, and mistakes are answered before the driver.

mod common;

use std::sync::Arc;

use common::{KIB, MIB, address, backend};
use metrale_cuda_backend::{
    AllocKind, BadArgument, DevicePtr, DriverApi, ForgetError, FreeError, MetraleCudaBackend, OutOfMemory,
    Remedy, Verdict,
};
use metrale_driver_sim::on_both_drivers;

/// Bytes by which the driver's free figure fell.
fn used(backend: &MetraleCudaBackend, before: u64) -> usize {
    (before - backend.memory_info().unwrap().free_bytes) as usize
}

on_both_drivers! {
    residency_is_what_the_driver_keeps(driver) {
        let backend = backend(driver);
        let before = backend.memory_info().unwrap().free_bytes;
        let mut held = Vec::new();
        for bytes in [1, 512, 513, 200 * KIB, MIB, 2 * MIB - 512, 2 * MIB, 2 * MIB + 1, 5_000_000, 300 * MIB] {
            held.push((backend.alloc(bytes).unwrap(), bytes));
            assert_eq!(backend.resident_bytes(), used(&backend, before), "after {bytes}");
            assert_eq!(backend.live_bytes(), held.iter().map(|(_, bytes)| bytes).sum::<usize>());
        }
        let live = backend.live_allocations();
        assert_eq!(live.iter().map(|(ptr, bytes, _)| (*ptr, *bytes)).collect::<Vec<_>>(), held);
        for (ptr, bytes) in held.into_iter().rev() {
            backend.free(ptr).unwrap();
            assert_eq!(backend.resident_bytes(), used(&backend, before), "after the free of {bytes}");
        }
        assert_eq!((backend.live_bytes(), backend.chunk_slack_bytes(), used(&backend, before)), (0, 0, 0));
    }

    mistakes_are_answered_with_their_kind_and_change_nothing(driver) {
        let backend = backend(driver);
        let cause = |result: metrale_cuda_backend::Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.remedy(), Remedy::FixCall);
            error.downcast::<FreeError>().expect("typed").cause
        };
        backend.free(DevicePtr::NULL).unwrap();

        let ptr = backend.alloc(4096).unwrap();
        assert!(matches!(cause(backend.free(ptr.offset(16))), ForgetError::Interior { addr, .. } if addr == ptr.addr() + 16));
        assert!(matches!(cause(backend.free_arena(ptr)), ForgetError::OtherKind { .. }));
        assert!(matches!(cause(backend.free(address(0x1234_5600))), ForgetError::Foreign { .. }));
        backend.free(ptr).unwrap();
        assert!(matches!(cause(backend.free(ptr)), ForgetError::DoubleFree { .. }));

        let arena = backend.alloc_arena(4096).unwrap();
        assert!(matches!(cause(backend.free(arena)), ForgetError::OtherKind { .. }));
        assert_eq!((backend.live_bytes(), backend.ledger_probe().arena_bytes()), (0, 4096));
        backend.free_arena(arena).unwrap();
        backend.ledger_probe().assert_nothing_live();
    }

    no_bytes_are_refused_in_words(driver) {
        let backend = backend(driver);
        for error in [
            backend.alloc(0).unwrap_err(),
            backend.alloc_managed(0).unwrap_err(),
            backend.alloc_arena(0).unwrap_err(),
            backend.alloc_pinned(0).unwrap_err(),
        ] {
            let error = error.downcast::<BadArgument>().expect("typed");
            assert!(error.to_string().contains("0 bytes"), "{error}");
        }
    }

    more_than_the_device_has_is_refused_without_asking_the_driver(driver) {
        let backend = backend(driver);
        let total = backend.facts().total_bytes;
        for bytes in [total as usize + 1, usize::MAX] {
            let error = backend.alloc(bytes).unwrap_err();
            // No freeing helps it.
            assert_eq!(error.remedy(), Remedy::FixCall);
            let error = error.downcast::<OutOfMemory>().expect("typed");
            assert_eq!(error.driver, None);
            assert_eq!(error.verdict, Verdict::AboveTotal { excess_bytes: bytes as u64 - total });
            assert!(error.to_string().contains("the driver was not asked"), "{error}");
        }
    }

    what_is_above_the_free_memory_is_the_drivers_to_refuse(driver) {
        let backend = backend(driver);
        let holder = backend.alloc(64 * MIB).unwrap();
        let info = backend.memory_info().unwrap();
        let bytes = (info.free_bytes + 32 * MIB as u64) as usize;
        let error = backend.alloc(bytes).unwrap_err();
        assert_eq!(error.remedy(), Remedy::FreeAndRetry);
        let error = error.downcast::<OutOfMemory>().expect("typed");
        assert_eq!(error.driver.map(|driver| driver.status), Some(2));
        assert_eq!((error.requested_bytes, error.free_bytes), (bytes as u64, Some(info.free_bytes)));
        assert_eq!((error.live_bytes, error.resident_bytes, error.slack_bytes), (64 << 20, 64 << 20, 0));
        assert!(matches!(error.verdict, Verdict::FreeOurs { sites: Some(1), .. }), "{error}");
        backend.free(holder).unwrap();
    }

    managed_memory_is_live_but_not_resident_and_arenas_are_apart(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        let managed = backend.alloc_managed(8 * MIB).unwrap();
        assert_eq!((backend.live_bytes(), backend.resident_bytes()), (8 * MIB, 0));
        let arena = backend.alloc_arena(3 * MIB).unwrap();
        assert_eq!((backend.live_bytes(), probe.arena_bytes(), probe.arena_resident_bytes()), (8 * MIB, 3 * MIB, 4 * MIB));
        assert!(backend.live_allocations().iter().all(|(ptr, ..)| *ptr != arena));
        assert_eq!(probe.allocations_of(AllocKind::Managed).len(), 1);
        backend.free(managed).unwrap();
        backend.free_arena(arena).unwrap();
        probe.assert_nothing_live();
    }

    a_probe_reads_the_same_ledger_and_outlives_the_backend(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        let ptr = backend.alloc(100).unwrap();
        assert_eq!((probe.live_bytes(), probe.live_count()), (100, 1));
        backend.free(ptr).unwrap();
        drop(backend);
        assert_eq!(probe.live_bytes(), 0);
    }

    two_backends_of_a_device_share_its_context_and_keep_books_of_their_own(driver) {
        let driver: Arc<dyn DriverApi> = driver;
        let (one, two) = (backend(Arc::clone(&driver)), backend(driver));
        assert_eq!(one.stream(), two.stream());
        let ptr = one.alloc(100).unwrap();
        assert_eq!((one.live_bytes(), two.live_bytes()), (100, 0));
        assert!(two.free(ptr).is_err(), "it is the other's");
        one.free(ptr).unwrap();
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What out of memory says to a person.

mod common;

use std::sync::Arc;

use common::pinned::PinnedGuard;
use common::{KIB, MIB, backend};
use metrale_cuda_backend::{
    AllocEventKind, AllocKind, BackendConfig, DriverFn, FreedBy, MetraleCudaBackend, OutOfMemory, Remedy,
    Verdict,
};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver};

/// A device of 1 GiB, of which the context takes nothing.
fn small() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(Profile::custom("small", 1 << 30).with_context_bytes(0)))
}

#[track_caller]
fn fail(backend: &MetraleCudaBackend, bytes: usize) -> OutOfMemory {
    let error = backend.alloc(bytes).unwrap_err();
    assert_eq!(error.remedy(), Remedy::FreeAndRetry);
    error.downcast::<OutOfMemory>().expect("typed")
}

#[test]
fn the_whole_answer() {
    let backend = backend(small());
    for (layer, mib) in [(0, 100), (1, 200), (2, 300)] {
        let _scope = backend.scope(&format!("layers.{layer}"));
        for _ in 0..4 {
            backend.alloc(mib * MIB / 4).unwrap();
        }
    }
    let big_line = line!() - 3;
    let odd = backend.alloc(3 * MIB).unwrap();
    let free = backend.memory_info().unwrap().free_bytes;
    let (error, line) = (fail(&backend, 600 * MIB), line!());

    assert_eq!(
        (error.requested_bytes, error.free_bytes, error.total_bytes),
        (600 << 20, Some(free), 1 << 30)
    );
    assert_eq!((error.live_bytes, error.live_count), (603 << 20, 13));
    // 25 MiB takes 26 MiB of pages, 75 takes 76, 3 takes 4.
    assert_eq!((error.resident_bytes, error.slack_bytes), (612 << 20, 9 << 20));
    assert_eq!((error.site.file(), error.site.line()), (file!(), line));
    assert_eq!(error.largest_sites.len(), 2);
    assert_eq!((error.largest_sites[0].bytes, error.largest_sites[0].count), (600 << 20, 12));
    let scopes: Vec<_> =
        error.largest_scopes.iter().map(|scope| (scope.name.as_str(), scope.bytes >> 20)).collect();
    assert_eq!(scopes, [("layers.2", 300), ("layers.1", 200), ("layers.0", 100)]);
    assert_eq!(
        error.verdict,
        Verdict::FreeOurs { missing_bytes: (600 << 20) - free, sites: Some(1), scopes: Some(1) }
    );

    let text = error.to_string();
    let expected = [
        format!("out of memory: 600.00 MiB of device memory asked for at {}:{line}", file!()),
        "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".to_owned(),
        "device 0: ".to_owned(),
        "free of 1.00 GiB".to_owned(),
        "this backend: 603.00 MiB live in 13 allocations, 612.00 MiB resident, 9.00 MiB of it slack"
            .to_owned(),
        "largest call sites:".to_owned(),
        format!("600.00 MiB  x12     {}:{big_line}", file!()),
        "largest scopes:".to_owned(),
        "300.00 MiB  x4      layers.2".to_owned(),
        "to fit: ".to_owned(),
        "must go; the largest call site, or the largest scope would do".to_owned(),
    ];
    let mut rest = text.as_str();
    for part in expected {
        let Some(at) = rest.find(&part) else { panic!("{part:?} is not, or not in its place, in\n{text}") };
        rest = &rest[at + part.len()..];
    }
    backend.free(odd).unwrap();
    backend.sweep_unreleased().unwrap();
}

#[test]
fn freeing_what_it_says_makes_it_fit() {
    let backend = backend(small());
    let mut held: Vec<_> = (0..10).map(|_| backend.alloc(100 * MIB).unwrap()).collect();
    let error = fail(&backend, 150 * MIB);
    let Verdict::FreeOurs { missing_bytes, .. } = error.verdict else { panic!("{error}") };
    let mut freed = 0;
    while freed < missing_bytes {
        assert!(backend.alloc(150 * MIB).is_err());
        backend.free(held.pop().unwrap()).unwrap();
        freed += 100 << 20;
    }
    held.push(backend.alloc(150 * MIB).unwrap());
    for ptr in held {
        backend.free(ptr).unwrap();
    }
}

/// No freeing gives more than there is, so a caller that frees and retries would do so for ever.
#[test]
fn what_can_never_fit_is_not_to_be_retried() {
    let backend = backend(small());
    let total = backend.total_memory() as usize;
    let never = [
        backend.alloc_pinned(usize::MAX).map(drop),
        backend.alloc_pinned(1 << 60).map(drop),
        backend.alloc(200 << 30).map(drop),
        backend.alloc(total + 1).map(drop),
        backend.alloc(usize::MAX).map(drop),
        backend.alloc_arena(total + 1).map(drop),
        backend.alloc_managed(1 << 60).map(drop),
        backend.alloc_managed(usize::MAX).map(drop),
        PinnedGuard::new(&backend, 1 << 60).map(drop),
        backend.op_scratch("never", 1 << 60, backend.stream()).map(drop),
    ];
    for (index, outcome) in never.into_iter().enumerate() {
        let error = outcome.unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall, "{index}: {error}");
        let error = error.downcast::<OutOfMemory>().expect("typed");
        let never = matches!(error.verdict, Verdict::AboveTotal { .. } | Verdict::AboveHost { .. });
        assert!(never && error.to_string().contains("it never will"), "{index}: {error}");
    }
    // With bands around it the request is larger than the device, though the bytes asked for are not.
    if cfg!(feature = "redzone") {
        let mut config = BackendConfig::default();
        config.redzone.band_bytes = 64 * KIB;
        let guarded = MetraleCudaBackend::builder().driver(small()).config(config).build().unwrap();
        let error = guarded.alloc(total - KIB).unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall, "{error}");
    }
}

#[test]
fn memory_held_elsewhere_is_told_apart() {
    let driver = small();
    let backend = backend(driver);
    let mut other = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!(unsafe { backend.driver().cuMemAlloc_v2(&mut other, 900 * MIB) }, 0);
    let mine = backend.alloc(50 * MIB).unwrap();
    let error = fail(&backend, 800 * MIB);
    let Verdict::FreeOthers { missing_bytes, beyond_ours_bytes } = error.verdict else { panic!("{error}") };
    assert_eq!(missing_bytes - beyond_ours_bytes, 50 << 20);
    assert!(error.to_string().contains("other processes"), "{error}");
    backend.free(mine).unwrap();
    // SAFETY: the driver returned the address above.
    assert_eq!(unsafe { backend.driver().cuMemFree_v2(other) }, 0);
}

#[test]
fn arenas_count_as_ours_and_host_memory_is_another_matter() {
    let faulty = Arc::new(FaultDriver::new(small()));
    let backend = backend(faulty.clone());
    let arena = backend.alloc_arena(900 * MIB).unwrap();
    let error = fail(&backend, 500 * MIB);
    assert!(matches!(error.verdict, Verdict::FreeOurs { sites: None, .. }), "{error}");
    assert!(error.to_string().contains("900.00 MiB in arenas"), "{error}");

    faulty.fail_nth(DriverFn::cuMemAllocHost_v2, 1, 2);
    let error = backend.alloc_pinned(64 * KIB).unwrap_err().downcast::<OutOfMemory>().expect("typed");
    assert_eq!((error.kind, error.verdict), (AllocKind::Pinned, Verdict::Host));
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    backend.free_arena(arena).unwrap();
}

#[test]
fn a_driver_that_cannot_say_what_is_free_does_not_spoil_the_answer() {
    let faulty = Arc::new(FaultDriver::new(small()));
    let backend = backend(faulty.clone());
    faulty.fail_nth(DriverFn::cuMemAlloc_v2, 1, 2);
    faulty.fail_nth(DriverFn::cuMemGetInfo_v2, 1, 999);
    let error = fail(&backend, MIB);
    assert_eq!((error.free_bytes, error.verdict), (None, Verdict::Unknown));
    faulty.fail_nth(DriverFn::cuMemAlloc_v2, 1, 2);
    assert_eq!(fail(&backend, MIB).verdict, Verdict::EnoughIsFree);
}

#[test]
fn the_last_events_are_told_where_they_are_kept() {
    let mut config = BackendConfig::default();
    config.recent_events = 12;
    let backend = MetraleCudaBackend::builder().driver(small()).config(config).build().unwrap();
    let (all, line) = ((0..20).map(|_| backend.alloc(MIB).unwrap()).collect::<Vec<_>>(), line!());
    backend.free(all[3]).unwrap();
    let free_line = line!() - 1;
    assert_eq!(backend.ledger_probe().recent_events().len(), 12);
    let error = fail(&backend, 1020 * MIB);
    assert_eq!(error.last_events.len(), 10);
    let text = error.to_string();
    assert!(text.contains("last on the ledger:\n    11 recorded "), "{text}");
    let freed = error.last_events.last().unwrap();
    assert_eq!((freed.kind, freed.allocation.addr), (AllocEventKind::Gone(FreedBy::Free), all[3].addr()));
    assert_eq!((freed.at.line(), freed.allocation.record.site.line()), (free_line, line));
    // Off by default.
    let other = common::backend(small());
    other.alloc(MIB).unwrap();
    let error = fail(&other, 1024 * MIB);
    assert!(error.last_events.is_empty() && !error.to_string().contains("last on the ledger"));
}

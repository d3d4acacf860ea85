// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every driver call fails once: nothing leaks, nothing panics, and the error keeps function and status.

mod common;

use std::sync::{Arc, Mutex};

use anyhow::Result;
use common::hooked::HookedDriver;
use common::{KERNELS, KIB, MIB, backend, logged, sim, sim_with_kernels};
use metrale_cuda_backend::{
    AllocKind, BackendConfig, CallFailed, DriverApi, DriverError, DriverFn, FreeError, KernelLaunch,
    LedgerConflict, MetraleCudaBackend, PinnedBuffer, Remedy, Uploader, remedy,
};
use metrale_driver_sim::{FaultDriver, TraceDriver};

/// A bit of everything. Frees what it allocates only where nothing fails: what is left is the drop's.
fn everything(driver: Arc<dyn DriverApi>) -> Result<()> {
    let backend = MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("kernels", KERNELS)])
        .config(BackendConfig::default())
        .build()?;
    let stream = backend.stream();
    let small = backend.alloc(64 * KIB)?;
    let managed = backend.alloc_managed(MIB)?;
    let arena = backend.alloc_arena(3 * MIB)?;
    let mut pinned = PinnedBuffer::new(&backend, 64 * KIB)?;
    backend.copy_h2d(&[1; 1000], small)?;
    backend.copy_h2d_async(&[2; 1000], small, stream)?;
    backend.copy_h2d_async(&pinned, small, stream)?;
    backend.copy_d2d(small, arena, 1000)?;
    backend.copy_d2h_on_stream(small, &mut pinned, stream)?;
    backend.memset(arena, 3, MIB)?;
    let fill = backend.kernel("kernels", "fill")?;
    // SAFETY: a pointer, a value and a count that fits the allocation.
    unsafe {
        KernelLaunch::new(fill).block([64, 1, 1]).ptr(small).u32(4).u32(64).on_stream(&backend, stream)?
    };
    backend.synchronize_stream(stream)?;
    let mut uploader = Uploader::new(&backend, 4 * KIB)?;
    uploader.upload(&[5; 10_000], arena)?;
    uploader.finish()?;
    drop(uploader);
    backend.copy_d2h(small, &mut [0; 16])?;
    drop(pinned);
    backend.free(managed)?;
    backend.free(small)?;
    backend.free_arena(arena)?;
    Ok(())
}

#[test]
fn nothing_leaks_whichever_call_fails() {
    let driver = Arc::new(sim_with_kernels());
    let trace = Arc::new(TraceDriver::new(driver.clone()));
    everything(trace.clone()).unwrap();
    assert!(driver.leaks().is_empty(), "{:?}", driver.leaks());
    let calls = trace.calls();
    assert!(calls.len() > 60, "{}", calls.len());

    for (nth, call) in calls.iter().map(|call| call.function).enumerate() {
        let driver = Arc::new(sim_with_kernels());
        let faulty = Arc::new(FaultDriver::new(driver.clone()));
        let before = calls[..nth].iter().filter(|earlier| earlier.function == call).count() as u64;
        faulty.fail_nth(call, before + 1, 999);
        let (result, _) = logged(|| everything(faulty));
        // What a failing call was to free or release stays.
        let releases = matches!(
            call,
            DriverFn::cuMemFree_v2
                | DriverFn::cuMemFreeHost
                | DriverFn::cuStreamDestroy_v2
                | DriverFn::cuEventDestroy_v2
                | DriverFn::cuModuleUnload
                | DriverFn::cuDevicePrimaryCtxRelease_v2
        );
        let leaks = driver.leaks();
        // So does a module of the registry, or its host's stream, where the thread cannot learn its context: the sink is told.
        // What the backend made must be gone after its drop.
        let registrys = call == DriverFn::cuCtxGetCurrent
            && leaks.memory.is_empty()
            && leaks.events.is_empty()
            && leaks.contexts.is_empty();
        assert!(releases || registrys || leaks.is_empty(), "call {nth}, {call}: {leaks:?}");
        assert!(driver.diagnostics().is_empty(), "call {nth}, {call}: {:?}", driver.diagnostics());
        if let Err(error) = result {
            let kept = error.chain().find_map(|cause| cause.downcast_ref::<DriverError>()).copied();
            let typed = error.downcast_ref::<CallFailed>().map(|failed| failed.driver);
            if let Some(driver) = typed.or(kept) {
                assert_eq!(driver.status, 999, "call {nth}, {call}: {error:#}");
            }
            assert!(format!("{error:#}").contains("999"), "call {nth}, {call}: {error:#}");
        }
    }
}

#[test]
fn a_free_the_driver_refuses_puts_the_record_back_marked() {
    let driver = sim();
    let faulty = Arc::new(FaultDriver::new(driver.clone()));
    let backend = backend(faulty.clone());
    let ptr = {
        let _scope = backend.scope("weights");
        backend.alloc(MIB).unwrap()
    };
    let before = backend.ledger_probe().live_allocations();
    faulty.fail_nth(DriverFn::cuMemFree_v2, 1, 1);
    let error = backend.free(ptr).unwrap_err();
    let failed = error.downcast_ref::<CallFailed>().expect("typed");
    assert_eq!(failed.driver, DriverError { function: DriverFn::cuMemFree_v2, status: 1 });
    assert!(error.to_string().contains("it stays on the ledger"), "{error}");

    let after = backend.ledger_probe().live_allocations();
    assert_eq!((after.len(), after[0].0), (1, ptr.0));
    let (was, is) = (&before[0].1, &after[0].1);
    assert_eq!((is.bytes, is.site, &is.scope, is.index), (was.bytes, was.site, &was.scope, was.index));
    assert!(is.free_refused && !was.free_refused);
    assert_eq!(backend.resident_bytes(), 2 * MIB);

    backend.free(ptr).unwrap();
    assert!(backend.free(ptr).unwrap_err().is::<FreeError>());
    assert!(driver.leaks().memory.is_empty());
}

#[test]
fn a_pinned_free_the_driver_refuses_is_put_back_too() {
    let faulty = Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    let pinned = backend.alloc_pinned(4096).unwrap();
    faulty.fail_nth(DriverFn::cuMemFreeHost, 1, 999);
    assert!(backend.free_pinned(pinned).unwrap_err().is::<CallFailed>());
    assert_eq!(backend.ledger_probe().allocations_of(AllocKind::Pinned).len(), 1);
    backend.free_pinned(pinned).unwrap();
    backend.ledger_probe().assert_nothing_live();
}

#[test]
fn memory_the_ledger_cannot_record_is_freed() {
    let driver = sim();
    let backend = backend(driver.clone());
    let ptr = backend.alloc(4096).unwrap();
    // Freed without telling the backend, so that the driver uses the address again.
    // SAFETY: the driver returned the address, and nothing uses the memory.
    assert_eq!(unsafe { driver.cuMemFree_v2(ptr.0) }, 0);
    let error = backend.alloc(4096).unwrap_err();
    assert_eq!(remedy(&error), Some(Remedy::ReportBug));
    let conflict = error.downcast_ref::<LedgerConflict>().expect("typed");
    assert_eq!((conflict.addr, conflict.bytes), (ptr.0, 4096));
    assert!(error.to_string().contains("without telling it"), "{error}");
    assert!(driver.leaks().memory.is_empty());
    backend.ledger_probe().assert_nothing_live();

    let again = backend.alloc(4096).unwrap();
    backend.free(again).unwrap();
}

/// Frees the backend's only allocation without telling it, so that the driver uses its address again; the driver then
/// refuses to free that.
fn conflict_that_leaks(status: i32) -> LedgerConflict {
    let driver = sim();
    let faulty = Arc::new(FaultDriver::new(driver.clone()));
    let backend = backend(faulty.clone());
    let ptr = backend.alloc(4096).unwrap();
    // SAFETY: the driver returned the address, and nothing uses the memory.
    assert_eq!(unsafe { driver.cuMemFree_v2(ptr.0) }, 0);
    faulty.fail_nth(DriverFn::cuMemFree_v2, 1, status);
    backend.alloc(4096).unwrap_err().downcast::<LedgerConflict>().expect("typed")
}

#[test]
fn memory_that_can_be_neither_recorded_nor_freed_is_told_with_the_drivers_answer() {
    let conflict = conflict_that_leaks(999);
    let refusal = DriverError { function: DriverFn::cuMemFree_v2, status: 999 };
    assert_eq!((conflict.not_freed, conflict.remedy()), (Some(refusal), Remedy::ReportBug));
    let text = conflict.to_string();
    assert!(text.contains("is leaked") && text.contains(&refusal.to_string()), "{text}");
    assert_eq!(remedy(&conflict_that_leaks(700).into()), Some(Remedy::Relaunch));
}

#[test]
fn pinned_memory_that_can_be_neither_recorded_nor_freed_is_told_too() {
    let driver = sim();
    let faulty = Arc::new(FaultDriver::new(driver.clone()));
    let backend = backend(faulty.clone());
    // The host's allocator decides which address comes next; that of the last free is likely, not certain.
    let conflict = (0..64).find_map(|_| {
        let pinned = backend.alloc_pinned(1 << 20).unwrap();
        // SAFETY: the driver returned the address, and nothing uses the memory.
        assert_eq!(unsafe { driver.cuMemFreeHost(pinned.as_ptr().cast()) }, 0);
        faulty.fail_nth(DriverFn::cuMemFreeHost, 1, 999);
        backend.alloc_pinned(1 << 20).err()
    });
    let conflict = conflict.expect("an address comes again").downcast::<LedgerConflict>().expect("typed");
    assert_eq!(conflict.not_freed.map(|error| error.status), Some(999), "{conflict}");
}

#[test]
fn an_uploader_that_is_not_made_tells_what_it_could_not_free() {
    let faulty = Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    faulty.fail_nth(DriverFn::cuEventCreate, 2, 2);
    faulty.fail_every(DriverFn::cuMemFreeHost, 999);
    let (error, lines) = logged(|| Uploader::new(&backend, 4096).unwrap_err());
    assert_eq!(
        error.downcast_ref::<CallFailed>().map(|failed| failed.driver.function),
        Some(DriverFn::cuEventCreate)
    );
    let told = |line: &String| line.contains("could not give everything back") && line.contains("999");
    assert_eq!(lines.iter().filter(|line| told(line)).count(), 2, "{lines:?}");
}

#[test]
fn what_is_wrong_with_a_free_never_reaches_the_driver() {
    let trace = Arc::new(TraceDriver::new(sim()));
    let backend = backend(trace.clone());
    let ptr = backend.alloc(4096).unwrap();
    backend.free(ptr).unwrap();
    let before = trace.calls().len();
    backend.free(ptr).unwrap_err();
    backend.free(ptr.offset(8)).unwrap_err();
    backend.alloc(usize::MAX).unwrap_err();
    backend.alloc(0).unwrap_err();
    let asked: Vec<_> = trace.calls()[before..].iter().map(|call| call.function).collect();
    let harmless = [DriverFn::cuCtxGetCurrent, DriverFn::cuMemGetInfo_v2];
    assert!(asked.iter().all(|function| harmless.contains(function)), "{asked:?}");
}

/// The driver may hand a freed address to another thread at once.
#[test]
fn the_ledger_has_forgotten_by_the_time_the_driver_frees() {
    let driver = Arc::new(HookedDriver::new(sim()));
    let backend = backend(driver.clone());
    let probe = backend.ledger_probe();
    let (ptr, arena) = (backend.alloc(4096).unwrap(), backend.alloc_arena(4096).unwrap());
    let pinned = backend.alloc_pinned(4096).unwrap();
    backend.alloc(MIB).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    driver.before_each(move |function| {
        if matches!(function, DriverFn::cuMemFree_v2 | DriverFn::cuMemFreeHost) {
            notes.lock().unwrap().push((probe.live_count(), probe.arena_count(), probe.pinned_count()));
        }
    });
    backend.free(ptr).unwrap();
    backend.free_arena(arena).unwrap();
    backend.free_pinned(pinned).unwrap();
    backend.sweep_unreleased().unwrap();
    assert_eq!(*seen.lock().unwrap(), [(1, 1, 1), (1, 0, 1), (1, 0, 0), (0, 0, 0)]);
}

#[test]
fn threads_that_get_each_others_addresses_confuse_nothing() {
    let backend = backend(sim());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                backend.bind_to_thread().unwrap();
                for _ in 0..2000 {
                    let ptr = backend.alloc(4096).unwrap();
                    backend.free(ptr).unwrap();
                }
            });
        }
    });
    let snapshot = backend.ledger_probe().snapshot();
    assert_eq!((snapshot.totals.live_count, snapshot.totals.misuse.total()), (0, 0));
}

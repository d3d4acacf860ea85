// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver calls that fail one at a time: what stays on the ledger, what is freed later, and what the error names.

mod common;
#[path = "common/redzone.rs"]
mod functions;

use std::sync::{Arc, Mutex};

use common::hooked::HookedDriver;
use common::{MIB, backend, logged, sim};
use metrale_cuda_backend::{
    AllocKind, BackendConfig, CallFailed, DriverApi, DriverError, DriverFn, Error, FreeError, LedgerConflict,
    MetraleCudaBackend, Remedy, Uploader,
};
use metrale_driver_sim::{FaultDriver, TraceDriver};

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
    assert_eq!((after.len(), after[0].0), (1, ptr.addr()));
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
    assert_eq!(unsafe { driver.cuMemFree_v2(ptr.addr()) }, 0);
    let error = backend.alloc(4096).unwrap_err();
    assert_eq!(error.remedy(), Remedy::ReportBug);
    let conflict = error.downcast_ref::<LedgerConflict>().expect("typed");
    assert_eq!((conflict.addr, conflict.bytes), (ptr.addr(), 4096));
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
    assert_eq!(unsafe { driver.cuMemFree_v2(ptr.addr()) }, 0);
    faulty.fail_nth(DriverFn::cuMemFree_v2, 1, status);
    backend.alloc(4096).unwrap_err().downcast::<LedgerConflict>().expect("typed")
}

#[test]
fn memory_that_can_be_neither_recorded_nor_freed_is_told_with_the_drivers_answer() {
    let conflict = conflict_that_leaks(999);
    let refusal = DriverError { function: DriverFn::cuMemFree_v2, status: 999 };
    assert_eq!(
        (conflict.not_freed, Error::from(conflict.clone()).remedy()),
        (Some(refusal), Remedy::ReportBug)
    );
    let text = conflict.to_string();
    assert!(text.contains("is leaked") && text.contains(&refusal.to_string()), "{text}");
    assert_eq!(Error::from(conflict_that_leaks(700)).remedy(), Remedy::Relaunch);
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
    let backend = Arc::new(backend(faulty.clone()));
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

#[test]
fn what_a_sweep_could_not_free_stays_on_the_ledger_with_its_bands() {
    let sim = common::sim_with_kernels();
    functions::register(&sim);
    for band_bytes in [0, 256] {
        let faulty = Arc::new(FaultDriver::new(Arc::new(sim.clone())));
        let mut config = BackendConfig::default();
        config.redzone.band_bytes = band_bytes;
        let backend = MetraleCudaBackend::builder().driver(faulty.clone()).config(config).build().unwrap();
        let (ptr, _) = (backend.alloc(4096).unwrap(), backend.alloc(4096).unwrap());
        let padding = backend.ledger_probe().snapshot().totals.padding_bytes;
        faulty.fail_nth(DriverFn::cuMemFree_v2, 1, 999);
        let (swept, _) = logged(|| backend.sweep_unreleased().unwrap());
        let left = backend.ledger_probe().live_allocations();
        assert_eq!((swept, left.len(), left[0].0, left[0].1.free_refused), (2, 1, ptr.addr(), true));
        assert_eq!(backend.ledger_probe().snapshot().totals.padding_bytes, padding / 2);
        assert_eq!(sim.leaks().memory_bytes(), 4096 + padding / 2);
        assert_eq!(logged(|| backend.sweep_unreleased().unwrap()).0, 1);
        assert!(sim.leaks().memory.is_empty());
    }
}

#[test]
fn memory_without_its_bands_that_cannot_be_freed_goes_with_the_backend() {
    let sim = common::sim_with_kernels();
    functions::register(&sim);
    let faulty = Arc::new(FaultDriver::new(Arc::new(sim.clone())));
    let mut config = BackendConfig::default();
    config.redzone.band_bytes = 256;
    let backend = MetraleCudaBackend::builder().driver(faulty.clone()).config(config).build().unwrap();
    faulty.fail_nth(DriverFn::cuMemsetD8_v2, 1, 999);
    faulty.fail_nth(DriverFn::cuMemFree_v2, 1, 999);
    let (error, _) = logged(|| backend.alloc(4096).unwrap_err());
    assert!(format!("{error:#}").contains("cuMemsetD8_v2"), "{error:#}");
    let totals = backend.ledger_probe().snapshot().totals;
    assert_eq!((totals.live_bytes, totals.padding_bytes), (0, sim.leaks().memory_bytes()));
    logged(|| drop(backend));
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn scratch_memory_says_which_call_could_not_tell_of_a_capture() {
    if metrale_driver_sim::driver_sys::SCALE {
        // Its driver is not asked.
        return;
    }
    let faulty = Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    let is_capturing =
        *DriverFn::ALL.iter().find(|function| function.name() == "cuStreamIsCapturing").unwrap();
    faulty.fail_nth(is_capturing, 1, 999);
    let error = backend.op_scratch("gemm", 64, backend.stream()).unwrap_err();
    assert_eq!(error.downcast_ref::<CallFailed>().map(|failed| failed.driver.function), Some(is_capturing));
    backend.op_scratch("gemm", 64, backend.stream()).unwrap();
}

/// A driver that does not say which context is current leaves a drop's work possible, on a thread that was seen bound.
#[test]
fn a_drop_frees_everything_where_the_current_context_is_not_told() {
    for status in [1, 201, 709, 999] {
        let driver = sim();
        let faulty = Arc::new(FaultDriver::new(driver.clone()));
        let backend = common::backend_with_kernels(faulty.clone());
        backend.alloc(4096).unwrap();
        let pinned = backend.alloc_pinned(4096).unwrap();
        backend.create_stream().unwrap();
        faulty.fail_every(DriverFn::cuCtxGetCurrent, status);
        if matches!(status, 201 | 709) {
            // The answer is not that of the free, which goes to the driver.
            backend.free_pinned(pinned).unwrap();
            assert_eq!(driver.leaks().memory_bytes(), 4096);
        }
        logged(|| drop(backend));
        assert!(driver.leaks().is_empty(), "{status}: {}", driver.leaks());
    }
}

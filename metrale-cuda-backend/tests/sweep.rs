// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sweep and the drop: all is freed, once, with one warning; failures are logged and the rest still freed.

mod common;

use std::sync::Arc;

use common::{KIB, MIB, backend, logged, sim};
use metrale_cuda_backend::{
    BackendConfig, ContextLost, DeviceBuffer, DriverFn, GpuBackend, MetraleCudaBackend, Remedy,
    SweepIncomplete,
};
use metrale_driver_sim::{FaultDriver, on_both_drivers};

fn warnings(lines: &[String]) -> Vec<&String> {
    lines.iter().filter(|line| line.starts_with("WARN")).collect()
}

fn errors(lines: &[String]) -> Vec<&String> {
    lines.iter().filter(|line| line.starts_with("ERROR")).collect()
}

on_both_drivers! {
    a_sweep_frees_everything_and_warns_once(driver) {
        let backend = backend(driver);
        let fresh = backend.memory_info().unwrap();
        assert_eq!(logged(|| backend.sweep_unreleased().unwrap()), (0, vec![]), "nothing to sweep, nothing to say");

        let mut line = 0;
        for bytes in [3 * MIB, 100 * KIB, 5] {
            line = line!() + 1;
            backend.alloc(bytes).unwrap();
        }
        backend.alloc_managed(MIB).unwrap();
        let arena = backend.alloc_arena(MIB).unwrap();
        let pinned = backend.alloc_pinned(MIB).unwrap();
        let (count, lines) = logged(|| backend.sweep_unreleased().unwrap());
        assert_eq!((count, lines.len()), (4, 1), "{lines:?}");
        assert!(lines[0].starts_with("WARN 4 device allocations (4.10 MiB)"), "{lines:?}");
        assert!(lines[0].contains(&format!("{}:{line}", file!())) && lines[0].contains("(3.10 MiB in 3)"), "{lines:?}");

        assert_eq!((backend.live_bytes(), backend.ledger_probe().live_count()), (0, 0));
        assert_eq!(logged(|| backend.sweep_unreleased().unwrap()), (0, vec![]), "never twice");
        backend.free_arena(arena).unwrap();
        backend.free_pinned(pinned).unwrap();
        assert_eq!(backend.memory_info().unwrap().free_bytes, fresh.free_bytes);
    }

    a_swept_pointer_is_a_double_free(driver) {
        let backend = backend(driver);
        let ptr = backend.alloc(100).unwrap();
        let line = line!() + 1;
        backend.sweep_unreleased().unwrap();
        let text = backend.free(ptr).unwrap_err().to_string();
        assert!(text.contains(&format!("swept before at {}:{line}", file!())), "{text}");
    }

    a_drop_sweeps_and_names_both_causes(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        for _ in 0..3 {
            backend.alloc(MIB).unwrap();
        }
        let ((), lines) = logged(|| drop(backend));
        assert_eq!((lines.len(), probe.live_count()), (1, 0), "{lines:?}");
        assert!(lines[0].contains("3 device allocations (3.00 MiB)"), "{lines:?}");
        assert!(lines[0].contains("abandoned") && lines[0].contains("no owner"), "{lines:?}");
    }

    a_drop_that_owes_nothing_is_silent(driver) {
        let backend = backend(driver);
        let ptr = backend.alloc(MIB).unwrap();
        backend.free(ptr).unwrap();
        assert_eq!(logged(|| drop(backend)).1, Vec::<String>::new());
    }
}

#[test]
fn at_most_five_call_sites_are_named() {
    let backend = backend(sim());
    let mut line = 0;
    for (kib, alloc) in [1, 2, 3, 4, 5, 6, 7].into_iter().zip([
        (|b: &MetraleCudaBackend, n| b.alloc(n).unwrap()) as fn(&MetraleCudaBackend, usize) -> _,
        |b, n| b.alloc(n).unwrap(),
        |b, n| b.alloc(n).unwrap(),
        |b, n| b.alloc(n).unwrap(),
        |b, n| b.alloc(n).unwrap(),
        |b, n| b.alloc(n).unwrap(),
        |b, n| b.alloc(n).unwrap(),
    ]) {
        line = line!();
        alloc(&backend, kib * KIB);
    }
    assert!(line > 0);
    let (count, lines) = logged(|| backend.sweep_unreleased().unwrap());
    assert_eq!((count, lines.len()), (7, 1));
    assert_eq!(lines[0].matches(file!()).count(), 5, "{lines:?}");
    let (first, last) =
        (lines[0].find("(7.00 KiB in 1)").unwrap(), lines[0].find("(3.00 KiB in 1)").unwrap());
    assert!(first < last && lines[0].ends_with("and 2 more"), "{lines:?}");
}

#[test]
fn a_free_that_fails_is_logged_and_the_rest_still_freed() {
    let driver = sim();
    let faulty = Arc::new(FaultDriver::new(driver.clone()));
    let backend = backend(faulty.clone());
    for _ in 0..4 {
        backend.alloc(MIB).unwrap();
    }
    faulty.fail_nth(DriverFn::cuMemFree_v2, 2, 1);
    let (count, lines) = logged(|| backend.sweep_unreleased().unwrap());
    assert_eq!((count, warnings(&lines).len(), errors(&lines).len()), (4, 1, 1), "{lines:?}");
    assert!(
        errors(&lines)[0].contains("could not be freed") && errors(&lines)[0].contains(file!()),
        "{lines:?}"
    );
    assert_eq!(driver.leaks().memory.len(), 1, "the one that the driver kept");
}

#[test]
fn a_lost_context_neither_hangs_the_drop_nor_floods_the_log() {
    let driver = sim();
    let backend = backend(driver.clone());
    for _ in 0..1000 {
        backend.alloc(MIB).unwrap();
    }
    backend.alloc_arena(MIB).unwrap();
    backend.alloc_pinned(MIB).unwrap();
    driver.inject_fault(0, 700);
    let ((), lines) = logged(|| drop(backend));
    let (warnings, errors) = (warnings(&lines), errors(&lines));
    assert_eq!((warnings.len(), errors.len(), lines.len()), (2, 1, 3), "{lines:?}");
    assert!(errors[0].contains("is lost since cuMemFree_v2") && errors[0].contains("(700)"), "{lines:?}");
    // What the sweep could not free and the pinned memory; the arena would have stayed anyway.
    assert!(
        warnings[1].starts_with("WARN 1001 allocations of a dropped backend cannot be freed"),
        "{lines:?}"
    );
}

/// The frees behind one that fails are still made, whatever its status, and the count comes with the error.
#[test]
fn a_sweep_frees_the_rest_after_any_error_and_returns_the_count_with_it() {
    for status in [1, 4, 201, 700, 709, 719, 999] {
        for nth in 1..=4 {
            let driver = sim();
            let faulty = Arc::new(FaultDriver::new(driver.clone()));
            let backend = backend(faulty.clone());
            for _ in 0..4 {
                backend.alloc(MIB).unwrap();
            }
            faulty.fail_nth(DriverFn::cuMemFree_v2, nth, status);
            let (swept, lines) = logged(|| backend.sweep_unreleased());
            assert_eq!(faulty.calls(DriverFn::cuMemFree_v2), 4, "{status}: every free is made");
            assert_eq!(driver.leaks().memory.len(), 1, "{status}: but for the one that was refused");
            // One for the free; one more for a context that is lost; none for one that is gone with its memory.
            let told = match status {
                4 | 201 | 709 => 0,
                700 | 719 => 2,
                _ => 1,
            };
            assert_eq!(errors(&lines).len(), told, "{status}: {lines:?}");
            match swept {
                Ok(count) => assert_eq!(count, 4, "{status}"),
                Err(error) => {
                    assert!(matches!(status, 700 | 719), "{status}: {error:#}");
                    let incomplete = error.downcast_ref::<SweepIncomplete>().expect("typed");
                    assert_eq!((incomplete.swept, incomplete.not_freed), (4, 1));
                    assert!(error.is::<ContextLost>() && error.remedy() == Remedy::Relaunch, "{error:#}");
                }
            }
        }
    }
}

/// What was swept was not freed: the answer is the fault, and the count with it.
#[test]
fn a_sweep_that_meets_a_fault_is_no_success() {
    let driver = sim();
    let backend = backend(driver.clone());
    for _ in 0..3 {
        backend.alloc(MIB).unwrap();
    }
    driver.inject_fault(0, 700);
    let (swept, _) = logged(|| backend.sweep_unreleased());
    let error = swept.unwrap_err();
    let incomplete = error.downcast_ref::<SweepIncomplete>().expect("typed");
    assert_eq!((incomplete.swept, incomplete.not_freed), (3, 3));
    assert!(error.is::<ContextLost>());
    assert!(backend.sweep_unreleased().unwrap_err().is::<ContextLost>());
}

#[test]
fn a_context_that_is_gone_is_quiet() {
    for status in [4, 201, 709] {
        let driver = sim();
        let backend = backend(driver.clone());
        let probe = backend.ledger_probe();
        let (one, two) = (backend.alloc(MIB).unwrap(), backend.alloc(MIB).unwrap());
        let pinned = backend.alloc_pinned(MIB).unwrap();
        assert!(two != one);
        driver.inject_fault(0, status);
        let ((), lines) = logged(|| {
            backend.free(one).unwrap();
            backend.free_pinned(pinned).unwrap();
        });
        assert_eq!(lines, Vec::<String>::new(), "{status}");
        assert_eq!(probe.live_count(), 1);
        let ((), lines) = logged(|| drop(backend));
        assert_eq!(errors(&lines), Vec::<&String>::new(), "{status}");
        probe.assert_nothing_live();
    }
}

#[test]
fn a_drop_on_a_thread_that_never_bound_frees_all_the_same() {
    let driver = sim();
    let backend: Arc<dyn GpuBackend> = Arc::new(backend(driver.clone()));
    backend.alloc(MIB).unwrap();
    backend.alloc_pinned(MIB).unwrap();
    std::thread::spawn(move || {
        drop(backend);
        let mut current = 1;
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { metrale_cuda_backend::DriverApi::cuCtxGetCurrent(&*driver, &mut current) }, 0);
        assert_eq!(current, 0, "the thread is left as it was");
        let leaks = driver.leaks();
        assert!(leaks.is_empty(), "{leaks:?}");
    })
    .join()
    .unwrap();
}

/// A thread that never was bound may have had a context of another library that is gone: the driver then says so where it is asked
/// what is current. That is no answer about this context.
#[test]
fn a_thread_whose_own_context_is_gone_frees_and_drops_all_the_same() {
    let bands: &[usize] = if cfg!(feature = "redzone") { &[0, 256] } else { &[0] };
    let cases = [4, 201, 709].into_iter().flat_map(|status| bands.iter().map(move |&bytes| (status, bytes)));
    for (status, band_bytes) in cases {
        let driver = sim();
        let faulty = Arc::new(FaultDriver::new(driver.clone()));
        let mut config = BackendConfig::default();
        config.redzone.band_bytes = band_bytes;
        let builder = MetraleCudaBackend::builder().driver(faulty.clone()).config(config);
        let backend = Arc::new(builder.build().unwrap());
        let gpu: Arc<dyn GpuBackend> = backend.clone();
        let buffer = DeviceBuffer::<u8>::zeroed(&gpu, MIB).unwrap();
        let (small, large) = (backend.alloc(64).unwrap(), backend.alloc(3 * MIB).unwrap());
        let (arena, pinned) = (backend.alloc_arena(MIB).unwrap(), backend.alloc_pinned(64).unwrap());
        let (stream, event) = (backend.create_stream().unwrap(), backend.create_event().unwrap());
        backend.alloc(MIB).unwrap();
        backend.alloc_pinned(64).unwrap();
        faulty.fail_every(DriverFn::cuCtxGetCurrent, status);
        std::thread::spawn(move || {
            let ((), lines) = logged(|| {
                drop(buffer);
                gpu.free(small).unwrap();
                gpu.free(large).unwrap();
                gpu.free_arena(arena).unwrap();
                gpu.free_pinned(pinned).unwrap();
                gpu.destroy_stream(stream).unwrap();
                gpu.destroy_event(event).unwrap();
            });
            assert_eq!(lines, [""; 0], "{status}, {band_bytes}");
            // Whatever a band or the table of a scan takes is the backend's own.
            let probe = gpu.ledger_probe();
            assert_eq!((probe.live_count(), probe.arena_count(), probe.pinned_count()), (1, 0, 1));
            assert_eq!(driver.leaks().memory_bytes() as usize, MIB + 64 + probe.padding_bytes());
            let ((), lines) = logged(|| drop((backend, gpu)));
            assert_eq!((warnings(&lines).len(), errors(&lines).len()), (2, 0), "{status}: {lines:?}");
            assert!(driver.leaks().is_empty(), "{status}, {band_bytes}: {}", driver.leaks());
        })
        .join()
        .unwrap();
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Red zones from allocation to free: planted overruns are found with their owners, and nothing else is.

mod common;
#[path = "common/redzone.rs"]
mod functions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::hooked::HookedDriver;
use common::{KERNELS, KIB, MIB, address, logged, sim_with_kernels};
use metrale_cuda_backend::redzone::{
    BandChange, Fill, MAX_BAND_BYTES, POISON, RedzoneConfig, ScanBy, Side, Violation,
};
use metrale_cuda_backend::{
    AllocKind, BackendConfig, BadArgument, CallFailed, Capturing, ContextLost, DevicePtr, DriverApi,
    DriverFn, FreeError, GpuBackend, KernelLaunch, MetraleCudaBackend, OutOfMemory, Remedy,
};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, on_both_drivers};

/// A software H200 that has the red zones' kernels too.
fn sim_with_redzones() -> SimDriver {
    let driver = sim_with_kernels();
    functions::register(&driver);
    driver
}

fn config(band_bytes: usize, change: impl FnOnce(&mut RedzoneConfig)) -> BackendConfig {
    let mut config = BackendConfig::default();
    config.redzone.band_bytes = band_bytes;
    change(&mut config.redzone);
    config
}

fn guarded(driver: &Arc<dyn DriverApi>, config: BackendConfig) -> MetraleCudaBackend {
    let builder = MetraleCudaBackend::builder().driver(driver.clone()).modules(&[("kernels", KERNELS)]);
    builder.config(config).build().unwrap()
}

/// Writes past everything the backend checks, as a stray kernel does.
fn plant(driver: &Arc<dyn DriverApi>, at: u64, bytes: &[u8]) {
    // SAFETY: the source is a slice of that many bytes.
    let status = unsafe { driver.cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(status, 0);
    // SAFETY: takes a handle, and the legacy stream is always there.
    assert_eq!(unsafe { driver.cuStreamSynchronize(0) }, 0);
}

fn peek(driver: &Arc<dyn DriverApi>, at: u64, bytes: usize) -> Vec<u8> {
    let mut seen = vec![0; bytes];
    // SAFETY: the destination is a slice of that many bytes.
    assert_eq!(unsafe { driver.cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), at, bytes) }, 0);
    seen
}

/// A violation's allocation, side and change.
fn told(violation: &Violation) -> (u64, Side, BandChange) {
    (violation.address, violation.side, violation.change)
}

fn change(first: usize, last: usize, count: usize, value: u8) -> BandChange {
    BandChange { first, last, count, value }
}

/// Planted overruns of every sort, found by a scan.
fn planted(driver: Arc<dyn DriverApi>, scan_by: ScanBy, fill: Fill) {
    let backend = guarded(
        &driver,
        config(256, |redzone| {
            redzone.front = true;
            redzone.scan_by = scan_by;
            redzone.fill = fill;
        }),
    );
    let scope = backend.scope("layers.3.attn");
    let (a, line) = (backend.alloc(1000).unwrap(), line!());
    let b = backend.alloc(4).unwrap();
    drop(scope);
    let c = backend.alloc(3 * MIB + 1).unwrap();
    assert_eq!(backend.scan_redzones().unwrap(), 0);
    assert_eq!(
        (a.addr() % 512, b.addr() % 512, c.addr() % 512),
        (0, 0, 0),
        "the caller's address stays aligned"
    );

    let pattern = |bytes: usize| vec![0x11_u8; bytes];
    plant(&driver, a.addr() + 1000, &pattern(1));
    plant(&driver, b.addr() + 4 + 255, &pattern(1));
    plant(&driver, c.addr() + 3 * MIB as u64 + 1 + 17, &pattern(201));
    plant(&driver, c.addr() - 1, &pattern(1));
    plant(&driver, b.addr() - 512, &pattern(1));
    // Inside the allocation, at its last byte, and behind the last byte of the band: nobody's concern.
    plant(&driver, a.addr() + 999, &pattern(1));

    let (report, log) = logged(|| backend.scan_redzones_report().unwrap());
    assert_eq!((report.checked, report.not_checked), (6, 0));
    // Position's bytes may be the planted one: at most one in 256.
    let run =
        report.violations.iter().find(|found| (found.address, found.side) == (c.addr(), Side::Back)).unwrap();
    assert!(run.change.count >= 200 && (17..=18).contains(&run.change.first), "{run}");
    assert!((216..=217).contains(&run.change.last) && run.change.value == 0x11, "{run}");
    assert_eq!(run.offsets().0, 3 * MIB as i128 + 1 + run.change.first as i128);
    if fill == Fill::default() {
        let expected = [
            (a.addr(), Side::Back, change(0, 0, 1, 0x11)),
            (b.addr(), Side::Front, change(0, 0, 1, 0x11)),
            (b.addr(), Side::Back, change(255, 255, 1, 0x11)),
            (c.addr(), Side::Front, change(511, 511, 1, 0x11)),
            (c.addr(), Side::Back, change(17, 217, 201, 0x11)),
        ];
        assert_eq!(report.violations.iter().map(told).collect::<Vec<_>>(), expected);
        assert_eq!(log.iter().filter(|line| line.starts_with("ERROR red zone:")).count(), 5, "{log:#?}");
        let first = &report.violations[0];
        assert_eq!((first.site.file(), first.site.line(), first.bytes), (file!(), line, 1000));
        assert_eq!(first.scope.as_deref(), Some("layers.3.attn"));
        assert_eq!(report.violations[4].scope, None);
        assert!(first.last_clean.is_some_and(|clean| clean.number == 1), "{first}");
        assert_eq!(first.index + 1, report.violations[1].index);
        let text = log.iter().find(|line| line.contains("+255 to +255")).unwrap();
        assert!(text.contains("1 byte was written past the end") && text.contains("0x11"), "{text}");
        assert_eq!(report.violations[3].offsets(), (-1, -1));
        assert_eq!(backend.redzone_violations(), report.violations);
    }
    assert_eq!(backend.scan_redzones().unwrap(), 0, "what was found is filled again");
    assert_eq!(peek(&driver, a.addr() + 999, 1), [0x11], "and nothing else touched");
    let status = backend.redzone_status();
    assert_eq!((status.allocations, status.bands, status.scans), (3, 6, 3));
    assert_eq!(status.violations, report.violations.len() as u64);
    for ptr in [a, b, c] {
        backend.free(ptr).unwrap();
    }
    assert_eq!(backend.redzone_status().bands, 0);
}

on_both_drivers! {
    planted_overruns_are_found_by_default(driver) {
        planted(driver.clone(), ScanBy::Auto, Fill::default());
        planted(driver, ScanBy::Auto, Fill::Position);
    }
    planted_overruns_are_found_by_copies(driver) {
        planted(driver.clone(), ScanBy::Copies, Fill::default());
        planted(driver, ScanBy::Copies, Fill::Position);
    }
    planted_overruns_are_found_by_the_kernel(driver; sim: sim_with_redzones()) {
        planted(driver.clone(), ScanBy::Kernel, Fill::default());
        planted(driver, ScanBy::Kernel, Fill::Position);
    }
}

/// A plain count of what is planted, against scans while allocations come and go.
fn comes_and_goes(driver: Arc<dyn DriverApi>, scan_by: ScanBy) {
    let backend = guarded(&driver, config(48, |redzone| redzone.scan_by = scan_by));
    let mut seed = 7_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut live: Vec<(DevicePtr, usize)> = Vec::new();
    let mut expected: BTreeMap<u64, BandChange> = BTreeMap::new();
    let mut found = 0;
    for step in 0..600 {
        match random(10) {
            0..5 => {
                let bytes = 1 + random(9000);
                live.push((backend.alloc(bytes).unwrap(), bytes));
            }
            5..7 if !live.is_empty() => {
                let (ptr, _) = live.swap_remove(random(live.len()));
                let before = backend.redzone_status().violations;
                let (freed, _) = logged(|| backend.free(ptr));
                freed.unwrap();
                let told = backend.redzone_status().violations - before;
                assert_eq!(told, u64::from(expected.remove(&ptr.addr()).is_some()), "step {step}");
            }
            7..9 if !live.is_empty() => {
                let (ptr, bytes) = live[random(live.len())];
                let at = random(48);
                plant(&driver, ptr.addr() + (bytes + at) as u64, &[3]);
                let one = change(at, at, 1, 3);
                expected
                    .entry(ptr.addr())
                    .and_modify(|all| {
                        let again = at == all.first || at == all.last;
                        *all =
                            change(all.first.min(at), all.last.max(at), all.count + usize::from(!again), 3);
                    })
                    .or_insert(one);
            }
            _ => {
                let (report, _) = logged(|| backend.scan_redzones_report().unwrap());
                assert_eq!(report.checked, live.len());
                let told: BTreeMap<u64, BandChange> =
                    report.violations.iter().map(|found| (found.address, found.change)).collect();
                let ends = |all: &BTreeMap<u64, BandChange>| -> Vec<_> {
                    all.iter().map(|(&at, change)| (at, change.first, change.last, change.value)).collect()
                };
                assert_eq!(ends(&told), ends(&expected), "step {step}");
                found += told.len();
                expected.clear();
            }
        }
    }
    assert!(found > 20, "{found}");
    assert_eq!(logged(|| backend.sweep_unreleased().unwrap()).0, live.len());
    assert_eq!(backend.ledger_probe().resident_bytes() % (2 * MIB), 0);
}

on_both_drivers! {
    the_table_follows_as_bands_come_and_go(driver; sim: sim_with_redzones()) {
        comes_and_goes(driver.clone(), ScanBy::Kernel);
        comes_and_goes(driver, ScanBy::Copies);
    }

    ten_thousand_clean_allocations_are_clean(driver) {
        let backend = guarded(&driver, config(256, |redzone| redzone.front = true));
        let mut held = Vec::new();
        for number in 0..10_000_usize {
            let ptr = backend.alloc(1 + number % 3000).unwrap();
            if number % 16 == 0 {
                backend.memset(ptr, 0x11, 1 + number % 3000).unwrap();
            }
            held.push(ptr);
        }
        let report = backend.scan_redzones_report().unwrap();
        assert_eq!((report.checked, report.violations.len()), (20_000, 0), "{report}");
        for ptr in held {
            backend.free(ptr).unwrap();
        }
        assert_eq!(backend.redzone_status().violations, 0);
        assert_eq!(backend.live_bytes(), 0);
    }

    a_write_between_the_last_scan_and_the_free_is_found_at_the_free(driver; sim: sim_with_kernels()) {
        let backend = guarded(&driver, config(64, |_| {}));
        let (ptr, line) = (backend.alloc(100).unwrap(), line!());
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        // By a kernel that still runs, on a stream of its own, when the free is called.
        let stream = backend.create_stream().unwrap();
        let fill = backend.kernel("kernels", "fill").unwrap();
        let mut launch = KernelLaunch::new(fill).block([32, 1, 1]).ptr(ptr).u32(0x0505_0505).u32(27);
        // SAFETY: a pointer, a value and a count that leaves the allocation for its band, which is what is to be found.
        unsafe { launch.on_stream(&backend, stream) }.unwrap();
        let (freed, log) = logged(|| backend.free(ptr));
        freed.unwrap();
        let found = backend.redzone_violations();
        assert_eq!(found.iter().map(told).collect::<Vec<_>>(), [(ptr.addr(), Side::Back, change(0, 7, 8, 5))]);
        assert_eq!((found[0].site.file(), found[0].site.line()), (file!(), line));
        assert!(found[0].last_clean.is_some_and(|clean| clean.number == 1));
        assert!(log.iter().any(|line| line.contains("8 bytes were written past the end")), "{log:#?}");
        backend.destroy_stream(stream).unwrap();
        assert_eq!((backend.live_bytes(), backend.redzone_status().allocations), (0, 0));
        // The kernel's table stays, where there is one.
        let kept = backend.ledger_probe().padding_bytes();
        assert_eq!(kept > 0, backend.redzone_status().by_kernel == Some(true));
        assert_eq!(backend.resident_bytes(), kept.next_multiple_of(2 * MIB));
    }

    a_write_after_the_free_is_found_in_quarantine(driver) {
        let quarantine_bytes = 8 * MIB as u64;
        let backend = guarded(&driver, config(64, |redzone| redzone.quarantine_bytes = quarantine_bytes));
        let (ptr, line) = (backend.alloc(300 * KIB).unwrap(), line!());
        let other = backend.alloc(100).unwrap();
        backend.free(ptr).unwrap();
        backend.free(other).unwrap();
        assert_eq!((backend.live_bytes(), backend.redzone_status().quarantined), (0, 2));
        let again = backend.free(ptr).unwrap_err();
        assert!(again.to_string().contains("freed before"), "{again}");
        let touched = backend.memset(ptr, 1, 16).unwrap_err();
        assert!(touched.is::<BadArgument>() && touched.to_string().contains("in quarantine"), "{touched}");
        assert_eq!(backend.scan_redzones().unwrap(), 0);

        // Two pieces of the freed memory, and the band behind it.
        plant(&driver, ptr.addr() + 65_530, &[9; 12]);
        plant(&driver, ptr.addr() + 300 * KIB as u64, &[9]);
        let (report, _) = logged(|| backend.scan_redzones_report().unwrap());
        let expected =
            [(ptr.addr(), Side::Back, change(0, 0, 1, 9)), (ptr.addr(), Side::Freed, change(65_530, 65_541, 12, 9))];
        assert_eq!(report.violations.iter().map(told).collect::<Vec<_>>(), expected);
        assert_eq!((report.violations[1].site.line(), report.violations[1].bytes), (line, 300 * KIB));
        assert_eq!(backend.scan_redzones().unwrap(), 0);

        // What leaves is checked once more, and goes back to the driver.
        plant(&driver, ptr.addr() + 5, &[1]);
        let large = backend.alloc(8 * MIB - 200 * KIB).unwrap();
        let (_, log) = logged(|| backend.free(large).unwrap());
        assert!(log.iter().any(|line| line.contains("after the free, at offsets 5 to 5")), "{log:#?}");
        let status = backend.redzone_status();
        assert_eq!((status.quarantined, status.violations), (2, 3));
        assert!(status.quarantine_bytes <= quarantine_bytes);
        let account = backend.account().unwrap();
        assert_eq!(account.term("quarantine").unwrap().bytes as u64, status.quarantine_bytes);
        assert_eq!(account.remainder_bytes(), 0, "{account}");
    }

    poison_marks_a_range_of_creation_and_loses_nothing(driver) {
        let backend = guarded(&driver, config(32, |_| {}));
        let ptrs: Vec<_> = (0..4).map(|_| backend.alloc(64).unwrap()).collect();
        plant(&driver, ptrs[0].addr() + 64, &[1]);
        let (_, log) = logged(|| backend.poison_redzones(0, 0).unwrap());
        assert!(log.iter().any(|line| line.contains("written past the end")), "{log:#?}");
        // The indices are the process's, and other tests allocate too: they are read off a violation each.
        let index = |ptr: DevicePtr| {
            plant(&driver, ptr.addr() + 64, &[9]);
            logged(|| backend.scan_redzones().unwrap());
            backend.redzone_violations().last().unwrap().index
        };
        let (low, high) = (index(ptrs[1]), index(ptrs[3]));
        let inside = logged(|| backend.poison_redzones(low, high).unwrap()).0;
        assert_eq!(inside, 2);
        let bytes = |ptr: DevicePtr| peek(&driver, ptr.addr() + 64, 32);
        assert_eq!((bytes(ptrs[0]), bytes(ptrs[3])), (vec![0; 32], vec![0; 32]));
        assert_eq!((bytes(ptrs[1]), bytes(ptrs[2])), (vec![POISON; 32], vec![POISON; 32]));
        let late = backend.alloc(64).unwrap();
        assert_eq!(bytes(late), [0; 32], "what comes later is outside the range");
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        logged(|| backend.sweep_unreleased().unwrap());
    }

    sizes_stay_what_was_asked_and_the_account_closes(driver) {
        let backend = guarded(&driver, config(512, |redzone| {
            redzone.front = true;
            redzone.quarantine_bytes = 3 << 20;
        }));
        let base = backend.memory_info().unwrap().used_bytes();
        let mut held = Vec::new();
        let mut asked = 0;
        for number in 0..120_usize {
            let bytes = match number % 5 {
                0 => 1 + number * 37,
                1 => 2 * MIB - 600 + number,
                2 => 2 * MIB + number,
                3 => 700 * KIB,
                _ => 5 * MIB - number,
            };
            held.push((backend.alloc(bytes).unwrap(), bytes));
            asked += bytes;
            if number % 3 == 0 {
                let (ptr, bytes) = held.swap_remove(number * 7 % held.len());
                backend.free(ptr).unwrap();
                asked -= bytes;
            }
            assert_eq!(backend.live_bytes(), asked);
            let used = backend.memory_info().unwrap().used_bytes();
            assert_eq!(backend.resident_bytes() as u64, used - base, "after {number}");
        }
        let account = backend.account().unwrap();
        assert_eq!(account.remainder_bytes(), 0, "{account}");
        let pads = account.term("red-zone pads").unwrap().bytes;
        assert_eq!(pads as usize, held.len() * 1024, "{account}");
        assert_eq!(account.term("ledger").unwrap().bytes as usize, asked);

        // A scan's table is padding too, and so is nobody's allocation.
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        let account = backend.account().unwrap();
        assert_eq!(account.remainder_bytes(), 0, "{account}");
        assert_eq!(backend.live_allocations().len(), held.len());
        for (ptr, _) in held {
            backend.free(ptr).unwrap();
        }
        assert_eq!(backend.account().unwrap().remainder_bytes(), 0);
        backend.ledger_probe().assert_nothing_live();
        let probe = backend.ledger_probe();
        drop(backend);
        assert_eq!((probe.padding_bytes(), probe.resident_bytes()), (0, 0));
    }

    the_callers_pointer_is_what_every_call_takes(driver) {
        let backend = guarded(&driver, config(64, |redzone| redzone.front = true));
        let ptr = backend.alloc(1000).unwrap();
        backend.copy_h2d(&[5; 1000], ptr).unwrap();
        let mut back = [0; 1000];
        backend.copy_d2h(ptr, &mut back).unwrap();
        assert_eq!(back, [5; 1000]);
        assert_eq!(backend.live_allocations()[0].0, ptr);
        let past = backend.copy_h2d(&[5; 1001], ptr).unwrap_err();
        assert!(past.to_string().contains("pass its end by 1 B"), "{past}");
        for (at, side) in [(ptr.offset(1000), "behind"), (address(ptr.addr() - 1), "in front of")] {
            let error = backend.memset(at, 1, 1).unwrap_err();
            assert!(error.is::<BadArgument>() && error.to_string().contains(side), "{error}");
        }
        for (at, side) in [(ptr.offset(1000), "behind"), (address(ptr.addr() - 512), "in front of")] {
            let inner = backend.free(at).unwrap_err().downcast::<FreeError>().unwrap();
            let place = format!("in the red zone {side} {:#x}", ptr.addr());
            assert!(inner.place.as_ref().is_some_and(|text| text.starts_with(&place)), "{inner}");
        }
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        backend.free(ptr).unwrap();
        assert!(backend.free(ptr).unwrap_err().to_string().contains("freed before"));
    }

    a_scan_in_a_lost_context_says_not_checked(driver; sim: sim_with_kernels()) {
        let backend = guarded(&driver, config(64, |_| {}));
        let ptr = backend.alloc(100).unwrap();
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        let stray = backend.kernel("kernels", "stray").unwrap();
        // SAFETY: the address is nobody's, which is what loses the context.
        unsafe { KernelLaunch::new(stray).u64(0x10).on_stream(&backend, backend.stream()) }.unwrap();
        backend.synchronize().unwrap_err();
        let (report, log) = logged(|| backend.scan_redzones_report().unwrap());
        assert_eq!((report.checked, report.not_checked, report.is_clean()), (0, 1, false));
        assert!(report.reason.as_deref().unwrap().contains("700"), "{report}");
        assert!(log.iter().any(|line| line.contains("1 red zones were not checked")), "{log:#?}");
        let error = logged(|| backend.scan_redzones().unwrap_err()).0;
        assert!(error.downcast_ref::<ContextLost>().is_some(), "{error:#}");
        assert_eq!(error.remedy(), Remedy::Relaunch);
        assert_eq!(backend.redzone_status().scans, 1, "it counts as no scan");
        logged(|| backend.free(ptr).unwrap_err());
        assert_eq!(backend.live_bytes(), 100, "the refused free put it back");
        let (_, log) = logged(|| drop(backend));
        // How much it is differs: a scan by kernel has a table too.
        let left = |line: &&String| {
            line.contains("1 allocation and ") && line.contains(" of red zones and quarantine of a dropped backend")
        };
        assert_eq!(log.iter().filter(left).count(), 1, "{log:#?}");
    }

    threads_allocate_and_free_while_another_scans(driver) {
        let backend = guarded(&driver, config(64, |redzone| redzone.quarantine_bytes = 1 << 20));
        std::thread::scope(|threads| {
            for thread in 0..4_usize {
                let backend = &backend;
                threads.spawn(move || {
                    backend.bind_to_thread().unwrap();
                    let mut held = Vec::new();
                    for number in 0..120 {
                        held.push(backend.alloc(1 + (number * 997 + thread * 131) % 50_000).unwrap());
                        if number % 2 == 1 {
                            backend.free(held.swap_remove(number * 31 % held.len())).unwrap();
                        }
                    }
                    held.into_iter().for_each(|ptr| backend.free(ptr).unwrap());
                });
            }
            for _ in 0..20 {
                assert_eq!(backend.scan_redzones().unwrap(), 0);
                let stream = backend.create_stream().unwrap();
                backend.destroy_stream(stream).unwrap();
            }
        });
        assert_eq!((backend.live_bytes(), backend.redzone_status().violations), (0, 0));
        assert_eq!(backend.redzone_status().allocations, 0);
        assert!(backend.redzone_status().quarantine_bytes <= 1 << 20);
    }

    /// On SCALE too, whose driver cannot say which streams capture: the backend knows of its own captures.
    a_capture_survives_what_other_threads_do_with_padded_memory(driver) {
        let backend = &guarded(&driver, config(64, |redzone| redzone.quarantine_bytes = 100));
        let (kept, stream) = (backend.alloc(100).unwrap(), backend.create_stream().unwrap());
        let freed = [backend.alloc(10).unwrap(), backend.alloc(10).unwrap()];
        let capture = backend.capture(stream).unwrap();
        backend.memset_async(kept, 1, 100, stream).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(move || {
                backend.bind_to_thread().unwrap();
                backend.free(backend.alloc(20).unwrap()).unwrap();
                freed.into_iter().for_each(|ptr| backend.free(ptr).unwrap());
                assert_eq!(backend.scan_redzones().unwrap(), 0);
                backend.poison_redzones(0, 9).unwrap();
            });
        });
        backend.memset_async(kept, 2, 100, stream).unwrap();
        backend.destroy_graph(capture.end().unwrap()).unwrap();
        assert_eq!(backend.redzone_status().violations, 0);
        backend.destroy_stream(stream).unwrap();
        backend.free(kept).unwrap();
    }

    a_capture_on_the_own_stream_refuses_a_scan_and_stays_valid(driver) {
        // SCALE cannot say whether a stream captures.
        if metrale_driver_sys::SCALE {
            return;
        }
        let backend = guarded(&driver, config(64, |_| {}));
        let ptr = backend.alloc(100).unwrap();
        let other = backend.create_stream().unwrap();
        for (stream, refused) in [(backend.stream(), true), (other, false)] {
            // SAFETY: no memory is passed; relaxed mode.
            assert_eq!(unsafe { driver.cuStreamBeginCapture_v2(stream.raw(), 2) }, 0);
            backend.memset_async(ptr, 1, 100, stream).unwrap();
            let scanned = backend.scan_redzones();
            assert_eq!(scanned.is_err(), refused, "{scanned:?}");
            assert!(scanned.err().is_none_or(|error| error.is::<BadArgument>()));
            let mut graph = 0;
            // SAFETY: the result pointer is a local.
            assert_eq!(unsafe { driver.cuStreamEndCapture(stream.raw(), &mut graph) }, 0);
            // SAFETY: the graph is the one just made.
            assert_eq!(unsafe { driver.cuGraphDestroy(graph) }, 0);
        }
        for stream in [backend.stream(), other] {
            let capture = backend.capture(stream).unwrap();
            backend.memset_async(ptr, 1, 100, stream).unwrap();
            assert!(backend.scan_redzones().unwrap_err().is::<Capturing>());
            assert!(backend.scan_redzones_report().unwrap_err().is::<Capturing>());
            assert!(backend.poison_redzones(0, 9).unwrap_err().is::<Capturing>());
            backend.destroy_graph(capture.end().unwrap()).unwrap();
        }
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        backend.destroy_stream(other).unwrap();
        backend.free(ptr).unwrap();
    }
}

/// A backend with bands, whose driver has another thread `act` in the middle of the first call of `function` from now on,
/// once.
fn disturbed(
    function: DriverFn,
    act: impl Fn(&MetraleCudaBackend) + Send + Sync + 'static,
) -> (Arc<MetraleCudaBackend>, Arc<HookedDriver>, impl Fn()) {
    let driver = Arc::new(HookedDriver::new(Arc::new(sim_with_kernels())));
    let seen: Arc<dyn DriverApi> = driver.clone();
    let backend = Arc::new(guarded(&seen, config(64, |_| {})));
    let (hooked, weak, act) = (driver.clone(), Arc::downgrade(&backend), Arc::new(act));
    let arm = move || {
        let (weak, act, armed) = (weak.clone(), act.clone(), AtomicBool::new(true));
        hooked.before_each(move |called| {
            if called == function && armed.swap(false, Ordering::Relaxed) {
                let (backend, act) = (weak.upgrade().unwrap(), act.clone());
                let other = std::thread::spawn(move || {
                    backend.bind_to_thread().unwrap();
                    act(&backend);
                });
                other.join().unwrap();
            }
        });
    };
    (backend, driver, arm)
}

#[test]
fn poison_that_comes_while_bands_are_laid_is_no_violation_and_reaches_them() {
    let poison = |backend: &MetraleCudaBackend| assert_eq!(backend.poison_redzones(0, 0).unwrap(), 0);
    let (backend, driver, arm) = disturbed(DriverFn::cuMemsetD8_v2, poison);
    arm();
    let ptr = backend.alloc(100).unwrap();
    let driver: Arc<dyn DriverApi> = driver;
    assert_eq!(peek(&driver, ptr.addr() + 100, 64), [0; 64]);
    assert_eq!(backend.scan_redzones().unwrap(), 0);
    backend.free(ptr).unwrap();
    assert_eq!(backend.redzone_status().violations, 0);
}

#[test]
fn poison_that_comes_during_a_free_is_no_violation() {
    let poison = |backend: &MetraleCudaBackend| assert_eq!(backend.poison_redzones(0, 0).unwrap(), 0);
    let (backend, _driver, arm) = disturbed(DriverFn::cuStreamSynchronize, poison);
    let ptr = backend.alloc(100).unwrap();
    arm();
    backend.free(ptr).unwrap();
    assert_eq!(backend.redzone_violations(), []);
}

#[test]
fn a_scan_that_came_before_the_bands_were_laid_has_not_seen_them_clean() {
    let scan = |backend: &MetraleCudaBackend| assert_eq!(backend.scan_redzones().unwrap(), 0);
    let (backend, driver, arm) = disturbed(DriverFn::cuMemsetD8_v2, scan);
    arm();
    let ptr = backend.alloc(100).unwrap();
    let driver: Arc<dyn DriverApi> = driver;
    plant(&driver, ptr.addr() + 100, &[1]);
    let (report, _) = logged(|| backend.scan_redzones_report().unwrap());
    assert_eq!((report.violations.len(), report.violations[0].last_clean), (1, None));
    backend.free(ptr).unwrap();
}

#[test]
fn a_driver_with_nothing_left_gets_the_quarantine_first() {
    let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::h200().with_total_bytes(1 << 30)));
    let backend = guarded(&driver, config(64, |redzone| redzone.quarantine_bytes = 256 << 20));
    for _ in 0..4 {
        let ptr = backend.alloc(60 * MIB).unwrap();
        backend.free(ptr).unwrap();
    }
    assert_eq!(backend.redzone_status().quarantined, 4);
    let free = backend.memory_info().unwrap().free_bytes as usize;
    let ptr = backend.alloc(free + 50 * MIB).unwrap();
    assert_eq!(backend.redzone_status().quarantined, 3, "the oldest went, and no more");
    let error = backend.alloc(400 * MIB).unwrap_err();
    assert!(error.is::<OutOfMemory>(), "{error}");
    assert_eq!(backend.redzone_status().quarantined, 0);
    backend.free(ptr).unwrap();
    assert_eq!(backend.account().unwrap().remainder_bytes(), 0);
}

#[test]
fn what_no_address_reaches_is_out_of_memory_with_bands_as_without() {
    for band_bytes in [0, 1024] {
        let driver: Arc<dyn DriverApi> = Arc::new(sim_with_kernels());
        let backend = guarded(&driver, config(band_bytes, |_| {}));
        for bytes in [usize::MAX, usize::MAX - 2000, usize::MAX - (2 << 20), 1 << 62] {
            let error = backend.alloc(bytes).unwrap_err();
            assert_eq!(error.remedy(), Remedy::FixCall, "{error}");
            assert!(error.is::<OutOfMemory>() && error.to_string().contains(file!()), "{error}");
        }
    }
}

#[test]
fn a_band_above_the_largest_is_refused_where_it_is_configured() {
    let build = |bytes| {
        let driver: Arc<dyn DriverApi> = Arc::new(sim_with_kernels());
        MetraleCudaBackend::builder().driver(driver).config(config(bytes, |_| {})).build()
    };
    assert_eq!(build(MAX_BAND_BYTES).unwrap().config().redzone.band_bytes, MAX_BAND_BYTES);
    for bytes in [MAX_BAND_BYTES + 1, usize::MAX] {
        let error = build(bytes).unwrap_err();
        let text = error.to_string();
        assert!(error.is::<BadArgument>() && text.contains(&bytes.to_string()), "{text}");
        assert!(text.contains("1073741824 bytes at most"), "{text}");
    }
}

#[test]
fn a_refused_free_keeps_its_bands() {
    let faulty = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(Profile::h200()))));
    let driver: Arc<dyn DriverApi> = faulty.clone();
    let backend = guarded(&driver, config(64, |_| {}));
    let ptr = backend.alloc(100).unwrap();
    faulty.fail_nth(DriverFn::cuMemFree_v2, 1, 1);
    assert!(backend.free(ptr).unwrap_err().is::<CallFailed>());
    assert_eq!((backend.redzone_status().bands, backend.ledger_probe().padding_bytes()), (1, 64));
    plant(&driver, ptr.addr() + 100, &[1]);
    assert_eq!(logged(|| backend.scan_redzones().unwrap()).0, 1);
    backend.free(ptr).unwrap();
    assert_eq!(backend.resident_bytes(), 0);
}

/// The life of red zones. Frees everything where nothing fails.
fn life(driver: Arc<dyn DriverApi>) -> metrale_cuda_backend::Result<()> {
    let config = config(48, |redzone| {
        redzone.front = true;
        redzone.quarantine_bytes = 8 * KIB as u64;
        redzone.scan_by = ScanBy::Kernel;
    });
    let backend = MetraleCudaBackend::builder().driver(driver.clone()).config(config).build()?;
    let (a, b) = (backend.alloc(100)?, backend.alloc(5 * KIB)?);
    backend.scan_redzones()?;
    backend.poison_redzones(0, 1)?;
    backend.free(a)?;
    let c = backend.alloc(5 * KIB)?;
    backend.scan_redzones()?;
    backend.free(b)?;
    backend.free(c)?;
    backend.account()?;
    Ok(())
}

#[test]
fn nothing_leaks_whichever_call_fails() {
    for function in [
        DriverFn::cuMemAlloc_v2,
        DriverFn::cuMemsetD8_v2,
        DriverFn::cuMemsetD8Async,
        DriverFn::cuMemcpyDtoH_v2,
        DriverFn::cuMemcpyHtoDAsync_v2,
        DriverFn::cuMemcpyDtoHAsync_v2,
        DriverFn::cuStreamSynchronize,
        DriverFn::cuModuleLoadDataEx,
        DriverFn::cuModuleGetFunction,
        DriverFn::cuLaunchKernel,
        DriverFn::cuMemGetInfo_v2,
        DriverFn::cuCtxGetCurrent,
    ] {
        let mut nth = 1;
        loop {
            let driver = Arc::new(sim_with_redzones());
            let faulty = Arc::new(FaultDriver::new(driver.clone()));
            faulty.fail_nth(function, nth, 999);
            let (result, log) = logged(|| life(faulty.clone()));
            let leaks = driver.leaks();
            // A drop that cannot learn whose context is current leaves the memory to the context's end.
            let lost_track = function == DriverFn::cuCtxGetCurrent && leaks.contexts.is_empty();
            assert!(lost_track || leaks.is_empty(), "call {nth} of {function}: {leaks:?}\n{log:#?}");
            if let Err(error) = result {
                assert!(format!("{error:#}").contains("999"), "call {nth} of {function}: {error:#}");
            }
            if faulty.injected().is_empty() {
                break;
            }
            nth += 1;
        }
        assert!(nth > 1, "{function} was never called");
    }
}

#[test]
fn a_scan_whose_launch_meets_a_fault_latches_it() {
    let faulty = Arc::new(FaultDriver::new(Arc::new(sim_with_redzones())));
    let driver: Arc<dyn DriverApi> = faulty.clone();
    let backend = guarded(&driver, config(64, |redzone| redzone.scan_by = ScanBy::Kernel));
    let _ptr = backend.alloc(100).unwrap();
    faulty.fail_nth(DriverFn::cuLaunchKernel, 1, 700);
    let (error, _) = logged(|| backend.scan_redzones().unwrap_err());
    assert_eq!(error.remedy(), Remedy::Relaunch, "{error:#}");
    let reason = backend.context_fault().expect("the fault is kept").to_string();
    assert!(reason.contains("700") && reason.contains("scan of red zones"), "{reason}");
    logged(|| drop(backend));
}

#[test]
fn the_table_of_a_scan_is_nobodys_to_write() {
    let driver: Arc<dyn DriverApi> = Arc::new(sim_with_redzones());
    let backend = guarded(&driver, config(64, |redzone| redzone.scan_by = ScanBy::Kernel));
    let ptr = backend.alloc(100).unwrap();
    assert_eq!(backend.scan_redzones().unwrap(), 0);
    let padding = backend.ledger_probe().allocations_of(AllocKind::Padding);
    let (table, _) = padding.into_iter().max_by_key(|(_, record)| record.bytes).unwrap();
    let error = backend.copy_h2d(&[1; 4], address(table)).unwrap_err();
    assert!(error.is::<BadArgument>() && error.to_string().contains("keeps for its red zones"), "{error}");
    assert_eq!(backend.scan_redzones().unwrap(), 0);
    backend.free(ptr).unwrap();
}

#[test]
fn without_red_zones_nothing_is_asked() {
    let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::h200()));
    let backend = guarded(&driver, BackendConfig::default());
    let face: &dyn GpuBackend = &backend;
    let ptr = face.alloc(100).unwrap();
    assert_eq!(face.scan_redzones().unwrap(), 0);
    assert_eq!(face.poison_redzones(0, 9).unwrap(), 0);
    let report = face.scan_redzones_report().unwrap();
    assert_eq!((report.checked, report.is_clean()), (0, true));
    assert_eq!(backend.ledger_probe().padding_bytes(), 0);
    face.free(ptr).unwrap();
    let too_large = guarded(&driver, config(64, |_| {})).alloc(usize::MAX - 8).unwrap_err();
    assert_eq!(too_large.remedy(), Remedy::FixCall);
}

/// As many bands as a large model has, by one launch and by copies: the same answer.
mod twenty_five_thousand_bands {
    use super::*;

    fn answers(driver: &Arc<dyn DriverApi>, scan_by: ScanBy) -> Vec<(usize, Side, BandChange)> {
        let backend = guarded(driver, config(256, |redzone| redzone.scan_by = scan_by));
        let held: Vec<_> = (0..25_000).map(|_| backend.alloc(700).unwrap()).collect();
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        for number in (0..25_000).step_by(997) {
            plant(driver, held[number].addr() + 700 + (number % 256) as u64, &[1]);
        }
        let (report, _) = logged(|| backend.scan_redzones_report().unwrap());
        assert_eq!(report.checked, 25_000);
        assert_eq!(backend.redzone_status().by_kernel, Some(scan_by == ScanBy::Kernel));
        assert_eq!(backend.scan_redzones().unwrap(), 0);
        let number = |found: &Violation| held.iter().position(|ptr| ptr.addr() == found.address).unwrap();
        let answers =
            report.violations.iter().map(|found| (number(found), found.side, found.change)).collect();
        held.into_iter().for_each(|ptr| backend.free(ptr).unwrap());
        answers
    }

    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        let driver = metrale_driver_sim::system_driver();
        let expected: Vec<_> = (0..25_000_usize)
            .step_by(997)
            .map(|number| (number, Side::Back, change(number % 256, number % 256, 1, 1)))
            .collect();
        for scan_by in [ScanBy::Kernel, ScanBy::Copies] {
            assert_eq!(answers(&driver, scan_by), expected, "{scan_by:?}");
        }
    }
}

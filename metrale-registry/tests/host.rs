// SPDX-License-Identifier: MIT OR Apache-2.0
//! One host for each driver and device: shared, separate, released, made anew.

mod common;

use std::sync::{Arc, Barrier};

use common::STORE;
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, TraceDriver, on_both_drivers};
use metrale_driver_sys::{DriverApi, DriverFn};
use metrale_registry::{CudaHost, DeviceFacts, HostError, MetraleRegistry, device_count};

fn h200() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(Profile::h200()))
}

on_both_drivers! { two_registries_share_context_and_stream(driver) {
    let first = MetraleRegistry::load_with(driver.clone(), 0, &[("a", STORE)]).unwrap();
    let second = MetraleRegistry::load_with(driver.clone(), 0, &[("b", STORE)]).unwrap();
    assert!(Arc::ptr_eq(first.host(), second.host()));
    assert_eq!(first.raw_stream(), second.raw_stream());
    assert_ne!(first.raw_stream(), 0);

    let stream = first.raw_stream();
    first.release().unwrap();
    common::synchronize(&driver, stream);
    assert_eq!(second.raw_stream(), stream, "the stream stays as long as somebody has it");
    second.release().unwrap();
}}

on_both_drivers! { the_host_retains_once_and_makes_one_stream(driver) {
    let trace = Arc::new(TraceDriver::new(driver));
    let count = |function| trace.count(function);
    let hosts: Vec<_> = (0..3).map(|_| CudaHost::acquire(trace.clone(), 0).unwrap()).collect();
    assert_eq!(count(DriverFn::cuDevicePrimaryCtxRetain), 1);
    assert_eq!(count(DriverFn::cuStreamCreate), 1);
    assert_eq!(count(DriverFn::cuDevicePrimaryCtxRelease_v2), 0);
    drop(hosts);
    assert_eq!(count(DriverFn::cuStreamDestroy_v2), 1);
    assert_eq!(count(DriverFn::cuDevicePrimaryCtxRelease_v2), 1);

    let again = CudaHost::acquire(trace.clone(), 0).unwrap();
    assert_eq!(count(DriverFn::cuDevicePrimaryCtxRetain), 2, "and is made anew when asked for again");
    drop(again);
}}

on_both_drivers! { the_facts_are_the_devices(driver) {
    let host = CudaHost::acquire(driver.clone(), 0).unwrap();
    let facts = host.facts();
    assert_eq!((facts.ordinal, host.ordinal(), host.device()), (0, 0, facts.device));
    assert!(!facts.name.is_empty() && facts.sm_count > 0);
    assert!(facts.uuid_text().starts_with("GPU-"));
    assert_eq!(facts.uuid_text().len(), "GPU-00000000-0000-0000-0000-000000000000".len());
    let (mut free, mut total) = (0, 0);
    // SAFETY: the result pointers are locals.
    common::ok(unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) });
    assert_eq!(facts.total_bytes, total as u64);
    assert_eq!(DeviceFacts::of(&*driver, 0).unwrap(), *facts);
    assert_eq!(DeviceFacts::all(&*driver).unwrap().len(), device_count(&*driver).unwrap());
}}

on_both_drivers! { a_guard_makes_the_context_current_and_puts_back_what_was(driver) {
    let host = CudaHost::acquire(driver, 0).unwrap();
    assert_eq!(host.current_context(), Ok(host.context()));
    assert!(host.was_current());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!host.was_current());
            assert_eq!(host.current_context(), Ok(0));
            {
                let _outer = host.enter().unwrap();
                drop(host.enter().unwrap());
                assert_eq!(host.current_context(), Ok(host.context()), "the inner guard changed nothing");
                assert!(host.was_current());
            }
            assert!(!host.was_current(), "the guard put back what was");
            assert_eq!(host.current_context(), Ok(0));
        });
    });
}}

#[test]
fn the_h200s_facts_are_those_measured() {
    let facts = DeviceFacts::of(&*h200(), 0).unwrap();
    assert_eq!((facts.sm_count, facts.integrated, facts.total_bytes), (132, false, 150_109_880_320));
    assert_eq!(facts.compute_capability.to_string(), "9.0");
    assert_eq!((facts.shared_bytes_per_block, facts.shared_bytes_per_block_optin), (48 << 10, 227 << 10));
    let gb10 = DeviceFacts::of(&SimDriver::new(Profile::gb10()), 0).unwrap();
    assert_eq!((gb10.integrated, gb10.compute_capability.to_string()), (true, "12.1".to_owned()));
}

#[test]
fn drivers_have_hosts_of_their_own() {
    let (one, other) = (h200(), h200());
    let first = CudaHost::acquire(one.clone(), 0).unwrap();
    let second = CudaHost::acquire(other.clone(), 0).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    drop(first);
    assert!(one.leaks().is_empty());
    assert!(!other.leaks().is_empty(), "the other's context is live");
    drop(second);
    assert!(other.leaks().is_empty());
}

#[test]
fn devices_have_hosts_of_their_own() {
    let driver = SimDriver::builder().device(Profile::h200()).device(Profile::rtx()).build();
    let driver = Arc::new(driver);
    let first = MetraleRegistry::load_with(driver.clone(), 0, &[("m", STORE)]).unwrap();
    let second = MetraleRegistry::load_with(driver.clone(), 1, &[("m", STORE)]).unwrap();
    assert_ne!(first.host().context(), second.host().context());
    assert_ne!(first.raw_stream(), second.raw_stream());
    assert_eq!((first.host().facts().ordinal, second.host().facts().ordinal), (0, 1));
    assert_eq!(second.host().facts().compute_capability.to_string(), "8.9");
    // The second load left its own context current; a look-up in the first finds its way all the same.
    first.function("m", "store").unwrap();
    assert!(CudaHost::acquire(driver.clone(), 2).is_err());
    drop((first, second));
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
}

#[test]
fn no_device_at_all_is_an_ordinal_out_of_range() {
    let error = CudaHost::acquire(Arc::new(SimDriver::builder().build()), 0).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("there is no device 0: this process sees no device; CUDA_VISIBLE_DEVICES"),
        "{text}"
    );
}

#[test]
fn asking_about_devices_makes_no_context() {
    let driver = h200();
    assert_eq!(device_count(&*driver).unwrap(), 1);
    DeviceFacts::all(&*driver).unwrap();
    assert!(driver.leaks().is_empty());
}

on_both_drivers! { an_ordinal_out_of_range_says_how_many_there_are(driver) {
    let devices = device_count(&*driver).unwrap();
    let error = CudaHost::acquire(driver, 99).unwrap_err();
    let HostError::OrdinalOutOfRange { ordinal: 99, devices: said, .. } = &error else { panic!("{error}") };
    assert_eq!(*said, devices);
    let text = error.to_string();
    assert!(text.starts_with("there is no device 99: this process sees "), "{text}");
    assert!(text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
}}

#[test]
fn an_ordinal_beyond_a_c_int_is_out_of_range_too() {
    let error = CudaHost::acquire(h200(), usize::MAX).unwrap_err();
    assert!(matches!(error, HostError::OrdinalOutOfRange { ordinal: usize::MAX, devices: 1, .. }), "{error}");
}

#[test]
fn a_driver_that_does_not_start_brings_advice() {
    for (status, word) in
        [(100, "CUDA_VISIBLE_DEVICES"), (34, "stubs"), (802, "fabric"), (803, "reboot"), (3, "fork")]
    {
        let driver = FaultDriver::new(h200());
        driver.fail_every(DriverFn::cuInit, status);
        let error = CudaHost::acquire(Arc::new(driver), 0).unwrap_err();
        assert!(matches!(error, HostError::Start { .. }));
        let text = error.to_string();
        assert!(text.contains(&format!("({status})")) && text.contains(word), "{text}");
    }
}

#[test]
fn threads_that_ask_concurrently_get_one_host_and_leave_nothing() {
    let driver = h200();
    let trace = Arc::new(TraceDriver::new(driver.clone()));
    const THREADS: usize = 8;
    for _ in 0..20 {
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    let host = CudaHost::acquire(trace.clone(), 0).unwrap();
                    // All have it before any lets it go, and then all do at once.
                    barrier.wait();
                    let address = Arc::as_ptr(&host) as usize;
                    barrier.wait();
                    drop(host);
                    address
                });
            }
        });
        assert!(driver.leaks().is_empty());
    }
    let count = |function| trace.count(function);
    assert_eq!(count(DriverFn::cuDevicePrimaryCtxRetain), 20, "one host a round");
    assert_eq!(count(DriverFn::cuDevicePrimaryCtxRelease_v2), 20);
}

#[test]
fn a_host_is_never_made_while_its_predecessor_is_torn_down() {
    let driver = h200();
    let trace = Arc::new(TraceDriver::new(driver.clone()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    drop(CudaHost::acquire(trace.clone(), 0).unwrap());
                }
            });
        }
    });
    let mut live = 0;
    for call in trace.calls() {
        match call.function {
            DriverFn::cuStreamCreate => live += 1,
            DriverFn::cuStreamDestroy_v2 => live -= 1,
            _ => continue,
        }
        assert!((0..=1).contains(&live), "streams of two hosts were live at once");
    }
    assert_eq!(live, 0);
    assert!(driver.leaks().is_empty());
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing stays behind: on the ordinary way out, when something fails half way, and when the context is gone.

mod common;

use std::sync::{Arc, Mutex};

use common::{SCALE, STORE};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, on_both_drivers};
use metrale_driver_sys::{DriverError, DriverFn};
use metrale_registry::{
    CudaHost, HostError, MetraleRegistry, RegistryError, ReleaseError, Resource, TeardownError, TeardownSink,
};

const MODULES: &[(&str, &[u8])] = &[("a", STORE), ("b", SCALE), ("c", STORE)];

fn h200() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(Profile::h200()))
}

/// A sink that keeps what it is told.
fn keeping() -> (TeardownSink, Arc<Mutex<Vec<TeardownError>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&told);
    (Arc::new(move |error: &TeardownError| kept.lock().unwrap().push(error.clone())), told)
}

#[test]
fn the_last_handle_unloads() {
    let driver = h200();
    let registry = MetraleRegistry::load_with(driver.clone(), 0, MODULES).unwrap();
    let other = Arc::clone(&registry);
    drop(registry);
    assert!(!driver.leaks().is_empty());
    other.function("b", "scale").unwrap();
    drop(other);
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
}

#[test]
fn the_last_handle_may_go_on_a_thread_without_a_context() {
    let driver = h200();
    let registry = MetraleRegistry::load_with(driver.clone(), 0, MODULES).unwrap();
    std::thread::spawn(move || drop(registry)).join().unwrap();
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
}

/// It is the thread's own context that is gone, and not the host's.
#[test]
fn the_last_handle_may_go_on_a_thread_whose_context_is_gone() {
    for status in [4, 201, 709] {
        let driver = h200();
        let faulty = Arc::new(FaultDriver::new(driver.clone()));
        let registry = MetraleRegistry::load_with(faulty.clone(), 0, MODULES).unwrap();
        faulty.fail_every(DriverFn::cuCtxGetCurrent, status);
        std::thread::spawn(move || registry.release().unwrap()).join().unwrap();
        assert!(driver.leaks().is_empty(), "{status}: {}", driver.leaks());
    }
}

#[test]
fn a_failure_at_any_call_is_an_error_and_leaves_nothing() {
    let (mut failures, mut unanswered) = (0, 0);
    for &function in DriverFn::ALL {
        for nth in 1.. {
            let sim = h200();
            let driver = Arc::new(FaultDriver::new(sim.clone()));
            driver.fail_nth(function, nth, 999);
            let result = MetraleRegistry::load_with(driver.clone(), 0, MODULES);
            let was_injected = !driver.injected().is_empty();
            // What fails at the teardown stays behind of necessity; see the tests of the sink.
            driver.clear();
            if !was_injected {
                drop(result.unwrap());
                assert!(sim.leaks().is_empty(), "{}", sim.leaks());
                break;
            }
            failures += 1;
            let error = match result {
                Err(error) => error,
                Ok(registry) => {
                    // Whether the device is integrated is the one question whose failure stops nothing.
                    assert!(
                        function == DriverFn::cuDeviceGetAttribute && !registry.host().facts().integrated
                    );
                    unanswered += 1;
                    drop(registry);
                    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
                    continue;
                }
            };
            let expected = Some(DriverError { function, status: 999 });
            assert_eq!(error.driver_error(), expected, "call {nth}: {error}");
            assert!(sim.leaks().is_empty(), "{function}, call {nth}: {}", sim.leaks());
        }
    }
    assert_eq!(unanswered, 1);
    assert!(failures > 15, "start, facts, context, stream and three modules are more calls than {failures}");
}

#[test]
fn a_refused_module_unloads_those_before_it() {
    static REFUSED: &[u8] = b".version 6.0\n.target sm_999\n.address_size 64\n.visible .entry k() { ret; }\n";
    let driver = h200();
    let host = CudaHost::acquire(driver.clone(), 0).unwrap();
    let before = driver.leaks().to_string();
    for place in 0..MODULES.len() {
        let mut modules = MODULES.to_vec();
        modules.insert(place, ("refused", REFUSED));
        let error = MetraleRegistry::load_into(Arc::clone(&host), &modules).unwrap_err();
        assert!(matches!(error, RegistryError::ModuleLoad(_)), "{error}");
        assert_eq!(driver.leaks().to_string(), before, "at place {place}");
    }
}

on_both_drivers! { release_refuses_while_another_handle_is_live(driver) {
    let registry = MetraleRegistry::load_with(driver, 0, &[("m", STORE)]).unwrap();
    let other = Arc::clone(&registry);
    let error = registry.release().unwrap_err();
    assert!(error.to_string().contains("1 other handle"), "{error}");
    let ReleaseError::StillHeld { registry, others: 1 } = error else { panic!("{error}") };
    registry.function("m", "store").unwrap();
    drop(registry);
    other.release().unwrap();
}}

#[test]
fn a_context_that_is_gone_is_no_error() {
    for status in [4, 201, 709] {
        let driver = Arc::new(FaultDriver::new(h200()));
        let host = CudaHost::acquire(driver.clone(), 0).unwrap();
        let (sink, told) = keeping();
        host.set_teardown_sink(Some(sink));
        let registry = MetraleRegistry::load_into(host, MODULES).unwrap();
        for function in [
            DriverFn::cuModuleUnload,
            DriverFn::cuStreamDestroy_v2,
            DriverFn::cuCtxGetCurrent,
            DriverFn::cuCtxSetCurrent,
            DriverFn::cuDevicePrimaryCtxRelease_v2,
        ] {
            driver.fail_every(function, status);
        }
        registry.release().unwrap();
        assert!(told.lock().unwrap().is_empty(), "{status}");

        let driver = Arc::new(FaultDriver::new(h200()));
        let host = CudaHost::acquire(driver.clone(), 0).unwrap();
        let (sink, told) = keeping();
        host.set_teardown_sink(Some(sink));
        driver.fail_every(DriverFn::cuStreamDestroy_v2, status);
        drop(host);
        assert!(told.lock().unwrap().is_empty(), "{status}");
    }
}

#[test]
fn other_failures_are_told_once_a_drop_with_all_their_names() {
    let driver = Arc::new(FaultDriver::new(h200()));
    let host = CudaHost::acquire(driver.clone(), 0).unwrap();
    let (sink, told) = keeping();
    host.set_teardown_sink(Some(sink));
    let registry = MetraleRegistry::load_into(Arc::clone(&host), MODULES).unwrap();
    driver.fail_every(DriverFn::cuModuleUnload, 700);
    drop(registry);
    {
        let told = told.lock().unwrap();
        let [error] = &told[..] else { panic!("{told:?}") };
        let names: Vec<_> = error.failures.iter().map(|(resource, _)| resource.clone()).collect();
        assert_eq!(names, [Resource::Module("a"), Resource::Module("b"), Resource::Module("c")]);
        assert_eq!(error.to_string().matches("cuModuleUnload").count(), 1, "{error}");
    }
    driver.fail_every(DriverFn::cuStreamDestroy_v2, 700);
    driver.fail_every(DriverFn::cuDevicePrimaryCtxRelease_v2, 719);
    drop(host);
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2);
    let names: Vec<_> =
        told[1].failures.iter().map(|(resource, error)| (resource.clone(), error.status)).collect();
    assert_eq!(names, [(Resource::Stream, 700), (Resource::Context, 719)]);
}

#[test]
fn release_hands_failures_to_its_caller_instead() {
    let driver = Arc::new(FaultDriver::new(h200()));
    let host = CudaHost::acquire(driver.clone(), 0).unwrap();
    let (sink, told) = keeping();
    host.set_teardown_sink(Some(sink));
    let registry = MetraleRegistry::load_into(host, &[("m", STORE)]).unwrap();
    driver.fail_every(DriverFn::cuModuleUnload, 700);
    driver.fail_every(DriverFn::cuStreamDestroy_v2, 700);
    let ReleaseError::Teardown(error) = registry.release().unwrap_err() else { panic!() };
    let names: Vec<_> = error.failures.iter().map(|(resource, _)| resource.clone()).collect();
    assert_eq!(names, [Resource::Module("m"), Resource::Stream]);
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn a_sink_is_not_taken_from_whoever_set_it() {
    let driver = Arc::new(FaultDriver::new(h200()));
    let host = CudaHost::acquire(driver.clone(), 0).unwrap();
    let ((first, told_first), (second, told_second)) = (keeping(), keeping());
    assert!(host.set_teardown_sink_if_none(first));
    assert!(!host.set_teardown_sink_if_none(second));
    driver.fail_every(DriverFn::cuStreamDestroy_v2, 700);
    drop(host);
    assert_eq!((told_first.lock().unwrap().len(), told_second.lock().unwrap().len()), (1, 0));
}

#[test]
fn a_sink_may_ask_for_the_host_again() {
    let driver = Arc::new(FaultDriver::new(h200()));
    let host = CudaHost::acquire(driver.clone(), 0).unwrap();
    let again: Arc<Mutex<Option<Arc<CudaHost>>>> = Arc::default();
    let (kept, asked) = (Arc::clone(&again), driver.clone());
    host.set_teardown_sink(Some(Arc::new(move |_: &TeardownError| {
        *kept.lock().unwrap() = CudaHost::acquire(asked.clone(), 0).ok();
    })));
    driver.fail_every(DriverFn::cuStreamDestroy_v2, 719);
    drop(host);
    assert!(again.lock().unwrap().is_some());
    again.lock().unwrap().take();
}

#[test]
fn a_fault_before_the_load_is_not_blamed_on_the_module() {
    for status in [700, 716] {
        let driver = Arc::new(FaultDriver::new(h200()));
        driver.fail_every(DriverFn::cuModuleLoadDataEx, status);
        let error = MetraleRegistry::load_with(driver, 0, &[("m", STORE)]).unwrap_err();
        assert!(matches!(error, RegistryError::EarlierFault { module: "m", .. }), "{error}");
        assert!(error.to_string().contains("an earlier kernel faulted"), "{error}");
    }
}

#[test]
fn a_host_on_a_faulted_context_says_so_to_the_next_who_asks() {
    let driver = Arc::new(FaultDriver::new(h200()));
    let _host = CudaHost::acquire(driver.clone(), 0).unwrap();
    driver.fail_every(DriverFn::cuCtxSetCurrent, 700);
    let error = CudaHost::acquire(driver.clone(), 0).unwrap_err();
    assert!(matches!(error, HostError::Context { ordinal: 0, .. }));
    assert!(error.to_string().contains("a kernel failed earlier"), "{error}");
}

#[test]
fn a_lost_context_is_told_once_and_blamed_on_its_kernel() {
    let driver = h200();
    let host = CudaHost::acquire(driver.clone(), 0).unwrap();
    let (sink, told) = keeping();
    host.set_teardown_sink(Some(sink));
    let registry = MetraleRegistry::load_into(Arc::clone(&host), MODULES).unwrap();
    driver.inject_fault(0, 700);

    let error = registry.function("a", "store").unwrap_err();
    assert!(!error.is_not_found() && error.to_string().contains("a kernel failed earlier"), "{error}");
    let error = MetraleRegistry::load_into(Arc::clone(&host), MODULES).unwrap_err();
    assert!(matches!(error, RegistryError::EarlierFault { module: "a", .. }), "{error}");
    drop(registry);
    let told = told.lock().unwrap();
    let [error] = &told[..] else { panic!("{told:?}") };
    assert_eq!(error.failures.len(), MODULES.len());
    assert!(error.failures.iter().all(|(_, error)| error.status == 700));
}

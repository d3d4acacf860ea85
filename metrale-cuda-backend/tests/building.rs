// SPDX-License-Identifier: MIT OR Apache-2.0
//! Building a backend: what can be wrong, and that nothing is left behind.

mod common;

use std::process::Command;
use std::sync::{Arc, Mutex};

use common::hooked::HookedDriver;
use common::pinned::PinnedGuard;
use common::{KERNELS, backend, backend_with_kernels, logged, sim, sim_with_kernels, words32};
use metrale_cuda_backend::{
    BackendConfig, ConfigError, DEBUG_SYNC_KERNELS, DriverFn, GpuBackend, HostError, KernelLaunch,
    MetraleCudaBackend, RegistryError, Remedy, cause,
};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver};

#[test]
fn a_module_that_does_not_load_names_itself_and_leaves_nothing() {
    let driver = sim();
    let build = |image| {
        MetraleCudaBackend::builder()
            .driver(driver.clone())
            .modules(&[("kernels", KERNELS)])
            .modules(&[("broken", image)])
            .config(BackendConfig::default())
            .build()
    };
    for image in
        [b"".as_slice(), b"<html></html>", b".version 9.0\n.target sm_90, fastmath\n.address_size 64\n"]
    {
        let error = build(image).unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall);
        assert!(error.is::<RegistryError>() && error.to_string().contains("\"broken\""), "{error}");
        assert!(driver.leaks().is_empty(), "{:?}", driver.leaks());
    }
    let error = MetraleCudaBackend::builder()
        .driver(driver.clone())
        .modules(&[("twice", KERNELS), ("twice", KERNELS)])
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("two modules are named \"twice\""), "{error}");
}

/// As SCALE's driver may be: what only extras need is missing, and says so where it is asked for.
#[test]
fn a_driver_with_the_basics_alone_runs_a_model() {
    if !cfg!(feature = "ledger") {
        // Without a ledger only the driver could tell device memory from the host's, and this one cannot.
        return;
    }
    let driver = Arc::new(HookedDriver::basics(Arc::new(sim_with_kernels())));
    let backend = backend_with_kernels(driver);
    let stream = backend.create_stream().unwrap();
    let at = backend.alloc(1024).unwrap();
    let mut pinned = PinnedGuard::new(&backend, 1024).unwrap();
    pinned.fill(3);
    backend.copy_h2d(&pinned, at).unwrap();
    backend.memset_async(at, 0, 512, stream).unwrap();
    let event = backend.create_event().unwrap();
    backend.record_event(event, stream).unwrap();
    backend.wait_event(backend.stream(), event).unwrap();
    let fill = backend.kernel("kernels", "fill").unwrap();
    assert_eq!(backend.n_tile(fill), None);
    let mut launch = KernelLaunch::new(fill).block([64, 1, 1]).ptr(at).u32(9).u32(64);
    // SAFETY: the arguments are the kernel's parameters; it writes 64 words to `at`.
    unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
    backend.synchronize_stream(backend.stream()).unwrap();
    assert_eq!(words32(&backend, at, 64), [9; 64]);
    assert!(backend.effective_free().unwrap().bytes > 0);

    for error in [
        backend.alloc_managed(64).unwrap_err(),
        backend.memset_d32_async(at, 1, 4, stream).unwrap_err(),
        backend.device_symbol("kernels", "steps").unwrap_err(),
    ] {
        assert_eq!(error.remedy(), Remedy::FixCall, "{error}");
        assert!(error.to_string().contains("(801)"), "{error}");
    }
    backend.destroy_event(event).unwrap();
    backend.destroy_stream(stream).unwrap();
    drop(pinned);
    backend.free(at).unwrap();
}

#[test]
fn a_start_is_one_line_of_the_log() {
    let driver = sim();
    let (backend, lines) = logged(|| {
        let modules = [("kernels", KERNELS)];
        MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&modules)
            .config(BackendConfig::default())
            .build()
    });
    let backend = backend.unwrap();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let free = backend.memory_info().unwrap().to_string();
    for part in [
        "INFO",
        "device 0",
        "NVIDIA H200",
        "9.0",
        "132 multiprocessors",
        "discrete",
        &free,
        "1 module loaded",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[test]
fn a_device_that_is_not_there_says_how_many_there_are() {
    let error = MetraleCudaBackend::builder().driver(sim()).ordinal(3).build().unwrap_err();
    assert_eq!(error.remedy(), Remedy::FixCall);
    assert!(error.is::<HostError>() && error.to_string().contains("1 device"), "{error}");
    let none = Arc::new(SimDriver::builder().build());
    assert!(MetraleCudaBackend::builder().driver(none).build().unwrap_err().is::<HostError>());
}

#[test]
fn a_backend_takes_the_teardown_sink_from_nobody() {
    let driver = Arc::new(FaultDriver::new(sim()));
    let first = backend(driver.clone());
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&told);
    first.host().set_teardown_sink(Some(Arc::new(move |error| kept.lock().unwrap().push(error.to_string()))));
    let second = backend(driver.clone());
    driver.fail_every(DriverFn::cuStreamDestroy_v2, 999);
    drop((first, second));
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("cuStreamDestroy_v2"), "{told:?}");
}

#[test]
fn what_no_sink_was_set_for_is_logged() {
    let driver = Arc::new(FaultDriver::new(sim()));
    let backend = backend(driver.clone());
    driver.fail_every(DriverFn::cuStreamDestroy_v2, 999);
    let ((), lines) = logged(|| drop(backend));
    assert!(lines.len() == 1 && lines[0].contains("not released: the stream"), "{lines:?}");
}

#[test]
fn the_facts_are_the_devices() {
    let backend = backend(Arc::new(SimDriver::new(Profile::gb10())));
    let facts = backend.facts();
    assert_eq!((facts.name.as_str(), facts.integrated, facts.total_bytes), ("NVIDIA GB10", true, 120 << 30));
    assert_eq!((backend.ordinal(), (&backend as &dyn GpuBackend).ordinal()), (0, 0));
    assert_eq!(backend.memory_info().unwrap().total_bytes, facts.total_bytes);
}

#[test]
fn new_takes_the_systems_driver_or_says_what_to_install() {
    match MetraleCudaBackend::new(0, &[("kernels", KERNELS)]) {
        Ok(backend) => assert!(backend.kernel("kernels", "fill").is_ok()),
        Err(error) => assert!(cause::<HostError>(&error).is_some(), "{error}"),
    }
}

#[test]
fn the_environment_is_read_when_the_backend_is_made() {
    // A process of its own, since the variable is the whole process's.
    let run = |value: &str| {
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program)
            .args(["--exact", "child_with_a_variable", "--ignored", "--nocapture"])
            .env(DEBUG_SYNC_KERNELS, value)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run("1").contains("answer: true"));
    assert!(run("0").contains("answer: false"));
    let refused = run("yes");
    assert!(
        refused.contains("METRALE_DEBUG_SYNC_KERNELS=\"yes\" is not understood: set it to 1"),
        "{refused}"
    );
}

#[test]
#[ignore = "run by the_environment_is_read_when_the_backend_is_made"]
fn child_with_a_variable() {
    match MetraleCudaBackend::builder().driver(sim()).build() {
        Ok(backend) => println!("answer: {}", backend.config().debug_sync_kernels),
        Err(error) => println!("answer: {}", error.downcast::<ConfigError>().unwrap()),
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processes meet when they look for a driver, row by row of a table gathered from public reports.

mod common;

use std::sync::{Arc, Mutex};

use common::STORE;
use metrale_driver_sim::{FaultDriver, Profile, SimDriver};
use metrale_driver_sys::image::arch::IsaVersion;
use metrale_driver_sys::{DriverApi, DriverFn, LoadError, SEARCH_ORDER};
use metrale_registry::{
    CudaHost, DeviceFacts, HostError, MetraleRegistry, RegistryError, VisibleDevices, device_count,
    is_teardown_noop,
};

fn sim() -> Arc<dyn DriverApi> {
    Arc::new(SimDriver::new(Profile::h200()))
}

/// A driver whose function answers a status, always.
fn failing(function: DriverFn, status: i32) -> Arc<FaultDriver> {
    let driver = FaultDriver::new(sim());
    driver.fail_every(function, status);
    Arc::new(driver)
}

/// What a start that fails with a status says.
#[track_caller]
fn start(status: i32) -> String {
    let error = device_count(&*failing(DriverFn::cuInit, status)).unwrap_err();
    assert!(matches!(error, HostError::Start { .. }));
    let text = error.to_string();
    assert!(text.contains("software h200"), "the driver that was opened is named: {text}");
    text
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

fn visible(value: &str) -> VisibleDevices {
    VisibleDevices::new(Some(value.to_owned()))
}

/// The row's case, or why it does not apply to this library.
fn check(id: &str) -> Result<(), &'static str> {
    match id {
        "l01" => {
            assert_eq!(SEARCH_ORDER[0], "libcuda.so.1");
            assert!(SEARCH_ORDER.iter().all(|path| !path.contains("stubs")));
            says(&start(34), &["STUB_LIBRARY (34)", "the stub that toolkits ship"]);
        }
        "l02" => assert_eq!(SEARCH_ORDER[2], "/usr/lib/wsl/lib/libcuda.so.1"),
        "l04" => says(&start(803), &["(803)", "cuda-compat", "kernel module"]),
        "l05" => {
            let tried = SEARCH_ORDER.iter().map(|path| (path.into(), "no such file".to_owned())).collect();
            let no_library = LoadError::NotFound { tried }.to_string();
            let no_device = start(100);
            says(&no_library, &["no CUDA driver found", "Install the NVIDIA driver"]);
            says(&no_device, &["There is a driver, but it shows this process no device"]);
        }
        "l07" => says(&start(804), &["(804)", "data-centre GPUs only"]),
        "l08" => says(&start(802), &["(802)", "fabric manager"]),
        "l10" => {
            assert_eq!(visible("-1").entries(), Some(vec![]));
            says(&visible("-1").to_string(), &["every device is hidden"]);
            let none = SimDriver::builder().build();
            assert_eq!(device_count(&none).unwrap(), 0);
            says(&start(100), &["CUDA_VISIBLE_DEVICES", "-1"]);
        }
        "l11" => {
            assert_eq!(visible("0,0").entries(), Some(vec!["0"]));
            says(&visible("0,0").to_string(), &["up to \"0\" (is there already): 1 entry"]);
        }
        "l13" => assert_eq!(visible("GPU-1a2b").entries(), Some(vec!["GPU-1a2b"])),
        "l14" => {
            let name = "MIG-11111111-2222-3333-4444-555555555555";
            assert_eq!(visible(name).entries(), Some(vec![name]));
        }
        "l16" => says(&start(100), &["MIG", "compute instance"]),
        "l17" => {
            let text = start(3);
            says(&text, &["before fork", "does not mean that there is no GPU"]);
            // Nothing of a failed start is kept.
            let driver = FaultDriver::new(sim());
            driver.fail_nth(DriverFn::cuInit, 1, 3);
            device_count(&driver).unwrap_err();
            assert_eq!(device_count(&driver).unwrap(), 1);
        }
        "l19" => {
            assert!(!DriverFn::cuTensorMapEncodeTiled.is_required(), "its absence must not fail the load");
            assert!(DriverFn::cuMemGetInfo_v2.is_required());
        }
        // The real path of the library is in the loader's own tests; here it reaches the error.
        "l20" => says(&start(999), &["the driver (software h200"]),
        "l22" => {
            assert!(is_teardown_noop(4));
            let driver = failing(DriverFn::cuModuleUnload, 4);
            driver.fail_every(DriverFn::cuStreamDestroy_v2, 4);
            driver.fail_every(DriverFn::cuDevicePrimaryCtxRelease_v2, 4);
            let told = Arc::new(Mutex::new(Vec::new()));
            let host = CudaHost::acquire(driver, 0).unwrap();
            let sink = told.clone();
            host.set_teardown_sink(Some(Arc::new(move |error| sink.lock().unwrap().push(error.to_string()))));
            let registry = MetraleRegistry::load_into(host, &[("m", STORE)]).unwrap();
            drop(registry);
            assert_eq!(*told.lock().unwrap(), Vec::<String>::new());
        }
        "l23" => {
            let facts = DeviceFacts::of(&*sim(), 0).unwrap();
            assert_eq!((facts.name.as_str(), sim().source().as_str()), ("NVIDIA H200", "software h200"));
        }
        "l25" => {
            for status in [716, 700] {
                let driver = failing(DriverFn::cuModuleLoadDataEx, status);
                let error = MetraleRegistry::load_with(driver, 0, &[("m", STORE)]).unwrap_err();
                assert!(matches!(error, RegistryError::EarlierFault { module: "m", .. }), "{error}");
                let name = metrale_driver_sys::status_name(status).unwrap();
                says(&error.to_string(), &[name, "earlier kernel faulted"]);
            }
            assert_eq!(metrale_driver_sys::status_name(716), Some("CUDA_ERROR_MISALIGNED_ADDRESS"));
        }
        "l26" => {
            return Err(
                "the linker API is not used: modules are loaded with cuModuleLoadDataEx from the start",
            );
        }
        "l28" => {
            let error = CudaHost::acquire(failing(DriverFn::cuStreamCreate, 222), 0).unwrap_err();
            let kept = error.driver_error().unwrap();
            assert_eq!((kept.function, kept.status), (DriverFn::cuStreamCreate, 222));
            let text = error.to_string();
            says(&text, &["cuStreamCreate", "another library"]);
            assert!(!text.contains("compile with an older toolkit"), "{text}");
        }
        "l29" => {
            let highest = |driver_version| IsaVersion::highest_of_driver(driver_version).unwrap();
            // CUDA 9.0, the age of such a driver, and the first that took 6.4.
            assert!(highest(9000) < IsaVersion::new(6, 4));
            assert!(highest(10_010) >= IsaVersion::new(6, 4));
        }
        other => panic!("row {other} has no check"),
    }
    Ok(())
}

#[test]
fn every_row_is_fulfilled_or_does_not_apply() {
    let table = include_str!("data/loader_cases.tsv");
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split('\t').next())
        .collect();
    assert_eq!(rows.len(), 20);
    let not_applying: Vec<_> = rows.iter().filter(|id| check(id).is_err()).copied().collect();
    assert_eq!(not_applying, ["l26"]);
}

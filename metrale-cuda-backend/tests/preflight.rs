// SPDX-License-Identifier: MIT OR Apache-2.0
//! The preflight on a driver: by ordinal, before anything is loaded, with no context.

mod common;

use std::sync::Arc;

use common::{KERNELS, logged, sim};
use metrale_cuda_backend::arch_preflight::arch_preflight;
use metrale_cuda_backend::{
    BackendConfig, CodeTarget, DeviceArch, DriverApi, DriverFn, MetraleCudaBackend, PreflightError,
    PreflightWarning, Remedy, Shortfall,
};
use metrale_driver_sim::{Profile, SimDriver, TraceDriver, on_both_drivers};

/// For a device newer than any tested on.
const NEWER: &[u8] = b".version 8.8\n.target sm_121a\n.address_size 64\n.visible .entry k() { ret; }\n";
/// Loads, and does not say for what it was built.
const SILENT: &[u8] = b".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n";

fn no_context(driver: &dyn DriverApi) {
    let mut current = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!((unsafe { driver.cuCtxGetCurrent(&mut current) }, current), (0, 0));
}

on_both_drivers! {
    a_module_for_another_device_is_refused_before_there_is_a_context(driver) {
        let builder = MetraleCudaBackend::builder()
            .driver(driver.clone())
            .modules(&[("kernels", KERNELS), ("attention", NEWER)]);
        let error = builder.preflight().unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall);
        let refused = error.downcast_ref::<PreflightError>().expect("typed");
        let [mismatch] = &refused.mismatches[..] else { panic!("{refused:?}") };
        assert_eq!((refused.modules, mismatch.module.as_str()), (2, "attention"));
        let target = CodeTarget::Ptx { sm: "sm_121a".parse().unwrap(), isa: Some(metrale_cuda_backend::IsaVersion::new(8, 8)) };
        assert_eq!(mismatch.refused[0].target, target);
        assert_eq!(mismatch.device, DeviceArch::of(&*driver, 0).unwrap());
        let text = error.to_string();
        assert!(text.contains("sm_121a") && text.contains(&mismatch.device.name), "{text}");
        no_context(&*driver);
        assert!(builder.build().unwrap_err().is::<PreflightError>());
        no_context(&*driver);
    }

    what_runs_passes_and_another_layout_is_a_warning(driver) {
        let device = DeviceArch::of(&*driver, 0).unwrap();
        let builder = || {
            MetraleCudaBackend::builder()
                .driver(driver.clone())
                .modules(&[("kernels", KERNELS)])
                .config(BackendConfig::default())
        };
        assert_eq!(builder().preflight().unwrap(), []);
        assert_eq!(builder().laid_out_for(device.sm_count).preflight().unwrap(), []);
        let other = device.sm_count + 1;
        let warnings = builder().laid_out_for(other).preflight().unwrap();
        assert!(matches!(&warnings[..], [PreflightWarning::SmCount { built, .. }] if *built == other), "{warnings:?}");
        let (backend, lines) = logged(|| builder().laid_out_for(other).build().unwrap());
        assert!(lines.iter().any(|line| line.contains("WARN") && line.contains("laid out for")), "{lines:?}");
        drop(backend);
    }
}

/// On the system's driver: refused where there is a device, and without one for that.
#[test]
fn arch_preflight_asks_the_systems_driver_by_ordinal() {
    let error = arch_preflight(0, &[("attention", b".version 8.8\n.target sm_9999a\n.address_size 64\n")])
        .unwrap_err();
    assert!(error.is::<PreflightError>() || error.is::<metrale_cuda_backend::HostError>(), "{error}");
    assert!(arch_preflight(99, &[]).unwrap_err().is::<metrale_cuda_backend::HostError>());
}

#[test]
fn a_preflight_makes_no_context_and_loads_nothing() {
    let trace = Arc::new(TraceDriver::new(sim()));
    MetraleCudaBackend::builder().driver(trace.clone()).modules(&[("attention", NEWER)]).build().unwrap_err();
    let needs_context = [
        DriverFn::cuDevicePrimaryCtxRetain,
        DriverFn::cuCtxSetCurrent,
        DriverFn::cuModuleLoadDataEx,
        DriverFn::cuMemGetInfo_v2,
    ];
    assert!(trace.calls().iter().all(|call| !needs_context.contains(&call.function)));
}

#[test]
fn each_device_is_asked_by_its_ordinal() {
    let driver = Arc::new(SimDriver::builder().device(Profile::h200()).device(Profile::gb10()).build());
    let on = |ordinal| {
        MetraleCudaBackend::builder().driver(driver.clone()).ordinal(ordinal).modules(&[("m", NEWER)])
    };
    let error = on(0).preflight().unwrap_err();
    let refused = error.downcast_ref::<PreflightError>().unwrap();
    assert_eq!(refused.mismatches[0].refused[0].shortfalls, [Shortfall::NewerTarget]);
    assert_eq!(on(1).preflight().unwrap(), []);
    assert!(on(2).preflight().is_err());
    let backend = on(1).build().unwrap();
    assert_eq!(backend.registry().module_names(), ["m"]);
}

#[test]
fn an_image_that_names_no_target_warns_and_is_left_to_the_driver() {
    // A cubin of a generation that no reader here knows: its flags say nothing.
    static UNKNOWN: &[u8] = include_bytes!("data/unknown_abi.cubin");
    let builder = MetraleCudaBackend::builder().driver(sim()).modules(&[("quiet", UNKNOWN), ("m", SILENT)]);
    let warnings = builder.preflight().unwrap();
    assert!(
        matches!(&warnings[..], [PreflightWarning::NoTarget { module, .. }] if module == "quiet"),
        "{warnings:?}"
    );
}

#[test]
fn intermediate_code_is_refused_with_what_to_do_instead() {
    static LTO_ONLY: &[u8] = include_bytes!("data/lto_only.fatbin");
    let builder = MetraleCudaBackend::builder().driver(sim()).modules(&[("lto", LTO_ONLY)]);
    let error = builder.preflight().unwrap_err();
    let [mismatch] = &error.downcast_ref::<PreflightError>().unwrap().mismatches[..] else {
        panic!("{error}")
    };
    assert_eq!(mismatch.refused[0].target, CodeTarget::LtoIr { sm: "sm_90".parse().unwrap() });
    assert_eq!(mismatch.refused[0].shortfalls, [Shortfall::NotLinked]);
    let text = error.to_string();
    for part in
        ["LTO-IR for sm_90: it is not linked", "a driver does not link it", "nvJitLink", "Build it for sm_90"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn what_was_noticed_about_a_module_is_said_once() {
    static GLOBALS: &[u8] =
        b".version 6.0\n.target sm_70\n.address_size 64\n.unheard of;\n.visible .global .u32 g;\n";
    let build =
        || MetraleCudaBackend::builder().driver(sim()).modules(&[("data", GLOBALS), ("m", SILENT)]).build();
    let (backend, lines) = logged(|| build().unwrap());
    drop(backend);
    let said: Vec<_> = lines.iter().filter(|line| line.contains("module \"data\"")).collect();
    assert_eq!(said.len(), 1, "{lines:?}");
    assert!(
        said[0].contains("WARN") && said[0].contains("it has no kernels; line 4: .unheard is unknown"),
        "{said:?}"
    );
    assert!(!lines.iter().any(|line| line.contains("module \"m\"")), "{lines:?}");
}

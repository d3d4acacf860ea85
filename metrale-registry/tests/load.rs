// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loading, looking up, globals and unloading, on the software driver and on a device.

mod common;

use std::sync::{Arc, Mutex};

use common::{Memory, STORE, leak, param, read, synchronize};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, TraceDriver, on_both_drivers};
use metrale_driver_sys::{DriverApi, DriverFn};
use metrale_registry::{
    DeviceFacts, ImageError, ImageKind, ImageNote, LookUp, MetraleRegistry, RegistryError,
};

on_both_drivers! { ptx_loads_however_it_is_written(driver) {
    let text = String::from_utf8(STORE.to_vec()).unwrap();
    let variants: Vec<(&'static str, Vec<u8>)> = vec![
        ("no_nul", STORE.to_vec()),
        ("nul", [STORE, b"\0"].concat()),
        ("nuls", [STORE, b"\0\0\0\0"].concat()),
        ("byte_order_mark", [b"\xef\xbb\xbf", STORE].concat()),
        ("mark_and_nul", [b"\xef\xbb\xbf", STORE, b"\0"].concat()),
        ("crlf", text.replace('\n', "\r\n").into_bytes()),
        ("comments", format!("// made by hand\n/* twice */\n\n{text}// end").into_bytes()),
        ("after_nul", [STORE, b"\0.visible .entry lost() { ret; }"].concat()),
    ];
    let modules: Vec<_> = variants.into_iter().map(|(name, bytes)| (name, leak(bytes))).collect();
    let registry = MetraleRegistry::load_with(driver, 0, &modules).unwrap();

    let mut names: Vec<_> = modules.iter().map(|module| module.0).collect();
    names.sort_unstable();
    assert_eq!(registry.module_names(), names);
    for (name, bytes) in &modules {
        assert!(registry.has_module(name));
        assert_ne!(registry.function(name, "store").unwrap(), 0, "{name}");
        let infos = registry.modules();
        let info = infos.iter().find(|info| info.name == *name).unwrap();
        assert_eq!((info.kind, info.target.as_deref()), (ImageKind::Ptx, Some("sm_70")), "{name}");
        assert_eq!(info.image_bytes, bytes.len(), "{name}");
        assert_eq!(info.kernels, ["store", "idle"], "{name}");
        assert_eq!(info.globals, ["steps", "table"], "{name}");
        let notes: &[ImageNote] = match *name {
            "byte_order_mark" | "mark_and_nul" => &[ImageNote::ByteOrderMark],
            "after_nul" => &[ImageNote::AfterNul { bytes: 31, kernels: vec!["lost".into()] }],
            _ => &[],
        };
        assert_eq!(info.notes, notes, "{name}");
    }
    assert!(registry.function("after_nul", "lost").unwrap_err().is_not_found());
    assert!(!registry.has_module("none"));
    registry.release().unwrap();
}}

/// What stands behind a mark and is no text: the driver skips the mark, and an ELF that it then reads unchecked can end
/// the process.
#[test]
fn binary_data_behind_a_byte_order_mark_is_refused_before_the_driver_is_asked() {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let mut elf = vec![0_u8; 64];
    elf[..14].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08.func");
    elf[18..20].copy_from_slice(&190_u16.to_le_bytes());
    elf[40..48].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    elf[58..62].copy_from_slice(&[64, 0, 10, 0]);
    let fatbin = b"\x50\xed\x55\xba.func\0\0\x01\0\0\0xx".to_vec();
    let noise = b"\x02\n.visible .entry k".to_vec();
    for (binary, marks) in [(&elf, 1), (&elf, 2), (&fatbin, 1), (&fatbin, 3), (&noise, 1)] {
        let trace = Arc::new(TraceDriver::new(Arc::new(SimDriver::new(Profile::h200()))));
        let image = leak([MARK.repeat(marks), binary.clone()].concat());
        let error = MetraleRegistry::load_with(trace.clone(), 0, &[("m", image)]).unwrap_err();
        let RegistryError::Image { module: "m", reason } = &error else { panic!("{error:?}") };
        assert_eq!(*reason, ImageError::NotAnImage(ImageKind::MarkedBinary));
        assert!(error.to_string().contains("behind a UTF-8 byte order mark"), "{error}");
        let loads = [DriverFn::cuModuleLoadData, DriverFn::cuModuleLoadDataEx];
        assert!(loads.iter().all(|&load| trace.count(load) == 0), "{:?}", trace.calls());
    }
}

#[test]
fn an_observer_hears_of_every_look_up_that_was_answered() {
    let faulty = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(Profile::h200()))));
    let registry = MetraleRegistry::load_with(faulty.clone(), 0, &[("m", STORE)]).unwrap();
    registry.function("m", "store").unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let writer = heard.clone();
    let observer = move |look_up: &LookUp<'_>| {
        let name = format!("{}::{}", look_up.module, look_up.function);
        writer.lock().unwrap().push((name, look_up.found, look_up.is_optional, look_up.site.line()));
    };
    assert!(registry.observe_look_ups(Box::new(observer)));
    assert!(!registry.observe_look_ups(Box::new(|_| panic!("there is one already"))));
    let line = line!() + 1;
    let store = registry.function("m", "store").unwrap();
    assert_eq!(registry.optional_function("m", "store").unwrap(), Some(store));
    assert!(registry.function("m", "stor").is_err());
    assert_eq!(registry.optional_function("n", "store").unwrap(), None);
    // A driver that failed has not said that the kernel is absent.
    faulty.fail_every(DriverFn::cuModuleGetFunction, 999);
    assert!(registry.optional_function("m", "idle").is_err());
    let expected = [
        ("m::store", true, false, 0),
        ("m::store", true, true, 1),
        ("m::stor", false, false, 2),
        ("n::store", false, true, 3),
    ];
    let expected: Vec<_> =
        expected.iter().map(|row| (row.0.to_owned(), row.1, row.2, line + row.3)).collect();
    assert_eq!(*heard.lock().unwrap(), expected);
}

on_both_drivers! { a_look_up_asks_the_driver_once(driver) {
    let trace = Arc::new(TraceDriver::new(driver));
    let registry = MetraleRegistry::load_with(trace.clone(), 0, &[("m", STORE)]).unwrap();
    let asked = || trace.count(DriverFn::cuModuleGetFunction);
    assert_eq!(asked(), 0);
    let store = registry.function("m", "store").unwrap();
    for _ in 0..100 {
        assert_eq!(registry.function("m", "store").unwrap(), store);
    }
    assert_eq!(asked(), 1);
    assert_ne!(registry.function("m", "idle").unwrap(), store);
    assert_eq!(asked(), 2);
    // What is not there is no entry of the cache: it is asked for again.
    for count in 3..5 {
        assert!(registry.function("m", "stor").unwrap_err().is_not_found());
        assert_eq!(asked(), count);
    }
    assert!(registry.function("n", "store").is_err());
    assert_eq!(asked(), 4, "a module that is not loaded is not the driver's business");
}}

on_both_drivers! { globals_have_an_address_a_size_and_their_first_value(driver) {
    let registry = MetraleRegistry::load_with(driver.clone(), 0, &[("m", STORE)]).unwrap();
    let (steps, bytes) = registry.device_symbol("m", "steps").unwrap();
    assert_eq!(bytes, 4);
    assert_eq!(read(&driver, steps, 1), [7]);
    let (table, bytes) = registry.device_symbol("m", "table").unwrap();
    assert_eq!((bytes, table % 8), (24, 0));
    assert_eq!(read(&driver, table, 6), [0; 6]);

    let error = registry.device_symbol("m", "step").unwrap_err();
    assert_eq!(error.to_string(), "module \"m\" has no global \"step\"; did you mean \"steps\"?");
    assert!(error.is_not_found());
    let error = registry.device_symbol("m", "store").unwrap_err();
    assert!(error.is_not_found(), "a kernel is no global: {error}");
    assert!(matches!(error, RegistryError::SymbolIsKernel { module: "m", .. }), "{error:?}");
    assert!(error.to_string().contains("\"store\" in module \"m\" is a kernel, not a global"), "{error}");
}}

on_both_drivers! { names_that_are_not_there_bring_the_nearest(driver) {
    let registry = MetraleRegistry::load_with(driver, 0, &[("layers", STORE), ("head", STORE)]).unwrap();
    let text = |module: &str, function: &str| registry.function(module, function).unwrap_err().to_string();
    assert_eq!(text("layer", "store"), "no module is named \"layer\"; did you mean \"layers\"?");
    assert_eq!(text("x", "store"), "no module is named \"x\" (2 loaded, none of a similar name)");
    assert_eq!(text("head", "Store"), "module \"head\" has no function \"Store\"; did you mean \"store\"?");
    assert_eq!(
        text("head", "attention"),
        "module \"head\" has no function \"attention\" (2 known, none of a similar name)"
    );
    assert!(text("head", "store\0x").contains("has a NUL in it"));
}}

on_both_drivers! { a_module_for_no_device_says_what_and_why(driver) {
    static FOR_NONE: &[u8] = b".version 6.0\n.target sm_999\n.address_size 64\n.visible .entry k() { ret; }\n";
    let error = MetraleRegistry::load_with(driver, 0, &[("good", STORE), ("for_none", FOR_NONE)]).unwrap_err();
    let RegistryError::ModuleLoad(error) = error else { panic!("{error}") };
    assert_eq!((error.module, error.kind), ("for_none", ImageKind::Ptx));
    assert_eq!(error.target.as_deref(), Some("sm_999"));
    assert_eq!(error.error.function, DriverFn::cuModuleLoadDataEx);
    assert_eq!(error.error.status, 218, "as measured for a target that ptxas does not know");
    assert!(error.log.contains("sm_999"), "the compiler's own words: {:?}", error.log);
    let text = error.to_string();
    assert!(text.starts_with("module \"for_none\" (PTX text 6.0 for sm_999, 74 bytes) does not load on "), "{text}");
    assert!(text.contains("\nThe driver's log:\n  "), "{text}");
}}

on_both_drivers! { a_mistake_comes_with_the_drivers_words_and_ours(driver) {
    static TWICE: &[u8] = b".version 6.0\n.target sm_70\n.address_size 64\n\
        .visible .entry k() { ret; }\n.visible .entry k() { ret; }\n";
    let error = MetraleRegistry::load_with(driver, 0, &[("twice", TWICE)]).unwrap_err();
    let RegistryError::ModuleLoad(error) = error else { panic!("{error}") };
    assert_eq!(error.error.status, 218, "as measured for a duplicate kernel");
    assert!(error.log.contains('k'), "{:?}", error.log);
    assert_eq!(error.flaws, ["line 5: k is defined a second time, first on line 4"]);
}}

on_both_drivers! { what_is_no_image_never_reaches_the_driver(driver) {
    let trace = Arc::new(TraceDriver::new(driver));
    let mut fatbin = 0xba55_ed50_u32.to_le_bytes().to_vec();
    fatbin.extend_from_slice(&[1, 0, 16, 0]);
    fatbin.extend_from_slice(&(1_u64 << 40).to_le_bytes());
    let bad: [(&'static [u8], &str); 5] = [
        (b"<html><body>404</body></html>", "HTML"),
        (b"kernels/attention.ptx", "path"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "gzip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git LFS"),
        (leak(fatbin), "never return"),
    ];
    for (bytes, word) in bad {
        let error = MetraleRegistry::load_with(trace.clone(), 0, &[("good", STORE), ("bad", bytes)]).unwrap_err();
        assert!(matches!(error, RegistryError::Image { module: "bad", .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let error = MetraleRegistry::load_with(trace.clone(), 0, &[("m", STORE), ("m", STORE)]).unwrap_err();
    assert!(matches!(error, RegistryError::DuplicateModule { module: "m" }), "{error}");
    assert_eq!(trace.count(DriverFn::cuModuleLoadDataEx), 0);
}}

#[test]
fn an_image_error_keeps_its_cause() {
    let driver = Arc::new(SimDriver::new(Profile::h200()));
    let error = MetraleRegistry::load_with(driver, 0, &[("m", b"\0\0")]).unwrap_err();
    assert!(matches!(error, RegistryError::Image { reason: ImageError::NotAnImage(ImageKind::Empty), .. }));
    assert_eq!(error.to_string(), "module \"m\": this is empty");
}

on_both_drivers! { an_empty_registry_is_a_host_and_a_stream(driver) {
    let registry = MetraleRegistry::load_with(driver, 0, &[]).unwrap();
    assert!(registry.modules().is_empty());
    assert_ne!(registry.raw_stream(), 0);
    registry.release().unwrap();
}}

on_both_drivers! { modules_are_loaded_afresh_at_each_call(driver) {
    let first = MetraleRegistry::load_with(driver.clone(), 0, &[("m", STORE)]).unwrap();
    let second = MetraleRegistry::load_with(driver.clone(), 0, &[("m", STORE)]).unwrap();
    let (a, _) = first.device_symbol("m", "steps").unwrap();
    let (b, _) = second.device_symbol("m", "steps").unwrap();
    assert_ne!(a, b, "each has its own globals");
    drop(first);
    assert_eq!(read(&driver, b, 1), [7], "and keeps them when the other goes");
}}

on_both_drivers! { threads_look_up_concurrently_without_binding(driver) {
    let registry = MetraleRegistry::load_with(driver, 0, &[("m", STORE)]).unwrap();
    let handles: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| {
                let (address, _) = registry.device_symbol("m", "steps").unwrap();
                (registry.function("m", "store").unwrap(), registry.function("m", "idle").unwrap(), address)
            }))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(handles.iter().all(|found| *found == handles[0]), "{handles:x?}");
}}

on_both_drivers! { a_look_up_leaves_the_threads_own_context_alone(driver) {
    let registry = MetraleRegistry::load_with(driver.clone(), 0, &[("m", STORE)]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            registry.function("m", "store").unwrap();
            let mut current = 1;
            // SAFETY: the result pointer is a local.
            common::ok(unsafe { driver.cuCtxGetCurrent(&mut current) });
            assert_eq!(current, 0, "the thread had no context, and has none");
            registry.host().bind_to_thread().unwrap();
            // SAFETY: the result pointer is a local.
            common::ok(unsafe { driver.cuCtxGetCurrent(&mut current) });
            assert_eq!(current, registry.host().context());
        });
    });
}}

/// A software device that knows what `store` does.
fn storing() -> SimDriver {
    let driver = SimDriver::new(Profile::h200());
    driver.register_kernel("store", |launch| {
        let (out, value) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?);
        launch.store_all(out, &[value])
    });
    driver
}

on_both_drivers! { a_kernel_stores_its_value(driver; sim: storing()) {
    let registry = MetraleRegistry::load_with(driver.clone(), 0, &[("m", STORE)]).unwrap();
    let store = registry.function("m", "store").unwrap();
    let memory = Memory::holding(&driver, &[0]);
    let (mut out, mut value) = (memory.address, 0xC0FF_EE00_u32);
    let params = &mut [param(&mut out), param(&mut value)];
    let stream = registry.raw_stream();
    // SAFETY: the parameters are the kernel's two, and the memory lives until the stream is synchronized.
    unsafe { registry.launch_on_stream(store, [1, 1, 1], [1, 1, 1], 0, stream, params) }.unwrap();
    synchronize(&driver, stream);
    assert_eq!(memory.read(1), [0xC0FF_EE00]);
}}

on_both_drivers! { a_cubin_loads_on_its_architecture_alone(driver) {
    // One kernel `k`, assembled for sm_90.
    static CUBIN: &[u8] = include_bytes!("data/k_sm_90.cubin");
    match MetraleRegistry::load_with(driver.clone(), 0, &[("m", CUBIN)]) {
        Ok(registry) => {
            assert_eq!(registry.host().facts().compute_capability.major, 9);
            assert_ne!(registry.function("m", "k").unwrap(), 0);
            let info = registry.modules().remove(0);
            assert_eq!((info.kind, info.target.as_deref(), info.isa), (ImageKind::Cubin, Some("sm_90"), None));
            assert_eq!(info.kernels, ["k"]);
        }
        Err(RegistryError::ModuleLoad(error)) => {
            assert_ne!(DeviceFacts::of(&*driver, 0).unwrap().compute_capability.major, 9, "{error}");
            assert_eq!((error.error.status, error.target.as_deref()), (209, Some("sm_90")));
        }
        Err(error) => panic!("{error}"),
    }
}}

#[test]
fn a_cubin_for_another_architecture_says_both() {
    static CUBIN: &[u8] = include_bytes!("data/k_sm_90.cubin");
    let driver = Arc::new(SimDriver::new(Profile::rtx()));
    let text = MetraleRegistry::load_with(driver, 0, &[("m", CUBIN)]).unwrap_err().to_string();
    assert!(text.starts_with("module \"m\" (a cubin for sm_90, "), "{text}");
    assert!(
        text.contains("does not load on NVIDIA GeForce RTX 4090 (8.9): ") && text.contains("(209)"),
        "{text}"
    );
}

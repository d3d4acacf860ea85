// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launching: results, the opt-in to large shared memory, and refusals that say what was too much.

mod common;

use std::ffi::c_void;
use std::sync::Arc;

use common::{Memory, SCALE, STORE, param, synchronize};
use metrale_driver_sim::{MissingKernel, Profile, SimDriver, TraceDriver, on_both_drivers};
use metrale_driver_sys::{CUfunction, DriverApi, DriverFn, function_attribute};
use metrale_registry::{LaunchExcess, MetraleRegistry, RegistryError};

/// A software device on which every kernel runs and does nothing.
fn idle() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(Profile::h200().with_missing_kernel(MissingKernel::Ignore)))
}

fn launch(registry: &MetraleRegistry, function: CUfunction, shared_bytes: u32) -> Result<(), RegistryError> {
    let (mut out, mut bytes) = (0_u64, shared_bytes);
    let params: &mut [*mut c_void] = &mut [param(&mut out), param(&mut bytes)];
    let stream = registry.raw_stream();
    // SAFETY: the kernels take an address and a word, and on this device they do nothing with them.
    unsafe { registry.launch_on_stream(function, [1, 1, 1], [1, 1, 1], shared_bytes, stream, params) }
}

#[test]
fn large_shared_memory_is_opted_into_once_a_function_and_never_lowered() {
    let trace = Arc::new(TraceDriver::new(idle()));
    let registry = MetraleRegistry::load_with(trace.clone(), 0, &[("m", SCALE)]).unwrap();
    let touch = registry.function("m", "touch_shared").unwrap();
    let set = || trace.count(DriverFn::cuFuncSetAttribute);

    launch(&registry, touch, 48 << 10).unwrap();
    assert_eq!(set(), 0, "48 KiB need no opting in");
    for _ in 0..10 {
        launch(&registry, touch, 64 << 10).unwrap();
    }
    assert_eq!(set(), 1);
    launch(&registry, touch, 200 << 10).unwrap();
    assert_eq!(set(), 2, "more needs one more");
    launch(&registry, touch, 64 << 10).unwrap();
    launch(&registry, touch, 200 << 10).unwrap();
    assert_eq!(set(), 2, "less is allowed already");

    let scale = registry.function("m", "touch_shared_beside_own").unwrap();
    launch(&registry, scale, 64 << 10).unwrap();
    assert_eq!(set(), 3, "each function has its own");
}

#[test]
fn an_allowance_that_somebody_else_gave_is_not_lowered() {
    let driver = idle();
    let registry = MetraleRegistry::load_with(driver.clone(), 0, &[("m", SCALE)]).unwrap();
    let touch = registry.function("m", "touch_shared").unwrap();
    let which = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: no memory is passed.
    common::ok(unsafe { driver.cuFuncSetAttribute(touch, which, 200 << 10) });
    launch(&registry, touch, 64 << 10).unwrap();
    let mut allowed = 0;
    // SAFETY: the result pointer is a local.
    common::ok(unsafe { driver.cuFuncGetAttribute(&mut allowed, which, touch) });
    assert_eq!(allowed, 200 << 10);
}

#[test]
fn what_a_kernel_declares_itself_counts_towards_the_48_kib() {
    let trace = Arc::new(TraceDriver::new(idle()));
    let registry = MetraleRegistry::load_with(trace.clone(), 0, &[("m", SCALE)]).unwrap();
    let beside_own = registry.function("m", "touch_shared_beside_own").unwrap();
    let set = || trace.count(DriverFn::cuFuncSetAttribute);
    launch(&registry, beside_own, 40 << 10).unwrap();
    assert_eq!(set(), 0, "8 KiB of its own and 40 KiB are 48 KiB");
    for _ in 0..3 {
        launch(&registry, beside_own, 44 << 10).unwrap();
    }
    assert_eq!(set(), 1);
}

#[test]
fn threads_that_opt_in_concurrently_end_with_the_largest() {
    let driver = idle();
    let registry = MetraleRegistry::load_with(driver.clone(), 0, &[("m", SCALE)]).unwrap();
    let touch = registry.function("m", "touch_shared").unwrap();
    std::thread::scope(|scope| {
        for kib in [64, 96, 128, 160, 192, 224] {
            let registry = &registry;
            scope.spawn(move || {
                registry.host().bind_to_thread().unwrap();
                for _ in 0..50 {
                    launch(registry, touch, kib << 10).unwrap();
                }
            });
        }
    });
    let mut allowed = 0;
    // SAFETY: the result pointer is a local.
    common::ok(unsafe {
        driver.cuFuncGetAttribute(&mut allowed, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, touch)
    });
    assert_eq!(allowed, 224 << 10);
}

#[test]
fn a_refused_launch_says_what_was_too_much() {
    let registry = MetraleRegistry::load_with(idle(), 0, &[("m", STORE)]).unwrap();
    let store = registry.function("m", "store").unwrap();
    let refused = |grid, block, shared| {
        let (mut out, mut value) = (0_u64, 0_u32);
        let params = &mut [param(&mut out), param(&mut value)];
        // SAFETY: the kernel takes an address and a word, and on this device it does nothing with them.
        let result =
            unsafe { registry.launch_on_stream(store, grid, block, shared, registry.raw_stream(), params) };
        match result {
            Err(RegistryError::Launch(error)) => *error,
            other => panic!("{other:?}"),
        }
    };
    let error = refused([0, 1, 1], [1, 1, 1], 0);
    assert_eq!((error.excess, error.error.status), (Some(LaunchExcess::ZeroDimension), 1));
    assert_eq!(error.name, Some(("m", "store".to_owned())));
    let text = error.to_string();
    assert!(
        text.starts_with("launch of m::store (grid 0x1x1, block 1x1x1, 0 bytes of dynamic shared memory): "),
        "{text}"
    );
    assert!(text.ends_with(": a dimension is 0"), "{text}");

    let error = refused([1, 1, 1], [2048, 1, 1], 0);
    assert_eq!(error.excess, Some(LaunchExcess::Threads { asked: 2048, limit: 1024 }));
    assert_eq!(error.error.function, DriverFn::cuLaunchKernel);

    let error = refused([1, 1, 1], [1, 1, 1], 1 << 20);
    let limit = 227 << 10;
    assert_eq!(error.excess, Some(LaunchExcess::SharedBytes { dynamic: 1 << 20, fixed: 0, limit }));
    assert_eq!(error.error.function, DriverFn::cuFuncSetAttribute);
    assert_eq!(refused([1, 1, 1], [1, 1, 1], u32::MAX).error.status, 1);
}

#[test]
fn a_thread_without_the_context_is_told_to_bind() {
    let registry = MetraleRegistry::load_with(idle(), 0, &[("m", STORE)]).unwrap();
    let idle = registry.function("m", "idle").unwrap();
    let stream = registry.raw_stream();
    let launch = || {
        // SAFETY: the kernel takes no parameter and does nothing.
        unsafe { registry.launch_on_stream(idle, [1, 1, 1], [1, 1, 1], 0, stream, &mut []) }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let text = launch().unwrap_err().to_string();
            assert!(text.contains("bind_to_thread"), "{text}");
            registry.host().bind_to_thread().unwrap();
            launch().unwrap();
        });
    });
}

/// A software device that knows what the compiled kernels do.
fn computing() -> SimDriver {
    let driver = SimDriver::new(Profile::h200());
    driver.register_kernel("scale", |launch| {
        let (source, target) = (launch.parameter::<u64>(0)?, launch.parameter::<u64>(1)?);
        let (factor, count) = (launch.parameter::<f32>(2)?, launch.parameter::<u32>(3)?);
        let values: Vec<f32> = launch.load_all(source, count as usize)?;
        launch.store_all(target, &values.iter().map(|value| value * factor + 0.5).collect::<Vec<_>>())
    });
    for (name, plus) in [("touch_shared", 0), ("touch_shared_beside_own", 1)] {
        driver.register_kernel(name, move |launch| {
            let (out, bytes) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?);
            launch.store_all(out, &[bytes + plus])
        });
    }
    driver
}

on_both_drivers! { compiled_kernels_give_their_results(driver; sim: computing()) {
    let registry = MetraleRegistry::load_with(driver.clone(), 0, &[("m", SCALE)]).unwrap();
    let stream = registry.raw_stream();

    let input: Vec<u32> = (0..1000_u16).map(|i| f32::from(i).to_bits()).collect();
    let (source, target) = (Memory::holding(&driver, &input), Memory::of(&driver, 4000));
    // The copy went over the legacy stream, which the host's stream does not wait for.
    synchronize(&driver, 0);
    let (mut a, mut b, mut factor, mut count) = (source.address, target.address, 2.0_f32, 1000_u32);
    let params = &mut [param(&mut a), param(&mut b), param(&mut factor), param(&mut count)];
    let scale = registry.function("m", "scale").unwrap();
    // SAFETY: the parameters are the kernel's four; both arrays have `count` elements and live until the end.
    unsafe { registry.launch_on_stream(scale, [4, 1, 1], [256, 1, 1], 0, stream, params) }.unwrap();
    synchronize(&driver, stream);
    let expected: Vec<u32> = (0..1000_u16).map(|i| (f32::from(i) * 2.0 + 0.5).to_bits()).collect();
    assert_eq!(target.read(1000), expected);

    // With as much shared memory as the device gives, and where the kernel's own takes it above 48 KiB.
    let most = registry.host().facts().shared_bytes_per_block_optin;
    let own = 8 << 10;
    for (kernel, sizes, plus) in [
        ("touch_shared", [48 << 10, most, 64 << 10], 0),
        ("touch_shared_beside_own", [44 << 10, most - own, 64 << 10], 1),
    ] {
        let function = registry.function("m", kernel).unwrap();
        for size in sizes {
            let (mut out, mut bytes) = (target.address, size);
            let params = &mut [param(&mut out), param(&mut bytes)];
            // SAFETY: the parameters are the kernel's two; it writes one word, which lives until the end.
            unsafe { registry.launch_on_stream(function, [1, 1, 1], [1, 1, 1], size, stream, params) }.unwrap();
            synchronize(&driver, stream);
            assert_eq!(target.read(1), [size + plus], "{kernel} with {size} bytes");
        }
    }
}}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels: look-up, typed and untyped launches, what a refused launch and a failing kernel say.

mod common;

use std::ffi::c_void;
use std::sync::Arc;

use common::{KERNELS, address, sim_with_kernels};
use metrale_cuda_backend::{
    BackendConfig, BadArgument, CUtensorMap, ContextLost, DriverApi, DriverFn, FreeError, GpuBackend,
    KernelFault, KernelLaunch, LEGACY_STREAM, LaunchError, LaunchExcess, MetraleCudaBackend, RegistryError,
    Remedy,
};
use metrale_driver_sim::driver_sys::{KNOWN_STATUSES, is_sticky};
use metrale_driver_sim::{FaultDriver, SimDriver, on_both_drivers};

fn backend(driver: Arc<dyn DriverApi>) -> MetraleCudaBackend {
    configured(driver, BackendConfig::default())
}

fn configured(driver: Arc<dyn DriverApi>, config: BackendConfig) -> MetraleCudaBackend {
    MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("kernels", KERNELS)])
        .config(config)
        .build()
        .unwrap()
}

fn words(backend: &MetraleCudaBackend, at: metrale_cuda_backend::DevicePtr, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * 8];
    backend.copy_d2h(at, &mut bytes).unwrap();
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Counts of 32-bit arguments around the most whose pointers a launch keeps on its stack, the address beside them counted.
const MANY: [usize; 4] = [14, 15, 16, 40];

/// Kernels that take an address and as many words, and store them there.
fn many_words() -> &'static [u8] {
    let mut text = String::from(".version 6.0\n.target sm_70\n.address_size 64\n");
    for count in MANY {
        text.push_str(&format!(".visible .entry words{count}(.param .u64 at"));
        (0..count).for_each(|n| text.push_str(&format!(", .param .u32 p{n}")));
        text.push_str(") {\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n");
        text.push_str("ld.param.u64 %rd1, [at];\ncvta.to.global.u64 %rd2, %rd1;\n");
        for n in 0..count {
            text.push_str(&format!("ld.param.u32 %r1, [p{n}];\nst.global.u32 [%rd2+{}], %r1;\n", 4 * n));
        }
        text.push_str("ret;\n}\n");
    }
    Box::leak(text.into_bytes().into_boxed_slice())
}

fn sim_with_many_words() -> Arc<SimDriver> {
    let driver = common::sim();
    for count in MANY {
        driver.register_kernel(format!("words{count}"), move |launch| {
            let at = launch.parameter::<u64>(0)?;
            for n in 0..count {
                let word = launch.parameter::<u32>(n + 1)?;
                launch.store(at + 4 * n as u64, word)?;
            }
            Ok(())
        });
    }
    driver
}

on_both_drivers! {
    any_number_of_arguments_is_passed(driver; sim: sim_with_many_words()) {
        let builder = MetraleCudaBackend::builder().driver(driver).config(BackendConfig::default());
        let backend = builder.modules(&[("many", many_words())]).build().unwrap();
        let out = backend.alloc(256).unwrap();
        for count in MANY {
            let mut launch = KernelLaunch::new(backend.kernel("many", &format!("words{count}")).unwrap()).ptr(out);
            for n in 0..count as u32 {
                launch = launch.u32(n * 0x0101 + 7);
            }
            backend.memset(out, 0xEE, 256).unwrap();
            // SAFETY: the arguments are the kernel's parameters; it writes as many words to `out`.
            unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
            let mut bytes = [0; 256];
            backend.copy_d2h(out, &mut bytes).unwrap();
            for n in 0..64 {
                let word = u32::from_le_bytes(bytes[4 * n..4 * n + 4].try_into().unwrap());
                let expected = if n < count { n as u32 * 0x0101 + 7 } else { 0xEEEE_EEEE };
                assert_eq!(word, expected, "word {n} of {count}");
            }
        }
        backend.free(out).unwrap();
    }

    a_typed_launch_passes_each_type_as_it_is(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let out = backend.alloc(64).unwrap();
        let kernel = backend.kernel("kernels", "arguments").unwrap();
        let (a, b, c, d) = (0xFEDC_BA98_u32, -7_i32, 0.1_f32, u64::MAX - 1);
        let mut launch = KernelLaunch::new(kernel).ptr(out).u32(a).i32(b).f32(c).u64(d);
        assert_eq!(launch.argument_count(), 5);
        for stream in [backend.stream(), LEGACY_STREAM] {
            backend.memset(out, 0, 64).unwrap();
            // SAFETY: the arguments are the kernel's parameters; it writes four words to `out`.
            unsafe { launch.on_stream(&backend, stream) }.unwrap();
            assert_eq!(words(&backend, out, 4), [u64::from(a), b as i64 as u64, u64::from(c.to_bits()), d]);
        }
        backend.free(out).unwrap();
    }

    a_tensor_map_is_passed_by_value(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let out = backend.alloc(128).unwrap();
        let kernel = backend.kernel("kernels", "map_words").unwrap();
        let mut map = CUtensorMap::default();
        for (index, word) in map.opaque.iter_mut().enumerate() {
            *word = 0x0101_0101_0101_0101 * (index as u64 + 1);
        }
        let mut launch = KernelLaunch::new(kernel).block([32, 1, 1]).ptr(out).tensor_map(map);
        // SAFETY: the arguments are the kernel's parameters; it writes sixteen words to `out`.
        unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
        assert_eq!(words(&backend, out, 16), map.opaque);
        backend.free(out).unwrap();
    }

    an_untyped_launch_goes_through_the_trait(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let face: &dyn GpuBackend = &backend;
        let n = 1000_u32;
        let out = face.alloc(4 * n as usize).unwrap();
        let kernel = face.kernel("kernels", "fill").unwrap();
        let (mut ptr, mut value, mut count) = (out.addr(), 0x0A0B_0C0D_u32, n);
        let mut params: [*mut c_void; 3] =
            [(&raw mut ptr).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
        // SAFETY: the three values are the kernel's parameters and live over the call; it writes `n` words to `out`.
        unsafe { face.launch(kernel, [8, 1, 1], [128, 1, 1], 0, face.stream(), &mut params) }.unwrap();
        let mut back = vec![0; 4 * n as usize];
        face.copy_d2h(out, &mut back).unwrap();
        assert!(back.chunks_exact(4).all(|word| word == value.to_le_bytes()));
        face.free(out).unwrap();
    }

    a_global_has_its_address_and_size(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let (at, bytes) = backend.device_symbol("kernels", "steps").unwrap();
        assert_eq!(bytes, 4);
        let mut back = [0; 4];
        backend.copy_d2h(at, &mut back).unwrap();
        assert_eq!(u32::from_le_bytes(back), 7);
        assert!(backend.device_symbol("kernels", "stops").unwrap_err().to_string().contains("steps"));
        assert_eq!(backend.live_bytes(), 0, "it is the module's");
        // What an address belongs to is known by the ledger.
        if cfg!(feature = "ledger") {
            for at in [at, at.offset(3)] {
                let error = backend.free(at).unwrap_err().downcast::<FreeError>().unwrap();
                let text = error.to_string();
                assert!(text.ends_with("it lies in the global \"steps\" of module \"kernels\", and is freed when that is unloaded"), "{text}");
            }
            let nowhere = backend.free(address(0x10)).unwrap_err().downcast::<FreeError>().unwrap();
            assert_eq!(nowhere.place, None);
        }
    }

    a_kernel_that_is_not_there_is_an_error_or_nothing(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let error = backend.kernel("kernels", "fil").unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall);
        assert!(error.is::<RegistryError>() && error.to_string().contains("\"fill\""), "{error}");
        assert!(backend.kernel("kernel", "fill").unwrap_err().to_string().contains("\"kernels\""));
        assert_eq!(backend.optional_kernel("kernels", "fil").unwrap(), None);
        assert_eq!(backend.optional_kernel("nowhere", "fill").unwrap(), None);
        let kernel = backend.kernel("kernels", "fill").unwrap();
        assert_eq!(backend.optional_kernel("kernels", "fill").unwrap(), Some(kernel));
    }

    arguments_that_are_not_the_parameters_are_refused(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let kernel = backend.kernel("kernels", "fill").unwrap();
        let launch = || KernelLaunch::new(kernel).ptr(metrale_cuda_backend::DevicePtr::NULL);
        for mut launch in [launch(), launch().u32(1), launch().u32(1).u64(1), launch().u32(1).u32(1).u32(1)] {
            // SAFETY: nothing is launched, which is what is tested.
            let error = unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap_err();
            let text = error.downcast::<BadArgument>().expect("typed").what;
            assert!(text.contains("kernels::fill: it takes 3 parameters (8, 4, 4 bytes)"), "{text}");
        }
        // SAFETY: as above.
        let error = unsafe { backend.launch(kernel, [1; 3], [1; 3], 0, backend.stream(), &mut []) }.unwrap_err();
        assert!(error.is::<BadArgument>());
        backend.synchronize_stream(backend.stream()).unwrap();
    }

    a_refused_launch_says_what_was_asked_too_much(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let kernel = backend.kernel("kernels", "fill").unwrap();
        let out = backend.alloc(4096).unwrap();
        let launch = |grid, block, shared| {
            let mut launch =
                KernelLaunch::new(kernel).grid(grid).block(block).shared_bytes(shared).ptr(out).u32(1).u32(4);
            // SAFETY: the arguments are the kernel's parameters; it writes four words to `out`.
            unsafe { launch.on_stream(&backend, backend.stream()) }
        };
        launch([1, 1, 1], [32, 1, 1], 100 << 10).unwrap();
        for (error, text) in [
            (launch([1, 1, 1], [2048, 1, 1], 0).unwrap_err(), "2048 threads"),
            (launch([0, 1, 1], [1, 1, 1], 0).unwrap_err(), "a dimension is 0"),
            (launch([3, 2, 1], [1, 1, 1], 1 << 20).unwrap_err(), "1048576 bytes"),
            (launch([1, 1, 1], [1, 1, 65], 0).unwrap_err(), "65 threads a block along z, where the device gives 64"),
            (launch([1, 65_536, 1], [1, 1, 1], 0).unwrap_err(), "65536 blocks along y, where the device gives 65535"),
        ] {
            assert_eq!(error.remedy(), Remedy::FixCall);
            let refused = error.downcast_ref::<LaunchError>().expect("typed");
            assert_eq!(refused.name, Some(("kernels", "fill".to_owned())));
            assert!(error.to_string().contains(text), "{error}");
        }
        let error = launch([3, 2, 1], [1025, 1, 1], 7).unwrap_err().downcast::<LaunchError>().unwrap();
        assert_eq!((error.grid, error.block, error.shared_bytes), ([3, 2, 1], [1025, 1, 1], 7));
        assert_eq!(error.excess, Some(LaunchExcess::Threads { asked: 1025, limit: 1024 }));
        backend.synchronize_stream(backend.stream()).unwrap();
        backend.free(out).unwrap();
    }

    a_fault_is_reported_at_its_launch_when_asked_for(driver; sim: sim_with_kernels()) {
        let mut config = BackendConfig::default();
        config.debug_sync_kernels = true;
        let backend = configured(driver, config);
        let out = backend.alloc(64).unwrap();
        let fill = backend.kernel("kernels", "fill").unwrap();
        let stray = backend.kernel("kernels", "stray").unwrap();
        // SAFETY: the arguments are the kernel's parameters; it writes four words to `out`.
        unsafe { KernelLaunch::new(fill).block([4, 1, 1]).ptr(out).u32(1).u32(4).on_stream(&backend, LEGACY_STREAM) }.unwrap();
        let mut launch = KernelLaunch::new(stray).u64(0x10_0000);
        // SAFETY: none of the kernel's writes reaches memory: the address is mapped nowhere, which is what is tested.
        let error = unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap_err();
        assert_eq!(error.remedy(), Remedy::Relaunch);
        let fault = error.downcast_ref::<KernelFault>().expect("typed");
        assert_eq!((&*fault.kernel, fault.driver.status), ("kernels::stray", 700));
        // From here on everything says so, and the drop is quiet about each allocation.
        assert_eq!(backend.alloc(64).unwrap_err().remedy(), Remedy::Relaunch);
        assert_eq!(backend.synchronize().unwrap_err().remedy(), Remedy::Relaunch);
    }

    without_that_the_fault_shows_at_the_next_wait(driver; sim: sim_with_kernels()) {
        let backend = backend(driver);
        let stray = backend.kernel("kernels", "stray").unwrap();
        let mut launch = KernelLaunch::new(stray).u64(0x10_0000);
        // SAFETY: as above.
        unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
        let error = backend.synchronize_stream(backend.stream()).unwrap_err();
        let lost = error.downcast_ref::<metrale_cuda_backend::ContextLost>().expect("typed");
        assert_eq!(lost.driver.status, 700);
        assert!(error.to_string().contains("METRALE_DEBUG_SYNC_KERNELS=1"), "{error}");
    }
}

#[test]
fn only_a_status_that_the_context_does_not_survive_is_a_kernels_fault() {
    let mut config = BackendConfig::default();
    config.debug_sync_kernels = true;
    for &status in KNOWN_STATUSES.iter().filter(|&&status| status != 0) {
        // A driver of its own for each: what it says of a lost context is kept for good.
        let faulty = Arc::new(FaultDriver::new(Arc::new(sim_with_kernels())));
        let backend = configured(faulty.clone(), config.clone());
        let out = backend.alloc(64).unwrap();
        let fill = backend.kernel("kernels", "fill").unwrap();
        let mut launch = KernelLaunch::new(fill).block([4, 1, 1]).ptr(out).u32(1).u32(4);
        faulty.fail_nth(DriverFn::cuStreamSynchronize, 1, status);
        // SAFETY: the arguments are the kernel's parameters; it writes four words to `out`.
        let error = unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap_err();
        assert_eq!(error.is::<KernelFault>(), is_sticky(status), "{status}: {error}");
        assert!(error.to_string().contains("kernels::fill"), "{status}: {error}");
        if !error.is::<KernelFault>() && !error.is::<ContextLost>() {
            assert!(!error.to_string().contains("lost"), "{status}: {error}");
        }
        assert_eq!(backend.context_fault().is_some(), is_sticky(status), "{status}");
        if !is_sticky(status) {
            backend.synchronize_stream(backend.stream()).unwrap();
            backend.free(out).unwrap();
        }
    }
}

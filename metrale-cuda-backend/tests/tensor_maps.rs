// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tensor maps encoded by the driver, once every rule and the allocation were looked at.

mod common;

use common::{KERNELS, MIB, address, backend, logged, sim, sim_with_kernels};
use metrale_cuda_backend::redzone::RedzoneConfig;
use metrale_cuda_backend::tensormap::{ElementType, MAX_BOX_BYTES, Swizzle, TensorMapRule};
use metrale_cuda_backend::{
    BackendConfig, BadArgument, CUtensorMap, DriverFn, GpuBackend, KernelLaunch, MetraleCudaBackend, Remedy,
    TensorMapError, TensorMapOutOfBounds, TensorMapSpec,
};
use metrale_driver_sim::{FaultDriver, on_both_drivers};

on_both_drivers! {
    a_map_reaches_its_kernel_as_the_driver_encoded_it(driver; sim: sim_with_kernels()) {
        let backend = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&[("kernels", KERNELS)])
            .config(BackendConfig::default())
            .build()
            .unwrap();
        let tensor = backend.alloc(1024 * 4096 * 2).unwrap();
        let spec = TensorMapSpec::tiled_2d_bf16(tensor, 1024, 4096, 4096, 128, 64).swizzle(Swizzle::Bytes128);
        let map = spec.encode(&backend).unwrap();
        assert_eq!(map, backend.tensor_map_encode(&spec).unwrap());
        assert_ne!(map.to_raw().opaque, CUtensorMap::default().opaque);

        let out = backend.alloc(128).unwrap();
        let kernel = backend.kernel("kernels", "map_words").unwrap();
        let mut launch = KernelLaunch::new(kernel).block([16, 1, 1]).ptr(out).tensor_map(map);
        // SAFETY: a pointer to 16 words and a map by value.
        unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
        let mut seen = [0; 128];
        backend.copy_d2h(out, &mut seen).unwrap();
        let words: Vec<u64> = seen.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        assert_eq!(words, map.to_raw().opaque);
        backend.free(tensor).unwrap();
        backend.free(out).unwrap();
    }

    every_rank_is_encoded(driver) {
        let backend = backend(driver);
        let tensor = backend.alloc(4 * MIB).unwrap();
        let dims = [64, 8, 4, 4, 4];
        for rank in 1..=5 {
            let spec = TensorMapSpec::packed(ElementType::F16, tensor, &dims[..rank], &[16, 2, 2, 2, 2][..rank]);
            backend.tensor_map_encode(&spec).unwrap_or_else(|error| panic!("rank {rank}: {error:#}"));
        }
        backend.free(tensor).unwrap();
    }

    a_box_may_fill_a_multiprocessor_and_no_more(driver) {
        let backend = backend(driver);
        let tensor = backend.alloc(4 * MIB).unwrap();
        let spec = |rows| TensorMapSpec::packed(ElementType::F32, tensor, &[512, 512], &[256, rows]);
        backend.tensor_map_encode(&spec(228)).unwrap();
        let error = backend.tensor_map_encode(&spec(229)).unwrap_err();
        let broken = &error.downcast_ref::<TensorMapError>().expect("typed").broken;
        assert_eq!(broken[..], [TensorMapRule::BoxBytes { bytes: 234_496, max_bytes: MAX_BOX_BYTES }]);
        assert_eq!(error.remedy(), Remedy::FixCall);
        backend.free(tensor).unwrap();
    }

    a_map_that_leaves_its_allocation_is_refused(driver) {
        let mut config = BackendConfig::default();
        config.redzone = RedzoneConfig::default();
        config.redzone.band_bytes = 4096;
        let backend = MetraleCudaBackend::builder().driver(driver).config(config).build().unwrap();
        let tensor = backend.alloc(64 * 256 * 2).unwrap();
        let spec = |at, rows| TensorMapSpec::packed(ElementType::Bf16, at, &[256, rows], &[64, 8]);
        backend.tensor_map_encode(&spec(tensor, 64)).unwrap();
        backend.tensor_map_encode(&spec(tensor.offset(512), 63)).unwrap();
        // The last row's gap is not the tensor's.
        let gapped = TensorMapSpec::new(ElementType::Bf16, tensor, &[128, 64], &[512], &[64, 8]);
        backend.tensor_map_encode(&gapped).unwrap();
        for (at, rows, excess) in [(tensor, 65, 512), (tensor.offset(512), 64, 512), (tensor.offset(32_752), 1, 496)] {
            let error = backend.tensor_map_encode(&spec(at, rows)).unwrap_err();
            let out = error.downcast_ref::<TensorMapOutOfBounds>().expect("typed");
            assert_eq!((out.excess_bytes(), out.owner.addr), (excess, tensor.addr()), "{error}");
            assert!(error.to_string().contains("tensor_maps.rs"), "{error}");
            assert_eq!(error.remedy(), Remedy::FixCall);
        }
        let band = backend.tensor_map_encode(&spec(tensor.offset(64 * 256 * 2), 1)).unwrap_err();
        assert!(band.is::<BadArgument>() && band.to_string().contains("red zone behind"), "{band}");
        // Memory that is no allocation of this backend is the caller's to know.
        let mut foreign = 0;
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { backend.driver().cuMemAlloc_v2(&mut foreign, MIB) }, 0);
        backend.tensor_map_encode(&spec(address(foreign), 1 << 20)).unwrap();
        // SAFETY: the address is the one just given.
        assert_eq!(unsafe { backend.driver().cuMemFree_v2(foreign) }, 0);
        backend.free(tensor).unwrap();
    }
}

#[test]
fn a_broken_rule_keeps_the_driver_from_being_asked() {
    let faulty = std::sync::Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    let face: &dyn GpuBackend = &backend;
    let spec = TensorMapSpec::packed(ElementType::Bf16, address(0x7f00_0000_0008), &[4096, 1024], &[300, 8]);
    let error = face.tensor_map_encode(&spec).unwrap_err();
    assert_eq!(error.downcast_ref::<TensorMapError>().map(|error| error.broken.len()), Some(2), "{error}");
    assert_eq!(faulty.calls(DriverFn::cuTensorMapEncodeTiled), 0);
}

#[test]
fn what_is_only_suspect_is_said() {
    let backend = backend(sim());
    let tensor = backend.alloc(64 * 256 * 2).unwrap();
    let spec =
        TensorMapSpec::packed(ElementType::Bf16, tensor, &[256, 64], &[64, 8]).element_strides(&[2, 1]);
    let (map, log) = logged(|| backend.tensor_map_encode(&spec));
    map.unwrap();
    assert!(log.iter().any(|line| line.starts_with("WARN tensor map at")), "{log:#?}");
    backend.free(tensor).unwrap();
}

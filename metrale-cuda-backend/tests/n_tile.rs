// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tile width that a kernel publishes.

mod common;

use std::sync::Arc;

use common::sim;
use metrale_cuda_backend::{
    BackendConfig, DriverApi, DriverFn, GpuBackend, KernelHandle, MetraleCudaBackend, NTileError, Remedy,
};
use metrale_driver_sim::{FaultDriver, TraceDriver, on_both_drivers};

static PTX: &[u8] = b".version 6.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 gemm_n_tile = 192;
.visible .global .align 8 .u64 wide_n_tile = 64;
.visible .entry gemm() { ret; }
.visible .entry plain() { ret; }
.visible .entry wide() { ret; }
";

fn backend(driver: Arc<dyn DriverApi>) -> MetraleCudaBackend {
    MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("tiles", PTX)])
        .config(BackendConfig::default())
        .build()
        .unwrap()
}

on_both_drivers! {
    a_width_is_read_when_the_kernel_is_looked_up(driver) {
        let backend = backend(driver);
        let face: &dyn GpuBackend = &backend;
        let gemm = std::thread::scope(|scope| {
            // A look-up needs no context of the thread's own.
            scope.spawn(|| backend.kernel("tiles", "gemm").unwrap()).join().unwrap()
        });
        assert_eq!(face.n_tile(gemm), Some(192));
        let plain = backend.kernel("tiles", "plain").unwrap();
        assert_eq!(face.n_tile(plain), None);
        // SAFETY: nothing is launched.
        assert_eq!(face.n_tile(unsafe { KernelHandle::from_raw(7) }), None);
    }

    a_width_of_another_size_is_an_error_that_names_it(driver) {
        let backend = backend(driver);
        for error in [
            backend.kernel("tiles", "wide").unwrap_err(),
            backend.optional_kernel("tiles", "wide").unwrap_err(),
        ] {
            assert_eq!(error.remedy(), Remedy::FixCall);
            let wrong = error.downcast_ref::<NTileError>().expect("typed");
            assert_eq!((wrong.symbol.as_str(), wrong.bytes), ("wide_n_tile", 8));
        }
    }
}

#[test]
fn it_is_read_once() {
    let trace = Arc::new(TraceDriver::new(sim()));
    let backend = backend(trace.clone());
    for _ in 0..3 {
        backend.kernel("tiles", "gemm").unwrap();
        backend.kernel("tiles", "plain").unwrap();
    }
    let count = |function| trace.calls().iter().filter(|call| call.function == function).count();
    assert_eq!((count(DriverFn::cuModuleGetGlobal_v2), count(DriverFn::cuMemcpyDtoH_v2)), (2, 1));
}

#[test]
fn a_width_that_cannot_be_read_is_an_error_and_read_again_next_time() {
    let faulty = Arc::new(FaultDriver::new(sim()));
    let backend = backend(faulty.clone());
    for function in [DriverFn::cuModuleGetGlobal_v2, DriverFn::cuMemcpyDtoH_v2] {
        faulty.fail_nth(function, 1, 999);
        let error = backend.kernel("tiles", "gemm").unwrap_err();
        assert!(format!("{error:#}").contains("gemm_n_tile"), "{error:#}");
    }
    let gemm = backend.kernel("tiles", "gemm").unwrap();
    assert_eq!(backend.n_tile(gemm), Some(192));
}

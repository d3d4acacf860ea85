// SPDX-License-Identifier: MIT OR Apache-2.0
//! The creation index is the process's: one test, in a program of its own.

mod common;

use std::ffi::OsString;
use std::sync::Arc;
use std::thread;

use common::{logged, sim};
use metrale_cuda_backend::redzone::{
    Fill, REDZONE, REDZONE_FILL, REDZONE_MIN_IDX, REDZONE_TRACE_IDX, allocations_made,
};
use metrale_cuda_backend::{BackendConfig, DeviceBuffer, GpuBackend, MetraleCudaBackend, Stream};

/// The device is full, and what fills it was dropped in a capture, so it is freed when the driver has no more.
fn one_call_counts_once_though_the_driver_is_asked_twice() {
    let gpu: Arc<dyn GpuBackend> = Arc::new(common::backend(sim()));
    let stream = Stream::new(&gpu).unwrap();
    let page = 2 << 20;
    let free = usize::try_from(gpu.device_free_memory().unwrap()).unwrap() / page * page;
    let full = DeviceBuffer::<u8>::new(&gpu, free).unwrap();
    let capture = stream.capture().unwrap();
    drop(full);
    assert_eq!(gpu.live_bytes(), free);
    let alloc = || {
        gpu.bind_to_thread().unwrap();
        gpu.free(gpu.alloc(100).unwrap()).unwrap();
    };
    thread::scope(|scope| scope.spawn(alloc).join().unwrap());
    assert_eq!(gpu.live_bytes(), 0);
    drop(capture);
}

#[test]
fn it_counts_every_alloc_of_every_backend_and_the_variables_go_by_it() {
    let plain = common::backend(sim());
    assert_eq!(allocations_made(), 0);
    plain.alloc(100).unwrap();
    plain.alloc(0).unwrap_err();
    plain.alloc_managed(100).unwrap();
    plain.alloc_arena(100).unwrap();
    assert_eq!(allocations_made(), 2, "calls of alloc, those that fail too, and no other");

    let variables = [(REDZONE, "250"), (REDZONE_MIN_IDX, "4"), (REDZONE_FILL, "7"), (REDZONE_TRACE_IDX, "5")];
    let config = BackendConfig::from_variables(|name| {
        variables.iter().find(|variable| variable.0 == name).map(|variable| OsString::from(variable.1))
    })
    .unwrap();
    assert_eq!((config.redzone.fill, config.redzone.trace_index), (Fill::Byte(7), Some(5)));
    let backend = MetraleCudaBackend::builder().driver(sim()).config(config).build().unwrap();
    let (_, log) = logged(|| (2..5).for_each(|_| assert!(backend.alloc(64).is_ok())));
    assert_eq!(log, [""; 0]);
    assert_eq!((backend.redzone_status().bands, backend.ledger_probe().padding_bytes()), (1, 256));
    let (traced, log) = logged(|| backend.alloc(64).unwrap());
    let text = log.join("\n");
    assert!(text.contains("allocation 5 of 64 bytes is made at"), "{text}");
    assert!(text.contains("redzone_index"), "the trace leads to this test: {text}");
    let mut band = [0_u8; 256];
    // SAFETY: the destination is a slice of that many bytes.
    let status =
        unsafe { backend.driver().cuMemcpyDtoH_v2(band.as_mut_ptr().cast(), traced.addr() + 64, 256) };
    assert_eq!((status, band), (0, [7; 256]));
    logged(|| (backend.sweep_unreleased().unwrap(), plain.sweep_unreleased().unwrap()));
    let before = allocations_made();
    one_call_counts_once_though_the_driver_is_asked_twice();
    assert_eq!(allocations_made(), before + 2, "what fills the device, and the small one");
}

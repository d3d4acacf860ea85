// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device side of a copy or fill is never host memory: somebody may have borrowed that as a slice.

mod common;

use std::sync::Arc;

use common::hooked::HookedDriver;
use common::pinned::PinnedGuard;
use common::{KERNELS, MIB, address, backend, sim, sim_with_kernels};
use metrale_cuda_backend::{
    BackendConfig, Copy2d, DevicePtr, DriverApi, DriverFn, End, FoundMemory, MetraleCudaBackend,
    NotDeviceMemory, Remedy, Side, Uploader,
};
use metrale_driver_sim::driver_sys::{CU_MEM_ATTACH_GLOBAL, attribute};
use metrale_driver_sim::{Profile, SimDriver, TraceDriver, on_both_drivers};

/// The outcome of every copy and fill of 16 bytes with its device side at `wrong`, and which side that is. `good` is device
/// memory.
fn every_use(
    backend: &Arc<MetraleCudaBackend>,
    good: DevicePtr,
    wrong: DevicePtr,
) -> Vec<(&'static str, End, metrale_cuda_backend::Result<()>)> {
    use End::{Destination, Source};
    let stream = backend.stream();
    let (mut from, mut to) = ([0xA5; 16], [0; 16]);
    let (from_ptr, to_ptr) = (from.as_mut_ptr(), to.as_mut_ptr());
    let rows =
        |src, dst| Copy2d { src, dst, src_pitch_bytes: 8, dst_pitch_bytes: 8, width_bytes: 8, rows: 2 };
    let (to_wrong, from_wrong) =
        (rows(Side::Device(good), Side::Device(wrong)), rows(Side::Device(wrong), Side::Host(to_ptr)));
    let mut uploader = Uploader::new(backend, 64).unwrap();
    let outcomes = vec![
        ("copy_h2d", Destination, backend.copy_h2d(&[0xA5; 16], wrong)),
        ("copy_h2d_async", Destination, backend.copy_h2d_async(&[0xA5; 16], wrong, stream)),
        // SAFETY: the locals outlive the wait below.
        ("copy_h2d_async_retained", Destination, unsafe {
            backend.copy_h2d_async_retained(from_ptr, 16, wrong, stream)
        }),
        ("copy_d2d", Destination, backend.copy_d2d(good, wrong, 16)),
        ("copy_d2d_async", Destination, backend.copy_d2d_async(good, wrong, 16, stream)),
        // SAFETY: both sides are device memory as far as the call is concerned, which is what is tested.
        ("copy_2d_async", Destination, unsafe { backend.copy_2d_async(&to_wrong, stream) }),
        ("memset", Destination, backend.memset(wrong, 0xA5, 16)),
        ("memset_async", Destination, backend.memset_async(wrong, 0xA5, 16, stream)),
        ("memset_d32_async", Destination, backend.memset_d32_async(wrong, 0xA5A5_A5A5, 4, stream)),
        ("upload", Destination, uploader.upload(&[0xA5; 16], wrong)),
        ("copy_d2h", Source, backend.copy_d2h(wrong, &mut [0; 16])),
        ("copy_d2h_on_stream", Source, backend.copy_d2h_on_stream(wrong, &mut [0; 16], stream)),
        // SAFETY: the locals outlive the wait below.
        ("copy_d2h_async_retained", Source, unsafe {
            backend.copy_d2h_async_retained(wrong, to_ptr, 16, stream)
        }),
        ("copy_d2d from", Source, backend.copy_d2d(wrong, good, 16)),
        ("copy_d2d_async from", Source, backend.copy_d2d_async(wrong, good, 16, stream)),
        // SAFETY: the locals outlive the wait below.
        ("copy_2d_async from", Source, unsafe { backend.copy_2d_async(&from_wrong, stream) }),
    ];
    drop(uploader);
    backend.synchronize_stream(stream).unwrap();
    outcomes
}

/// All were refused for what was found at `wrong`.
fn assert_refused(
    backend: &Arc<MetraleCudaBackend>,
    good: DevicePtr,
    wrong: DevicePtr,
    found: impl Fn(&FoundMemory) -> bool,
) {
    for (call, end, outcome) in every_use(backend, good, wrong) {
        let error = outcome.expect_err(call);
        assert_eq!(error.remedy(), Remedy::FixCall, "{call}");
        let error = error.downcast::<NotDeviceMemory>().expect(call);
        assert!((error.end, error.addr) == (end, wrong.addr()) && found(&error.found), "{call}: {error}");
        assert!(error.to_string().contains("as the host side of a copy"), "{call}: {error}");
    }
}

fn assert_done(backend: &Arc<MetraleCudaBackend>, good: DevicePtr, at: DevicePtr) {
    for (call, _, outcome) in every_use(backend, good, at) {
        outcome.unwrap_or_else(|error| panic!("{call}: {error:#}"));
    }
}

fn address_of(host: *const u8) -> DevicePtr {
    address(host.addr() as u64)
}

/// Without a ledger the driver alone knows whose pinned memory it is.
fn is_pinned(found: &FoundMemory) -> bool {
    if cfg!(feature = "ledger") {
        matches!(found, FoundMemory::Pinned(_))
    } else {
        *found == FoundMemory::Host
    }
}

on_both_drivers! {
    pinned_memory_is_no_device_memory(driver) {
        let backend = Arc::new(backend(driver));
        let good = backend.alloc(4096).unwrap();
        let mut buffer = PinnedGuard::new(&backend, 4096).unwrap();
        buffer.fill(0x5A);
        let borrowed: &[u8] = &buffer;
        for offset in [0, 1024, 4096 - 16] {
            assert_refused(&backend, good, address_of(borrowed[offset..].as_ptr()), is_pinned);
        }
        assert!(borrowed.iter().all(|&byte| byte == 0x5A), "what is borrowed does not change");
        drop(buffer);
        backend.free(good).unwrap();
    }

    memory_that_something_else_pinned_is_none_either(driver) {
        let backend = Arc::new(backend(driver.clone()));
        let good = backend.alloc(4096).unwrap();
        let mut address = std::ptr::null_mut();
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { driver.cuMemAllocHost_v2(&mut address, 4096) }, 0);
        let bytes = address.cast::<u8>();
        // SAFETY: the driver allocated as many bytes.
        unsafe { bytes.write_bytes(0x5A, 4096) };
        for offset in [0, 1024, 4096 - 16] {
            let wrong = address_of(bytes.wrapping_add(offset));
            assert_refused(&backend, good, wrong, |found| *found == FoundMemory::Host);
        }
        // SAFETY: as above, and written before.
        let borrowed = unsafe { std::slice::from_raw_parts(bytes, 4096) };
        assert!(borrowed.iter().all(|&byte| byte == 0x5A));
        // SAFETY: allocated above, and no longer used.
        assert_eq!(unsafe { driver.cuMemFreeHost(address) }, 0);
        backend.free(good).unwrap();
    }

    pageable_memory_does_not_change_whatever_the_device_reaches(driver) {
        let backend = Arc::new(backend(driver));
        let good = backend.alloc(4096).unwrap();
        let heap = vec![0x5A_u8; 4096];
        for (call, _, outcome) in every_use(&backend, good, address_of(heap.as_ptr())) {
            assert_eq!(outcome.expect_err(call).remedy(), Remedy::FixCall, "{call}");
        }
        assert!(heap.iter().all(|&byte| byte == 0x5A));
        backend.free(good).unwrap();
    }

    managed_memory_and_device_memory_of_others_pass(driver) {
        let backend = Arc::new(backend(driver.clone()));
        let good = backend.alloc(4096).unwrap();
        let managed = backend.alloc_managed(4096).unwrap();
        assert_done(&backend, good, managed);
        backend.free(managed).unwrap();
        let (mut plain, mut managed) = (0, 0);
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { driver.cuMemAlloc_v2(&mut plain, 4096) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { driver.cuMemAllocManaged(&mut managed, 4096, CU_MEM_ATTACH_GLOBAL) }, 0);
        for foreign in [plain, managed] {
            assert_done(&backend, good, address(foreign));
            // SAFETY: the driver returned the address above.
            assert_eq!(unsafe { driver.cuMemFree_v2(foreign) }, 0);
        }
        backend.free(good).unwrap();
    }

    the_globals_of_modules_pass(driver; sim: sim_with_kernels()) {
        globals_pass(driver);
    }
}

fn globals_pass(driver: Arc<dyn DriverApi>) {
    let builder = MetraleCudaBackend::builder().driver(driver).modules(&[("kernels", KERNELS)]);
    let backend = Arc::new(builder.config(BackendConfig::default()).build().unwrap());
    let (at, bytes) = backend.device_symbol("kernels", "steps").unwrap();
    let mut back = vec![0; bytes];
    backend.copy_d2h(at, &mut back).unwrap();
    backend.copy_h2d(&back, at).unwrap();
}

/// On a device that reaches all of the host's memory, what the driver does not know could be anybody's.
#[test]
fn a_device_that_reaches_pageable_memory_is_not_given_an_address_it_does_not_know() {
    let trace = Arc::new(TraceDriver::new(Arc::new(SimDriver::new(Profile::gb10()))));
    let backend = Arc::new(backend(trace.clone()));
    let good = backend.alloc(4096).unwrap();
    let heap = vec![0x5A_u8; 4096];
    let unknown = |found: &FoundMemory| *found == FoundMemory::Unknown { freed: None };
    for wrong in [address_of(heap.as_ptr()), address_of(heap[4080..].as_ptr()), address(0x1000)] {
        trace.take();
        assert_refused(&backend, good, wrong, unknown);
        let shown = format!("{:#x}", wrong.addr());
        for call in trace.take() {
            let text = call.to_string();
            assert!(!text.contains(&shown) || text.contains("cuPointerGetAttribute"), "{text}");
        }
    }
    assert!(heap.iter().all(|&byte| byte == 0x5A));
    backend.free(good).unwrap();
}

/// Attribute 88 tells, whether or not the device goes through the host's page tables (100) for it.
#[test]
fn a_discrete_device_that_reaches_pageable_memory_is_told_by_its_attribute() {
    for (reaches, through_page_tables) in [(1, 0), (1, 1), (0, 0), (0, 1)] {
        let driver = Arc::new(HookedDriver::new(sim()));
        driver.answer_attribute(attribute::PAGEABLE_MEMORY_ACCESS, reaches);
        driver.answer_attribute(attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, through_page_tables);
        let trace = Arc::new(TraceDriver::new(driver));
        let backend = Arc::new(backend(trace.clone()));
        let good = backend.alloc(4096).unwrap();
        let heap = vec![0x5A_u8; 64];
        let error = backend.memset(address_of(heap.as_ptr()), 0, 64).unwrap_err();
        assert_eq!(error.is::<NotDeviceMemory>(), reaches == 1, "{error}");
        // Nor does such a device's driver stage a pageable source: the call waits until it is read.
        trace.take();
        backend.copy_h2d_async(&heap, good, backend.stream()).unwrap();
        let waits = trace.count(DriverFn::cuStreamSynchronize);
        assert_eq!(waits, usize::from(reaches == 1));
        backend.free(good).unwrap();
    }
}

#[test]
fn what_was_freed_says_by_whom_there_too() {
    let backend = Arc::new(backend(Arc::new(SimDriver::new(Profile::gb10()))));
    let good = backend.alloc(4096).unwrap();
    let freed = backend.alloc(4 * MIB).unwrap();
    backend.free(freed).unwrap();
    assert_refused(&backend, good, freed, |found| match found {
        FoundMemory::Unknown { freed: Some(text) } => text.contains(file!()),
        FoundMemory::Unknown { freed: None } => !cfg!(feature = "ledger"),
        _ => false,
    });
    backend.free(good).unwrap();
}

#[test]
fn what_a_device_that_reaches_pageable_memory_has_itself_passes() {
    let driver = Arc::new(SimDriver::new(Profile::gb10()));
    globals_pass(driver.clone());
    let backend = Arc::new(backend(driver));
    let (good, managed) = (backend.alloc(4096).unwrap(), backend.alloc_managed(4096).unwrap());
    assert_done(&backend, good, managed);
    backend.free(managed).unwrap();
    backend.free(good).unwrap();
}

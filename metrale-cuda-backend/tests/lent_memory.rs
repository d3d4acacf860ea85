// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host memory that is lent for a call only: it goes back when the device cannot touch it any more, also where the wait for that
//! is refused.

mod common;

use std::sync::Arc;
use std::thread;

use common::backend;
use common::pinned::PinnedGuard;
use metrale_cuda_backend::{ContextLost, DevicePtr, DriverApi, DriverFn, MetraleCudaBackend, Remedy};
use metrale_driver_sim::{FaultDriver, PageableCopies, Profile, SimDriver};

const BYTES: usize = 4096;

/// A driver that copies to plain host memory late too, and one in front of it that fails on demand.
fn late() -> (Arc<SimDriver>, Arc<FaultDriver>) {
    let sim = Arc::new(SimDriver::new(Profile::h200().with_pageable_copies(PageableCopies::Late)));
    (sim.clone(), Arc::new(FaultDriver::new(sim)))
}

fn filled(backend: &MetraleCudaBackend, value: u8) -> DevicePtr {
    let at = backend.alloc(BYTES).unwrap();
    backend.memset(at, value, BYTES).unwrap();
    at
}

/// Refusals of the wait, of what is tried instead, and of the wait again.
const REFUSED: &[&[(DriverFn, u64)]] = &[
    &[(DriverFn::cuStreamSynchronize, 1)],
    &[(DriverFn::cuStreamSynchronize, 1), (DriverFn::cuEventCreate, 1)],
    &[(DriverFn::cuStreamSynchronize, 1), (DriverFn::cuStreamSynchronize, 2), (DriverFn::cuEventRecord, 1)],
    &[(DriverFn::cuStreamSynchronize, 1), (DriverFn::cuStreamWaitEvent, 1), (DriverFn::cuMemcpyDtoH_v2, 1)],
];

#[test]
fn a_destination_is_not_written_to_after_its_copy_returned() {
    for refused in REFUSED {
        for status in [1, 999] {
            let (_sim, faulty) = late();
            let backend = backend(faulty.clone());
            let (at, stream) = (filled(&backend, 0xEE), backend.create_stream().unwrap());
            let mut bytes = vec![0; BYTES];
            refused.iter().for_each(|&(function, nth)| faulty.fail_nth(function, nth, status));
            let error = backend.copy_d2h_on_stream(at, &mut bytes, stream).unwrap_err();
            assert!(error.to_string().contains("waiting for stream"), "{error}");
            faulty.clear();
            assert_eq!(bytes, [0xEE; BYTES], "it was waited for");
            bytes.fill(1);
            backend.synchronize_stream(stream).unwrap();
            assert_eq!(bytes, [1; BYTES], "{refused:?}");
            backend.free(at).unwrap();
        }
    }
}

#[test]
fn a_source_is_not_read_after_its_copy_returned() {
    for refused in REFUSED {
        let (_sim, faulty) = late();
        let backend = backend(faulty.clone());
        let (at, stream) = (filled(&backend, 0), backend.create_stream().unwrap());
        // Of those that the device reads by itself.
        let mut source = PinnedGuard::new(&backend, BYTES).unwrap();
        source.fill(7);
        refused.iter().for_each(|&(function, nth)| faulty.fail_nth(function, nth, 1));
        backend.copy_h2d_async(&source, at, stream).unwrap_err();
        faulty.clear();
        source.fill(8);
        let mut there = [0; BYTES];
        backend.copy_d2h_on_stream(at, &mut there, stream).unwrap();
        assert_eq!(there, [7; BYTES], "{refused:?}");
        drop(source);
        backend.free(at).unwrap();
    }
}

/// PyTorch and cudarc capture so by default; until they end, the driver refuses every wait of the device with 900.
#[test]
fn another_librarys_capture_does_not_keep_a_copy_from_being_waited_for() {
    let (sim, _) = late();
    let backend = backend(sim.clone());
    let (at, stream) = (filled(&backend, 0xEE), backend.create_stream().unwrap());
    let mut source = PinnedGuard::new(&backend, BYTES).unwrap();
    source.fill(7);
    let (driver, context) = (sim.clone(), backend.host().context());
    let captured = thread::spawn(move || {
        let mut stream = 0;
        // SAFETY: no memory is passed; the context is the backend's, which lives.
        assert_eq!(unsafe { driver.cuCtxSetCurrent(context) }, 0);
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { driver.cuStreamCreate(&mut stream, 1) }, 0);
        // SAFETY: takes a handle and a mode, 0 for global.
        assert_eq!(unsafe { driver.cuStreamBeginCapture_v2(stream, 0) }, 0);
        stream
    })
    .join()
    .unwrap();

    let mut bytes = [0; BYTES];
    backend.copy_d2h_on_stream(at, &mut bytes, stream).unwrap();
    assert_eq!(bytes, [0xEE; BYTES]);
    backend.copy_h2d_async(&source, at, stream).unwrap();
    source.fill(8);
    bytes.fill(1);
    // A wait that lends nothing says what the driver answered.
    assert_eq!(backend.synchronize_stream(stream).unwrap_err().remedy(), Remedy::FixCall);

    let mut graph = 0;
    // SAFETY: the result pointer is a local.
    let ended = unsafe { sim.cuStreamEndCapture(captured, &mut graph) };
    assert_eq!(ended, 901, "the driver's refusals break a capture in global mode");
    backend.synchronize_stream(stream).unwrap();
    assert_eq!(bytes, [1; BYTES]);
    backend.copy_d2h(at, &mut bytes).unwrap();
    assert_eq!(bytes, [7; BYTES], "what the source was when it was lent");
}

#[test]
fn a_wait_ends_where_the_context_does() {
    for status in [700, 4] {
        // Outlives the driver in software, which runs the copy out all the same.
        let mut bytes = [0; BYTES];
        let (_sim, faulty) = late();
        let backend = backend(faulty.clone());
        let (at, stream) = (filled(&backend, 0xEE), backend.create_stream().unwrap());
        // First refused, then lost.
        faulty.fail_nth(DriverFn::cuStreamSynchronize, 1, 900);
        faulty.fail_sticky(DriverFn::cuEventRecord, 1, status);
        let error = backend.copy_d2h_on_stream(at, &mut bytes, stream).unwrap_err();
        assert_eq!(error.downcast::<ContextLost>().expect("typed").driver.status, status);
    }
}

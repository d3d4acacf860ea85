// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an owner has is its own: no call by a number takes it away, nor one through another handle of the driver, and another
//! driver's memory is not taken for its own.

mod common;

use std::sync::Arc;

use common::{backend, sim};
use metrale_cuda_backend::{
    Arena, BadArgument, Capturing, DeviceBuffer, DriverApi, DriverFn, Freed, GpuBackend, PinnedBuffer,
    PinnedByGraph, Stream,
};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, on_both_drivers};

const LEN: usize = 1000;

fn shared(driver: Arc<dyn DriverApi>) -> Arc<dyn GpuBackend> {
    Arc::new(backend(driver))
}

on_both_drivers! {
    /// By its present address, and by that of a buffer that was there before.
    memory_of_a_buffer_is_freed_by_no_address(driver) {
        let gpu = shared(driver);
        let first = DeviceBuffer::from_slice(&gpu, &[1_u8; LEN]).unwrap();
        let stale = first.ptr();
        assert!(matches!(first.close().unwrap(), Freed::Now));
        let second = DeviceBuffer::from_slice(&gpu, &[2_u8; LEN]).unwrap();
        assert_eq!(second.ptr(), stale, "what this test is about");
        let error = gpu.free(stale).unwrap_err();
        assert!(error.is::<BadArgument>() && error.to_string().contains("has an owner"), "{error}");
        assert_eq!(second.to_vec().unwrap(), [2; LEN]);
        assert_eq!((gpu.ledger_probe().live_count(), gpu.ledger_probe().recent_events().len()), (1, 0));
        assert!(matches!(second.close().unwrap(), Freed::Now));
        // Once it is nobody's, the address is free for all.
        let raw = gpu.alloc(LEN).unwrap();
        assert_eq!(raw, stale);
        gpu.free(raw).unwrap();
    }

    a_sweep_leaves_owners_what_they_have(driver) {
        let gpu = shared(driver);
        let owned = DeviceBuffer::from_slice(&gpu, &[3_u8; LEN]).unwrap();
        let (left, managed) = (gpu.alloc(LEN).unwrap(), gpu.alloc_managed(LEN).unwrap());
        assert_eq!(gpu.sweep_unreleased().unwrap(), 2);
        assert_eq!(owned.to_vec().unwrap(), [3; LEN]);
        assert!(gpu.free(left).is_err() && gpu.free(managed).is_err());
        assert!(matches!(owned.close().unwrap(), Freed::Now));
        assert_eq!(gpu.live_bytes(), 0);
    }
}

/// Pins, captures and followed addresses are the driver's, through however many handles it is used.
#[test]
fn two_handles_of_one_driver_are_one_driver() {
    let driver = SimDriver::new(Profile::h200());
    let [ours, theirs] = [0; 2].map(|_| shared(Arc::new(driver.clone())));
    let buffer = DeviceBuffer::from_slice(&ours, &[5_u8; LEN]).unwrap();
    let stream = Stream::new(&theirs).unwrap();
    let mut target = DeviceBuffer::<u8>::zeroed(&theirs, LEN).unwrap();
    let capture = stream.capture().unwrap();
    assert!(ours.synchronize().unwrap_err().is::<Capturing>(), "it would break the capture");
    stream.copy(&buffer, &mut target).unwrap();
    let graph = capture.finish("theirs").unwrap();
    let Freed::Later(reason) = buffer.close().unwrap() else { panic!("the graph uses it") };
    assert!(reason.is::<PinnedByGraph>(), "{reason}");
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(target.to_vec().unwrap(), [5; LEN]);
    drop(graph);
    assert_eq!(ours.live_bytes(), 0);
}

/// An address means something else there, and may be that of somebody's memory here.
#[test]
fn memory_of_another_driver_is_refused() {
    let [ours, theirs] = [0; 2].map(|_| shared(sim()));
    let stream = Stream::new(&ours).unwrap();
    let mut own = DeviceBuffer::from_slice(&ours, &[1_u8; LEN]).unwrap();
    let mut other = DeviceBuffer::from_slice(&theirs, &[2_u8; LEN]).unwrap();
    let mut host = PinnedBuffer::<u8>::new(&ours, LEN).unwrap();
    let mut bytes = [0; LEN];
    let refused = [
        stream.fill_bytes(&mut other, 9),
        stream.copy(&own, &mut other),
        stream.copy(&other, &mut own),
        stream.copy_to_device(&[9; LEN], &mut other),
        stream.copy_to_host(&other, &mut bytes),
        stream.copy_from_pinned(&host, &mut other),
        stream.copy_to_pinned(&other, &mut host),
        own.as_mut_slice().copy_from_device(&other),
    ];
    for (at, answer) in refused.into_iter().enumerate() {
        let error = answer.unwrap_err();
        assert!(error.is::<BadArgument>() && error.to_string().contains("another driver"), "{at}: {error}");
    }
    assert_eq!((own.to_vec().unwrap(), other.to_vec().unwrap()), (vec![1; LEN], vec![2; LEN]));
}

/// The driver refuses every free while another library captures in global mode.
#[test]
fn what_another_librarys_capture_forbids_is_freed_with_the_next() {
    let faulty = Arc::new(FaultDriver::new(sim()));
    let gpu = shared(faulty.clone());
    let buffers = [0; 3].map(|_| DeviceBuffer::<u8>::new(&gpu, LEN).unwrap());
    let (pinned, arena) = (PinnedBuffer::<u8>::new(&gpu, LEN).unwrap(), Arena::new(&gpu, LEN).unwrap());
    let next = DeviceBuffer::<u8>::new(&gpu, LEN).unwrap();
    for function in [DriverFn::cuMemFree_v2, DriverFn::cuMemFreeHost] {
        faulty.fail_every(function, 900);
    }
    for buffer in buffers {
        assert!(matches!(buffer.close().unwrap(), Freed::Later(_)));
    }
    assert!(matches!(pinned.close().unwrap(), Freed::Later(_)));
    drop(arena);
    let probe = gpu.ledger_probe();
    assert_eq!((probe.live_count(), probe.pinned_count(), probe.arena_count()), (4, 1, 1));
    faulty.clear();
    drop(next);
    assert_eq!((probe.live_count(), probe.pinned_count(), probe.arena_count()), (0, 0, 0));
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned buffers: host access waits for the copies that matter, and memory goes when nothing uses it any more.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::hooked::HookedDriver;
use common::{KIB, backend, logged, sim};
use metrale_cuda_backend::{
    BadArgument, Capturing, ContextLost, DeviceBuffer, DriverApi, DriverFn, Freed, GpuBackend, PinnedBuffer,
    Stream,
};
use metrale_driver_sim::{FaultDriver, on_both_drivers};

const LEN: usize = 256 * KIB;

fn shared(driver: Arc<dyn DriverApi>) -> Arc<dyn GpuBackend> {
    Arc::new(backend(driver))
}

fn stays_beside<T: Send + Sync + 'static>() {}

#[test]
fn a_pinned_buffer_is_kept_beside_its_backend_and_goes_to_any_thread() {
    stays_beside::<PinnedBuffer<f32>>();
}

on_both_drivers! {
    elements_are_zero_at_first_and_come_back_as_they_went(driver) {
        let gpu = shared(driver);
        let stream = Stream::new(&gpu).unwrap();
        let mut device = DeviceBuffer::<u32>::new(&gpu, LEN).unwrap();
        let mut host = PinnedBuffer::<u32>::new(&gpu, LEN).unwrap();
        assert_eq!((host.len(), host.bytes(), host.is_empty()), (LEN, 4 * LEN, false));
        assert_eq!(gpu.ledger_probe().pinned_bytes(), 4 * LEN);
        assert!(host.as_slice().unwrap().iter().all(|&element| element == 0));
        for round in 1..10_u32 {
            // Each access waits for what the last round left in flight; without it the software driver, which is late, shows
            // the old elements.
            host.as_mut_slice().unwrap().fill(round);
            stream.copy_from_pinned(&host, &mut device).unwrap();
            host.as_mut_slice().unwrap().fill(0);
            stream.copy_to_pinned(&device, &mut host).unwrap();
            assert!(host.as_slice().unwrap().iter().all(|&element| element == round), "{round}");
        }
        drop(host);
        assert_eq!(gpu.ledger_probe().pinned_count(), 0);
        let short = PinnedBuffer::from_slice(&gpu, &[1_u32]).unwrap();
        let error = stream.copy_from_pinned(&short, &mut device).unwrap_err();
        assert!(error.is::<BadArgument>() && error.to_string().contains("1 elements into"), "{error}");
    }

    reading_does_not_wait_for_a_copy_that_only_reads(driver) {
        let gpu = shared(driver);
        let streams = [Stream::new(&gpu).unwrap(), Stream::new(&gpu).unwrap()];
        let mut device = [
            DeviceBuffer::<u8>::new(&gpu, LEN).unwrap(),
            DeviceBuffer::<u8>::new(&gpu, LEN).unwrap(),
        ];
        let host = PinnedBuffer::from_slice(&gpu, &[7_u8; LEN]).unwrap();
        for (stream, device) in streams.iter().zip(&mut device) {
            stream.copy_from_pinned(&host, device.as_mut_slice()).unwrap();
        }
        assert_eq!(host.as_slice().unwrap()[LEN - 1], 7);
        // The drop waits for both streams.
        drop(host);
        for device in &device {
            assert_eq!(device.to_vec().unwrap(), [7; LEN]);
        }
        assert_eq!(gpu.ledger_probe().pinned_count(), 0);
    }

    a_buffer_of_no_bytes_takes_no_memory(driver) {
        let gpu = shared(driver);
        let stream = Stream::of_backend(&gpu);
        let mut host = PinnedBuffer::<u32>::new(&gpu, 0).unwrap();
        let mut device = DeviceBuffer::<u32>::new(&gpu, 0).unwrap();
        stream.copy_from_pinned(&host, &mut device).unwrap();
        stream.copy_to_pinned(&device, &mut host).unwrap();
        assert!(host.as_slice().unwrap().is_empty() && host.as_mut_slice().unwrap().is_empty());
        assert_eq!((host.as_ptr().is_null(), gpu.ledger_probe().pinned_count()), (true, 0));
        assert!(matches!(host.close().unwrap(), Freed::Now));
        assert!(PinnedBuffer::<u64>::new(&gpu, usize::MAX).unwrap_err().is::<BadArgument>());
    }

    a_thread_of_its_own_may_drop_it_with_copies_in_flight(driver) {
        let gpu = shared(driver);
        let stream = Stream::new(&gpu).unwrap();
        let device = DeviceBuffer::<u8>::zeroed(&gpu, LEN).unwrap();
        let mut host = PinnedBuffer::<u8>::new(&gpu, LEN).unwrap();
        stream.copy_to_pinned(&device, &mut host).unwrap();
        thread::spawn(move || drop(host)).join().unwrap();
        assert_eq!(gpu.ledger_probe().pinned_count(), 0);
        stream.synchronize().unwrap();
    }
}

#[cfg(feature = "graph")]
on_both_drivers! {
    a_capture_takes_no_copy_of_it_and_goes_on(driver) {
        let gpu = shared(driver);
        let stream = Stream::new(&gpu).unwrap();
        let mut device = DeviceBuffer::<u8>::zeroed(&gpu, 64).unwrap();
        let mut host = PinnedBuffer::from_slice(&gpu, &[7_u8; 64]).unwrap();
        let capture = stream.capture().unwrap();
        for refused in [
            stream.copy_from_pinned(&host, &mut device),
            stream.copy_to_pinned(&device, &mut host),
        ] {
            assert!(refused.unwrap_err().is::<Capturing>());
        }
        stream.fill_bytes(&mut device, 9).unwrap();
        assert_eq!(host.as_mut_slice().unwrap(), [7; 64]);
        let graph = capture.finish("fill").unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(device.to_vec().unwrap(), [9; 64]);
        drop(graph);
    }

    what_is_dropped_in_a_capture_or_while_a_graph_uses_it_is_freed_after_it(driver) {
        let gpu = shared(driver);
        let probe = gpu.ledger_probe();
        let stream = Stream::new(&gpu).unwrap();
        let device = DeviceBuffer::<u8>::zeroed(&gpu, 64).unwrap();
        let (dropped, used) =
            (PinnedBuffer::<u8>::new(&gpu, 64).unwrap(), PinnedBuffer::<u8>::new(&gpu, 64).unwrap());
        let capture = stream.capture().unwrap();
        assert!(matches!(dropped.close().unwrap(), Freed::Later(error) if error.is::<Capturing>()));
        let from = used.as_ptr();
        // SAFETY: the graph is destroyed before the buffer's memory is freed.
        unsafe { gpu.copy_h2d_async_retained(from, 64, device.ptr(), stream.handle()) }.unwrap();
        let graph = capture.finish("copy").unwrap();
        assert_eq!(probe.pinned_count(), 1, "the first went with the end of the capture");
        drop(used);
        assert_eq!(probe.pinned_count(), 1, "the graph reads it at every launch");
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        drop(graph);
        assert_eq!(probe.pinned_count(), 0);
    }
}

/// A software driver whose streams run when they are waited for, and faults on it.
fn late() -> (Arc<dyn GpuBackend>, Arc<FaultDriver>) {
    let faulty = Arc::new(FaultDriver::new(sim()));
    (shared(faulty.clone()), faulty)
}

#[test]
fn a_wait_that_is_refused_goes_on_until_the_elements_are_there() {
    for status in [1, 900, 999] {
        let (gpu, faulty) = late();
        let stream = Stream::new(&gpu).unwrap();
        let device = DeviceBuffer::from_slice(&gpu, &[7_u8; LEN]).unwrap();
        let mut host = PinnedBuffer::<u8>::new(&gpu, LEN).unwrap();
        stream.copy_to_pinned(&device, &mut host).unwrap();
        faulty.fail_nth(DriverFn::cuEventSynchronize, 1, status);
        assert_eq!(host.as_slice().unwrap(), [7; LEN], "{status}");
    }
}

#[test]
fn a_copy_whose_mark_cannot_be_recorded_is_waited_for() {
    let (gpu, faulty) = late();
    let stream = Stream::new(&gpu).unwrap();
    let device = DeviceBuffer::from_slice(&gpu, &[7_u8; LEN]).unwrap();
    let mut host = PinnedBuffer::<u8>::new(&gpu, LEN).unwrap();
    faulty.fail_nth(DriverFn::cuEventRecord, 1, 999);
    let error = stream.copy_to_pinned(&device, &mut host).unwrap_err();
    assert!(error.to_string().contains("recording event"), "{error}");
    faulty.fail_every(DriverFn::cuEventSynchronize, 999);
    faulty.fail_every(DriverFn::cuStreamSynchronize, 999);
    // SAFETY: the buffer has that many bytes, and nothing is queued that uses them.
    assert_eq!(unsafe { std::slice::from_raw_parts(host.as_ptr(), LEN) }, [7; LEN]);
    faulty.clear();
    assert_eq!(host.as_slice().unwrap(), [7; LEN]);
}

/// The copy that the first thread waits for stands behind an event that the second records only after its own copy.
#[test]
fn a_thread_queues_a_copy_while_another_waits_for_one() {
    let (asked, waits) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel();
    let driver = Arc::new(HookedDriver::new(sim()));
    let gpu = shared(driver.clone());
    let stream = Stream::new(&gpu).unwrap();
    let mut device =
        [DeviceBuffer::<u8>::new(&gpu, LEN).unwrap(), DeviceBuffer::<u8>::new(&gpu, LEN).unwrap()];
    let mut host = PinnedBuffer::<u8>::new(&gpu, LEN).unwrap();
    stream.copy_to_pinned(&device[0], &mut host).unwrap();
    let first = AtomicBool::new(true);
    let may_go_on = Mutex::new(may_go_on);
    driver.before_each(move |function| {
        if function == DriverFn::cuEventSynchronize && first.swap(false, SeqCst) {
            asked.send(()).unwrap();
            may_go_on
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(20))
                .expect("the other copy is queued");
        }
    });
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(host.as_slice().unwrap().len(), LEN));
        waits.recv_timeout(Duration::from_secs(20)).expect("the first thread waits");
        stream.copy_from_pinned(&host, &mut device[1]).unwrap();
        goes_on.send(()).unwrap();
    });
    // That copy was queued during the wait, and is still known.
    host.as_mut_slice().unwrap().fill(9);
    assert_eq!(device[1].to_vec().unwrap(), device[0].to_vec().unwrap());
}

#[test]
fn a_lost_context_ends_every_wait() {
    let (gpu, faulty) = late();
    let stream = Stream::new(&gpu).unwrap();
    let device = DeviceBuffer::<u8>::zeroed(&gpu, LEN).unwrap();
    let mut host = PinnedBuffer::<u8>::new(&gpu, LEN).unwrap();
    stream.copy_to_pinned(&device, &mut host).unwrap();
    faulty.fail_every(DriverFn::cuEventSynchronize, 700);
    assert!(host.as_slice().unwrap_err().is::<ContextLost>());
    let ((), lines) = logged(|| drop(host));
    assert!(lines.iter().all(|line| !line.contains("stays")), "the log has one line of it: {lines:?}");
}

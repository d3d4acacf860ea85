// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream that joins a capture is known to take part in it, whatever other threads record meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use metrale_cuda_backend::MetraleCudaBackend;
use metrale_driver_sim::{Profile, SimDriver};

/// A copy whose source is borrowed must not be recorded: the graph would read the source when it is gone. So no wait may see an
/// event in a capture of the driver that is not yet noted here.
#[test]
fn no_borrowed_copy_is_recorded_while_another_thread_records_the_event() {
    let driver = Arc::new(SimDriver::new(Profile::h200()));
    let backend = MetraleCudaBackend::builder().driver(driver).build().unwrap();
    let (origin, forked) = (backend.create_stream().unwrap(), backend.create_stream().unwrap());
    let (event, target) = (backend.create_event().unwrap(), backend.alloc(64).unwrap());
    backend.record_event(event, forked).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            backend.bind_to_thread().unwrap();
            while !done.load(Relaxed) {
                backend.begin_capture(origin).unwrap();
                // Refused where the other thread has it wait for the capture of before.
                let _ = backend.record_event(event, origin);
                let _ = backend.abort_capture_if_active(origin);
            }
        });
        for _ in 0..10_000 {
            // Refused where the forked stream takes part already.
            let _ = backend.wait_event(forked, event);
            // Only a wait of this thread makes the stream join, so it is one capture throughout.
            let before = backend.stream_is_capturing(forked);
            let copied = backend.copy_h2d_async(&[1; 64], target, forked).is_ok();
            if before && copied && backend.stream_is_capturing(forked) {
                done.store(true, Relaxed);
                panic!("a copy from borrowed memory was recorded");
            }
        }
        done.store(true, Relaxed);
    });
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a call has checked stays true until the driver was asked: an address that is no host memory becomes none meanwhile.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use common::hooked::HookedDriver;
use common::{KIB, address, backend, sim};
use metrale_cuda_backend::{Copy2d, DevicePtr, DriverFn, MetraleCudaBackend, PinnedPtr, StreamHandle};

const BYTES: usize = 64 * KIB;

type Call = fn(
    &MetraleCudaBackend,
    good: DevicePtr,
    stale: DevicePtr,
    stream: StreamHandle,
) -> metrale_cuda_backend::Result<()>;

/// Every safe call that writes to an address it is given, and the driver's function it ends in.
const WRITES: &[(DriverFn, Call)] = &[
    (DriverFn::cuMemsetD8_v2, |b, _, at, _| b.memset(at, 0xAA, 16)),
    (DriverFn::cuMemsetD8Async, |b, _, at, s| b.memset_async(at, 0xAA, 16, s)),
    (DriverFn::cuMemsetD32Async, |b, _, at, s| b.memset_d32_async(at, 0xAAAA_AAAA, 4, s)),
    (DriverFn::cuMemcpyHtoD_v2, |b, _, at, _| b.copy_h2d(&[0xAA; 16], at)),
    (DriverFn::cuMemcpyHtoDAsync_v2, |b, _, at, s| b.copy_h2d_async(&[0xAA; 16], at, s)),
    (DriverFn::cuMemcpyDtoD_v2, |b, good, at, _| b.copy_d2d(good, at, 16)),
    (DriverFn::cuMemcpyDtoDAsync_v2, |b, good, at, s| b.copy_d2d_async(good, at, 16, s)),
    (DriverFn::cuMemcpyDtoDAsync_v2, |b, good, at, s| b.copy_peer_async(good, b, at, 16, s)),
    (DriverFn::cuMemcpyDtoDAsync_v2, |b, good, at, _| b.copy_peer(good, b, at, 16)),
    (DriverFn::cuMemcpy2DAsync_v2, |b, good, at, s| {
        // SAFETY: no side is host memory.
        unsafe { b.copy_2d_async(&Copy2d::device(good, 16, at, 16, 16, 1), s) }
    }),
];

/// `PinnedBuffer` lends its bytes as `&[u8]`: no safe call may write to them by an address of before.
#[test]
fn memory_that_is_pinned_between_the_check_and_the_call_is_not_written_to() {
    for &(function, call) in WRITES {
        for moment in ["before", "after"] {
            let driver = Arc::new(HookedDriver::new(sim()));
            let backend = Arc::new(backend(driver.clone()));
            let (good, stream) = (backend.alloc(4096).unwrap(), backend.create_stream().unwrap());
            backend.memset(good, 0xAA, 4096).unwrap();
            let freed = backend.alloc_pinned(BYTES).unwrap();
            let stale = address(freed.as_ptr() as u64);
            backend.free_pinned(freed).unwrap();

            let pinned: Arc<Mutex<Option<PinnedPtr>>> = Arc::default();
            let (there, by, armed) = (Arc::clone(&pinned), Arc::clone(&backend), AtomicBool::new(true));
            let pin = move || {
                // As another thread would, but on this one: the address of its last free is what the software driver gives it next.
                if armed.swap(false, SeqCst) {
                    *there.lock().unwrap() = Some(by.alloc_pinned(BYTES).unwrap());
                }
            };
            match moment {
                "before" => driver.before_each(move |called| {
                    if called == function {
                        pin()
                    }
                }),
                // The check has been answered, and the call comes next.
                _ => driver.after_each(move |called| {
                    if called == DriverFn::cuPointerGetAttribute {
                        pin()
                    }
                }),
            }
            let answer = call(&backend, good, stale, stream);
            driver.before_each(|_| {});
            driver.after_each(|_| {});
            backend.synchronize_stream(stream).unwrap();
            backend.synchronize().unwrap();
            let pinned = pinned.lock().unwrap().take().expect("the driver was asked");
            // SAFETY: the memory is live, and no call was given its handle.
            let bytes = unsafe { pinned.as_slice() };
            assert!(bytes.iter().all(|&byte| byte == 0), "{function} {moment}: {answer:?}");
            // Known as what it is from then on.
            if pinned.as_ptr() as u64 == stale.addr() {
                assert!(call(&backend, good, stale, stream).is_err());
            }
            backend.free_pinned(pinned).unwrap();
            backend.free(good).unwrap();
        }
    }
}

/// Two ranks that wait for each other on the device must not do so on the host: neither for pinned memory.
#[test]
fn pinned_memory_is_allocated_while_a_call_waits_inside_the_driver() {
    let driver = Arc::new(HookedDriver::new(sim()));
    let backend = Arc::new(backend(driver.clone()));
    let at = backend.alloc(4096).unwrap();
    let by = Arc::clone(&backend);
    let (send, receive) = mpsc::channel();
    let gates = Mutex::new((send, Some(receive)));
    driver.before_each(move |called| {
        if called != DriverFn::cuMemcpyDtoH_v2 {
            return;
        }
        let mut gates = gates.lock().unwrap();
        let Some(receive) = gates.1.take() else { return };
        let (send, by) = (gates.0.clone(), Arc::clone(&by));
        thread::spawn(move || {
            by.bind_to_thread().unwrap();
            let pinned = by.alloc_pinned(BYTES).unwrap();
            send.send(()).unwrap();
            by.free_pinned(pinned).unwrap();
        });
        receive.recv_timeout(Duration::from_secs(20)).expect("the allocation waits for the copy");
    });
    backend.copy_d2h(at, &mut [0; 16]).unwrap();
    driver.before_each(|_| {});
    backend.free(at).unwrap();
}

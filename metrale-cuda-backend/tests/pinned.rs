// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned memory: zeroed, on the ledger apart, off it before it is freed.

mod common;

use std::sync::Arc;

use common::hooked::HookedDriver;
use common::pinned::PinnedGuard;
use common::{MIB, backend, logged, reused};
use metrale_cuda_backend::{AllocKind, ForgetError, FreeError, PinnedPtr, Remedy, StalePinned, Uploader};
use metrale_driver_sim::on_both_drivers;

on_both_drivers! {
    pinned_memory_is_zero_and_apart(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        let before = backend.memory_info().unwrap();
        for _ in 0..2 {
            // The second round may well get the memory that the first has written.
            let mut buffer = PinnedGuard::new(&backend, MIB + 1).unwrap();
            assert!(buffer.iter().all(|&byte| byte == 0));
            assert_eq!((probe.pinned_bytes(), probe.pinned_count()), (MIB + 1, 1));
            assert_eq!((backend.live_bytes(), backend.resident_bytes()), (0, 0));
            assert_eq!(backend.memory_info().unwrap(), before, "pinned memory is the host's");
            buffer.fill(0x5A);
        }
        probe.assert_nothing_live();
    }

    a_handle_is_freed_once(driver) {
        let backend = backend(driver);
        let pinned = backend.alloc_pinned(4096).unwrap();
        assert_eq!((pinned.len(), pinned.is_empty()), (4096, false));
        // SAFETY: nobody else has the handle, and no copy is queued.
        assert_eq!(unsafe { pinned.as_slice() }, [0; 4096]);
        backend.free_pinned(pinned).unwrap();
        let error = backend.free_pinned(pinned).unwrap_err().downcast::<FreeError>().expect("typed");
        assert_eq!(error.call, "free_pinned");
        assert!(matches!(error.cause, ForgetError::DoubleFree { .. }), "{error}");
    }

    /// Handles are copied and addresses come again: what a freed handle points to is another's by then.
    a_stale_handle_frees_nobody_elses_memory(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        let (stale, mut buffer) = reused(|| backend.alloc_pinned(4096).unwrap(), |pinned| {
            backend.free_pinned(*pinned).unwrap();
            PinnedGuard::new(&backend, 4096).unwrap()
        }, |pinned, buffer| pinned.as_ptr().cast_const() == buffer.as_ptr());
        buffer.fill(0x5A);

        let error = backend.free_pinned(stale).unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall);
        let text = error.to_string();
        let error = error.downcast::<StalePinned>().expect("typed");
        assert_eq!((error.pinned, error.now.map(|(bytes, _)| bytes)), (stale, Some(4096)));
        assert!(error.freed_at.is_some_and(|site| site.file() == file!()), "{text}");
        assert!(text.contains("was freed before at") && text.contains("belongs to another handle and stays"), "{text}");
        assert_eq!(probe.pinned_count(), 1);
        assert!(buffer.iter().all(|&byte| byte == 0x5A), "the buffer is still there");
        drop(buffer);
        probe.assert_nothing_live();
    }

    a_stale_handle_frees_no_uploaders_buffer(driver) {
        let backend = Arc::new(backend(driver));
        let at = backend.alloc(4096).unwrap();
        let probe = backend.ledger_probe();
        // The uploader's two buffers are the only pinned memory there is then.
        let held = || -> Vec<u64> {
            probe.allocations_of(AllocKind::Pinned).into_iter().map(|(addr, _)| addr).collect()
        };
        let (stale, mut uploader) = reused(|| backend.alloc_pinned(4096).unwrap(), |pinned| {
            backend.free_pinned(*pinned).unwrap();
            Uploader::new(&backend, 4096).unwrap()
        }, |pinned, _| held().contains(&(pinned.as_ptr() as u64)));
        assert!(backend.free_pinned(stale).unwrap_err().is::<StalePinned>());
        assert_eq!(probe.pinned_count(), 2);
        uploader.upload(&[7; 4096], at).unwrap();
        assert_eq!(uploader.finish().unwrap(), 4096);
        drop(uploader);
        backend.free(at).unwrap();
        probe.assert_nothing_live();
    }

    a_handle_is_its_own_backends_alone(driver) {
        let (one, other) = (backend(driver.clone()), backend(driver));
        let pinned = one.alloc_pinned(4096).unwrap();
        let error = other.free_pinned(pinned).unwrap_err().downcast::<FreeError>().expect("typed");
        assert!(matches!(error.cause, ForgetError::Foreign { .. }), "{error}");
        // Whoever makes a handle by hand has not allocated it here, whatever the address.
        let address = std::ptr::NonNull::new(pinned.as_ptr()).unwrap();
        // SAFETY: the memory is that of `pinned`.
        let forged = unsafe { PinnedPtr::from_raw(address, pinned.len()) };
        let error = one.free_pinned(forged).unwrap_err().downcast::<StalePinned>().expect("typed");
        assert_eq!((error.freed_at, error.now.is_some()), (None, true));
        one.free_pinned(pinned).unwrap();
    }

    what_is_left_at_the_drop_is_freed_with_a_warning(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        backend.alloc_pinned(4096).unwrap();
        std::mem::forget(backend.packed_arena(3 * MIB).unwrap());
        let ((), lines) = logged(|| drop(backend));
        assert_eq!(probe.allocations_of(AllocKind::Pinned).len() + probe.allocations_of(AllocKind::Arena).len(), 0);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("1 arena allocation (3.00 MiB)") && lines[0].contains(file!()), "{lines:?}");
        assert!(lines[1].contains("1 pinned allocation (4.00 KiB)") && lines[1].contains(file!()), "{lines:?}");
    }
}

#[test]
fn of_many_threads_with_one_handle_one_frees_it() {
    let driver = common::sim();
    let backend = backend(driver.clone());
    for _ in 0..200 {
        let pinned = backend.alloc_pinned(4096).unwrap();
        let freed: usize = std::thread::scope(|scope| {
            let free = || {
                backend.bind_to_thread().unwrap();
                usize::from(backend.free_pinned(pinned).is_ok())
            };
            let threads = [scope.spawn(free), scope.spawn(free), scope.spawn(free)];
            threads.map(|thread| thread.join().unwrap()).into_iter().sum()
        });
        assert_eq!(freed, 1);
    }
    backend.ledger_probe().assert_nothing_live();
    assert!(driver.leaks().memory.is_empty());
}

#[test]
fn memory_that_comes_dirty_is_cleaned() {
    let backend = backend(Arc::new(HookedDriver::new(common::sim())));
    let buffer = PinnedGuard::new(&backend, 5000).unwrap();
    assert!(buffer.iter().all(|&byte| byte == 0));
}

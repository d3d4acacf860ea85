// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned memory: zeroed, on the ledger apart, off it before it is freed.

mod common;

use std::sync::Arc;

use common::hooked::HookedDriver;
use common::{MIB, backend, logged};
use metrale_cuda_backend::{AllocKind, ForgetError, FreeError, PinnedBuffer};
use metrale_driver_sim::on_both_drivers;

on_both_drivers! {
    pinned_memory_is_zero_and_apart(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        let before = backend.memory_info().unwrap();
        for _ in 0..2 {
            // The second round may well get the memory that the first has written.
            let mut buffer = PinnedBuffer::new(&backend, MIB + 1).unwrap();
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

    what_is_left_at_the_drop_is_freed_with_a_warning(driver) {
        let backend = backend(driver);
        let probe = backend.ledger_probe();
        backend.alloc_pinned(4096).unwrap();
        backend.alloc_arena(3 * MIB).unwrap();
        let ((), lines) = logged(|| drop(backend));
        assert_eq!(probe.allocations_of(AllocKind::Pinned).len() + probe.allocations_of(AllocKind::Arena).len(), 0);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("1 arena allocation (3.00 MiB)") && lines[0].contains(file!()), "{lines:?}");
        assert!(lines[1].contains("1 pinned allocation (4.00 KiB)") && lines[1].contains(file!()), "{lines:?}");
    }
}

#[test]
fn memory_that_comes_dirty_is_cleaned() {
    let backend = backend(Arc::new(HookedDriver::new(common::sim())));
    let buffer = PinnedBuffer::new(&backend, 5000).unwrap();
    assert!(buffer.iter().all(|&byte| byte == 0));
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! cudarc's allocations on the ledger, and off it again.

mod common;

use common::{KERNELS, logged};
use metrale_cuda_backend::{
    AllocKind, BackendConfig, BadArgument, CopyOutOfBounds, KernelLaunch, MetraleCudaBackend,
};

mod a_slice_is_adopted_used_by_both_and_let_go_of {
    use super::*;

    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        let backend = MetraleCudaBackend::builder()
            .modules(&[("kernels", KERNELS)])
            .config(BackendConfig::default())
            .build()
            .unwrap();
        let context = backend.host().cudarc_context().unwrap();
        // SAFETY: the backend holds the host, and outlives what is made of the stream.
        let stream = unsafe { backend.host().cudarc_stream(&context) }.unwrap();
        let slice = stream.alloc_zeros::<u32>(1000).unwrap();
        let adopted = {
            let _scope = backend.scope("blas");
            backend.adopt(slice).unwrap()
        };
        let held = backend.ledger_probe().allocations_of(AllocKind::Arena);
        let [(addr, record)] = &held[..] else { panic!("{held:?}") };
        assert_eq!(
            (*addr, record.bytes, record.scope.as_deref()),
            (adopted.ptr().addr(), 4000, Some("blas"))
        );
        assert_eq!(record.site.file(), file!());

        // Our kernel writes, in the order of the shared stream; cudarc reads.
        let fill = backend.kernel("kernels", "fill").unwrap();
        let mut launch =
            KernelLaunch::new(fill).grid([4, 1, 1]).block([256, 1, 1]).ptr(adopted.ptr()).u32(7).u32(1000);
        // SAFETY: the arguments are the kernel's parameters; it writes a thousand words.
        unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
        assert_eq!(stream.clone_dtoh(&*adopted).unwrap(), [7; 1000]);
        // Its size is known.
        let past = backend.copy_h2d(&[0; 4001], adopted.ptr()).unwrap_err();
        assert!(past.is::<CopyOutOfBounds>(), "{past:#}");
        // It is cudarc's to free: no sweep takes it, and no free of ours.
        assert_eq!(backend.sweep_unreleased().unwrap(), 0);
        assert!(backend.free(adopted.ptr()).is_err());

        let slice = adopted.let_go();
        assert!(backend.ledger_probe().allocations_of(AllocKind::Arena).is_empty());
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [7; 1000]);

        // Dropped instead: off the ledger, and freed by cudarc.
        drop(backend.adopt(slice).unwrap());
        assert!(backend.ledger_probe().allocations_of(AllocKind::Arena).is_empty());
        drop(stream);
        let ((), lines) = logged(|| drop(backend));
        assert!(lines.is_empty(), "{lines:?}");
    }
}

mod memory_the_ledger_holds_comes_back_to_cudarc_as_it_was {
    use super::*;

    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        let backend = common::backend(metrale_driver_sim::system_driver());
        let context = backend.host().cudarc_context().unwrap();
        // SAFETY: the backend holds the host, and outlives what is made of the stream.
        let stream = unsafe { backend.host().cudarc_stream(&context) }.unwrap();
        let ptr = backend.alloc(4096).unwrap();
        // SAFETY: the address is an allocation of that many bytes, valid as bytes.
        let slice = unsafe { stream.upgrade_device_ptr::<u8>(ptr.addr(), 4096) };
        let refused = backend.adopt(slice).unwrap_err();
        assert!(refused.cause.is::<BadArgument>(), "{refused}");
        // Not cudarc's to free.
        assert_eq!(refused.slice.leak(), ptr.addr());
        backend.free(ptr).unwrap();
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a primary context, by its last release or by a fault, and the attributes of a kernel, as an H200 (driver
//! 580.159.04) answered, on both drivers.

mod common;

use common::{Cuda, PTX, status};
use metrale_driver_sim::{ContextGuard, on_both_drivers};

/// The primary context of the first device, current here; the tests release it themselves.
fn retained(cuda: &Cuda) -> (i32, u64) {
    assert_eq!(cuda.init(0), 0);
    let device = cuda.device(0).unwrap();
    let context = cuda.retain(device).unwrap();
    assert_eq!(cuda.set_current(context), 0);
    (device, context)
}

on_both_drivers! {
    /// It stays current and is answered as destroyed; retained again it is a fresh one under the same handle.
    after_the_last_release(driver) {
        let cuda = Cuda::new(&driver);
        let (device, context) = retained(&cuda);
        let (memory, stream) = (cuda.alloc(4096).unwrap(), cuda.stream(1).unwrap());
        assert_eq!(cuda.release(device), 0);
        assert_eq!((status(cuda.alloc(16)), cuda.free(memory)), (709, 709));
        assert_eq!((status(cuda.info()), cuda.sync()), (709, 709));
        // A stream of a context that was destroyed: the H200 answered the one in one run and the other in another.
        assert!([201, 709].contains(&cuda.stream_sync(stream)));
        assert_eq!(cuda.current(), Ok(context));
        assert_eq!(cuda.set_current(context), 0);
        assert_eq!(status(cuda.alloc(16)), 709);

        assert_eq!(cuda.retain(device), Ok(context));
        assert_eq!(cuda.set_current(context), 0);
        assert_eq!(status(cuda.info()), 0);
        let memory = cuda.alloc(4096).unwrap();
        assert_eq!((cuda.free(memory), cuda.sync(), cuda.release(device)), (0, 0, 0));
    }

    /// A thread without a current context frees all the same, and does nothing else.
    a_free_needs_no_current_context(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (one, other) = (cuda.alloc(4096).unwrap(), cuda.alloc(3 << 20).unwrap());
        let there = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                (status(cuda.alloc(4096)), status(cuda.info()), cuda.sync(), cuda.free(one), cuda.free(other))
            });
            thread.join().unwrap()
        });
        assert_eq!(there, (201, 201, 201, 0, 0));
        assert_eq!(cuda.free(one), 1);
    }

    /// A process whose kernel faulted gets no sound context any more.
    after_a_fault(driver; sim: common::sim()) {
        let cuda = Cuda::new(&driver);
        let (device, context) = retained(&cuda);
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let poke = cuda.function(module, "poke").unwrap();
        assert_eq!((cuda.poke(poke, 0x1000, 1, 0), cuda.sync()), (0, 700));
        assert_eq!(cuda.release(device), 0);
        assert_eq!(cuda.retain(device), Err(700));
        assert_eq!(cuda.set_current(context), 0);
        assert_eq!((status(cuda.alloc(16)), status(cuda.info())), (709, 709));
    }

    /// A kernel that uses nothing, in a text of version 7.0 for sm_70. Its registers are the compiler's business.
    attributes_of_a_kernel(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let text = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n\0";
        let module = cuda.load(text).unwrap();
        let k = cuda.function(module, "k").unwrap();
        let device = cuda.context_device().unwrap();
        let architecture = 10 * cuda.attribute(75, device).unwrap() + cuda.attribute(76, device).unwrap();
        let measured =
            [(0, 1024), (1, 0), (2, 0), (3, 0), (5, 70), (6, architecture), (7, 0), (8, 49_152), (9, -1)];
        for (attribute, value) in measured {
            assert_eq!(cuda.function_get(attribute, k), Ok(value), "attribute {attribute}");
        }
        assert_eq!(cuda.unload(module), 0);
    }
}

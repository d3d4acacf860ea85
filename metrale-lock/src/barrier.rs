// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pair of barriers of which one costs nothing and the other has the kernel run one on every thread of the process.
//!
//! Of two threads of which one stores, passes [`light`] and loads what the other stores, and the other stores, passes
//! [`heavy`] and loads what the first one stores, at least one sees the other's store: as with a sequentially consistent fence
//! on either side.

#[cfg(all(target_os = "linux", not(loom)))]
mod of_system {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};
    use std::thread;
    use std::time::Duration;

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether the process may have the kernel run barriers; asked once, which takes it milliseconds where it has threads.
    static REGISTERED: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;

    fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }

    pub(crate) fn is_available() -> bool {
        REGISTERED.load(Ordering::Relaxed) == YES
    }

    pub(crate) fn prepare() {
        if REGISTERED.load(Ordering::Relaxed) == UNKNOWN {
            REGISTERED.store(if register() { YES } else { NO }, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn light() {
        // The kernel's barrier comes between two instructions of this thread, so only the compiler must keep their order.
        compiler_fence(Ordering::SeqCst);
    }

    #[cold]
    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
        // Once registered, a process has this for good; a child that was forked off may have to ask again.
        if membarrier(MembarrierCommand::PrivateExpedited).is_err() && !register() {
            // Forbidden since, by a filter of system calls. A processor holds a store back for some hundred cycles at most, and
            // an interrupt of the timer is a barrier too.
            thread::sleep(Duration::from_millis(100));
        }
        fence(Ordering::SeqCst);
    }
}

#[cfg(not(any(target_os = "linux", loom)))]
mod of_system {
    pub(crate) fn is_available() -> bool {
        false
    }

    pub(crate) fn prepare() {}

    pub(crate) fn light() {}

    pub(crate) fn heavy() {}
}

/// By the definition above, and more: a fence of loom's also releases and acquires, which the real light one does not.
#[cfg(loom)]
mod of_system {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn is_available() -> bool {
        true
    }

    pub(crate) fn prepare() {}

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

pub(crate) use of_system::{heavy, is_available, light, prepare};

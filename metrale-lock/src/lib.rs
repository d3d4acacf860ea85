// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mutex for what one thread does again and again and others seldom: [`BiasedMutex`].
//!
//! A lock taken and released costs a locked instruction at least, some twenty cycles on many processors, during which nothing
//! else of the thread's goes on; even where no other thread ever comes. Where bookkeeping takes tens of cycles, that is most
//! of its cost. So a thread that took a lock often, with nobody in between, has it *biased* to itself: from then on it takes
//! it by plain loads and stores. A thread that comes in between pays for both: it takes the bias back, which has the kernel
//! bring every running thread of the process to a common order (`membarrier(2)`, microseconds), and then waits as for any
//! lock.
//!
//! ```text
//!              a thread took it often, nobody in between
//!   shared  ────────────────────────────────────────────────>  biased to that thread
//!   one compare-and-swap,                                      plain stores for it
//!   one store         <──────────────────────────────────────
//!              another thread comes: one barrier of the whole process
//! ```
//!
//! Each time a bias is taken back, the next one takes twice as many turns to come, up to a bound; so threads that take turns
//! soon do as with any spin lock. The first bias of a process asks the kernel for such barriers, which takes milliseconds where
//! there are threads already: [`prepare`] does that at a time of one's own choice. Where the system has no such barrier (other systems than Linux, before 4.14, or where a
//! sandbox forbids the call), nothing is ever biased.
//!
//! ```
//! use metrale_lock::BiasedMutex;
//!
//! let total = BiasedMutex::new(0_u64);
//! for bytes in 0..1000 {
//!     *total.lock() += bytes; // from some turn on without a locked instruction
//! }
//! std::thread::scope(|threads| {
//!     threads.spawn(|| *total.lock() += 1);
//! });
//! assert_eq!(*total.lock(), 499_501);
//! ```

mod barrier;
mod biased_mutex;
mod sync;
mod thread_token;

pub use biased_mutex::{BiasedGuard, BiasedMutex};

/// Asks the kernel, once in a process, for what it takes to bias locks. Else the first thread to be due for a bias does so, without
/// the lock, and waits for some milliseconds if the process has other threads.
pub fn prepare() {
    barrier::prepare();
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks and atomics: the real ones, or loom's, which tries every interleaving of a small model.

/// Held for tens of nanoseconds as a rule. Who finds it taken lets other threads run, so that a holder that was put aside
/// gets on.
#[cfg(not(loom))]
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, spin::Yield>;
#[cfg(not(loom))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::MutexGuard;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Loom's mutex with the real one's calls.
#[cfg(loom)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Keeps what one thread writes off the cache lines of another (two lines, since they are fetched in pairs).
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A small number that few other threads have.
#[cfg(not(loom))]
pub(crate) fn thread_number() -> u64 {
    use std::cell::Cell;
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(u64::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == u64::MAX {
            number.set(of_id(std::thread::current().id()));
        }
        number.get()
    })
}

#[cfg(loom)]
pub(crate) fn thread_number() -> u64 {
    of_id(loom::thread::current().id())
}

/// Thread ids are counted up, and hashing one hands its number over.
fn of_id(id: impl std::hash::Hash) -> u64 {
    struct Number(u64);
    impl std::hash::Hasher for Number {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            for &byte in bytes {
                self.0 = self.0.wrapping_mul(257).wrapping_add(byte.into());
            }
        }

        fn write_u64(&mut self, value: u64) {
            self.0 = value;
        }
    }
    let mut number = Number(0);
    id.hash(&mut number);
    // One number stands for "not asked yet".
    std::hash::Hasher::finish(&number) & (u64::MAX >> 1)
}

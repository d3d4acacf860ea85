// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks and atomics: the real ones, or loom's, which tries every interleaving of a small model.

#[cfg(not(loom))]
pub(crate) use metrale_lock::BiasedGuard;
#[cfg(not(loom))]
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::MutexGuard;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pauses, of some tens of nanoseconds each, between two looks of one who waits for long.
#[cfg(not(loom))]
const LONGEST_PAUSE: u32 = 2048;

/// How one who finds a lock taken waits. Locks here are held for tens of nanoseconds as a rule. Who finds one taken looks again
/// after longer and longer pauses: then a holder that has more to do goes on with everything in its own caches, and many threads
/// get through sooner than by taking turns.
#[cfg(not(loom))]
struct Waiting {
    pause: u32,
    /// Pauses so far.
    waited: u32,
}

#[cfg(not(loom))]
impl Waiting {
    const START: Self = Self { pause: 1, waited: 0 };

    fn a_while(&mut self) {
        for _ in 0..self.pause {
            std::hint::spin_loop();
        }
        self.waited = self.waited.saturating_add(self.pause);
        if self.pause < LONGEST_PAUSE {
            self.pause *= 2;
        } else {
            // A holder that was put aside gets on.
            std::thread::yield_now();
        }
    }
}

/// For what any thread wants.
#[cfg(not(loom))]
pub(crate) struct Mutex<T>(spin::mutex::SpinMutex<T>);

#[cfg(not(loom))]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(spin::mutex::SpinMutex::new(value))
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        let mut waiting = Waiting::START;
        loop {
            waiting.a_while();
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
        }
    }
}

/// For what one thread wants most of the time: half of what a record would cost it otherwise is taking a lock.
#[cfg(not(loom))]
pub(crate) struct Biased<T>(metrale_lock::BiasedMutex<T>);

#[cfg(not(loom))]
impl<T> Biased<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(metrale_lock::BiasedMutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        self.0.try_lock()
    }

    #[inline]
    pub(crate) fn lock(&self) -> BiasedGuard<'_, T> {
        let mut waiting = Waiting::START;
        self.0.lock_by(|| waiting.a_while())
    }

    /// Locks what was found taken, and tells how many pauses that took.
    #[cold]
    pub(crate) fn wait(&self) -> (BiasedGuard<'_, T>, u32) {
        let mut waiting = Waiting::START;
        waiting.a_while();
        let guard = self.0.lock_by(|| waiting.a_while());
        (guard, waiting.waited)
    }
}

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

    pub(crate) fn wait(&self) -> (MutexGuard<'_, T>, u32) {
        (self.lock(), 1)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Who has a lock, and why at once no other, is tried in the lock's own models.
#[cfg(loom)]
pub(crate) type Biased<T> = Mutex<T>;
#[cfg(loom)]
pub(crate) type BiasedGuard<'a, T> = MutexGuard<'a, T>;

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

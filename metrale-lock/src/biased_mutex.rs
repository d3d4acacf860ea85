// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`BiasedMutex`] and its guard.
//!
//! Why two threads never have it at once: all but the owner take `locked` first, by compare-and-swap. The owner goes by
//! `held`, a flag that only it writes:
//!
//! ```text
//!   owner                          another thread, with `locked` taken
//!     held = true                    owner = nobody
//!     light barrier                  heavy barrier
//!     is owner still I?              is held false?
//!     yes: it has the lock           yes: it has the lock
//! ```
//!
//! By what the barriers are, at least one of them sees the other's store, and answers no. An owner that sees another's comes
//! as everybody does; a thread that sees the owner inside leaves `locked` and comes again. Only the thread itself makes itself
//! the owner, while it has the lock. A thread that was the owner may find out late that it is no more, and write its flag when
//! another is the owner: so each of them has a flag of its own, and the flags are few.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::barrier;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, yield_now};
use crate::thread_token;

/// Threads that one lock can be biased to in its life, one at a time. Where more than that take turns at it, little is gained.
#[cfg(not(loom))]
const SEATS: usize = 8;
#[cfg(loom)]
const SEATS: usize = 2;
const SEAT_BITS: u32 = SEATS.trailing_zeros();
const _: () = assert!(SEATS.is_power_of_two());

/// Turns in a row after which a thread is made the owner, the first time: if as many follow, they save what it costs to take
/// the bias back.
#[cfg(not(loom))]
const TURNS: u32 = 256;
#[cfg(loom)]
const TURNS: u32 = 1;
/// And at most, after it was taken back often.
const MOST_TURNS: u32 = 1 << 16;

/// The owner, or the thread with a seat, where there is none. Threads are counted from 1.
const NOBODY: u64 = 0;

/// Pauses between two looks of one who waits long.
#[cfg(not(loom))]
const LONGEST_PAUSE: u32 = 64;
/// Loom has to be told that others are waited for.
#[cfg(loom)]
const LONGEST_PAUSE: u32 = 0;

/// A mutex that costs the thread to which it is biased two plain stores, some loads and no locked instruction; see the
/// [crate](crate).
///
/// It spins: it is for what is held so shortly that a thread had better wait than sleep. It is not fair, not reentrant, and
/// not poisoned where its holder panics. No call allocates.
// In this order, so that all but the value and the seats is in one cache line.
#[repr(C)]
pub struct BiasedMutex<T> {
    /// The token of the thread to which it is biased, and its seat. Written with `locked` held, as all below but `held`.
    owner: AtomicU64,
    /// Whether the owner with that seat has it. Each is written by the thread with that seat only.
    held: [AtomicBool; SEATS],
    /// Whether another thread has it, or is about to see whether it can.
    locked: AtomicBool,
    /// The seat of the last owner.
    seat: AtomicU8,
    /// How often the thread that took it last did so since another one had it; turns of an owner are not counted.
    turns: AtomicU32,
    /// How often it takes to be made the owner.
    wanted: AtomicU32,
    /// The thread that took it last.
    last: AtomicU64,
    value: UnsafeCell<T>,
    /// The threads that have the seats. They are filled in their order.
    seats: [AtomicU64; SEATS],
}

// SAFETY: a guard is the only way to the value from a shared mutex, one thread at a time has a guard, and what it did happened
// before the next one gets its own (see the module's text); `T: Send`, as the value goes from thread to thread.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

impl<T> BiasedMutex<T> {
    /// A mutex that nobody holds, biased to nobody.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(NOBODY),
            held: [const { AtomicBool::new(false) }; SEATS],
            locked: AtomicBool::new(false),
            seat: AtomicU8::new(0),
            turns: AtomicU32::new(0),
            wanted: AtomicU32::new(TURNS),
            last: AtomicU64::new(NOBODY),
            value: UnsafeCell::new(value),
            seats: [const { AtomicU64::new(NOBODY) }; SEATS],
        }
    }

    /// A mutex that nobody holds, biased to nobody.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(NOBODY),
            held: std::array::from_fn(|_| AtomicBool::new(false)),
            locked: AtomicBool::new(false),
            seat: AtomicU8::new(0),
            turns: AtomicU32::new(0),
            wanted: AtomicU32::new(TURNS),
            last: AtomicU64::new(NOBODY),
            value: UnsafeCell::new(value),
            seats: std::array::from_fn(|_| AtomicU64::new(NOBODY)),
        }
    }

    /// The lock, where that needs no wait for whoever has it. `None` while a thread has it, this one too; seldom also where
    /// none has, while another looks whether it can. Where it is biased to another thread this takes microseconds, of the
    /// kernel's.
    // Always inlined: for the owner it is a handful of instructions.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        let flag = self.try_as_owner().or_else(|| self.try_as_any())?;
        Some(BiasedGuard { mutex: self, flag, stays: PhantomData })
    }

    /// The flag by which the owner has the lock from now on, if this thread is the owner and does not have it already.
    #[inline(always)]
    fn try_as_owner(&self) -> Option<&AtomicBool> {
        let owner = self.owner.load(Relaxed);
        if owner >> SEAT_BITS != thread_token::known() {
            return None;
        }
        let held = &self.held[owner as usize % SEATS];
        if held.load(Relaxed) {
            return None;
        }
        held.store(true, Relaxed);
        barrier::light();
        if self.owner.load(Relaxed) == owner {
            return Some(held);
        }
        // With all that this thread did when it had the lock: who reads this does not read that it was let go then. (No model of
        // loom's tells, for there the barrier above releases too.)
        held.store(false, Release);
        None
    }

    /// The flag by which a thread has the lock from now on, whichever it is.
    #[inline(never)]
    fn try_as_any(&self) -> Option<&AtomicBool> {
        #[cfg(not(loom))]
        // With no lock held, for the first time it may take milliseconds. Loom has barriers at hand.
        if self.turns.load(Relaxed) + 1 >= self.wanted.load(Relaxed) {
            barrier::prepare();
        }
        self.locked.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        if self.owner.load(Relaxed) != NOBODY {
            self.take_back();
        }
        if self.held[usize::from(self.seat.load(Relaxed))].load(Acquire) {
            // The last owner has it, or finds out just now that it is the owner no more.
            self.locked.store(false, Release);
            return None;
        }
        let me = thread_token::get();
        let turns = if self.last.load(Relaxed) == me { self.turns.load(Relaxed) + 1 } else { 1 };
        self.last.store(me, Relaxed);
        self.turns.store(turns, Relaxed);
        let held = if turns >= self.wanted.load(Relaxed) { self.make_owner(me) } else { None };
        Some(held.unwrap_or(&self.locked))
    }

    /// Takes the bias back from whoever has it. With `locked` held.
    #[cold]
    fn take_back(&self) {
        self.owner.store(NOBODY, Relaxed);
        barrier::heavy();
        self.wanted.store((self.wanted.load(Relaxed) * 2).min(MOST_TURNS), Relaxed);
    }

    /// Makes this thread the owner, if one can be made: the flag by which it has the lock from now on. With `locked` held, and
    /// where an owner is made, no more.
    #[cold]
    fn make_owner(&self, me: u64) -> Option<&AtomicBool> {
        self.turns.store(0, Relaxed);
        if !barrier::is_available() {
            return None;
        }
        let fits = |seated: u64| seated == me || seated == NOBODY;
        let seat = self.seats.iter().position(|seated| fits(seated.load(Relaxed)))?;
        self.seats[seat].store(me, Relaxed);
        self.seat.store(seat as u8, Relaxed);
        let held = &self.held[seat];
        held.store(true, Relaxed);
        self.owner.store(me << SEAT_BITS | seat as u64, Relaxed);
        self.locked.store(false, Release);
        Some(held)
    }

    /// The lock, once whoever has it has let it go. Blocks for ever where that is this thread.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        let mut pause = 1;
        self.lock_by(|| {
            if pause <= LONGEST_PAUSE {
                (0..pause).for_each(|_| std::hint::spin_loop());
                pause *= 2;
            } else {
                // A holder that was put aside gets on.
                yield_now();
            }
        })
    }

    /// [`lock`](Self::lock), where the caller says how to wait: `wait` is called between two looks, to sleep in, say, for who
    /// may have to wait long.
    #[inline]
    pub fn lock_by(&self, wait: impl FnMut()) -> BiasedGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(wait),
        }
    }

    #[cold]
    fn wait(&self, mut wait: impl FnMut()) -> BiasedGuard<'_, T> {
        loop {
            wait();
            if !self.is_locked()
                && let Some(guard) = self.try_lock()
            {
                return guard;
            }
        }
    }

    /// Whether a thread seems to have it, for hints: by the time of the answer that may be otherwise.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.locked.load(Relaxed) || self.held[usize::from(self.seat.load(Relaxed))].load(Relaxed)
    }

    /// Whether it is biased to a thread, for hints, as [`is_locked`](Self::is_locked).
    pub fn is_biased(&self) -> bool {
        self.owner.load(Relaxed) != NOBODY
    }

    /// The value, which nobody else can be at.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value, and the mutex is no more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Default> Default for BiasedMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for BiasedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the value: looking at it might take a bias away.
        let (locked, biased) = (self.is_locked(), self.is_biased());
        f.debug_struct("BiasedMutex")
            .field("locked", &locked)
            .field("biased", &biased)
            .finish_non_exhaustive()
    }
}

/// Has the lock until it is dropped.
#[must_use = "the lock is let go when this is dropped"]
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    /// By which of the flags it has it.
    flag: &'a AtomicBool,
    /// It stays with its thread: what the owner did is seen by the owner itself, which does not look.
    stays: PhantomData<*const ()>,
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody else has a guard, and through this one nobody changes the value while the answer lives.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else has a guard, and this one is borrowed for as long as the answer lives.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: fmt::Debug> fmt::Debug for BiasedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.flag.store(false, Release);
    }
}

#[cfg(all(test, loom))]
mod models;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread at a time has the lock, whoever it is biased to.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;

use metrale_lock::BiasedMutex;

/// More turns in a row than it ever takes to be made the owner.
const MANY: u64 = 100_000;

/// Whether a lock is ever biased here: on Linux, unless something forbids the call that it takes.
fn is_ever_biased() -> bool {
    let mutex = BiasedMutex::new(0);
    turns(&mutex, MANY);
    mutex.is_biased()
}

fn turns(mutex: &BiasedMutex<u64>, turns: u64) {
    (0..turns).for_each(|_| *mutex.lock() += 1);
}

/// Two numbers that are one, but for the moment when somebody has the lock.
#[derive(Default)]
struct Twins(u64, u64);

impl Twins {
    fn grow(&mut self) {
        assert_eq!(self.0, self.1, "another thread is at it");
        self.0 += 1;
        std::hint::black_box(&mut *self);
        self.1 += 1;
    }
}

/// A pseudo-random number below `end`.
fn below(state: &mut u64, end: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) % end
}

/// Bursts, so that each thread becomes the owner again and again, and loses that in all places.
fn bursts(threads: u64, bursts: u64, longest: u64) {
    let mutex = BiasedMutex::new(Twins::default());
    let total: u64 = thread::scope(|scope| {
        let each: Vec<_> = (1..=threads)
            .map(|seed| {
                let mutex = &mutex;
                scope.spawn(move || {
                    let (mut state, mut all) = (0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed), 0);
                    for _ in 0..bursts {
                        let turns = 1 + below(&mut state, longest);
                        (0..turns).for_each(|_| mutex.lock().grow());
                        all += turns;
                        (0..below(&mut state, 2000)).for_each(|_| std::hint::spin_loop());
                    }
                    all
                })
            })
            .collect();
        each.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let Twins(one, other) = mutex.into_inner();
    assert_eq!((one, other), (total, total));
}

#[test]
fn two_threads_in_bursts() {
    bursts(2, 4000, 1500);
}

/// More threads than one lock can be biased to.
#[test]
fn twenty_threads_in_bursts() {
    bursts(20, 200, 1500);
}

#[test]
fn one_thread_often_and_another_seldom() {
    let (mutex, over) = (BiasedMutex::new(Twins::default()), AtomicBool::new(false));
    let often = thread::scope(|scope| {
        let often = scope.spawn(|| {
            let mut turns = 0;
            while !over.load(Ordering::Relaxed) {
                mutex.lock().grow();
                turns += 1;
            }
            turns
        });
        for _ in 0..300 {
            mutex.lock().grow();
            thread::sleep(std::time::Duration::from_micros(200));
        }
        over.store(true, Ordering::Relaxed);
        often.join().unwrap()
    });
    assert_eq!(mutex.lock().0, often + 300);
}

#[test]
fn many_turns_bias_it_and_another_thread_takes_that_back() {
    let mutex = BiasedMutex::new(0);
    assert!(!mutex.is_biased());
    turns(&mutex, 10);
    assert!(!mutex.is_biased(), "for so few turns it does not pay");
    turns(&mutex, MANY);
    assert_eq!(mutex.is_biased(), is_ever_biased());
    thread::scope(|scope| scope.spawn(|| turns(&mutex, 1)).join()).unwrap();
    assert!(!mutex.is_biased());
    turns(&mutex, MANY);
    assert_eq!(mutex.is_biased(), is_ever_biased(), "it comes back, after more turns");
    assert_eq!(*mutex.lock(), 11 + 2 * MANY);
}

#[test]
#[cfg(target_os = "linux")]
fn linux_has_what_it_takes() {
    assert!(is_ever_biased(), "membarrier(2) is refused here: locks work, and none is biased");
}

#[test]
fn each_time_that_it_is_taken_back_it_takes_longer_to_come() {
    fn turns_to_bias(mutex: &BiasedMutex<u64>) -> Option<u64> {
        (1..=MANY).find(|_| {
            turns(mutex, 1);
            mutex.is_biased()
        })
    }
    let mutex = BiasedMutex::new(0);
    let mut before = 0;
    for _ in 0..8 {
        let Some(now) = turns_to_bias(&mutex) else { return assert!(!is_ever_biased()) };
        assert!(now > before, "{now} after {before}");
        before = now;
        thread::scope(|scope| scope.spawn(|| turns(&mutex, 1)).join()).unwrap();
    }
}

/// A thread that has it does not get it again, biased or not, nor after the bias was taken from it meanwhile.
#[test]
fn it_is_not_reentrant() {
    for before in [0, MANY] {
        let mutex = BiasedMutex::new(0);
        turns(&mutex, before);
        let guard = mutex.lock();
        assert!(mutex.is_locked() && mutex.try_lock().is_none());
        let others = thread::scope(|scope| scope.spawn(|| mutex.try_lock().is_none()).join());
        assert!(others.unwrap(), "another thread does not get it either");
        assert!(mutex.try_lock().is_none(), "not after that other one looked");
        drop(guard);
        assert!(!mutex.is_locked());
        assert_eq!(mutex.try_lock().map(|number| *number), Some(before));
    }
}

#[test]
fn who_waits_gets_it_when_the_owner_lets_go() {
    let mutex = BiasedMutex::new(0);
    turns(&mutex, MANY);
    let guard = mutex.lock();
    thread::scope(|scope| {
        let (say, heard) = mpsc::channel();
        let mutex = &mutex;
        let waiting = scope.spawn(move || {
            let mut waits = 0_u32;
            *mutex.lock_by(|| {
                if waits == 0 {
                    say.send(()).unwrap();
                }
                waits += 1;
                thread::yield_now();
            }) += 1;
            waits
        });
        heard.recv().unwrap();
        drop(guard);
        assert!(waiting.join().unwrap() > 0);
    });
    assert_eq!(*mutex.lock(), MANY + 1);
}

#[test]
fn what_an_ended_thread_owned_is_anybodys() {
    let mutex = BiasedMutex::new(0);
    for _ in 0..12 {
        thread::scope(|scope| scope.spawn(|| turns(&mutex, MANY)).join()).unwrap();
    }
    turns(&mutex, 1);
    assert_eq!(*mutex.lock(), 12 * MANY + 1);
}

/// The second owner's flag is its own, and is the one that others look at.
#[test]
fn a_second_owner_keeps_others_out() {
    let mutex = BiasedMutex::new(0);
    thread::scope(|scope| scope.spawn(|| turns(&mutex, MANY)).join()).unwrap();
    turns(&mutex, MANY);
    let guard = mutex.lock();
    let out = thread::scope(|scope| scope.spawn(|| mutex.try_lock().is_none()).join());
    assert!(out.unwrap());
    drop(guard);
    assert_eq!(*mutex.lock(), 2 * MANY);
}

#[test]
fn a_holder_that_panics_lets_go() {
    for before in [0, MANY] {
        let mutex = BiasedMutex::new(0);
        turns(&mutex, before);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = mutex.lock();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(mutex.try_lock().map(|number| *number), Some(before));
    }
}

/// What an owner wrote without a locked instruction, another thread sees.
#[test]
fn hand_over_from_thread_to_thread() {
    const ROUNDS: u64 = 200;
    let (mutex, barrier) = (BiasedMutex::new(Vec::new()), Barrier::new(2));
    thread::scope(|scope| {
        for me in 0..2 {
            let (mutex, barrier) = (&mutex, &barrier);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    if round % 2 == me {
                        (0..300).for_each(|_| mutex.lock().push(round));
                    }
                    barrier.wait();
                }
            });
        }
    });
    let written = mutex.into_inner();
    assert!(written.iter().copied().eq((0..ROUNDS).flat_map(|round| [round; 300])));
}

#[test]
fn the_value_without_a_lock_and_what_is_shown() {
    let mut mutex = BiasedMutex::<u64>::default();
    *mutex.get_mut() = 3;
    assert_eq!(format!("{mutex:?}"), "BiasedMutex { locked: false, biased: false, .. }");
    assert_eq!(format!("{:?}", mutex.lock()), "3");
    assert_eq!(mutex.into_inner(), 3);
}

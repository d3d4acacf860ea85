// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small models of threads at one mutex, in every interleaving that loom can make of them. Here one turn makes an owner, so
//! that each thread becomes one, loses that to the other and finds it out late.
//!
//! `cargo xtask ci --job loom`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

/// A number that loom watches: two accesses that no lock orders end the test.
type Watched = UnsafeCell<u32>;

fn model(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

fn add_one(guard: &BiasedGuard<'_, Watched>) {
    guard.with_mut(|number| {
        // SAFETY: the pointer is to a number that lives; loom sees to it that nobody else is at it.
        unsafe { *number += 1 };
    });
}

fn read(guard: &BiasedGuard<'_, Watched>) -> u32 {
    // SAFETY: the pointer is to a number that lives; loom sees to it that nobody writes it.
    guard.with(|number| unsafe { *number })
}

/// Tries to take it as often as that: how often it could. Who waits instead has loom try far more, and nothing else.
fn tries(mutex: &BiasedMutex<Watched>, tries: u32) -> u32 {
    (0..tries).filter(|_| mutex.try_lock().inspect(add_one).is_some()).count() as u32
}

/// None is at it with another, and what each did is there in the end. One at least gets it.
fn threads<const OTHERS: usize>(each: [u32; OTHERS], mine: u32, preemptions: Option<usize>) {
    model(preemptions, move || {
        let mutex = Arc::new(BiasedMutex::new(Watched::new(0)));
        let others = each.map(|each| {
            let mutex = Arc::clone(&mutex);
            thread::spawn(move || tries(&mutex, each))
        });
        let mut all = tries(&mutex, mine);
        all += others.map(|other| other.join().unwrap()).iter().sum::<u32>();
        assert!(all > 0);
        assert_eq!(read(&mutex.lock()), all);
    });
}

#[test]
fn two_threads_make_themselves_owners_in_turn() {
    threads([3], 3, Some(5));
}

#[test]
fn two_threads_in_every_order() {
    threads([2], 2, None);
}

/// More threads than seats, too: what one that lost its bias still writes is no other's flag.
#[test]
fn three_threads() {
    threads([2, 2], 2, Some(3));
}

/// One that waits gets it.
#[test]
fn an_owner_and_one_that_waits() {
    model(None, || {
        let mutex = Arc::new(BiasedMutex::new(Watched::new(0)));
        add_one(&mutex.lock());
        assert!(mutex.is_biased());
        let other = Arc::clone(&mutex);
        let thread = thread::spawn(move || add_one(&other.lock()));
        add_one(&mutex.lock());
        thread.join().unwrap();
        assert_eq!(read(&mutex.lock()), 3);
    });
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! In a steady state of small allocations the ledger asks the host for no memory. Here, since counting takes an allocator of
//! one's own, which safe code cannot be.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::Location;
use std::sync::Barrier;

use metrale_ledger::Ledger;

/// The system's allocator, which counts what each thread asks it for.
struct Counting;

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending counts no more.
    let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that are asked for.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static HOST: Counting = Counting;

/// How often this thread asks the host for memory in `work`.
fn requests(work: impl FnOnce()) -> u64 {
    let before = REQUESTS.get();
    work();
    REQUESTS.get() - before
}

const BASE: u64 = 0x7f0e_0000_0000;
/// Addresses of 4 KiB: 512 of them in a page.
const PLACE: u64 = 4096;

/// Records and frees, `live` at once: the nth allocation is in one of twice as many places.
fn come_and_go(ledger: &Ledger, pairs: u64, live: u64, place: impl Fn(u64) -> u64) {
    let addr = |n: u64| BASE + place(n % (2 * live)) * PLACE;
    for n in 0..pairs + live {
        if n >= live {
            assert!(ledger.forget(addr(n - live)).is_some());
        }
        if n < pairs {
            assert!(ledger.record(addr(n), 1000, Location::caller()).misuse.is_none());
        }
    }
}

#[test]
fn the_counter_counts() {
    assert!(requests(|| drop(std::hint::black_box(Box::new(7)))) > 0);
    assert_eq!(requests(|| ()), 0);
}

#[test]
fn one_thread_in_a_steady_state_asks_for_nothing() {
    for live in [1, 100, 25_000] {
        let ledger = Ledger::new();
        let _layer = ledger.scope("layers.0");
        // What stays keeps pages; what comes and goes takes its own, and gives them back whole.
        for n in 0..1000 {
            ledger.record(BASE + (1 << 40) + n * PLACE, 1000, Location::caller());
        }
        let round = || come_and_go(&ledger, 100_000, live, |n| n);
        round();
        assert_eq!(requests(round), 0, "{live} live");
        let reads = || {
            std::hint::black_box((ledger.live_bytes(), ledger.resident_bytes(), ledger.slack_bytes()));
        };
        assert_eq!(requests(reads), 0);
    }
}

#[test]
fn eight_threads_in_a_steady_state_ask_for_next_to_nothing() {
    const THREADS: u64 = 8;
    const PAIRS: u64 = 200_000;
    // Each thread's first allocations may let maps grow once more.
    const GROWTH: u64 = 2048;
    let ledger = Ledger::new();
    let meet = Barrier::new(THREADS as usize);
    let asked: u64 = std::thread::scope(|s| {
        let (ledger, meet) = (&ledger, &meet);
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                s.spawn(move || {
                    // Each has places in every page.
                    let round = || come_and_go(ledger, PAIRS, 1000, |n| n * THREADS + t);
                    meet.wait();
                    round();
                    meet.wait();
                    requests(round)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(asked <= GROWTH, "{asked} requests in {} pairs", THREADS * PAIRS);
    ledger.assert_nothing_live();
}

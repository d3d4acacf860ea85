// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the ledger is measured beside, and the work that each side does: for criterion, and for the table of ratios.
//!
//! Three sides: the ledger; [`Least`], a map that knows size and source line and nothing else; [`Records`], a map of whole
//! records with an index, the live sum and its peak, which is what a program keeps that needs those answers.
#![allow(dead_code, reason = "each program uses its own part")]

use std::collections::HashMap;
use std::hint::black_box;
use std::panic::Location;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use metrale_ledger::plan::Plan;
use metrale_ledger::{AllocKind, Ledger};
use parking_lot::Mutex;

/// Live allocations at which a pair is measured.
pub(crate) const LIVE: [u64; 3] = [0, 25_000, 1_000_000];
/// Threads that do so at once.
pub(crate) const THREADS: [u64; 4] = [1, 2, 4, 8];

const BASE: u64 = 0x7f0e_0000_0000;
const BYTES: usize = 1000;
/// Addresses of 1 KiB side by side; a power of two, so that an odd factor scatters them without meeting.
const PLACES: u64 = 1 << 21;
/// Scopes among which the allocations of a reading are spread, as layers and operations of a model are.
const SCOPES: u64 = 1000;

/// In which order of addresses a side was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// One behind the other.
    Ascending,
    /// All over the places, so that no page is full.
    Scattered,
}

impl Order {
    /// As a program on the other side is told it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ascending => "ascending",
            Self::Scattered => "scattered",
        }
    }

    /// The nth address.
    fn address(self, n: u64) -> u64 {
        let place = match self {
            Self::Ascending => n,
            Self::Scattered => n.wrapping_mul(0x9e37_79b9),
        };
        BASE + (place % PLACES) * 1024
    }
}

/// The ith number of a sequence without order (splitmix64), the same for every side. A sequence of equal steps, however wide,
/// would favour a side that keeps allocations in the order in which they came.
fn random(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Size and source line per address.
pub(crate) type Least = Mutex<HashMap<u64, (usize, &'static Location<'static>)>>;

/// What the ledger answers a free with.
struct Record {
    bytes: usize,
    site: &'static Location<'static>,
    kind: AllocKind,
    scope: Option<Arc<str>>,
    tag: Option<Arc<str>>,
    index: u64,
    free_refused: bool,
}

/// Whole records, and the sums beside them.
#[derive(Default)]
pub(crate) struct Records {
    live: HashMap<u64, Record>,
    next_index: u64,
    live_bytes: usize,
    peak_bytes: usize,
}

/// A side of the comparison: one record and forget. What it answers is looked at where it was written: moving it right away
/// would wait for its parts to be in the cache.
pub(crate) trait Pair: Sync {
    /// Puts an allocation down.
    fn record(&self, addr: u64);
    /// Takes it off.
    fn forget(&self, addr: u64);
}

impl Pair for Ledger {
    fn record(&self, addr: u64) {
        black_box(&Ledger::record(self, addr, BYTES, Location::caller()));
    }

    fn forget(&self, addr: u64) {
        black_box(&Ledger::forget(self, addr));
    }
}

impl Pair for Least {
    fn record(&self, addr: u64) {
        black_box(&self.lock().insert(addr, (BYTES, Location::caller())));
    }

    fn forget(&self, addr: u64) {
        black_box(&self.lock().remove(&addr));
    }
}

impl Pair for Mutex<Records> {
    fn record(&self, addr: u64) {
        let mut records = self.lock();
        let record = Record {
            bytes: BYTES,
            site: Location::caller(),
            kind: AllocKind::Device,
            scope: None,
            tag: None,
            index: records.next_index,
            free_refused: false,
        };
        records.next_index += 1;
        records.live_bytes += record.bytes;
        records.peak_bytes = records.peak_bytes.max(records.live_bytes);
        black_box(&records.live.insert(addr, record));
    }

    fn forget(&self, addr: u64) {
        let mut records = self.lock();
        if let Some(record) = records.live.remove(&addr) {
            records.live_bytes -= record.bytes;
            black_box(&record);
        }
    }
}

/// A side on which `live` allocations stand.
pub(crate) fn filled<T: Pair + Default>(live: u64, order: Order) -> T {
    let side = T::default();
    for n in 0..live {
        side.record(order.address(n));
    }
    side
}

/// A ledger to read: `live` allocations, spread over scopes.
pub(crate) fn scoped(live: u64) -> Ledger {
    let ledger = Ledger::new();
    for scope in 0..SCOPES.min(live) {
        let _open = ledger.scope(&format!("layers.{scope}"));
        for n in (scope..live).step_by(SCOPES as usize) {
            ledger.record(Order::Scattered.address(n), BYTES, Location::caller());
        }
    }
    ledger
}

/// Where the pairs of a run take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// In one place, as a driver that gives out the same hole again makes it.
    Place,
    /// Each behind the one before it, as an upstream that counts addresses up makes it: recorded, then freed.
    Next,
    /// Each in another place that was free: recorded, then freed.
    Elsewhere,
    /// Each on one of those that are live: freed, then recorded again, as a program does that has run for a while.
    Again,
}

impl Pattern {
    /// Those that there are where so many are live, put down in that order.
    pub(crate) fn at(live: u64, order: Order) -> impl Iterator<Item = Self> {
        let is_there = move |pattern: &Self| match pattern {
            // The next of scattered addresses is as good as random.
            Self::Next => order == Order::Ascending,
            Self::Again => live > 0,
            Self::Place | Self::Elsewhere => true,
        };
        [Self::Place, Self::Next, Self::Elsewhere, Self::Again].into_iter().filter(is_there)
    }

    /// As a program on the other side tells it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Place => "place",
            Self::Next => "next",
            Self::Elsewhere => "elsewhere",
            Self::Again => "again",
        }
    }

    /// As a table tells it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Place => "one place",
            Self::Next => "each behind the last",
            Self::Elsewhere => "a random free one",
            Self::Again => "a random live one",
        }
    }
}

/// How long `pairs` take the thread that makes them, `threads` of them at once, on a side that was filled with `live` in that
/// order. Each round begins in the sequence of places where the last one ended; threads never meet in one.
pub(crate) fn run(
    side: &impl Pair,
    (live, order): (u64, Order),
    threads: u64,
    pairs: u64,
    pattern: Pattern,
    round: u64,
) -> Duration {
    // What is live takes the first `live` places.
    let (first, last) = if pattern == Pattern::Again { (0, live) } else { (live, PLACES) };
    let places = (last - first) / threads;
    let work = |t: u64| {
        let begin = Instant::now();
        for i in round * pairs..(round + 1) * pairs {
            let place = match pattern {
                Pattern::Place => 0,
                Pattern::Next => i % places,
                Pattern::Elsewhere | Pattern::Again => random(i * threads + t) % places,
            };
            let addr = order.address(first + place * threads + t);
            if pattern == Pattern::Again {
                side.forget(black_box(addr));
                side.record(black_box(addr));
            } else {
                side.record(black_box(addr));
                side.forget(black_box(addr));
            }
        }
        begin.elapsed()
    };
    if threads == 1 {
        return work(0);
    }
    let start = Barrier::new(threads as usize);
    let times: Vec<Duration> = std::thread::scope(|s| {
        let (start, work) = (&start, &work);
        let run = |t: u64| {
            move || {
                start.wait();
                work(t)
            }
        };
        let handles: Vec<_> = (0..threads).map(|t| s.spawn(run(t))).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    times.iter().sum::<Duration>() / times.len() as u32
}

/// One pair in the nth of places that no other allocation here has.
pub(crate) fn one_pair(ledger: &Ledger, n: u64) {
    let addr = BASE + PLACES * 1024 + n * (2 << 20);
    Pair::record(ledger, addr);
    Pair::forget(ledger, addr);
}

/// Sizes from 1 byte to 3 MiB.
pub(crate) fn sizes() -> impl Iterator<Item = u64> {
    (1_u64..).map(|n| 1 + n.wrapping_mul(0x9e37_79b9) % (3 << 20))
}

/// The plan of as many operations, with at most so many live: then each new allocation is for an older one's place.
pub(crate) fn planned(operations: u64, live: u64) -> Plan {
    let mut plan = Plan::h200();
    for (id, bytes) in (0..live + (operations - live) / 2).zip(sizes()) {
        if id >= live {
            let _ = plan.free(id - live);
        }
        let _ = plan.alloc(id, bytes, None);
    }
    plan
}

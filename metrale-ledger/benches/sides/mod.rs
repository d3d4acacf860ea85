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
/// Addresses of 1 KiB side by side; a power of two, so that an odd factor makes them jump about without meeting.
const PLACES: u64 = 1 << 21;
/// Scopes among which the allocations of a reading are spread, as layers and operations of a model are.
const SCOPES: u64 = 1000;

/// The nth address of a jumping sequence.
fn address(n: u64) -> u64 {
    BASE + (n.wrapping_mul(0x9e37_79b9) % PLACES) * 1024
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

/// A side of the comparison: one record and forget.
pub(crate) trait Pair: Sync {
    /// Puts an allocation down.
    fn record(&self, addr: u64);
    /// Takes it off.
    fn forget(&self, addr: u64);
}

impl Pair for Ledger {
    fn record(&self, addr: u64) {
        black_box(Ledger::record(self, addr, BYTES, Location::caller()));
    }

    fn forget(&self, addr: u64) {
        black_box(Ledger::forget(self, addr));
    }
}

impl Pair for Least {
    fn record(&self, addr: u64) {
        black_box(self.lock().insert(addr, (BYTES, Location::caller())));
    }

    fn forget(&self, addr: u64) {
        black_box(self.lock().remove(&addr));
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
        black_box(records.live.insert(addr, record));
    }

    fn forget(&self, addr: u64) {
        let mut records = self.lock();
        if let Some(record) = records.live.remove(&addr) {
            records.live_bytes -= record.bytes;
            black_box((record.bytes, record.site, record.kind, record.scope, record.tag));
            black_box((record.index, record.free_refused));
        }
    }
}

/// A side on which `live` allocations stand.
pub(crate) fn filled<T: Pair + Default>(live: u64) -> T {
    let side = T::default();
    for n in 0..live {
        side.record(address(n));
    }
    side
}

/// A ledger to read: `live` allocations, spread over scopes.
pub(crate) fn scoped(live: u64) -> Ledger {
    let ledger = Ledger::new();
    for scope in 0..SCOPES.min(live) {
        let _open = ledger.scope(&format!("layers.{scope}"));
        for n in (scope..live).step_by(SCOPES as usize) {
            ledger.record(address(n), BYTES, Location::caller());
        }
    }
    ledger
}

/// Where the pairs of a run take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Each thread in one place, as a driver that gives out the same hole again makes it.
    Place,
    /// Each pair elsewhere among two million places.
    Jump,
}

/// How long `pairs` take the thread that makes them, `threads` of them at once, on a side that holds `live`. Of rounds that
/// jump, each one begins where the last one ended.
pub(crate) fn run(
    side: &impl Pair,
    live: u64,
    threads: u64,
    pairs: u64,
    pattern: Pattern,
    round: u64,
) -> Duration {
    let work = |t: u64| {
        let begin = Instant::now();
        for i in round * pairs..(round + 1) * pairs {
            // What is live takes the first `live` places; threads take turns in the rest.
            let turn = if pattern == Pattern::Jump { i * threads + t } else { t };
            let addr = address(live + turn % (PLACES - live));
            side.record(black_box(addr));
            side.forget(black_box(addr));
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

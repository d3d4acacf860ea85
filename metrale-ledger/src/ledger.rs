// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger and its read handle.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::book::{Book, Class};
use crate::misuse::{ForgetError, Recorded};
use crate::{
    AllocKind, AllocRecord, LiveAllocation, Mark, ScopeGuard, Snapshot, Totals, Whois, check, scope,
};

/// Frees that a ledger remembers unless told otherwise.
const TOMBSTONES: usize = 1024;

/// The state that a ledger and its probes share: the book behind its lock, and the totals for reading without it.
pub(crate) struct Shared {
    book: Mutex<Book>,
    // Written under the lock, read by anyone.
    live_bytes: AtomicU64,
    live_count: AtomicU64,
    peak_bytes: AtomicU64,
    resident_bytes: AtomicU64,
    slack_bytes: AtomicU64,
    chunk_slack_bytes: AtomicU64,
    peak_resident_bytes: AtomicU64,
    arena_bytes: AtomicU64,
    arena_count: AtomicU64,
    arena_resident_bytes: AtomicU64,
    pinned_bytes: AtomicU64,
    pinned_count: AtomicU64,
    padding_bytes: AtomicU64,
    /// Live allocations overlap, so all but the first three must be asked of the book.
    stale: AtomicBool,
}

impl Shared {
    fn new(tombstones: usize) -> Self {
        Self {
            book: Mutex::new(Book::new(tombstones)),
            live_bytes: AtomicU64::new(0),
            live_count: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
            slack_bytes: AtomicU64::new(0),
            chunk_slack_bytes: AtomicU64::new(0),
            peak_resident_bytes: AtomicU64::new(0),
            arena_bytes: AtomicU64::new(0),
            arena_count: AtomicU64::new(0),
            arena_resident_bytes: AtomicU64::new(0),
            pinned_bytes: AtomicU64::new(0),
            pinned_count: AtomicU64::new(0),
            padding_bytes: AtomicU64::new(0),
            stale: AtomicBool::new(false),
        }
    }

    /// Changes the book and publishes its totals before the lock goes.
    fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let mut book = self.book.lock();
        let answer = change(&mut book);
        if book.has_overlaps() {
            let (bytes, count, peak) = book.live_totals();
            self.live_bytes.store(bytes, Relaxed);
            self.live_count.store(count, Relaxed);
            self.peak_bytes.store(peak, Relaxed);
            self.stale.store(true, Relaxed);
        } else {
            self.publish(&book.running_totals());
            self.stale.store(false, Relaxed);
        }
        answer
    }

    #[inline]
    fn publish(&self, totals: &Totals) {
        for (cell, value) in [
            (&self.live_bytes, totals.live_bytes),
            (&self.live_count, totals.live_count),
            (&self.peak_bytes, totals.peak_bytes),
            (&self.resident_bytes, totals.resident_bytes),
            (&self.slack_bytes, totals.slack_bytes),
            (&self.chunk_slack_bytes, totals.chunk_slack_bytes),
            (&self.peak_resident_bytes, totals.peak_resident_bytes),
            (&self.arena_bytes, totals.arena_bytes),
            (&self.arena_count, totals.arena_count),
            (&self.arena_resident_bytes, totals.arena_resident_bytes),
            (&self.pinned_bytes, totals.pinned_bytes),
            (&self.pinned_count, totals.pinned_count),
            (&self.padding_bytes, totals.padding_bytes),
        ] {
            cell.store(value, Relaxed);
        }
    }

    /// Reads one total, settling it first where an overlap made it stale.
    fn read(&self, cell: &AtomicU64) -> usize {
        if self.stale.load(Relaxed) {
            let mut book = self.book.lock();
            let totals = book.settled_totals();
            self.publish(&totals);
            // Still stale while the overlap lasts, but no change can come between: every change says so itself.
            self.stale.store(false, Relaxed);
            return cell.load(Relaxed) as usize;
        }
        cell.load(Relaxed) as usize
    }

    /// A scope's number and whole label, and the index of the next allocation.
    pub(crate) fn open_scope(&self, parent: Option<u32>, label: &str) -> (u32, Arc<str>, u64) {
        let mut book = self.book.lock();
        let (id, label) = book.open_scope(parent, label);
        (id, label, book.next_index())
    }

    pub(crate) fn live_where(&self, fits: impl Fn(&AllocRecord) -> bool) -> Vec<LiveAllocation> {
        self.book.lock().live_where(fits)
    }

    /// What was recorded at `index` or later, and how many live allocations are older.
    pub(crate) fn live_since(&self, index: u64) -> (Vec<LiveAllocation>, usize) {
        let book = self.book.lock();
        let old = book.live_slots().filter(|slot| slot.index < index && !slot.is_padding()).count();
        (book.live_where(|record| record.index >= index && record.kind != AllocKind::Padding), old)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.book.lock().snapshot()
    }

    fn allocations(&self, fits: impl Fn(AllocKind) -> bool) -> Vec<(u64, AllocRecord)> {
        let live = self.live_where(|record| fits(record.kind));
        live.into_iter().map(|live| (live.addr, live.record)).collect()
    }
}

/// The reads that a ledger and a probe have in common.
macro_rules! reads {
    ($type:ident) => {
        impl $type {
            /// Bytes of live device and managed allocations, as their callers asked for them. One atomic load.
            pub fn live_bytes(&self) -> usize {
                self.shared.live_bytes.load(Relaxed) as usize
            }

            /// Number of live device and managed allocations. One atomic load.
            pub fn live_count(&self) -> usize {
                self.shared.live_count.load(Relaxed) as usize
            }

            /// The highest [`live_bytes`](Self::live_bytes) so far. One atomic load.
            pub fn peak_bytes(&self) -> usize {
                self.shared.peak_bytes.load(Relaxed) as usize
            }

            /// Bytes the driver keeps for the live device allocations: the distinct 2 MiB pages they touch. Exact after
            /// every operation; one atomic load. (While live allocations overlap, which no driver lets happen, the first
            /// read after a change counts the pages anew.)
            pub fn resident_bytes(&self) -> usize {
                self.shared.read(&self.shared.resident_bytes)
            }

            /// What the driver keeps beyond what was asked for: [`resident_bytes`](Self::resident_bytes) less the bytes of
            /// live device allocations and of their padding, of one moment. Costs as that does.
            pub fn slack_bytes(&self) -> usize {
                self.shared.read(&self.shared.slack_bytes)
            }

            /// [`chunk_slack`](crate::chunk_slack) of the live device allocations: the part of the slack that lies in
            /// chunks of small ones. Costs as [`resident_bytes`](Self::resident_bytes) does.
            pub fn chunk_slack_bytes(&self) -> usize {
                self.shared.read(&self.shared.chunk_slack_bytes)
            }

            /// The highest [`resident_bytes`](Self::resident_bytes) so far (seen at reads only, while allocations overlap).
            pub fn peak_resident_bytes(&self) -> usize {
                self.shared.read(&self.shared.peak_resident_bytes)
            }

            /// Bytes of live arenas, which the live totals leave out.
            pub fn arena_bytes(&self) -> usize {
                self.shared.read(&self.shared.arena_bytes)
            }

            /// Number of live arenas.
            pub fn arena_count(&self) -> usize {
                self.shared.read(&self.shared.arena_count)
            }

            /// Bytes of the distinct pages that arenas touch and no other device allocation does.
            pub fn arena_resident_bytes(&self) -> usize {
                self.shared.read(&self.shared.arena_resident_bytes)
            }

            /// Bytes of live pinned host memory, which the live totals leave out.
            pub fn pinned_bytes(&self) -> usize {
                self.shared.read(&self.shared.pinned_bytes)
            }

            /// Number of live pinned allocations.
            pub fn pinned_count(&self) -> usize {
                self.shared.read(&self.shared.pinned_count)
            }

            /// Bytes of live padding, which the live totals leave out and the residency counts.
            pub fn padding_bytes(&self) -> usize {
                self.shared.read(&self.shared.padding_bytes)
            }

            /// Every live device and managed allocation, base address and record, in order of creation.
            pub fn live_allocations(&self) -> Vec<(u64, AllocRecord)> {
                self.shared.allocations(AllocKind::is_sweepable)
            }

            /// Every live allocation of one kind, base address and record, in order of creation.
            pub fn allocations_of(&self, kind: AllocKind) -> Vec<(u64, AllocRecord)> {
                self.shared.allocations(|k| k == kind)
            }

            /// What is known of an address: live (even in the middle of an allocation), freed, or unknown. Device addresses
            /// are looked up before host addresses.
            pub fn whois(&self, addr: u64) -> Whois {
                self.shared.book.lock().whois(addr)
            }

            /// This moment as plain data: totals, and who holds them.
            pub fn snapshot(&self) -> Snapshot {
                self.shared.snapshot()
            }

            /// The report of this moment as text; see [`Snapshot::report`].
            pub fn report(&self, top_n: usize, min_mb: usize) -> String {
                self.snapshot().report(top_n, min_mb)
            }

            /// For tests: asserts that nothing is live, of any kind but padding, which is the allocator's own.
            ///
            /// # Panics
            /// When something is, with the first such allocations and the report.
            #[track_caller]
            pub fn assert_nothing_live(&self) {
                check::assert_nothing_live(&self.shared);
            }

            /// This moment, to compare with later.
            pub fn mark(&self) -> Mark {
                let book = self.shared.book.lock();
                Mark {
                    live_count: book.live_slots().filter(|slot| !slot.is_padding()).count(),
                    next_index: book.next_index(),
                }
            }

            /// For tests: asserts that exactly what was live at the mark is live now, of every kind but padding and every
            /// thread.
            ///
            /// # Panics
            /// When it is not, with what is new, how many are gone, and the report.
            #[track_caller]
            pub fn assert_unchanged_since(&self, mark: &Mark) {
                check::assert_unchanged_since(mark, &self.shared);
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("live_bytes", &self.live_bytes())
                    .field("live_count", &self.live_count())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// The size and the allocating source line of every live device allocation.
///
/// All methods take `&self` and may be called from any thread; none blocks on anything but the ledger's own short lock.
/// Nothing here talks to a device, so a capture under way is no concern.
pub struct Ledger {
    shared: Arc<Shared>,
}

reads!(Ledger);

impl Ledger {
    /// An empty ledger that remembers the last 1024 frees.
    pub fn new() -> Self {
        Self::with_tombstones(TOMBSTONES)
    }

    /// An empty ledger that remembers the last `frees` frees, at some 80 bytes each; 0 remembers none, and then a double
    /// free is told as foreign.
    pub fn with_tombstones(frees: usize) -> Self {
        Self { shared: Arc::new(Shared::new(frees)) }
    }

    /// A handle for a reader that cannot hold the ledger. It reads the same state, so the two never disagree.
    pub fn probe(&self) -> LedgerProbe {
        LedgerProbe { shared: Arc::clone(&self.shared) }
    }

    /// Puts a device allocation on the ledger: its address, its bytes as asked for, the source line that allocates.
    ///
    /// The allocation is on the ledger afterwards in any case; what was wrong with it, if anything, is in the answer and in
    /// [`MisuseCounts`](crate::MisuseCounts), and nobody has to look:
    ///
    /// - one at the address of a live allocation takes its place, since the driver has given the address out anew; the older
    ///   record comes back in the answer and is remembered as freed;
    /// - one that overlaps live allocations stands beside them, and every total counts what each said it was, residency
    ///   each page once;
    /// - one at null, without bytes, or past the end of the address space is counted as it is (the last up to the end).
    pub fn record(&self, addr: u64, bytes: usize, site: &'static Location<'static>) -> Recorded {
        self.record_as(addr, bytes, site, AllocKind::Device)
    }

    /// [`record`](Self::record) for memory of any kind.
    pub fn record_as(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        kind: AllocKind,
    ) -> Recorded {
        let scope = scope::current(&self.shared);
        self.shared.change(|book| book.record(addr, bytes, site, kind, scope))
    }

    /// Takes a device or managed allocation off the ledger. Call it *before* the driver's free: the driver may hand the
    /// address to another thread at once. None where `addr` is no base of one; [`try_forget`](Self::try_forget) says why.
    #[track_caller]
    pub fn forget(&self, addr: u64) -> Option<AllocRecord> {
        self.try_forget(addr).ok()
    }

    /// [`forget`](Self::forget) that says why not. The caller's source line is remembered as that of the free.
    ///
    /// # Errors
    /// [`ForgetError`]: double free, interior pointer, foreign pointer, another kind of memory, null.
    #[track_caller]
    pub fn try_forget(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_class(addr, Class::Sweepable)
    }

    /// Takes an arena off the ledger.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_arena(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_class(addr, Class::Arena)
    }

    /// Takes pinned host memory off the ledger, by its host address.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_pinned(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_class(addr, Class::Pinned)
    }

    /// Takes padding off the ledger, by its first address.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_padding(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_class(addr, Class::Padding)
    }

    #[track_caller]
    fn forget_class(&self, addr: u64, class: Class) -> Result<AllocRecord, ForgetError> {
        let freed_at = Location::caller();
        self.shared.change(|book| book.forget(addr, class, freed_at))
    }

    /// Puts back what was just taken off, since the driver refused to free it. The record keeps its index, scope and site,
    /// is marked [`free_refused`](AllocRecord::free_refused), and its free is no longer remembered.
    ///
    /// Should the address be live again by now, that allocation stays and the answer holds the refused record.
    pub fn restore(&self, addr: u64, record: &AllocRecord) -> Recorded {
        self.shared.change(|book| book.restore(addr, record))
    }

    /// Takes every device and managed allocation off the ledger and returns them, base address and record, in order of
    /// creation. Arenas and pinned memory stay.
    #[track_caller]
    pub fn drain(&self) -> Vec<(u64, AllocRecord)> {
        let swept_at = Location::caller();
        self.shared.change(|book| book.drain(swept_at))
    }

    /// Labels what this thread records on this ledger until the guard is dropped. Scopes nest: the label of an inner one is
    /// joined to the outer one's by `/`. A ledger remembers each label it has seen.
    ///
    /// ```
    /// # use std::panic::Location;
    /// # let ledger = metrale_ledger::Ledger::new();
    /// let _layer = ledger.scope("layers.3");
    /// let attn = ledger.scope("attn");
    /// ledger.record(0x7f00_0000_0000, 4096, Location::caller());
    /// drop(attn);
    /// assert_eq!(ledger.snapshot().by_scope()[0].label.as_deref(), Some("layers.3/attn"));
    /// ```
    pub fn scope(&self, label: &str) -> ScopeGuard {
        ScopeGuard::open(Arc::clone(&self.shared), label)
    }

    /// Names one live allocation, of any kind, by its base. False where none is there.
    pub fn tag(&self, addr: u64, tag: &str) -> bool {
        self.shared.book.lock().tag(addr, tag)
    }

    /// Starts the peaks anew from what is live now.
    pub fn reset_peak(&self) {
        self.shared.change(Book::reset_peak);
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

/// A clonable read handle on a [`Ledger`], good for as long as anyone holds it.
#[derive(Clone)]
pub struct LedgerProbe {
    shared: Arc<Shared>,
}

reads!(LedgerProbe);

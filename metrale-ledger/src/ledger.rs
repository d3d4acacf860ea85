// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger and its read handle.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::check::{self, Mark};
use crate::event::Event;
use crate::misuse::{ForgetError, Recorded, Whois};
use crate::record::{AllocKind, AllocRecord};
use crate::scope::{self, ScopeGuard};
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::state::State;
use crate::sub_range::{SubRange, SubRangeError};

/// Frees that a ledger remembers unless told otherwise.
const TOMBSTONES: usize = 1024;

/// Reads of one of the [`Totals`](crate::Totals) each, by its name.
macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        $($(#[$doc])* pub fn $name(&self) -> usize { self.shared.totals().$name as usize })*
    };
}

/// The reads that a ledger and a probe have in common.
macro_rules! reads {
    ($type:ident) => {
        impl $type {
            totals! {
                /// Bytes of live device and managed allocations, as their callers asked for them.
                live_bytes,
                /// Number of live device and managed allocations.
                live_count,
                /// The highest [`live_bytes`](Self::live_bytes) so far.
                peak_bytes,
                /// Bytes the driver keeps for the live device allocations: the distinct 2 MiB pages they touch. Exact after
                /// every operation. Costs a few atomic loads; while live allocations overlap, which no driver lets happen, a look
                /// at each of them.
                resident_bytes,
                /// What the driver keeps beyond what was asked for: [`resident_bytes`](Self::resident_bytes) less the bytes of
                /// live device allocations and of their padding, of one moment. Costs as that does.
                slack_bytes,
                /// [`chunk_slack`](crate::chunk_slack) of the [live allocations](Self::live_allocations): what the chunks of small
                /// ones hold beyond them. Costs as [`resident_bytes`](Self::resident_bytes) does.
                chunk_slack_bytes,
                /// The highest [`resident_bytes`](Self::resident_bytes) so far (seen at reads and at the peak only, from when an
                /// allocation is recorded that overlaps another until it is gone).
                peak_resident_bytes,
                /// Bytes of live arenas, which the live totals leave out.
                arena_bytes,
                /// Number of live arenas.
                arena_count,
                /// Bytes of the distinct pages that arenas touch and no other device allocation does.
                arena_resident_bytes,
                /// Bytes of live pinned host memory, which the live totals leave out.
                pinned_bytes,
                /// Number of live pinned allocations.
                pinned_count,
                /// Bytes of live padding, which the live totals leave out and the residency counts.
                padding_bytes,
            }

            /// Every live device and managed allocation, base address and record, in order of creation.
            pub fn live_allocations(&self) -> Vec<(u64, AllocRecord)> {
                self.shared.ask(|state| state.allocations(AllocKind::is_sweepable))
            }

            /// Every live allocation of one kind, base address and record, in order of creation.
            pub fn allocations_of(&self, kind: AllocKind) -> Vec<(u64, AllocRecord)> {
                self.shared.ask(|state| state.allocations(|of| of == kind))
            }

            /// What is known of an address: live (even in the middle of an allocation), freed, or unknown. Device addresses
            /// are looked up before host addresses.
            pub fn whois(&self, addr: u64) -> Whois {
                self.shared.ask(|state| state.whois(addr))
            }

            /// The part of an arena that holds an address.
            pub fn sub_range_at(&self, addr: u64) -> Option<SubRange> {
                self.shared.ask(|state| state.part_at(addr).cloned())
            }

            /// The parts of the arena with that base, by address; none where none is there.
            pub fn sub_ranges(&self, arena: u64) -> Vec<SubRange> {
                self.shared.ask(|state| state.arenas.parts_of(arena))
            }

            /// This moment as plain data: totals, and who holds them.
            ///
            /// Holds others up for as long as it takes to copy what each line in each scope holds, not for a look at every
            /// live allocation.
            pub fn snapshot(&self) -> Snapshot {
                self.shared.ask(|state| state.snapshot(false))
            }

            /// The moment of the last peak of [`live_bytes`](Self::live_bytes), as a snapshot taken there would be: totals,
            /// and who held them. Of moments equally high, the first.
            ///
            /// No history is kept for it: a group keeps its value of the last peak when it first changes after that.
            pub fn peak_snapshot(&self) -> Snapshot {
                self.shared.ask(|state| state.snapshot(true))
            }

            /// The last events, oldest first, as many as [`Ledger::keep_events`] was told to keep; none unless it was.
            pub fn recent_events(&self) -> Vec<Event> {
                self.shared.ask(|state| state.events.recent())
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
                self.shared.ask(|state| Mark {
                    live_count: state.sums.callers_count(),
                    next_index: state.next_index,
                })
            }

            /// For tests: asserts that exactly what was live at the mark is live now, of every kind but padding and every
            /// thread. What was live is known by its number: a free since then is not seen where a record from before came
            /// [back](Ledger::restore) meanwhile, as after a free that the driver refused.
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

    /// An empty ledger that remembers the last `frees` frees, at some 60 bytes each. Frees of one address, size and kind right
    /// behind each other count as one. 0 remembers none, and then a double free is told as foreign.
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
    ///   record comes back in the answer and is remembered as displaced. Should its free come later, from a thread that
    ///   called the driver first, the two are in order again and neither is counted as misuse: see
    ///   [`MisuseCounts`](crate::MisuseCounts);
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
        self.shared.change(|state| state.record(addr, bytes, site, kind, scope))
    }

    /// [`record`](Self::record), but only where live device memory of this ledger already touches each 2 MiB page of the
    /// allocation's ends; none, and nothing changed, where it does not.
    ///
    /// A driver's page belongs to one context. So an answer also says that the context that gave this address is the one
    /// that gave the others, without asking the driver which is current.
    pub fn record_beside(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
    ) -> Option<Recorded> {
        let scope = scope::current(&self.shared);
        self.shared.change(|state| {
            let is_held = state.device.is_held(addr, bytes);
            is_held.then(|| state.record(addr, bytes, site, AllocKind::Device, scope))
        })
    }

    /// Takes a device or managed allocation off the ledger. Call it *before* the driver's free: the driver may hand the
    /// address to another thread at once. None where `addr` is no base of one; [`try_forget`](Self::try_forget) says why.
    #[track_caller]
    pub fn forget(&self, addr: u64) -> Option<AllocRecord> {
        self.forget_as(addr, AllocKind::Device, Location::caller()).ok()
    }

    /// [`forget`](Self::forget) that says why not. The caller's source line is remembered as that of the free.
    ///
    /// # Errors
    /// [`ForgetError`]: double free, interior pointer, foreign pointer, another kind of memory, null.
    #[track_caller]
    pub fn try_forget(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_as(addr, AllocKind::Device, Location::caller())
    }

    /// Takes an arena off the ledger.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_arena(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_as(addr, AllocKind::Arena, Location::caller())
    }

    /// Puts a named part of an arena on the ledger: `bytes` bytes from `offset_bytes` on. It shows under its arena in reports,
    /// with this thread's scope, and is in no total, for the arena's bytes are. It ends by
    /// [`end_sub_range`](Self::end_sub_range) or with its arena.
    ///
    /// # Errors
    /// [`SubRangeError`]: no such arena, no bytes, past its end, bytes that another part has. Nothing is then changed.
    pub fn record_sub_range(
        &self,
        arena: u64,
        offset_bytes: u64,
        bytes: usize,
        name: &str,
        site: &'static Location<'static>,
    ) -> Result<(), SubRangeError> {
        let scope = scope::current(&self.shared);
        self.shared.ask(|state| state.begin_part(arena, offset_bytes, (bytes, name, site), scope))
    }

    /// Takes the part of an arena that begins at `addr` off the ledger. The caller's source line is remembered.
    ///
    /// # Errors
    /// [`SubRangeError`]: given back before (with the line that did), inside a part, unknown.
    #[track_caller]
    pub fn end_sub_range(&self, addr: u64) -> Result<SubRange, SubRangeError> {
        let at = Location::caller();
        self.shared.ask(|state| state.arenas.end(addr, at))
    }

    /// Takes pinned host memory off the ledger, by its host address.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_pinned(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_as(addr, AllocKind::Pinned, Location::caller())
    }

    /// Takes padding off the ledger, by its first address.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_padding(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_as(addr, AllocKind::Padding, Location::caller())
    }

    fn forget_as(
        &self,
        addr: u64,
        kind: AllocKind,
        freed_at: &'static Location<'static>,
    ) -> Result<AllocRecord, ForgetError> {
        self.shared.change(|state| state.forget(addr, kind, freed_at))
    }

    /// Puts back what was just taken off, since the driver refused to free it. The record keeps its index, scope and site,
    /// is marked [`free_refused`](AllocRecord::free_refused), and its free is no longer remembered.
    ///
    /// Should the address be live again by now, that allocation stays and the answer holds the refused record.
    pub fn restore(&self, addr: u64, record: &AllocRecord) -> Recorded {
        self.shared.change(|state| state.restore(addr, record))
    }

    /// Takes every device and managed allocation off the ledger and returns them, base address and record, in order of
    /// creation. Arenas and pinned memory stay.
    #[track_caller]
    pub fn drain(&self) -> Vec<(u64, AllocRecord)> {
        let swept_at = Location::caller();
        self.shared.change(|state| state.drain(swept_at))
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

    /// Names one live allocation, of any kind, by its base. False where none is there. A peak that it was part of before
    /// keeps it without the name: [`peak_snapshot`](Self::peak_snapshot) is what a snapshot taken there would have told.
    pub fn tag(&self, addr: u64, tag: &str) -> bool {
        self.shared.ask(|state| state.tag(addr, tag))
    }

    /// Starts the peaks anew from what is live now.
    pub fn reset_peak(&self) {
        self.shared.change(State::reset_peak);
    }

    /// Keeps the last `limit` events from now on, for [`recent_events`](Self::recent_events); 0 keeps none, as at first.
    pub fn keep_events(&self, limit: usize) {
        self.shared.change(|state| state.events.keep(limit));
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

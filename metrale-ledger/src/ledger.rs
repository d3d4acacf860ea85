// SPDX-License-Identifier: MIT OR Apache-2.0
//! The public API: the ledger, and the probe that reads it.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::check::{self, Mark};
use crate::event::AllocEvent;
use crate::misuse::{ForgetError, Recorded, Whois};
use crate::record::{AllocKind, AllocRecord};
use crate::scope::{self, ScopeGuard};
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::sub_range::{SubRange, SubRangeError};

/// Methods that read one of the [`Totals`](crate::Totals) each, by its name.
macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        $($(#[$doc])* pub fn $name(&self) -> usize { self.shared.total(|totals| totals.$name) as usize })*
    };
}

/// The reads that a ledger and a probe have in common.
macro_rules! reads {
    ($type:ident) => {
        impl $type {
            totals! {
                /// Bytes of live device and managed allocations, as asked for. Costs a few atomic loads; locks only during a change.
                live_bytes,
                /// Number of live device and managed allocations.
                live_count,
                /// The highest [`live_bytes`](Self::live_bytes) since the start or the last reset.
                peak_bytes,
                /// Bytes of the distinct 2 MiB pages that live device allocations and padding touch, which the driver keeps
                /// for them. Exact after every operation. Costs a few atomic loads; while live allocations overlap, which no
                /// driver lets happen, it locks and looks at each of them.
                resident_bytes,
                /// [`resident_bytes`](Self::resident_bytes) less the bytes of live device allocations and of padding, at one
                /// moment. Costs the same.
                slack_bytes,
                /// [`chunk_slack`](crate::chunk_slack) of the [live allocations](Self::live_allocations). Costs as much as
                /// [`resident_bytes`](Self::resident_bytes).
                chunk_slack_bytes,
                /// The highest [`resident_bytes`](Self::resident_bytes) since the start or the last reset. While live allocations
                /// overlap, only moments at which totals are read count, and the peak of live bytes.
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
                /// Bytes of live padding, which the live totals leave out and `resident_bytes` includes.
                padding_bytes,
            }

            /// Every live device and managed allocation, base address and record, in order of creation. Holds the lock while it
            /// looks at every live allocation.
            pub fn live_allocations(&self) -> Vec<(u64, AllocRecord)> {
                self.shared.with_state(|state| state.allocations(AllocKind::is_sweepable))
            }

            /// The same for one kind of memory.
            pub fn allocations_of(&self, kind: AllocKind) -> Vec<(u64, AllocRecord)> {
                self.shared.with_state(|state| state.allocations(|of| of == kind))
            }

            /// What is at an address, which may lie inside an allocation: a live one, a freed one, or nothing known. Device
            /// addresses are searched before host addresses.
            pub fn whois(&self, addr: u64) -> Whois {
                self.shared.with_state(|state| state.whois(addr))
            }

            /// Kind of the live allocation that holds an address, and its bytes from there on: [`whois`](Self::whois) at half the cost.
            pub fn live_span(&self, addr: u64) -> Option<(AllocKind, u64)> {
                self.shared.with_state(|state| state.live_span(addr))
            }

            /// The part of an arena that holds an address.
            pub fn sub_range_at(&self, addr: u64) -> Option<SubRange> {
                self.shared.with_state(|state| state.part_at(addr).cloned())
            }

            /// The parts of the arena with that base, by address; empty where there is no such arena.
            pub fn sub_ranges(&self, arena: u64) -> Vec<SubRange> {
                self.shared.with_state(|state| state.arenas.parts_of(arena))
            }

            /// This moment as plain data: totals, and who holds them.
            ///
            /// Holds the lock while it copies what each group holds. It does not look at every live allocation.
            pub fn snapshot(&self) -> Snapshot {
                self.shared.with_state(|state| state.snapshot(false))
            }

            /// The snapshot of the peak of [`live_bytes`](Self::live_bytes): totals, and who held them. Of moments equally
            /// high, the first.
            ///
            /// Costs the same. No history is kept: when a group first changes after a peak, it keeps its value at that peak.
            pub fn peak_snapshot(&self) -> Snapshot {
                self.shared.with_state(|state| state.snapshot(true))
            }

            /// The last events, oldest first: up to the limit of [`Ledger::keep_events`], which is 0 at first.
            pub fn recent_events(&self) -> Vec<AllocEvent> {
                self.shared.with_state(|state| state.events.recent())
            }

            /// The report of this moment as text, with call sites of at least `min_mb` MiB; see [`Snapshot::report`].
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
                self.shared.with_state(|state| {
                    let totals = state.totals();
                    let live_count = totals.live_count + totals.arena_count + totals.pinned_count;
                    Mark { live_count, next_index: state.next_index }
                })
            }

            /// For tests: asserts that the allocations live at the mark are live now and no other is, of every kind but padding
            /// and from every thread. Allocations made before the mark are counted, not compared: if one of them was freed
            /// since the mark and another one [restored](Ledger::restore), the free is missed.
            ///
            /// # Panics
            /// When it is not so, with the new allocations, the number of those freed, and the report.
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
/// Nothing here calls the driver, so all of it is allowed during a capture.
pub struct Ledger {
    shared: Arc<Shared>,
}

reads!(Ledger);

impl Ledger {
    /// An empty ledger that remembers the last 1024 frees.
    pub fn new() -> Self {
        Self::with_tombstones(1024)
    }

    /// An empty ledger that remembers the last `frees` frees, at some 50 to 100 bytes each. Successive frees of one address, size and
    /// kind count as one. With 0 it remembers none and answers a double free as foreign.
    pub fn with_tombstones(frees: usize) -> Self {
        Self { shared: Arc::new(Shared::new(frees)) }
    }

    /// A handle for a reader that cannot hold the ledger. It reads the same state.
    pub fn probe(&self) -> LedgerProbe {
        LedgerProbe { shared: Arc::clone(&self.shared) }
    }

    /// Records a device allocation: its address, its bytes as asked for, the source line that allocates.
    ///
    /// The allocation is recorded in any case. What was wrong with it, if anything, is in the answer and in
    /// [`MisuseCounts`](crate::MisuseCounts), and the caller may ignore it:
    ///
    /// - An allocation at the address of a live one displaces it, since the driver has returned the address again. The answer
    ///   has the displaced record. If its free follows, neither counts as misuse (see [`MisuseCounts`](crate::MisuseCounts)).
    /// - An allocation that overlaps live ones is recorded beside them. Totals count the bytes of each; residency counts each
    ///   page once.
    /// - An allocation at null, without bytes, or past the end of the address space counts as it is (the last up to the end).
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
        self.shared.change().state.record(addr, bytes, site, kind, scope)
    }

    /// [`record`](Self::record), but only if the first and the last 2 MiB page of the allocation each hold an end of device
    /// memory (or padding) that is live on this ledger. Otherwise none, and nothing changes.
    ///
    /// A driver's page belongs to one context. So if this records the allocation, its address comes from the same context as
    /// that memory, and the driver need not be asked which context is current.
    pub fn record_beside(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
    ) -> Option<Recorded> {
        let scope = scope::current(&self.shared);
        let mut change = self.shared.change();
        let is_held = change.state.device.is_held(addr, bytes);
        is_held.then(|| change.state.record(addr, bytes, site, AllocKind::Device, scope))
    }

    /// Forgets a device or managed allocation. Call it *before* the driver's free: the driver may return the address to
    /// another thread at once. None where `addr` is no base of one; [`try_forget`](Self::try_forget) says why.
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
        self.forget_as(addr, AllocKind::Device)
    }

    /// [`try_forget`](Self::try_forget) of the allocation with this [creation index](AllocRecord::index) only, for an owner that
    /// was given up at `freed_at`. Another allocation that is at the address by now stays.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    pub fn try_forget_only(
        &self,
        addr: u64,
        index: u64,
        freed_at: &'static Location<'static>,
    ) -> Result<AllocRecord, ForgetError> {
        self.shared.change().state.forget(addr, AllocKind::Device, Some(index), freed_at)
    }

    /// Forgets an arena.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_arena(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_as(addr, AllocKind::Arena)
    }

    /// Forgets pinned host memory, by its host address.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_pinned(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_as(addr, AllocKind::Pinned)
    }

    /// Forgets padding, by its first address.
    ///
    /// # Errors
    /// As [`try_forget`](Self::try_forget).
    #[track_caller]
    pub fn try_forget_padding(&self, addr: u64) -> Result<AllocRecord, ForgetError> {
        self.forget_as(addr, AllocKind::Padding)
    }

    #[track_caller]
    fn forget_as(&self, addr: u64, kind: AllocKind) -> Result<AllocRecord, ForgetError> {
        let freed_at = Location::caller();
        self.shared.change().state.forget(addr, kind, None, freed_at)
    }

    /// Records a named part of an arena: `bytes` bytes from `offset_bytes` on. Reports show it under its arena, with this
    /// thread's scope. No total includes it, since totals include its arena. It ends by
    /// [`end_sub_range`](Self::end_sub_range) or with its arena.
    ///
    /// # Errors
    /// [`SubRangeError`]: no such arena, no bytes, past its end, bytes that another part has. Then nothing changes.
    pub fn record_sub_range(
        &self,
        arena: u64,
        offset_bytes: u64,
        bytes: usize,
        name: &str,
        site: &'static Location<'static>,
    ) -> Result<(), SubRangeError> {
        let scope = scope::current(&self.shared);
        self.shared.with_state(|state| state.begin_part(arena, offset_bytes, bytes, name, site, scope))
    }

    /// Ends the part of an arena that begins at `addr`. The caller's source line is remembered.
    ///
    /// # Errors
    /// [`SubRangeError`]: ended before (with the line that ended it), inside a part, unknown.
    #[track_caller]
    pub fn end_sub_range(&self, addr: u64) -> Result<SubRange, SubRangeError> {
        let at = Location::caller();
        self.shared.with_state(|state| state.arenas.end(addr, at))
    }

    /// Restores a record that was just forgotten, since the driver refused to free the allocation. The record keeps its index,
    /// scope and site, is marked [`free_refused`](AllocRecord::free_refused), and its free is no longer remembered.
    ///
    /// If another allocation is live at the address by now, that one stays and the answer has the refused record.
    pub fn restore(&self, addr: u64, record: &AllocRecord) -> Recorded {
        self.shared.change().state.restore(addr, record)
    }

    /// Forgets every device and managed allocation and returns them, base address and record, in order of creation. Arenas,
    /// pinned memory and padding stay. Holds the lock meanwhile.
    #[track_caller]
    pub fn drain(&self) -> Vec<(u64, AllocRecord)> {
        let swept_at = Location::caller();
        self.shared.change().state.drain(swept_at)
    }

    /// Labels what this thread records on this ledger until the guard is dropped. Scopes nest: `/` joins the label of an inner
    /// scope to that of the outer one. A ledger keeps each label for as long as it lives.
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

    /// Tags one live allocation, of any kind, by its base. False where none is there. A peak reached before has it without
    /// the tag: [`peak_snapshot`](Self::peak_snapshot) shows what was true at the peak.
    pub fn tag(&self, addr: u64, tag: &str) -> bool {
        self.shared.with_state(|state| state.tag(addr, tag))
    }

    /// Sets both peaks, of live and of resident bytes, to what is live now.
    pub fn reset_peak(&self) {
        self.shared.change().state.reset_peak();
    }

    /// Drops the events kept so far, and keeps the last `limit` from now on, for [`recent_events`](Self::recent_events). 0, as at
    /// first, keeps none.
    pub fn keep_events(&self, limit: usize) {
        self.shared.change().state.events.keep(limit);
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

/// A clonable handle that reads a [`Ledger`], from any thread; it stays valid when the ledger is dropped. Its methods block as
/// the ledger's do.
#[derive(Clone)]
pub struct LedgerProbe {
    shared: Arc<Shared>,
}

reads!(LedgerProbe);

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The totals of one moment: computed from sums and numbers of pages, and read without the lock.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};

use crate::SMALL_ALLOC_CHUNK;
use crate::allocation::Allocation;
use crate::misuse::MisuseCounts;
use crate::page::PageCounts;
use crate::record::AllocKind;

/// All totals of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Totals {
    /// Bytes of sweepable (device and managed) allocations, as asked for.
    pub live_bytes: u64,
    /// Number of sweepable allocations.
    pub live_count: u64,
    /// Bytes of the distinct 2 MiB pages that device allocations and their padding touch.
    pub resident_bytes: u64,
    /// `resident_bytes` less the bytes of device allocations and of padding.
    pub slack_bytes: u64,
    /// [`chunk_slack`](crate::chunk_slack) of the sweepable allocations: resident bytes of chunks less the bytes of the small
    /// allocations in them.
    pub chunk_slack_bytes: u64,
    /// The highest `live_bytes` since the start or the last reset.
    pub peak_bytes: u64,
    /// The highest `resident_bytes` since the start or the last reset.
    pub peak_resident_bytes: u64,
    /// Bytes of managed allocations; part of `live_bytes`.
    pub managed_bytes: u64,
    /// Number of managed allocations; part of `live_count`.
    pub managed_count: u64,
    /// Bytes of arenas.
    pub arena_bytes: u64,
    /// Number of arenas.
    pub arena_count: u64,
    /// Bytes of the distinct pages that only arenas touch.
    pub arena_resident_bytes: u64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: u64,
    /// The number of pinned allocations.
    pub pinned_count: u64,
    /// Bytes of padding; part of `resident_bytes`.
    pub padding_bytes: u64,
    /// The number of ranges of padding.
    pub padding_count: u64,
    /// How often the ledger was misused so far.
    pub misuse: MisuseCounts,
}

/// A sum in 64 bits; the largest number where it does not fit.
pub(crate) fn narrow(sum: impl TryInto<u64>) -> u64 {
    sum.try_into().unwrap_or(u64::MAX)
}

fn page_bytes(pages: u64) -> u128 {
    u128::from(pages) * u128::from(SMALL_ALLOC_CHUNK)
}

/// A number of 128 bits, since callers may claim any sizes. One thread at a time may change it.
#[derive(Default)]
struct Wide {
    low: AtomicU64,
    high: AtomicU64,
}

impl Wide {
    fn get(&self) -> u128 {
        u128::from(self.high.load(Relaxed)) << u64::BITS | u128::from(self.low.load(Relaxed))
    }

    fn set(&self, value: u128) {
        self.low.store(value as u64, Relaxed);
        self.high.store((value >> u64::BITS) as u64, Relaxed);
    }
}

/// Sums over the live allocations: changed under the ledger's lock, read without it.
///
/// A counter of changes tells a reader whether it saw one moment: it is odd during a change, and each change moves it. So
/// of two reads in order the second never sees an earlier moment than the first.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Sums {
    changes: AtomicU64,
    bytes: [Wide; AllocKind::ALL.len()],
    counts: [AtomicU64; AllocKind::ALL.len()],
    /// Bytes of sweepable allocations smaller than a chunk.
    small_bytes: Wide,
    device_pages: AtomicU64,
    arena_only_pages: AtomicU64,
    small_pages: AtomicU64,
    peak_bytes: Wide,
    peak_pages: AtomicU64,
    /// Whether device allocations overlap, so that the numbers of pages are not those of distinct pages.
    overlaps: AtomicBool,
}

impl Sums {
    /// Begins a change. The caller holds the lock until it [ends](Self::end_change) the change.
    pub(crate) fn begin_change(&self) {
        self.changes.store(self.changes.load(Relaxed) + 1, Relaxed);
        fence(Release);
    }

    pub(crate) fn end_change(&self) {
        self.changes.store(self.changes.load(Relaxed) + 1, Release);
    }

    /// Adds (`sign` 1) or subtracts (-1) an allocation.
    pub(crate) fn count(&self, of: &Allocation, sign: i64) {
        let (kind, bytes) = (of.kind as usize, i128::from(sign) * of.bytes as i128);
        self.bytes[kind].set(self.bytes[kind].get().wrapping_add_signed(bytes));
        self.counts[kind].store(self.counts[kind].load(Relaxed).wrapping_add_signed(sign), Relaxed);
        if of.is_small() {
            self.small_bytes.set(self.small_bytes.get().wrapping_add_signed(bytes));
        }
    }

    pub(crate) fn set_pages(&self, pages: PageCounts, overlaps: bool) {
        self.device_pages.store(pages.device, Relaxed);
        self.arena_only_pages.store(pages.arena_only, Relaxed);
        self.small_pages.store(pages.small, Relaxed);
        self.overlaps.store(overlaps, Relaxed);
    }

    pub(crate) fn set_peaks(&self, bytes: u128, pages: u64) {
        self.peak_bytes.set(bytes);
        self.peak_pages.store(pages, Relaxed);
    }

    /// Bytes of sweepable allocations.
    pub(crate) fn live_bytes(&self) -> u128 {
        self.bytes[AllocKind::Device as usize].get() + self.bytes[AllocKind::Managed as usize].get()
    }

    /// The totals, given the distinct pages. They are of one moment only if the caller holds the lock.
    pub(crate) fn totals(&self, pages: PageCounts, misuse: MisuseCounts) -> Totals {
        let bytes = |kind: AllocKind| self.bytes[kind as usize].get();
        let count = |kind: AllocKind| self.counts[kind as usize].load(Relaxed);
        let (device, managed) = (bytes(AllocKind::Device), bytes(AllocKind::Managed));
        let (resident, padding) = (page_bytes(pages.device), bytes(AllocKind::Padding));
        Totals {
            live_bytes: narrow(device + managed),
            live_count: count(AllocKind::Device) + count(AllocKind::Managed),
            resident_bytes: narrow(resident),
            // An allocation that overlaps or passes the end of the address space claims more bytes than its pages hold.
            slack_bytes: narrow(resident.saturating_sub(device + padding)),
            chunk_slack_bytes: narrow(page_bytes(pages.small).saturating_sub(self.small_bytes.get())),
            peak_bytes: narrow(self.peak_bytes.get()),
            peak_resident_bytes: narrow(page_bytes(self.peak_pages.load(Relaxed))),
            managed_bytes: narrow(managed),
            managed_count: count(AllocKind::Managed),
            arena_bytes: narrow(bytes(AllocKind::Arena)),
            arena_count: count(AllocKind::Arena),
            arena_resident_bytes: narrow(page_bytes(pages.arena_only)),
            pinned_bytes: narrow(bytes(AllocKind::Pinned)),
            pinned_count: count(AllocKind::Pinned),
            padding_bytes: narrow(padding),
            padding_count: count(AllocKind::Padding),
            misuse,
        }
    }

    /// What `pick` takes of the totals of one moment, but for misuse, without the lock; none during a change, and while
    /// allocations overlap.
    pub(crate) fn read<T>(&self, pick: impl Fn(&Totals) -> T) -> Option<T> {
        let before = self.changes.load(Acquire);
        let pages = PageCounts {
            device: self.device_pages.load(Relaxed),
            arena_only: self.arena_only_pages.load(Relaxed),
            small: self.small_pages.load(Relaxed),
        };
        let overlaps = self.overlaps.load(Relaxed);
        let picked = pick(&self.totals(pages, MisuseCounts::default()));
        fence(Acquire);
        let is_whole = before.is_multiple_of(2) && !overlaps && self.changes.load(Relaxed) == before;
        is_whole.then_some(picked)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! One live allocation as the state keeps it, and the addresses it covers.

use crate::SMALL_ALLOC_CHUNK;
use crate::record::AllocKind;

/// A live allocation in 32 bytes, since millions may be live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) addr: u64,
    pub(crate) bytes: usize,
    /// Its creation index.
    pub(crate) index: u64,
    /// The number of its group: site, scope, tag and kind.
    pub(crate) group: u32,
    pub(crate) kind: AllocKind,
    /// The driver refused to free it.
    pub(crate) free_refused: bool,
    /// It overlapped another allocation when it was inserted.
    pub(crate) overlaps: bool,
}

impl Allocation {
    /// The addresses it covers; none where it has no bytes.
    pub(crate) fn extent(&self) -> Option<Extent> {
        Extent::new(self.addr, self.bytes)
    }

    /// Whether it has bytes in `extent`.
    pub(crate) fn shares(&self, extent: Extent) -> bool {
        self.extent().is_some_and(|own| own.first <= extent.last && extent.first <= own.last)
    }

    /// Whether `addr` is its base or lies in its bytes.
    pub(crate) fn holds(&self, addr: u64) -> bool {
        self.addr == addr || self.shares(Extent { first: addr, last: addr })
    }

    /// Whether [`chunk_slack`](crate::chunk_slack) of the sweepable allocations counts it.
    pub(crate) fn is_small(&self) -> bool {
        self.kind.is_sweepable() && self.bytes > 0 && (self.bytes as u64) < SMALL_ALLOC_CHUNK
    }

    /// Whether it would pass the end of the address space.
    pub(crate) fn passes_end(&self) -> bool {
        (self.bytes as u64).checked_sub(1).is_some_and(|more| self.addr.checked_add(more).is_none())
    }

    /// Whether a driver could have made it.
    pub(crate) fn is_possible(&self) -> bool {
        self.addr != 0 && self.bytes != 0 && !self.passes_end()
    }
}

/// The addresses an allocation covers, both ends included; cut at the end of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Extent {
    /// None where `bytes` is 0.
    pub(crate) fn new(addr: u64, bytes: usize) -> Option<Self> {
        let more = (bytes as u64).checked_sub(1)?;
        Some(Self { first: addr, last: addr.saturating_add(more) })
    }

    /// The numbers of its first and last page.
    pub(crate) fn pages(self) -> (u64, u64) {
        (self.first / SMALL_ALLOC_CHUNK, self.last / SMALL_ALLOC_CHUNK)
    }
}

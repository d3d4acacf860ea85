// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PinnedTable`]: which pinned memory is live, by generation, whether or not a ledger is kept.
//!
//! A [`PinnedPtr`] can be copied, and an address comes back from the driver as soon as it is free. So a handle that was
//! freed may hold the address of somebody else's memory, which safe code must not be able to free through it.

use std::collections::HashMap;
use std::panic::Location;

use metrale_ledger::file_line;

use crate::error::causes;
use crate::handle_tombstones::HandleTombstones;
use crate::memory::pinned_ptr::PinnedPtr;
use crate::raw_handles::unique_number;

/// A free of pinned memory through a handle that is not, or no longer, of live memory of this backend, where the address
/// tells no more than that. The driver was not asked and nothing was changed.
///
/// Where nothing pinned is at the address and a ledger is kept, its [`FreeError`](crate::FreeError) says more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "free_pinned called at {}: {pinned} of {} bytes {}{}",
    file_line(site),
    pinned.len(),
    match freed_at {
        Some(freed_at) => format!("was freed before at {}", file_line(freed_at)),
        None => "is none of this backend's, or was freed longer ago than is remembered".to_owned(),
    },
    match now {
        Some((bytes, site)) => format!("; what is pinned there now, {bytes} bytes from {}, belongs to another handle and stays", file_line(site)),
        None => String::new(),
    }
)]
#[non_exhaustive]
pub struct StalePinned {
    /// The line that called.
    pub site: &'static Location<'static>,
    /// The handle.
    pub pinned: PinnedPtr,
    /// Where it was freed, if that is known.
    pub freed_at: Option<&'static Location<'static>>,
    /// What is pinned at the address now: bytes, and the line that allocated them.
    pub now: Option<(usize, &'static Location<'static>)>,
}

/// Live pinned memory of one address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LivePinned {
    generation: u64,
    bytes: usize,
    site: &'static Location<'static>,
}

causes! { StalePinned: InvalidFree }

impl LivePinned {
    /// New memory, of a generation that no other has in this process. 0 is of none: it marks foreign memory.
    pub(crate) fn new(bytes: usize, site: &'static Location<'static>) -> Self {
        Self { generation: unique_number(), bytes, site }
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }
}

/// The live pinned memory of a backend, by address.
#[derive(Debug, Default)]
pub(crate) struct PinnedTable {
    live: HashMap<u64, LivePinned>,
    freed: HandleTombstones<&'static Location<'static>>,
}

impl PinnedTable {
    /// Inserts what the driver has just allocated.
    pub(crate) fn insert(&mut self, addr: u64, live: LivePinned) {
        self.live.insert(addr, live);
    }

    /// Removes whatever was at an address that the driver has allocated again: it was freed outside this backend.
    pub(crate) fn remove_stale(&mut self, addr: u64) {
        self.live.remove(&addr);
    }

    /// What is live at the handle's address, which may belong to another handle.
    pub(crate) fn at(&self, pinned: PinnedPtr) -> Option<LivePinned> {
        self.live.get(&pinned.addr()).copied()
    }

    /// Removes the memory of a handle, where it is the one that is live.
    pub(crate) fn remove(
        &mut self,
        pinned: PinnedPtr,
        site: &'static Location<'static>,
    ) -> Option<LivePinned> {
        let live = self.at(pinned).filter(|live| live.generation == pinned.generation())?;
        self.live.remove(&pinned.addr());
        self.freed.add(live.generation, site);
        Some(live)
    }

    /// Why a handle does not free anything.
    pub(crate) fn stale(&self, pinned: PinnedPtr, site: &'static Location<'static>) -> StalePinned {
        let now = self.at(pinned).map(|live| (live.bytes, live.site));
        StalePinned { site, pinned, freed_at: self.freed.last_end(pinned.generation()).copied(), now }
    }
}

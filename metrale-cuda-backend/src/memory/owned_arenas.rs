// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OwnedArenas`]: arena memory that a value of this crate owns, which nobody else can free by its address.

use core::fmt;
use std::panic::Location;

use metrale_ledger::file_line;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::error::{BadArgument, Result};
use crate::raw_handles::DevicePtr;

/// Who owns an arena, and frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArenaOwner {
    /// The cache of operations.
    OpCache,
    /// A [`PackedArena`](crate::PackedArena).
    Packed,
    /// cudarc, by way of an `Adopted`.
    #[cfg_attr(not(feature = "cudarc"), expect(dead_code, reason = "only cudarc's slices are adopted"))]
    Adopted,
}

impl fmt::Display for ArenaOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpCache => "the op cache, which still gives it out; release_op_cache frees it",
            Self::Packed => "a PackedArena; its own free, or its drop, frees it",
            Self::Adopted => "cudarc; drop the Adopted, or let go of it",
        })
    }
}

/// The arenas that have an owner by base address, and those that are to be freed and could not be, which have none. Any other
/// outlives the backend.
type Owners = FxHashMap<u64, Option<ArenaOwner>>;

/// Locked over a look and the change of the ledger that follows it, never over a call of the driver.
#[derive(Debug, Default)]
pub(crate) struct OwnedArenas(Mutex<Owners>);

impl OwnedArenas {
    /// Gives an arena an owner. Whoever holds its address only cannot free it from here on.
    pub(crate) fn own(&self, base: u64, owner: ArenaOwner) {
        self.0.lock().insert(base, Some(owner));
    }

    /// A free by whoever may free it was refused: anybody may try again, and the drop of the backend does.
    pub(crate) fn abandon(&self, base: u64) {
        self.0.lock().insert(base, None);
    }

    /// Whether the drop of the backend frees it.
    pub(crate) fn ends_with_backend(&self, base: u64) -> bool {
        self.0.lock().contains_key(&base)
    }

    /// The owner is gone, or has freed it.
    pub(crate) fn disown(&self, base: u64) {
        self.0.lock().remove(&base);
    }

    /// Passes a free by the owner, or of what nobody owns. As long as the answer is held, that stays so.
    pub(crate) fn free_by(
        &self,
        base: u64,
        owner: Option<ArenaOwner>,
        call: &'static str,
        site: &Location<'_>,
    ) -> Result<OwnerPassed<'_>, BadArgument> {
        let owners = self.0.lock();
        match owners.get(&base) {
            Some(Some(other)) if owner != Some(*other) => Err(BadArgument::new(format!(
                "{call} called at {}: {} belongs to {other}. Nothing was freed",
                file_line(site),
                DevicePtr(base)
            ))),
            _ => Ok(OwnerPassed { owners, base }),
        }
    }
}

/// A free that the table of owners lets pass.
pub(crate) struct OwnerPassed<'owners> {
    owners: MutexGuard<'owners, Owners>,
    base: u64,
}

impl OwnerPassed<'_> {
    /// The record has gone from the ledger: the address may be another's at once.
    pub(crate) fn forgotten(mut self) {
        self.owners.remove(&self.base);
    }
}

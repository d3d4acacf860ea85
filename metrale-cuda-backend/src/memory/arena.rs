// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocating arenas that a value of this crate owns.

use std::panic::Location;

use metrale_ledger::{AllocKind, Whois};

use super::owned_arenas::ArenaOwner;
use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::features::KEEPS_LEDGER;
use crate::raw_handles::DevicePtr;

impl MetraleCudaBackend {
    /// Allocates an arena with an owner.
    pub(crate) fn alloc_owned_arena(
        &self,
        bytes: usize,
        owner: ArenaOwner,
        site: &'static Location<'static>,
    ) -> Result<DevicePtr> {
        loop {
            let base = self.alloc_kind(bytes, AllocKind::Arena, site)?;
            self.owned_arenas().own(base.0, owner);
            // Before it had an owner, a stale copy of the same address may have freed it.
            let is_there = matches!(
                self.ledger_writer().whois(base.0),
                Whois::Live { allocation, .. } if allocation.addr == base.0 && allocation.record.kind == AllocKind::Arena
            );
            if is_there || !KEEPS_LEDGER {
                return Ok(base);
            }
            self.owned_arenas().disown(base.0);
        }
    }
}

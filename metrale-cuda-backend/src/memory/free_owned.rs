// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freeing what owners give up: now, or as soon as it may be.

use std::sync::Arc;

use metrale_ledger::{AllocKind, file_line};

use super::owned::{Freed, GivenUp, OwnedMemory, Site, may_later};
use super::owned_arenas::ArenaOwner;
use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::graph::FreesLater;

impl FreesLater for MetraleCudaBackend {
    fn free_waiting(&self) {
        self.free_deferred();
    }
}

impl MetraleCudaBackend {
    /// Frees what its owner gives up, or does so later where it may not be freed now.
    pub(crate) fn free_now_or_later(&self, memory: GivenUp, site: Site) -> Result<Freed> {
        self.free_deferred();
        let ends = self.graph_client().shared.ends();
        match self.free_given_up(&memory, site) {
            Err(error) if may_later(&error) => {
                self.deferred().add(memory, site);
                // What it waits for may have ended before it was in the list.
                if self.graph_client().shared.ends() != ends {
                    self.free_deferred();
                }
                Ok(Freed::Later(error))
            }
            answer => answer.map(|()| Freed::Now),
        }
    }

    /// Frees what its owners gave up before and what may be freed now; whether anything was. Costs a relaxed load where
    /// nothing waits.
    pub(crate) fn free_deferred(&self) -> bool {
        let mut is_any = false;
        for (memory, site) in self.deferred().take() {
            match self.free_given_up(&memory, site) {
                Ok(()) => is_any = true,
                Err(error) if may_later(&error) => self.deferred().add(memory, site),
                // A sweep may have come first, and a lost context was logged when it was found.
                Err(error) => tracing::debug!("memory that was given up at {}: {error:#}", file_line(site)),
            }
        }
        is_any
    }

    /// Frees what waited for a capture or graph that has ended: here, and with those that asked to be told.
    pub(crate) fn free_what_waited(&self) {
        self.free_deferred();
        self.graph_client().shared.waiting().iter().for_each(|who| who.free_waiting());
    }

    /// Has somebody free what waits whenever a capture or graph of any backend of the driver ends.
    pub(crate) fn tell_of_ends(&self, who: &Arc<impl FreesLater + 'static>) {
        let weak = Arc::downgrade(who);
        self.graph_client().shared.await_ends(weak);
        // One may have ended meanwhile.
        who.free_waiting();
    }

    fn free_given_up(&self, memory: &GivenUp, site: Site) -> Result<()> {
        match memory {
            GivenUp::Device(memory) => self.free_only(memory, site),
            GivenUp::Pinned(pinned) => self.unpin_memory(*pinned, site),
            GivenUp::Arena(base) => {
                self.free_kind(*base, AllocKind::Arena, "the drop of an arena", Some(ArenaOwner::Packed))
            }
        }
    }

    /// Frees this memory, and no other that is at its address.
    pub(crate) fn free_only(&self, memory: &OwnedMemory, site: Site) -> Result<()> {
        const CALL: &str = "free_owned";
        let addr = memory.ptr.0;
        // Bands are looked at in the context that is current; which thread drops an owner is nobody's to say.
        let _current = self.zones().is_on().then(|| self.enter().ok()).flatten();
        let _bound = self.may_free(AllocKind::Device)?;
        let unpinned = self.unpinned(addr, AllocKind::Device, CALL, site)?;
        let forgotten = self.ledger_writer().forget_only(addr, memory.index, site);
        let record = self.unused(unpinned, forgotten, (addr, AllocKind::Device), CALL, site)?;
        // Before the driver frees it: the address may be the next owner's.
        self.owned_addresses.remove(addr);
        self.free_forgotten(memory.ptr, AllocKind::Device, record)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`LiveMemory`]: what was allocated through an adaptor and is not freed.

use std::collections::{BTreeMap, HashMap};

/// Memory as calls name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Name {
    Address(u64),
    /// Of physical memory.
    Handle(u64),
}

/// Bytes, and how many calls must end before they are free: a free; or each release and each unmap of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    bytes: u64,
    holders: usize,
}

/// Live device memory, and its sum.
#[derive(Default)]
pub(super) struct LiveMemory {
    held: HashMap<Name, Held>,
    /// Handles by the address where they are mapped.
    mapped: BTreeMap<u64, u64>,
    bytes: u64,
}

impl LiveMemory {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts bytes of an allocation that the driver is still to be asked for.
    pub(super) fn expect(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The driver refused the allocation.
    pub(super) fn refused(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// The driver made the allocation. Address 0 is one of no bytes.
    pub(super) fn made(&mut self, name: Name, bytes: u64) {
        if name != Name::Address(0) {
            self.held.insert(name, Held { bytes, holders: 1 });
        }
    }

    /// Forgets an allocation before the driver is asked to free it, because its name may be used again at once. One that has
    /// further holders stays.
    pub(super) fn forget(&mut self, name: Name) -> Option<Held> {
        let held = self.held.get_mut(&name)?;
        if held.holders > 1 {
            held.holders -= 1;
            return None;
        }
        self.held.remove(&name)
    }

    /// The driver has answered the free of what was forgotten.
    pub(super) fn answered(&mut self, name: Name, forgotten: Option<Held>, succeeded: bool) {
        match (forgotten, succeeded) {
            (Some(held), true) => self.bytes = self.bytes.saturating_sub(held.bytes),
            (Some(held), false) => drop(self.held.insert(name, held)),
            (None, true) => {}
            (None, false) => self.retained(name),
        }
    }

    /// Memory has one holder more.
    pub(super) fn retained(&mut self, name: Name) {
        if let Some(held) = self.held.get_mut(&name) {
            held.holders += 1;
        }
    }

    /// Physical memory was mapped.
    pub(super) fn mapped(&mut self, address: u64, handle: u64) {
        self.retained(Name::Handle(handle));
        self.mapped.insert(address, handle);
    }

    /// A range of addresses was unmapped.
    pub(super) fn unmapped(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let bases: Vec<u64> = self.mapped.range(address..end).map(|(&base, _)| base).collect();
        for base in bases {
            if let Some(handle) = self.mapped.remove(&base) {
                let forgotten = self.forget(Name::Handle(handle));
                self.answered(Name::Handle(handle), forgotten, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_memory_is_live_until_its_last_holder_ends() {
        let mut live = LiveMemory::default();
        live.expect(100);
        live.made(Name::Handle(7), 100);
        live.mapped(0x1000, 7);
        live.mapped(0x2000, 7);
        let forgotten = live.forget(Name::Handle(7));
        live.answered(Name::Handle(7), forgotten, true);
        assert_eq!(live.bytes(), 100);
        live.unmapped(0x1000, 0x10);
        assert_eq!(live.bytes(), 100);
        live.unmapped(0x1000, 0x2000);
        assert_eq!((live.bytes(), live.held.len(), live.mapped.len()), (0, 0, 0));
    }

    #[test]
    fn a_free_that_fails_changes_nothing() {
        let mut live = LiveMemory::default();
        live.expect(8);
        live.made(Name::Address(64), 8);
        live.retained(Name::Address(64));
        for succeeded in [false, true, false, true] {
            let forgotten = live.forget(Name::Address(64));
            live.answered(Name::Address(64), forgotten, succeeded);
        }
        assert_eq!((live.bytes(), live.held.len()), (0, 0));
        // What the adaptor has not seen made counts for nothing.
        let forgotten = live.forget(Name::Address(65));
        live.answered(Name::Address(65), forgotten, false);
        live.made(Name::Address(0), 0);
        assert_eq!((live.bytes(), live.held.len()), (0, 0));
    }
}

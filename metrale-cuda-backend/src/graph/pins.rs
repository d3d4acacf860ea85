// SPDX-License-Identifier: MIT OR Apache-2.0
//! What captures and graphs are known to use, and by which address a free finds them. Pure: no driver, no lock.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use metrale_ledger::{AllocKind, LiveAllocation};

use crate::raw_handles::GraphHandle;

/// Which allocation, or part of an arena: its base address, among those of its sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pin {
    sort: Sort,
    base: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Sort {
    Device,
    Host,
    /// Of an arena, whose first part begins where it does.
    Part,
}

impl Pin {
    /// The allocation of that kind and base.
    pub(crate) fn of(kind: AllocKind, base: u64) -> Self {
        Self { sort: if kind == AllocKind::Pinned { Sort::Host } else { Sort::Device }, base }
    }

    /// The part of an arena with that base.
    pub(crate) fn of_part(base: u64) -> Self {
        Self { sort: Sort::Part, base }
    }
}

/// Who keeps memory pinned: a graph, or a capture that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinHolder {
    /// The graph's handle; `None` while its capture goes on.
    pub graph: Option<GraphHandle>,
    /// The graph's name; `None` while its capture goes on.
    pub name: Option<Arc<str>>,
    /// The line that began the capture.
    pub captured_at: &'static Location<'static>,
}

impl fmt::Display for PinHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => {
                write!(f, "graph {name:?}, captured at {}", metrale_ledger::file_line(self.captured_at))
            }
            None => write!(
                f,
                "the capture begun at {}, which has not ended",
                metrale_ledger::file_line(self.captured_at)
            ),
        }
    }
}

/// What one capture, and then its graph, uses; or one call that may be recorded by a capture, until the driver has answered.
#[derive(Clone, Debug)]
pub(crate) struct GraphUses {
    pub(crate) holder: PinHolder,
    pub(crate) memory: BTreeMap<Pin, LiveAllocation>,
    /// Launches whose arguments are not known.
    pub(crate) opaque_launches: usize,
}

/// Everything that is pinned. A capture's number stays that of its graph.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    uses: HashMap<u64, GraphUses>,
    /// In the order in which they came to use it.
    holders: HashMap<Pin, Vec<u64>>,
}

impl Pins {
    /// Begins the uses of a capture.
    pub(crate) fn open(&mut self, id: u64, captured_at: &'static Location<'static>) {
        let holder = PinHolder { graph: None, name: None, captured_at };
        self.uses.insert(id, GraphUses { holder, memory: BTreeMap::new(), opaque_launches: 0 });
    }

    /// Notes that a capture or graph uses an allocation.
    pub(crate) fn add(&mut self, id: u64, allocation: LiveAllocation) {
        self.add_as(id, Pin::of(allocation.record.kind, allocation.addr), allocation);
    }

    /// Notes that a capture or graph uses a part of an arena.
    pub(crate) fn add_part(&mut self, id: u64, part: LiveAllocation) {
        self.add_as(id, Pin::of_part(part.addr), part);
    }

    fn add_as(&mut self, id: u64, pin: Pin, allocation: LiveAllocation) {
        let Some(uses) = self.uses.get_mut(&id) else { return };
        if uses.memory.insert(pin, allocation).is_none() {
            self.holders.entry(pin).or_default().push(id);
        }
    }

    /// Notes that a capture uses all that another holder does.
    pub(crate) fn share(&mut self, from: u64, to: u64) {
        let Some(uses) = self.uses.get(&from) else { return };
        for (pin, allocation) in uses.memory.clone() {
            self.add_as(to, pin, allocation);
        }
    }

    /// Notes a launch of which only the kernel is known.
    pub(crate) fn add_opaque(&mut self, id: u64) {
        if let Some(uses) = self.uses.get_mut(&id) {
            uses.opaque_launches += 1;
        }
    }

    /// The capture has become a graph.
    pub(crate) fn name(&mut self, id: u64, graph: GraphHandle, name: Arc<str>) {
        if let Some(uses) = self.uses.get_mut(&id) {
            (uses.holder.graph, uses.holder.name) = (Some(graph), Some(name));
        }
    }

    /// Releases all that a capture or graph uses.
    pub(crate) fn release(&mut self, id: u64) {
        let Some(uses) = self.uses.remove(&id) else { return };
        for pin in uses.memory.into_keys() {
            if let Some(ids) = self.holders.get_mut(&pin) {
                ids.retain(|&other| other != id);
                if ids.is_empty() {
                    self.holders.remove(&pin);
                }
            }
        }
    }

    /// Allocations and parts that are pinned.
    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }

    /// What a capture or graph uses.
    pub(crate) fn of(&self, id: u64) -> Option<&GraphUses> {
        self.uses.get(&id)
    }

    /// The numbers of those who use it.
    pub(crate) fn ids(&self, pin: Pin) -> &[u64] {
        self.holders.get(&pin).map_or(&[], Vec::as_slice)
    }

    /// The allocation and those who use it; `None` where nobody does.
    pub(crate) fn holders(&self, pin: Pin) -> Option<(&LiveAllocation, Vec<PinHolder>)> {
        let ids = self.holders.get(&pin)?;
        let allocation = self.uses.get(ids.first()?)?.memory.get(&pin)?;
        Some((allocation, ids.iter().filter_map(|id| Some(self.uses.get(id)?.holder.clone())).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_handles::HandleId;
    use metrale_ledger::{Ledger, Whois};

    fn graph(raw: u64) -> GraphHandle {
        GraphHandle(HandleId { raw, generation: raw })
    }

    /// An allocation as the ledger gives it.
    fn allocation(addr: u64, kind: AllocKind) -> LiveAllocation {
        let ledger = Ledger::new();
        let _ = ledger.record_as(addr, 64, Location::caller(), kind);
        match ledger.whois(addr) {
            Whois::Live { allocation, .. } => allocation,
            other => unreachable!("{other}"),
        }
    }

    #[test]
    fn memory_is_pinned_until_the_last_user_releases_it() {
        let mut pins = Pins::default();
        for id in [1, 2] {
            pins.open(id, Location::caller());
            for _ in 0..3 {
                pins.add(id, allocation(0x200, AllocKind::Device));
            }
        }
        pins.name(2, graph(0x9), "decode".into());
        let pin = Pin::of(AllocKind::Managed, 0x200);
        let (owner, holders) = pins.holders(pin).unwrap();
        assert_eq!((owner.addr, holders.len()), (0x200, 2));
        assert_eq!(pins.len(), 1);
        assert_eq!((holders[0].graph, holders[1].graph), (None, Some(graph(0x9))));
        assert!(holders[0].to_string().contains("has not ended"));
        assert!(holders[1].to_string().starts_with("graph \"decode\", captured at "));
        pins.release(1);
        assert_eq!((pins.holders(pin).unwrap().1.len(), pins.len()), (1, 1), "the second one still uses it");
        pins.release(2);
        pins.release(2);
        assert_eq!((pins.holders(pin), pins.len()), (None, 0));
    }

    #[test]
    fn host_and_device_addresses_are_apart() {
        let mut pins = Pins::default();
        pins.open(1, Location::caller());
        pins.add(1, allocation(0x200, AllocKind::Pinned));
        assert!(pins.holders(Pin::of(AllocKind::Device, 0x200)).is_none());
        assert!(pins.holders(Pin::of(AllocKind::Pinned, 0x200)).is_some());
    }

    #[test]
    fn what_no_capture_asked_for_pins_nothing() {
        let mut pins = Pins::default();
        pins.add(7, allocation(0x200, AllocKind::Device));
        pins.add_opaque(7);
        pins.name(7, graph(1), "none".into());
        assert!(pins.of(7).is_none() && pins.len() == 0);
    }
}

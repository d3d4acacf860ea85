// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a program creates and maps itself: `cuMemCreate`, `cuMemMap`, `cuMemUnmap`, `cuMemRelease`.
//!
//! Creating takes the memory at once, in whole pages of 2 MiB. Mapping takes nothing. A released handle's memory goes when its
//! last mapping goes; the handle's number may name other memory by then.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Allocator, Live, Plan, PlanError, Request, Step, map_bytes};
use crate::placement::PlacementError;

/// Handles, mappings, and the memory behind them.
#[derive(Clone, Default)]
pub(super) struct Created {
    /// By the number that the memory was given here, which is never used again.
    memory: FxHashMap<u64, Memory>,
    next: u64,
    /// Memory by handle, until that is released.
    handles: FxHashMap<u64, u64>,
    /// Memory by the address where it is mapped.
    mappings: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy)]
struct Memory {
    live: Live,
    /// The handle that it was created with.
    #[cfg_attr(not(feature = "trace"), allow(dead_code, reason = "only followers of logs ask for it"))]
    handle: u64,
    is_released: bool,
    mapping_count: u64,
}

impl Created {
    pub(super) fn live_count(&self) -> usize {
        self.memory.len()
    }

    /// Everything live, by the handle that it was created with.
    #[cfg(feature = "trace")]
    pub(super) fn live(&self) -> impl Iterator<Item = (u64, &Live)> + '_ {
        self.memory.values().map(|memory| (memory.handle, &memory.live))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        // A tree keeps its entries in nodes that are at least half full.
        map_bytes(self.memory.capacity(), size_of::<(u64, Memory)>())
            + map_bytes(self.handles.capacity(), size_of::<(u64, u64)>())
            + 2 * size_of::<(u64, u64)>() * self.mappings.len()
    }

    /// Removes the memory, if its handle is released and nothing maps it.
    fn end_unheld(&mut self, number: u64) -> Option<Live> {
        let memory = self.memory.get(&number)?;
        if memory.is_released && memory.mapping_count == 0 {
            return self.memory.remove(&number).map(|memory| memory.live);
        }
        None
    }

    fn release(&mut self, handle: u64) -> Option<u64> {
        let number = self.handles.remove(&handle)?;
        self.memory.get_mut(&number)?.is_released = true;
        Some(number)
    }

    fn unmap(&mut self, address: u64) -> Option<u64> {
        let number = self.mappings.remove(&address)?;
        self.memory.get_mut(&number)?.mapping_count -= 1;
        Some(number)
    }
}

impl Plan {
    /// Plans `cuMemCreate`: memory of its own, in whole pages of 2 MiB, known by its handle.
    ///
    /// # Errors
    /// [`PlanError::AlreadyLive`] where the handle names memory and was not released, or [`PlanError::Placement`].
    pub fn create(&mut self, handle: u64, bytes: u64, label: Option<&str>) -> Result<Step, PlanError> {
        if let Some((bytes, _)) = self.created(handle) {
            self.count_operation();
            return Err(PlanError::AlreadyLive { id: handle, bytes });
        }
        let from = Allocator::VirtualMemory;
        Ok(self.create_unknown(handle, Request { from, bytes, label, note: 0 })?)
    }

    /// Plans the creation of memory with a handle that names none.
    pub(crate) fn create_unknown(&mut self, handle: u64, new: Request<'_>) -> Result<Step, PlacementError> {
        let operation = self.count_operation();
        let live = self.begin(new)?;
        let number = self.created.next;
        self.created.next += 1;
        self.created.memory.insert(number, Memory { live, handle, is_released: false, mapping_count: 0 });
        self.created.handles.insert(handle, number);
        Ok(self.raise(operation, new.note))
    }

    /// Bytes of the memory that a handle names, and what was noted of it.
    pub(crate) fn created(&self, handle: u64) -> Option<(u64, u64)> {
        let live = &self.created.memory.get(self.created.handles.get(&handle)?)?.live;
        Some((self.device.bytes_of(live.place), live.note))
    }

    /// Plans `cuMemMap` of a handle's memory at an address. What was mapped there is unmapped first.
    ///
    /// # Errors
    /// [`PlanError::UnknownHandle`].
    pub fn map(&mut self, address: u64, handle: u64) -> Result<Step, PlanError> {
        let Some(&number) = self.created.handles.get(&handle) else {
            self.count_operation();
            return Err(PlanError::UnknownHandle { handle });
        };
        // Counted first: the same memory may be what was mapped there.
        if let Some(memory) = self.created.memory.get_mut(&number) {
            memory.mapping_count += 1;
        }
        self.end_mapping(address);
        self.created.mappings.insert(address, number);
        Ok(self.pass())
    }

    /// Plans `cuMemUnmap` of `bytes` from an address: of every mapping that begins there. With 0 bytes, of the one at the address.
    ///
    /// # Errors
    /// [`PlanError::NotMapped`] where none does.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Result<Step, PlanError> {
        let last = address.saturating_add(bytes.max(1) - 1);
        let begun: Vec<u64> =
            self.created.mappings.range(address..=last).map(|(&address, _)| address).collect();
        for &address in &begun {
            self.end_mapping(address);
        }
        let step = self.pass();
        if begun.is_empty() { Err(PlanError::NotMapped { address }) } else { Ok(step) }
    }

    fn end_mapping(&mut self, address: u64) {
        if let Some(number) = self.created.unmap(address)
            && let Some(live) = self.created.end_unheld(number)
        {
            self.end(live);
        }
    }

    /// Plans `cuMemRelease`. The memory goes now, or with its last mapping.
    ///
    /// # Errors
    /// [`PlanError::UnknownHandle`].
    pub fn release(&mut self, handle: u64) -> Result<Step, PlanError> {
        if !self.displace_created(handle) {
            self.count_operation();
            return Err(PlanError::UnknownHandle { handle });
        }
        self.frees += 1;
        Ok(self.pass())
    }

    /// Releases a handle without an operation of its own. False where it names no memory.
    pub(crate) fn displace_created(&mut self, handle: u64) -> bool {
        let Some(number) = self.created.release(handle) else { return false };
        if let Some(live) = self.created.end_unheld(number) {
            self.end(live);
        }
        true
    }
}

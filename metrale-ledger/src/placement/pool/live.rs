// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is live in a pool, by id.

use super::super::{PlacementError, PlacementId};

/// An allocation; `bytes`, as asked for, is 0 where nothing is live.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) start: u64,
    pub(super) rounded: u64,
    pub(super) bytes: u64,
    generation: u32,
}

/// All live allocations. Slots are used again, ids are not.
#[derive(Clone, Default)]
pub(super) struct Live {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

impl Live {
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.count() >= u32::MAX as usize
    }

    pub(super) fn slot(&self, id: PlacementId) -> Option<&Slot> {
        self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation && slot.bytes > 0)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Slot>() * self.slots.capacity() + size_of::<u32>() * self.vacant.capacity()
    }

    pub(super) fn insert(&mut self, start: u64, rounded: u64, bytes: u64) -> PlacementId {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let kept = &mut self.slots[slot as usize];
        *kept = Slot { start, rounded, bytes, ..*kept };
        PlacementId { slot, generation: kept.generation }
    }

    /// Removes and returns what is live under the id.
    ///
    /// # Errors
    /// [`PlacementError::NotLive`].
    pub(super) fn remove(&mut self, id: PlacementId) -> Result<Slot, PlacementError> {
        let live = *self.slot(id).ok_or(PlacementError::NotLive { id })?;
        let generation = live.generation.wrapping_add(1);
        self.slots[id.slot as usize] = Slot { generation, ..Slot::default() };
        self.vacant.push(id.slot);
        Ok(live)
    }
}

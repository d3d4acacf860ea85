// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of a plan: a model of each allocator, side by side. What one keeps has no effect on another.

use crate::placement::{PackingRule, Placement, PlacementError, PlacementId};

/// Granularity of `cuMemCreate`, in bytes: measured on an H200, minimum and recommended alike.
const CREATED_GRANULARITY_BYTES: u64 = 2 << 20;

/// Who gives out the memory of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Allocator {
    /// `cuMemAlloc`: small allocations share chunks, by the [packing rule](crate::placement).
    #[default]
    Driver,
    /// `cuMemCreate`: every allocation has whole pages of 2 MiB of its own, given back when it is released and unmapped.
    VirtualMemory,
}

impl Allocator {
    /// Every allocator.
    pub const ALL: [Self; 2] = [Self::Driver, Self::VirtualMemory];

    /// Its name on command lines and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::VirtualMemory => "vmm",
        }
    }
}

/// Where an allocation lies.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// One of no bytes lies nowhere.
    Nowhere,
    Packed(PlacementId),
    Created(PlacementId),
}

/// The rule of created memory: nothing shares a page.
const CREATED: PackingRule = match PackingRule::new(CREATED_GRANULARITY_BYTES, CREATED_GRANULARITY_BYTES) {
    Ok(rule) => rule,
    Err(_) => panic!("a chunk of one granule is a rule"),
};

/// The models.
#[derive(Clone, Debug)]
pub(super) struct Device {
    packed: Placement,
    created: Placement,
}

impl Device {
    pub(super) fn new(rule: PackingRule) -> Self {
        Self { packed: Placement::new(rule), created: Placement::new(CREATED) }
    }

    /// The packing rule of `cuMemAlloc`.
    pub(super) fn rule(&self) -> PackingRule {
        self.packed.rule()
    }

    /// Places an allocation: where, and its bytes as they are kept.
    pub(super) fn alloc(&mut self, from: Allocator, bytes: u64) -> Result<(Place, u64), PlacementError> {
        if bytes == 0 {
            return Ok((Place::Nowhere, 0));
        }
        let placed = match from {
            Allocator::Driver => {
                let placed = self.packed.alloc(bytes)?;
                (Place::Packed(placed.id), placed.reserved_bytes)
            }
            Allocator::VirtualMemory => {
                let placed = self.created.alloc(bytes)?;
                (Place::Created(placed.id), placed.reserved_bytes)
            }
        };
        if self.packed.resident_bytes().checked_add(self.created.resident_bytes()).is_none() {
            self.free(placed.0);
            return Err(PlacementError::TooLarge { bytes });
        }
        Ok(placed)
    }

    /// Frees what lies in a place, which is live, as only the plan has it. Its bytes, as asked for and as they were kept.
    pub(super) fn free(&mut self, place: Place) -> (u64, u64) {
        let bytes = self.bytes_of(place);
        let freed = match place {
            Place::Nowhere => return (0, 0),
            Place::Packed(id) => self.packed.free(id),
            Place::Created(id) => self.created.free(id),
        };
        (bytes, freed.map_or(0, |freed| freed.reserved_bytes))
    }

    /// Whether an allocation would be placed beside what is live.
    #[cfg(feature = "trace")]
    pub(super) fn check(&self, from: Allocator, bytes: u64) -> Result<(), PlacementError> {
        let taken = match from {
            _ if bytes == 0 => return Ok(()),
            Allocator::Driver => self.packed.would_take(bytes)? * self.rule().page_bytes(),
            Allocator::VirtualMemory => CREATED.reserved_bytes(bytes)?,
        };
        match self.resident_bytes().checked_add(taken) {
            Some(_) => Ok(()),
            None => Err(PlacementError::TooLarge { bytes }),
        }
    }

    /// Bytes of what lies in a place, as asked for.
    pub(super) fn bytes_of(&self, place: Place) -> u64 {
        match place {
            Place::Nowhere => None,
            Place::Packed(id) => self.packed.bytes_of(id),
            Place::Created(id) => self.created.bytes_of(id),
        }
        .unwrap_or(0)
    }

    /// Bytes live, as asked for. They are at most the resident ones, whose sum 64 bits hold.
    pub(super) fn live_bytes(&self) -> u64 {
        self.packed.live_bytes() + self.created.live_bytes()
    }

    /// Bytes that the device keeps.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.packed.resident_bytes() + self.created.resident_bytes()
    }

    /// What the allocations that are not packed would take in any order on an empty device.
    pub(super) fn any_order_bytes(&self) -> u64 {
        self.created.resident_bytes()
    }

    /// Bytes of host memory that the models take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.packed.memory_bytes() + self.created.memory_bytes()
    }
}

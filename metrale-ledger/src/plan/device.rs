// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of a plan: a model of each allocator, side by side. What one keeps has no effect on another.

use crate::placement::pool::{Pool, PoolRule};
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
    /// `cuMemAllocAsync` from a stream's default pool, by its own [rule](crate::placement::pool).
    Pool,
    /// `cuMemCreate`: every allocation has whole pages of 2 MiB of its own, given back when it is released and unmapped.
    VirtualMemory,
}

impl Allocator {
    /// Every allocator.
    pub const ALL: [Self; 3] = [Self::Driver, Self::Pool, Self::VirtualMemory];

    /// Its name on command lines and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Pool => "pool",
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
    Pooled(PlacementId),
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
    pool: Pool,
    /// Bytes of the pool's allocations, each rounded up.
    pooled_bytes: u64,
    /// The stream in whose order the pool allocates and frees now.
    pub(super) stream: u64,
    created: Placement,
}

impl Device {
    pub(super) fn new(rule: PackingRule) -> Self {
        Self {
            packed: Placement::new(rule),
            pool: Pool::new(PoolRule::H200),
            pooled_bytes: 0,
            stream: 0,
            created: Placement::new(CREATED),
        }
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
            Allocator::Pool => {
                // An allocation touches at most two pieces in part. Where even that cannot pass 64 bits, nothing need be checked;
                // afterwards is too late, because the pool keeps what it has taken.
                let most = bytes.saturating_add(2 * self.pool.rule().piece_bytes());
                if self.resident_bytes().checked_add(most).is_none() {
                    self.resident_bytes_with(from, bytes)?;
                }
                let placed = self.pool.alloc(self.stream, bytes)?;
                self.pooled_bytes += placed.rounded_bytes;
                (Place::Pooled(placed.id), placed.rounded_bytes)
            }
            Allocator::VirtualMemory => {
                let placed = self.created.alloc(bytes)?;
                (Place::Created(placed.id), placed.reserved_bytes)
            }
        };
        let beside = self.created.resident_bytes().checked_add(self.pool.reserved_bytes());
        if beside.and_then(|beside| beside.checked_add(self.packed.resident_bytes())).is_none() {
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
            Place::Pooled(id) => {
                let rounded = self.pool.rule().rounded_bytes(bytes).unwrap_or(0);
                self.pooled_bytes -= self.pool.free(self.stream, id).map_or(0, |()| rounded);
                return (bytes, rounded);
            }
            Place::Created(id) => self.created.free(id),
        };
        (bytes, freed.map_or(0, |freed| freed.reserved_bytes))
    }

    /// The resident bytes that there would be with one more allocation.
    pub(super) fn resident_bytes_with(&self, from: Allocator, bytes: u64) -> Result<u64, PlacementError> {
        let taken = match from {
            _ if bytes == 0 => 0,
            Allocator::Driver => self.packed.would_take(bytes)? * self.rule().page_bytes(),
            Allocator::Pool => self.pool.would_take(self.stream, bytes)?,
            Allocator::VirtualMemory => CREATED.reserved_bytes(bytes)?,
        };
        self.resident_bytes().checked_add(taken).ok_or(PlacementError::TooLarge { bytes })
    }

    /// Bytes of what lies in a place, as asked for.
    pub(super) fn bytes_of(&self, place: Place) -> u64 {
        match place {
            Place::Nowhere => None,
            Place::Packed(id) => self.packed.bytes_of(id),
            Place::Pooled(id) => self.pool.bytes_of(id),
            Place::Created(id) => self.created.bytes_of(id),
        }
        .unwrap_or(0)
    }

    /// Bytes live, as asked for. They are at most the resident ones, whose sum 64 bits hold.
    pub(super) fn live_bytes(&self) -> u64 {
        self.packed.live_bytes() + self.pool.used_bytes() + self.created.live_bytes()
    }

    /// Bytes that the device keeps.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.packed.resident_bytes() + self.pool.reserved_bytes() + self.created.resident_bytes()
    }

    /// What the allocations that are not packed would take in any order on an empty device.
    pub(super) fn any_order_bytes(&self) -> u64 {
        // In an empty pool, one allocation follows the other, so only the last piece has space left.
        self.created.resident_bytes() + self.pooled_bytes.next_multiple_of(self.pool.rule().piece_bytes())
    }

    /// Bytes of which an arena of an allocator has a whole number.
    pub(super) fn page_bytes(&self, of: Allocator) -> u64 {
        match of {
            Allocator::Driver => self.rule().page_bytes(),
            Allocator::Pool => self.pool.rule().piece_bytes(),
            Allocator::VirtualMemory => CREATED_GRANULARITY_BYTES,
        }
    }

    /// Bytes of host memory that the models take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.packed.memory_bytes() + self.pool.memory_bytes() + self.created.memory_bytes()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn set_release_threshold(&mut self, bytes: u64) {
        self.pool.set_release_threshold(bytes);
    }

    pub(super) fn synchronize(&mut self) {
        self.pool.synchronize_all();
    }

    pub(super) fn synchronize_stream(&mut self, stream: u64) {
        self.pool.synchronize(stream);
    }

    pub(super) fn trim(&mut self, keep_bytes: u64) {
        self.pool.trim_to(keep_bytes);
    }
}

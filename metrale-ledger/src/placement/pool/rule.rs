// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of the pool's rule, and what may be reused.

use std::ops::Range;

use super::super::PlacementError;

/// The numbers of the pool's rule; the rule itself is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolRule {
    piece_bytes: u64,
    granularity_bytes: u64,
}

impl PoolRule {
    /// What an H200 does: pieces of 32 MiB, sizes rounded up to 512 bytes.
    pub const H200: Self = Self { piece_bytes: 32 << 20, granularity_bytes: 512 };

    /// A rule with pieces of `piece_bytes`, and sizes rounded up to `granularity_bytes`.
    ///
    /// # Errors
    /// [`PlacementError::BadPoolRule`] unless the piece is a multiple of the granularity, and both are above 0.
    pub const fn new(piece_bytes: u64, granularity_bytes: u64) -> Result<Self, PlacementError> {
        // No number but 0 is a multiple of 0.
        if piece_bytes > 0 && piece_bytes.is_multiple_of(granularity_bytes) {
            return Ok(Self { piece_bytes, granularity_bytes });
        }
        Err(PlacementError::BadPoolRule { piece_bytes, granularity_bytes })
    }

    /// Bytes of a piece, the unit in which physical memory is mapped.
    pub const fn piece_bytes(self) -> u64 {
        self.piece_bytes
    }

    /// Bytes that every size is rounded up to.
    pub const fn granularity_bytes(self) -> u64 {
        self.granularity_bytes
    }

    /// `bytes` rounded up as the pool keeps them.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`] for 0, [`PlacementError::TooLarge`] when the rounded size passes `u64::MAX`.
    pub const fn rounded_bytes(self, bytes: u64) -> Result<u64, PlacementError> {
        if bytes == 0 {
            return Err(PlacementError::ZeroBytes);
        }
        match bytes.checked_next_multiple_of(self.granularity_bytes) {
            Some(rounded) => Ok(rounded),
            None => Err(PlacementError::TooLarge { bytes }),
        }
    }

    /// Pieces that the range touches.
    pub(super) fn touched(self, start: u64, end: u64) -> Range<u64> {
        start / self.piece_bytes..end.div_ceil(self.piece_bytes)
    }

    /// Pieces that lie in the range as a whole.
    pub(super) fn inside(self, start: u64, end: u64) -> Range<u64> {
        let first = start.div_ceil(self.piece_bytes);
        first..first.max(end / self.piece_bytes)
    }
}

impl Default for PoolRule {
    fn default() -> Self {
        Self::H200
    }
}

/// Which pending frees an allocation may reuse beyond those of its own stream: the attributes `CU_MEMPOOL_ATTR_REUSE_*`. All
/// are allowed by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolReuse {
    /// Frees of another stream that the stream comes after, because it waited for an event
    /// (`CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES`).
    pub follow_events: bool,
    /// Frees that are complete already (`CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC`).
    pub opportunistic: bool,
}

impl Default for PoolReuse {
    fn default() -> Self {
        Self { follow_events: true, opportunistic: true }
    }
}

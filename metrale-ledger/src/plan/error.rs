// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a plan refuses an operation.

use std::fmt;

use super::AllocationId;
use crate::placement::PlacementError;
use crate::text::counted;

/// Why an operation was refused. The plan is as it was, except that the operation is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// An allocation of that id is live.
    AlreadyLive {
        /// The id.
        id: AllocationId,
        /// Bytes of the live one.
        bytes: u64,
    },
    /// No allocation of that id is live.
    NotLive {
        /// The id.
        id: AllocationId,
    },
    /// The handle names no memory: it was not created, or was released before.
    UnknownHandle {
        /// The handle.
        handle: u64,
    },
    /// Nothing is mapped at the address.
    NotMapped {
        /// The address.
        address: u64,
    },
    /// The allocator's model cannot place it.
    Placement(PlacementError),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyLive { id, bytes } => {
                let bytes = counted(*bytes, "byte");
                write!(f, "{id:#x} is allocated already, with {bytes}; free it before it is allocated again")
            }
            Self::NotLive { id } => write!(f, "{id:#x} is freed, but no allocation of that id is live"),
            Self::UnknownHandle { handle } => {
                write!(f, "{handle:#x} names no memory: it was not created, or was released before")
            }
            Self::NotMapped { address } => write!(f, "{address:#x} is unmapped, but nothing is mapped there"),
            Self::Placement(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Its text is this one's, so its source is too.
            Self::Placement(error) => error.source(),
            _ => None,
        }
    }
}

impl From<PlacementError> for PlanError {
    fn from(error: PlacementError) -> Self {
        Self::Placement(error)
    }
}

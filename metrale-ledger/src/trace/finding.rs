// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may be odd about a row that can be understood.

use std::fmt;

use crate::text::counted;

/// What was odd about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// The pointer, or handle, was live already. The newer allocation replaces the older one, because an allocator only gives
    /// out what is free: the row with the free is missing, or two logs are mixed.
    AlreadyLive {
        /// Bytes of the older one.
        bytes: u64,
        /// The line that allocated it.
        line: u64,
    },
    /// The pointer was freed before. Nothing changes.
    FreedBefore {
        /// The line that freed it.
        line: u64,
    },
    /// The pointer was never allocated in this log, or freed long ago. Nothing changes.
    Unknown,
    /// The free names another size than the allocation. The allocation's size counts.
    SizeDiffers {
        /// The allocated bytes.
        allocated: u64,
    },
    /// It was freed on another stream than allocated; an event must have come between.
    OtherStream {
        /// The stream it was allocated on.
        allocated_on: u64,
    },
    /// A row maps or releases a handle that names no memory. Nothing changes.
    UnknownHandle,
    /// Nothing is mapped where a row unmaps. Nothing changes.
    NotMapped,
}

/// A row that was odd but can be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The line.
    pub line: u64,
    /// The pointer; of an unknown handle, the handle.
    pub pointer: u64,
    /// The bytes that the row names.
    pub bytes: u64,
    /// What was odd.
    pub kind: FindingKind,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, pointer, bytes, kind } = self;
        write!(f, "line {line}: ")?;
        match kind {
            FindingKind::AlreadyLive { bytes: old, line } => write!(
                f,
                "{pointer:#x} is allocated with {}, but is already live ({}, from line {line})",
                counted(*bytes, "byte"),
                counted(*old, "byte")
            ),
            FindingKind::FreedBefore { line } => {
                write!(f, "{pointer:#x} is freed, which line {line} has done before")
            }
            FindingKind::Unknown => write!(
                f,
                "{pointer:#x} is freed, but this log does not allocate it, or a free long before this one ended it"
            ),
            FindingKind::SizeDiffers { allocated } => {
                write!(
                    f,
                    "{pointer:#x} is freed as {} and was allocated with {allocated}",
                    counted(*bytes, "byte")
                )
            }
            FindingKind::OtherStream { allocated_on } => {
                write!(
                    f,
                    "{pointer:#x} is freed on another stream than {allocated_on:#x}, where it was allocated"
                )
            }
            FindingKind::UnknownHandle => write!(
                f,
                "the handle {pointer:#x} names no memory: this log does not create it, or has released it before"
            ),
            FindingKind::NotMapped => write!(f, "{pointer:#x} is unmapped, but nothing is mapped there"),
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger of device allocations, exact and with no driver. What follows is its README.

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod allocation;
mod check;
mod diff;
mod event;
mod groups;
mod index;
mod ledger;
mod misuse;
mod page;
mod peak;
pub mod placement;
pub mod plan;
mod queries;
mod record;
mod report;
mod scope;
mod shared;
mod snapshot;
mod state;
mod sub_range;
mod text;
mod tombstones;
mod totals;
#[cfg(feature = "trace")]
pub mod trace;

pub use check::Mark;
pub use diff::{GroupChange, LabelChange, SiteChange, SnapshotDiff};
pub use event::{AllocEvent, AllocEventKind};
pub use ledger::{Ledger, LedgerProbe};
pub use misuse::{ForgetError, FreedAllocation, FreedBy, MisuseCounts, RecordMisuse, Recorded, Whois};
pub use placement::chunk_slack::chunk_slack;
pub use record::{AllocKind, AllocRecord, LiveAllocation};
pub use scope::ScopeGuard;
pub use snapshot::{ArenaRow, FileRow, Group, LabelRow, PartRow, Site, SiteRow, Snapshot};
pub use sub_range::{SubRange, SubRangeError};
pub use text::{ByteSize, Label, file_line};
pub use totals::Totals;

/// Bytes of a page, and of a chunk: a page that allocations below this size share.
pub const SMALL_ALLOC_CHUNK: u64 = 2 << 20;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device-allocation ledger: size and source line of every live device allocation, with no driver.
//!
//! An engine records each allocation ([`Ledger::record`]) and forgets it before it frees it ([`Ledger::forget`]). From that
//! alone the ledger knows, exactly and after every operation, what is live, what the device keeps for it, which source line
//! allocated it, and what was wrong with a free of something that is not live. It touches no device, reads no clock and
//! knows no driver type, so tests use it on any machine.
//!
//! ```text
//!   engine --alloc--> driver --address--> Ledger::record(address, bytes, site)      LedgerProbe: the same reads,
//!   engine --free---> Ledger::forget(address) --then--> driver                      for a reader that cannot hold the ledger
//! ```
//!
//! ```
//! use std::panic::Location;
//! use metrale_ledger::Ledger;
//!
//! let ledger = Ledger::new();
//! {
//!     let _layer = ledger.scope("layers.0.attn");
//!     ledger.record(0x7f00_0000_0000, 3 << 20, Location::caller());
//! }
//! assert_eq!(ledger.live_bytes(), 3 << 20);
//! assert_eq!(ledger.resident_bytes(), 4 << 20, "whole 2 MiB pages");
//! assert!(ledger.report(10, 0).contains("layers.0.attn"));
//!
//! let record = ledger.forget(0x7f00_0000_0000).expect("it is live");
//! assert_eq!(record.scope.as_deref(), Some("layers.0.attn"));
//! let again = ledger.try_forget(0x7f00_0000_0000).unwrap_err();
//! assert!(again.to_string().contains("freed before"));
//! ledger.assert_nothing_live();
//! ```
//!
//! # What is exact
//!
//! Every operation takes effect at one moment between its call and its return, and all of them in one order. The totals
//! ([`live_bytes`](Ledger::live_bytes), [`live_count`](Ledger::live_count), [`resident_bytes`](Ledger::resident_bytes),
//! [`slack_bytes`](Ledger::slack_bytes), [`chunk_slack_bytes`](Ledger::chunk_slack_bytes)) are sums over that order, and
//! the peaks ([`peak_bytes`](Ledger::peak_bytes), [`peak_resident_bytes`](Ledger::peak_resident_bytes)) are the highest
//! sums in it. A read is the total of one moment, and a later read is of the same or a later moment. A [`Snapshot`], and so
//! a report, is one moment too: its totals and its groups agree, and [`peak_snapshot`](Ledger::peak_snapshot) is the moment
//! of the peak. Take totals that must agree from one snapshot.
//!
//! Residency is the number of distinct 2 MiB pages that device allocations touch, which on an H200 is what the driver's
//! own free figure shows. [`placement`] predicts it before anything is allocated, and [`plan`] for a whole stream.
//!
//! # What it costs
//!
//! One mutex guards the state, and a record or a free holds it for less than a tenth of a microsecond. A driver serialises its
//! own calls and takes 2 µs or more for each pair, so an engine does not notice. A read of totals takes a few nanoseconds; it
//! takes the lock only during a change. The cost of a snapshot grows with the number of groups. [`live_allocations`](Ledger::live_allocations),
//! [`drain`](Ledger::drain) and the assertions look at every live allocation. So does a read of resident bytes or slack while
//! live allocations overlap, which no driver lets happen.
//!
//! # What it is not
//!
//! It does not call a driver, does not see allocations that nobody records (such as those of libraries), and does
//! not model the migration of managed memory: it counts managed bytes, and no residency for them.
//!
//! # Features
//!
//! - `serde` (off): `Serialize` and `Deserialize` for [`Snapshot`], [`SnapshotDiff`], a plan's summary, and the types in them.
//! - `trace` (off): reading allocation logs, compressed or not, and planning them.

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
pub use event::{Event, EventKind};
pub use ledger::{Ledger, LedgerProbe};
pub use misuse::{ForgetError, FreedAllocation, FreedBy, MisuseCounts, RecordMisuse, Recorded, Whois};
pub use placement::chunk_slack::chunk_slack;
pub use record::{AllocKind, AllocRecord, LiveAllocation};
pub use scope::ScopeGuard;
pub use snapshot::{ArenaRow, FileRow, Group, LabelRow, PartRow, Site, SiteRow, Snapshot};
pub use sub_range::{SubRange, SubRangeError};
pub use text::{ByteSize, Label};
pub use totals::Totals;

/// Bytes of a page, and of a chunk: a page that allocations below this size share.
pub const SMALL_ALLOC_CHUNK: u64 = 2 << 20;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

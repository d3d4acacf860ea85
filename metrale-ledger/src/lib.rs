// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device-allocation ledger: size and source line of every live device allocation, with no driver.
//!
//! Who allocates says so ([`Ledger::record`]) and who frees says so ([`Ledger::forget`]). From that alone the ledger
//! knows, exactly and after every operation, what is live, what the device keeps for it, who made it, and what was wrong
//! with a free that names nothing live. It touches no device, reads no clock and knows no driver type, so tests use it
//! on any machine.
//!
//! ```text
//!   engine --alloc--> driver --address--> Ledger::record(address, bytes, site)      LedgerProbe: the same reads,
//!   engine --free---> Ledger::forget(address) --then--> driver                      for whoever cannot hold the ledger
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
//! [`slack_bytes`](Ledger::slack_bytes), [`chunk_slack_bytes`](Ledger::chunk_slack_bytes)) are sums over that order, and the
//! peaks ([`peak_bytes`](Ledger::peak_bytes), [`peak_resident_bytes`](Ledger::peak_resident_bytes)) the highest sums in it:
//! with one thread exact after every call, with many exact for an order that agrees with every thread's. A read is the total
//! of one moment. A [`Snapshot`], and so a report, is one moment too: its totals and its groups agree, and
//! [`peak_snapshot`](Ledger::peak_snapshot) is the very moment of the peak. Two reads are two moments, and no
//! total is above its peak where that is read after it (and not started anew); a pair that must agree comes from one snapshot.
//!
//! Residency is the number of distinct 2 MiB pages that device allocations touch, which on an H200 is what the driver's
//! own free figure shows. [`placement`] predicts it before anything is allocated, and [`plan`] for a whole stream.
//!
//! # What it costs
//!
//! As long as threads seldom meet, one short lock an operation. When they meet often, pages are dealt out in shards (small
//! allocations of one page in one) and each thread counts in a lane of its own. How far all lanes may go up, together with
//! the totals, never passes the peak, so nothing counted there can be a new one; what might be closes the lanes first. Large,
//! odd and wrong calls, and reads of a moment, call the whole back. A total is a few loads, and where it is being changed at
//! that moment, or counted in lanes, a short lock as well; a snapshot costs what there are lines and scopes, and holds others
//! up no longer. [`live_allocations`](Ledger::live_allocations),
//! [`drain`](Ledger::drain) and the assertions look at every live allocation. In a steady state of small allocations such as
//! a driver gives, none of which shares 512 aligned bytes with another, the host is asked for no memory, unless hundreds of
//! pages with hundreds each come and go whole; where they do share some, a page keeps its entries in order instead, at tens
//! of nanoseconds more each, or a hundred in a page of thousands.
//!
//! # What it is not
//!
//! It does not call a driver, does not see allocations nobody records (libraries with allocators of their own), and does
//! not model managed memory's migration: managed bytes are counted, their residency is not.
//!
//! # Features
//!
//! - `serde` (off): `Serialize` and `Deserialize` for [`Snapshot`], [`SnapshotDiff`], a plan's summary, and what they hold.
//! - `trace` (off): reading allocation logs, compressed or not, and planning them.

#![forbid(unsafe_code)]

mod arena_tree;
mod book;
mod byte_size;
mod check;
mod entries;
mod event;
mod group;
mod index;
mod label;
mod latest;
mod ledger;
mod meter;
mod misuse;
mod mixer;
mod page;
mod pages;
mod peak;
pub mod placement;
pub mod plan;
mod published;
mod record;
mod report;
mod residency;
mod scope;
mod shard;
mod shared;
mod snapshot;
mod sub_range;
mod sync;
#[cfg(feature = "trace")]
pub mod trace;

pub use arena_tree::{ArenaRow, PartRow};
pub use byte_size::ByteSize;
pub use check::Mark;
pub use event::{Event, EventKind};
pub use label::Label;
pub use ledger::{Ledger, LedgerProbe};
pub use misuse::{ForgetError, FreedAllocation, FreedBy, MisuseCounts, RecordMisuse, Recorded, Whois};
pub use record::{AllocKind, AllocRecord, LiveAllocation};
pub use residency::chunk_slack;
pub use scope::ScopeGuard;
pub use snapshot::{
    FileRow, Group, GroupChange, LabelChange, LabelRow, Site, SiteChange, SiteRow, Snapshot, SnapshotDiff,
    Totals,
};
pub use sub_range::{SubRange, SubRangeError};

/// Bytes of the chunk into which the driver packs small allocations, and of the page that larger ones take whole.
pub const SMALL_ALLOC_CHUNK: u64 = 2 << 20;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

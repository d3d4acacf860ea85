// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads allocation logs: tables of comma-separated values with a row for each allocation and free.
//!
//! The header names the columns, in any order and case: `Action`, `Pointer`, `Size`, and, where there, `Thread`, `Time`,
//! `Stream`, `Location` and `Device`; further ones are passed over, and one of these that is there twice is an error. RMM's
//! logs fit, with their header or without, and so do those of its first releases (`Event Type`, `Address`, `Size (bytes)`).
//! gzip is told by its first bytes. Windows line ends, a byte order mark, blank lines and headers that come again are no
//! matter.
//!
//! A line that was cut, since the program that wrote it was stopped, makes no sense either. Where that cannot be told, as a
//! line without an end has all its columns, [`Reader::has_open_end`] says so.
//!
//! A row that makes no sense ends the reading with its line and the reason, or is counted where the reader is
//! [lenient](Reader::lenient); so does a row of another device than the first row's, for one pointer may be live on both.
//! Memory is that of one line.
//!
//! ```
//! use metrale_ledger::trace::{Follow, Reader};
//!
//! let log = "Action,Pointer,Size\nallocate,0x7f00000,4096\nfree,0x7f00000,4096\nfree,0x7f00000,4096\n";
//! let mut follow = Follow::new();
//! for row in Reader::new(log.as_bytes())? {
//!     if let Some(finding) = follow.row(&row?)?.finding {
//!         assert_eq!(finding.to_string(), "line 4: 0x7f00000 is freed, which line 3 has done before");
//!     }
//! }
//! assert_eq!((follow.totals().peak_live_bytes, follow.plan().resident_bytes()), (4096, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cells;
mod columns;
mod finding;
mod follow;
mod gzip;
mod lines;
mod note;
mod reader;
mod row;

pub use finding::{Finding, FindingKind};
pub use follow::{Follow, Followed, LiveRow, LogTotals};
pub use reader::{Reader, Skipped};
pub use row::{Action, Row, RowError, TraceError};

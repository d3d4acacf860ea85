// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads allocation logs: tables of comma-separated values with a row for each allocation and free.
//!
//! The header names the columns, in any order and case: `Action`, `Pointer`, `Size`, and, if they are there, `Thread`, `Time`,
//! `Stream`, `Location`, `Device`, `Handle` and `Allocator`. Other columns are passed over. One of these that is there twice is an
//! error. RMM's logs fit, with their header or without it, and so do those of its first releases (`Event Type`, `Address`,
//! `Size (bytes)`). A gzip file is recognized by its first bytes. Windows line ends, a byte order mark, blank lines and repeated
//! headers are accepted.
//!
//! | action | the row's pointer, size and others |
//! |---|---|
//! | `allocate`, `free`, `allocate failure` | the address, the bytes; who gave out the memory in `Allocator` (`driver`, `pool`, `vmm`) |
//! | `synchronize` | nothing; the stream that was waited for in `Stream`, else the whole device |
//! | `trim` | `cuMemPoolTrimTo`: the size is what the pool is to keep |
//! | `create`, `release` | `cuMemCreate` and `cuMemRelease`: the pointer is the handle |
//! | `map`, `unmap` | `cuMemMap` and `cuMemUnmap`: the address, the bytes; `map` has its memory's handle in `Handle` |
//!
//! A last line that was cut, because the program that wrote it was stopped, makes no sense. Where a line without an end has all
//! its columns, a cut cannot be seen, and [`Reader::has_open_end`] reports the open end.
//!
//! A row that makes no sense ends the reading with its line and the reason; a [lenient](Reader::lenient) reader counts it and
//! reads on. The same holds for a row of another device than the first row's, because one pointer may be live on both. The
//! reader keeps one line in memory.
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
pub use follow::{FailedRequest, Follow, Followed, LiveRow, LogTotals};
pub use reader::{Reader, Skipped};
pub use row::{Action, Row, RowError, TraceError};

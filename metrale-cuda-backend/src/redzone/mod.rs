// SPDX-License-Identifier: MIT OR Apache-2.0
//! Red zones: bands of known bytes around allocations, in which a stray write shows.
//!
//! ```text
//!   driver's address            what the caller gets          the caller's bytes end
//!        | front band (optional)     | the caller's bytes            | back band |
//!        0                           front_bytes                     + requested  total_bytes
//! ```
//!
//! [`BandLayout`] says how much more to allocate and where the bands lie, [`Pattern`] what is in them, [`BandTable`]
//! mirrors the table that the scan kernel finds in device memory, [`Quarantine`] keeps freed memory a while to catch late
//! writes, [`Violation`] and [`ScanReport`] are what there is to tell. All of it is a function of numbers and bytes; what
//! acts on them is [`scan_redzones`](crate::GpuDiagnostics::scan_redzones) and the allocation itself.
//!
//! The ledger records what the caller asked for; the bands are padding there, resident and a term of their own in the
//! [account](crate::GpuDiagnostics::account).

mod creation;
mod device;
mod guard;
mod knobs;
mod layout;
mod pattern;
mod quarantine;
mod report;
mod scan;
mod scanner;
mod table;
mod zones;

pub use creation::allocations_made;
pub(crate) use creation::count_alloc;
pub use knobs::{
    REDZONE, REDZONE_FILL, REDZONE_MIN_IDX, REDZONE_TRACE_IDX, RedzoneConfig, ScanBy, parse_band_bytes,
    parse_fill, parse_index,
};
pub use layout::{BAND_ALIGN, BandLayout, FRONT_ALIGN, MAX_BAND_BYTES, TooLargeForBands};
pub use pattern::{BandChange, Fill, POISON, Pattern};
pub use quarantine::{Quarantine, Quarantined};
pub use report::{CleanScan, ScanReport, Side, Violation};
pub use table::{
    BLOCK_THREADS, Band, BandFound, BandTable, BandUpdate, CHECK_KERNEL, FILL_KERNEL, KERNELS_PTX, TableFull,
    UPDATE_KERNEL, blocks_for,
};
pub use zones::RedzoneStatus;

pub(crate) use zones::Zones;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device-allocation ledger: size and source line of every live device allocation, with no driver.

#![forbid(unsafe_code)]

pub mod placement;

/// Bytes of the chunk into which the driver packs small allocations, and of the page that larger ones take whole.
pub const SMALL_ALLOC_CHUNK: u64 = 2 << 20;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Replayed`]: the progress of a replay.

/// What was done so far.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) operations: u64,
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    /// The operation that raised the ledger's peak last, and its line.
    pub(crate) peak: Option<(u64, u64)>,
    /// The ledger's peak of live bytes after the last operation.
    pub(crate) peak_bytes: usize,
    /// Whether the next one has begun, with the free of the older allocation of its pointer.
    pub(crate) displaced: bool,
    /// The line of the last one.
    pub(crate) last_line: Option<u64>,
    /// Rows after which the driver's figure and the ledger's differed; counted only where the driver was asked.
    pub(crate) unexplained_rows: u64,
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of a log that are neither allocations nor frees, or odd ones, in words.

use std::collections::BTreeMap;
use std::fmt;

/// What a log has besides allocations and frees, a line for each kind that there is. With these the number of operations is
/// that of its parts.
#[derive(Debug)]
pub(crate) struct Besides<'a> {
    /// Allocations that had failed when the log was written.
    pub(crate) failures: u64,
    /// Rows that ask for nothing.
    pub(crate) nothing: u64,
    /// Rows passed over.
    pub(crate) skipped: u64,
    /// Odd rows by what was odd.
    pub(crate) findings: &'a BTreeMap<&'static str, u64>,
}

impl fmt::Display for Besides<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, what) in [
            (self.failures, "allocation that failed then"),
            (self.nothing, "row that asks for nothing: a free of null, or no bytes at null"),
            (self.skipped, "row passed over"),
        ] {
            if count > 0 {
                writeln!(f, "{count} x {what}")?;
            }
        }
        for (kind, count) in self.findings {
            writeln!(f, "{count} x {}", kind.replace('_', " "))?;
        }
        Ok(())
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Allowance`]: how many bytes the parts of a file may name, all together.

use super::bytes::c_str;
use super::cubin::CubinError;

/// What a file's parts may still name. They may lie over each other, so that a small file could name much more than it has:
/// a thousand sections that are each the same megabyte, a thousand names that end in the same long one.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u64,
    most: u64,
}

/// Each byte of a file as often: compilers let some names end in others, and no more.
const TIMES: u64 = 4;
/// Files of any size may have as many.
const ALWAYS: u64 = 1 << 20;

impl Allowance {
    pub(super) fn of(file: &[u8]) -> Self {
        let most = (file.len() as u64).saturating_mul(TIMES).saturating_add(ALWAYS);
        Self { left: most, most }
    }

    /// Counts bytes that are about to be read, copied or named.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), CubinError> {
        self.left = self.left.checked_sub(bytes).ok_or(CubinError::Overlaps { most: self.most })?;
        Ok(())
    }

    /// The text at `at` of a string table; `None` where there is none, or it is no UTF-8.
    pub(super) fn name<'a>(&mut self, table: &'a [u8], at: u32) -> Result<Option<&'a str>, CubinError> {
        let Some(rest) = usize::try_from(at).ok().and_then(|at| table.get(at..)) else { return Ok(None) };
        // No further than may be taken: the search itself is what costs.
        let within = usize::try_from(self.left).map_or(rest, |left| &rest[..rest.len().min(left)]);
        let name = c_str(within);
        self.take(name.map_or(rest.len(), |name| name.len() + 1) as u64)?;
        Ok(name.and_then(|name| std::str::from_utf8(name).ok()))
    }
}

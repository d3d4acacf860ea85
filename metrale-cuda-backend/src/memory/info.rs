// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver says of the device's memory.

use core::fmt;

use metrale_driver_sys::DriverApi;
use metrale_driver_sys::DriverError;
use metrale_ledger::ByteSize;

use crate::call::ask;
use crate::error::Result;

/// The driver's figures at one moment, for the whole device: every process counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryInfo {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes there are.
    pub total_bytes: u64,
}

impl MemoryInfo {
    /// Bytes in use, by whomever.
    #[must_use]
    pub const fn used_bytes(self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }
}

impl fmt::Display for MemoryInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} free of {}", ByteSize(self.free_bytes), ByteSize(self.total_bytes))
    }
}

/// The figures of the device whose context is current.
pub(crate) fn memory_info_of(driver: &dyn DriverApi) -> Result<MemoryInfo, DriverError> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: the result pointers are locals.
    unsafe { ask!(driver, cuMemGetInfo_v2(&mut free, &mut total)) }?;
    Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
}

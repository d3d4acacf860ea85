// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver says of the device's memory.

use core::fmt;

use anyhow::Result;
use metrale_driver_sys::DriverError;
use metrale_ledger::ByteSize;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::graph::Reach;

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

impl MetraleCudaBackend {
    /// See [`GpuBackend::memory_info`](crate::GpuBackend::memory_info).
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        const ADVICE: &str = "ask before the capture begins, or on another thread";
        self.bound("asking for the free memory")?;
        self.outside_capture(Reach::Thread, "asking for the free memory", ADVICE)?;
        self.ask_memory_info().doing(|| "asking for the free memory".to_owned())
    }

    /// The driver's figures; the thread is known to be bound.
    pub(crate) fn ask_memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the result pointers are locals.
        unsafe { ask!(self.driver(), cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }
}

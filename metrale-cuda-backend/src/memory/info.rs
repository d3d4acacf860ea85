// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver says of the device's memory.

use core::fmt;

use anyhow::Result;
use metrale_driver_sys::DriverError;
use metrale_ledger::ByteSize;

use crate::backend::{Bound, MetraleCudaBackend};
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
    /// Refuses to have the driver asked for its figures on a thread that captures. The context is current until the answer is
    /// dropped.
    pub(crate) fn may_ask(&self, doing: &'static str) -> Result<Bound<'_>> {
        const ADVICE: &str = "ask before the capture begins, or on another thread";
        let bound = self.bound(doing)?;
        self.outside_capture(Reach::Thread, doing, ADVICE)?;
        Ok(bound)
    }

    /// The driver's figures; the thread is known to be bound.
    pub(crate) fn ask_memory_info(&self) -> Result<MemoryInfo, DriverError> {
        super::memory_info_of(self.driver())
    }
}

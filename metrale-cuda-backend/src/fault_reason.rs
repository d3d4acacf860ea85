// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FaultReason`]: why a context is lost.

use core::fmt;

use metrale_driver_sys::DriverError;

/// Why a context is lost: the first answer that told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultReason {
    /// The device.
    pub ordinal: usize,
    /// Function and status of the call that showed the fault. It need not be the call that caused it.
    pub driver: DriverError,
    /// What had been done just before, where that is known: a launch that was waited for, or one that was refused.
    pub after: Option<String>,
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the context of device {} is lost since {}", self.ordinal, self.driver)?;
        match &self.after {
            Some(after) => write!(f, ", found after {after}"),
            None => Ok(()),
        }
    }
}

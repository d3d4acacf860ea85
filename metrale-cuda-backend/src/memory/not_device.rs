// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`NotDeviceMemory`]: keeps copies and fills from writing to host memory through a device address.
//!
//! Host and device share one address space, and a driver takes the address of pinned memory wherever it takes a device's;
//! where the device reads pageable memory, any host address will do. Safe code could so write to what somebody has borrowed
//! as a slice. So the device side of a copy or fill has to be memory that no Rust code has: memory of the ledger that is
//! not pinned, or an address that the driver knows and does not call the host's.

use core::ffi::c_void;
use core::fmt;

use metrale_driver_sys::{CU_MEMORYTYPE_HOST, CUDA_ERROR_INVALID_VALUE, CUmemorytype, pointer_attribute};
use metrale_ledger::{LiveAllocation, Whois};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{Result, causes};
use crate::memory::end::End;
use crate::raw_handles::DevicePtr;

/// A copy or fill whose device side is host memory, or memory that could be. The driver was not asked to do it.
///
/// Pass host memory as the host side of a copy: as a slice, or as [`Side::Host`](crate::Side::Host). Managed memory, which
/// both sides reach, is device memory here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{operation}: the {end} {addr:#x} is no device memory but {found}; pass host memory as the host side of a copy"
)]
#[non_exhaustive]
pub struct NotDeviceMemory {
    /// What was to be done.
    pub operation: &'static str,
    /// Which end is wrong.
    pub end: End,
    /// The address where that end begins.
    pub addr: u64,
    /// What is there.
    pub found: FoundMemory,
}

/// What was found where device memory should have been.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoundMemory {
    /// Pinned memory of this backend.
    Pinned(Box<LiveAllocation>),
    /// Host memory that the driver knows: pinned or registered by something else.
    Host,
    /// Nothing that the driver knows, on a device that reaches all of the host's memory.
    Unknown {
        /// What the ledger remembers of the address.
        freed: Option<String>,
    },
}

causes! { NotDeviceMemory: BadArgument }

impl fmt::Display for FoundMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned(owner) => write!(f, "inside {owner}"),
            Self::Host => f.write_str("host memory that something pinned or registered"),
            Self::Unknown { freed } => {
                f.write_str("memory the driver does not know, and this device would take it for the host's")?;
                match freed {
                    Some(freed) => write!(f, " (it is {freed})"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl MetraleCudaBackend {
    /// Refuses an address that the ledger does not have, where it is, or could be, host memory.
    pub(crate) fn not_the_hosts(
        &self,
        operation: &'static str,
        end: End,
        ptr: DevicePtr,
        whois: &Whois,
    ) -> Result<()> {
        let found = match self.memory_type(ptr.0)? {
            Some(CU_MEMORYTYPE_HOST) => FoundMemory::Host,
            None if self.reads_pageable_memory() => FoundMemory::Unknown {
                freed: matches!(whois, Whois::Freed { .. }).then(|| whois.to_string()),
            },
            // Another owner's memory, or none at all, which is the driver's to judge.
            _ => return Ok(()),
        };
        Err(NotDeviceMemory { operation, end, addr: ptr.0, found }.into())
    }

    /// What the driver takes an address for; `None` where it does not know it.
    pub(crate) fn memory_type(&self, addr: u64) -> Result<Option<CUmemorytype>> {
        // The work on a stream that asks has not made it current.
        let _bound = self.bound("asking what memory is at an address")?;
        let mut kind: CUmemorytype = 0;
        let data = (&raw mut kind).cast::<c_void>();
        // SAFETY: the result pointer is a local of the attribute's type; the address is only looked up.
        match unsafe {
            ask!(self.driver(), cuPointerGetAttribute(data, pointer_attribute::MEMORY_TYPE, addr))
        } {
            // So it answers for memory it never heard of.
            Err(error) if error.status == CUDA_ERROR_INVALID_VALUE => Ok(None),
            answer => {
                answer.doing(|| format!("asking what memory is at {addr:#x}"))?;
                Ok(Some(kind))
            }
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The causes of errors that belong to no part of the backend.

use metrale_driver_sys::{CUDA_ERROR_OUT_OF_MEMORY, DriverError};
use metrale_registry::{HostError, LaunchError, RegistryError};

use crate::error::failure::{Cause, ErrorKind, Remedy, causes, remedy_of_status};
use crate::fault_reason::FaultReason;

/// A driver call that failed while the context stays usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {driver}{}", hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default())]
#[non_exhaustive]
pub struct CallFailed {
    /// What was being done, in words.
    pub doing: String,
    /// Function and status.
    pub driver: DriverError,
    /// What is known beyond the status, such as who freed the address.
    pub hint: Option<String>,
}

/// The context does not answer any more: a kernel faulted, or the driver is shutting down.
///
/// From here on every call on the context fails with the same status; ending the process is the only cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {}", lost(driver, first.as_deref()))]
#[non_exhaustive]
pub struct ContextLost {
    /// What was being done, in words.
    pub doing: String,
    /// Function and status: of this call, or of the one that first showed the fault where `first` is there.
    pub driver: DriverError,
    /// Why the context was lost before; the driver was then not asked again.
    pub first: Option<Box<FaultReason>>,
}

fn lost(driver: &DriverError, first: Option<&FaultReason>) -> String {
    let (what, known) = match first {
        Some(first) => (format!("not tried, for {first}"), first.after.is_some()),
        None => (format!("{driver}; the context is lost and every later call on it fails"), false),
    };
    if known {
        return format!("{what}. Restart the process");
    }
    format!(
        "{what}. A fault of an earlier kernel shows at some later call: run again with METRALE_DEBUG_SYNC_KERNELS=1 to see \
         which launch it was, then restart the process"
    )
}

/// An argument that no driver could make sense of; the driver was not asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
#[non_exhaustive]
pub struct BadArgument {
    /// What is wrong and what would be right.
    pub what: String,
}

impl BadArgument {
    /// The error with this text.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

/// What was asked for is not compiled in. Build with the Cargo feature, which is on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this program was built without metrale-cuda-backend's feature {feature:?}; build it with the feature on"
)]
#[non_exhaustive]
pub struct FeatureOff {
    /// The feature's name.
    pub feature: &'static str,
}

/// What this build or this driver cannot do. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {why}")]
#[non_exhaustive]
pub struct NotSupported {
    /// What was to be done.
    pub doing: &'static str,
    /// What is lacking, and what to do without it.
    pub why: String,
}

/// The driver returned memory that the ledger cannot record, because it overlaps a live allocation. The memory was freed,
/// unless the driver refused that too.
///
/// Either another part of the process freed memory of this backend without telling it, or this is a bug.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the driver returned {bytes} bytes at {addr:#x}, which the ledger refuses: {reason}. Something freed the backend's \
     memory without telling it, or the ledger is wrong; {}",
    match not_freed {
        None => "the new memory was freed".to_owned(),
        Some(error) => format!("the new memory could not be freed either, and is leaked: {error}"),
    }
)]
#[non_exhaustive]
pub struct LedgerConflict {
    /// The address the driver returned.
    pub addr: u64,
    /// The bytes asked for.
    pub bytes: usize,
    /// The ledger's own answer.
    pub reason: String,
    /// The driver's answer where it refused to free the memory: that is then leaked, and on no ledger.
    pub not_freed: Option<DriverError>,
}

impl Cause for RegistryError {
    fn kind(&self) -> ErrorKind {
        match self.remedy() {
            Remedy::Relaunch => ErrorKind::ContextLost,
            Remedy::FreeAndRetry => ErrorKind::OutOfMemory,
            _ => ErrorKind::Module,
        }
    }

    fn remedy(&self) -> Remedy {
        self.driver_error().map_or(Remedy::FixCall, |error| remedy_of_status(error.status))
    }
}

impl Cause for HostError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Device
    }

    fn remedy(&self) -> Remedy {
        self.driver_error().map_or(Remedy::FixCall, |error| remedy_of_status(error.status))
    }
}

impl Cause for LaunchError {
    fn kind(&self) -> ErrorKind {
        match self.remedy() {
            Remedy::Relaunch => ErrorKind::ContextLost,
            _ => ErrorKind::Driver,
        }
    }

    fn remedy(&self) -> Remedy {
        remedy_of_status(self.error.status)
    }
}

impl Cause for CallFailed {
    fn kind(&self) -> ErrorKind {
        match self.driver.status {
            CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
            _ => ErrorKind::Driver,
        }
    }

    fn remedy(&self) -> Remedy {
        remedy_of_status(self.driver.status)
    }
}

impl Cause for ContextLost {
    fn kind(&self) -> ErrorKind {
        ErrorKind::ContextLost
    }

    fn remedy(&self) -> Remedy {
        Remedy::Relaunch
    }
}

impl Cause for LedgerConflict {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Ledger
    }

    fn remedy(&self) -> Remedy {
        match self.not_freed.map(|error| remedy_of_status(error.status)) {
            Some(Remedy::Relaunch) => Remedy::Relaunch,
            _ => Remedy::ReportBug,
        }
    }
}

causes! { BadArgument: BadArgument, FeatureOff: NotSupported, NotSupported: NotSupported }

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The typed causes inside the backend's `anyhow` errors, sorted by what the caller can do about them.
//!
//! | [`Remedy`] | causes |
//! |---|---|
//! | [`FreeAndRetry`](Remedy::FreeAndRetry) | [`OutOfMemory`] of what can fit, [`BelowFloor`] |
//! | [`FixCall`](Remedy::FixCall) | [`BadArgument`], [`ArenaError`], [`CopyOutOfBounds`], [`NotDeviceMemory`], [`FreeError`], [`StalePinned`], [`ConfigError`], [`OutOfMemory`] of more than there is, [`FeatureOff`], [`PreflightError`], [`TargetMismatch`], [`NTileError`], [`TooLargeForBands`], [`TableFull`], [`TensorMapError`], [`TensorMapOutOfBounds`], [`WatchdogError`], [`FreeUnknown`], [`MemInfoError`], [`AccountError`], [`Capturing`], [`NotCapturing`], [`PinnedByGraph`], [`StreamInUse`], [`NotSupported`], most of [`CallFailed`], [`LaunchError`], [`RegistryError`] and [`HostError`] |
//! | [`Relaunch`](Remedy::Relaunch) | [`ContextLost`], [`KernelFault`], [`GraphFault`], and whatever carries a status the context does not survive |
//! | [`ReportBug`](Remedy::ReportBug) | [`LedgerConflict`], statuses that no call of ours should bring |
//!
//! Each is found in an `anyhow::Error` by `downcast_ref`, and keeps the [`DriverError`] it came from.

use metrale_driver_sys::{
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEINITIALIZED,
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_OUT_OF_MEMORY, CUresult, DriverError, is_sticky,
};
use metrale_registry::{HostError, LaunchError, RegistryError};

use crate::config::ConfigError;
use crate::fault_latch::FaultReason;
use crate::graph::{Capturing, GraphFault, NotCapturing, PinnedByGraph, StreamInUse};
use crate::launch::KernelFault;
use crate::memory::{
    AccountError, ArenaError, BelowFloor, CopyOutOfBounds, FreeError, FreeUnknown, MemInfoError,
    NotDeviceMemory, OutOfMemory, StalePinned, WatchdogError,
};
use crate::n_tile::NTileError;
use crate::preflight::{PreflightError, TargetMismatch};
use crate::redzone::{TableFull, TooLargeForBands};
use crate::tensormap::{TensorMapError, TensorMapOutOfBounds};

/// What the caller of a failed call can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Give memory back, or ask for less, and try again.
    FreeAndRetry,
    /// The call, its arguments or its surroundings are wrong; the same call fails again, other calls go on working.
    FixCall,
    /// The context is lost: no call on it works any more. End the process and start it again.
    Relaunch,
    /// None of the above explains it.
    ReportBug,
}

/// What the caller can do about an error of this crate; `None` where no cause in the chain is of this crate or the
/// driver.
///
/// ```
/// use metrale_cuda_backend::{BadArgument, Remedy, remedy};
///
/// let error = anyhow::Error::new(BadArgument::new("a stride of 3 bytes for rows of 4"));
/// assert_eq!(remedy(&error.context("loading weights")), Some(Remedy::FixCall));
/// ```
#[must_use]
pub fn remedy(error: &anyhow::Error) -> Option<Remedy> {
    error.chain().find_map(|cause| {
        if let Some(cause) = cause.downcast_ref::<CallFailed>() {
            Some(cause.remedy())
        } else if let Some(cause) = cause.downcast_ref::<RegistryError>() {
            Some(cause.driver_error().map_or(Remedy::FixCall, |error| remedy_of_status(error.status)))
        } else if let Some(cause) = cause.downcast_ref::<HostError>() {
            Some(cause.driver_error().map_or(Remedy::FixCall, |error| remedy_of_status(error.status)))
        } else if let Some(cause) = cause.downcast_ref::<LaunchError>() {
            Some(remedy_of_status(cause.error.status))
        } else if let Some(cause) = cause.downcast_ref::<DriverError>() {
            Some(remedy_of_status(cause.status))
        } else if let Some(cause) = cause.downcast_ref::<OutOfMemory>() {
            Some(cause.remedy())
        } else if cause.is::<BelowFloor>() {
            Some(Remedy::FreeAndRetry)
        } else if cause.is::<ContextLost>() || cause.is::<KernelFault>() || cause.is::<GraphFault>() {
            Some(Remedy::Relaunch)
        } else if let Some(cause) = cause.downcast_ref::<LedgerConflict>() {
            Some(cause.remedy())
        } else if cause.is::<BadArgument>()
            || cause.is::<ArenaError>()
            || cause.is::<CopyOutOfBounds>()
            || cause.is::<NotDeviceMemory>()
            || cause.is::<FreeError>()
            || cause.is::<StalePinned>()
            || cause.is::<ConfigError>()
            || cause.is::<FeatureOff>()
            || cause.is::<PreflightError>()
            || cause.is::<TargetMismatch>()
            || cause.is::<NTileError>()
            || cause.is::<TooLargeForBands>()
            || cause.is::<TableFull>()
            || cause.is::<TensorMapError>()
            || cause.is::<TensorMapOutOfBounds>()
            || cause.is::<WatchdogError>()
            || cause.is::<FreeUnknown>()
            || cause.is::<MemInfoError>()
            || cause.is::<AccountError>()
            || cause.is::<Capturing>()
            || cause.is::<NotCapturing>()
            || cause.is::<PinnedByGraph>()
            || cause.is::<StreamInUse>()
            || cause.is::<NotSupported>()
        {
            Some(Remedy::FixCall)
        } else {
            None
        }
    })
}

/// What a bare status leaves to do.
pub(crate) const fn remedy_of_status(status: CUresult) -> Remedy {
    match status {
        CUDA_ERROR_OUT_OF_MEMORY => Remedy::FreeAndRetry,
        CUDA_ERROR_DEINITIALIZED | CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_CONTEXT_IS_DESTROYED => {
            Remedy::Relaunch
        }
        _ if is_sticky(status) => Remedy::Relaunch,
        // Wrong values, images, handles, states, names, launches, and what a capture forbids.
        1 | CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER | 100..=102 | 200..=225 | 300..=302 | 400..=499 => {
            Remedy::FixCall
        }
        500 | 600 | 701..=713 | 720 | 800..=812 | 900..=909 | 912 => Remedy::FixCall,
        _ => Remedy::ReportBug,
    }
}

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

impl CallFailed {
    /// What the caller can do.
    #[must_use]
    pub const fn remedy(&self) -> Remedy {
        remedy_of_status(self.driver.status)
    }
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

impl LedgerConflict {
    /// What the caller can do.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self.not_freed.map(|error| remedy_of_status(error.status)) {
            Some(Remedy::Relaunch) => Remedy::Relaunch,
            _ => Remedy::ReportBug,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_driver_sys::{DriverFn, KNOWN_STATUSES};

    #[test]
    fn a_status_that_the_context_does_not_survive_means_relaunch() {
        for &status in KNOWN_STATUSES {
            let lost = is_sticky(status) || matches!(status, 4 | 201 | 709);
            assert_eq!(remedy_of_status(status) == Remedy::Relaunch, lost, "{status}");
        }
        assert_eq!(remedy_of_status(2), Remedy::FreeAndRetry);
        for status in [1, 200, 218, 222, 400, 500, 701, 900, 907] {
            assert_eq!(remedy_of_status(status), Remedy::FixCall, "{status}");
        }
        for status in [999, 12_345, -1] {
            assert_eq!(remedy_of_status(status), Remedy::ReportBug, "{status}");
        }
    }

    #[test]
    fn causes_are_found_through_context_and_keep_the_driver_error() {
        let driver = DriverError { function: DriverFn::cuMemFree_v2, status: 700 };
        let error = anyhow::Error::new(ContextLost { doing: "freeing 0x200".into(), driver, first: None })
            .context("unloading");
        assert_eq!(remedy(&error), Some(Remedy::Relaunch));
        assert_eq!(error.downcast_ref::<ContextLost>().map(|lost| lost.driver), Some(driver));
        assert_eq!(remedy(&anyhow::anyhow!("something else")), None);
        assert_eq!(remedy(&anyhow::Error::new(driver)), Some(Remedy::Relaunch));
    }

    #[test]
    fn what_is_decided_before_the_driver_is_asked_has_a_remedy_too() {
        let fix: [anyhow::Error; 7] = [
            FeatureOff { feature: "redzone" }.into(),
            TooLargeForBands { requested_bytes: usize::MAX, pad_bytes: 16 }.into(),
            TableFull { slots: 1 << 32 }.into(),
            TensorMapError { broken: Vec::new() }.into(),
            WatchdogError::ZeroThreshold.into(),
            MemInfoError::NoTotal.into(),
            AccountError::DuplicateName { name: "ledger".into() }.into(),
        ];
        for error in fix {
            assert_eq!(remedy(&error), Some(Remedy::FixCall), "{error}");
        }
        let below = BelowFloor { wanted_bytes: 3, free_bytes: 2, floor_bytes: 1 };
        assert_eq!(remedy(&below.into()), Some(Remedy::FreeAndRetry));
    }
}

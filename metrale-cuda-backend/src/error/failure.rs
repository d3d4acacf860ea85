// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Error`]: the one error type of this crate.

use std::error::Error as StdError;
use std::fmt;

use metrale_driver_sys::{
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEINITIALIZED,
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_OUT_OF_MEMORY, CUresult, DriverError, is_sticky,
};
use metrale_registry::{HostError, RegistryError};

/// What the calls of this crate return.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A call of this crate that failed: what [kind](Self::kind) of failure, what the caller [can do](Self::remedy), and the typed
/// cause, for [`downcast_ref`](Self::downcast_ref).
///
/// It shows as its cause does; `{:#}` adds what that came from, in one line.
///
/// ```
/// use metrale_cuda_backend::{BadArgument, Error, ErrorKind, Remedy, remedy};
///
/// let error = Error::from(BadArgument::new("a stride of 3 bytes for rows of 4"));
/// assert_eq!((error.kind(), error.remedy()), (ErrorKind::BadArgument, Remedy::FixCall));
/// assert!(error.downcast_ref::<BadArgument>().is_some());
/// assert_eq!(remedy(&anyhow::Error::from(error).context("loading weights")), Some(Remedy::FixCall));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    remedy: Remedy,
    cause: Box<dyn StdError + Send + Sync>,
}

/// What sort of failure an [`Error`] tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device, or the host where it pins memory, has no more.
    OutOfMemory,
    /// An argument that no driver could make sense of.
    BadArgument,
    /// A copy, fill or tensor that would pass the end of its allocation.
    OutOfBounds,
    /// A free of what is not live, or not the caller's to free.
    InvalidFree,
    /// Memory that a graph or a capture uses, and that so is not freed.
    PinnedByGraph,
    /// Something that a capture does not survive, or a capture that is not there.
    Capture,
    /// Not compiled in, or not in this driver or device.
    NotSupported,
    /// A setting that makes no sense.
    Config,
    /// A module, kernel or symbol that does not load, or is not there.
    Module,
    /// No usable driver or device.
    Device,
    /// The driver refused a call; the context stays usable.
    Driver,
    /// The context does not answer any more.
    ContextLost,
    /// The ledger and the driver do not agree.
    Ledger,
    /// What a caller's own code answered.
    Other,
}

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

/// A typed cause, which knows its kind and its remedy.
pub(crate) trait Cause: StdError + Send + Sync + 'static {
    fn kind(&self) -> ErrorKind;

    fn remedy(&self) -> Remedy {
        Remedy::FixCall
    }
}

/// Causes of one kind that the caller can fix.
macro_rules! causes {
    ($($cause:ty: $kind:ident),* $(,)?) => {$(
        impl $crate::error::Cause for $cause {
            fn kind(&self) -> $crate::error::ErrorKind {
                $crate::error::ErrorKind::$kind
            }
        }
    )*};
}
pub(crate) use causes;

impl Error {
    /// An error of an implementation of the traits outside this crate, such as a mock's.
    #[must_use]
    pub fn new(kind: ErrorKind, remedy: Remedy, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Box::new(Inner { kind, remedy, cause: cause.into() }))
    }

    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the caller can do.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        self.0.remedy
    }

    /// The typed cause, where it is of this type, or what it came from.
    #[must_use]
    pub fn downcast_ref<T: StdError + 'static>(&self) -> Option<&T> {
        chain(&*self.0.cause).find_map(|cause| cause.downcast_ref())
    }

    /// Whether the typed cause, or what it came from, is of this type.
    #[must_use]
    pub fn is<T: StdError + 'static>(&self) -> bool {
        self.downcast_ref::<T>().is_some()
    }

    /// The typed cause itself.
    ///
    /// # Errors
    /// The error, unchanged, where its cause is of another type.
    pub fn downcast<T: StdError + 'static>(self) -> Result<T> {
        let Inner { kind, remedy, cause } = *self.0;
        match cause.downcast::<T>() {
            Ok(cause) => Ok(*cause),
            Err(cause) => Err(Self(Box::new(Inner { kind, remedy, cause }))),
        }
    }

    /// The same error under what was being done.
    #[must_use]
    pub fn context(self, doing: impl Into<String>) -> Self {
        let Inner { kind, remedy, cause } = *self.0;
        Self::new(kind, remedy, InContext { doing: doing.into(), cause })
    }
}

/// A cause and what it came from, one after the other.
fn chain<'a>(cause: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(cause), |&cause| cause.source())
}

#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
struct InContext {
    doing: String,
    #[source]
    cause: Box<dyn StdError + Send + Sync>,
}

impl<C: Cause> From<C> for Error {
    fn from(cause: C) -> Self {
        Self::new(cause.kind(), cause.remedy(), cause)
    }
}

/// What a caller's own code answered; an error of this crate that it passed on is that again.
impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        error.downcast::<Self>().unwrap_or_else(|other| {
            let remedy = remedy(&other).unwrap_or(Remedy::FixCall);
            Self::new(ErrorKind::Other, remedy, other)
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.cause.source()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.cause)?;
        if f.alternate() {
            for cause in chain(&*self.0.cause).skip(1) {
                write!(f, ": {cause}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

/// The typed cause of an error that passed through `anyhow`, wherever in the chain it is, also inside an [`Error`].
///
/// ```
/// use metrale_cuda_backend::{BadArgument, Error, cause};
///
/// let error = anyhow::Error::from(Error::from(BadArgument::new("0 bytes"))).context("loading weights");
/// assert!(cause::<BadArgument>(&error).is_some());
/// ```
#[must_use]
pub fn cause<T: StdError + 'static>(error: &anyhow::Error) -> Option<&T> {
    error.chain().find_map(|cause| match cause.downcast_ref::<Error>() {
        Some(error) => error.downcast_ref(),
        None => cause.downcast_ref(),
    })
}

/// What the caller can do about an error of this crate, wherever in the chain it is; `None` where no cause is of this crate
/// or the driver.
#[must_use]
pub fn remedy(error: &anyhow::Error) -> Option<Remedy> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<Error>() {
            Some(error.remedy())
        } else if let Some(cause) = cause.downcast_ref::<RegistryError>() {
            Some(cause.remedy())
        } else if let Some(cause) = cause.downcast_ref::<HostError>() {
            Some(cause.remedy())
        } else {
            cause.downcast_ref::<DriverError>().map(|cause| remedy_of_status(cause.status))
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

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_driver_sys::{DriverFn, KNOWN_STATUSES};

    use crate::error::{BadArgument, ContextLost, FeatureOff};

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

    const LOST: DriverError = DriverError { function: DriverFn::cuMemFree_v2, status: 700 };

    fn lost() -> Error {
        ContextLost { doing: "freeing 0x200".into(), driver: LOST, first: None }.into()
    }

    #[test]
    fn causes_are_found_through_context_and_keep_the_driver_error() {
        let error = lost().context("unloading");
        assert_eq!((error.kind(), error.remedy()), (ErrorKind::ContextLost, Remedy::Relaunch));
        assert_eq!(error.downcast_ref::<ContextLost>().map(|lost| lost.driver), Some(LOST));
        assert!(!error.is::<BadArgument>());
        let error = error.downcast::<BadArgument>().unwrap_err();
        assert_eq!(error.to_string(), "unloading");
        assert!(format!("{error:#}").starts_with("unloading: freeing 0x200: cuMemFree_v2"), "{error:#}");
        assert_eq!(format!("{error:?}"), format!("{error:#}"), "what an unwrap shows");
        let cause = StdError::source(&error).expect("the cause").downcast_ref::<ContextLost>();
        assert_eq!(cause.map(|lost| lost.driver), Some(LOST));
    }

    #[test]
    fn an_error_passes_through_anyhow_and_back() {
        let error = anyhow::Error::from(lost()).context("unloading");
        assert_eq!(remedy(&error), Some(Remedy::Relaunch));
        assert_eq!(remedy(&anyhow::anyhow!("something else")), None);
        assert_eq!(remedy(&anyhow::Error::new(LOST)), Some(Remedy::Relaunch));
        let back = Error::from(anyhow::Error::from(lost()));
        assert_eq!((back.kind(), back.remedy()), (ErrorKind::ContextLost, Remedy::Relaunch));
        let other = Error::from(anyhow::anyhow!("no such file").context("reading a library"));
        assert_eq!((other.kind(), other.remedy()), (ErrorKind::Other, Remedy::FixCall));
        assert_eq!(format!("{other:#}"), "reading a library: no such file");
    }

    #[test]
    fn a_cause_is_told_by_value_where_it_is_the_outermost() {
        let error = Error::from(BadArgument::new("a stride of 3 bytes"));
        assert_eq!(error.downcast::<BadArgument>().unwrap().what, "a stride of 3 bytes");
        let own = Error::new(ErrorKind::NotSupported, Remedy::FixCall, "this mock has no streams");
        assert_eq!(
            (own.kind(), own.to_string().as_str()),
            (ErrorKind::NotSupported, "this mock has no streams")
        );
    }

    #[test]
    fn what_is_decided_before_the_driver_is_asked_has_a_remedy_too() {
        use crate::memory::{AccountError, BelowFloor, MemInfoError, WatchdogError};
        use crate::redzone::{TableFull, TooLargeForBands};
        use crate::tensormap::TensorMapError;

        let fix: [(Error, ErrorKind); 7] = [
            (FeatureOff { feature: "redzone" }.into(), ErrorKind::NotSupported),
            (TooLargeForBands { requested_bytes: usize::MAX, pad_bytes: 16 }.into(), ErrorKind::BadArgument),
            (TableFull { slots: 1 << 32 }.into(), ErrorKind::NotSupported),
            (TensorMapError { broken: Vec::new() }.into(), ErrorKind::BadArgument),
            (WatchdogError::ZeroThreshold.into(), ErrorKind::BadArgument),
            (MemInfoError::NoTotal.into(), ErrorKind::Config),
            (AccountError::DuplicateName { name: "ledger".into() }.into(), ErrorKind::BadArgument),
        ];
        for (error, kind) in fix {
            assert_eq!((error.kind(), error.remedy()), (kind, Remedy::FixCall), "{error}");
        }
        let below = Error::from(BelowFloor { wanted_bytes: 3, free_bytes: 2, floor_bytes: 1 });
        assert_eq!((below.kind(), below.remedy()), (ErrorKind::OutOfMemory, Remedy::FreeAndRetry));
    }
}

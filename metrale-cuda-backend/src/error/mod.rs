// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Error`], the one error type of this crate, and the causes that belong to no other module.
//!
//! | [`Remedy`] | causes |
//! |---|---|
//! | [`FreeAndRetry`](Remedy::FreeAndRetry) | [`OutOfMemory`](crate::OutOfMemory) of what can fit, [`BelowFloor`](crate::memory::BelowFloor) |
//! | [`FixCall`](Remedy::FixCall) | whatever is refused before the driver is asked, and most of what it refuses |
//! | [`Relaunch`](Remedy::Relaunch) | [`ContextLost`], [`KernelFault`](crate::KernelFault), [`GraphFault`](crate::GraphFault), and whatever carries a status the context does not survive |
//! | [`ReportBug`](Remedy::ReportBug) | [`LedgerConflict`], statuses that no call of ours should bring |

mod causes;
mod failure;

pub use causes::{BadArgument, CallFailed, ContextLost, FeatureOff, LedgerConflict, NotSupported};
pub use failure::{Error, ErrorKind, Remedy, Result, cause, remedy};

pub(crate) use failure::{Cause, causes, remedy_of_status};

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`log_kept`]: what a drop tells where it cannot give back what it owned.

use std::fmt;

use crate::error::{ContextLost, Error};

/// Logs that a drop could not give back what it owned. Of a lost context the log has one line already.
pub(super) fn log_kept(what: impl fmt::Display, error: &Error) {
    if error.is::<ContextLost>() {
        tracing::debug!("{what} stays: {error:#}");
    } else {
        tracing::error!("{what} stays: {error:#}");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Backends on the driver in software. Feature `sim`.

use std::sync::Arc;

pub use metrale_driver_sim::{Profile, SimDriver};

use crate::builder::BackendBuilder;

impl BackendBuilder {
    /// Works on a driver in software with the given profile, made for this backend alone. Feature `sim`.
    pub fn software(self, profile: Profile) -> Self {
        self.driver(Arc::new(SimDriver::new(profile)))
    }
}

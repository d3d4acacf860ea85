// SPDX-License-Identifier: MIT OR Apache-2.0
//! The preflight's way to a real device: its facts by ordinal, with no context, before anything is loaded.

use metrale_driver_sys::DriverApi;
use metrale_registry::{DeviceFacts, HostError};

use crate::arch::DeviceArch;
use crate::builder::BackendBuilder;
use crate::call::ask;
use crate::error::Result;
use crate::preflight::{ModuleTarget, PreflightWarning, preflight};

impl DeviceArch {
    /// What of a driver's device decides which code it runs. Starts the driver where it is not started; makes no context
    /// and takes no memory. Does not block; allowed during a capture.
    ///
    /// # Errors
    /// [`HostError`] without a driver that starts, or without such a device.
    pub fn of(driver: &dyn DriverApi, ordinal: usize) -> Result<Self, HostError> {
        let facts = DeviceFacts::of(driver, ordinal)?;
        let mut version = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(driver, cuDriverGetVersion(&mut version)) }
            .map_err(|error| HostError::Device { ordinal, error })?;
        Ok(Self {
            ordinal,
            name: facts.name,
            compute_capability: facts.compute_capability,
            sm_count: facts.sm_count,
            driver_version: Some(version),
        })
    }
}

/// Whether device `ordinal` of the system's driver runs the modules. Before any of them is loaded, with no context made or
/// needed; a backend asks the same when it is built ([`BackendBuilder::preflight`], which takes another driver). Does not
/// block; allowed during a capture.
///
/// # Errors
/// As [`BackendBuilder::preflight`].
pub fn arch_preflight(
    ordinal: usize,
    ptx_modules: &[(&'static str, &'static [u8])],
) -> Result<Vec<PreflightWarning>> {
    BackendBuilder::default().ordinal(ordinal).modules(ptx_modules).preflight()
}

impl BackendBuilder {
    /// Whether the device runs the modules, as [`build`](Self::build) asks before it loads them: no context is made or
    /// needed, nothing is loaded. Does not block; allowed during a capture.
    ///
    /// # Errors
    /// [`PreflightError`](crate::PreflightError) with every module that does not run and every reason;
    /// [`HostError`] without a usable driver or device.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use metrale_cuda_backend::{MetraleCudaBackend, PreflightError};
    /// # use metrale_driver_sim::{Profile, SimDriver};
    /// static NEWER: &[u8] = b".version 8.6\n.target sm_100\n.address_size 64\n";
    /// # let driver = Arc::new(SimDriver::new(Profile::h200()));
    /// let builder = MetraleCudaBackend::builder().driver(driver).modules(&[("attention", NEWER)]);
    /// let error = builder.preflight().unwrap_err();
    /// assert!(error.is::<PreflightError>() && error.to_string().contains("PTX 8.6 for sm_100"));
    /// ```
    pub fn preflight(&self) -> Result<Vec<PreflightWarning>> {
        self.preflight_on(&*self.driver_or_system()?)
    }

    /// The preflight on a driver that is there.
    pub(crate) fn preflight_on(&self, driver: &dyn DriverApi) -> Result<Vec<PreflightWarning>> {
        let device = DeviceArch::of(driver, self.ordinal)?;
        let targets: Vec<_> = self
            .modules
            .iter()
            .map(|&(name, image)| {
                let target = ModuleTarget::of_image(name, image);
                match self.laid_out_for {
                    Some(sm_count) => target.laid_out_for(sm_count),
                    None => target,
                }
            })
            .collect();
        Ok(preflight(&targets, &device)?)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device that a plan is held against.

use std::str::FromStr;
use std::sync::Arc;

use metrale_cuda_backend::MetraleCudaBackend;
use metrale_driver_sim::{Profile, SimDriver};
use metrale_driver_sys::DriverApi;

use crate::driver_choice::DriverChoice;

/// A device by its profile or by its ordinal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanDevice {
    /// A device of the software driver.
    Profile(Box<Profile>),
    /// A device of the installed driver.
    Ordinal(usize),
}

/// A `--device` that means nothing.
#[derive(Debug, thiserror::Error)]
#[error("{given:?} is no device: give one of {}, or the ordinal of an installed device", Profile::NAMES.join(", "))]
pub struct UnknownDevice {
    given: String,
}

impl FromStr for PlanDevice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        if let Ok(ordinal) = text.parse() {
            return Ok(Self::Ordinal(ordinal));
        }
        match text.parse() {
            Ok(profile) => Ok(Self::Profile(Box::new(profile))),
            Err(_) => Err(UnknownDevice { given: text.to_owned() }),
        }
    }
}

impl PlanDevice {
    /// The device's name, and what it has free once a context is made.
    pub(crate) fn free(&self) -> anyhow::Result<(String, u64)> {
        let (driver, ordinal): (Arc<dyn DriverApi>, usize) = match self {
            Self::Profile(profile) => (Arc::new(SimDriver::new((**profile).clone())), 0),
            Self::Ordinal(ordinal) => (DriverChoice::System.open()?.driver, *ordinal),
        };
        let backend = MetraleCudaBackend::builder().driver(driver).ordinal(ordinal).build()?;
        Ok((backend.facts().name.clone(), backend.memory_info()?.free_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_and_ordinals_parse_and_a_wrong_one_lists_what_there_is() {
        assert_eq!("h200".parse::<PlanDevice>().unwrap(), PlanDevice::Profile(Box::new(Profile::h200())));
        assert_eq!("3".parse::<PlanDevice>().unwrap(), PlanDevice::Ordinal(3));
        for wrong in ["", "b300", "-1", "h200 "] {
            let text = wrong.parse::<PlanDevice>().unwrap_err().to_string();
            assert!(text.contains(&format!("{wrong:?}")) && text.contains("h200, gb10"), "{text}");
        }
    }
}

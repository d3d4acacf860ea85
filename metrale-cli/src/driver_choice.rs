// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--driver`: which driver to work on, and the one line that says so where it was not asked for by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use metrale_driver_sim::{Profile, SimDriver};
use metrale_driver_sys::{DriverApi, LoadError, system};
use metrale_registry::{HostError, device_count};

/// Which driver to work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverChoice {
    /// The installed driver where it shows a device, else the software H200.
    Auto,
    /// The installed driver.
    System,
    /// The software driver with this profile.
    Software(Box<Profile>),
}

/// A `--driver` that means nothing.
#[derive(Debug, thiserror::Error)]
#[error("{given:?} is no driver: give auto, system, sim or sim:PROFILE with PROFILE one of {}", Profile::NAMES.join(", "))]
pub struct UnknownDriver {
    given: String,
}

impl FromStr for DriverChoice {
    type Err = UnknownDriver;

    fn from_str(text: &str) -> Result<Self, UnknownDriver> {
        let unknown = || UnknownDriver { given: text.to_owned() };
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "system" => Ok(Self::System),
            None if text == "sim" => Ok(Self::Software(Box::new(Profile::h200()))),
            Some(("sim", profile)) => {
                profile.parse().map(|profile| Self::Software(Box::new(profile))).map_err(|_| unknown())
            }
            _ => Err(unknown()),
        }
    }
}

/// A driver ready to be used.
pub struct ChosenDriver {
    /// The driver.
    pub driver: Arc<dyn DriverApi>,
    /// What the user should hear about the choice.
    pub remark: Option<String>,
}

impl fmt::Debug for ChosenDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChosenDriver")
            .field("driver", &self.driver.source())
            .field("remark", &self.remark)
            .finish()
    }
}

impl DriverChoice {
    /// Opens the driver.
    ///
    /// # Errors
    /// The loader's, where the installed driver was asked for by name and there is none.
    pub fn open(self) -> Result<ChosenDriver, Arc<LoadError>> {
        match self {
            Self::System => Ok(ChosenDriver { driver: system()?, remark: None }),
            Self::Software(profile) => Ok(ChosenDriver { driver: software(*profile), remark: None }),
            Self::Auto => Ok(match system_with_a_device() {
                Ok(driver) => ChosenDriver { driver, remark: None },
                Err(reason) => ChosenDriver {
                    driver: software(Profile::h200()),
                    remark: Some(format!("no GPU here ({reason}); using the software H200")),
                },
            }),
        }
    }
}

fn software(profile: Profile) -> Arc<dyn DriverApi> {
    Arc::new(SimDriver::new(profile))
}

/// The installed driver, where it starts and shows at least one device; else the reason in a few words.
fn system_with_a_device() -> Result<Arc<dyn DriverApi>, String> {
    let driver = system().map_err(|error| match *error {
        LoadError::NotFound { .. } => "no CUDA driver is installed".to_owned(),
        _ => error.to_string(),
    })?;
    // Counted, not examined: one broken device among several is no reason to leave the others.
    match device_count(&*driver) {
        Ok(0) => Err("the CUDA driver shows no device".to_owned()),
        Ok(_) => Ok(driver),
        Err(error) => Err(match error.driver_error() {
            Some(error) => error.to_string(),
            None => HostError::to_string(&error),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_parse_and_a_wrong_one_lists_what_there_is() {
        assert_eq!("auto".parse::<DriverChoice>().unwrap(), DriverChoice::Auto);
        assert_eq!("system".parse::<DriverChoice>().unwrap(), DriverChoice::System);
        let h200 = DriverChoice::Software(Box::new(Profile::h200()));
        assert_eq!("sim".parse::<DriverChoice>().unwrap(), h200);
        for &name in Profile::NAMES {
            let DriverChoice::Software(profile) = format!("sim:{name}").parse().unwrap() else {
                panic!("{name}")
            };
            assert_eq!(profile.name, name);
        }
        for wrong in ["", "gpu", "sim:", "sim:b300", "system:h200", "Auto", "sim:h200:x"] {
            let text = wrong.parse::<DriverChoice>().unwrap_err().to_string();
            assert!(text.contains(&format!("{wrong:?}")) && text.contains("h200, gb10"), "{text}");
        }
    }

    #[test]
    fn a_named_choice_says_nothing_and_auto_always_ends_with_a_driver() {
        let chosen = "sim:gb10".parse::<DriverChoice>().unwrap().open().unwrap();
        assert_eq!(chosen.remark, None);
        let chosen = DriverChoice::Auto.open().unwrap();
        if let Some(remark) = chosen.remark {
            assert!(remark.contains("software H200") && !remark.contains('\n'), "{remark}");
            assert!(chosen.driver.source().starts_with("software"));
        }
    }
}

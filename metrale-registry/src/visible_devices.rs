// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`VisibleDevices`]: `CUDA_VISIBLE_DEVICES` as the process has it, and as the driver reads it.

use core::fmt;

/// The variable that hides and orders the devices of a process.
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// What `CUDA_VISIBLE_DEVICES` says.
///
/// The driver reads the list up to the first entry that names no device, or names one a second time, and then stops
/// without a word. [`Display`](fmt::Display) tells the value and where the list ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleDevices {
    value: Option<String>,
}

impl VisibleDevices {
    /// Reads the variable now. The driver read it when it was started; a later change has no effect on it.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self::new(std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned()))
    }

    /// As if the variable had this value; `None` where it is not set.
    #[must_use]
    pub const fn new(value: Option<String>) -> Self {
        Self { value }
    }

    /// The value as it is set.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// The entries the driver gets to, in its order; `None` where the variable is not set and nothing is hidden.
    ///
    /// Whether an ordinal or an identity exists is the driver's to say: the list may end still earlier.
    #[must_use]
    pub fn entries(&self) -> Option<Vec<&str>> {
        Some(self.read()?.taken)
    }

    fn read(&self) -> Option<Reading<'_>> {
        let value = self.value()?;
        let mut taken: Vec<&str> = Vec::new();
        if value.trim().is_empty() {
            return Some(Reading { taken, end: None });
        }
        for entry in value.split(',').map(str::trim) {
            if !may_name_a_device(entry) {
                return Some(Reading { taken, end: Some((entry, "names no device")) });
            }
            if taken.contains(&entry) {
                return Some(Reading { taken, end: Some((entry, "is there already")) });
            }
            taken.push(entry);
        }
        Some(Reading { taken, end: None })
    }
}

/// A value as the driver reads it.
struct Reading<'a> {
    /// The entries it gets to.
    taken: Vec<&'a str>,
    /// The entry that ends the list early, and why.
    end: Option<(&'a str, &'static str)>,
}

impl fmt::Display for VisibleDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(value), Some(Reading { taken, end })) = (self.value(), self.read()) else {
            return write!(f, "{VARIABLE} is not set");
        };
        let Some((entry, reason)) = end else {
            return match taken.len() {
                0 => write!(f, "{VARIABLE} is set but empty, which hides every device"),
                _ => write!(f, "{VARIABLE}={value:?}"),
            };
        };
        write!(f, "{VARIABLE}={value:?}, which the driver reads up to {entry:?} ({reason}): ")?;
        match taken.len() {
            0 => write!(f, "every device is hidden"),
            1 => write!(f, "1 entry"),
            entries => write!(f, "{entries} entries"),
        }
    }
}

/// Whether an entry has the form of an ordinal, a GPU's identity (or its start), or a MIG instance's.
fn may_name_a_device(entry: &str) -> bool {
    let is_ordinal = !entry.is_empty() && entry.bytes().all(|byte| byte.is_ascii_digit());
    is_ordinal || entry.starts_with("GPU-") || entry.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: &str) -> VisibleDevices {
        VisibleDevices::new(Some(value.to_owned()))
    }

    #[test]
    fn an_unset_variable_hides_nothing() {
        let unset = VisibleDevices::new(None);
        assert_eq!(unset.entries(), None);
        assert_eq!(unset.to_string(), "CUDA_VISIBLE_DEVICES is not set");
    }

    #[test]
    fn an_empty_value_and_minus_one_hide_every_device() {
        assert_eq!(set("").entries(), Some(vec![]));
        assert_eq!(set(" ").to_string(), "CUDA_VISIBLE_DEVICES is set but empty, which hides every device");
        assert_eq!(set("-1").entries(), Some(vec![]));
        assert!(set("-1").to_string().ends_with("up to \"-1\" (names no device): every device is hidden"));
    }

    #[test]
    fn the_list_stops_at_a_duplicate_and_at_what_names_no_device() {
        assert_eq!(set("0,0").entries(), Some(vec!["0"]));
        assert!(set("0,0").to_string().contains("up to \"0\" (is there already): 1 entry"));
        assert_eq!(set("1,0,-1,2").entries(), Some(vec!["1", "0"]));
        assert!(set("1,0,-1,2").to_string().ends_with("2 entries"));
    }

    #[test]
    fn identities_and_their_starts_are_entries() {
        let mig = "MIG-11111111-2222-3333-4444-555555555555";
        assert_eq!(set("GPU-1a2b").entries(), Some(vec!["GPU-1a2b"]));
        assert_eq!(set(mig).entries(), Some(vec![mig]));
        assert_eq!(set("2, 3").to_string(), "CUDA_VISIBLE_DEVICES=\"2, 3\"");
        assert_eq!(set("2, 3").entries(), Some(vec!["2", "3"]));
    }
}

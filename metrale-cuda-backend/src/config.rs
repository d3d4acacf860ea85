// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every knob of the backend, and the one place that reads the environment.
//!
//! | variable | field | values |
//! |---|---|---|
//! | `METRALE_DEBUG_SYNC_KERNELS` | [`BackendConfig::debug_sync_kernels`] | `1` on; `0`, empty or unset off |
//! | `METRALE_TIME_KERNELS` | [`BackendConfig::time_kernels`] | `1` on; `0`, empty or unset off |
//! | `METRALE_RECENT_EVENTS` | [`BackendConfig::recent_events`] | how many; `0`, empty or unset off |
//! | `METRALE_REDZONE` | [`RedzoneConfig::band_bytes`] | bytes, rounded up to 16; `0`, empty or unset off |
//! | `METRALE_REDZONE_MIN_IDX` | [`RedzoneConfig::min_index`] | the first creation index that gets a band; 0 if unset |
//! | `METRALE_REDZONE_FILL` | [`RedzoneConfig::fill`] | a decimal byte; 238 if unset |
//! | `METRALE_REDZONE_TRACE_IDX` | [`RedzoneConfig::trace_index`] | the creation index whose backtrace is logged |

use std::ffi::OsString;
use std::path::PathBuf;

use metrale_ledger::SMALL_ALLOC_CHUNK;

use crate::environment::{ConfigError, number};
use crate::features::KEEPS_LEDGER;
use crate::memory::CgroupLimit;
use crate::redzone::RedzoneConfig;

/// The variable for [`BackendConfig::debug_sync_kernels`].
pub const DEBUG_SYNC_KERNELS: &str = "METRALE_DEBUG_SYNC_KERNELS";

/// The variable for [`BackendConfig::time_kernels`].
pub const TIME_KERNELS: &str = "METRALE_TIME_KERNELS";

/// The variable for [`BackendConfig::recent_events`].
pub const RECENT_EVENTS: &str = "METRALE_RECENT_EVENTS";

/// What a backend does beyond its plain work. [`Default`] is all off, whatever the environment says.
///
/// ```
/// use metrale_cuda_backend::BackendConfig;
///
/// let mut config = BackendConfig::default();
/// config.debug_sync_kernels = true;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendConfig {
    /// Waits for the stream after every launch, so that a kernel's fault is reported at the launch that caused it and
    /// not at some later call. Costs all overlap of host and device; launches inside a capture are left alone.
    pub debug_sync_kernels: bool,
    /// Puts a span of the kernel's name around every launch, and switches the spans of `metrale_telemetry::run_metrics` on when
    /// the backend is made, where they can be switched off again; [`harvest_spans`](crate::GpuDiagnostics::harvest_spans) reads them. Costs two events a launch; a
    /// span holds nothing but its kernel only where streams do not share the device. Launches inside a capture are left
    /// alone.
    pub time_kernels: bool,
    /// How many of the ledger's last events are kept: what was allocated and freed, where and in which order, for
    /// [`LedgerProbe::recent_events`](metrale_ledger::LedgerProbe::recent_events) and for
    /// [`OutOfMemory`](crate::OutOfMemory), which tells the last of them. 0, or no feature `ledger`: none. Costs memory for
    /// each, and has all threads share one lock.
    pub recent_events: usize,
    /// Bands around allocations, in which a stray write shows. Off. Costs a fill at each allocation, a check at each free,
    /// and the bands' memory.
    pub redzone: RedzoneConfig,
    /// Another file than `/proc/meminfo` to read the host's free memory from, on an integrated GPU: where a container shows
    /// the host's elsewhere, and in tests.
    pub meminfo_path: Option<PathBuf>,
    /// A limit for host memory in place of that of the process's control group, which bounds pinned memory and is shown
    /// beside the free memory: where the group's files cannot be seen, and in tests.
    pub cgroup_limit: Option<CgroupLimit>,
}

impl BackendConfig {
    /// The configuration that the environment asks for.
    ///
    /// # Errors
    /// [`ConfigError`] for a variable whose value does not parse; a misspelt switch must not count as off.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The configuration that the variables of `lookup` ask for.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        Ok(Self {
            debug_sync_kernels: switch(&lookup, DEBUG_SYNC_KERNELS)?,
            time_kernels: switch(&lookup, TIME_KERNELS)?,
            recent_events: count(&lookup, RECENT_EVENTS)?,
            redzone: RedzoneConfig::from_variables(&lookup)?,
            meminfo_path: None,
            cgroup_limit: None,
        })
    }
}

/// Reads an on-off variable.
fn switch(lookup: &impl Fn(&str) -> Option<OsString>, variable: &'static str) -> Result<bool, ConfigError> {
    let Some(raw) = lookup(variable) else { return Ok(false) };
    let value = raw.to_string_lossy();
    match value.trim() {
        "1" => Ok(true),
        "0" | "" => Ok(false),
        _ => Err(ConfigError {
            variable,
            value: value.into_owned(),
            expected: "set it to 1 for on, or to 0 (or not at all) for off",
        }),
    }
}

/// Reads a variable that says how many.
fn count(lookup: &impl Fn(&str) -> Option<OsString>, variable: &'static str) -> Result<usize, ConfigError> {
    let Some(raw) = lookup(variable) else { return Ok(0) };
    let value = raw.to_string_lossy();
    number(&value).ok_or_else(|| ConfigError {
        variable,
        value: value.into_owned(),
        expected: "give a number in decimal digits, such as 100; 0 is off",
    })
}

/// The most bytes of an allocation that takes the short path; 0 where none does: with red zones, with a creation index to be
/// traced, without a ledger.
pub(crate) fn small_most(config: &BackendConfig, total_bytes: u64) -> usize {
    let is_plain = KEEPS_LEDGER && config.redzone.band_bytes == 0 && config.redzone.trace_index.is_none();
    if is_plain { (SMALL_ALLOC_CHUNK - 1).min(total_bytes) as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(value: Option<&str>) -> Result<BackendConfig, ConfigError> {
        BackendConfig::from_variables(|name| {
            (name == DEBUG_SYNC_KERNELS).then_some(value).flatten().map(OsString::from)
        })
    }

    #[test]
    fn a_switch_is_on_off_or_an_error_that_names_it() {
        assert!(with(Some("1")).unwrap().debug_sync_kernels);
        for off in [None, Some(""), Some("0"), Some(" 0 ")] {
            assert_eq!(with(off).unwrap(), BackendConfig::default(), "{off:?}");
        }
        for wrong in ["true", "yes", "2", "-1", "on", "1x"] {
            let error = with(Some(wrong)).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (DEBUG_SYNC_KERNELS, wrong));
            let text = error.to_string();
            assert!(text.contains(DEBUG_SYNC_KERNELS) && text.contains("set it to 1"), "{text}");
        }
    }

    #[test]
    fn a_number_of_events_is_decimal_or_an_error_that_names_it() {
        let with = |value: &str| {
            let value = value.to_owned();
            let lookup = move |name: &str| (name == RECENT_EVENTS).then(|| OsString::from(&value));
            BackendConfig::from_variables(lookup).map(|config| config.recent_events)
        };
        assert_eq!((with(""), with("0"), with(" 100 ")), (Ok(0), Ok(0), Ok(100)));
        for wrong in ["-1", "+1", "0x10", "many", "99999999999999999999"] {
            let error = with(wrong).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (RECENT_EVENTS, wrong));
        }
    }

    #[test]
    fn the_red_zones_variables_are_read_with_the_rest() {
        let lookup = |name: &str| (name == crate::redzone::REDZONE).then(|| OsString::from("1024"));
        assert_eq!(BackendConfig::from_variables(lookup).unwrap().redzone.band_bytes, 1024);
        let wrong = |name: &str| (name == crate::redzone::REDZONE_FILL).then(|| OsString::from("0xEE"));
        assert_eq!(BackendConfig::from_variables(wrong).unwrap_err().variable, "METRALE_REDZONE_FILL");
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_not_text_is_an_error_too() {
        use std::os::unix::ffi::OsStringExt;
        let raw = OsString::from_vec(vec![0xff, b'1']);
        let error = BackendConfig::from_variables(|_| Some(raw.clone())).unwrap_err();
        assert!(error.value.ends_with('1'));
    }

    #[test]
    fn only_small_allocations_without_red_zones_and_trace_take_the_short_path() {
        let plain = BackendConfig::default();
        let most = if KEEPS_LEDGER { SMALL_ALLOC_CHUNK as usize - 1 } else { 0 };
        assert_eq!(small_most(&plain, 141 << 30), most);
        assert_eq!(
            small_most(&plain, 1000),
            most.min(1000),
            "what is above the total is refused on the other path"
        );
        let (mut padded, mut traced) = (plain.clone(), plain);
        padded.redzone.band_bytes = 16;
        traced.redzone.trace_index = Some(0);
        assert_eq!([padded, traced].map(|config| small_most(&config, 141 << 30)), [0, 0]);
    }
}

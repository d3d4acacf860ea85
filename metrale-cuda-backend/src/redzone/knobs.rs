// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be set about red zones, and how the environment's words for it are read.
//!
//! The table of variables is with the other variables, in `config.rs`.

use std::ffi::OsString;

use super::{BandLayout, Fill, MAX_BAND_BYTES, TooLargeForBands};
use crate::environment::{ConfigError, decimal, number};

/// The variable for [`RedzoneConfig::band_bytes`].
pub const REDZONE: &str = "METRALE_REDZONE";
/// The variable for [`RedzoneConfig::min_index`].
pub const REDZONE_MIN_IDX: &str = "METRALE_REDZONE_MIN_IDX";
/// The variable for [`RedzoneConfig::fill`].
pub const REDZONE_FILL: &str = "METRALE_REDZONE_FILL";
/// The variable for [`RedzoneConfig::trace_index`].
pub const REDZONE_TRACE_IDX: &str = "METRALE_REDZONE_TRACE_IDX";

/// Red zones as they are wanted. [`Default`] is off.
///
/// ```
/// use metrale_cuda_backend::redzone::{Fill, RedzoneConfig};
///
/// let mut redzone = RedzoneConfig::default();
/// redzone.band_bytes = 1024;
/// redzone.front = true;
/// redzone.fill = Fill::Position;
/// assert!(redzone.pads(0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedzoneConfig {
    /// Bytes of the band after each allocation, rounded up to 16, at most [`MAX_BAND_BYTES`]. 0 is off. An overrun longer than the band reaches the
    /// neighbour: a grid rounded up to 256 threads of 4 bytes writes up to 1020 bytes too far, so 1024 is a good size.
    pub band_bytes: usize,
    /// Whether there is a band in front too, rounded up to 512. Off.
    pub front: bool,
    /// The first creation index that gets bands. Indices count every `alloc` of the process from 0.
    pub min_index: u64,
    /// What is in a band. The environment can set a byte only.
    pub fill: Fill,
    /// The creation index at which a backtrace is logged.
    pub trace_index: Option<u64>,
    /// Freed allocations are kept, filled, until they are more than so many bytes together, to catch writes that come
    /// late. 0 is off.
    pub quarantine_bytes: u64,
    /// How bands are looked at.
    pub scan_by: ScanBy,
}

/// How a scan looks at the bands. Both ways give the same answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScanBy {
    /// By the kernel where it loads, by copies elsewhere and on a driver in software.
    #[default]
    Auto,
    /// By one kernel launch for all bands; a scan fails where it cannot be had.
    Kernel,
    /// Band by band, copied to the host. Thousands of times slower.
    Copies,
}

impl RedzoneConfig {
    /// What the variables of `lookup` ask for; what they cannot say stays as it is by default.
    ///
    /// # Errors
    /// [`ConfigError`] for a value that does not parse.
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        // Bytes that are no text are shown replaced, and parse as nothing.
        let text = |variable| lookup(variable).map(|value| value.to_string_lossy().into_owned());
        let mut config = Self::default();
        if let Some(value) = text(REDZONE) {
            config.band_bytes = parse_band_bytes(&value)?;
        }
        if let Some(value) = text(REDZONE_MIN_IDX) {
            config.min_index = parse_index(REDZONE_MIN_IDX, &value)?.unwrap_or(0);
        }
        if let Some(value) = text(REDZONE_FILL) {
            config.fill = parse_fill(&value)?;
        }
        if let Some(value) = text(REDZONE_TRACE_IDX) {
            config.trace_index = parse_index(REDZONE_TRACE_IDX, &value)?;
        }
        Ok(config)
    }

    /// Whether the allocation with this creation index gets bands.
    #[must_use]
    pub const fn pads(&self, index: u64) -> bool {
        self.band_bytes > 0 && index >= self.min_index
    }

    /// The layout of an allocation of `bytes` bytes with this creation index.
    ///
    /// # Errors
    /// [`TooLargeForBands`].
    pub const fn layout(&self, bytes: usize, index: u64) -> Result<BandLayout, TooLargeForBands> {
        if self.pads(index) {
            BandLayout::new(bytes, self.band_bytes, self.front)
        } else {
            Ok(BandLayout::bare(bytes))
        }
    }
}

/// Reads `METRALE_REDZONE`: a number of bytes, as it is there (it is rounded where a band is laid out).
///
/// # Errors
/// [`ConfigError`] for anything that is not a decimal number up to [`MAX_BAND_BYTES`].
pub fn parse_band_bytes(value: &str) -> Result<usize, ConfigError> {
    number(value).filter(|&bytes| bytes <= MAX_BAND_BYTES).ok_or_else(|| ConfigError {
        variable: REDZONE,
        value: value.to_owned(),
        expected: "give the bytes of a band in decimal digits, such as 1024, at most 1073741824; 0 is off",
    })
}

/// Reads `METRALE_REDZONE_FILL`: a byte in decimal digits; empty is the default.
///
/// # Errors
/// [`ConfigError`] for anything else, 256 and hexadecimal digits included.
pub fn parse_fill(value: &str) -> Result<Fill, ConfigError> {
    let byte = match value.trim() {
        "" => return Ok(Fill::default()),
        digits => decimal(digits).and_then(|byte| u8::try_from(byte).ok()),
    };
    byte.map(Fill::Byte).ok_or_else(|| ConfigError {
        variable: REDZONE_FILL,
        value: value.to_owned(),
        expected: "give one byte in decimal digits, 0 to 255 (the default 238 is 0xEE)",
    })
}

/// Reads a creation index, of `METRALE_REDZONE_MIN_IDX` or `METRALE_REDZONE_TRACE_IDX`; empty is none.
///
/// # Errors
/// [`ConfigError`] for anything but decimal digits that fit 64 bits.
pub fn parse_index(variable: &'static str, value: &str) -> Result<Option<u64>, ConfigError> {
    match value.trim() {
        "" => Ok(None),
        digits => decimal(digits).map(Some).ok_or_else(|| ConfigError {
            variable,
            value: value.to_owned(),
            expected: "give a creation index in decimal digits, as red-zone reports show it; the first is 0",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<RedzoneConfig, ConfigError> {
        RedzoneConfig::from_variables(|name| {
            pairs.iter().find(|pair| pair.0 == name).map(|pair| OsString::from(pair.1))
        })
    }

    #[test]
    fn unset_empty_and_zero_are_off() {
        for off in [&[][..], &[(REDZONE, "0")], &[(REDZONE, "")], &[(REDZONE, " 00 ")]] {
            let config = with(off).unwrap();
            assert_eq!(config, RedzoneConfig::default());
            assert!(!config.pads(0) && !config.pads(u64::MAX));
            assert_eq!(config.layout(100, 0), Ok(BandLayout::bare(100)));
        }
    }

    #[test]
    fn all_variables_together() {
        let config = with(&[
            (REDZONE, "250"),
            (REDZONE_MIN_IDX, "10"),
            (REDZONE_FILL, "0"),
            (REDZONE_TRACE_IDX, " 12\n"),
        ])
        .unwrap();
        let expected = RedzoneConfig {
            band_bytes: 250,
            min_index: 10,
            fill: Fill::Byte(0),
            trace_index: Some(12),
            ..RedzoneConfig::default()
        };
        assert_eq!(config, expected);
        assert!(!config.pads(9) && config.pads(10));
        assert_eq!(config.layout(1000, 9), Ok(BandLayout::bare(1000)));
        assert_eq!(config.layout(1000, 10).unwrap().total_bytes(), 1256);
    }

    #[test]
    fn what_does_not_parse_is_an_error_with_name_value_and_advice() {
        for (variable, wrong) in [
            (
                REDZONE,
                &["256B", "0x100", "-1", "+16", "1e3", "1073741825", "99999999999999999999", "1 2"][..],
            ),
            (REDZONE_MIN_IDX, &["-1", "ten", "1.5", "18446744073709551616"]),
            (REDZONE_FILL, &["256", "0xEE", "EE", "-1", "238.0", "238,239"]),
            (REDZONE_TRACE_IDX, &["first", "-0", "\u{661}"]),
        ] {
            for &value in wrong {
                let error = with(&[(variable, value)]).unwrap_err();
                assert_eq!((error.variable, error.value.as_str()), (variable, value));
                let text = error.to_string();
                assert!(text.contains(variable) && text.contains("decimal digits"), "{text}");
            }
        }
        assert_eq!(with(&[(REDZONE, "1073741824")]).unwrap().band_bytes, MAX_BAND_BYTES);
        assert_eq!(with(&[(REDZONE_FILL, "255")]).unwrap().fill, Fill::Byte(255));
    }
}

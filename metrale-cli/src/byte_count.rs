// SPDX-License-Identifier: MIT OR Apache-2.0
//! A number of bytes as it is given on the command line.

use std::str::FromStr;

/// Bytes: a plain number, or one with a unit; `141GiB` is 141 × 2^30, `80GB` 80 × 10^9, `1.5GiB` 1.5 × 2^30.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub u64);

/// What is no number of bytes.
#[derive(Debug, thiserror::Error)]
#[error(
    "{given:?} is no number of bytes{}: give a plain number, or one with B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, \
     GB, TB (powers of 1000), below 2^64 bytes",
    if *.is_share { ", and if it is a share, of what is not known" } else { "" }
)]
pub struct NotAByteCount {
    given: String,
    /// A fraction of a byte, or a per cent: a share of something.
    is_share: bool,
}

/// Units in small letters. A bare `G` is left out: people mean either power by it.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

impl FromStr for ByteCount {
    type Err = NotAByteCount;

    fn from_str(text: &str) -> Result<Self, NotAByteCount> {
        parse(text).map(Self).ok_or_else(|| {
            let number = text.trim().trim_end_matches(['%', ' ']);
            let is_share = text.contains(['.', '%']) && number.parse::<f64>().is_ok();
            NotAByteCount { given: text.to_owned(), is_share }
        })
    }
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let &(_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // The standard parser takes neither an empty part nor a second point.
    let whole: u64 = whole.parse().ok()?;
    if fraction.len() > 18 {
        return None;
    }
    let (parts, of) = (fraction.parse::<u128>().ok()?, 10_u128.pow(fraction.len() as u32));
    // There is no part of a byte.
    if unit == 1 && parts > 0 {
        return None;
    }
    let part = (parts * u128::from(unit) / of) as u64;
    whole.checked_mul(unit)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("149557477376", 149_557_477_376),
            ("141GiB", 141 << 30),
            ("141 gib", 141 << 30),
            ("80GB", 80_000_000_000),
            ("1.5GiB", 3 << 29),
            ("0.001KB", 1),
            ("2TiB", 2 << 40),
            ("512B", 512),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<ByteCount>().unwrap(), ByteCount(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused_with_the_units_there_are() {
        for text in [
            "",
            "GiB",
            "-1",
            "+1",
            "1G",
            "1.GiB",
            ".5GiB",
            "1.2.3",
            "1e9",
            "0.9",
            "1.5B",
            "90%",
            "18446744073709551616",
            "99999999TiB",
            "1 GiB x",
        ] {
            let error = text.parse::<ByteCount>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("GiB"), "{error}");
            assert_eq!(error.contains("a share"), ["0.9", "90%"].contains(&text), "{error}");
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! A number of bytes as people read it, in units that mean what they say.

use std::fmt;

/// Shows bytes as `512 B`, `1.50 KiB`, `208.88 MiB`, `12.55 GiB` or `1.50 TiB`; 1 KiB is 1024 bytes. Width and alignment apply.
///
/// ```
/// use metrale_ledger::ByteSize;
/// assert_eq!(ByteSize(219_030_644).to_string(), "208.88 MiB");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(
    /// The bytes.
    pub u64,
);

impl ByteSize {
    /// For sizes the API counts in `usize`.
    pub const fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }

    /// The amount and its unit, as in `1.50` and `GiB`.
    fn parts(self) -> (u64, Option<u64>, &'static str) {
        const UNITS: [(u64, &str); 4] =
            [(1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB")];
        if self.0 < UNITS[0].0 {
            return (self.0, None, "B");
        }
        let hundredths = |unit: u64| (u128::from(self.0) * 100 + u128::from(unit / 2)) / u128::from(unit);
        // The first unit in which the rounded amount stays below 1024, so that no line says "1024.00 KiB".
        let (unit, name) =
            UNITS.into_iter().find(|&(unit, _)| hundredths(unit) < 102_400).unwrap_or(UNITS[3]);
        let amount = hundredths(unit) as u64;
        (amount / 100, Some(amount % 100), name)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, hundredths, unit) = self.parts();
        match hundredths {
            None => f.pad(&format!("{whole} {unit}")),
            Some(hundredths) => f.pad(&format!("{whole}.{hundredths:02} {unit}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_true_and_rounding_never_reaches_1024() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (1 << 20, "1.00 MiB"),
            (219_030_644, "208.88 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (13_476_831_488, "12.55 GiB"),
            (150_109_880_320, "139.80 GiB"),
            (1 << 40, "1.00 TiB"),
            (u64::MAX, "16777216.00 TiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text, "{bytes}");
        }
        assert_eq!(format!("[{:>10}]", ByteSize(1536)), "[  1.50 KiB]");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a scan found, in words.

use core::fmt;
use core::panic::Location;
use core::time::Duration;
use std::sync::Arc;

use metrale_ledger::{ByteSize, file_line};

use super::BandChange;

/// Which band of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The one in front of the caller's bytes.
    Front,
    /// The one after them.
    Back,
    /// The caller's bytes themselves, after they were freed, in quarantine.
    Freed,
}

/// The last scan that left a band as it should be: it found it so, or restored it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanScan {
    /// Which scan of this backend it was, counted from 1.
    pub number: u64,
    /// How long ago.
    pub ago: Duration,
}

/// A band that was written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The allocation's creation index.
    pub index: u64,
    /// The caller's address.
    pub address: u64,
    /// The bytes the caller asked for.
    pub bytes: usize,
    /// The line that allocated.
    pub site: &'static Location<'static>,
    /// The scope it was allocated in.
    pub scope: Option<Arc<str>>,
    /// Which band.
    pub side: Side,
    /// The band's bytes.
    pub band_bytes: usize,
    /// What changed.
    pub change: BandChange,
    /// Since when it can have happened; `None` where no scan came between the allocation and this one.
    pub last_clean: Option<CleanScan>,
}

impl Violation {
    /// First and last changed byte as offsets from the caller's address, negative in front of it.
    #[must_use]
    pub fn offsets(&self) -> (i128, i128) {
        let start = match self.side {
            Side::Front => -(self.band_bytes as i128),
            Side::Back => self.bytes as i128,
            Side::Freed => 0,
        };
        (start + self.change.first as i128, start + self.change.last as i128)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BandChange { first, last, count, value } = self.change;
        let bytes = if count == 1 { "1 byte was" } else { &format!("{count} bytes were") };
        write!(f, "red zone: {bytes} written ")?;
        match self.side {
            Side::Back => write!(f, "past the end, at +{first} to +{last} behind it")?,
            // Counted from the caller's address down: the byte before it is -1.
            Side::Front => {
                let (from, to) = self.offsets();
                write!(f, "before the start, at {from} to {to}")?;
            }
            Side::Freed => write!(f, "after the free, at offsets {first} to {last}")?,
        }
        write!(
            f,
            ", the first is now {value:#04x}; allocation {} of {} at {:#x} from {}",
            self.index,
            ByteSize::of(self.bytes),
            self.address,
            file_line(self.site)
        )?;
        if let Some(scope) = &self.scope {
            write!(f, ", scope {scope}")?;
        }
        match self.last_clean {
            Some(CleanScan { number, ago }) => {
                write!(f, "; clean at scan {number}, {:.3} s ago", ago.as_secs_f64())
            }
            None => f.write_str("; not scanned before"),
        }
    }
}

/// What one scan came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Bands that were looked at.
    pub checked: usize,
    /// Bands that could not be looked at, as in a context that is lost. They are neither clean nor changed.
    pub not_checked: usize,
    /// Why not.
    pub reason: Option<String>,
    /// The changed ones, by creation index, the front band first.
    pub violations: Vec<Violation>,
}

impl ScanReport {
    /// Whether every band was looked at and found as it should be.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.not_checked == 0 && self.violations.is_empty()
    }

    /// Puts the violations in order; a kernel finds them in any.
    pub fn sort(&mut self) {
        self.violations.sort_by_key(|violation| (violation.index, violation.side));
    }
}

impl fmt::Display for ScanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bands checked, {} changed", self.checked, self.violations.len())?;
        if self.not_checked > 0 {
            write!(f, ", {} not checked", self.not_checked)?;
            if let Some(reason) = &self.reason {
                write!(f, " ({reason})")?;
            }
        }
        self.violations.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(side: Side, first: usize, last: usize) -> Violation {
        Violation {
            index: 41,
            address: 0x7f00_0000_0200,
            bytes: 360,
            site: Location::caller(),
            scope: Some("layers.3.attn".into()),
            side,
            band_bytes: 1024,
            change: BandChange { first, last, count: last - first + 1, value: 7 },
            last_clean: Some(CleanScan { number: 12, ago: Duration::from_millis(1500) }),
        }
    }

    #[test]
    fn a_violation_says_everything_there_is_to_know() {
        let text = violation(Side::Back, 0, 652).to_string();
        for part in [
            "653 bytes were written past the end",
            "+0 to +652",
            "0x07",
            "allocation 41 of 360 B at 0x7f0000000200",
            "report.rs:",
            "scope layers.3.attn",
            "clean at scan 12, 1.500 s ago",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let never = Violation { last_clean: None, scope: None, ..violation(Side::Back, 3, 3) };
        let text = never.to_string();
        assert!(text.contains("1 byte was") && text.ends_with("not scanned before"), "{text}");
        assert!(!text.contains("scope"), "{text}");
    }

    #[test]
    fn offsets_count_from_the_callers_address() {
        assert_eq!(violation(Side::Back, 0, 652).offsets(), (360, 1012));
        assert_eq!(violation(Side::Front, 1023, 1023).offsets(), (-1, -1));
        assert!(violation(Side::Front, 1020, 1023).to_string().contains("at -4 to -1"));
        assert_eq!(violation(Side::Freed, 8, 15).offsets(), (8, 15));
        assert!(violation(Side::Freed, 8, 15).to_string().contains("after the free"));
    }

    #[test]
    fn a_scan_that_could_not_look_is_not_clean() {
        let mut report = ScanReport { checked: 2, ..ScanReport::default() };
        assert!(report.is_clean());
        assert_eq!(report.to_string(), "2 bands checked, 0 changed");
        report.not_checked = 1;
        report.reason = Some("the context is lost".into());
        assert!(!report.is_clean());
        assert!(report.to_string().ends_with("1 not checked (the context is lost)"));
    }

    #[test]
    fn violations_come_in_the_order_of_creation() {
        let of = |index, side| Violation { index, ..violation(side, 0, 0) };
        let mut report = ScanReport {
            violations: vec![of(9, Side::Back), of(2, Side::Back), of(9, Side::Front)],
            ..ScanReport::default()
        };
        report.sort();
        let order: Vec<_> = report.violations.iter().map(|found| (found.index, found.side)).collect();
        assert_eq!(order, [(2, Side::Back), (9, Side::Front), (9, Side::Back)]);
    }
}

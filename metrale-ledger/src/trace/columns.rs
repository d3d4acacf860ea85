// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which column is which, and what stands in them.

use std::fmt;

use super::cells::excerpt;
use super::row::Action;
use crate::plan::Allocator;

/// Where the columns are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) action: usize,
    pub(super) pointer: usize,
    pub(super) bytes: usize,
    pub(super) thread: Option<usize>,
    pub(super) time: Option<usize>,
    pub(super) stream: Option<usize>,
    pub(super) location: Option<usize>,
    pub(super) device: Option<usize>,
    pub(super) handle: Option<usize>,
    pub(super) allocator: Option<usize>,
    /// Whether a pool's figures are among them, `Used` and `Reserved`, as recorders of pools write them.
    pub(super) has_pool_figures: bool,
    /// How many there are, those of other names among them.
    pub(super) width: usize,
}

/// What a line is, read as a header.
pub(super) enum Header {
    Is(Columns),
    /// Names some columns, and lacks these.
    Lacks(Vec<&'static str>),
    /// Names a column twice.
    Twice(Twice),
    No,
}

/// A column that a header names twice, so that it is not clear which one counts.
pub(super) struct Twice {
    name: String,
    first: usize,
    second: usize,
}

impl fmt::Display for Twice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the header names {:?} twice, as columns {} and {}: rename the one that does not count",
            self.name,
            self.first + 1,
            self.second + 1
        )
    }
}

/// Names of a column, in small letters. The first is the one that errors ask for; where several are there, the earlier one here
/// counts.
const ACTION: &[&str] = &["action", "event type", "event"];
const POINTER: &[&str] = &["pointer", "address", "ptr"];
const BYTES: &[&str] = &["size", "size (bytes)", "bytes"];

impl Columns {
    /// RMM's order, for logs without their header: Thread, Time, Action, Pointer, Size, Stream.
    pub(super) const RMM: Self = Self {
        thread: Some(0),
        time: Some(1),
        action: 2,
        pointer: 3,
        bytes: 4,
        stream: Some(5),
        location: None,
        device: None,
        handle: None,
        allocator: None,
        has_pool_figures: false,
        width: 6,
    };

    /// The columns of a log that begins with this line: none where it is a row, of a log without a header.
    ///
    /// # Errors
    /// Why it is neither, and what to do; and whether it is clearly a header, so that no later line makes sense.
    pub(super) fn of_line(cells: &[&str], line: &str) -> Result<Option<Self>, (String, bool)> {
        match Self::of_header(cells) {
            Header::Is(columns) => Ok(Some(columns)),
            Header::Lacks(names) => {
                let lacks = names.join(", nor ");
                Err((
                    format!("the header names no column {lacks}: give the column that has it that name"),
                    true,
                ))
            }
            Header::Twice(twice) => Err((twice.to_string(), true)),
            Header::No if cells.len() == Self::RMM.width && action(cells[Self::RMM.action]).is_some() => {
                Ok(None)
            }
            Header::No => {
                let shown = excerpt(line);
                let apart = |by: &str| {
                    let cells: Vec<_> = line.split(by).collect();
                    !matches!(Self::of_header(&cells), Header::No)
                };
                match [("\t", "tabs"), (";", "semicolons"), ("|", "bars")]
                    .into_iter()
                    .find(|(by, _)| apart(by))
                {
                    Some((_, name)) => {
                        let words = "is a header set apart by";
                        Err((format!("{shown:?} {words} {name}: write the table with commas"), true))
                    }
                    None => {
                        let words = "is neither a header that names Action, Pointer and Size nor a row";
                        Err((format!("{shown:?} {words}"), false))
                    }
                }
            }
        }
    }

    pub(super) fn of_header(cells: &[&str]) -> Header {
        let mut twice = None;
        let mut find = |names: &[&str]| {
            let of_name = |name: &&str| {
                let mut found = cells
                    .iter()
                    .enumerate()
                    .filter(|(_, cell)| cell.trim().eq_ignore_ascii_case(name))
                    .map(|(at, _)| at);
                let first = found.next()?;
                if let Some(second) = found.next() {
                    let name = cells[first].trim().to_owned();
                    twice.get_or_insert(Twice { name, first, second });
                }
                Some(first)
            };
            names.iter().find_map(of_name)
        };
        let needed = [find(ACTION), find(POINTER), find(BYTES)];
        let columns = match needed {
            [Some(action), Some(pointer), Some(bytes)] => Self {
                action,
                pointer,
                bytes,
                thread: find(&["thread", "thread id"]),
                time: find(&["time", "start"]),
                stream: find(&["stream"]),
                location: find(&["location"]),
                device: find(&["device id", "device"]),
                handle: find(&["handle"]),
                allocator: find(&["allocator"]),
                has_pool_figures: find(&["used"]).is_some() && find(&["reserved"]).is_some(),
                width: cells.len(),
            },
            [None, None, None] => return Header::No,
            _ => {
                let names = [ACTION[0], POINTER[0], BYTES[0]];
                let lacks = names.into_iter().zip(needed).filter(|n| n.1.is_none()).map(|n| n.0);
                return Header::Lacks(lacks.collect());
            }
        };
        twice.map_or(Header::Is(columns), Header::Twice)
    }
}

/// The actions, as errors list them.
pub(super) const ACTIONS: &str =
    "allocate, free, allocate failure, synchronize, trim, create, map, unmap, release";

/// The action of a cell. `deallocate` is a word of documentation; logs write `free`.
pub(super) fn action(cell: &str) -> Option<Action> {
    const NAMES: &[(&str, Action)] = &[
        ("allocate", Action::Allocate),
        ("alloc", Action::Allocate),
        ("free", Action::Free),
        ("deallocate", Action::Free),
        ("dealloc", Action::Free),
        ("allocate failure", Action::AllocateFailure),
        ("synchronize", Action::Synchronize),
        ("synchronise", Action::Synchronize),
        ("trim", Action::Trim),
        ("create", Action::Create),
        ("map", Action::Map),
        ("unmap", Action::Unmap),
        ("release", Action::Release),
    ];
    NAMES.iter().find(|(name, _)| cell.eq_ignore_ascii_case(name)).map(|&(_, action)| action)
}

/// An address in hex, with or without 0x; null in any way it is written.
pub(super) fn pointer(cell: &str) -> Result<u64, String> {
    if let Some(address) = hex(cell) {
        return Ok(address);
    }
    if ["(nil)", "nil", "null", "(null)"].iter().any(|null| cell.eq_ignore_ascii_case(null)) {
        return Ok(0);
    }
    Err(match cell {
        "" => "the pointer is missing".to_owned(),
        _ => format!("the pointer {cell:?} is no hexadecimal address of 64 bits"),
    })
}

/// Digits only: the standard parser would let a sign pass.
fn hex(cell: &str) -> Option<u64> {
    let digits = cell.strip_prefix("0x").or_else(|| cell.strip_prefix("0X")).unwrap_or(cell);
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

pub(super) fn bytes(cell: &str) -> Result<u64, String> {
    if cell.is_empty() {
        return Err("the size is missing".to_owned());
    }
    let digits = cell.bytes().all(|b| b.is_ascii_digit());
    let whole = if digits { cell.parse().ok() } else { whole(cell) };
    whole.ok_or_else(|| format!("the size {cell:?} is no whole number of bytes below 2^64"))
}

/// A whole number that is written as tools write floating-point numbers: `1048576.0`, `1.5e3`.
fn whole(cell: &str) -> Option<u64> {
    let (mantissa, exponent) = cell.split_once(['e', 'E']).unwrap_or((cell, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = [whole, fraction].concat();
    if whole.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let exponent: i64 = exponent.parse().ok()?;
    let zeros = exponent.checked_sub(fraction.len() as i64)?;
    let digits: u64 = digits.parse().ok()?;
    // Zero has any exponent; what is not zero overflows at 10^20 already.
    if digits == 0 && zeros >= 0 {
        return Some(0);
    }
    10_u64.checked_pow(u32::try_from(zeros).ok()?)?.checked_mul(digits)
}

/// Who gave out the memory: none where the cell is empty.
pub(super) fn allocator(cell: &str) -> Result<Option<Allocator>, String> {
    if cell.is_empty() {
        return Ok(None);
    }
    match Allocator::ALL.into_iter().find(|allocator| cell.eq_ignore_ascii_case(allocator.name())) {
        Some(allocator) => Ok(Some(allocator)),
        None => {
            let names = Allocator::ALL.map(Allocator::name).join(", ");
            Err(format!("the allocator {:?} is none of {names}", excerpt(cell)))
        }
    }
}

/// A stream's or thread's number: decimal, or hex where only that makes it one.
pub(super) fn number(cell: &str) -> Option<u64> {
    let is_decimal = !cell.is_empty() && cell.bytes().all(|b| b.is_ascii_digit());
    if is_decimal { cell.parse().ok() } else { pointer(cell).ok() }
}

/// A moment: of a day (`10:15:30.000012`, also with a colon before the fraction) or in seconds since some start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    OfDay(i64),
    Since(i64),
}

pub(super) const DAY_NS: i64 = 86_400 * 1_000_000_000;

pub(super) fn time(cell: &str) -> Option<Time> {
    if cell.contains(':') {
        let mut parts = cell.splitn(3, ':');
        let mut whole = |limit: i64| parts.next()?.parse().ok().filter(|n| (0..limit).contains(n));
        let (hours, minutes) = (whole(24)?, whole(60)?);
        let (seconds, fraction) = {
            let rest = parts.next()?;
            rest.split_once(['.', ':']).unwrap_or((rest, ""))
        };
        let seconds = seconds.parse::<i64>().ok().filter(|n| (0..61).contains(n))?;
        let seconds = (hours * 60 + minutes) * 60 + seconds;
        return Some(Time::OfDay(seconds * 1_000_000_000 + fraction_ns(fraction)?));
    }
    let (seconds, fraction) = cell.split_once('.').unwrap_or((cell, ""));
    let seconds: i64 = seconds.parse().ok()?;
    Some(Time::Since(seconds.checked_mul(1_000_000_000)?.checked_add(fraction_ns(fraction)?)?))
}

/// Digits behind the point, as nanoseconds; what is finer is cut.
fn fraction_ns(digits: &str) -> Option<i64> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let shown = digits.bytes().chain(std::iter::repeat(b'0')).take(9);
    Some(shown.fold(0, |ns, digit| ns * 10 + i64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_hex_however_they_are_written() {
        for (cell, value) in [
            ("0x7f00", Ok(0x7f00)),
            ("7F00", Ok(0x7f00)),
            ("0X0", Ok(0)),
            ("(nil)", Ok(0)),
            ("NULL", Ok(0)),
            ("ffffffffffffffff", Ok(u64::MAX)),
        ] {
            assert_eq!(pointer(cell), value, "{cell}");
        }
        for cell in ["", "+1f", "-1", "0x1ffffffffffffffff", "12g", "0x 1"] {
            assert!(pointer(cell).is_err(), "{cell}");
        }
    }

    #[test]
    fn sizes_are_plain_numbers() {
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("18446744073709551615"), Ok(u64::MAX));
        for (cell, value) in [
            ("1048576.0", 1 << 20),
            ("0.0", 0),
            ("0e9", 0),
            ("512.", 512),
            ("1e+06", 1_000_000),
            ("1.5E3", 1500),
            ("1.8446744073709551615e19", u64::MAX),
            ("17179869184.000", 1 << 34),
        ] {
            assert_eq!(bytes(cell), Ok(value), "{cell}");
        }
        for cell in [
            "",
            "+5",
            "-5",
            "1.5",
            "18446744073709551616",
            "4 KiB",
            "0x10",
            ".0",
            "1.2.0",
            "1e",
            "1e1.0",
            "15e-1",
            "2e19",
            "1e99999999999999999999",
            "nan",
            "inf",
            "-0.0",
            "1_0.0",
        ] {
            assert!(bytes(cell).is_err(), "{cell}");
        }
    }

    #[test]
    fn times_are_of_a_day_or_in_seconds() {
        assert_eq!(time("00:00:01.5"), Some(Time::OfDay(1_500_000_000)));
        assert_eq!(time("12:00:00:000124"), Some(Time::OfDay(12 * 3_600_000_000_000 + 124_000)));
        assert_eq!(time("1700000000.123456"), Some(Time::Since(1_700_000_000_123_456_000)));
        assert_eq!(time("41.7014"), Some(Time::Since(41_701_400_000)));
        for cell in ["", "noon", "25:00:00", "1:2", "1.x", "99999999999999999999"] {
            assert_eq!(time(cell), None, "{cell}");
        }
    }
}

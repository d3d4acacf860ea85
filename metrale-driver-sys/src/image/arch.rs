// SPDX-License-Identifier: MIT OR Apache-2.0
//! Architectures, PTX versions and compute capabilities, and which of them fit together: functions of numbers.

use std::fmt;
use std::str::FromStr;

/// A version of the PTX language, compared number by number: 7.10 is later than 7.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IsaVersion {
    /// The number before the dot.
    pub major: u32,
    /// The number behind the dot, as an integer.
    pub minor: u32,
}

impl IsaVersion {
    /// Version `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The highest version that the compiler inside a driver accepts, by what `cuDriverGetVersion` answers.
    ///
    /// `None` for a driver older than CUDA 3.0. A driver newer than this table counts as the newest one in it, so
    /// the answer is a lower bound there.
    #[must_use]
    pub fn highest_of_driver(driver_version: i32) -> Option<Self> {
        let row = ISA_BY_DRIVER.iter().rev().find(|row| row.0 <= driver_version)?;
        Some(Self::new(row.1, row.2))
    }

    /// Whether the language ever had this version: assemblers refuse 7.9 as they refuse one from the future.
    ///
    /// Versions newer than this crate count as existing.
    #[must_use]
    pub fn exists(self) -> bool {
        let last_minor = match self.major {
            0 => return false,
            1 => 5,
            2 => 3,
            3 => 2,
            4 => 3,
            5 => 1,
            6 => 5,
            7 => return self.minor <= 8 || matches!(self.minor, 10 | 11),
            8 => 8,
            _ => return true,
        };
        self.minor <= last_minor
    }
}

impl fmt::Display for IsaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A device's compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// Device attribute 75.
    pub major: u32,
    /// Device attribute 76.
    pub minor: u32,
}

impl ComputeCapability {
    /// Compute capability `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The number in the architecture's name: 90 for 9.0, 121 for 12.1. Saturates on numbers no device has.
    #[must_use]
    pub const fn sm_number(self) -> u32 {
        self.major.saturating_mul(10).saturating_add(self.minor)
    }

    /// One name for a chip with two: what CUDA 12 called 10.1 is 11.0 since CUDA 13.
    #[must_use]
    pub const fn renamed(self) -> Self {
        match self {
            Self { major: 10, minor: 1 } => Self::new(11, 0),
            other => other,
        }
    }

    /// An integrated chip whose machine code does not mix with that of the discrete ones of its generation.
    const fn is_tegra(self) -> bool {
        matches!((self.major, self.minor), (3, 2) | (5, 3) | (6, 2) | (7, 2) | (8, 7 | 8))
    }
}

impl From<(u32, u32)> for ComputeCapability {
    fn from((major, minor): (u32, u32)) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The letter behind an architecture's number: how far its code may travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Portability {
    /// No letter: PTX runs on everything newer, machine code on its major version from its minor up.
    #[default]
    Portable,
    /// `a`: features of this one architecture, and it runs on no other.
    Exact,
    /// `f`: features of a family, and it runs on the family's members from this one up.
    Family,
}

/// An architecture as `.target` and the compilers name it: `sm_90`, `sm_90a`, `sm_100f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SmTarget {
    /// 10 × major + minor of the compute capability.
    pub number: u32,
    /// The letter behind the number.
    pub portability: Portability,
}

impl SmTarget {
    /// `sm_<number>` without a letter.
    #[must_use]
    pub const fn portable(number: u32) -> Self {
        Self { number, portability: Portability::Portable }
    }

    /// The compute capability it is named after.
    #[must_use]
    pub const fn compute_capability(self) -> ComputeCapability {
        ComputeCapability::new(self.number / 10, self.number % 10)
    }

    /// The lowest PTX version that may name it; `None` for an architecture this crate does not know, which a newer
    /// driver may.
    #[must_use]
    pub fn lowest_isa(self) -> Option<IsaVersion> {
        let row = TARGETS.iter().find(|row| row.0 == self.number)?;
        let (major, minor) = match self.portability {
            Portability::Portable => row.1,
            Portability::Exact => row.2?,
            Portability::Family => row.3?,
        };
        Some(IsaVersion::new(major, minor))
    }

    /// Whether this crate knows the architecture.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.lowest_isa().is_some()
    }
}

impl fmt::Display for SmTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.portability {
            Portability::Portable => "",
            Portability::Exact => "a",
            Portability::Family => "f",
        };
        write!(f, "sm_{}{letter}", self.number)
    }
}

/// A word that is no architecture's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form sm_<number>, sm_<number>a or sm_<number>f")]
pub struct NotATarget(pub String);

impl FromStr for SmTarget {
    type Err = NotATarget;

    /// Takes `sm_90a` and, as the assemblers do, `compute_90a`.
    fn from_str(word: &str) -> Result<Self, NotATarget> {
        let parse = || {
            let rest = word.strip_prefix("sm_").or_else(|| word.strip_prefix("compute_"))?;
            let (digits, portability) = match rest.as_bytes().last()? {
                b'a' => (&rest[..rest.len() - 1], Portability::Exact),
                b'f' => (&rest[..rest.len() - 1], Portability::Family),
                _ => (rest, Portability::Portable),
            };
            // `parse` alone would take a sign.
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            Some(Self { number: digits.parse().ok()?, portability })
        };
        parse().ok_or_else(|| NotATarget(word.to_owned()))
    }
}

/// Whether a device can run PTX written for `target`, once its driver takes the PTX version.
///
/// Portable PTX runs on its own architecture and everything with a higher number, across generations; `a` only on its
/// own; `f` on the members of its family from itself up.
#[must_use]
pub fn ptx_runs_on(target: SmTarget, device: ComputeCapability) -> bool {
    let (wanted, present) = (target.compute_capability().renamed(), device.renamed());
    match target.portability {
        // The old name of a renamed chip still sorts by its old number.
        Portability::Portable => target.number <= device.sm_number() || wanted == present,
        Portability::Exact => wanted == present,
        Portability::Family => wanted.major == present.major && wanted.minor <= present.minor,
    }
}

/// Whether a device can run machine code built for `target`.
///
/// Same major version and no newer minor; `a` only on its own chip; integrated chips of the older generations (5.3,
/// 6.2, 7.2, 8.7, 8.8) and discrete ones do not exchange code.
#[must_use]
pub fn cubin_runs_on(target: SmTarget, device: ComputeCapability) -> bool {
    let (built, present) = (target.compute_capability().renamed(), device.renamed());
    if built == present {
        return true;
    }
    target.portability != Portability::Exact
        && !built.is_tegra()
        && !present.is_tegra()
        && built.major == present.major
        && built.minor <= present.minor
}

/// Number, then the lowest PTX version for the plain name, for `a` and for `f`.
type TargetRow = (u32, (u32, u32), Option<(u32, u32)>, Option<(u32, u32)>);

/// As the assemblers of CUDA 12.9 and 13.5 accept them.
const TARGETS: &[TargetRow] = &[
    (10, (1, 0), None, None),
    (11, (1, 0), None, None),
    (12, (1, 2), None, None),
    (13, (1, 2), None, None),
    (20, (2, 0), None, None),
    (21, (2, 0), None, None),
    (30, (3, 0), None, None),
    (32, (4, 0), None, None),
    (35, (3, 1), None, None),
    (37, (4, 1), None, None),
    (50, (4, 0), None, None),
    (52, (4, 1), None, None),
    (53, (4, 2), None, None),
    (60, (5, 0), None, None),
    (61, (5, 0), None, None),
    (62, (5, 0), None, None),
    (70, (6, 0), None, None),
    (72, (6, 1), None, None),
    (75, (6, 3), None, None),
    (80, (7, 0), None, None),
    (86, (7, 1), None, None),
    (87, (7, 4), None, None),
    (88, (9, 0), None, None),
    (89, (7, 8), None, None),
    (90, (7, 8), Some((8, 0)), None),
    (100, (8, 6), Some((8, 6)), Some((8, 8))),
    (101, (8, 6), Some((8, 6)), Some((8, 8))),
    (103, (8, 8), Some((8, 8)), Some((8, 8))),
    (107, (9, 4), Some((9, 4)), Some((9, 4))),
    (110, (9, 0), Some((9, 0)), Some((9, 0))),
    (120, (8, 7), Some((8, 7)), Some((8, 8))),
    (121, (8, 8), Some((8, 8)), Some((8, 8))),
];

/// Driver version from which on a PTX version is accepted, oldest first.
const ISA_BY_DRIVER: &[(i32, u32, u32)] = &[
    (3000, 2, 0),
    (3010, 2, 1),
    (3020, 2, 2),
    (4000, 2, 3),
    (4020, 3, 0),
    (5000, 3, 1),
    (5050, 3, 2),
    (6000, 4, 0),
    (6050, 4, 1),
    (7000, 4, 2),
    (7050, 4, 3),
    (8000, 5, 0),
    (9000, 6, 0),
    (9010, 6, 1),
    (9020, 6, 2),
    (10000, 6, 3),
    (10010, 6, 4),
    (10020, 6, 5),
    (11000, 7, 0),
    (11010, 7, 1),
    (11020, 7, 2),
    (11030, 7, 3),
    (11040, 7, 4),
    (11050, 7, 5),
    (11060, 7, 6),
    (11070, 7, 7),
    (11080, 7, 8),
    (12000, 8, 0),
    (12010, 8, 1),
    (12020, 8, 2),
    (12030, 8, 3),
    (12040, 8, 4),
    (12050, 8, 5),
    (12060, 8, 5),
    (12070, 8, 6),
    (12080, 8, 7),
    (12090, 8, 8),
    (13000, 9, 0),
    (13010, 9, 1),
    (13020, 9, 2),
    (13030, 9, 3),
    (13040, 9, 4),
    (13050, 9, 5),
];

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a device runs code built for an architecture, and if not, every reason why.
//!
//! The rules themselves are those of [`metrale_driver_sys::image::arch`]; here they become a typed verdict.

use core::fmt;

pub use metrale_driver_sys::image::arch::{ComputeCapability, IsaVersion, Portability, SmTarget};
use metrale_driver_sys::image::arch::{cubin_runs_on, ptx_runs_on};

/// The newest driver whose PTX version is known; a newer one may take newer PTX, so nothing is refused there for its
/// version.
const NEWEST_KNOWN_DRIVER: i32 = 13_050;

/// What of a device decides which code it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceArch {
    /// Its place among the devices the process sees, from 0.
    pub ordinal: usize,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: ComputeCapability,
    /// Its streaming multiprocessors.
    pub sm_count: u32,
    /// What `cuDriverGetVersion` answers (13000 for CUDA 13.0); `None` where it was not asked, and then no PTX is too new.
    pub driver_version: Option<i32>,
}

impl fmt::Display for DeviceArch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({}, compute capability {})", self.ordinal, self.name, self.compute_capability)
    }
}

/// What a piece of code was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeTarget {
    /// PTX text, which the driver compiles for the device.
    Ptx {
        /// What its `.target` names.
        sm: SmTarget,
        /// Its `.version`, where it is known.
        isa: Option<IsaVersion>,
    },
    /// Machine code.
    Cubin {
        /// What it was compiled for.
        sm: SmTarget,
    },
    /// LTO-IR, of which a linker makes machine code.
    LtoIr {
        /// What it was compiled for.
        sm: SmTarget,
    },
}

impl CodeTarget {
    /// The architecture.
    #[must_use]
    pub const fn sm(self) -> SmTarget {
        match self {
            Self::Ptx { sm, .. } | Self::Cubin { sm } | Self::LtoIr { sm } => sm,
        }
    }

    /// Every reason why `device` does not run this; empty where it does.
    ///
    /// ```
    /// use metrale_cuda_backend::{CodeTarget, ComputeCapability, DeviceArch, Shortfall};
    ///
    /// let device = DeviceArch {
    ///     ordinal: 0,
    ///     name: "NVIDIA H200".into(),
    ///     compute_capability: ComputeCapability::new(9, 0),
    ///     sm_count: 132,
    ///     driver_version: Some(13_000),
    /// };
    /// let hopper = CodeTarget::Ptx { sm: "sm_90a".parse()?, isa: None };
    /// assert_eq!(hopper.shortfalls(&device), []);
    /// let blackwell = CodeTarget::Ptx { sm: "sm_100".parse()?, isa: None };
    /// assert_eq!(blackwell.shortfalls(&device), [Shortfall::NewerTarget]);
    /// # Ok::<(), metrale_driver_sys::image::arch::NotATarget>(())
    /// ```
    #[must_use]
    pub fn shortfalls(self, device: &DeviceArch) -> Vec<Shortfall> {
        match self {
            Self::Ptx { sm, isa } => {
                let mut found = Vec::new();
                if let Some(isa) = isa {
                    found.extend(isa_shortfalls(sm, isa, device.driver_version));
                }
                found.extend(ptx_shortfall(sm, device.compute_capability));
                found
            }
            Self::Cubin { sm } => cubin_shortfall(sm, device.compute_capability).into_iter().collect(),
            Self::LtoIr { .. } => vec![Shortfall::NotLinked],
        }
    }
}

impl fmt::Display for CodeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ptx { sm, isa: Some(isa) } => write!(f, "PTX {isa} for {sm}"),
            Self::Ptx { sm, isa: None } => write!(f, "PTX for {sm}"),
            Self::Cubin { sm } => write!(f, "a cubin for {sm}"),
            Self::LtoIr { sm } => write!(f, "LTO-IR for {sm}"),
        }
    }
}

/// One reason why a device does not run a piece of code. Displays as a clause that follows "it".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shortfall {
    /// The PTX is for an architecture newer than the device.
    NewerTarget,
    /// The code is for one architecture alone (`a`), and the device is another.
    OtherArchitecture,
    /// The PTX is for a family (`f`) that the device is not of.
    OutsideFamily,
    /// The PTX is of a version that this driver's compiler does not know.
    IsaTooNew {
        /// The version stated.
        isa: IsaVersion,
        /// The highest that the driver takes.
        highest: IsaVersion,
        /// The driver's version.
        driver_version: i32,
    },
    /// The PTX states a version that its own target did not exist in, so every compiler refuses it.
    IsaTooOld {
        /// The version stated.
        isa: IsaVersion,
        /// The lowest that may name the target.
        lowest: IsaVersion,
    },
    /// The machine code is of another major version.
    OtherMajor,
    /// The machine code is for a newer minor version than the device's.
    NewerMinor,
    /// The machine code is for an integrated chip and the device is a discrete one, or the other way round.
    IntegratedAndDiscrete,
    /// It is intermediate code, which no driver links, whatever the device.
    NotLinked,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewerTarget => f.write_str("needs a newer device"),
            Self::OtherArchitecture => f.write_str("runs on that one architecture only"),
            Self::OutsideFamily => f.write_str("runs on that family of devices only"),
            Self::IsaTooNew { isa, highest, driver_version } => write!(
                f,
                "is PTX {isa}, and the driver (CUDA {}.{}) takes PTX up to {highest}: update the driver or compile with \
                 an older toolkit",
                driver_version / 1000,
                driver_version % 1000 / 10
            ),
            Self::IsaTooOld { isa, lowest } => {
                write!(
                    f,
                    "states PTX {isa}, but its target exists only from PTX {lowest} on: correct `.version`"
                )
            }
            Self::NotLinked => f.write_str(
                "is not linked, and a driver does not link it: make machine code of it with nvJitLink or nvcc -dlto",
            ),
            Self::OtherMajor => f.write_str("runs on devices of its own major version only"),
            Self::NewerMinor => f.write_str("needs a device of its own minor version or a newer one"),
            Self::IntegratedAndDiscrete => {
                f.write_str("does not travel between integrated and discrete chips of that generation")
            }
        }
    }
}

fn isa_shortfalls(
    sm: SmTarget,
    isa: IsaVersion,
    driver_version: Option<i32>,
) -> impl Iterator<Item = Shortfall> {
    let too_new =
        driver_version.filter(|&version| version <= NEWEST_KNOWN_DRIVER).and_then(|driver_version| {
            let highest = IsaVersion::highest_of_driver(driver_version)?;
            (isa > highest).then_some(Shortfall::IsaTooNew { isa, highest, driver_version })
        });
    let too_old =
        sm.lowest_isa().filter(|&lowest| isa < lowest).map(|lowest| Shortfall::IsaTooOld { isa, lowest });
    too_new.into_iter().chain(too_old)
}

fn ptx_shortfall(sm: SmTarget, device: ComputeCapability) -> Option<Shortfall> {
    if ptx_runs_on(sm, device) {
        return None;
    }
    let is_newer = sm.compute_capability().renamed() > device.renamed();
    Some(match sm.portability {
        Portability::Portable => Shortfall::NewerTarget,
        _ if is_newer => Shortfall::NewerTarget,
        Portability::Exact => Shortfall::OtherArchitecture,
        Portability::Family => Shortfall::OutsideFamily,
    })
}

fn cubin_shortfall(sm: SmTarget, device: ComputeCapability) -> Option<Shortfall> {
    if cubin_runs_on(sm, device) {
        return None;
    }
    let (built, present) = (sm.compute_capability().renamed(), device.renamed());
    Some(if sm.portability == Portability::Exact {
        Shortfall::OtherArchitecture
    } else if built.major != present.major {
        Shortfall::OtherMajor
    } else if built.minor > present.minor {
        Shortfall::NewerMinor
    } else {
        // Same major, old enough, and still refused: only that split is left.
        Shortfall::IntegratedAndDiscrete
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u32, driver_version: i32) -> DeviceArch {
        DeviceArch {
            ordinal: 0,
            name: "test".into(),
            compute_capability: ComputeCapability::new(number / 10, number % 10),
            sm_count: 1,
            driver_version: Some(driver_version),
        }
    }

    fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
        table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
    }

    fn isa(text: &str) -> IsaVersion {
        let (major, minor) = text.split_once('.').unwrap();
        IsaVersion::new(major.parse().unwrap(), minor.parse().unwrap())
    }

    fn capability(text: &str) -> ComputeCapability {
        let version = isa(text);
        ComputeCapability::new(version.major, version.minor)
    }

    /// The table's own word for a shortfall.
    fn kind(shortfall: Shortfall) -> &'static str {
        match shortfall {
            Shortfall::NewerTarget => "target_higher",
            Shortfall::OtherArchitecture => "arch_specific_other",
            Shortfall::IsaTooNew { .. } => "isa_too_new",
            other => panic!("not a word of the table: {other:?}"),
        }
    }

    /// Every row of the matrix, against every device that its toolkit knows.
    #[test]
    fn ptx_runs_where_the_assemblers_take_it() {
        const KNOWN: [(&str, i32, &[u32]); 2] = [
            ("13.5", 13_050, &[75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121]),
            (
                "12.9",
                12_090,
                &[50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121],
            ),
        ];
        let table = include_str!("../tests/data/ptx_target_matrix.tsv");
        let mut checked = 0;
        for row in rows(table).skip(1) {
            let [toolkit, target, lowest, runs_on, refusals] = row[..] else { panic!("{row:?}") };
            let &(_, driver, devices) = KNOWN.iter().find(|known| known.0 == toolkit).unwrap();
            let code = CodeTarget::Ptx { sm: target.parse().unwrap(), isa: Some(isa(lowest)) };
            let mut kinds = std::collections::BTreeSet::new();
            for &number in devices {
                let found = code.shortfalls(&device(number, driver));
                let expected = runs_on.split(',').any(|runs| runs == number.to_string());
                assert_eq!(found.is_empty(), expected, "{toolkit} {target} on {number}: {found:?}");
                kinds.extend(found.into_iter().map(kind));
                checked += 1;
            }
            let mut listed: std::collections::BTreeSet<&str> =
                refusals.split(',').filter(|&kind| kind != "-").collect();
            match target {
                // Listed without saying for which device; no device here is newer than 12.1, so ours never is.
                "sm_121a" => drop(listed.remove("arch_specific_other")),
                // An assembler stops at the version; all reasons are wanted here.
                "sm_110" | "sm_110a" if toolkit == "12.9" => {
                    assert!(kinds.contains("isa_too_new"), "{target}");
                    continue;
                }
                _ => {}
            }
            assert_eq!(kinds, listed, "{toolkit} {target}");
        }
        assert_eq!(checked, 26 * 13 + 26 * 19);
    }

    #[test]
    fn cubins_load_where_the_table_says() {
        let table = include_str!("../tests/data/cubin_compat.tsv");
        let mut checked = 0;
        for row in rows(table) {
            let (built, present, verdict) = (row[0], row[1], row[2]);
            let loads = match verdict.to_ascii_lowercase() {
                word if word.starts_with("yes") || word.starts_with("same chip") => true,
                word if word.starts_with("no") => false,
                word => panic!("{word}"),
            };
            let sm: SmTarget = format!("sm_{}", built.replace('.', "")).parse().unwrap();
            let number = capability(present).sm_number();
            let found = CodeTarget::Cubin { sm }.shortfalls(&device(number, 13_000));
            assert_eq!(found.is_empty(), loads, "{built} on {present}: {found:?}");
            let expected = match (built, present) {
                ("8.0", "8.7") | ("8.7", "8.9") | ("8.6", "8.7") | ("5.2", "5.3") => {
                    Some(Shortfall::IntegratedAndDiscrete)
                }
                ("8.6", "8.0") => Some(Shortfall::NewerMinor),
                ("12.0a", "12.1") => Some(Shortfall::OtherArchitecture),
                _ if loads => None,
                _ => Some(Shortfall::OtherMajor),
            };
            assert_eq!(found.first().copied(), expected, "{built} on {present}");
            checked += 1;
        }
        assert_eq!(checked, 18);
    }

    #[test]
    fn a_driver_takes_ptx_up_to_its_version() {
        let sm = SmTarget::portable(10);
        let mut versions: Vec<(i32, IsaVersion)> = Vec::new();
        for row in rows(include_str!("../tests/data/ptx_isa_by_toolkit.tsv")) {
            versions.push((row[0].parse().unwrap(), isa(row[1])));
        }
        assert_eq!(versions.len(), 43);
        for &(driver_version, highest) in &versions {
            let at = |isa| CodeTarget::Ptx { sm, isa: Some(isa) }.shortfalls(&device(75, driver_version));
            assert_eq!(at(highest), [], "{driver_version}");
            let above = IsaVersion::new(highest.major, highest.minor + 1);
            let refused = Shortfall::IsaTooNew { isa: above, highest, driver_version };
            assert_eq!(at(above), [refused], "{driver_version}");
        }
        let (newest, highest) = versions[versions.len() - 1];
        assert_eq!(newest, NEWEST_KNOWN_DRIVER);
        // What a driver from beyond the table takes is not known, so it is asked.
        let beyond = CodeTarget::Ptx { sm, isa: Some(IsaVersion::new(highest.major + 1, 0)) };
        assert_eq!(beyond.shortfalls(&device(75, newest + 10)), []);
        assert_eq!(beyond.shortfalls(&DeviceArch { driver_version: None, ..device(75, 0) }), []);
    }

    #[test]
    fn a_target_wants_its_lowest_version() {
        let mut checked = 0;
        for row in rows(include_str!("../tests/data/ptx_min_isa_by_target.tsv")) {
            // The rows of options are about words of `.target` that decide nothing about the device.
            if row[0].starts_with("option ") {
                continue;
            }
            let sm: SmTarget = row[0].parse().unwrap();
            let lowest = isa(row[1]);
            let on = device(sm.compute_capability().renamed().sm_number(), 13_050);
            assert_eq!(CodeTarget::Ptx { sm, isa: Some(lowest) }.shortfalls(&on), [], "{sm}");
            let below = match lowest {
                IsaVersion { major, minor: 0 } => IsaVersion::new(major - 1, 9),
                IsaVersion { major, minor } => IsaVersion::new(major, minor - 1),
            };
            let refused = Shortfall::IsaTooOld { isa: below, lowest };
            assert_eq!(CodeTarget::Ptx { sm, isa: Some(below) }.shortfalls(&on), [refused], "{sm}");
            checked += 1;
        }
        assert_eq!(checked, 38);
    }

    #[test]
    fn families_take_their_members_from_the_named_one_up() {
        let on = |target: &str, number| {
            let sm = target.parse().unwrap();
            CodeTarget::Ptx { sm, isa: None }.shortfalls(&device(number, 13_050))
        };
        for number in [100, 103, 107] {
            assert_eq!(on("sm_100f", number), [], "{number}");
        }
        assert_eq!(on("sm_103f", 100), [Shortfall::NewerTarget]);
        assert_eq!(on("sm_100f", 90), [Shortfall::NewerTarget]);
        assert_eq!(on("sm_100f", 120), [Shortfall::OutsideFamily]);
        // One chip, two names.
        assert_eq!((on("sm_101f", 110), on("sm_110a", 101), on("sm_101a", 110)), (vec![], vec![], vec![]));
    }

    #[test]
    fn all_reasons_come_together() {
        let code = CodeTarget::Ptx { sm: "sm_110a".parse().unwrap(), isa: Some(IsaVersion::new(8, 9)) };
        let found = code.shortfalls(&device(90, 12_090));
        let [Shortfall::IsaTooNew { .. }, Shortfall::IsaTooOld { .. }, Shortfall::NewerTarget] = found[..]
        else {
            panic!("{found:?}")
        };
        assert!(found[0].to_string().contains("CUDA 12.9") && found[0].to_string().contains("up to 8.8"));
    }

    #[test]
    fn the_verdict_is_the_rule_on_any_number() {
        use proptest::prelude::*;
        proptest!(|(number: u32, letter in 0..3_u8, major: u32, minor: u32)| {
            let portability =
                [Portability::Portable, Portability::Exact, Portability::Family][usize::from(letter)];
            let sm = SmTarget { number, portability };
            let compute_capability = ComputeCapability::new(major, minor);
            let on = DeviceArch { compute_capability, ..device(90, 13_000) };
            prop_assert_eq!(
                CodeTarget::Ptx { sm, isa: None }.shortfalls(&on).is_empty(),
                ptx_runs_on(sm, compute_capability)
            );
            prop_assert_eq!(
                CodeTarget::Cubin { sm }.shortfalls(&on).is_empty(),
                cubin_runs_on(sm, compute_capability)
            );
        });
    }
}

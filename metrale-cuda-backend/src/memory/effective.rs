// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much device memory can really be had: the driver's figure, or on an integrated GPU the host's where it is larger.

use core::fmt;
use core::time::Duration;

use metrale_ledger::ByteSize;

use super::{CgroupLimit, HostFigure, HostFigureKind};
use crate::error::causes;

/// Device memory that can be had, in bytes: on an integrated GPU the larger of the driver's free figure and the host's
/// available one, on a discrete GPU the driver's.
///
/// An integrated GPU lives in the host's memory, and its driver counts the page cache as used, which the kernel would give
/// up at once. On a discrete GPU the host's memory is another memory. Where it could not be asked whether the device is
/// integrated, pass `false`; where the host's figure is not known, `None`.
///
/// ```
/// use metrale_cuda_backend::memory::effective_free_bytes;
/// assert_eq!(effective_free_bytes(44 << 30, Some(121 << 30), true), 121 << 30);
/// assert_eq!(effective_free_bytes(44 << 30, Some(990 << 30), false), 44 << 30);
/// assert_eq!(effective_free_bytes(44 << 30, None, true), 44 << 30);
/// ```
#[must_use]
pub const fn effective_free_bytes(cu_free: u64, mem_available: Option<u64>, integrated: bool) -> u64 {
    match mem_available {
        Some(available) if integrated && available > cu_free => available,
        _ => cu_free,
    }
}

/// A figure and how old it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aged<T> {
    /// The figure.
    pub figure: T,
    /// Time since it was read.
    pub age: Duration,
}

impl<T> Aged<T> {
    /// A figure read just now.
    pub const fn now(figure: T) -> Self {
        Self { figure, age: Duration::ZERO }
    }
}

/// What is known when the question is asked. `None` is a question that got no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSituation {
    /// Whether the device lives in the host's memory; unknown counts as no.
    pub integrated: Option<bool>,
    /// The device's total, in bytes.
    pub total_bytes: Option<u64>,
    /// The driver's free figure, in bytes.
    pub driver_free_bytes: Option<Aged<u64>>,
    /// The host's figure.
    pub host: Option<Aged<HostFigure>>,
    /// The limit of the process's control group. Shown; it bounds host memory, not the device's.
    pub cgroup_limit: Option<CgroupLimit>,
}

/// Who the effective figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FreeSource {
    /// The driver.
    Driver,
    /// The host, in this way.
    Host(HostFigureKind),
}

causes! { FreeUnknown: Driver }

impl fmt::Display for FreeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver => f.write_str("the driver"),
            Self::Host(HostFigureKind::Available) => f.write_str("the host's MemAvailable"),
            Self::Host(HostFigureKind::HugeTlb) => f.write_str("the host's free huge pages"),
            Self::Host(HostFigureKind::Estimate) => {
                f.write_str("an estimate from the host's free and cached memory")
            }
        }
    }
}

/// Device memory that can be had, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EffectiveFree {
    /// Bytes that can be had; never above the device's total.
    pub bytes: u64,
    /// Who says so.
    pub source: FreeSource,
    /// How old that figure is.
    pub age: Duration,
    /// Whether the source said more than the device has.
    pub is_capped: bool,
    /// All that was known.
    pub situation: FreeSituation,
}

impl EffectiveFree {
    /// Whether the figure is a guess, for want of a better one.
    #[must_use]
    pub const fn is_estimate(&self) -> bool {
        matches!(self.source, FreeSource::Host(HostFigureKind::Estimate))
    }

    /// Host memory that can be had for pinned buffers, in bytes: what the host has, within the control group's limit.
    /// `None` where neither is known.
    #[must_use]
    pub fn host_bytes(&self) -> Option<u64> {
        let host =
            self.situation.host.map(|host| host.figure.outside_pool_bytes.unwrap_or(host.figure.bytes));
        let limit = self.situation.cgroup_limit.and_then(CgroupLimit::bytes);
        host.into_iter().chain(limit).min()
    }
}

impl fmt::Display for EffectiveFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FreeSituation { total_bytes, driver_free_bytes, host, cgroup_limit, .. } = self.situation;
        write!(f, "{} free", ByteSize(self.bytes))?;
        if let Some(total) = total_bytes {
            write!(f, " of {}", ByteSize(total))?;
        }
        write!(f, ", by {}", self.source)?;
        if self.age >= Duration::from_millis(1) {
            write!(f, ", {} ms old", self.age.as_millis())?;
        }
        if self.is_capped {
            f.write_str(", capped at the device's total")?;
        }
        match (self.source, driver_free_bytes) {
            (FreeSource::Host(_), Some(driver)) => {
                write!(f, "; the driver says {}", ByteSize(driver.figure))?;
            }
            (FreeSource::Host(_), None) => f.write_str("; the driver did not answer")?,
            (FreeSource::Driver, _) => {}
        }
        if let Some(host) = host
            && self.source == FreeSource::Driver
        {
            write!(f, "; the host has {}", host.figure)?;
        }
        if let Some(CgroupLimit::Bytes(bytes)) = cgroup_limit {
            write!(f, "; a control group limits host and pinned memory to {}", ByteSize(bytes))?;
        }
        Ok(())
    }
}

/// Nobody said what is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the free memory is not known: the driver did not answer, and {}",
    match integrated {
        Some(true) => "the host's own figure could not be read either",
        Some(false) => "the host's figure says nothing about a discrete GPU",
        None => "whether the GPU is integrated is not known, so the host's figure does not count",
    }
)]
pub struct FreeUnknown {
    /// Whether the device is integrated, if that was known.
    pub integrated: Option<bool>,
}

/// Device memory that can be had, with its provenance.
///
/// As [`effective_free_bytes`], and: a driver that does not answer leaves the host's figure on an integrated GPU; the
/// result is never above the device's total; a control group's limit does not lower it. Of two equal figures the driver's
/// is named.
///
/// # Errors
/// [`FreeUnknown`] where no figure counts.
pub fn effective_free(situation: FreeSituation) -> Result<EffectiveFree, FreeUnknown> {
    let integrated = situation.integrated == Some(true);
    let host = situation.host.filter(|_| integrated);
    let (bytes, source, age) = match (situation.driver_free_bytes, host) {
        (None, None) => return Err(FreeUnknown { integrated: situation.integrated }),
        (driver, Some(host)) if driver.is_none_or(|driver| host.figure.bytes > driver.figure) => {
            (host.figure.bytes, FreeSource::Host(host.figure.kind), host.age)
        }
        (Some(driver), _) => (driver.figure, FreeSource::Driver, driver.age),
        (None, Some(host)) => (host.figure.bytes, FreeSource::Host(host.figure.kind), host.age),
    };
    let cap = situation.total_bytes.unwrap_or(u64::MAX);
    Ok(EffectiveFree { bytes: bytes.min(cap), source, age, is_capped: bytes > cap, situation })
}

#[cfg(test)]
mod tests {
    use super::super::MemInfo;
    use super::super::meminfo::tests::FILES;
    use super::*;

    fn available(bytes: u64) -> Aged<HostFigure> {
        Aged::now(HostFigure { bytes, kind: HostFigureKind::Available, outside_pool_bytes: None })
    }

    /// The meminfo text behind a row's host facts, and its control group's limit.
    fn host_of(facts: &str) -> (Option<HostFigure>, Option<CgroupLimit>) {
        let (memory, cgroup) = facts.split_once("cgroup memory.max").unwrap_or((facts, ""));
        let limit = cgroup.split_whitespace().find(|word| *word != "=");
        let memory = memory.replace(';', " ");
        let mut words = memory.split_whitespace().peekable();
        let mut text = String::new();
        while let Some(word) = words.next() {
            if let Some(value) = words.peek().filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()))
            {
                text += &format!("{word}: {value} kB\n");
            }
        }
        if !text.contains("MemTotal") {
            text += "MemTotal: 99999999999 kB\n";
        }
        let figure = MemInfo::parse(text.as_bytes()).unwrap().host_figure().ok();
        (figure, limit.map(|limit| CgroupLimit::parse(limit).unwrap()))
    }

    #[test]
    fn every_situation_of_the_table_gets_its_answer() {
        let table = include_str!("../../tests/data/unified_cases.tsv");
        let mut checked = 0;
        for row in table.lines().filter(|line| !line.starts_with('#')) {
            let [id, _, integrated, total, free, facts, expected, ..] =
                row.split('\t').collect::<Vec<_>>()[..]
            else {
                panic!("{row}")
            };
            match id {
                // About the figures of another library, which nothing here asks.
                "u16" => continue,
                // About another vendor's devices.
                "u17" => continue,
                _ => {}
            }
            let (host, cgroup_limit) = host_of(facts);
            let situation = FreeSituation {
                integrated: Some(integrated == "yes"),
                total_bytes: Some(total.parse().unwrap()),
                driver_free_bytes: free.parse().ok().map(Aged::now),
                host: host.map(Aged::now),
                cgroup_limit,
            };
            let found = effective_free(situation).unwrap();
            let expected: u64 = expected.parse().unwrap();
            assert_eq!(found.bytes, expected, "{id}: {found}");
            if let Ok(free) = free.parse() {
                let plain =
                    effective_free_bytes(free, host.map(|host| host.bytes), situation.integrated.unwrap());
                assert_eq!(plain.min(total.parse().unwrap()), expected, "{id}");
            }
            checked += 1;
            match id {
                "u05" => {
                    assert_eq!(found.source, FreeSource::Host(HostFigureKind::Available));
                    assert!(found.to_string().contains("the driver did not answer"), "{found}");
                }
                "u07" => {
                    // Shown, bounding pinned memory, and not lowering the device's figure.
                    assert!(found.to_string().contains("pinned memory to 8.00 GiB"), "{found}");
                    assert_eq!(found.host_bytes(), Some(8_589_934_592));
                }
                "u08" => assert_eq!(found.situation.cgroup_limit, Some(CgroupLimit::Unlimited)),
                "u10" | "u11" => assert_eq!(found.source, FreeSource::Driver, "{id}"),
                "u14" => assert!(found.is_estimate() && found.to_string().contains("estimate")),
                _ => {}
            }
        }
        assert_eq!(checked, 10);
    }

    #[test]
    fn unknown_counts_as_discrete() {
        let situation = FreeSituation {
            integrated: None,
            total_bytes: Some(100),
            driver_free_bytes: Some(Aged::now(10)),
            host: Some(available(90)),
            cgroup_limit: None,
        };
        assert_eq!(effective_free(situation).unwrap().bytes, 10);
        let silent = FreeSituation { driver_free_bytes: None, ..situation };
        assert_eq!(effective_free(silent), Err(FreeUnknown { integrated: None }));
        for integrated in [Some(false), None] {
            let error = effective_free(FreeSituation { integrated, ..silent }).unwrap_err();
            assert!(error.to_string().contains("does not count") || error.to_string().contains("discrete"));
        }
        let nothing = FreeSituation { integrated: Some(true), ..FreeSituation::default() };
        assert!(effective_free(nothing).unwrap_err().to_string().contains("could not be read"));
    }

    #[test]
    fn the_answer_is_never_above_the_total_and_says_how_old_it_is() {
        let age = Duration::from_millis(250);
        let situation = FreeSituation {
            integrated: Some(true),
            total_bytes: Some(100 << 30),
            driver_free_bytes: Some(Aged::now(10 << 30)),
            host: Some(Aged { age, ..available(120 << 30) }),
            cgroup_limit: None,
        };
        let found = effective_free(situation).unwrap();
        assert_eq!((found.bytes, found.age, found.is_capped), (100 << 30, age, true));
        let text = found.to_string();
        for part in ["100.00 GiB free of 100.00 GiB", "MemAvailable", "250 ms old", "capped", "10.00 GiB"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let by_driver = FreeSituation { host: Some(available(10 << 30)), ..situation };
        let found = effective_free(by_driver).unwrap();
        assert_eq!((found.source, found.age), (FreeSource::Driver, Duration::ZERO));
        assert!(
            found.to_string().ends_with("by the driver; the host has 10.00 GiB by MemAvailable"),
            "{found}"
        );
    }

    #[test]
    fn recorded_texts_give_the_figure_of_the_rule() {
        for (name, text) in FILES {
            let Ok(figure) = MemInfo::parse(text).and_then(|info| info.host_figure()) else { continue };
            for driver in [0, 1 << 20, 20 << 30, 300 << 30] {
                let total_bytes = 119 << 30;
                let of = |integrated| {
                    let situation = FreeSituation {
                        integrated: Some(integrated),
                        total_bytes: Some(total_bytes),
                        driver_free_bytes: Some(Aged::now(driver)),
                        host: Some(Aged::now(figure)),
                        cgroup_limit: None,
                    };
                    effective_free(situation).unwrap().bytes
                };
                assert_eq!(of(true), total_bytes.min(driver.max(figure.bytes)), "{name}");
                assert_eq!(of(false), total_bytes.min(driver), "{name}");
            }
        }
    }
}

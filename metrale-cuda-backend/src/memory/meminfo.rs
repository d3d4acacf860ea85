// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/meminfo`, read with suspicion: what the host says is free, and how it knows.
//!
//! On an integrated GPU the driver counts the host's page cache as used memory, so its own free figure can be tens of
//! gigabytes too low. The host's file is the better witness, once it is read with care: texts come from old kernels without
//! `MemAvailable`, from containers that mix two machines' figures, from buffers too small for the file.

use core::fmt;
use std::collections::BTreeMap;
use std::path::Path;

use metrale_ledger::ByteSize;

use crate::error::causes;

/// Where the kernel keeps it.
const PROC_MEMINFO: &str = "/proc/meminfo";

/// What a `/proc/meminfo` text says, in bytes. `None` is a line that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemInfo {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemFree`: what nothing at all uses, not even the page cache.
    pub free_bytes: Option<u64>,
    /// `MemAvailable`, as it is in the text: the kernel's own estimate of what a new program could have.
    pub available_bytes: Option<u64>,
    /// `Buffers`.
    pub buffers_bytes: Option<u64>,
    /// `Cached`.
    pub cached_bytes: Option<u64>,
    /// `SReclaimable`.
    pub reclaimable_bytes: Option<u64>,
    /// `Shmem`: counted in `Cached`, and not to be had.
    pub shared_bytes: Option<u64>,
    /// `SwapTotal`. Never counted as free: GPU memory cannot be swapped out.
    pub swap_total_bytes: Option<u64>,
    /// `SwapFree`, never above `SwapTotal`.
    pub swap_free_bytes: Option<u64>,
    /// The pool of huge pages, where there is one.
    pub huge_pages: Option<HugePages>,
    /// What was odd about the text.
    pub notes: Vec<MemInfoNote>,
    unaccounted_bytes: Option<u64>,
}

/// A pool of huge pages set aside by the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HugePages {
    /// Pages in the pool.
    pub total: u64,
    /// Pages that are free.
    pub free: u64,
    /// Bytes of one page.
    pub page_bytes: u64,
}

/// Something odd in a text that is still usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemInfoNote {
    /// The last line is cut off in the middle; it was not read.
    #[error("the last line is cut off and was not read: {line:?}")]
    CutLine {
        /// What is left of it.
        line: String,
    },
    /// A key is there twice; the first value counts.
    #[error("{key} stands there more than once; the first value counts")]
    Duplicate {
        /// The key.
        key: &'static str,
    },
    /// More is said to be available than there is, as happens where a container mixes its own total with the host's
    /// figures; the total counts.
    #[error("MemAvailable {} is above MemTotal {}; the total counts", ByteSize(*available_bytes), ByteSize(*total_bytes))]
    AvailableAboveTotal {
        /// `MemAvailable` in bytes.
        available_bytes: u64,
        /// `MemTotal` in bytes.
        total_bytes: u64,
    },
    /// More swap is said to be free than there is, as old emulations do; the total counts.
    #[error("SwapFree is above SwapTotal {}; the total counts", ByteSize(*swap_total_bytes))]
    SwapFreeAboveTotal {
        /// `SwapTotal` in bytes.
        swap_total_bytes: u64,
    },
    /// There is a pool of huge pages, but not how large a page is; the pool was ignored.
    #[error("HugePages_Total is {pages}, but Hugepagesize is not there; the pool was ignored")]
    NoHugePageSize {
        /// Pages in the pool.
        pages: u64,
    },
}

/// A text that cannot be trusted as this machine's memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemInfoError {
    /// The file could not be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's answer.
        reason: String,
    },
    /// It is the file of one NUMA node.
    #[error("this is the meminfo of NUMA node {node} alone, not of the machine; read {PROC_MEMINFO}")]
    NodeFile {
        /// The node, as the text has it.
        node: String,
    },
    /// `MemTotal` is missing or 0, as in a read that began too late.
    #[error("there is no MemTotal: this is not the whole of {PROC_MEMINFO}")]
    NoTotal,
    /// Neither `MemAvailable` nor `MemFree` is there.
    #[error("there is neither MemAvailable nor MemFree: this is not the whole of {PROC_MEMINFO}")]
    NothingFree,
    /// A figure below zero.
    #[error("{key} is negative ({value}): nothing in this text can be trusted")]
    Negative {
        /// The key.
        key: &'static str,
        /// Its value as written.
        value: String,
    },
    /// A figure that is not a whole number.
    #[error("{key} is {value:?}, which is not a whole number")]
    NotANumber {
        /// The key.
        key: &'static str,
        /// Its value as written.
        value: String,
    },
    /// A figure in another unit than kB, which every kernel writes.
    #[error("{key} is {value:?}, which should end in kB")]
    Unit {
        /// The key.
        key: &'static str,
        /// Its value as written.
        value: String,
    },
    /// A figure that does not fit 64 bits once it is in bytes.
    #[error("{key} is {value}, more bytes than 64 bits can count")]
    TooLarge {
        /// The key.
        key: &'static str,
        /// Its value as written.
        value: String,
    },
}

/// How the host's figure was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostFigureKind {
    /// The kernel's `MemAvailable`.
    Available,
    /// Free pages of a pool of huge pages: where there is one, the vendor's rule is that GPU memory comes from it.
    HugeTlb,
    /// `MemFree + Buffers + Cached + SReclaimable − Shmem`, for kernels without `MemAvailable`: a guess.
    Estimate,
}

causes! { MemInfoError: Config }

impl fmt::Display for HostFigureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Available => "MemAvailable",
            Self::HugeTlb => "its free huge pages",
            Self::Estimate => "an estimate from MemFree and caches",
        })
    }
}

/// What the host has to give, without swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostFigure {
    /// Bytes, never above `MemTotal`.
    pub bytes: u64,
    /// How they were come by.
    pub kind: HostFigureKind,
    /// `MemAvailable` beside a figure from huge pages: right for a program that does not take its memory from that pool.
    pub outside_pool_bytes: Option<u64>,
}

impl fmt::Display for HostFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", ByteSize(self.bytes), self.kind)?;
        match self.outside_pool_bytes {
            Some(bytes) => write!(f, " (MemAvailable outside that pool: {})", ByteSize(bytes)),
            None => Ok(()),
        }
    }
}

impl MemInfo {
    /// Reads this machine's. Does not touch the GPU.
    ///
    /// # Errors
    /// All of [`MemInfoError`]; [`Unreadable`](MemInfoError::Unreadable) where there is no such file, as outside Linux.
    pub fn of_this_machine() -> Result<Self, MemInfoError> {
        Self::read(Path::new(PROC_MEMINFO))
    }

    /// Reads a file of the same form.
    ///
    /// # Errors
    /// All of [`MemInfoError`].
    pub fn read(path: &Path) -> Result<Self, MemInfoError> {
        let text = std::fs::read(path).map_err(|error| MemInfoError::Unreadable {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Self::parse(&text)
    }

    /// Reads a text, with either line end.
    ///
    /// A last line that is cut off is not read. Of a key that is there twice the first counts. Lines that nothing
    /// here needs may say what they like.
    ///
    /// ```
    /// use metrale_cuda_backend::memory::MemInfo;
    ///
    /// let text = b"MemTotal: 127601452 kB\nMemFree: 43536875 kB\nMemAvailable: 121267814 kB\n";
    /// let figure = MemInfo::parse(text)?.host_figure()?;
    /// assert_eq!(figure.bytes, 121_267_814 << 10);
    /// # Ok::<(), metrale_cuda_backend::memory::MemInfoError>(())
    /// ```
    ///
    /// # Errors
    /// All of [`MemInfoError`] but [`Unreadable`](MemInfoError::Unreadable).
    pub fn parse(text: &[u8]) -> Result<Self, MemInfoError> {
        let text = String::from_utf8_lossy(text);
        let mut lines = Lines::default();
        for line in text.split_inclusive('\n') {
            lines.take(line)?;
        }
        lines.finish()
    }

    /// What the host has to give.
    ///
    /// # Errors
    /// [`MemInfoError::NothingFree`].
    pub fn host_figure(&self) -> Result<HostFigure, MemInfoError> {
        let available = self.available_bytes.map(|bytes| bytes.min(self.total_bytes));
        if let Some(pool) = self.huge_pages {
            let bytes = pool.free.saturating_mul(pool.page_bytes).min(self.total_bytes);
            return Ok(HostFigure { bytes, kind: HostFigureKind::HugeTlb, outside_pool_bytes: available });
        }
        let (bytes, kind) = match available {
            Some(bytes) => (bytes, HostFigureKind::Available),
            None => (self.estimate_bytes().ok_or(MemInfoError::NothingFree)?, HostFigureKind::Estimate),
        };
        Ok(HostFigure { bytes, kind, outside_pool_bytes: None })
    }

    /// Bytes that no process, cache or kernel structure of the text explains: on an integrated GPU, chiefly what its
    /// driver holds. To be reported, never counted as free. `None` where the text lacks a line for the sum.
    #[must_use]
    pub const fn unaccounted_bytes(&self) -> Option<u64> {
        self.unaccounted_bytes
    }

    fn estimate_bytes(&self) -> Option<u64> {
        let caches = [self.buffers_bytes, self.cached_bytes, self.reclaimable_bytes];
        let sum = caches.into_iter().flatten().fold(self.free_bytes?, u64::saturating_add);
        Some(sum.saturating_sub(self.shared_bytes.unwrap_or(0)).min(self.total_bytes))
    }
}

/// A key that is read.
struct Key {
    name: &'static str,
    /// Whether it counts kB; otherwise it is a plain count.
    is_kb: bool,
    /// Whether a value that makes no sense condemns the text; otherwise the line is as if it were not there.
    decides: bool,
}

const fn kb(name: &'static str) -> Key {
    Key { name, is_kb: true, decides: true }
}

const fn count(name: &'static str) -> Key {
    Key { name, is_kb: false, decides: true }
}

const fn aside(name: &'static str) -> Key {
    Key { name, is_kb: true, decides: false }
}

const KEYS: [Key; 15] = [
    kb("MemTotal"),
    kb("MemFree"),
    kb("MemAvailable"),
    kb("Buffers"),
    kb("Cached"),
    kb("SReclaimable"),
    kb("Shmem"),
    count("HugePages_Total"),
    count("HugePages_Free"),
    kb("Hugepagesize"),
    aside("SwapTotal"),
    aside("SwapFree"),
    aside("AnonPages"),
    aside("KReclaimable"),
    aside("SUnreclaim"),
];

/// The lines read so far.
#[derive(Default)]
struct Lines {
    values: BTreeMap<&'static str, u64>,
    notes: Vec<MemInfoNote>,
}

impl Lines {
    fn take(&mut self, line: &str) -> Result<(), MemInfoError> {
        let is_whole = line.ends_with('\n');
        let line = line.trim();
        if let Some(node) = line.strip_prefix("Node ") {
            let node = node.split_whitespace().next().unwrap_or_default().to_owned();
            return Err(MemInfoError::NodeFile { node });
        }
        // Behind a number that is cut off its unit is missing too. A count has none, so only a line end vouches for it.
        if !is_whole && !line.ends_with(" kB") {
            if !line.is_empty() {
                self.notes.push(MemInfoNote::CutLine { line: line.to_owned() });
            }
            return Ok(());
        }
        let Some((name, value)) = line.split_once(':') else { return Ok(()) };
        let Some(key) = KEYS.iter().find(|key| key.name == name.trim()) else { return Ok(()) };
        match number(key, value.trim()) {
            Ok(number) => {
                if self.values.contains_key(key.name) {
                    self.notes.push(MemInfoNote::Duplicate { key: key.name });
                } else {
                    self.values.insert(key.name, number);
                }
                Ok(())
            }
            Err(error) if key.decides => Err(error),
            Err(_) => Ok(()),
        }
    }

    fn finish(self) -> Result<MemInfo, MemInfoError> {
        let Self { values, mut notes } = self;
        let value = |key| values.get(key).copied();
        let total_bytes = value("MemTotal").filter(|&total| total > 0).ok_or(MemInfoError::NoTotal)?;
        if let Some(available_bytes) = value("MemAvailable").filter(|&bytes| bytes > total_bytes) {
            notes.push(MemInfoNote::AvailableAboveTotal { available_bytes, total_bytes });
        }
        let swap_total_bytes = value("SwapTotal");
        let swap_free_bytes = value("SwapFree").map(|free| match swap_total_bytes {
            Some(swap_total_bytes) if free > swap_total_bytes => {
                notes.push(MemInfoNote::SwapFreeAboveTotal { swap_total_bytes });
                swap_total_bytes
            }
            _ => free,
        });
        let huge_pages = match value("HugePages_Total").filter(|&total| total > 0) {
            None => None,
            Some(total) => match value("Hugepagesize") {
                Some(page_bytes) => {
                    let free = value("HugePages_Free").unwrap_or(0).min(total);
                    Some(HugePages { total, free, page_bytes })
                }
                None => {
                    notes.push(MemInfoNote::NoHugePageSize { pages: total });
                    None
                }
            },
        };
        let explained = ["MemFree", "Cached", "AnonPages", "KReclaimable", "SUnreclaim"];
        let unaccounted_bytes = explained
            .into_iter()
            .try_fold(total_bytes, |left, key| value(key).map(|bytes| left.saturating_sub(bytes)));
        Ok(MemInfo {
            total_bytes,
            free_bytes: value("MemFree"),
            available_bytes: value("MemAvailable"),
            buffers_bytes: value("Buffers"),
            cached_bytes: value("Cached"),
            reclaimable_bytes: value("SReclaimable"),
            shared_bytes: value("Shmem"),
            swap_total_bytes,
            swap_free_bytes,
            huge_pages,
            notes,
            unaccounted_bytes,
        })
    }
}

/// A value in bytes, or a count.
fn number(key: &Key, value: &str) -> Result<u64, MemInfoError> {
    let (key, is_kb) = (key.name, key.is_kb);
    let shown = || value.to_owned();
    let digits = if is_kb {
        let digits = value.strip_suffix("kB").ok_or_else(|| MemInfoError::Unit { key, value: shown() })?;
        digits.trim_end()
    } else {
        value
    };
    if digits.strip_prefix('-').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit())) {
        return Err(MemInfoError::Negative { key, value: shown() });
    }
    // `parse` alone would take a plus sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(MemInfoError::NotANumber { key, value: shown() });
    }
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(if is_kb { 1024 } else { 1 }))
        .ok_or_else(|| MemInfoError::TooLarge { key, value: shown() })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every recorded text, by name.
    pub(crate) const FILES: [(&str, &[u8]); 20] = [
        ("m01_wsl2.txt", include_bytes!("../../tests/data/meminfo/m01_wsl2.txt")),
        ("m02_wsl1_no_available.txt", include_bytes!("../../tests/data/meminfo/m02_wsl1_no_available.txt")),
        (
            "m04_wsl1_swapfree_no_space.txt",
            include_bytes!("../../tests/data/meminfo/m04_wsl1_swapfree_no_space.txt"),
        ),
        ("m05_jetson_nvmap.txt", include_bytes!("../../tests/data/meminfo/m05_jetson_nvmap.txt")),
        ("m07_thor_no_nvmap.txt", include_bytes!("../../tests/data/meminfo/m07_thor_no_nvmap.txt")),
        (
            "m08_gb10_cached_by_write.txt",
            include_bytes!("../../tests/data/meminfo/m08_gb10_cached_by_write.txt"),
        ),
        (
            "m10_gb10_driver_retained.txt",
            include_bytes!("../../tests/data/meminfo/m10_gb10_driver_retained.txt"),
        ),
        ("m11_gb10_hugetlb.txt", include_bytes!("../../tests/data/meminfo/m11_gb10_hugetlb.txt")),
        ("m13_minimal_container.txt", include_bytes!("../../tests/data/meminfo/m13_minimal_container.txt")),
        ("m14_openvz.txt", include_bytes!("../../tests/data/meminfo/m14_openvz.txt")),
        ("m16_openwrt_small.txt", include_bytes!("../../tests/data/meminfo/m16_openwrt_small.txt")),
        (
            "m17_1tb_host_in_container.txt",
            include_bytes!("../../tests/data/meminfo/m17_1tb_host_in_container.txt"),
        ),
        ("m19_numa_node.txt", include_bytes!("../../tests/data/meminfo/m19_numa_node.txt")),
        ("m20_crlf.txt", include_bytes!("../../tests/data/meminfo/m20_crlf.txt")),
        ("m22_no_memtotal.txt", include_bytes!("../../tests/data/meminfo/m22_no_memtotal.txt")),
        (
            "m23_truncated_last_line.txt",
            include_bytes!("../../tests/data/meminfo/m23_truncated_last_line.txt"),
        ),
        ("m25_negative.txt", include_bytes!("../../tests/data/meminfo/m25_negative.txt")),
        ("m26_avail_over_total.txt", include_bytes!("../../tests/data/meminfo/m26_avail_over_total.txt")),
        ("m28_duplicate_key.txt", include_bytes!("../../tests/data/meminfo/m28_duplicate_key.txt")),
        (
            "m29_all_hugepages_none_free.txt",
            include_bytes!("../../tests/data/meminfo/m29_all_hugepages_none_free.txt"),
        ),
    ];

    fn file(name: &str) -> Result<MemInfo, MemInfoError> {
        MemInfo::parse(FILES.iter().find(|file| file.0 == name).unwrap().1)
    }

    fn figure(name: &str) -> HostFigure {
        file(name).unwrap().host_figure().unwrap()
    }

    #[test]
    fn every_recorded_text_gives_its_expected_figure() {
        let table = include_str!("../../tests/data/meminfo/EXPECTED.tsv");
        let mut checked = 0;
        for row in table.lines().filter(|line| !line.starts_with('#') && !line.starts_with("file\t")) {
            let [name, total, free, available, expected, kind, ..] = row.split('\t').collect::<Vec<_>>()[..]
            else {
                panic!("{row}")
            };
            let read = file(name).and_then(|info| info.host_figure().map(|figure| (info, figure)));
            checked += 1;
            if expected == "refuse" {
                assert!(read.is_err(), "{name}: {read:?}");
                continue;
            }
            let (info, figure) = read.unwrap_or_else(|error| panic!("{name}: {error}"));
            let kb = |text: &str| text.parse::<u64>().ok().map(|kb| kb << 10);
            assert_eq!(Some(info.total_bytes), kb(total), "{name}");
            assert_eq!(info.free_bytes, kb(free), "{name}");
            assert_eq!(info.available_bytes, kb(available), "{name}");
            assert_eq!(Some(figure.bytes), kb(expected), "{name}");
            let word = match figure.kind {
                HostFigureKind::Available => "available",
                HostFigureKind::HugeTlb => "hugetlb",
                HostFigureKind::Estimate => "estimate",
            };
            assert_eq!(kind.split(' ').next(), Some(word), "{name}");
        }
        assert_eq!(checked, FILES.len());
    }

    #[test]
    fn what_is_refused_is_refused_for_its_own_reason() {
        assert_eq!(file("m19_numa_node.txt"), Err(MemInfoError::NodeFile { node: "0".into() }));
        assert_eq!(file("m22_no_memtotal.txt"), Err(MemInfoError::NoTotal));
        let negative = MemInfoError::Negative { key: "MemFree", value: "-1048576 kB".into() };
        assert_eq!(file("m25_negative.txt"), Err(negative));
        assert_eq!(MemInfo::parse(b""), Err(MemInfoError::NoTotal));
        assert_eq!(MemInfo::parse(b"MemTotal: 0 kB\n"), Err(MemInfoError::NoTotal));
        let only_total = MemInfo::parse(b"MemTotal: 8 kB\n").unwrap();
        assert_eq!(only_total.host_figure(), Err(MemInfoError::NothingFree));
        let value = |text: &str| MemInfo::parse(format!("MemTotal: 8 kB\nMemAvailable: {text}\n").as_bytes());
        let key = "MemAvailable";
        for (text, expected) in [
            ("+5 kB", MemInfoError::NotANumber { key, value: "+5 kB".into() }),
            ("5.5 kB", MemInfoError::NotANumber { key, value: "5.5 kB".into() }),
            ("kB", MemInfoError::NotANumber { key, value: "kB".into() }),
            ("- kB", MemInfoError::NotANumber { key, value: "- kB".into() }),
            ("5", MemInfoError::Unit { key, value: "5".into() }),
            ("5 MB", MemInfoError::Unit { key, value: "5 MB".into() }),
            ("", MemInfoError::Unit { key, value: String::new() }),
            ("18014398509481984 kB", MemInfoError::TooLarge { key, value: "18014398509481984 kB".into() }),
            (
                "99999999999999999999 kB",
                MemInfoError::TooLarge { key, value: "99999999999999999999 kB".into() },
            ),
        ] {
            assert_eq!(value(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn oddities_are_noted() {
        let notes = |name: &str| file(name).unwrap().notes;
        assert_eq!(
            notes("m23_truncated_last_line.txt"),
            [MemInfoNote::CutLine { line: "MemAvailable:   11158".into() }]
        );
        assert_eq!(notes("m28_duplicate_key.txt"), [MemInfoNote::Duplicate { key: "MemAvailable" }]);
        assert_eq!(
            notes("m26_avail_over_total.txt"),
            [MemInfoNote::AvailableAboveTotal {
                available_bytes: 880_426_716 << 10,
                total_bytes: 2_097_152 << 10
            }]
        );
        // 18,014,393,644,749,232 kB fits 64 bits by a hair and must not be added to anything.
        let swap = file("m04_wsl1_swapfree_no_space.txt").unwrap();
        assert_eq!(swap.swap_free_bytes, Some(789_541_600 << 10));
        assert_eq!(swap.notes, [MemInfoNote::SwapFreeAboveTotal { swap_total_bytes: 789_541_600 << 10 }]);
        for quiet in ["m01_wsl2.txt", "m05_jetson_nvmap.txt", "m20_crlf.txt"] {
            assert_eq!(notes(quiet), [], "{quiet}");
        }
        let pool = b"MemTotal: 8 kB\nMemAvailable: 4 kB\nHugePages_Total: 3\n";
        let info = MemInfo::parse(pool).unwrap();
        assert_eq!(info.notes, [MemInfoNote::NoHugePageSize { pages: 3 }]);
        assert_eq!(info.host_figure().unwrap().kind, HostFigureKind::Available);
    }

    #[test]
    fn a_pool_of_huge_pages_keeps_the_other_figure_beside_it() {
        assert_eq!(figure("m11_gb10_hugetlb.txt").outside_pool_bytes, Some(90_000_000 << 10));
        assert_eq!(figure("m29_all_hugepages_none_free.txt").outside_pool_bytes, Some(1_500_000 << 10));
        let text = figure("m11_gb10_hugetlb.txt").to_string();
        assert!(text.contains("24.00 GiB by its free huge pages") && text.contains("85.83 GiB"), "{text}");
        // A pool that claims more than the machine has, and more free pages than it holds.
        let pool = b"MemTotal: 8 kB\nMemFree: 1 kB\nHugePages_Total: 9\nHugePages_Free: 18446744073709551615\nHugepagesize: 4 kB\n";
        assert_eq!(MemInfo::parse(pool).unwrap().host_figure().unwrap().bytes, 8 << 10);
    }

    #[test]
    fn what_the_driver_keeps_without_a_process_is_unaccounted_not_free() {
        let info = file("m10_gb10_driver_retained.txt").unwrap();
        let kb = 127_600_816 - 3_139_656 - 37_694_160 - 1_712_244 - 477_572 - 520_360;
        assert_eq!(info.unaccounted_bytes(), Some(kb << 10)); // 80.2 GiB
        assert_eq!(info.host_figure().unwrap().bytes, 40_174_336 << 10);
        assert_eq!(file("m01_wsl2.txt").unwrap().unaccounted_bytes(), None);
    }

    #[test]
    fn a_last_line_without_its_line_end_counts_only_with_its_unit() {
        let read = |last: &str| MemInfo::parse(format!("MemTotal: 8 kB\n{last}").as_bytes()).unwrap();
        assert_eq!(read("MemFree: 5 kB").free_bytes, Some(5 << 10));
        for cut in ["MemFree: 5 k", "MemFree: 5", "MemFree:", "MemF", "HugePages_Total: 1"] {
            let info = read(cut);
            assert_eq!((info.free_bytes, info.huge_pages, info.notes.len()), (None, None, 1), "{cut}");
        }
    }

    #[test]
    fn no_text_makes_it_panic_or_promise_more_than_the_total() {
        use proptest::prelude::*;
        let line = (0..KEYS.len(), any::<u64>(), "( kB|kB| MB|)", "(\n|\r\n|)").prop_map(
            |(key, value, unit, end)| format!("{}: {}{unit}{end}", KEYS[key].name, value >> (value % 64)),
        );
        let text = prop_oneof![
            proptest::collection::vec(line, 0..20).prop_map(|lines| lines.concat().into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..200),
        ];
        proptest!(|(text in text)| {
            if let Ok(info) = MemInfo::parse(&text)
                && let Ok(figure) = info.host_figure()
            {
                prop_assert!(figure.bytes <= info.total_bytes);
                prop_assert!(figure.outside_pool_bytes.is_none_or(|bytes| bytes <= info.total_bytes));
            }
        });
    }
}

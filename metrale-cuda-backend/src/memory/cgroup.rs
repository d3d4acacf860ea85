// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory limit of this process's control group: it bounds host and pinned memory.
//!
//! On integrated GPUs device memory is not charged to the group, so the limit says nothing about the device's free
//! memory; it is shown beside it and never lowers it.

use core::fmt;
use std::path::{Path, PathBuf};

use metrale_ledger::ByteSize;

/// Where both versions keep their files.
const MOUNT: &str = "/sys/fs/cgroup";

/// From here on a number means no limit: version 1 writes the largest whole number of pages in 63 bits, whatever the
/// size of a page (up to 64 KiB).
const UNLIMITED_FROM: u64 = (i64::MAX as u64) & !0xffff;

/// A limit of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CgroupLimit {
    /// At most so many bytes.
    Bytes(u64),
    /// None.
    Unlimited,
}

/// A `memory.max` that is neither a number nor `max`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a control group's limit is {text:?}, which is neither a number of bytes nor the word max")]
pub struct NotALimit {
    /// The text.
    pub text: String,
}

impl CgroupLimit {
    /// Reads the text of `memory.max` (version 2) or `memory.limit_in_bytes` (version 1).
    ///
    /// ```
    /// use metrale_cuda_backend::memory::CgroupLimit;
    /// assert_eq!(CgroupLimit::parse("max\n"), Ok(CgroupLimit::Unlimited));
    /// assert_eq!(CgroupLimit::parse("8589934592\n"), Ok(CgroupLimit::Bytes(8 << 30)));
    /// ```
    ///
    /// # Errors
    /// [`NotALimit`] with the text.
    pub fn parse(text: &str) -> Result<Self, NotALimit> {
        let word = text.trim();
        if word == "max" {
            return Ok(Self::Unlimited);
        }
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        match word.parse::<u64>() {
            Ok(bytes) if is_number && bytes < UNLIMITED_FROM => Ok(Self::Bytes(bytes)),
            // A number beyond 64 bits limits nothing either.
            _ if is_number => Ok(Self::Unlimited),
            _ => Err(NotALimit { text: text.to_owned() }),
        }
    }

    /// The limit of this process: the tightest of its group and those above it. `None` where the system has no such
    /// groups, or does not tell.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::tightest(&groups, |path| std::fs::read_to_string(path).ok())
    }

    /// The bytes, where there is a limit.
    #[must_use]
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Unlimited => None,
        }
    }

    /// The tightest limit on the way from the groups that the text of `/proc/self/cgroup` names up to the top. A group
    /// above may be the tighter one, and inside a container only the top may be visible.
    fn tightest(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<Self> {
        let own = groups.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            if number == "0" && controllers.is_empty() {
                Some((PathBuf::from(MOUNT), path, "memory.max"))
            } else if controllers.split(',').any(|controller| controller == "memory") {
                Some((Path::new(MOUNT).join("memory"), path, "memory.limit_in_bytes"))
            } else {
                None
            }
        });
        own.flat_map(|(mount, path, file)| {
            let inside = path.trim_start_matches('/');
            let levels: Vec<PathBuf> =
                Path::new(inside).ancestors().map(|level| mount.join(level).join(file)).collect();
            levels
        })
        .filter_map(|file| Self::parse(&read(&file)?).ok())
        .min()
    }
}

impl fmt::Display for CgroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => ByteSize(*bytes).fmt(f),
            Self::Unlimited => f.write_str("no limit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_is_text_and_huge_numbers_are_no_limit() {
        for unlimited in [
            "max",
            "max\n",
            "9223372036854771712", // version 1, pages of 4 KiB
            "9223372036854710272", // pages of 64 KiB
            "18446744073709551615",
            "99999999999999999999999",
        ] {
            assert_eq!(CgroupLimit::parse(unlimited), Ok(CgroupLimit::Unlimited), "{unlimited}");
        }
        assert_eq!(CgroupLimit::parse("0\n"), Ok(CgroupLimit::Bytes(0)));
        assert_eq!(CgroupLimit::parse(" 8589934592 \n"), Ok(CgroupLimit::Bytes(8_589_934_592)));
        for wrong in ["", "-1", "+1", "Max", "8G", "0x10", "1 2"] {
            let error = CgroupLimit::parse(wrong).unwrap_err();
            assert_eq!(error.text, wrong);
        }
    }

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "4096\n"),
            ("/sys/fs/cgroup/memory.max", "8192\n"),
            ("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let limit = |groups: &str| {
            CgroupLimit::tightest(groups, |path| {
                files.iter().find(|file| Path::new(file.0) == path).map(|file| file.1.to_owned())
            })
        };
        assert_eq!(limit("0::/a/b\n"), Some(CgroupLimit::Bytes(4096)));
        // In a container the path is that of the host, and only the top is there.
        assert_eq!(limit("0::/elsewhere/x\n"), Some(CgroupLimit::Bytes(8192)));
        assert_eq!(limit("0::/\n"), Some(CgroupLimit::Bytes(8192)));
        assert_eq!(limit("7:cpu,memory:/c\n6:cpuset:/a\n"), Some(CgroupLimit::Unlimited));
        for nothing in ["", "5:cpu:/a\n", "nonsense", "0:", "7:memory:/gone\n"] {
            assert_eq!(limit(nothing), None, "{nothing}");
        }
    }
}

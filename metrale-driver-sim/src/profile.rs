// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Profile`]: which device the software driver plays, and how strictly.
//!
//! `h200` carries the figures measured on an NVIDIA H200 with driver 580.159.04. The others have the architecture facts
//! of their class and round sizes; their context size is the H200's because theirs was not measured.

use core::fmt;
use core::str::FromStr;

use metrale_ledger::placement::PackingRule;

/// When a copy between the device and pageable host memory is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageableCopies {
    /// As drivers are seen to do it: a device-to-host copy into pageable memory, and a blocking host-to-device copy, are
    /// done when the call returns. An asynchronous host-to-device copy has its source staged at the return and reaches
    /// the device late.
    #[default]
    AtReturn,
    /// As late as the driver's reference allows: a blocking host-to-device copy is staged at the return and reaches the
    /// device in legacy-stream order, so that a non-blocking stream can miss it; an asynchronous device-to-host copy
    /// has written nothing before its stream is synchronized.
    Late,
}

/// What a launch of a kernel answers for which no Rust function is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKernel {
    /// Status 801 (not supported), and a diagnostic that names the entry and how to register it.
    #[default]
    Refuse,
    /// Success; the kernel does nothing and the diagnostic is kept all the same.
    Ignore,
}

/// Which addresses a kernel may touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelBounds {
    /// Only bytes of live allocations; anything else is the sticky fault 700. Stricter than hardware, which cannot see
    /// a stray write that stays inside a page in use.
    #[default]
    Allocation,
    /// Every byte of a 2 MiB page in use, as on hardware.
    Page,
}

/// One software device. Start from [`h200`](Self::h200) and its siblings or [`custom`](Self::custom) and change what
/// matters with the `with_` methods.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// The profile's own short name, as [`FromStr`] takes it for the built-in ones.
    pub name: String,
    /// What `cuDeviceGetName` answers.
    pub device_name: String,
    /// Device memory in bytes.
    pub total_bytes: u64,
    /// What the primary context takes off the free figure, in bytes.
    pub context_bytes: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Whether the device shares the host's memory.
    pub integrated: bool,
    /// What `cuDriverGetVersion` answers: 1000 × major + 10 × minor.
    pub driver_version: i32,
    /// Whether this plays SCALE's driver, which lacks `cuStreamIsCapturing`.
    pub scale: bool,
    /// Shared memory a block may use after opting in, in bytes.
    pub shared_optin_bytes: u32,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_per_multiprocessor_bytes: u32,
    /// Threads a multiprocessor holds at once.
    pub threads_per_multiprocessor: u32,
    /// The second-level cache, in bytes.
    pub l2_cache_bytes: u32,
    /// How allocations are packed into pages.
    pub packing: PackingRule,
    /// The byte that device memory shows where nothing was ever written. 0xFF reads as NaN in every floating-point
    /// format and as -1 in integers, so that a read of memory that was never written spreads visibly.
    pub fresh_byte: u8,
    /// When copies with pageable host memory are done.
    pub pageable_copies: PageableCopies,
    /// What a launch without a registered function answers.
    pub missing_kernel: MissingKernel,
    /// Which addresses kernels may touch.
    pub kernel_bounds: KernelBounds,
}

impl Profile {
    /// The names that [`FromStr`] knows.
    pub const NAMES: &'static [&'static str] = &["h200", "gb10", "rtx", "scale"];

    /// An NVIDIA H200 as measured: discrete, compute capability 9.0, 132 SMs, 150,109,880,320 bytes.
    #[must_use]
    pub fn h200() -> Self {
        Self {
            name: "h200".into(),
            device_name: "NVIDIA H200".into(),
            total_bytes: 150_109_880_320,
            context_bytes: 552_402_944,
            multiprocessors: 132,
            compute_capability: (9, 0),
            integrated: false,
            driver_version: 13_000,
            scale: false,
            shared_optin_bytes: 227 << 10,
            shared_per_multiprocessor_bytes: 228 << 10,
            threads_per_multiprocessor: 2048,
            l2_cache_bytes: 62_914_560,
            packing: PackingRule::H200,
            fresh_byte: 0xFF,
            pageable_copies: PageableCopies::default(),
            missing_kernel: MissingKernel::default(),
            kernel_bounds: KernelBounds::default(),
        }
    }

    /// A GB10: integrated, compute capability 12.1, 48 SMs, 120 GiB.
    #[must_use]
    pub fn gb10() -> Self {
        Self {
            name: "gb10".into(),
            device_name: "NVIDIA GB10".into(),
            total_bytes: 120 << 30,
            multiprocessors: 48,
            compute_capability: (12, 1),
            integrated: true,
            shared_optin_bytes: 99 << 10,
            shared_per_multiprocessor_bytes: 100 << 10,
            threads_per_multiprocessor: 1536,
            l2_cache_bytes: 24 << 20,
            ..Self::h200()
        }
    }

    /// A desktop RTX card: discrete, compute capability 8.9, 128 SMs, 24 GiB.
    #[must_use]
    pub fn rtx() -> Self {
        Self {
            name: "rtx".into(),
            device_name: "NVIDIA GeForce RTX 4090".into(),
            total_bytes: 24 << 30,
            multiprocessors: 128,
            compute_capability: (8, 9),
            shared_optin_bytes: 99 << 10,
            shared_per_multiprocessor_bytes: 100 << 10,
            threads_per_multiprocessor: 1536,
            l2_cache_bytes: 72 << 20,
            ..Self::h200()
        }
    }

    /// SCALE's driver on an integrated GPU of 96 GiB: `cuStreamIsCapturing` is missing and answers 801.
    #[must_use]
    pub fn scale() -> Self {
        Self {
            name: "scale".into(),
            device_name: "SCALE integrated GPU".into(),
            total_bytes: 96 << 30,
            multiprocessors: 40,
            compute_capability: (8, 6),
            integrated: true,
            driver_version: 12_010,
            scale: true,
            shared_optin_bytes: 64 << 10,
            shared_per_multiprocessor_bytes: 64 << 10,
            ..Self::h200()
        }
    }

    /// A device of your own: an H200 in everything but the name, `total_bytes` and what you change afterwards.
    #[must_use]
    pub fn custom(name: impl Into<String>, total_bytes: u64) -> Self {
        let name = name.into();
        Self { device_name: name.clone(), name, total_bytes, ..Self::h200() }
    }

    /// Memory size in bytes.
    #[must_use]
    pub fn with_total_bytes(self, total_bytes: u64) -> Self {
        Self { total_bytes, ..self }
    }

    /// Context size in bytes.
    #[must_use]
    pub fn with_context_bytes(self, context_bytes: u64) -> Self {
        Self { context_bytes, ..self }
    }

    /// Number of SMs.
    #[must_use]
    pub fn with_multiprocessors(self, multiprocessors: u32) -> Self {
        Self { multiprocessors, ..self }
    }

    /// Compute capability, which also decides which modules load.
    #[must_use]
    pub fn with_compute_capability(self, major: u32, minor: u32) -> Self {
        Self { compute_capability: (major, minor), ..self }
    }

    /// Whether the device shares the host's memory.
    #[must_use]
    pub fn with_integrated(self, integrated: bool) -> Self {
        Self { integrated, ..self }
    }

    /// Driver version (13000 is 13.0), which also decides which PTX versions load.
    #[must_use]
    pub fn with_driver_version(self, driver_version: i32) -> Self {
        Self { driver_version, ..self }
    }

    /// Whether `cuStreamIsCapturing` is missing, as on SCALE's driver.
    #[must_use]
    pub fn with_scale(self, scale: bool) -> Self {
        Self { scale, ..self }
    }

    /// The byte that memory shows where nothing was written.
    #[must_use]
    pub fn with_fresh_byte(self, fresh_byte: u8) -> Self {
        Self { fresh_byte, ..self }
    }

    /// When copies with pageable host memory are done.
    #[must_use]
    pub fn with_pageable_copies(self, pageable_copies: PageableCopies) -> Self {
        Self { pageable_copies, ..self }
    }

    /// What a launch without a registered function answers.
    #[must_use]
    pub fn with_missing_kernel(self, missing_kernel: MissingKernel) -> Self {
        Self { missing_kernel, ..self }
    }

    /// Which addresses kernels may touch.
    #[must_use]
    pub fn with_kernel_bounds(self, kernel_bounds: KernelBounds) -> Self {
        Self { kernel_bounds, ..self }
    }
}

impl Default for Profile {
    /// The H200.
    fn default() -> Self {
        Self::h200()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

/// A name that is no built-in profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProfile {
    /// The name as given.
    pub name: String,
}

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no profile of the software driver; the profiles are {}",
            self.name,
            Profile::NAMES.join(", ")
        )
    }
}

impl core::error::Error for UnknownProfile {}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "h200" => Ok(Self::h200()),
            "gb10" => Ok(Self::gb10()),
            "rtx" => Ok(Self::rtx()),
            "scale" => Ok(Self::scale()),
            _ => Err(UnknownProfile { name: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_parses_to_the_profile_that_shows_it() {
        for &name in Profile::NAMES {
            assert_eq!(name.parse::<Profile>().map(|profile| profile.to_string()), Ok(name.to_owned()));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let text = "H100".parse::<Profile>().unwrap_err().to_string();
        assert!(text.contains("\"H100\"") && text.contains("h200, gb10, rtx, scale"), "{text}");
    }

    #[test]
    fn the_classes_are_those_of_the_contract() {
        let facts = |p: Profile| (p.integrated, p.compute_capability);
        assert_eq!(facts(Profile::h200()), (false, (9, 0)));
        assert_eq!(facts(Profile::gb10()), (true, (12, 1)));
        assert_eq!(facts(Profile::rtx()), (false, (8, 9)));
        assert!(Profile::scale().scale);
        let h200 = Profile::h200();
        assert_eq!((h200.total_bytes, h200.multiprocessors), (150_109_880_320, 132));
        assert_eq!(h200.total_bytes - h200.context_bytes, 149_557_477_376);
    }
}

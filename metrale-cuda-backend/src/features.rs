// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which Cargo features are on; with `parts.rs`, which has the files that they bring, the only one that asks. No signature
//! elsewhere depends on a feature.

/// Whether allocations are written into the ledger; without it the ledger stays empty and the reads answer zero.
pub(crate) const KEEPS_LEDGER: bool = cfg!(feature = "ledger");

/// Whether spans are timed; without it every span is inert.
pub(crate) const TIMES_SPANS: bool = cfg!(feature = "timing");

/// Whether allocations may have red zones; without it a backend that is asked for them is not built, and scans find none.
pub(crate) const HAS_REDZONE: bool = cfg!(feature = "redzone");

/// Whether the watchdog can be started; without it starting one is refused.
pub(crate) const HAS_WATCHDOG: bool = cfg!(feature = "watchdog");

/// Whether tensor maps can be encoded; without it encoding one is refused, and checking one is not.
pub(crate) const HAS_TENSORMAP: bool = cfg!(feature = "tensormap");

/// Whether captures can be begun; without it there are no graphs, and every method that is about them says so.
pub(crate) const MAKES_GRAPHS: bool = cfg!(feature = "graph");

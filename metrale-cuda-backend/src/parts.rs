// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that Cargo features bring.

/// Where cudarc's allocations come in.
#[cfg(feature = "cudarc")]
#[path = "cudarc.rs"]
mod adopted;
#[cfg(feature = "cudarc")]
pub use adopted::{AdoptError, Adopted};

#[cfg(feature = "sim")]
pub use software::{Profile, SimDriver};

/// Where the driver in software comes in.
#[cfg(feature = "sim")]
#[path = "software.rs"]
mod software;

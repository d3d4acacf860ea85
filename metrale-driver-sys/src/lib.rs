// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CUDA driver API for Rust: every function declared once, found at run time, behind an object-safe trait.
//!
//! ```text
//!   for_each_driver_function!          the one list
//!        |        |         |
//!   DriverApi   FnTable   DriverFn     trait, run-time table, names
//!        ^        |
//!        |   libcuda.so.1              found when the program runs; nothing is linked
//!   a driver in software               the same trait, implemented by another crate
//! ```
//!
//! A program that uses this crate builds and starts on a machine without CUDA; [`system`] then says which paths were
//! tried and what to install. Handles and device addresses are plain 64-bit numbers and statuses plain integers, so
//! that nothing a newer driver answers is lost.
//!
//! # What it is not
//! Safe, complete or opinionated. It declares what the layers above call, checks nothing and owns nothing: a method of
//! [`DriverApi`] is the C function of that name.
//!
//! # Example
//! ```
//! use metrale_driver_sys::{DriverFn, check, system};
//!
//! match system() {
//!     Ok(driver) => {
//!         let mut version = 0;
//!         // SAFETY: the result pointer is a local.
//!         let status = unsafe { driver.cuDriverGetVersion(&mut version) };
//!         check(DriverFn::cuDriverGetVersion, status)?;
//!         println!("{} speaks CUDA {}.{}", driver.source(), version / 1000, version % 1000 / 10);
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! # Ok::<(), metrale_driver_sys::DriverError>(())
//! ```
//!
//! # Features
//! * `link`: declare the functions as `extern "C"` and link `-lcuda` (adds `FnTable::linked`).
//! * `metrale_scale`: build for AMD's SCALE toolchain; also on where the environment variable `METRALE_TARGET_HW`
//!   starts with `strix` at build time. `cuStreamIsCapturing` is then not declared at all, and graphs are instantiated
//!   with `cuGraphInstantiate`.
#![allow(non_camel_case_types, reason = "types keep the C spelling")]

#[macro_use]
mod functions;

mod api;
mod consts;
pub mod image;
#[cfg(feature = "link")]
pub mod link;
mod loader;
mod result;
mod table;
mod types;
mod variant;

pub use api::{DriverApi, DriverFn, MISSING_FUNCTION, UnknownFunction};
pub use consts::*;
pub use loader::{LoadError, SEARCH_ORDER, system};
pub use result::*;
pub use table::FnTable;
pub use types::*;
pub use variant::{SCALE, graph_instantiate, stream_capture_status};

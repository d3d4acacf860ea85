// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel modules loaded into the process's context for a GPU: look-up, launch, globals, unload.
//!
//! ```text
//!   MetraleRegistry  ──┐   a model's modules, loaded afresh, unloaded with the last Arc
//!   MetraleRegistry  ──┤
//!                      v
//!                  CudaHost    one a driver and device: primary context, one stream, device facts
//!                      |
//!                  DriverApi   the system's driver, or any other
//! ```
//!
//! What the driver leaves open is settled here: images are told apart and looked at before the driver sees them (a
//! fatbin whose sizes point past its data keeps a driver busy for ever), a module that does not load says why in the
//! compiler's own words, a name that is not there brings the nearest that are, and what cannot be released at the
//! end is told instead of dropped.
//!
//! # What it is not
//! It allocates no device memory, keeps no books and knows no policy: whether a device runs a target, and which
//! kernels a model must have, is for the layers above.
//!
//! # Features
//! * `cudarc` (off): `CudaHost::cudarc_context` and its kin, the same primary context and stream as cudarc objects.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use metrale_driver_sim::{Profile, SimDriver};
//! use metrale_registry::MetraleRegistry;
//!
//! static PTX: &[u8] = b".version 6.0
//! .target sm_70
//! .address_size 64
//! .global .align 4 .u32 steps = 7;
//! .visible .entry wake() { ret; }
//! ";
//!
//! // `MetraleRegistry::load(0, ...)` is the same on the system's driver.
//! let driver = Arc::new(SimDriver::new(Profile::h200()));
//! let registry = MetraleRegistry::load_with(driver, 0, &[("demo", PTX)])?;
//!
//! let (_address, bytes) = registry.device_symbol("demo", "steps")?;
//! assert_eq!(bytes, 4);
//! assert_eq!(registry.module_names(), ["demo"]);
//! assert_eq!(registry.modules()[0].target.as_deref(), Some("sm_70"));
//! # Ok::<(), metrale_registry::RegistryError>(())
//! ```

mod advice;
#[cfg(feature = "cudarc")]
mod cudarc;
mod current;
mod device;
mod error;
mod host;
mod image;
mod launch;
mod module;
mod nearest;
mod registry;
mod teardown;
mod visible_devices;

pub use advice::{advice, is_teardown_noop};
#[cfg(feature = "cudarc")]
pub use cudarc::CudarcError;
pub use current::CurrentContext;
pub use device::{DeviceFacts, device_count};
pub use error::{ModuleLoadError, RegistryError, ReleaseError};
pub use host::{CudaHost, HostError};
pub use image::{ImageError, ImageNote};
pub use launch::{LaunchError, LaunchExcess};
pub use metrale_driver_sys::image::{ImageKind, arch::ComputeCapability, arch::IsaVersion};
pub use module::ModuleInfo;
pub use registry::{LookUp, LookUpObserver, MetraleRegistry};
pub use teardown::{Resource, TeardownError, TeardownSink};
pub use visible_devices::VisibleDevices;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CUDA driver in software: a second implementation of [`DriverApi`](driver_sys::DriverApi), in process, with no GPU.
//!
//! ```text
//!   your code --> Arc<dyn DriverApi> --> TraceDriver --> FaultDriver --> SimDriver    or the installed driver
//!                                        a call log      failures on       |
//!                                                        demand          model: memory, streams, events, captures,
//!                                                                        graphs, modules, kernels as Rust functions
//! ```
//!
//! It is where an engine runs when there is no GPU, and where a test provokes what hardware shows once a year. Memory
//! follows the packing rule measured on an H200: the free figure after every call, the address inside a 2 MiB page and
//! the status codes are the hardware's, and the tests of this crate run the same bodies on both. Memory pools
//! (`cuMemAllocAsync`) follow the pool rule measured there, and virtual memory (`cuMemCreate`, `cuMemMap`) answers as it does there.
//! Instances share nothing, so tests run in parallel.
//!
//! # What it is for
//! * **Wrong order shows.** Streams run late (only when a call waits), so a missing synchronization reads old data,
//!   always. [`PageableCopies::Late`] goes as far as the driver's reference allows.
//! * **Wrong addresses show.** A kernel that touches a byte of no live allocation loses the context with 700, where
//!   hardware notices only what leaves the page. Fresh memory reads as NaN.
//! * **Leaks have names.** [`SimDriver::leaks`] lists memory, pools, address ranges, modules, streams, events, graphs
//!   and contexts.
//! * **Failures on demand.** [`FaultDriver`] fails the nth call, every call, by size, by total, by seeded chance, or permanently;
//!   [`TraceDriver`] logs calls. Both wrap any driver.
//! * **Size costs nothing.** Only written bytes take host memory: 90 GB allocated and zeroed cost megabytes.
//!
//! # What it is not
//! It runs no PTX: a kernel does what the Rust function says that was registered for it
//! ([`SimDriver::register_kernel`]), and a launch without one is refused and explained by [`SimDriver::diagnostics`].
//! It has no notion of speed: event times are synthetic. Copies are done under one lock.
//!
//! # Measured or modelled
//! Measured on an H200 with driver 580.159.04 and held to it by tests: allocation, statuses, captures, module loading,
//! tensor maps, the end of a context, memory pools, and the free figure for contexts, streams, module globals, graphs, managed and virtual
//! memory at the points that were measured. Modelled, because it was not measured: the free figure between and beyond those points,
//! use of a destroyed handle (400 here; a real driver may crash), and what devices other than the H200 answer. The
//! file `MEASURED.md` of this crate says of each answer which it is.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use metrale_driver_sim::{ContextGuard, Profile, SimDriver, driver_sys::DriverApi};
//!
//! let sim = SimDriver::new(Profile::h200());
//! let driver: Arc<dyn DriverApi> = Arc::new(sim.clone());
//! {
//!     let context = ContextGuard::new(&driver, 0)?;
//!     let mut address = 0;
//!     // SAFETY: the result pointer is a local.
//!     assert_eq!(unsafe { driver.cuMemAlloc_v2(&mut address, 5_000_000) }, 0);
//!     let (free, _) = context.memory_info()?;
//!     assert_eq!(free, 149_557_477_376 - (6 << 20));
//! }
//! assert_eq!(sim.leaks().memory_bytes(), 5_000_000);
//! # Ok::<(), metrale_driver_sim::driver_sys::DriverError>(())
//! ```

mod adaptor;
mod driver;
mod leaks;
mod model;
mod profile;
mod testing;
mod thread;

/// The declarations that this crate implements, so that macros and users need no second dependency.
pub use metrale_driver_sys as driver_sys;

pub use adaptor::{FaultDriver, InjectedFault, TraceArgument, TraceCall, TraceDriver, first_difference};
pub use driver::{SimDriver, SimDriverBuilder};
pub use leaks::{LeakedContext, LeakedHandle, LeakedMemory, Leaks, MemoryKind};
pub use model::kernel::{DeviceValue, KernelFault, KernelLaunch};
pub use model::tensor_map::TiledMap;
pub use profile::{KernelBounds, MissingKernel, PageableCopies, Profile, UnknownProfile};
pub use testing::{ContextGuard, system_driver};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

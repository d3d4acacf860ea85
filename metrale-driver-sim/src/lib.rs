// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CUDA driver in software: a second implementation of DriverApi that needs no GPU.

mod adaptor;
mod driver;
mod leaks;
mod model;
mod profile;
mod testing;
mod thread;

pub use metrale_driver_sys as driver_sys;

pub use adaptor::{FaultDriver, InjectedFault, TraceArgument, TraceCall, TraceDriver, first_difference};
pub use driver::{SimDriver, SimDriverBuilder};
pub use leaks::{LeakedContext, LeakedHandle, LeakedMemory, Leaks, MemoryKind};
pub use model::kernel::{DeviceValue, KernelFault, KernelLaunch};
pub use model::tensor_map::TiledMap;
pub use profile::{KernelBounds, MissingKernel, PageableCopies, Profile, UnknownProfile};
pub use testing::{ContextGuard, system_driver};

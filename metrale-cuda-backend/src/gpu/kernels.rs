// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuKernels`].

use core::ffi::c_void;
use std::sync::Arc;

use metrale_registry::MetraleRegistry;
use metrale_telemetry::KernelAudit;

use crate::error::Result;
use crate::kernel_launch::KernelLaunch;
use crate::raw_handles::{DevicePtr, KernelHandle, StreamHandle};
use crate::tensormap::{TensorMap, TensorMapSpec};

/// Kernels: look-ups in the loaded modules, launches, and tensor maps for their arguments.
pub trait GpuKernels: Send + Sync {
    /// The kernel `function` of the module `module`, noted in the kernel audit under the caller's line. Cached: resolve
    /// once, keep the handle.
    ///
    /// # Errors
    /// The registry's, naming what there is instead; [`NTileError`](crate::NTileError) where the tile width that the kernel
    /// publishes is no 32-bit number. Once the audit is sealed, a kernel that is not there ends the
    /// process unless the seal allows it.
    #[track_caller]
    fn kernel(&self, module: &str, function: &str) -> Result<KernelHandle>;

    /// As [`kernel`](Self::kernel), for a kernel the caller can do without: `None` where it is not there.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says; an absent module or function is no error.
    #[track_caller]
    fn optional_kernel(&self, module: &str, function: &str) -> Result<Option<KernelHandle>>;

    /// The tile width that a kernel publishes in a global `<entry>_n_tile`, read once when the kernel was looked up; `None`
    /// where it publishes none, or where this backend did not look it up. Does not block; allowed during a capture.
    fn n_tile(&self, kernel: KernelHandle) -> Option<u32>;

    /// Address and size in bytes of a global of a module. Not on the ledger: it belongs to the module.
    ///
    /// # Errors
    /// The registry's, where module or symbol is not there.
    fn device_symbol(&self, module: &str, symbol: &str) -> Result<(DevicePtr, usize)>;

    /// Launches a kernel in the order of `stream`. Does not block, unless
    /// [`debug_sync_kernels`](crate::BackendConfig::debug_sync_kernels) is on. Recorded by a capture.
    /// [`KernelLaunch`](crate::KernelLaunch) is the typed way.
    ///
    /// # Errors
    /// [`LaunchError`](crate::LaunchError) with kernel, grid, block, shared memory and what was asked too much;
    /// [`KernelFault`](crate::KernelFault) where `debug_sync_kernels` is on and the kernel failed;
    /// [`BadArgument`](crate::BadArgument) for fewer `params` than the kernel's image says it takes.
    ///
    /// # Safety
    /// `kernel` is of this backend: [`kernel`](Self::kernel) returned it. `params` must hold one pointer for each of the
    /// kernel's parameters, in order, each to a readable value of that parameter's size; they are read before the call
    /// returns. What the kernel does with them must be sound: device addresses valid, and live until `stream` has passed the
    /// launch (and, if it was captured, for as long as the graph is launched: what is not pinned is the caller's to keep).
    #[allow(clippy::too_many_arguments, reason = "a launch is these seven things in the driver too")]
    unsafe fn launch(
        &self,
        kernel: KernelHandle,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: StreamHandle,
        params: &mut [*mut c_void],
    ) -> Result<()>;

    /// Launches a kernel with typed arguments in the order of `stream`; what [`KernelLaunch::on_stream`] calls. Otherwise
    /// as [`launch`](Self::launch).
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// As [`KernelLaunch::on_stream`].
    unsafe fn launch_typed(&self, launch: &mut KernelLaunch, stream: StreamHandle) -> Result<()>;

    /// The modules.
    fn registry(&self) -> &Arc<MetraleRegistry>;

    /// The modules, under the name that engines of the original design call: [`registry`](Self::registry). Look-ups through it
    /// are audited as [`kernel`](Self::kernel)'s are.
    fn kernel_registry(&self) -> &Arc<MetraleRegistry>;

    /// The audit of this backend's modules and look-ups alone. The process's
    /// ([`metrale_telemetry::kernel_audit`]) lists those of all backends of the run, and has the seal and what was
    /// declared absent.
    fn kernel_audit(&self) -> &KernelAudit;

    /// Encodes a tensor map. Every rule is checked first, and the tensor's extent against the allocation it lies in, where
    /// the ledger knows it; what is only suspect is logged as a warning. Does not block, runs on the host alone, and is
    /// allowed during a capture. The map keeps nothing alive.
    ///
    /// # Errors
    /// [`TensorMapError`](crate::TensorMapError) with every broken rule and its value;
    /// [`TensorMapOutOfBounds`](crate::TensorMapOutOfBounds); [`FeatureOff`](crate::FeatureOff) without the feature
    /// `tensormap`; [`CallFailed`](crate::CallFailed) for a driver that has no such maps.
    fn tensor_map_encode(&self, spec: &TensorMapSpec) -> Result<TensorMap>;
}

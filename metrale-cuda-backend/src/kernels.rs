// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuKernels`] for [`MetraleCudaBackend`].

use core::ffi::c_void;
use std::sync::Arc;

use metrale_registry::MetraleRegistry;
use metrale_telemetry::KernelAudit;

use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::gpu::GpuKernels;
use crate::kernel_launch::KernelLaunch;
use crate::launch::LaunchDims;
use crate::raw_handles::{DevicePtr, KernelHandle, StreamHandle};
use crate::tensormap::{TensorMap, TensorMapSpec};

impl GpuKernels for MetraleCudaBackend {
    #[track_caller]
    fn kernel(&self, module: &str, function: &str) -> Result<KernelHandle> {
        self.latch().sound(|| format!("looking up {module}::{function}"))?;
        let handle = self.registry.function(module, function)?;
        self.learn_kernel(handle, module, function)
    }

    #[track_caller]
    fn optional_kernel(&self, module: &str, function: &str) -> Result<Option<KernelHandle>> {
        self.latch().sound(|| format!("looking up {module}::{function}"))?;
        let handle = self.registry.optional_function(module, function)?;
        handle.map(|handle| self.learn_kernel(handle, module, function)).transpose()
    }

    fn n_tile(&self, kernel: KernelHandle) -> Option<u32> {
        self.kernels().n_tile(kernel.0)
    }

    fn device_symbol(&self, module: &str, symbol: &str) -> Result<(DevicePtr, usize)> {
        self.latch().sound(|| format!("looking up {module}::{symbol}"))?;
        let (addr, bytes) = self.registry.device_symbol(module, symbol)?;
        Ok((DevicePtr(addr), bytes))
    }

    unsafe fn launch(
        &self,
        kernel: KernelHandle,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: StreamHandle,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_untyped(kernel, LaunchDims { grid, block, shared_bytes, stream }, params) }
    }

    unsafe fn launch_typed(&self, launch: &mut KernelLaunch, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_checked(launch, stream) }
    }

    fn registry(&self) -> &Arc<MetraleRegistry> {
        &self.registry
    }

    fn kernel_registry(&self) -> &Arc<MetraleRegistry> {
        &self.registry
    }

    fn kernel_audit(&self) -> &KernelAudit {
        &self.audit
    }

    fn tensor_map_encode(&self, spec: &TensorMapSpec) -> Result<TensorMap> {
        self.encode_tensor_map(spec)
    }
}

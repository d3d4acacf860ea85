// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers come in by the caller's promise only.

use metrale_cuda_backend::{DevicePtr, GpuBackend, KernelHandle};

fn adopt(gpu: &dyn GpuBackend) {
    let _ = DevicePtr::from_raw(0x1000);
    let _ = KernelHandle::from_raw(1);
    let _ = gpu.adopt_stream(7);
    let _ = gpu.adopt_event(7);
}

fn main() {}

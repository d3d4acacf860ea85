// SPDX-License-Identifier: MIT OR Apache-2.0
//! No number becomes a handle or an address.

use metrale_cuda_backend::{DevicePtr, KernelHandle};

fn main() {
    let _ = DevicePtr(0x1000);
    let _ = KernelHandle(1);
}

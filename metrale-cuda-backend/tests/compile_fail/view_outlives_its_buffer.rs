// SPDX-License-Identifier: MIT OR Apache-2.0
//! A view does not outlive its buffer.

use metrale_cuda_backend::{DeviceBuffer, Result};

fn read(buffer: DeviceBuffer<u32>) -> Result<Vec<u32>> {
    let view = buffer.as_slice();
    drop(buffer);
    view.to_vec()
}

fn main() {}

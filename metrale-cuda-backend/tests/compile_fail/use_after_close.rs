// SPDX-License-Identifier: MIT OR Apache-2.0
//! A buffer that was closed is gone.

use metrale_cuda_backend::{DeviceBuffer, Result};

fn read(buffer: DeviceBuffer<u32>) -> Result<Vec<u32>> {
    let _ = buffer.close()?;
    buffer.to_vec()
}

fn main() {}

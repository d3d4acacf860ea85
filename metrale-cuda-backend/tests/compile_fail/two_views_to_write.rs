// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is lent to be written is lent once.

use metrale_cuda_backend::{DeviceBuffer, Result};

fn swap(buffer: &mut DeviceBuffer<u32>) -> Result<()> {
    let mut low = buffer.slice_mut(..2)?;
    let high = buffer.slice(2..)?;
    low.copy_from_device(high)
}

fn main() {}

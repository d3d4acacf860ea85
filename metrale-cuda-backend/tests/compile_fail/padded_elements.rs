// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has padding, or not any bytes make a value of, is no element.

use metrale_cuda_backend::{DeviceBuffer, Result};

#[derive(Clone, Copy)]
#[repr(C)]
struct Padded {
    flag: bool,
    value: u32,
}

fn read(buffer: &DeviceBuffer<Padded>) -> Result<Vec<Padded>> {
    buffer.to_vec()
}

fn main() {}

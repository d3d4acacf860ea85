// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies take one element type.

use metrale_cuda_backend::{DeviceBuffer, Result, Stream};

fn copy(stream: &Stream, from: &DeviceBuffer<f32>, to: &mut DeviceBuffer<u32>) -> Result<()> {
    stream.copy(from, to)
}

fn fill(to: &mut DeviceBuffer<u32>) -> Result<()> {
    to.copy_from(&[0.5_f32])
}

fn main() {}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements of a pinned buffer are not lent while a copy that writes them is queued, nor beyond the buffer.

use metrale_cuda_backend::{DeviceBuffer, PinnedBuffer, Result, Stream};

fn read(stream: &Stream, device: &DeviceBuffer<f32>, host: &mut PinnedBuffer<f32>) -> Result<f32> {
    let elements = host.as_slice()?;
    stream.copy_to_pinned(device, host)?;
    Ok(elements[0])
}

fn keep(host: PinnedBuffer<f32>) -> Result<&'static [f32]> {
    host.as_slice()
}

fn main() {}

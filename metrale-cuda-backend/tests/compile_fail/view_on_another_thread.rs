// SPDX-License-Identifier: MIT OR Apache-2.0
//! A borrowed view does not go to a thread that may outlive its buffer.

use metrale_cuda_backend::{DeviceBuffer, Stream};

fn fill(stream: Stream, mut buffer: DeviceBuffer<u32>) {
    let view = buffer.as_mut_slice();
    std::thread::spawn(move || stream.fill_bytes(view, 0));
}

fn main() {}

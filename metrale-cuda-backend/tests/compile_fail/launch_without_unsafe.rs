// SPDX-License-Identifier: MIT OR Apache-2.0
//! A launch is the caller's promise.

use metrale_cuda_backend::{Kernel, Result, Stream};

fn launch(stream: &Stream, kernel: &Kernel) -> Result<()> {
    stream.launch(&mut kernel.launch().u32(1))
}

fn main() {}

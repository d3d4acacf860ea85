// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream and an event cannot change places.

use metrale_cuda_backend::{EventHandle, GpuBackend, StreamHandle};

fn record(gpu: &dyn GpuBackend, stream: StreamHandle, event: EventHandle) {
    let _ = gpu.record_event(stream, event);
}

fn main() {}

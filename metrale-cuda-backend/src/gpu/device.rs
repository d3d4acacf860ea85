// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuDevice`].

use std::sync::Arc;

use metrale_driver_sys::DriverApi;
use metrale_registry::{CudaHost, DeviceFacts};

use crate::backend::MetraleCudaBackend;
use crate::config::BackendConfig;
use crate::error::Result;
use crate::fault_reason::FaultReason;
use crate::memory::{EffectiveFree, MemoryInfo, PolledFree};

/// The device under a backend: what is fixed about it, its context and its free memory.
pub trait GpuDevice: Send + Sync {
    /// The device's place among those the process sees, from 0.
    fn ordinal(&self) -> usize;

    /// Makes the backend's context current on this thread, until something else makes another so. Every call does that for
    /// itself where it must; a thread of one backend that is bound once saves it the way there and back. Does not block.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn bind_to_thread(&self) -> Result<()>;

    /// Free and total bytes of the device, as the driver says them now (about 7 µs). Does not block. Refused on a thread
    /// that captures.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Bytes of device memory that can be had: the driver's free figure on a discrete GPU, and on an integrated one the larger
    /// of it and what the host has available. [`effective_free`](Self::effective_free) without its provenance. Refused on a
    /// thread that captures.
    ///
    /// # Errors
    /// As [`effective_free`](Self::effective_free).
    fn free_memory(&self) -> Result<u64>;

    /// Free bytes of the device as its driver says them, whatever the host has. Does not block; some 7 µs. Refused
    /// on a thread that captures.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn device_free_memory(&self) -> Result<u64>;

    /// The device's memory in bytes. Asks nobody.
    fn total_memory(&self) -> u64;

    /// Device memory that can be had, with where the figure comes from, how old it is and all that was known. Never above
    /// the device's total. Does not block; some 7 µs, and on an integrated GPU a read of `/proc/meminfo`. Refused on a
    /// thread that captures.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says, where the driver does not answer and the host's figure does not count.
    fn effective_free(&self) -> Result<EffectiveFree>;

    /// [`free_memory`](Self::free_memory), cheaply: asked for every 250 ms, and in between corrected by what the ledger has
    /// changed since. Does not block; some tens of ns between two questions. Refused on a thread that captures.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says, where there never was an answer.
    fn poll_free_memory(&self) -> Result<PolledFree>;

    /// What is fixed about the device.
    fn facts(&self) -> &DeviceFacts;

    /// The configuration in force.
    fn config(&self) -> &BackendConfig;

    /// The device's host: context, stream, facts.
    fn host(&self) -> &Arc<CudaHost>;

    /// The driver below.
    fn driver(&self) -> &dyn DriverApi;

    /// Why the context is lost, where that is known: the first reason, of whichever backend on the device. From then on
    /// every call fails with it at once. One atomic load.
    fn context_fault(&self) -> Option<&FaultReason>;

    /// The CUDA backend under this implementation, for calls that reach into two backends, such as copies between devices.
    /// None where there is none, as in a mock; what wraps a backend answers its.
    fn cuda_backend(&self) -> Option<&MetraleCudaBackend> {
        None
    }
}

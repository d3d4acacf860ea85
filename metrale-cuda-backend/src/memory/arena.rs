// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arenas: device memory with an owner of its own, accounted apart and never swept.

use std::panic::Location;

use anyhow::Result;
use metrale_ledger::AllocKind;

use crate::backend::MetraleCudaBackend;
use crate::gpu::DevicePtr;

impl MetraleCudaBackend {
    /// See [`GpuBackend::alloc_arena`](crate::GpuBackend::alloc_arena).
    #[track_caller]
    pub fn alloc_arena(&self, bytes: usize) -> Result<DevicePtr> {
        self.alloc_kind(bytes, AllocKind::Arena, Location::caller())
    }

    /// See [`GpuBackend::free_arena`](crate::GpuBackend::free_arena).
    #[track_caller]
    pub fn free_arena(&self, ptr: DevicePtr) -> Result<()> {
        self.free_kind(ptr, AllocKind::Arena, "free_arena", None)
    }
}

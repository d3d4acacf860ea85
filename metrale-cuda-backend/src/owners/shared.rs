// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SharedBackend`]: what owners are made from.

use std::sync::Arc;

use crate::error::BadArgument;
use crate::gpu::GpuBackend;
use crate::memory::Freed;

/// Refuses an operation between a stream or memory of `gpu` and memory of another driver, where addresses mean something else.
pub(super) fn same_driver(
    doing: &str,
    gpu: &Arc<dyn GpuBackend>,
    of: &Arc<dyn GpuBackend>,
) -> Result<(), BadArgument> {
    if Arc::ptr_eq(gpu, of) || gpu.driver().identity() == of.driver().identity() {
        return Ok(());
    }
    Err(BadArgument::new(format!("{doing}: the memory is of another driver; copy it by way of the host")))
}

impl Freed {
    /// Has what waits be freed as soon as it may, whichever backend's capture or graph it waits for.
    pub(super) fn watch(&self, gpu: &Arc<dyn GpuBackend>) {
        if matches!(self, Self::Later(_)) {
            Arc::clone(gpu).free_when_it_may();
        }
    }
}

/// An `Arc` of a backend, of its own type or as a trait object: what owners are made from.
pub trait SharedBackend {
    /// A share in the backend.
    fn share(&self) -> Arc<dyn GpuBackend>;
}

impl<B: GpuBackend + 'static> SharedBackend for Arc<B> {
    fn share(&self) -> Arc<dyn GpuBackend> {
        Self::clone(self)
    }
}

impl SharedBackend for Arc<dyn GpuBackend> {
    fn share(&self) -> Arc<dyn GpuBackend> {
        Self::clone(self)
    }
}

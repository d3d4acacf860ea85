// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SharedBackend`]: what owners are made from.

use std::sync::Arc;

use crate::gpu::GpuBackend;
use crate::memory::Freed;

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

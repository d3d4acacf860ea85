// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners: what an engine keeps beside its backend. Each has a share in the backend and gives back what it owns when it is
//! dropped.
//!
//! ```text
//!   Arc<dyn GpuBackend> <── DeviceBuffer<T>, PinnedBuffer<T>, Arena, Stream, ...   dropped: freed, destroyed, given up
//!                                 │  views
//!                                 └──> DeviceSlice, DeviceSliceMut               borrow it, copy nothing
//! ```
//! They ask the backend by its trait alone, so they work on an engine's own implementation too.

mod arena;
mod buffer;
mod event;
mod graph;
mod module;
mod part;
mod pinned;
mod slice;
mod stream;

use std::fmt;
use std::sync::Arc;

use crate::error::ContextLost;
use crate::gpu::GpuBackend;

pub use arena::Arena;
pub use buffer::DeviceBuffer;
pub use event::Event;
pub use graph::{Capture, Graph};
pub use module::{Kernel, Module};
pub use pinned::PinnedBuffer;
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use stream::Stream;

/// Logs that a drop could not give back what it owned. Of a lost context the log has one line already.
fn log_kept(what: impl fmt::Display, error: &crate::error::Error) {
    if error.is::<ContextLost>() {
        tracing::debug!("{what} stays: {error:#}");
    } else {
        tracing::error!("{what} stays: {error:#}");
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

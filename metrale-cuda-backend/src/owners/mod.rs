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
mod kept;
mod module;
mod part;
mod pinned;
mod shared;
mod slice;
mod stream;

pub use arena::Arena;
pub use buffer::DeviceBuffer;
pub use event::Event;
pub use graph::{Capture, Graph};
pub use module::{Kernel, Module};
pub use pinned::PinnedBuffer;
pub use shared::SharedBackend;
pub use slice::{DeviceSlice, DeviceSliceMut};
pub use stream::Stream;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OwnedHandle`]: a stream or an event that somebody owns.

/// The handle of a stream or an event that somebody owns. It cannot be copied, and only whoever has it destroys what it is of:
/// as long as it is borrowed that is alive, so the calls that take one look nothing up. Made by
/// [`GpuStreams::create_owned_stream`](crate::GpuStreams::create_owned_stream) and
/// [`create_owned_event`](crate::GpuStreams::create_owned_event).
///
/// Dropped, it destroys nothing: hand it to the call that does. [`Stream`](crate::Stream) and [`Event`](crate::Event) do that by
/// themselves.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is not destroyed stays until the backend is dropped"]
pub struct OwnedHandle<H> {
    handle: H,
    /// The number of the backend that made it; 0 where the handle is looked up at each use.
    maker: u64,
}

impl<H: Copy> OwnedHandle<H> {
    /// For implementations of [`GpuBackend`](crate::GpuBackend) that make handles of their own. A
    /// [`MetraleCudaBackend`](crate::MetraleCudaBackend) looks such a one up, as it does a plain handle.
    pub const fn new(handle: H) -> Self {
        Self { handle, maker: 0 }
    }

    pub(crate) const fn made_by(maker: u64, handle: H) -> Self {
        Self { handle, maker }
    }

    /// The handle, for calls that look it up. It is good as long as its owner.
    #[must_use]
    pub const fn handle(&self) -> H {
        self.handle
    }

    /// The handle, where this backend made it: what it is of is then alive.
    pub(crate) fn of(&self, maker: u64) -> Option<H> {
        (self.maker == maker).then_some(self.handle)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuStreams`].

use crate::error::Result;
use crate::gpu::GpuDevice;
use crate::owned_handle::OwnedHandle;
use crate::raw_handles::{EventHandle, StreamHandle};

/// Streams and events.
///
/// A backend alone makes a [`StreamHandle`] or an [`EventHandle`]. [`LEGACY_STREAM`](crate::LEGACY_STREAM) is the legacy
/// default stream; [`stream`](Self::stream) is the backend's own, which does not synchronize with it, and neither do those of
/// [`create_stream`](Self::create_stream). [`Stream`](crate::Stream) and [`Event`](crate::Event) are their owners.
///
/// A driver follows the handles it is given, and a dead one ends the process. So each call looks its streams and events up
/// first: [`BadArgument`](crate::BadArgument) answers those that were destroyed, with the line that did it, though the
/// driver has given the number to another since, and those that are none of this backend's. What was made elsewhere is made
/// known by [`adopt_stream`](Self::adopt_stream) and [`adopt_event`](Self::adopt_event). What is destroyed while a call on
/// another thread uses it stays alive until that call returns.
pub trait GpuStreams: Send + Sync {
    /// Makes a stream that does not synchronize with the legacy stream. Does not block. The driver takes a
    /// page of 2 MiB of device memory for the second stream of a context and for every fourth after it, and keeps it
    /// (measured on an H200).
    /// Allowed during a capture.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    #[track_caller]
    fn create_stream(&self) -> Result<StreamHandle>;

    /// [`create_stream`](Self::create_stream) for an owner: only [`destroy_owned_stream`](Self::destroy_owned_stream) destroys it,
    /// and nothing releases it. [`Stream::new`](crate::Stream::new) calls this.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn create_owned_stream(&self) -> Result<OwnedHandle<StreamHandle>> {
        self.create_stream().map(OwnedHandle::new)
    }

    /// Destroys a stream of [`create_stream`](Self::create_stream). Works on a thread that is not bound. Does not block: the driver completes its queued work, and
    /// a call of another thread that still uses the stream destroys it when it returns. Refused while it takes part in a
    /// capture. On every other answer the stream must not be used again. The backend's drop destroys what is left.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for the legacy stream and the backend's own, for an adopted one, and for one that an
    /// owner has.
    #[track_caller]
    fn destroy_stream(&self, stream: StreamHandle) -> Result<()>;

    /// As [`destroy_stream`](Self::destroy_stream), by the owner.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn destroy_owned_stream(&self, stream: OwnedHandle<StreamHandle>) -> Result<()> {
        self.destroy_stream(stream.handle())
    }

    /// Makes a stream known that something else created, by the driver's number, and returns its handle. Only its creator
    /// may destroy it. Does not block; the driver is not asked.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a stream that is known already.
    ///
    /// # Safety
    /// `raw` is a live stream of the backend's context, and stays live until [`release_stream`](Self::release_stream)
    /// has returned `Ok`, or the backend is dropped.
    #[track_caller]
    unsafe fn adopt_stream(&self, raw: u64) -> Result<StreamHandle>;

    /// Makes a stream unknown without destroying it: an adopted one, or one of [`create_stream`](Self::create_stream), which
    /// is then the caller's to destroy. Refused while it takes part in a capture. Does not block; the driver is not
    /// asked.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) while a call on another thread uses it: it is then still known.
    #[track_caller]
    fn release_stream(&self, stream: StreamHandle) -> Result<()>;

    /// Waits until the work queued on `stream` is done. A kernel's fault shows here. Refused while `stream` captures.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn synchronize_stream(&self, stream: StreamHandle) -> Result<()>;

    /// Whether the work queued on `stream` is done. Does not block. Refused while `stream` captures.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn query_stream(&self, stream: StreamHandle) -> Result<bool>;

    /// The backend's own stream.
    fn stream(&self) -> StreamHandle;

    /// Waits until all work of the device's context is done, whoever queued it. Refused during any capture on the device,
    /// whichever thread's.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn synchronize(&self) -> Result<()>;

    /// Makes an event that keeps no time, the cheaper kind. Does not block. Allowed during a capture.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    #[track_caller]
    fn create_event(&self) -> Result<EventHandle>;

    /// Makes an event for [`elapsed_ms`](Self::elapsed_ms). Does not block. Allowed during a capture.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    #[track_caller]
    fn create_timing_event(&self) -> Result<EventHandle>;

    /// [`create_timing_event`](Self::create_timing_event), or else [`create_event`](Self::create_event), for an owner, as
    /// [`create_owned_stream`](Self::create_owned_stream) is for a stream.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn create_owned_event(&self, timing: bool) -> Result<OwnedHandle<EventHandle>> {
        let event = if timing { self.create_timing_event() } else { self.create_event() };
        event.map(OwnedHandle::new)
    }

    /// Records `event` after the work queued on `stream` so far. Does not block. Recorded by a capture, after whose end the
    /// event marks nothing until it is recorded anew.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// [`record_event`](Self::record_event) for owners, whose event and stream need no look-up.
    ///
    /// # Errors
    /// As there.
    fn record_owned_event(
        &self,
        event: &OwnedHandle<EventHandle>,
        stream: &OwnedHandle<StreamHandle>,
    ) -> Result<()> {
        self.record_event(event.handle(), stream.handle())
    }

    /// Makes later work of `stream` wait for `event`; one never recorded counts as passed. Does not block. Recorded by a
    /// capture, for events recorded in it: a stream that waits for such an event takes part in the capture from then on,
    /// and must be joined, by an event the other way, before the end. Other events are refused there.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says; [`StreamInUse`](crate::StreamInUse) where the stream would take part in a capture while a copy on another
    /// thread borrows host memory on it.
    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    /// [`wait_event`](Self::wait_event) for owners, whose stream and event need no look-up.
    ///
    /// # Errors
    /// As there.
    fn wait_owned_event(
        &self,
        stream: &OwnedHandle<StreamHandle>,
        event: &OwnedHandle<EventHandle>,
    ) -> Result<()> {
        self.wait_event(stream.handle(), event.handle())
    }

    /// Whether `event` has passed; one never recorded has. Does not block. Refused for an event recorded in a capture.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn query_event(&self, event: EventHandle) -> Result<bool>;

    /// Waits until `event` has passed. Refused for an event recorded in a capture.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn synchronize_event(&self, event: EventHandle) -> Result<()>;

    /// Milliseconds between two events of [`create_timing_event`](Self::create_timing_event) that have passed. Does not
    /// block. Refused for an event recorded in a capture.
    ///
    /// # Errors
    /// [`CallFailed`](crate::CallFailed) where an event keeps no time, was never recorded or has not passed.
    fn elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    /// Destroys an event. Works on a thread that is not bound. Does not block. Allowed during a capture. Whatever the answer, the event is not to be used again.
    /// What nobody destroys, the backend's drop does.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for an adopted event, and for one that an owner has.
    #[track_caller]
    fn destroy_event(&self, event: EventHandle) -> Result<()>;

    /// As [`destroy_event`](Self::destroy_event), by the owner.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn destroy_owned_event(&self, event: OwnedHandle<EventHandle>) -> Result<()> {
        self.destroy_event(event.handle())
    }

    /// As [`adopt_stream`](Self::adopt_stream), for an event.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for an event that is known already, and for null.
    ///
    /// # Safety
    /// `raw` is a live event, and stays live until [`release_event`](Self::release_event) has returned `Ok`, or the
    /// backend is dropped.
    #[track_caller]
    unsafe fn adopt_event(&self, raw: u64) -> Result<EventHandle>;

    /// As [`release_stream`](Self::release_stream), for an event.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) while a call on another thread uses it: it is then still known.
    #[track_caller]
    fn release_event(&self, event: EventHandle) -> Result<()>;

    /// Makes later work of `stream`, a stream of this backend, wait for an event of another backend, on this device or
    /// another of the same driver: how the receiver of a [copy](crate::GpuCopies::copy_peer_async) waits for it. An event never
    /// recorded counts as passed. Does not block. Recorded by a capture, for events recorded in that capture, of which
    /// `stream` is part from then on; others are refused.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a stream or event that is not live, or backends of two drivers; otherwise as
    /// [`GpuBackend`](crate::GpuBackend) says.
    fn wait_peer_event(&self, stream: StreamHandle, of: &dyn GpuDevice, event: EventHandle) -> Result<()>;
}

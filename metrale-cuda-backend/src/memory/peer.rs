// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies from one device to another.

use anyhow::{Error, Result};
use metrale_driver_sys::{DriverError, DriverFn, check, is_sticky};
use metrale_ledger::{ByteSize, Whois};
use metrale_telemetry::{LaunchArg, LaunchKind};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, failed};
use crate::error::BadArgument;
use crate::gpu::DevicePtr;
use crate::graph::{Capturing, Reach, Uses};
use crate::memory::Followed;
use crate::memory::copy::{End, trace};
use crate::stream::LEGACY_STREAM;

/// What a copy in the order of a stream does, in errors and traces.
const QUEUEING: &str = "queueing a copy between devices";

impl MetraleCudaBackend {
    /// Copies `bytes` from this backend's device to that of `to`, in the order of `stream`, a stream of this backend. Both
    /// may be on one device.
    ///
    /// Does not block. Valid on `stream`; to make work of the other device wait for it, record an event after it and let a
    /// stream of `to` [wait](Self::wait_peer_event) for that. What was queued on the other device before is not
    /// waited for. The devices need no access to each other's memory: the driver goes by the host where they have none.
    ///
    /// Within one device it is recorded by a capture of `stream`, whose graph then keeps both ends from being freed. Between
    /// two it is refused while `stream` captures: `cuMemcpyPeerAsync` is no node of a graph, and breaks the capture.
    ///
    /// # Errors
    /// [`CopyOutOfBounds`](crate::CopyOutOfBounds) past the end of an allocation that the ledger of its own side knows;
    /// [`BadArgument`] for backends of two drivers; otherwise as [`GpuBackend`](crate::GpuBackend) says.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use metrale_cuda_backend::MetraleCudaBackend;
    /// # use metrale_driver_sim::{Profile, SimDriver};
    /// # let driver = Arc::new(SimDriver::builder().device(Profile::h200()).device(Profile::h200()).build());
    /// # let on = |ordinal| MetraleCudaBackend::builder().driver(driver.clone()).ordinal(ordinal).build();
    /// let (second, first) = (on(1)?, on(0)?); // the context of the last one made is current
    /// let here = first.alloc(1024)?;
    /// first.memset(here, 7, 1024)?;
    /// second.bind_to_thread()?;
    /// let there = second.alloc(1024)?;
    ///
    /// first.bind_to_thread()?;
    /// first.copy_peer_async(here, &second, there, 1024, first.stream())?;
    /// first.synchronize_stream(first.stream())?;
    /// # first.free(here)?;
    /// # second.bind_to_thread()?;
    /// # second.free(there)?;
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    pub fn copy_peer_async(
        &self,
        src: DevicePtr,
        to: &Self,
        dst: DevicePtr,
        bytes: usize,
        stream: u64,
    ) -> Result<()> {
        const ADVICE: &str =
            "a copy from one device to another is no node of a graph; copy before or after the replay";
        let gate = || {
            self.not_beside_capture(stream, QUEUEING)?;
            if self.ordinal() == to.ordinal() {
                return Ok(());
            }
            self.outside_capture(Reach::Stream(stream), QUEUEING, ADVICE)
        };
        let Some(_there) = self.may_copy_to(QUEUEING, gate, src, to, dst, bytes)? else { return Ok(()) };
        let _held = self.hold_stream(stream, QUEUEING)?;
        // SAFETY: the stream is held.
        unsafe { self.queue_peer(src, to, dst, bytes, stream) }
    }

    /// Copies `bytes` from this backend's device to that of `to`. Blocking: it first waits for both backends' own streams
    /// and for both devices' legacy streams, and is complete, and valid on every stream of both, at return. Refused on a
    /// thread that captures on either device, and while either's own stream does.
    ///
    /// # Errors
    /// As [`copy_peer_async`](Self::copy_peer_async).
    pub fn copy_peer(&self, src: DevicePtr, to: &Self, dst: DevicePtr, bytes: usize) -> Result<()> {
        const WHAT: &str = "copying between devices";
        let gate = || self.may_block(WHAT).and_then(|()| to.may_block(WHAT));
        let Some(_there) = self.may_copy_to(WHAT, gate, src, to, dst, bytes)? else { return Ok(()) };
        {
            let _current = to.enter().doing(|| WHAT.to_owned())?;
            to.own_stream_done()?;
            to.legacy_stream_done(WHAT)?;
        }
        self.own_stream_done()?;
        // SAFETY: the legacy stream is always there.
        unsafe { self.queue_peer(src, to, dst, bytes, LEGACY_STREAM) }?;
        self.legacy_stream_done(WHAT)
    }

    /// Makes later work of `stream`, a stream of this backend, wait for an event of another backend, on this device or
    /// another of the same driver: how the receiver of a [copy](Self::copy_peer_async) waits for it. An event never
    /// recorded counts as passed. Does not block. Recorded by a capture, for events recorded in that capture, of which
    /// `stream` is part from then on; others are refused.
    ///
    /// # Errors
    /// [`BadArgument`] for a stream or event that is not live, or backends of two drivers; otherwise as
    /// [`GpuBackend`](crate::GpuBackend) says.
    pub fn wait_peer_event(&self, stream: u64, of: &Self, event: u64) -> Result<()> {
        const WHAT: &str = "making a stream wait for another backend's event";
        self.bound(WHAT)?;
        self.shares_its_driver(WHAT, of)?;
        let _held = (of.hold_event(event, WHAT)?, self.hold_stream(stream, WHAT)?);
        let named = || format!("event {event:#x} of device {}", of.ordinal());
        // SAFETY: event and stream are held.
        unsafe { self.queue_wait(stream, event, WHAT, named) }
    }

    /// Refuses what no driver can do: to reach from one into another.
    fn shares_its_driver(&self, doing: &'static str, other: &Self) -> Result<(), BadArgument> {
        let [mine, theirs] =
            [self, other].map(|backend| core::ptr::from_ref(backend.driver()).cast::<()>().addr());
        if mine == theirs {
            return Ok(());
        }
        Err(BadArgument::new(format!(
            "{doing}: the backends are on two drivers ({} and {}), which know nothing of each other; go by the host instead",
            self.driver().source(),
            other.driver().source()
        )))
    }

    /// Passes a gate and checks both ends, each by the ledger of its own side; `None` where there is nothing to copy. What was
    /// checked stays true until the answer is dropped.
    fn may_copy_to<'a>(
        &'a self,
        doing: &'static str,
        gate: impl FnOnce() -> Result<(), Capturing>,
        src: DevicePtr,
        to: &'a Self,
        dst: DevicePtr,
        bytes: usize,
    ) -> Result<Option<[Followed<'a>; 2]>> {
        if bytes == 0 {
            return Ok(None);
        }
        self.bound(doing)?;
        to.latch().sound(|| doing.to_owned())?;
        self.shares_its_driver(doing, to)?;
        gate()?;
        let source = self.within(doing, End::Source, src, bytes as u64)?;
        Ok(Some([source, to.within(doing, End::Destination, dst, bytes as u64)?]))
    }

    /// Queues the copy.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    unsafe fn queue_peer(
        &self,
        src: DevicePtr,
        to: &Self,
        dst: DevicePtr,
        bytes: usize,
        stream: u64,
    ) -> Result<()> {
        trace(
            LaunchKind::CopyD2d,
            QUEUEING,
            [src.0, dst.0].map(LaunchArg::Pointer).into_iter().chain([LaunchArg::U64(bytes as u64)]),
        );
        let submission =
            self.submission(stream, QUEUEING, Uses::Ends { device: [Some(src.0), Some(dst.0)], host: None })?;
        let (from_context, to_context) = (self.host().context(), to.host().context());
        let answer = if self.ordinal() == to.ordinal() {
            // A copy that names contexts is no node of a graph, even where both are one.
            // SAFETY: neither end is host memory (`within`); the driver checks the addresses; the caller's promise for the stream.
            let status = unsafe { self.driver().cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, stream) };
            check(DriverFn::cuMemcpyDtoDAsync_v2, status)
        } else {
            // SAFETY: as above; the contexts are those of two hosts that are alive.
            let status = unsafe {
                self.driver().cuMemcpyPeerAsync(dst.0, to_context, src.0, from_context, bytes, stream)
            };
            check(DriverFn::cuMemcpyPeerAsync, status)
        };
        submission.answered(answer);
        answer.map_err(|error| self.peer_failed(error, src, to, dst, bytes))
    }

    /// The error for a copy the driver refused, with what each side's ledger knows of its end.
    #[cold]
    fn peer_failed(
        &self,
        error: DriverError,
        src: DevicePtr,
        to: &Self,
        dst: DevicePtr,
        bytes: usize,
    ) -> Error {
        if is_sticky(error.status) {
            // Either of two contexts may be the lost one: each is asked, and what is found is latched in passing.
            let _ = self.own_stream_done();
            if let Ok(_current) = to.enter() {
                let _ = to.own_stream_done();
            }
        }
        let mut hints = Vec::new();
        for (end, backend, ptr) in [(End::Source, self, src), (End::Destination, to, dst)] {
            match backend.ledger_writer().whois(ptr.0) {
                Whois::Live { .. } => {}
                whois => hints.push(format!("the {end} is {whois}")),
            }
        }
        let text = format!(
            "copying {} from {src} on device {} to {dst} on device {}",
            ByteSize::of(bytes),
            self.ordinal(),
            to.ordinal()
        );
        failed(error, text, (!hints.is_empty()).then(|| hints.join("; ")))
    }
}

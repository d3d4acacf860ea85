// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies from one device to another.

use metrale_driver_sys::{DriverError, DriverFn, check, is_sticky};
use metrale_ledger::{ByteSize, Whois};

use crate::backend::MetraleCudaBackend;
use crate::binding::Bound;
use crate::call::{Doing, failed};
use crate::error::{BadArgument, Error, Result};
use crate::gpu::GpuDevice;
use crate::graph::{Capturing, Reach, Uses};
use crate::memory::Followed;
use crate::memory::end::End;
use crate::memory::transfer::Transfer;
use crate::raw_handles::LEGACY_STREAM;
use crate::raw_handles::{DevicePtr, StreamHandle};

/// What a copy in the order of a stream does, in errors and traces.
const QUEUEING: &str = "queueing a copy between devices";

/// The ends of a copy, which stay what they were checked to be, and the sender's context current, until this is dropped.
pub(crate) struct BothEnds<'a> {
    _bound: Bound<'a>,
    _followed: [Followed<'a>; 2],
}

impl MetraleCudaBackend {
    /// The Metrale backend at the other end of a copy.
    pub(crate) fn peer<'a>(&self, to: &'a dyn GpuDevice) -> Result<&'a Self, BadArgument> {
        to.cuda_backend().ok_or_else(|| {
            BadArgument::new(
                "copying between devices: the other backend has no CUDA backend under it; go by the host instead",
            )
        })
    }

    /// Checks and queues a copy in the order of a stream.
    pub(crate) fn queue_peer_copy(
        &self,
        src: DevicePtr,
        to: &Self,
        dst: DevicePtr,
        bytes: usize,
        stream: StreamHandle,
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

    /// Copies after all work of both backends' own streams, and waits for the end.
    pub(crate) fn peer_copy(&self, src: DevicePtr, to: &Self, dst: DevicePtr, bytes: usize) -> Result<()> {
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

    /// Refuses what no driver can do: to reach from one into another.
    pub(crate) fn shares_its_driver(&self, doing: &'static str, other: &Self) -> Result<(), BadArgument> {
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
    ) -> Result<Option<BothEnds<'a>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let bound = self.bound(doing)?;
        to.latch().sound(|| doing.to_owned())?;
        self.shares_its_driver(doing, to)?;
        gate()?;
        let source = self.within(doing, End::Source, src, bytes as u64)?;
        let destination = to.within(doing, End::Destination, dst, bytes as u64)?;
        Ok(Some(BothEnds { _bound: bound, _followed: [source, destination] }))
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
        stream: StreamHandle,
    ) -> Result<()> {
        Transfer::inside(QUEUEING, src, dst, bytes).trace(None);
        let submission =
            self.submission(stream, QUEUEING, Uses::Ends { device: [Some(src.0), Some(dst.0)], host: None })?;
        let (from_context, to_context) = (self.host().context(), to.host().context());
        let answer = if self.ordinal() == to.ordinal() {
            // A copy that names contexts is no node of a graph, even where both are one.
            // SAFETY: neither end is host memory (`within`); the driver checks the addresses; the caller's promise for the stream.
            let status = unsafe { self.driver().cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, stream.raw()) };
            check(DriverFn::cuMemcpyDtoDAsync_v2, status)
        } else {
            // SAFETY: as above; the contexts are those of two hosts that are alive.
            let status = unsafe {
                self.driver().cuMemcpyPeerAsync(dst.0, to_context, src.0, from_context, bytes, stream.raw())
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way of every copy and fill: bind, keep the stream, pass the gate of captures, check the ends, have the driver do it.

use metrale_driver_sys::DriverError;
use metrale_ledger::{ByteSize, Whois};
use metrale_telemetry::{Launch, LaunchArg, LaunchKind, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::binding::Bound;
use crate::call::failed;
use crate::error::{Error, Result};
use crate::graph::{BorrowedCopy, Uses};
use crate::held_handle::HeldHandle;
use crate::memory::Followed;
use crate::memory::end::End;
use crate::raw_handles::LEGACY_STREAM;
use crate::raw_handles::{DevicePtr, StreamHandle};

/// A copy or fill, by its ends in device memory.
pub(crate) struct Transfer {
    pub(crate) kind: LaunchKind,
    /// What it does, in errors and traces.
    pub(crate) what: &'static str,
    pub(crate) src: Option<DevicePtr>,
    pub(crate) dst: Option<DevicePtr>,
    /// Bytes that are copied or filled.
    pub(crate) bytes: usize,
}

/// A place on a stream. The context is current, the stream is alive and its captures let the work pass until this is dropped.
pub(crate) struct OnStream<'a> {
    _bound: Bound<'a>,
    _held: HeldHandle<'a>,
    _borrowed: Option<BorrowedCopy<'a>>,
}

/// Checked ends: no memory that Rust code has borrowed, nor becomes so, until this is dropped.
pub(crate) struct Ends<'a> {
    _src: Option<Followed<'a>>,
    _dst: Option<Followed<'a>>,
}

impl MetraleCudaBackend {
    /// Prepares for work on a stream. With `borrowing`, advice for its refusal, no capture begins there meanwhile.
    pub(crate) fn on_stream(
        &self,
        stream: StreamHandle,
        what: &'static str,
        borrowing: Option<&'static str>,
    ) -> Result<OnStream<'_>> {
        let bound = self.bound_for(stream, what)?;
        let held = self.hold_stream(stream, what)?;
        let borrowed = borrowing.map(|advice| self.borrow_on(stream, what, advice)).transpose()?;
        self.not_beside_capture(stream, what)?;
        Ok(OnStream { _bound: bound, _held: held, _borrowed: borrowed })
    }

    /// Checks both ends, each of which spans the transfer's bytes.
    pub(crate) fn ends(&self, transfer: &Transfer) -> Result<Ends<'_>> {
        self.ends_spanning(transfer, [transfer.bytes as u64; 2])
    }

    /// Checks both ends, source and destination, where rows lie apart.
    pub(crate) fn ends_spanning(
        &self,
        Transfer { what, src, dst, .. }: &Transfer,
        [src_bytes, dst_bytes]: [u64; 2],
    ) -> Result<Ends<'_>> {
        Ok(Ends {
            _src: src.map(|ptr| self.within(what, End::Source, ptr, src_bytes)).transpose()?,
            _dst: dst.map(|ptr| self.within(what, End::Destination, ptr, dst_bytes)).transpose()?,
        })
    }

    /// Has the driver do a transfer at once, after the backend's own stream, and waits until it is done.
    ///
    /// The driver's synchronous calls know nothing of the backend's stream, and may return before the device has the data:
    /// pageable sources are only staged by then, and a copy inside the device is only queued.
    pub(crate) fn transfer_now(
        &self,
        transfer: &Transfer,
        extra: Option<LaunchArg>,
        call: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<()> {
        let _bound = self.bound(transfer.what)?;
        self.may_block(transfer.what)?;
        let _ends = self.ends(transfer)?;
        self.own_stream_done()?;
        transfer.trace(extra);
        // SAFETY: the legacy stream is always there.
        call().map_err(|error| unsafe { self.transfer_failed(transfer, error, LEGACY_STREAM) })?;
        match transfer.dst {
            Some(_) => self.legacy_stream_done(transfer.what),
            // What goes to the host is there when the driver returns.
            None => Ok(()),
        }
    }

    /// Queues a transfer, whose ends are checked, on a stream that is prepared for it. `host` is its end in host memory.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    pub(crate) unsafe fn queue_transfer(
        &self,
        transfer: &Transfer,
        stream: StreamHandle,
        host: Option<u64>,
        extra: Option<LaunchArg>,
        call: impl Fn() -> Result<(), DriverError>,
    ) -> Result<()> {
        transfer.trace(extra);
        let device = [transfer.src, transfer.dst].map(|ptr| ptr.map(|ptr| ptr.0));
        let submission = self.submission(stream, transfer.what, Uses::Ends { device, host })?;
        let answer = self.ask_bound(transfer.what, call);
        submission.answered(answer);
        // SAFETY: the caller's promise.
        answer.map_err(|error| unsafe { self.transfer_failed(transfer, error, stream) })
    }

    /// The error for a transfer that the driver refused, with what the ledger knows of its ends, after a look at whether the
    /// context is lost where it was a fill, which is a kernel of the driver's.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    unsafe fn transfer_failed(&self, transfer: &Transfer, error: DriverError, stream: StreamHandle) -> Error {
        let &Transfer { kind, what, src, dst, bytes } = transfer;
        if kind == LaunchKind::Memset
            && let Some(dst) = dst
        {
            let after = || format!("{what}, {} at {dst}", ByteSize::of(bytes));
            // SAFETY: the caller's promise.
            unsafe { self.check_after_refusal(error, stream, after) };
        }
        let mut text = format!("{what}, {}", ByteSize::of(bytes));
        let mut hints = Vec::new();
        for (end, ptr, word) in [(End::Source, src, "from"), (End::Destination, dst, "to")] {
            let Some(ptr) = ptr else { continue };
            text.push_str(&format!(" {word} {ptr}"));
            // A range that is live and large enough explains nothing; the advice for the status may.
            match self.ledger_writer().whois(ptr.0) {
                Whois::Live { .. } => {}
                whois => hints.push(format!("the {end} is {whois}")),
            }
        }
        failed(error, text, (!hints.is_empty()).then(|| hints.join("; ")))
    }
}

impl Transfer {
    pub(crate) const fn to_device(what: &'static str, dst: DevicePtr, bytes: usize) -> Self {
        Self { kind: LaunchKind::CopyH2d, what, src: None, dst: Some(dst), bytes }
    }

    pub(crate) const fn to_host(what: &'static str, src: DevicePtr, bytes: usize) -> Self {
        Self { kind: LaunchKind::CopyD2h, what, src: Some(src), dst: None, bytes }
    }

    pub(crate) const fn inside(what: &'static str, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Self {
        Self { kind: LaunchKind::CopyD2d, what, src: Some(src), dst: Some(dst), bytes }
    }

    pub(crate) const fn fill(what: &'static str, dst: DevicePtr, bytes: usize) -> Self {
        Self { kind: LaunchKind::Memset, what, src: None, dst: Some(dst), bytes }
    }

    /// Notes it in the launch trace, where that is on.
    pub(crate) fn trace(&self, extra: Option<LaunchArg>) {
        let &Self { kind, what, src, dst, bytes } = self;
        run_metrics::process().trace().record(|| {
            let ends = [src, dst].into_iter().flatten().map(|ptr| LaunchArg::Pointer(ptr.0));
            Launch::new(kind, what).args(ends.chain(extra).chain([LaunchArg::U64(bytes as u64)]))
        });
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between host and device and inside the device.
//!
//! A blocking copy waits for the backend's own stream first, which the driver's synchronous calls know nothing of, and
//! then for the legacy stream, since those calls may return before the device has the data (pageable sources are only
//! staged by then, and a copy inside the device is only queued).

use core::ffi::c_void;
use core::fmt;

use anyhow::{Error, Result};
use metrale_driver_sys::DriverError;
use metrale_ledger::{AllocKind, AllocRecord, ByteSize, LiveAllocation, Whois};
use metrale_telemetry::{Counter, Launch, LaunchArg, LaunchKind, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::BadArgument;
use crate::gpu::DevicePtr;
use crate::graph::{Capturing, Reach, Uses};
use crate::memory::Followed;
use crate::memory::not_device::{FoundMemory, NotDeviceMemory};
use crate::stream::{LEGACY_STREAM, count_sync};

/// Which end of a copy or fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Where the data comes from.
    Source,
    /// Where it goes.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// A copy or fill that would pass the end of an allocation. The driver was not asked and nothing was done.
///
/// The driver itself notices only some of these: it knows pages, where the ledger knows bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{operation}: the {end} {:#x} is byte {} of {}, and {} from there pass its end by {}",
    addr, addr.wrapping_sub(owner.addr), owner, ByteSize(*bytes), ByteSize(self.excess_bytes())
)]
#[non_exhaustive]
pub struct CopyOutOfBounds {
    /// What was to be done.
    pub operation: &'static str,
    /// Which end is wrong.
    pub end: End,
    /// The address where that end begins.
    pub addr: u64,
    /// The bytes it was to span.
    pub bytes: u64,
    /// The allocation it begins in: base, size, call site, scope.
    pub owner: Box<LiveAllocation>,
}

impl CopyOutOfBounds {
    /// How far after the allocation's base the end begins, in bytes.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.addr.wrapping_sub(self.owner.addr)
    }

    /// How many bytes would lie past the end of the allocation.
    #[must_use]
    pub fn excess_bytes(&self) -> u64 {
        self.bytes.saturating_sub(bytes_behind(&self.owner.record, self.offset_bytes()))
    }
}

/// Bytes of an allocation from `offset` on.
fn bytes_behind(record: &AllocRecord, offset: u64) -> u64 {
    (record.bytes as u64).saturating_sub(offset)
}

impl MetraleCudaBackend {
    /// See [`GpuBackend::copy_h2d`](crate::GpuBackend::copy_h2d).
    pub fn copy_h2d(&self, src: &[u8], dst: DevicePtr) -> Result<()> {
        const WHAT: &str = "copying to the device";
        if src.is_empty() {
            return Ok(());
        }
        self.bound(WHAT)?;
        self.may_block(WHAT)?;
        let _there = self.within(WHAT, End::Destination, dst, src.len() as u64)?;
        self.own_stream_done()?;
        trace(LaunchKind::CopyH2d, WHAT, [LaunchArg::Pointer(dst.0), LaunchArg::U64(src.len() as u64)]);
        // SAFETY: the source is a slice of that many bytes, consumed before the call returns; the destination is no host
        // memory (`within`), and what else is wrong with it the driver answers.
        unsafe { ask!(self.driver(), cuMemcpyHtoD_v2(dst.0, src.as_ptr().cast(), src.len())) }
            .map_err(|error| self.copy_failed(error, WHAT, None, Some(dst), src.len()))?;
        self.legacy_stream_done(WHAT)
    }

    /// See [`GpuBackend::copy_d2h`](crate::GpuBackend::copy_d2h).
    pub fn copy_d2h(&self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        const WHAT: &str = "copying to the host";
        if dst.is_empty() {
            return Ok(());
        }
        self.bound(WHAT)?;
        self.may_block(WHAT)?;
        let _there = self.within(WHAT, End::Source, src, dst.len() as u64)?;
        self.own_stream_done()?;
        trace(LaunchKind::CopyD2h, WHAT, [LaunchArg::Pointer(src.0), LaunchArg::U64(dst.len() as u64)]);
        count_blocking_d2h(dst.len());
        // SAFETY: the destination is a slice of that many bytes, filled before the call returns.
        unsafe { ask!(self.driver(), cuMemcpyDtoH_v2(dst.as_mut_ptr().cast(), src.0, dst.len())) }
            .map_err(|error| self.copy_failed(error, WHAT, Some(src), None, dst.len()))
    }

    /// See [`GpuBackend::copy_d2d`](crate::GpuBackend::copy_d2d).
    pub fn copy_d2d(&self, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()> {
        const WHAT: &str = "copying inside the device";
        if bytes == 0 {
            return Ok(());
        }
        self.bound(WHAT)?;
        self.may_block(WHAT)?;
        let _there = (
            self.within(WHAT, End::Source, src, bytes as u64)?,
            self.within(WHAT, End::Destination, dst, bytes as u64)?,
        );
        self.own_stream_done()?;
        trace(
            LaunchKind::CopyD2d,
            WHAT,
            [src.0, dst.0].map(LaunchArg::Pointer).into_iter().chain([LaunchArg::U64(bytes as u64)]),
        );
        // SAFETY: neither end is host memory (`within`), and what else is wrong with them the driver answers.
        unsafe { ask!(self.driver(), cuMemcpyDtoD_v2(dst.0, src.0, bytes)) }
            .map_err(|error| self.copy_failed(error, WHAT, Some(src), Some(dst), bytes))?;
        self.legacy_stream_done(WHAT)
    }

    /// See [`GpuBackend::copy_h2d_async`](crate::GpuBackend::copy_h2d_async).
    pub fn copy_h2d_async(&self, src: &[u8], dst: DevicePtr, stream: u64) -> Result<()> {
        const WHAT: &str = "copying to the device";
        if src.is_empty() {
            return Ok(());
        }
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        const ADVICE: &str = "the graph would read the source at every replay, when it may be gone: use \
                              copy_h2d_async_retained and keep the source";
        let _borrow = self.borrow_on(stream, WHAT, ADVICE)?;
        self.not_beside_capture(stream, WHAT)?;
        let there = self.within(WHAT, End::Destination, dst, src.len() as u64)?;
        // Asked first: once the copy is queued there must be no way out that leaves the source unguarded.
        let wait = self.is_read_late(src)?;
        // SAFETY: the source is a slice of that many bytes; where the device reads it late, the wait below keeps it
        // borrowed until it has been read, and otherwise the driver has staged it at the return. The destination is no host memory
        // (`there`), and the stream is held.
        let queued = unsafe { self.queue_h2d(src.as_ptr(), src.len(), dst, stream) };
        drop(there);
        if wait {
            count_sync();
            // Also after a refusal, which may have come when part of the source was already queued.
            // SAFETY: the stream is held.
            let waited = unsafe { self.wait_until_at_rest(stream, dst.0) };
            queued.and(waited)
        } else {
            queued
        }
    }

    /// See [`GpuBackend::copy_h2d_async_retained`](crate::GpuBackend::copy_h2d_async_retained).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn copy_h2d_async_retained(
        &self,
        src: *const u8,
        bytes: usize,
        dst: DevicePtr,
        stream: u64,
    ) -> Result<()> {
        const WHAT: &str = "copying to the device";
        if bytes == 0 {
            return Ok(());
        }
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.not_beside_capture(stream, WHAT)?;
        let _there = self.within(WHAT, End::Destination, dst, bytes as u64)?;
        // SAFETY: the caller's promise; the stream is held.
        unsafe { self.queue_h2d(src, bytes, dst, stream) }
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// As for [`copy_h2d_async_retained`](Self::copy_h2d_async_retained), and the stream stays alive over the call.
    unsafe fn queue_h2d(&self, src: *const u8, bytes: usize, dst: DevicePtr, stream: u64) -> Result<()> {
        const WHAT: &str = "queueing a copy to the device";
        trace(LaunchKind::CopyH2d, WHAT, [LaunchArg::Pointer(dst.0), LaunchArg::U64(bytes as u64)]);
        let uses = Uses::Ends { device: [Some(dst.0), None], host: Some(src.addr() as u64) };
        let submission = self.submission(stream, WHAT, uses)?;
        // SAFETY: the caller's promise.
        let answer =
            unsafe { ask!(self.driver(), cuMemcpyHtoDAsync_v2(dst.0, src.cast::<c_void>(), bytes, stream)) };
        submission.answered(answer);
        answer.map_err(|error| self.copy_failed(error, WHAT, None, Some(dst), bytes))
    }

    /// See [`GpuBackend::copy_d2h_on_stream`](crate::GpuBackend::copy_d2h_on_stream).
    pub fn copy_d2h_on_stream(&self, src: DevicePtr, dst: &mut [u8], stream: u64) -> Result<()> {
        const WHAT: &str = "copying to the host";
        if dst.is_empty() {
            return Ok(());
        }
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        const ADVICE: &str =
            "it waits for the stream; use copy_d2h_async_retained, and read after a launch of the graph";
        // Over the wait too: one that a capture fails would leave the copy under way.
        let _borrow = self.borrow_on(stream, WHAT, ADVICE)?;
        self.not_beside_capture(stream, WHAT)?;
        let there = self.within(WHAT, End::Source, src, dst.len() as u64)?;
        count_blocking_d2h(dst.len());
        // SAFETY: the destination is a slice of that many bytes, and stays borrowed over the wait below; the stream is held.
        let queued = unsafe { self.queue_d2h(src, dst.as_mut_ptr(), dst.len(), stream) };
        drop(there);
        count_sync();
        // Also after a refusal, which may have come when part of the copy was already queued.
        // SAFETY: the stream is held.
        let waited = unsafe { self.wait_until_at_rest(stream, src.0) };
        queued.and(waited)
    }

    /// See [`GpuBackend::copy_d2h_async_retained`](crate::GpuBackend::copy_d2h_async_retained).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn copy_d2h_async_retained(
        &self,
        src: DevicePtr,
        dst: *mut u8,
        bytes: usize,
        stream: u64,
    ) -> Result<()> {
        const WHAT: &str = "copying to the host";
        if bytes == 0 {
            return Ok(());
        }
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.not_beside_capture(stream, WHAT)?;
        let _there = self.within(WHAT, End::Source, src, bytes as u64)?;
        // SAFETY: the caller's promise; the stream is held.
        unsafe { self.queue_d2h(src, dst, bytes, stream) }
    }

    /// Queues a copy to the host.
    ///
    /// # Safety
    /// As for [`copy_d2h_async_retained`](Self::copy_d2h_async_retained), and the stream stays alive over the call.
    unsafe fn queue_d2h(&self, src: DevicePtr, dst: *mut u8, bytes: usize, stream: u64) -> Result<()> {
        const WHAT: &str = "queueing a copy to the host";
        trace(LaunchKind::CopyD2h, WHAT, [LaunchArg::Pointer(src.0), LaunchArg::U64(bytes as u64)]);
        let uses = Uses::Ends { device: [Some(src.0), None], host: Some(dst.addr() as u64) };
        let submission = self.submission(stream, WHAT, uses)?;
        // SAFETY: the caller's promise.
        let answer =
            unsafe { ask!(self.driver(), cuMemcpyDtoHAsync_v2(dst.cast::<c_void>(), src.0, bytes, stream)) };
        submission.answered(answer);
        answer.map_err(|error| self.copy_failed(error, WHAT, Some(src), None, bytes))
    }

    /// See [`GpuBackend::copy_d2d_async`](crate::GpuBackend::copy_d2d_async).
    pub fn copy_d2d_async(&self, src: DevicePtr, dst: DevicePtr, bytes: usize, stream: u64) -> Result<()> {
        const WHAT: &str = "queueing a copy inside the device";
        if bytes == 0 {
            return Ok(());
        }
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.not_beside_capture(stream, WHAT)?;
        let _there = (
            self.within(WHAT, End::Source, src, bytes as u64)?,
            self.within(WHAT, End::Destination, dst, bytes as u64)?,
        );
        trace(
            LaunchKind::CopyD2d,
            WHAT,
            [src.0, dst.0].map(LaunchArg::Pointer).into_iter().chain([LaunchArg::U64(bytes as u64)]),
        );
        let submission =
            self.submission(stream, WHAT, Uses::Ends { device: [Some(src.0), Some(dst.0)], host: None })?;
        // SAFETY: neither end is host memory (`within`), and what else is wrong with them the driver answers; the stream is
        // held.
        let answer = unsafe { ask!(self.driver(), cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, stream)) };
        submission.answered(answer);
        answer.map_err(|error| self.copy_failed(error, WHAT, Some(src), Some(dst), bytes))
    }

    /// Refuses an end that begins in an allocation the ledger knows and would leave it, and one that is, or could be, host
    /// memory: what passes is memory that no Rust code has borrowed, and becomes no pinned memory until the answer is dropped, which
    /// is when the driver was asked. The thread is known to be bound.
    pub(crate) fn within(
        &self,
        operation: &'static str,
        end: End,
        ptr: DevicePtr,
        bytes: u64,
    ) -> Result<Followed<'_>> {
        // Before the look: what is pinned from here on is nowhere in the range.
        let followed = self.graph_client().shared.followed.follow(ptr.0, bytes);
        self.is_within(operation, end, ptr, bytes).map(|()| followed)
    }

    fn is_within(&self, operation: &'static str, end: End, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let addr = ptr.0;
        match self.ledger_writer().whois(addr) {
            Whois::Live { allocation, .. } if allocation.record.kind == AllocKind::Pinned => {
                let found = FoundMemory::Pinned(Box::new(allocation));
                Err(NotDeviceMemory { operation, end, addr, found }.into())
            }
            // Bands, and what is kept after its free, are live at the driver and nobody's to touch.
            Whois::Live { allocation, .. } if allocation.record.kind == AllocKind::Padding => {
                self.refuse_redzone(operation, &end.to_string(), ptr)?;
                let bytes = ByteSize::of(allocation.record.bytes);
                Err(BadArgument::new(format!(
                    "{operation}: the {end} {ptr} lies in {bytes} at {:#x} that the backend keeps for its red zones",
                    allocation.addr
                ))
                .into())
            }
            Whois::Live { allocation, offset_bytes }
                if bytes > bytes_behind(&allocation.record, offset_bytes) =>
            {
                Err(CopyOutOfBounds { operation, end, addr, bytes, owner: Box::new(allocation) }.into())
            }
            Whois::Live { allocation, .. } => match self.leaves_part(addr, bytes, &allocation) {
                Some(part) => {
                    Err(CopyOutOfBounds { operation, end, addr, bytes, owner: Box::new(part) }.into())
                }
                None => Ok(()),
            },
            unknown => {
                if matches!(unknown, Whois::Freed { .. }) {
                    self.refuse_redzone(operation, &end.to_string(), ptr)?;
                }
                self.not_the_hosts(operation, end, ptr, &unknown)
            }
        }
    }

    /// Refuses a blocking operation on a thread that captures, or where the backend's own stream, which it waits for, does.
    pub(crate) fn may_block(&self, doing: &'static str) -> Result<(), Capturing> {
        const ADVICE: &str = "it would run at once and be missing from the graph; do it before the capture begins, or use \
                              the asynchronous call of that name on the capturing stream";
        self.outside_capture(Reach::ThreadOrStream(self.stream()), doing, ADVICE)
    }

    /// Waits for the backend's own stream, which does not synchronize with the driver's blocking calls.
    pub(crate) fn own_stream_done(&self) -> Result<()> {
        // SAFETY: takes the host's own stream, which is destroyed with the host.
        unsafe { ask!(self.driver(), cuStreamSynchronize(self.stream())) }
            .doing(|| "waiting for the backend's stream before a blocking operation".to_owned())
    }

    /// Waits until what a blocking call left on the legacy stream is done.
    pub(crate) fn legacy_stream_done(&self, doing: &'static str) -> Result<()> {
        // SAFETY: takes a handle, and the legacy stream is always there.
        unsafe { ask!(self.driver(), cuStreamSynchronize(LEGACY_STREAM)) }
            .doing(|| format!("{doing}, waiting for its end"))
    }

    /// Whether the device reads a source after the call that queues its copy has returned.
    ///
    /// Memory the driver knows (pinned, registered, managed) is read by the device itself. Anything else is pageable and
    /// staged by the driver, unless the device reads pageable memory, which integrated ones do.
    fn is_read_late(&self, src: &[u8]) -> Result<bool> {
        if self.reads_pageable_memory() {
            return Ok(true);
        }
        let first = src.as_ptr().addr() as u64;
        let last = first.saturating_add(src.len() as u64 - 1);
        for addr in [first, last] {
            let ours = matches!(
                self.ledger_writer().whois(addr),
                Whois::Live { allocation, .. } if matches!(allocation.record.kind, AllocKind::Pinned | AllocKind::Managed)
            );
            if ours || self.memory_type(addr)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The error for a copy or fill the driver refused, with what the ledger knows of its ends.
    pub(crate) fn copy_failed(
        &self,
        error: DriverError,
        doing: &'static str,
        src: Option<DevicePtr>,
        dst: Option<DevicePtr>,
        bytes: usize,
    ) -> Error {
        let mut text = format!("{doing}, {}", ByteSize::of(bytes));
        let mut hints = Vec::new();
        for (end, ptr) in [(End::Source, src), (End::Destination, dst)] {
            let Some(ptr) = ptr else { continue };
            text.push_str(match end {
                End::Source => " from ",
                End::Destination => " to ",
            });
            text.push_str(&ptr.to_string());
            // A range that is live and large enough explains nothing; the advice for the status may.
            match self.ledger_writer().whois(ptr.0) {
                Whois::Live { .. } => {}
                whois => hints.push(format!("the {end} is {whois}")),
            }
        }
        failed(error, text, (!hints.is_empty()).then(|| hints.join("; ")))
    }
}

/// Notes a copy or fill in the launch trace, where that is on.
pub(crate) fn trace(kind: LaunchKind, name: &'static str, args: impl IntoIterator<Item = LaunchArg>) {
    run_metrics::process().trace().record(|| Launch::new(kind, name).args(args));
}

/// Counts a copy that makes the host wait for the device.
fn count_blocking_d2h(bytes: usize) {
    let counters = run_metrics::process().counters();
    counters.count(Counter::BlockingD2hCopies);
    counters.add(Counter::BlockingD2hBytes, bytes as u64);
}

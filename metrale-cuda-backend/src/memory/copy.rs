// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between host and device and inside the device.

use core::ffi::c_void;

use metrale_ledger::{AllocKind, AllocRecord, ByteSize, LiveAllocation, Whois};
use metrale_telemetry::{Counter, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{BadArgument, Result, causes};
use crate::graph::{Capturing, Reach};
use crate::memory::Followed;
use crate::memory::end::End;
use crate::memory::not_device::{FoundMemory, NotDeviceMemory};
use crate::memory::transfer::Transfer;
use crate::raw_handles::LEGACY_STREAM;
use crate::raw_handles::{DevicePtr, StreamHandle};

causes! { CopyOutOfBounds: OutOfBounds }

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
    /// Queues a copy to the device, whose destination is checked.
    ///
    /// # Safety
    /// As for [`copy_h2d_async_retained`](crate::GpuCopies::copy_h2d_async_retained), and the stream stays alive over the call.
    pub(crate) unsafe fn queue_h2d(
        &self,
        copy: &Transfer,
        src: *const u8,
        dst: DevicePtr,
        stream: StreamHandle,
    ) -> Result<()> {
        let from = src.cast::<c_void>();
        // SAFETY: the caller's promise.
        let call =
            || unsafe { ask!(self.driver(), cuMemcpyHtoDAsync_v2(dst.0, from, copy.bytes, stream.raw())) };
        // SAFETY: the caller's promise.
        unsafe { self.queue_transfer(copy, stream, Some(src.addr() as u64), None, call) }
    }

    /// Queues a copy to the host, whose source is checked.
    ///
    /// # Safety
    /// As for [`copy_d2h_async_retained`](crate::GpuCopies::copy_d2h_async_retained), and the stream stays alive over the call.
    pub(crate) unsafe fn queue_d2h(
        &self,
        copy: &Transfer,
        src: DevicePtr,
        dst: *mut u8,
        stream: StreamHandle,
    ) -> Result<()> {
        let to = dst.cast::<c_void>();
        // SAFETY: the caller's promise.
        let call =
            || unsafe { ask!(self.driver(), cuMemcpyDtoHAsync_v2(to, src.0, copy.bytes, stream.raw())) };
        // SAFETY: the caller's promise.
        unsafe { self.queue_transfer(copy, stream, Some(dst.addr() as u64), None, call) }
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
        let followed = self.graph_client().shared.followed.follow(ptr.0, bytes, self.ledger_writer());
        self.is_within(operation, end, ptr, bytes).map(|()| followed)
    }

    fn is_within(&self, operation: &'static str, end: End, ptr: DevicePtr, bytes: u64) -> Result<()> {
        let addr = ptr.0;
        // Nearly every call ends here, without a copy of the record.
        if let Some((AllocKind::Device | AllocKind::Managed, left)) = self.ledger_writer().live_span(addr)
            && bytes <= left
        {
            return Ok(());
        }
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
        unsafe { ask!(self.driver(), cuStreamSynchronize(self.own_stream().raw())) }
            .doing(|| "waiting for the backend's stream before a blocking operation".to_owned())
    }

    /// Waits until what a blocking call left on the legacy stream is done.
    pub(crate) fn legacy_stream_done(&self, doing: &'static str) -> Result<()> {
        // SAFETY: takes a handle, and the legacy stream is always there.
        unsafe { ask!(self.driver(), cuStreamSynchronize(LEGACY_STREAM.raw())) }
            .doing(|| format!("{doing}, waiting for its end"))
    }

    /// Whether the device reads a source after the call that queues its copy has returned.
    ///
    /// Memory the driver knows (pinned, registered, managed) is read by the device itself. Anything else is pageable and
    /// staged by the driver, unless the device reads pageable memory, which integrated ones do.
    pub(crate) fn is_read_late(&self, src: &[u8]) -> Result<bool> {
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
}

/// Counts a copy that makes the host wait for the device.
pub(crate) fn count_blocking_d2h(bytes: usize) {
    let counters = run_metrics::process().counters();
    counters.count(Counter::BlockingD2hCopies);
    counters.add(Counter::BlockingD2hBytes, bytes as u64);
}

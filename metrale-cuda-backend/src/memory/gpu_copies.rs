// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuCopies`] for [`MetraleCudaBackend`].

use metrale_telemetry::LaunchArg;

use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::error::{BadArgument, Remedy, Result};
use crate::gpu::{GpuCopies, GpuDevice};
use crate::memory::copy::count_blocking_d2h;
use crate::memory::copy_2d::Copy2d;
use crate::memory::transfer::Transfer;
use crate::raw_handles::{DevicePtr, EventHandle, StreamHandle};
use crate::stream::count_sync;

// SAFETY: ends in device memory are checked not to be the host's until the driver was asked, and what uses borrowed host memory
// is waited for, also where a wait was refused.
unsafe impl GpuCopies for MetraleCudaBackend {
    fn copy_h2d(&self, src: &[u8], dst: DevicePtr) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        let copy = Transfer::to_device("copying to the device", dst, src.len());
        self.transfer_now(&copy, None, || {
            // SAFETY: the source is a slice of that many bytes, consumed before the call returns; the destination is no
            // host memory (`ends`), and what else is wrong with it the driver answers.
            unsafe { ask!(self.driver(), cuMemcpyHtoD_v2(dst.0, src.as_ptr().cast(), src.len())) }
        })
    }

    fn copy_d2h(&self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        let copy = Transfer::to_host("copying to the host", src, dst.len());
        self.transfer_now(&copy, None, || {
            count_blocking_d2h(dst.len());
            // SAFETY: the destination is a slice of that many bytes, filled before the call returns.
            unsafe { ask!(self.driver(), cuMemcpyDtoH_v2(dst.as_mut_ptr().cast(), src.0, dst.len())) }
        })
    }

    fn copy_d2d(&self, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let copy = Transfer::inside("copying inside the device", src, dst, bytes);
        self.transfer_now(&copy, None, || {
            // SAFETY: neither end is host memory (`ends`), and what else is wrong with them the driver answers.
            unsafe { ask!(self.driver(), cuMemcpyDtoD_v2(dst.0, src.0, bytes)) }
        })
    }

    fn copy_h2d_async(&self, src: &[u8], dst: DevicePtr, stream: StreamHandle) -> Result<()> {
        const ADVICE: &str = "the graph would read the source at every replay, when it may be gone: use \
                              copy_h2d_async_retained and keep the source";
        if src.is_empty() {
            return Ok(());
        }
        let copy = Transfer::to_device("queueing a copy to the device", dst, src.len());
        let _on_stream = self.on_stream(stream, copy.what, Some(ADVICE))?;
        let ends = self.ends(&copy)?;
        // Asked first: once the copy is queued there must be no way out that leaves the source unguarded.
        let wait = self.is_read_late(src)?;
        // SAFETY: the source is a slice of that many bytes; where the device reads it late, the wait below keeps it borrowed
        // until it has been read, and otherwise the driver has staged it at the return. The ends are checked, and the stream
        // is held.
        let queued = unsafe { self.queue_h2d(&copy, src.as_ptr(), dst, stream) };
        drop(ends);
        if !wait {
            return queued;
        }
        count_sync();
        // Also after a refusal, which may have come when part of the source was already queued.
        // SAFETY: the stream is held.
        let waited = unsafe { self.wait_until_at_rest(stream, dst.0) };
        queued.and(waited)
    }

    unsafe fn copy_h2d_async_retained(
        &self,
        src: *const u8,
        bytes: usize,
        dst: DevicePtr,
        stream: StreamHandle,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let copy = Transfer::to_device("queueing a copy to the device", dst, bytes);
        let _on_stream = self.on_stream(stream, copy.what, None)?;
        let _ends = self.ends(&copy)?;
        // SAFETY: the caller's promise; the stream is held.
        unsafe { self.queue_h2d(&copy, src, dst, stream) }
    }

    fn copy_d2h_on_stream(&self, src: DevicePtr, dst: &mut [u8], stream: StreamHandle) -> Result<()> {
        const ADVICE: &str =
            "it waits for the stream; use copy_d2h_async_retained, and read after a launch of the graph";
        if dst.is_empty() {
            return Ok(());
        }
        let copy = Transfer::to_host("queueing a copy to the host", src, dst.len());
        // Borrowed over the wait too: one that a capture fails would leave the copy under way.
        let _on_stream = self.on_stream(stream, copy.what, Some(ADVICE))?;
        let ends = self.ends(&copy)?;
        count_blocking_d2h(dst.len());
        // SAFETY: the destination is a slice of that many bytes, and stays borrowed over the wait below; the ends are
        // checked, and the stream is held.
        let queued = unsafe { self.queue_d2h(&copy, src, dst.as_mut_ptr(), stream) };
        drop(ends);
        count_sync();
        // Also after a refusal, which may have come when part of the copy was already queued.
        // SAFETY: the stream is held.
        let waited = unsafe { self.wait_until_at_rest(stream, src.0) };
        queued.and(waited)
    }

    unsafe fn copy_d2h_async_retained(
        &self,
        src: DevicePtr,
        dst: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let copy = Transfer::to_host("queueing a copy to the host", src, bytes);
        let _on_stream = self.on_stream(stream, copy.what, None)?;
        let _ends = self.ends(&copy)?;
        // SAFETY: the caller's promise; the stream is held.
        unsafe { self.queue_d2h(&copy, src, dst, stream) }
    }

    fn copy_d2d_async(
        &self,
        src: DevicePtr,
        dst: DevicePtr,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let copy = Transfer::inside("queueing a copy inside the device", src, dst, bytes);
        let _on_stream = self.on_stream(stream, copy.what, None)?;
        let _ends = self.ends(&copy)?;
        // SAFETY: neither end is host memory (`ends`), and what else is wrong with them the driver answers; the stream is held.
        let call = || unsafe { ask!(self.driver(), cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, stream.raw())) };
        // SAFETY: the stream is held.
        unsafe { self.queue_transfer(&copy, stream, None, None, call) }
    }

    unsafe fn copy_2d_async(&self, copy: &Copy2d, stream: StreamHandle) -> Result<()> {
        if copy.rows == 0 || copy.width_bytes == 0 {
            return Ok(());
        }
        let transfer = copy.transfer();
        let _on_stream = self.on_stream(stream, transfer.what, None)?;
        let _ends = self.ends_spanning(&transfer, copy.spans()?)?;
        let raw = copy.raw();
        // SAFETY: the description is a local that the driver reads before it returns; of the host memory it speaks of, the
        // caller has promised that it is valid until the stream has passed the copy; the stream is held.
        let call = || unsafe { ask!(self.driver(), cuMemcpy2DAsync_v2(&raw const raw, stream.raw())) };
        // SAFETY: the stream is held.
        unsafe { self.queue_transfer(&transfer, stream, copy.host(), None, call) }
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let fill = Transfer::fill("filling device memory", dst, bytes);
        self.transfer_now(&fill, Some(LaunchArg::U32(value.into())), || {
            // SAFETY: the destination is no host memory (`ends`), and what else is wrong with it the driver answers.
            unsafe { ask!(self.driver(), cuMemsetD8_v2(dst.0, value, bytes)) }
        })
    }

    fn memset_async(&self, dst: DevicePtr, value: u8, bytes: usize, stream: StreamHandle) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let fill = Transfer::fill("queueing a fill", dst, bytes);
        let _on_stream = self.on_stream(stream, fill.what, None)?;
        let _ends = self.ends(&fill)?;
        // SAFETY: the destination is no host memory (`ends`), and what else is wrong with it the driver answers; the stream
        // is held.
        let call = || unsafe { ask!(self.driver(), cuMemsetD8Async(dst.0, value, bytes, stream.raw())) };
        // SAFETY: the stream is held.
        unsafe { self.queue_transfer(&fill, stream, None, Some(LaunchArg::U32(value.into())), call) }
    }

    fn memset_d32_async(&self, dst: DevicePtr, value: u32, words: usize, stream: StreamHandle) -> Result<()> {
        const WHAT: &str = "queueing a fill with words";
        if words == 0 {
            return Ok(());
        }
        if !dst.0.is_multiple_of(4) {
            return Err(BadArgument::new(format!(
                "{WHAT}: {dst} is no multiple of 4, as a 32-bit word needs"
            ))
            .into());
        }
        let Some(bytes) = words.checked_mul(4) else {
            return Err(BadArgument::new(format!(
                "{WHAT}: {words} words are more bytes than there are addresses"
            ))
            .into());
        };
        let fill = Transfer::fill(WHAT, dst, bytes);
        let _on_stream = self.on_stream(stream, WHAT, None)?;
        let _ends = self.ends(&fill)?;
        // SAFETY: the destination is no host memory (`ends`), and what else is wrong with it the driver answers; the stream
        // is held.
        let call = || unsafe { ask!(self.driver(), cuMemsetD32Async(dst.0, value, words, stream.raw())) };
        // SAFETY: the stream is held.
        unsafe { self.queue_transfer(&fill, stream, None, Some(LaunchArg::U32(value)), call) }
    }

    fn copy_peer_async(
        &self,
        src: DevicePtr,
        to: &dyn GpuDevice,
        dst: DevicePtr,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        self.queue_peer_copy(src, self.peer(to)?, dst, bytes, stream)
    }

    fn copy_peer(&self, src: DevicePtr, to: &dyn GpuDevice, dst: DevicePtr, bytes: usize) -> Result<()> {
        self.peer_copy(src, self.peer(to)?, dst, bytes)
    }

    unsafe fn copy_h2d_async_marked(
        &self,
        src: *const u8,
        bytes: usize,
        dst: DevicePtr,
        stream: StreamHandle,
        mark: EventHandle,
    ) -> Result<()> {
        let copy = Transfer::to_device("queueing a copy from pinned memory", dst, bytes);
        // SAFETY: the caller's promise; the stream is held.
        let queue = || unsafe { self.queue_h2d(&copy, src, dst, stream) };
        self.queue_marked(&copy, stream, mark, dst, queue)
    }

    unsafe fn copy_d2h_async_marked(
        &self,
        src: DevicePtr,
        dst: *mut u8,
        bytes: usize,
        stream: StreamHandle,
        mark: EventHandle,
    ) -> Result<()> {
        let copy = Transfer::to_host("queueing a copy to pinned memory", src, bytes);
        // SAFETY: the caller's promise; the stream is held.
        let queue = || unsafe { self.queue_d2h(&copy, src, dst, stream) };
        self.queue_marked(&copy, stream, mark, src, queue)
    }

    fn wait_for_mark(&self, mark: EventHandle, stream: StreamHandle, device: DevicePtr) -> Result<()> {
        let Err(refused) = self.synchronize_event(mark) else { return Ok(()) };
        if refused.remedy() == Remedy::Relaunch {
            return Err(refused);
        }
        let _on_stream = self.on_stream(stream, "waiting for copies of pinned memory", None)?;
        // SAFETY: the stream is held.
        unsafe { self.wait_until_at_rest(stream, device.0) }
    }
}

impl MetraleCudaBackend {
    /// Queues a copy of memory that its owner gets back when `mark` has passed, and the mark behind it. Where either fails, the
    /// stream is waited for.
    fn queue_marked(
        &self,
        copy: &Transfer,
        stream: StreamHandle,
        mark: EventHandle,
        device: DevicePtr,
        queue: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        const ADVICE: &str = "the graph would use the host memory at every replay, when its owner may have it back: use the \
                              retained copy of that direction and keep the memory";
        // No capture begins before the mark is recorded.
        let _on_stream = self.on_stream(stream, copy.what, Some(ADVICE))?;
        let ends = self.ends(copy)?;
        let queued = queue();
        drop(ends);
        let marked = queued.and_then(|()| self.record_event(mark, stream));
        if marked.is_err() {
            count_sync();
            // SAFETY: the stream is held.
            let waited = unsafe { self.wait_until_at_rest(stream, device.0) };
            return marked.and(waited);
        }
        Ok(())
    }
}

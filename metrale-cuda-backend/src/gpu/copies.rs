// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuCopies`].

use crate::error::Result;
use crate::gpu::GpuDevice;
use crate::memory::Copy2d;
use crate::raw_handles::{DevicePtr, EventHandle, StreamHandle};

/// Copies and fills.
///
/// Where the ledger knows the allocation, what would pass its end is refused before the driver sees it, and so is an address that
/// is, or could be, host memory.
///
/// *Blocking* ones first wait for the backend's own stream and are ordered after the legacy stream, and they are complete when
/// they return: what they wrote is valid on every stream. Work queued on other streams is the caller's to wait for.
///
/// # Safety
/// An implementation writes to no host memory but what it is given to write, reads and writes none of it after a call without
/// "retained" or "marked" in its name has returned, and answers [`wait_for_mark`](Self::wait_for_mark) with success only once
/// the copies before the mark are done: safe owners lend memory by that.
pub unsafe trait GpuCopies: Send + Sync {
    /// Copies `src` to the device. Blocking: complete, and valid on every stream, at return. Refused on a thread that
    /// captures, and while the backend's own stream does.
    ///
    /// # Errors
    /// [`CopyOutOfBounds`](crate::CopyOutOfBounds) past the end of an allocation the ledger knows;
    /// [`NotDeviceMemory`](crate::NotDeviceMemory) for the address of pinned or other host memory, which a driver would take
    /// as well as a device's, whoever has borrowed it. Memory that is not on the ledger costs a question to the driver.
    fn copy_h2d(&self, src: &[u8], dst: DevicePtr) -> Result<()>;

    /// Copies from the device into `dst`. Blocking: the data is there at return. During a capture as
    /// [`copy_h2d`](Self::copy_h2d).
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn copy_d2h(&self, src: DevicePtr, dst: &mut [u8]) -> Result<()>;

    /// Copies `bytes` inside the device. Blocking: complete, and valid on every stream, at return. The ranges may overlap
    /// as far as the driver is concerned, but what lies in the overlap is then undefined. During a capture as
    /// [`copy_h2d`](Self::copy_h2d).
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d), for both ends.
    fn copy_d2d(&self, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()>;

    /// Copies `src` to the device in the order of `stream`; `src` may be changed or dropped at once.
    ///
    /// For that promise a pinned or managed source, which the device reads late, makes the call wait for the stream.
    /// Pageable memory is staged by the driver before the call returns, and costs no wait; on devices that read pageable
    /// memory directly (integrated ones) the call waits as well. Valid on `stream`. Refused while `stream` captures, since
    /// the graph would read the source at every replay: that is what
    /// [`copy_h2d_async_retained`](Self::copy_h2d_async_retained) is for. No capture of `stream` begins meanwhile
    /// ([`StreamInUse`](crate::StreamInUse)).
    ///
    /// Where the driver refuses the wait, the call goes on by other means until the stream is at rest or its context is lost: it
    /// does not return while the device may read `src`. A capture in global mode by another library refuses every wait (900); the
    /// copy then succeeds all the same.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d); the driver's refusal of the wait, unless another's capture was the reason.
    fn copy_h2d_async(&self, src: &[u8], dst: DevicePtr, stream: StreamHandle) -> Result<()>;

    /// Copies `bytes` from `src` to the device in the order of `stream`, never waiting. Valid on `stream`. Recorded by a
    /// capture, and then read at every replay.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    ///
    /// # Safety
    /// `src` must be readable for `bytes` bytes, and neither changed nor freed, until `stream` has passed the copy (and,
    /// if it was captured, for as long as the graph is launched).
    unsafe fn copy_h2d_async_retained(
        &self,
        src: *const u8,
        bytes: usize,
        dst: DevicePtr,
        stream: StreamHandle,
    ) -> Result<()>;

    /// Copies from the device into `dst` in the order of `stream`, and waits for that stream: the data is there at
    /// return. Counts as a blocking copy. Refused while `stream` captures, and keeps captures of it from beginning. A refused wait
    /// is gone on with as by [`copy_h2d_async`](Self::copy_h2d_async): the call does not return while the device may write to `dst`.
    ///
    /// # Errors
    /// As [`copy_h2d_async`](Self::copy_h2d_async).
    fn copy_d2h_on_stream(&self, src: DevicePtr, dst: &mut [u8], stream: StreamHandle) -> Result<()>;

    /// Copies `bytes` from the device to `dst` in the order of `stream`, without waiting (where `dst` is pageable, the
    /// driver waits by itself). The data is there once `stream` has passed the copy. Recorded by a capture.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    ///
    /// # Safety
    /// `dst` must be writable for `bytes` bytes, and neither used nor freed, until `stream` has passed the copy (and, if
    /// it was captured, for as long as the graph is launched).
    unsafe fn copy_d2h_async_retained(
        &self,
        src: DevicePtr,
        dst: *mut u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()>;

    /// Copies `bytes` inside the device in the order of `stream`. Does not block. Valid on `stream`. Recorded by a
    /// capture.
    ///
    /// # Errors
    /// As [`copy_d2d`](Self::copy_d2d).
    fn copy_d2d_async(
        &self,
        src: DevicePtr,
        dst: DevicePtr,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()>;

    /// Copies a pitched rectangle in the order of `stream`. Does not block (where a host side is pageable, the driver
    /// may). Valid on `stream`. Recorded by a capture.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a pitch shorter than the row or a size past the address space;
    /// [`CopyOutOfBounds`](crate::CopyOutOfBounds) for a device side that leaves its allocation.
    ///
    /// # Safety
    /// A host side must be valid for the whole rectangle as [`copy_h2d_async_retained`](Self::copy_h2d_async_retained)
    /// (source) or [`copy_d2h_async_retained`](Self::copy_d2h_async_retained) (destination) ask.
    unsafe fn copy_2d_async(&self, copy: &Copy2d, stream: StreamHandle) -> Result<()>;

    /// Fills `bytes` bytes with `value`. Blocking: complete, and valid on every stream, at return. During a capture as
    /// [`copy_h2d`](Self::copy_h2d).
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn memset(&self, dst: DevicePtr, value: u8, bytes: usize) -> Result<()>;

    /// Fills `bytes` bytes with `value` in the order of `stream`. Does not block. Valid on `stream`. Recorded by a
    /// capture.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn memset_async(&self, dst: DevicePtr, value: u8, bytes: usize, stream: StreamHandle) -> Result<()>;

    /// Fills `words` 32-bit words with `value` in the order of `stream`. Does not block. Valid on `stream`. Recorded by a
    /// capture.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d); [`BadArgument`](crate::BadArgument) where `dst` is no multiple of 4.
    fn memset_d32_async(&self, dst: DevicePtr, value: u32, words: usize, stream: StreamHandle) -> Result<()>;

    /// Copies `bytes` from this backend's device to that of `to`, in the order of `stream`, a stream of this backend. Both
    /// may be on one device.
    ///
    /// Does not block. Valid on `stream`; to make work of the other device wait for it, record an event after it and let a
    /// stream of `to` [wait](crate::GpuStreams::wait_peer_event) for that. What was queued on the other device before is not
    /// waited for. The devices need no access to each other's memory: the driver goes by the host where they have none.
    ///
    /// Within one device it is recorded by a capture of `stream`, whose graph then keeps both ends from being freed. Between
    /// two it is refused while `stream` captures: `cuMemcpyPeerAsync` is no node of a graph, and breaks the capture.
    ///
    /// # Errors
    /// [`CopyOutOfBounds`](crate::CopyOutOfBounds) past the end of an allocation that the ledger of its own side knows;
    /// [`BadArgument`](crate::BadArgument) for backends of two drivers; otherwise as [`GpuBackend`](crate::GpuBackend) says.
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
    fn copy_peer_async(
        &self,
        src: DevicePtr,
        to: &dyn GpuDevice,
        dst: DevicePtr,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<()>;

    /// Copies `bytes` from this backend's device to that of `to`. Blocking: it first waits for both backends' own streams
    /// and for both devices' legacy streams, and is complete, and valid on every stream of both, at return. Refused on a
    /// thread that captures on either device, and while either's own stream does.
    ///
    /// # Errors
    /// As [`copy_peer_async`](Self::copy_peer_async).
    fn copy_peer(&self, src: DevicePtr, to: &dyn GpuDevice, dst: DevicePtr, bytes: usize) -> Result<()>;

    /// [`copy_h2d_async_retained`](Self::copy_h2d_async_retained) with the event `mark` recorded behind the copy. Refused while
    /// `stream` captures. Where the copy or the record fails, `stream` is waited for: nothing of the copy is under way then.
    ///
    /// # Errors
    /// As [`copy_h2d_async_retained`](Self::copy_h2d_async_retained); [`Capturing`](crate::Capturing).
    ///
    /// # Safety
    /// `src` is the start of `bytes` bytes of host memory that stay as they are until `mark` has passed.
    unsafe fn copy_h2d_async_marked(
        &self,
        src: *const u8,
        bytes: usize,
        dst: DevicePtr,
        stream: StreamHandle,
        mark: EventHandle,
    ) -> Result<()>;

    /// [`copy_d2h_async_retained`](Self::copy_d2h_async_retained), as
    /// [`copy_h2d_async_marked`](Self::copy_h2d_async_marked) is for the other direction.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// `dst` is the start of `bytes` bytes of host memory that nobody else uses until `mark` has passed.
    unsafe fn copy_d2h_async_marked(
        &self,
        src: DevicePtr,
        dst: *mut u8,
        bytes: usize,
        stream: StreamHandle,
        mark: EventHandle,
    ) -> Result<()>;

    /// Waits until the event `mark` has passed, behind copies of host memory whose owner gets it back. Where the driver refuses
    /// that wait, it goes on until `stream`, on which `mark` was recorded, is at rest or its context is lost; `device` is an
    /// address that the copies use.
    ///
    /// # Errors
    /// The refusal, where it tells of more than another library's capture. Nothing uses the memory then either.
    fn wait_for_mark(&self, mark: EventHandle, stream: StreamHandle, device: DevicePtr) -> Result<()>;
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuBackend`], the object-safe face that engines call, and its handles.

use core::ffi::c_void;
use core::fmt;

use anyhow::Result;
use metrale_ledger::{LedgerProbe, ScopeGuard};

use crate::launch::KernelLaunch;
use crate::memory::{Copy2d, MemoryInfo, PinnedPtr};

/// An address in device memory. 0 is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address, which no allocation has.
    pub const NULL: Self = Self(0);

    /// Whether this is null.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` behind this one. Stops at the end of the address space, where no allocation is.
    ///
    /// ```
    /// use metrale_cuda_backend::DevicePtr;
    /// assert_eq!(DevicePtr(0x1000).offset(16), DevicePtr(0x1010));
    /// assert_eq!(DevicePtr(u64::MAX).offset(16), DevicePtr(u64::MAX));
    /// ```
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A kernel of a loaded module: the driver's function handle. Valid as long as the backend that found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct KernelHandle(pub u64);

/// An instantiated graph: the driver's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct GraphHandle(pub u64);

/// What an engine asks of a GPU.
///
/// The trait is object-safe: engines hold an `Arc<dyn GpuBackend>`. Calls that allocate, free or look kernels up carry
/// `#[track_caller]`, here and on the implementation, so that the ledger and the audit show the caller's own line through
/// a trait object too.
///
/// # Threads and contexts
/// A backend is `Send + Sync`. The driver keeps one current context a thread: the thread that built the backend is
/// bound, any other calls [`bind_to_thread`](Self::bind_to_thread) once. A thread that forgot gets
/// [`NotBound`](crate::NotBound) and nothing is done; without that check its work could land on another GPU. (Only a free
/// does as well with another GPU bound: the address says whose memory it is.)
///
/// # Streams and events
/// Streams are raw driver handles; 0 is the legacy default stream. [`stream`](Self::stream) is the backend's own; it and
/// those of [`create_stream`](Self::create_stream) do not synchronize with the legacy stream.
///
/// A driver follows the handles it is given, and a dead one ends the process. So each call looks its streams and events up
/// first: [`BadArgument`](crate::BadArgument) answers those that were destroyed, with the line that did it, and those that
/// are none of this backend's. Handles made elsewhere are made known by [`adopt_stream`](Self::adopt_stream) and
/// [`adopt_event`](Self::adopt_event). A handle that is destroyed while a call on another thread uses it stays alive until
/// that call returns.
///
/// *Blocking* operations first wait for the backend's own stream and are ordered after the legacy stream, and they are
/// complete when they return: what they wrote is valid on every stream. Work queued on streams of
/// [`create_stream`](Self::create_stream) is the caller's to wait for.
///
/// # Errors
/// All errors are `anyhow` with a typed cause of [`crate::error`]; [`remedy`](crate::remedy) sorts them by what the caller
/// can do. Every method can answer [`NotBound`](crate::NotBound), [`ContextLost`](crate::ContextLost) and
/// [`CallFailed`](crate::CallFailed), and those that take a stream or an event [`BadArgument`](crate::BadArgument); what else
/// it can answer stands in its own docs.
///
/// # During a capture
/// Unless a method says that it is recorded, do not call it while a stream captures; the driver forbids or, worse, obeys.
pub trait GpuBackend: Send + Sync {
    /// Allocates `bytes` of device memory and puts them on the ledger under the caller's line and the thread's scope.
    ///
    /// The memory is not cleared. May block: the driver waits for nothing but may map pages (1 µs inside a held 2 MiB
    /// chunk, tens of µs for new pages). Valid on every stream. A capture: allocate before it begins.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::OutOfMemory), also for a request above the device's total, which the driver is not asked
    /// for; [`BadArgument`](crate::BadArgument) for 0 bytes; [`LedgerConflict`](crate::LedgerConflict).
    #[track_caller]
    fn alloc(&self, bytes: usize) -> Result<DevicePtr>;

    /// Allocates `bytes` of managed memory, which host and device both reach and the driver migrates.
    ///
    /// On the ledger like [`alloc`](Self::alloc), but without residency: where it lies changes. It may exceed the
    /// device's memory. May block. Valid on every stream. Not allowed during a capture.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    fn alloc_managed(&self, bytes: usize) -> Result<DevicePtr>;

    /// Frees what [`alloc`](Self::alloc) or [`alloc_managed`](Self::alloc_managed) returned. Null is nothing.
    ///
    /// Taken off the ledger before the driver is asked, since the driver may hand the address to another thread at once;
    /// if the driver refuses, the record is put back, marked. A context that is already gone is no error. May block: the
    /// driver waits for work that could still use the memory. Not allowed during a capture.
    ///
    /// # Errors
    /// [`FreeError`](crate::FreeError) for a double free, an interior or foreign pointer or an arena, with the call sites
    /// concerned, before the driver is asked.
    #[track_caller]
    fn free(&self, ptr: DevicePtr) -> Result<()>;

    /// Allocates `bytes` of device memory with an owner of its own: accounted apart and never taken by
    /// [`sweep_unreleased`](Self::sweep_unreleased). Otherwise as [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    fn alloc_arena(&self, bytes: usize) -> Result<DevicePtr>;

    /// Frees what [`alloc_arena`](Self::alloc_arena) returned. Otherwise as [`free`](Self::free).
    ///
    /// # Errors
    /// As [`free`](Self::free); what is no arena is refused.
    #[track_caller]
    fn free_arena(&self, ptr: DevicePtr) -> Result<()>;

    /// Allocates `bytes` of pinned host memory, all zero, registered with the ledger and accounted apart.
    ///
    /// May block for long: pinning costs milliseconds for hundreds of MiB. Not allowed during a capture.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::OutOfMemory) when the host has no more to pin; [`BadArgument`](crate::BadArgument) for 0
    /// bytes.
    #[track_caller]
    fn alloc_pinned(&self, bytes: usize) -> Result<PinnedPtr>;

    /// Frees what [`alloc_pinned`](Self::alloc_pinned) returned. Taken off the ledger before the driver is asked.
    ///
    /// The caller sees to it that no queued copy still uses it. May block. Not allowed during a capture.
    ///
    /// # Errors
    /// [`FreeError`](crate::FreeError) for what is not live pinned memory; [`StalePinned`](crate::StalePinned) for a handle
    /// that was freed before or is another backend's, whoever has its address now.
    #[track_caller]
    fn free_pinned(&self, pinned: PinnedPtr) -> Result<()>;

    /// Copies `src` to the device. Blocking: complete, and valid on every stream, at return.
    ///
    /// # Errors
    /// [`CopyOutOfBounds`](crate::CopyOutOfBounds) past the end of an allocation the ledger knows;
    /// [`NotDeviceMemory`](crate::NotDeviceMemory) for the address of pinned or other host memory, which a driver would take
    /// as well as a device's, whoever has borrowed it. Memory that is not on the ledger costs a question to the driver.
    fn copy_h2d(&self, src: &[u8], dst: DevicePtr) -> Result<()>;

    /// Copies from the device into `dst`. Blocking: the data is there at return.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn copy_d2h(&self, src: DevicePtr, dst: &mut [u8]) -> Result<()>;

    /// Copies `bytes` inside the device. Blocking: complete, and valid on every stream, at return. The ranges may overlap
    /// as far as the driver is concerned, but what lies in the overlap is then undefined.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d), for both ends.
    fn copy_d2d(&self, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()>;

    /// Copies `src` to the device in the order of `stream`; `src` may be changed or dropped at once.
    ///
    /// For that promise a pinned or managed source, which the device reads late, makes the call wait for the stream.
    /// Pageable memory is staged by the driver before the call returns, and costs no wait; on devices that read pageable
    /// memory directly (integrated ones) the call waits as well. Valid on `stream`. Do not use it in a capture: the graph
    /// would read the source at every replay.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn copy_h2d_async(&self, src: &[u8], dst: DevicePtr, stream: u64) -> Result<()>;

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
        stream: u64,
    ) -> Result<()>;

    /// Copies from the device into `dst` in the order of `stream`, and waits for that stream: the data is there at
    /// return. Counts as a blocking copy. Not allowed while `stream` captures.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn copy_d2h_on_stream(&self, src: DevicePtr, dst: &mut [u8], stream: u64) -> Result<()>;

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
        stream: u64,
    ) -> Result<()>;

    /// Copies `bytes` inside the device in the order of `stream`. Does not block. Valid on `stream`. Recorded by a
    /// capture.
    ///
    /// # Errors
    /// As [`copy_d2d`](Self::copy_d2d).
    fn copy_d2d_async(&self, src: DevicePtr, dst: DevicePtr, bytes: usize, stream: u64) -> Result<()>;

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
    unsafe fn copy_2d_async(&self, copy: &Copy2d, stream: u64) -> Result<()>;

    /// Fills `bytes` bytes with `value`. Blocking: complete, and valid on every stream, at return.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn memset(&self, dst: DevicePtr, value: u8, bytes: usize) -> Result<()>;

    /// Fills `bytes` bytes with `value` in the order of `stream`. Does not block. Valid on `stream`. Recorded by a
    /// capture.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d).
    fn memset_async(&self, dst: DevicePtr, value: u8, bytes: usize, stream: u64) -> Result<()>;

    /// Fills `words` 32-bit words with `value` in the order of `stream`. Does not block. Valid on `stream`. Recorded by a
    /// capture.
    ///
    /// # Errors
    /// As [`copy_h2d`](Self::copy_h2d); [`BadArgument`](crate::BadArgument) where `dst` is no multiple of 4.
    fn memset_d32_async(&self, dst: DevicePtr, value: u32, words: usize, stream: u64) -> Result<()>;

    /// Makes a stream that does not synchronize with the legacy stream. Does not block. The driver takes a
    /// page of 2 MiB of device memory for the second stream of a context and for every fourth after it, and keeps it
    /// (measured on an H200).
    ///
    /// # Errors
    /// As the trait says.
    #[track_caller]
    fn create_stream(&self) -> Result<u64>;

    /// Destroys a stream of [`create_stream`](Self::create_stream). Does not block: the driver lets its queued work end.
    /// Whatever the answer, the stream is not to be used again. What nobody destroys, the backend's drop does.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for the legacy stream and the backend's own, and for an adopted one.
    #[track_caller]
    fn destroy_stream(&self, stream: u64) -> Result<()>;

    /// Makes a stream that something else made known, so that it can be used here. It stays its maker's to destroy. Does not
    /// block; the driver is not asked.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a stream that is known already.
    ///
    /// # Safety
    /// `stream` is a live stream of the backend's context, and stays live until [`release_stream`](Self::release_stream)
    /// has returned `Ok`, or the backend is dropped.
    #[track_caller]
    unsafe fn adopt_stream(&self, stream: u64) -> Result<()>;

    /// Makes a stream unknown without destroying it: an adopted one, or one of [`create_stream`](Self::create_stream), which
    /// is then the caller's to destroy. Does not block; the driver is not asked.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) while a call on another thread uses it: it is then still known.
    #[track_caller]
    fn release_stream(&self, stream: u64) -> Result<()>;

    /// Waits until the work queued on `stream` is done. A kernel's fault shows here. Not allowed while `stream` captures:
    /// it would invalidate the capture.
    ///
    /// # Errors
    /// As the trait says.
    fn synchronize_stream(&self, stream: u64) -> Result<()>;

    /// Whether the work queued on `stream` is done. Does not block. Not allowed while `stream` captures: it would
    /// invalidate the capture.
    ///
    /// # Errors
    /// As the trait says.
    fn query_stream(&self, stream: u64) -> Result<bool>;

    /// The backend's own stream.
    fn stream(&self) -> u64;

    /// Waits until all work of the device's context is done, whoever queued it. Not allowed during any capture.
    ///
    /// # Errors
    /// As the trait says.
    fn synchronize(&self) -> Result<()>;

    /// Makes an event that keeps no time, the cheaper kind. Does not block. Allowed during a capture.
    ///
    /// # Errors
    /// As the trait says.
    #[track_caller]
    fn create_event(&self) -> Result<u64>;

    /// Makes an event for [`elapsed_ms`](Self::elapsed_ms). Does not block. Allowed during a capture.
    ///
    /// # Errors
    /// As the trait says.
    #[track_caller]
    fn create_timing_event(&self) -> Result<u64>;

    /// Records `event` behind the work queued on `stream` so far. Does not block. Recorded by a capture.
    ///
    /// # Errors
    /// As the trait says.
    fn record_event(&self, event: u64, stream: u64) -> Result<()>;

    /// Makes later work of `stream` wait for `event`; one never recorded counts as passed. Does not block. Recorded by a
    /// capture, for events recorded in that capture.
    ///
    /// # Errors
    /// As the trait says.
    fn wait_event(&self, stream: u64, event: u64) -> Result<()>;

    /// Whether `event` has passed; one never recorded has. Does not block. Not allowed for an event recorded in a
    /// capture.
    ///
    /// # Errors
    /// As the trait says.
    fn query_event(&self, event: u64) -> Result<bool>;

    /// Waits until `event` has passed. Not allowed for an event recorded in a capture.
    ///
    /// # Errors
    /// As the trait says.
    fn synchronize_event(&self, event: u64) -> Result<()>;

    /// Milliseconds between two events of [`create_timing_event`](Self::create_timing_event) that have passed. Does not
    /// block.
    ///
    /// # Errors
    /// [`CallFailed`](crate::CallFailed) where an event keeps no time, was never recorded or has not passed.
    fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32>;

    /// Destroys an event. Does not block. Whatever the answer, the event is not to be used again. What nobody destroys, the
    /// backend's drop does.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for an adopted event.
    #[track_caller]
    fn destroy_event(&self, event: u64) -> Result<()>;

    /// As [`adopt_stream`](Self::adopt_stream), for an event.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for an event that is known already, and for null.
    ///
    /// # Safety
    /// `event` is a live event, and stays live until [`release_event`](Self::release_event) has returned `Ok`, or the
    /// backend is dropped.
    #[track_caller]
    unsafe fn adopt_event(&self, event: u64) -> Result<()>;

    /// As [`release_stream`](Self::release_stream), for an event.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) while a call on another thread uses it: it is then still known.
    #[track_caller]
    fn release_event(&self, event: u64) -> Result<()>;

    /// The kernel `function` of the module `module`, noted in the kernel audit under the caller's line. Cached: resolve
    /// once, keep the handle.
    ///
    /// # Errors
    /// The registry's, naming what there is instead; [`NTileError`](crate::NTileError) where the tile width that the kernel
    /// publishes is no 32-bit number. Once the audit is sealed, a kernel that is not there ends the
    /// process unless the seal allows it.
    #[track_caller]
    fn kernel(&self, module: &str, function: &str) -> Result<KernelHandle>;

    /// As [`kernel`](Self::kernel), for a kernel the caller can do without: `None` where it is not there.
    ///
    /// # Errors
    /// As the trait says; an absent module or function is no error.
    #[track_caller]
    fn optional_kernel(&self, module: &str, function: &str) -> Result<Option<KernelHandle>>;

    /// The tile width that a kernel publishes in a global `<entry>_n_tile`, read once when the kernel was looked up; `None`
    /// where it publishes none, or where this backend did not look it up. Does not block; allowed during a capture.
    fn n_tile(&self, kernel: KernelHandle) -> Option<u32>;

    /// Address and size in bytes of a global of a module. Not on the ledger: it belongs to the module.
    ///
    /// # Errors
    /// The registry's, where module or symbol is not there.
    fn device_symbol(&self, module: &str, symbol: &str) -> Result<(DevicePtr, usize)>;

    /// Launches a kernel in the order of `stream`. Does not block, unless
    /// [`debug_sync_kernels`](crate::BackendConfig::debug_sync_kernels) is on. Recorded by a capture.
    /// [`KernelLaunch`](crate::KernelLaunch) is the typed way.
    ///
    /// # Errors
    /// [`LaunchError`](crate::LaunchError) with kernel, grid, block, shared memory and what was asked too much;
    /// [`KernelFault`](crate::KernelFault) where `debug_sync_kernels` is on and the kernel failed;
    /// [`BadArgument`](crate::BadArgument) for fewer `params` than the kernel's image says it takes.
    ///
    /// # Safety
    /// `kernel` is of this backend: [`kernel`](Self::kernel) returned it. `params` must hold one pointer for each of the
    /// kernel's parameters, in order, each to a readable value of that parameter's size; they are read before the call
    /// returns. What the kernel does with them must be sound: device addresses valid, and live until `stream` has passed the
    /// launch.
    #[allow(clippy::too_many_arguments, reason = "a launch is these seven things in the driver too")]
    unsafe fn launch(
        &self,
        kernel: KernelHandle,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: u64,
        params: &mut [*mut c_void],
    ) -> Result<()>;

    /// Launches a kernel with typed arguments in the order of `stream`; what [`KernelLaunch::on_stream`] calls. Otherwise
    /// as [`launch`](Self::launch).
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    ///
    /// # Safety
    /// As [`KernelLaunch::on_stream`].
    unsafe fn launch_typed(&self, launch: &mut KernelLaunch, stream: u64) -> Result<()>;

    /// Makes the backend's context current on this thread. Call it once on every thread that did not build the backend.
    /// Does not block.
    ///
    /// # Errors
    /// As the trait says.
    fn bind_to_thread(&self) -> Result<()>;

    /// The device's place among those the process sees, from 0.
    fn ordinal(&self) -> usize;

    /// Bytes on the ledger: live device and managed allocations, as callers asked for them. One atomic load.
    fn live_bytes(&self) -> usize;

    /// Every live device and managed allocation: address, bytes, and `file:line:column` of who allocated it.
    fn live_allocations(&self) -> Vec<(DevicePtr, usize, String)>;

    /// Bytes of the 2 MiB chunks that small allocations touch, less their own bytes.
    fn chunk_slack_bytes(&self) -> usize;

    /// Bytes the driver keeps for the ledger's device allocations: the 2 MiB pages they touch. One atomic load.
    fn resident_bytes(&self) -> usize;

    /// A clonable handle that reads the same ledger, for a reader that cannot hold the backend.
    fn ledger_probe(&self) -> LedgerProbe;

    /// The ledger as text: up to `top_n` call sites of at least `min_mb` MiB each, largest first, then files and scopes.
    fn alloc_report(&self, top_n: usize, min_mb: usize) -> String;

    /// Labels what this thread allocates until the guard is dropped; nested labels join with `/`.
    fn scope(&self, label: &str) -> ScopeGuard;

    /// Free and total bytes of the device, as the driver says them now (about 7 µs). Does not block.
    ///
    /// # Errors
    /// As the trait says.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Frees every device and managed allocation still on the ledger, and returns how many there were.
    ///
    /// One warning gives the total and the five largest call sites. A free that fails is logged and the rest still
    /// freed; arenas and pinned memory stay. May block. Works on a thread that is not bound. Not allowed during a
    /// capture.
    ///
    /// # Errors
    /// [`ContextLost`](crate::ContextLost) or [`CallFailed`](crate::CallFailed) where the context cannot be made current;
    /// the ledger is then untouched.
    #[track_caller]
    fn sweep_unreleased(&self) -> Result<usize>;
}

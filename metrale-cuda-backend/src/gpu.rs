// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuBackend`], the object-safe face that engines call, and its handles.

use core::ffi::c_void;
use core::fmt;
use core::time::Duration;

use anyhow::Result;
use metrale_ledger::{LedgerProbe, ScopeGuard};

use crate::graph::{GraphInfo, GraphUpdate};
use crate::launch::KernelLaunch;
use crate::memory::{
    Account, Copy2d, EffectiveFree, Freed, LowMemoryHandler, MemoryInfo, OwnedMemory, PinnedPtr, PolledFree,
    WatchdogThread,
};
use crate::redzone::ScanReport;
use crate::tensormap::{TensorMap, TensorMapSpec};

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

    /// The address `bytes` after this one. Stops at the end of the address space, where no allocation is.
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

/// An instantiated graph: the driver's handle. Good until [`GpuBackend::destroy_graph`], or the end of its backend; what is
/// no graph any more is refused by name.
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
/// does as well with another GPU bound: the address says whose memory it is.) Launches and replays on streams other than the
/// driver's own go where the stream is, whatever is bound. So for them a thread that was seen bound is not asked about again:
/// where another library has changed its context since, the driver does the work on the stream, or refuses and the answer is
/// [`NotBound`](crate::NotBound).
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
/// it can answer is in its own docs.
///
/// # During a capture
/// Captures are [begun](Self::begin_capture) relaxed. What would break one, or be done at once and so be missing from its
/// graph, is refused with [`Capturing`](crate::Capturing) before the driver is asked, and the capture goes on:
///
/// * on the thread that began a capture: allocating, freeing, sweeping, blocking copies and fills, asking for the free
///   memory or the account, scanning red zones, work on the legacy stream. Other threads may do all that meanwhile;
/// * on a stream that takes part in one: waiting for it, querying, destroying and releasing it, copies that wait for it, launching a
///   graph;
/// * for an event recorded in one: waiting for it, querying it, measuring with it;
/// * anywhere: waiting for the whole device.
///
/// That holds for all backends of a device in one process, which share its context, and for those of another device whose
/// stream has joined the capture. Captures begun outside this crate are
/// not known to it. A stream that synchronizes with the legacy stream, which no stream of this crate does, is broken by any
/// use of that one on any thread, blocking copies included: capture streams of [`create_stream`](Self::create_stream).
///
/// What a capture is known to use stays *pinned* while it goes on and while its graph lives: pointers in typed arguments,
/// both ends of copies, targets of fills, and pinned host memory of copies. Freeing it is refused with
/// [`PinnedByGraph`](crate::PinnedByGraph). The arguments of untyped launches are not known, nor is what a kernel reaches
/// through a tensor map or a table of pointers: [`KernelLaunch::touches`], [`pin_in_capture`](Self::pin_in_capture) and
/// [`pin_graph`](Self::pin_graph) say so. Memory is looked up on the ledger of the backend that is given the work, and
/// the far end of a copy between backends on that of the other; whichever backend allocated it refuses the free. Without
/// feature `ledger` nothing is pinned.
pub trait GpuBackend: Send + Sync {
    /// Allocates `bytes` of device memory and puts them on the ledger under the caller's line and the thread's scope.
    ///
    /// The memory is not cleared. May block: the driver waits for nothing but may map pages (1 µs inside a held 2 MiB
    /// chunk, tens of µs for new pages). Valid on every stream. Refused on a thread that captures: allocate before.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::OutOfMemory), also for a request above the device's total, which the driver is not asked
    /// for; [`BadArgument`](crate::BadArgument) for 0 bytes; [`LedgerConflict`](crate::LedgerConflict).
    #[track_caller]
    fn alloc(&self, bytes: usize) -> Result<DevicePtr>;

    /// Allocates `bytes` of managed memory, which host and device both reach and the driver migrates.
    ///
    /// On the ledger like [`alloc`](Self::alloc), but without residency: where it lies changes. It may exceed the
    /// device's memory. May block. Valid on every stream. Refused on a thread that captures.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    fn alloc_managed(&self, bytes: usize) -> Result<DevicePtr>;

    /// Frees what [`alloc`](Self::alloc) or [`alloc_managed`](Self::alloc_managed) returned. Null is nothing.
    ///
    /// Removed from the ledger before the driver is asked, since the driver may hand the address to another thread at once;
    /// if the driver refuses, the record is restored, marked. A context that is already gone is no error. May block: the
    /// driver waits for work that could still use the memory. Refused on a thread that captures. The thread need not be
    /// bound, unless there are red zones to be looked at: the address says whose memory it is.
    ///
    /// # Errors
    /// [`FreeError`](crate::FreeError) for a double free, an interior or foreign pointer or an arena, with the call sites
    /// concerned, before the driver is asked; [`PinnedByGraph`](crate::PinnedByGraph) for memory that a graph uses, with
    /// the graph's name and the lines that allocated and captured.
    #[track_caller]
    fn free(&self, ptr: DevicePtr) -> Result<()>;

    /// [`alloc`](Self::alloc) for an owner, such as [`DeviceBuffer`](crate::DeviceBuffer): with the creation index by which
    /// [`free_owned`](Self::free_owned) tells this memory from what is at its address later.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    fn alloc_owned(&self, bytes: usize) -> Result<OwnedMemory> {
        Ok(OwnedMemory::new(self.alloc(bytes)?, bytes, 0))
    }

    /// Frees what [`alloc_owned`](Self::alloc_owned) returned, or does so as soon as it may: on a thread that captures when
    /// its capture has ended, and memory that a graph uses when that is destroyed. Until then it is on the ledger. Any
    /// thread may call it, bound or not. May block, as [`free`](Self::free) does.
    ///
    /// # Errors
    /// [`FreeError`](crate::FreeError) where the memory was freed before, by [`free`](Self::free) or a sweep: whatever is at
    /// its address now stays. [`ContextLost`](crate::ContextLost); the memory is then the system's to free.
    #[track_caller]
    fn free_owned(&self, memory: OwnedMemory) -> Result<Freed> {
        self.free(memory.ptr()).map(|()| Freed::Now)
    }

    /// Allocates `bytes` of device memory with an owner of its own: accounted apart and never taken by
    /// [`sweep_unreleased`](Self::sweep_unreleased). Otherwise as [`alloc`](Self::alloc).
    /// [`PackedArena`](crate::PackedArena) is one that allocates named parts of itself; it is made where the backend is, before
    /// that is handed on as a trait object.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    fn alloc_arena(&self, bytes: usize) -> Result<DevicePtr>;

    /// Frees what [`alloc_arena`](Self::alloc_arena) returned. Otherwise as [`free`](Self::free).
    ///
    /// # Errors
    /// As [`free`](Self::free); what is no arena is refused, and so, with [`BadArgument`](crate::BadArgument), is what a value of
    /// this crate owns and frees itself: a [`PackedArena`](crate::PackedArena), scratch memory of an operation, an adopted
    /// allocation of cudarc's.
    #[track_caller]
    fn free_arena(&self, ptr: DevicePtr) -> Result<()>;

    /// Allocates `bytes` of pinned host memory, all zero, registered with the ledger and accounted apart.
    ///
    /// May block for long: pinning costs milliseconds for hundreds of MiB. Refused on a thread that captures. Waits for no call on
    /// another thread: memory where a copy or fill follows an address right now is not given out, and other memory is asked for.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::OutOfMemory) when the host has no more to pin, or the control group of this process allows no
    /// more, for which the driver is not asked; [`BadArgument`](crate::BadArgument) for 0 bytes, or where calls on other threads
    /// follow addresses all over.
    #[track_caller]
    fn alloc_pinned(&self, bytes: usize) -> Result<PinnedPtr>;

    /// Frees what [`alloc_pinned`](Self::alloc_pinned) returned. Taken off the ledger before the driver is asked.
    ///
    /// The caller makes sure that no queued copy still uses it. May block. Refused on a thread that captures.
    ///
    /// # Errors
    /// [`FreeError`](crate::FreeError) for what is not live pinned memory; [`StalePinned`](crate::StalePinned) for a handle
    /// that was freed before or is another backend's, whoever has its address now;
    /// [`PinnedByGraph`](crate::PinnedByGraph) for a captured copy's.
    #[track_caller]
    fn free_pinned(&self, pinned: PinnedPtr) -> Result<()>;

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
    /// return. Counts as a blocking copy. Refused while `stream` captures, and keeps captures of it from beginning. A refused wait
    /// is gone on with as by [`copy_h2d_async`](Self::copy_h2d_async): the call does not return while the device may write to `dst`.
    ///
    /// # Errors
    /// As [`copy_h2d_async`](Self::copy_h2d_async).
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
    /// Allowed during a capture.
    ///
    /// # Errors
    /// As the trait says.
    #[track_caller]
    fn create_stream(&self) -> Result<u64>;

    /// Destroys a stream of [`create_stream`](Self::create_stream). Works on a thread that is not bound. Does not block: the driver completes its queued work, and
    /// a call of another thread that still uses the stream destroys it when it returns. Refused while it takes part in a
    /// capture. On every other answer the stream must not be used again. The backend's drop destroys what is left.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for the legacy stream and the backend's own, and for an adopted one.
    #[track_caller]
    fn destroy_stream(&self, stream: u64) -> Result<()>;

    /// Makes a stream known that something else created, so that it can be used here. Only its creator may destroy it. Does not
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
    /// is then the caller's to destroy. Refused while it takes part in a capture. Does not block; the driver is not
    /// asked.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) while a call on another thread uses it: it is then still known.
    #[track_caller]
    fn release_stream(&self, stream: u64) -> Result<()>;

    /// Waits until the work queued on `stream` is done. A kernel's fault shows here. Refused while `stream` captures.
    ///
    /// # Errors
    /// As the trait says.
    fn synchronize_stream(&self, stream: u64) -> Result<()>;

    /// Whether the work queued on `stream` is done. Does not block. Refused while `stream` captures.
    ///
    /// # Errors
    /// As the trait says.
    fn query_stream(&self, stream: u64) -> Result<bool>;

    /// The backend's own stream.
    fn stream(&self) -> u64;

    /// Waits until all work of the device's context is done, whoever queued it. Refused during any capture on the device,
    /// whichever thread's.
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

    /// Records `event` after the work queued on `stream` so far. Does not block. Recorded by a capture, after whose end the
    /// event marks nothing until it is recorded anew.
    ///
    /// # Errors
    /// As the trait says.
    fn record_event(&self, event: u64, stream: u64) -> Result<()>;

    /// Makes later work of `stream` wait for `event`; one never recorded counts as passed. Does not block. Recorded by a
    /// capture, for events recorded in it: a stream that waits for such an event takes part in the capture from then on,
    /// and must be joined, by an event the other way, before the end. Other events are refused there.
    ///
    /// # Errors
    /// As the trait says; [`StreamInUse`](crate::StreamInUse) where the stream would take part in a capture while a copy on another
    /// thread borrows host memory on it.
    fn wait_event(&self, stream: u64, event: u64) -> Result<()>;

    /// Whether `event` has passed; one never recorded has. Does not block. Refused for an event recorded in a capture.
    ///
    /// # Errors
    /// As the trait says.
    fn query_event(&self, event: u64) -> Result<bool>;

    /// Waits until `event` has passed. Refused for an event recorded in a capture.
    ///
    /// # Errors
    /// As the trait says.
    fn synchronize_event(&self, event: u64) -> Result<()>;

    /// Milliseconds between two events of [`create_timing_event`](Self::create_timing_event) that have passed. Does not
    /// block. Refused for an event recorded in a capture.
    ///
    /// # Errors
    /// [`CallFailed`](crate::CallFailed) where an event keeps no time, was never recorded or has not passed.
    fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32>;

    /// Destroys an event. Works on a thread that is not bound. Does not block. Allowed during a capture. Whatever the answer, the event is not to be used again.
    /// What nobody destroys, the backend's drop does.
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
    /// launch (and, if it was captured, for as long as the graph is launched: what is not pinned is the caller's to keep).
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

    /// Begins to capture `stream`: until the end its work is recorded and not done. Relaxed: what other threads do
    /// meanwhile is their own (see *During a capture*, above). Waits for no call on another thread: where one copies borrowed host
    /// memory on this very stream ([`copy_h2d_async`](Self::copy_h2d_async),
    /// [`copy_d2h_on_stream`](Self::copy_d2h_on_stream)), which no graph may keep, it is refused at once. What is captured is pinned
    /// before the driver records it; a copy or fill of freed memory is refused. A stream is
    /// one thread's while it is captured: a wait for it that another thread has begun by then may fail, and cost the capture.
    ///
    /// [`CaptureGuard`](crate::CaptureGuard) gives a capture up that does not reach its end. Load modules and launch each
    /// kernel once before, so that nothing is set up during the capture.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for the legacy stream, which cannot be captured, and for that of each thread, which
    /// any use of the legacy stream would break;
    /// [`Capturing`](crate::Capturing) where the stream takes part in a capture already;
    /// [`StreamInUse`](crate::StreamInUse) where another thread's copy borrows host memory on it;
    /// [`FeatureOff`](crate::FeatureOff) without feature `graph`.
    #[track_caller]
    fn begin_capture(&self, stream: u64) -> Result<()>;

    /// Ends the capture begun on `stream` and instantiates its graph, under a name of its own: `graph-1` and so on. The
    /// driver's template goes on every path. May block; takes device memory (2 MiB for a node, 12 MiB for 5000, kept by the
    /// driver for the next graph when this one goes). Any thread may end it. The graph can be launched on any stream.
    ///
    /// # Errors
    /// [`NotCapturing`](crate::NotCapturing) where no capture was begun on this stream, with the one that was where it only
    /// takes part: nothing is changed then. [`CallFailed`](crate::CallFailed) where the capture was broken (901) by a call
    /// outside this backend, or a stream was not joined (904), saying which; where the graph cannot be instantiated. The
    /// capture is then over and the stream usable, unless the error says otherwise.
    fn end_capture(&self, stream: u64) -> Result<GraphHandle>;

    /// As [`end_capture`](Self::end_capture), with a name for errors, reports and traces. Names need not be unique.
    ///
    /// # Errors
    /// As [`end_capture`](Self::end_capture).
    fn end_capture_named(&self, stream: u64, name: &str) -> Result<GraphHandle>;

    /// Gives up the capture that `stream` takes part in, without a graph, and tells whether there was one. A capture of
    /// this driver's backends ends on all its streams, whichever of them is given; so does a broken one. Works on a thread
    /// that is not bound. Does not block.
    ///
    /// # Errors
    /// As the trait says, where the driver does not let it end.
    fn abort_capture_if_active(&self, stream: u64) -> Result<bool>;

    /// Whether `stream` captures, as the driver says, a broken capture that was not ended included. A failed query counts
    /// as capturing. On SCALE the driver cannot tell, is not asked, and the answer is always false. Does not block. Allowed
    /// during a capture.
    fn stream_is_capturing(&self, stream: u64) -> bool;

    /// Pins the allocation around `ptr` for the capture that `stream` takes part in, and then for its graph: memory it uses
    /// in a way that no typed argument tells. Does not block, asks no driver.
    ///
    /// # Errors
    /// [`NotCapturing`](crate::NotCapturing); [`BadArgument`](crate::BadArgument) for what is not live on the ledger.
    fn pin_in_capture(&self, stream: u64, ptr: DevicePtr) -> Result<()>;

    /// Launches a graph in the order of `stream`. Does not block, unless
    /// [`debug_sync_kernels`](crate::BackendConfig::debug_sync_kernels) is on. Launches of one graph run one after the
    /// other. Refused while `stream` captures.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a graph that was destroyed, by name, or that never was: the driver is not
    /// asked. [`GraphFault`](crate::GraphFault) where `debug_sync_kernels` is on and the graph failed.
    fn launch_graph(&self, graph: GraphHandle, stream: u64) -> Result<()>;

    /// Ends the capture begun on `stream` and has `graph` do its work instead of the old, from the next launch on, which is
    /// far cheaper than a new graph: for the same nodes with other arguments. The graph keeps handle and name; what it pins
    /// is what the new work uses. Launches already queued are not touched. Does not block.
    ///
    /// Where the driver cannot, because more than arguments changed, [`GraphUpdate`] says what, and the graph is as before.
    /// The capture is over in either case.
    ///
    /// # Errors
    /// As [`end_capture`](Self::end_capture); [`BadArgument`](crate::BadArgument) for what is no graph, and
    /// [`NotSupported`](crate::NotSupported) on a driver without `cuGraphExecUpdate_v2` (before CUDA 12): in these two the
    /// capture goes on and can be ended otherwise.
    fn update_graph(&self, graph: GraphHandle, stream: u64) -> Result<GraphUpdate>;

    /// Destroys a graph and releases what it pinned. Works on a thread that is not bound. Launches already queued are the driver's to finish. A context that is
    /// already gone is no error. Does not block. Allowed during a capture.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a graph that was destroyed before, or never was. Where the driver refuses,
    /// the graph stays, with its pins.
    fn destroy_graph(&self, graph: GraphHandle) -> Result<()>;

    /// Pins the allocation around `ptr` as long as `graph` lives, or until its work is replaced by
    /// [`update_graph`](Self::update_graph). Does not block, asks no driver. Allowed during a capture.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for what is no graph, or not live on the ledger.
    fn pin_graph(&self, graph: GraphHandle, ptr: DevicePtr) -> Result<()>;

    /// Every graph of this backend, in the order of their captures: name, nodes, bytes, what it pins.
    fn graphs(&self) -> Vec<GraphInfo>;

    /// Makes the backend's context current on this thread. Call it once on every thread that did not build the backend.
    /// Does not block.
    ///
    /// # Errors
    /// As the trait says.
    fn bind_to_thread(&self) -> Result<()>;

    /// The device's place among those the process sees, from 0.
    fn ordinal(&self) -> usize;

    /// Bytes on the ledger: live device and managed allocations, as callers asked for them. A few atomic loads.
    fn live_bytes(&self) -> usize;

    /// Every live device and managed allocation: address, bytes, and `file:line` of who allocated it.
    fn live_allocations(&self) -> Vec<(DevicePtr, usize, String)>;

    /// Bytes of the 2 MiB chunks that small allocations touch, less their own bytes.
    fn chunk_slack_bytes(&self) -> usize;

    /// Bytes the driver keeps for the ledger's device allocations: the 2 MiB pages they touch. A few atomic loads.
    fn resident_bytes(&self) -> usize;

    /// A clonable handle that reads the same ledger, for a reader that cannot hold the backend.
    fn ledger_probe(&self) -> LedgerProbe;

    /// The ledger as text: up to `top_n` call sites of at least `min_mb` MiB each, largest first, then files and scopes; then
    /// a line for each graph.
    fn alloc_report(&self, top_n: usize, min_mb: usize) -> String;

    /// Labels what this thread allocates until the guard is dropped; nested labels join with `/`.
    fn scope(&self, label: &str) -> ScopeGuard;

    /// Names one live allocation, whatever scope it was made in, by its first byte: reports, snapshots and answers about the
    /// address tell the name, and those of a peak before it do not. False, and nothing done, where none begins there. Does not
    /// block.
    fn tag(&self, ptr: DevicePtr, tag: &str) -> bool;

    /// Starts the ledger's peaks anew from what is live now, so that the next [`peak_snapshot`] is of a phase: a request, or
    /// all after the load. Does not block.
    ///
    /// [`peak_snapshot`]: LedgerProbe::peak_snapshot
    fn reset_peak(&self);

    /// Free and total bytes of the device, as the driver says them now (about 7 µs). Does not block. Refused on a thread
    /// that captures.
    ///
    /// # Errors
    /// As the trait says.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Bytes of device memory that can be had: the driver's free figure on a discrete GPU, and on an integrated one the larger
    /// of it and what the host has available. [`effective_free`](Self::effective_free) without its provenance. Refused on a
    /// thread that captures.
    ///
    /// # Errors
    /// As [`effective_free`](Self::effective_free).
    fn free_memory(&self) -> Result<u64>;

    /// Free bytes of the device as its driver says them, whatever the host has. Does not block; some 7 µs. Refused
    /// on a thread that captures.
    ///
    /// # Errors
    /// As the trait says.
    fn device_free_memory(&self) -> Result<u64>;

    /// The device's memory in bytes. Asks nobody.
    fn total_memory(&self) -> u64;

    /// Device memory that can be had, with where the figure comes from, how old it is and all that was known. Never above
    /// the device's total. Does not block; some 7 µs, and on an integrated GPU a read of `/proc/meminfo`. Refused on a
    /// thread that captures.
    ///
    /// # Errors
    /// As the trait says, where the driver does not answer and the host's figure does not count.
    fn effective_free(&self) -> Result<EffectiveFree>;

    /// [`free_memory`](Self::free_memory), cheaply: asked for every 250 ms, and in between corrected by what the ledger has
    /// changed since. Does not block; some tens of ns between two questions. Refused on a thread that captures.
    ///
    /// # Errors
    /// As the trait says, where there never was an answer.
    fn poll_free_memory(&self) -> Result<PolledFree>;

    /// The account: the driver's used bytes as a sum of named terms, each measured, modelled or unknown, and a signed
    /// remainder that closes it. Does not block; some 7 µs and a walk over the ledger. Refused on a thread that captures.
    ///
    /// # Errors
    /// As the trait says.
    fn account(&self) -> Result<Account>;

    /// Starts the process's watchdog over this device's free memory, which ends the process: three readings in a row
    /// below `threshold_mb` MiB, taken every `interval`, print the ledger's report and exit with
    /// [`LOW_MEMORY_EXIT_CODE`](crate::memory::LOW_MEMORY_EXIT_CODE).
    ///
    /// A good reading in between starts the count anew, an unanswered one changes nothing. What is read is the
    /// [effective free memory](Self::effective_free). The watchdog keeps no context alive: when the device's last user
    /// is gone its readings go unanswered. Does not block. Allowed during a capture, where it goes on reading.
    ///
    /// # Errors
    /// [`WatchdogError`](crate::memory::WatchdogError): a threshold of 0 or above the device's total, an interval of 0 or above a
    /// minute, a process that has one already. [`FeatureOff`](crate::FeatureOff) without the feature `watchdog`.
    fn spawn_oom_watchdog(&self, threshold_mb: u64, interval: Duration) -> Result<WatchdogThread>;

    /// As [`spawn_oom_watchdog`](Self::spawn_oom_watchdog), and calls `handler`, once, instead of ending the process. The
    /// report is printed before. The handler runs on the watchdog's thread, to which the device's context is bound.
    ///
    /// # Errors
    /// As [`spawn_oom_watchdog`](Self::spawn_oom_watchdog).
    fn spawn_oom_watchdog_with(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: LowMemoryHandler,
    ) -> Result<WatchdogThread>;

    /// Looks at every red zone, and returns how many bands were written to. Each is logged at ERROR with its owner's line,
    /// scope and creation index, what changed and since when, and is filled again. 0 without red zones.
    ///
    /// Blocking: waits for the legacy stream, the backend's own and those of [`create_stream`](Self::create_stream) that do
    /// not capture; then one kernel launch checks all bands, or copies do where there is no kernel. Refused on a thread that
    /// captures, and while the backend's own stream does.
    ///
    /// # Errors
    /// What kept it from looking, such as [`ContextLost`](crate::ContextLost): then nothing is known of any band.
    fn scan_redzones(&self) -> Result<usize>;

    /// [`scan_redzones`](Self::scan_redzones) with everything it found. Bands that could not be looked at are counted as not
    /// checked, with the reason, and are no error.
    ///
    /// # Errors
    /// [`NotBound`](crate::NotBound), [`Capturing`](crate::Capturing) on a thread that captures or while the backend's
    /// own stream does, [`BadArgument`](crate::BadArgument) where that was begun outside this crate, and
    /// [`ContextLost`](crate::ContextLost) where there is no band to count.
    fn scan_redzones_report(&self) -> Result<ScanReport>;

    /// Fills the bands of allocations with a creation index in `low..high` with 0xEE and all others with zeros, those of
    /// later allocations too, and returns how many bands are poisoned. A result that changes with the range reads past
    /// the end of an allocation inside it. Scans first, so that nothing written so far is lost, and blocks as a scan does.
    ///
    /// # Errors
    /// As [`scan_redzones`](Self::scan_redzones).
    fn poison_redzones(&self, low: u64, high: u64) -> Result<usize>;

    /// Encodes a tensor map. Every rule is checked first, and the tensor's extent against the allocation it lies in, where
    /// the ledger knows it; what is only suspect is logged as a warning. Does not block, runs on the host alone, and is
    /// allowed during a capture. The map keeps nothing alive.
    ///
    /// # Errors
    /// [`TensorMapError`](crate::TensorMapError) with every broken rule and its value;
    /// [`TensorMapOutOfBounds`](crate::TensorMapOutOfBounds); [`FeatureOff`](crate::FeatureOff) without the feature
    /// `tensormap`; [`CallFailed`](crate::CallFailed) for a driver that has no such maps.
    fn tensor_map_encode(&self, spec: &TensorMapSpec) -> Result<TensorMap>;

    /// Frees every device and managed allocation still on the ledger, and returns how many there were.
    ///
    /// One warning gives the total and the five largest call sites. A free that fails is logged and the rest still
    /// freed; arenas and pinned memory stay. Graphs that are known to use what goes are destroyed before it, and so are
    /// this backend's graphs with untyped launches, of which nobody knows what they use; the warning names them. May block.
    /// Works on a thread that is not bound. Refused on a thread that captures, and while a capture of this backend goes on.
    ///
    /// # Errors
    /// [`ContextLost`](crate::ContextLost) or [`CallFailed`](crate::CallFailed) where the context cannot be made current;
    /// the ledger is then untouched. [`SweepIncomplete`](crate::SweepIncomplete), with the count, around the `ContextLost` where
    /// a free found the context lost; the rest was still tried.
    #[track_caller]
    fn sweep_unreleased(&self) -> Result<usize>;
}

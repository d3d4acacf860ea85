// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuMemory`].

use std::any::TypeId;
use std::sync::Arc;

use metrale_ledger::ScopeGuard;

use crate::backend::MetraleCudaBackend;
use crate::error::{NotSupported, Result};
use crate::memory::{Freed, OwnedMemory, PackedArena, PinnedPtr};
use crate::op_cache::{OpHandle, Scratch};
use crate::raw_handles::{DevicePtr, StreamHandle};

/// Memory: allocating, freeing, labels on the ledger, and what operations keep.
///
/// Every allocation is on the ledger under the caller's line until it is freed.
///
/// # Safety
/// Memory that an implementation gives out is as large as it was asked for, nobody else has it, and it stays until it is
/// freed by the call for its kind: safe owners lend pinned memory by that.
pub unsafe trait GpuMemory: Send + Sync {
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

    /// Has what was answered [`Freed::Later`] be freed also when a capture or graph of another backend of the driver ends. Owners
    /// call it on that answer.
    fn free_when_it_may(self: Arc<Self>) {}

    /// Allocates `bytes` of device memory with an owner of its own: accounted apart and never taken by
    /// [`sweep_unreleased`](Self::sweep_unreleased). It outlives the backend, with its contents, until it is
    /// [freed](Self::free_arena) or the process ends. Otherwise as [`alloc`](Self::alloc).
    /// [`PackedArena`](crate::PackedArena) is one that allocates named parts of itself; it is made where the backend is, before
    /// that is handed on as a trait object.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    fn alloc_arena(&self, bytes: usize) -> Result<DevicePtr>;

    /// Frees what [`alloc_arena`](Self::alloc_arena) returned: of this backend, or of one of its device that was dropped.
    /// Otherwise as [`free`](Self::free).
    ///
    /// # Errors
    /// As [`free`](Self::free); what is no arena is refused, and so, with [`BadArgument`](crate::BadArgument), is what a value of
    /// this crate owns and frees itself: a [`PackedArena`](crate::PackedArena), scratch memory of an operation, an adopted
    /// allocation of cudarc's.
    #[track_caller]
    fn free_arena(&self, ptr: DevicePtr) -> Result<()>;

    /// Allocates an arena that its parts share, with a share in the backend: what [`Arena::new`](crate::Arena::new) calls.
    ///
    /// # Errors
    /// As [`alloc_arena`](Self::alloc_arena); [`NotSupported`](crate::NotSupported) where there is no CUDA backend.
    #[track_caller]
    fn packed_arena_shared(self: Arc<Self>, _bytes: usize) -> Result<PackedArena<Arc<MetraleCudaBackend>>> {
        let why = "this backend has no CUDA backend under it".to_owned();
        Err(NotSupported { doing: "making an arena", why }.into())
    }

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

    /// Frees pinned memory for its owner, such as [`PinnedBuffer`](crate::PinnedBuffer), or does so as soon as it may, as
    /// [`free_owned`](Self::free_owned) does device memory. Any thread may call it. May block. No queued copy uses the memory.
    ///
    /// # Errors
    /// As [`free_pinned`](Self::free_pinned).
    #[track_caller]
    fn free_pinned_owned(&self, pinned: PinnedPtr) -> Result<Freed> {
        self.free_pinned(pinned).map(|()| Freed::Now)
    }

    /// Labels what this thread allocates until the guard is dropped; nested labels join with `/`.
    fn scope(&self, label: &str) -> ScopeGuard;

    /// Names one live allocation, whatever scope it was made in, by its first byte: reports, snapshots and answers about the
    /// address tell the name, and those of a peak before it do not. False, and nothing done, where none begins there. Does not
    /// block.
    fn tag(&self, ptr: DevicePtr, tag: &str) -> bool;

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

    /// Scratch memory of at least `bytes` bytes for an operation on a stream, kept for its next call and grown where that
    /// asks for more. Not cleared.
    ///
    /// It is for work queued on `stream`, and good until the same operation asks for more on the same stream: the outgrown
    /// buffer is freed once `stream` has passed what was queued on it by then. A graph that uses it keeps it, where the
    /// launches in it have typed arguments. Two threads that use one stream for one operation share the buffer, and order
    /// their use of it as they order the stream.
    ///
    /// Does not block where it fits; otherwise as [`alloc_arena`](Self::alloc_arena), with the caller's line
    /// and the scope `op_cache/<op>`. Nobody but the cache frees it: `free_arena` refuses it. During a capture only what is there already is given: call it once before with the
    /// largest size.
    ///
    /// # Errors
    /// As [`alloc_arena`](Self::alloc_arena).
    #[track_caller]
    fn op_scratch(&self, op: &str, bytes: usize, stream: StreamHandle) -> Result<Scratch>;

    /// Bytes of scratch memory that the cache holds: in use, and outgrown but not freed yet.
    fn op_scratch_bytes(&self) -> (usize, usize);

    /// Drops all handles and gives all scratch memory back: each buffer as soon as its stream has passed what is queued on
    /// it and no graph uses it any more, which is looked at now and at later calls. Returns the bytes that are
    /// still held. Does not block. Refused on a thread that captures, and while a stream with scratch memory does.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says; nothing is then released.
    fn release_op_cache(&self) -> Result<usize>;

    /// The handle of this type that an operation keeps; made by `make` where there is none. What
    /// [`op_handle`](trait.GpuBackend.html#method.op_handle) calls.
    ///
    /// # Errors
    /// What `make` answers; nothing is then kept.
    fn op_handle_of_type(
        &self,
        op: &str,
        of_type: TypeId,
        make: &mut dyn FnMut() -> Result<OpHandle>,
    ) -> Result<OpHandle>;
}

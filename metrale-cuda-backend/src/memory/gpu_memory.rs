// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuMemory`] for [`MetraleCudaBackend`].

use std::any::TypeId;
use std::panic::Location;
use std::sync::Arc;

use metrale_ledger::{AllocKind, ScopeGuard};

use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::gpu::GpuMemory;
use crate::memory::owned::GivenUp;
use crate::memory::{Freed, OwnedMemory, PackedArena, PinnedPtr};
use crate::op_cache::{OpHandle, Scratch};
use crate::raw_handles::{DevicePtr, StreamHandle};

// SAFETY: the driver gives memory out once; the ledger and the table of pinned memory refuse what would free another's.
unsafe impl GpuMemory for MetraleCudaBackend {
    #[track_caller]
    fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        self.alloc_device(bytes, Location::caller()).map(|memory| memory.ptr())
    }

    #[track_caller]
    fn alloc_managed(&self, bytes: usize) -> Result<DevicePtr> {
        self.alloc_kind(bytes, AllocKind::Managed, Location::caller())
    }

    #[track_caller]
    fn free(&self, ptr: DevicePtr) -> Result<()> {
        self.free_device(ptr)
    }

    #[track_caller]
    fn alloc_owned(&self, bytes: usize) -> Result<OwnedMemory> {
        let memory = self.alloc_device(bytes, Location::caller())?;
        self.owned_addresses.insert(memory.ptr.0);
        Ok(memory)
    }

    #[track_caller]
    fn free_owned(&self, memory: OwnedMemory) -> Result<Freed> {
        self.free_now_or_later(GivenUp::Device(memory), Location::caller())
    }

    #[track_caller]
    fn alloc_arena(&self, bytes: usize) -> Result<DevicePtr> {
        self.alloc_kind(bytes, AllocKind::Arena, Location::caller())
    }

    #[track_caller]
    fn free_arena(&self, ptr: DevicePtr) -> Result<()> {
        self.free_kind(ptr, AllocKind::Arena, "free_arena", None)
    }

    #[track_caller]
    fn free_when_it_may(self: Arc<Self>) {
        self.tell_of_ends(&self);
    }

    fn packed_arena_shared(self: Arc<Self>, bytes: usize) -> Result<PackedArena<Arc<MetraleCudaBackend>>> {
        PackedArena::new(self, bytes, Location::caller())
    }

    #[track_caller]
    fn alloc_pinned(&self, bytes: usize) -> Result<PinnedPtr> {
        self.pin_memory(bytes, Location::caller())
    }

    #[track_caller]
    fn free_pinned(&self, pinned: PinnedPtr) -> Result<()> {
        self.unpin_memory(pinned, Location::caller())
    }

    #[track_caller]
    fn free_pinned_owned(&self, pinned: PinnedPtr) -> Result<Freed> {
        self.free_now_or_later(GivenUp::Pinned(pinned), Location::caller())
    }

    fn scope(&self, label: &str) -> ScopeGuard {
        self.ledger_writer().ledger().scope(label)
    }

    fn tag(&self, ptr: DevicePtr, tag: &str) -> bool {
        self.ledger_writer().ledger().tag(ptr.0, tag)
    }

    #[track_caller]
    fn sweep_unreleased(&self) -> Result<usize> {
        self.sweep_ledger()
    }

    #[track_caller]
    fn op_scratch(&self, op: &str, bytes: usize, stream: StreamHandle) -> Result<Scratch> {
        self.scratch(op, bytes, stream, Location::caller())
    }

    fn op_scratch_bytes(&self) -> (usize, usize) {
        self.scratch_bytes()
    }

    fn release_op_cache(&self) -> Result<usize> {
        self.empty_op_cache()
    }

    fn op_handle_of_type(
        &self,
        op: &str,
        of_type: TypeId,
        make: &mut dyn FnMut() -> Result<OpHandle>,
    ) -> Result<OpHandle> {
        self.op_cache().handle(op, of_type, make)
    }
}

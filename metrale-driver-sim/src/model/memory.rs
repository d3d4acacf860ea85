// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: allocations of every kind and what they take off a device's free figure.
//!
//! Device allocations follow the packing rule of `metrale_ledger::placement`; this file gives its chunks addresses. What
//! else moves the free figure follows MEASURED.md of this crate (H200, driver 580.159.04):
//!
//! | what | here |
//! |---|---|
//! | primary context | the profile's figure, until the context ends |
//! | module globals | packed by the same rule into chunks of their own |
//! | streams | places in 2 MiB chunks, kept until memory runs out or the context ends |
//! | instantiated graph | the place of a stream for a moment; 2480 bytes a kernel node from a pool of 2 MiB chunks that never shrinks |
//! | pinned host memory | nothing |
//! | managed memory | nothing until the device touches it: then whole pages, and once per context 120 MiB that stay |
//! | `cuMemCreate` | its bytes, until its handle is released and its last mapping is removed |
//! | `cuMemAllocAsync` | pieces of 32 MiB, by `metrale_ledger::placement::pool` |

mod access;
mod account;
mod mapping;
mod pool;
mod pools;
mod stream_pool;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};

use metrale_driver_sys::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use metrale_ledger::placement::pool::PoolWork;
use metrale_ledger::placement::{ChunkId, PlacementId};

pub(crate) use self::access::{Access, Stray};
use self::account::{Account, Chunks, KERNEL_NODE_BYTES};
use self::mapping::{Mapping, VirtualMemory};
use self::pools::Pools;
use super::handle::DEVICE_WINDOW;
use super::host::HostBlock;
use super::space::AddressSpace;
use super::store::Store;
use crate::profile::Profile;

/// What an address belongs to.
pub(crate) enum AllocationKind {
    Device(PlacementId),
    /// A module's global variable; its module owns the memory.
    Global,
    Pinned,
    Managed {
        /// Bytes taken off the free figure since the device touched it.
        resident_bytes: u64,
    },
    /// From a memory pool.
    Pool {
        /// The pool's handle.
        pool: u64,
        id: PlacementId,
    },
    /// Memory of `cuMemCreate`, mapped here.
    Mapped(Mapping),
}

/// One allocation, by its base address in [`Memory`]'s map.
pub(crate) struct Allocation {
    /// As asked for.
    pub(crate) bytes: u64,
    pub(crate) device: usize,
    pub(crate) kind: AllocationKind,
    /// The host memory behind pinned and managed allocations.
    host: Option<HostBlock>,
    /// Distinguishes this allocation from a later one at the same address.
    pub(crate) serial: u64,
    /// `cuMemFreeAsync` was called and its stream has not reached the free. Only for memory of `cuMemAlloc`.
    pub(crate) free_submitted: bool,
}

impl Allocation {
    pub(crate) fn is_host(&self) -> bool {
        self.host.is_some()
    }
}

/// A free of a pool's memory that its stream has not reached. The allocation is no longer one for calls, but work that was
/// submitted before may still touch it.
struct PendingFree {
    bytes: u64,
    device: usize,
    /// The pool's handle.
    pool: u64,
    /// What the pool knows of the stream's work before it.
    work: Option<PoolWork>,
}

/// All memory of an instance.
pub(crate) struct Memory {
    accounts: Vec<Account>,
    profiles: Vec<Profile>,
    allocations: BTreeMap<u64, Allocation>,
    space: AddressSpace,
    /// Base address of each chunk.
    bases: HashMap<(usize, Chunks, ChunkId), u64>,
    /// Bytes of each mapped run of pages, by base address.
    mapped: BTreeMap<u64, u64>,
    store: Store,
    next_serial: u64,
    /// By base address and serial.
    pending_frees: BTreeMap<(u64, u64), PendingFree>,
    virtual_memory: VirtualMemory,
    pub(crate) pools: Pools,
    /// Bytes of freed allocations by address, and their order.
    freed: BTreeMap<u64, u64>,
    freed_order: VecDeque<u64>,
    /// The last access of a replay to freed memory.
    freed_touch: Option<Stray>,
}

impl Memory {
    /// `default_pools` has a handle for each device.
    pub(crate) fn new(profiles: &[Profile], default_pools: Vec<u64>) -> Self {
        let totals: Vec<u64> = profiles.iter().map(|profile| profile.total_bytes).collect();
        let other_devices = profiles.len().saturating_sub(1) as u64;
        Self {
            accounts: profiles.iter().map(|profile| Account::new(profile, other_devices)).collect(),
            profiles: profiles.to_vec(),
            allocations: BTreeMap::new(),
            space: AddressSpace::new(DEVICE_WINDOW),
            bases: HashMap::new(),
            mapped: BTreeMap::new(),
            store: Store::new(profiles.first().map_or(0xFF, |profile| profile.fresh_byte)),
            next_serial: 0,
            pending_frees: BTreeMap::new(),
            virtual_memory: VirtualMemory::new(),
            pools: Pools::new(default_pools, &totals),
            freed: BTreeMap::new(),
            freed_order: VecDeque::new(),
            freed_touch: None,
        }
    }

    pub(crate) fn free_bytes(&self, device: usize) -> u64 {
        self.accounts[device].free()
    }

    pub(crate) fn total_bytes(&self, device: usize) -> u64 {
        self.accounts[device].total
    }

    pub(crate) fn backing_bytes(&self) -> u64 {
        self.store.backing_bytes()
    }

    /// Takes the context's bytes off the free figure.
    pub(crate) fn open_context(&mut self, device: usize) -> Result<(), CUresult> {
        let bytes = self.profiles[device].context_bytes;
        self.need(device, bytes)?;
        self.accounts[device].context = bytes;
        Ok(())
    }

    /// Frees everything of a device's context. What `cuMemCreate` made and its mappings stay: they belong to no context.
    pub(crate) fn close_context(&mut self, device: usize) {
        self.allocations.retain(|_, allocation| {
            allocation.device != device || matches!(allocation.kind, AllocationKind::Mapped(_))
        });
        self.pending_frees.retain(|_, free| free.device != device);
        let chunks: Vec<_> =
            self.bases.iter().filter(|((d, ..), _)| *d == device).map(|(&key, &base)| (key, base)).collect();
        for (key, base) in chunks {
            self.bases.remove(&key);
            self.unmap(base);
        }
        self.close_pools(device);
        let other_devices = self.profiles.len().saturating_sub(1) as u64;
        let physical = self.accounts[device].physical;
        self.accounts[device] = Account::new(&self.profiles[device], other_devices);
        self.accounts[device].physical = physical;
    }

    /// `cuMemAlloc`: 1 for no bytes, 2 when there is not enough.
    pub(crate) fn alloc(&mut self, device: usize, bytes: u64) -> Result<u64, CUresult> {
        let (id, address) = self.place(device, Chunks::Allocations, bytes)?;
        self.insert(address, device, bytes, AllocationKind::Device(id), None);
        Ok(address)
    }

    /// `cuMemFree`: 1 for what is not the base of an allocation that it may free.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), CUresult> {
        let Some(Allocation { device, kind, bytes, .. }) = self.allocations.get(&address) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let (device, bytes) = (*device, *bytes);
        match *kind {
            AllocationKind::Device(id) => {
                self.allocations.remove(&address);
                self.unplace(device, Chunks::Allocations, id);
                self.remember_freed(address, bytes);
            }
            AllocationKind::Managed { resident_bytes } => {
                self.allocations.remove(&address);
                self.accounts[device].managed -= resident_bytes;
            }
            AllocationKind::Pool { .. } => self.free_of_pool_now(address),
            AllocationKind::Global | AllocationKind::Pinned | AllocationKind::Mapped(_) => {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        Ok(())
    }

    /// `cuMemAllocHost` and `cuMemAllocManaged`: real host memory, by its address.
    pub(crate) fn alloc_host(&mut self, device: usize, bytes: usize, managed: bool) -> Result<u64, CUresult> {
        let block = HostBlock::new(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = block.address() as u64;
        let kind = match managed {
            true => AllocationKind::Managed { resident_bytes: 0 },
            false => AllocationKind::Pinned,
        };
        self.insert(address, device, bytes as u64, kind, Some(block));
        Ok(address)
    }

    /// `cuMemFreeHost`: 1 for what is not the base of a pinned allocation.
    pub(crate) fn free_host(&mut self, address: u64) -> Result<(), CUresult> {
        match self.allocations.get(&address) {
            Some(Allocation { kind: AllocationKind::Pinned, .. }) => {
                self.allocations.remove(&address);
                Ok(())
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Memory for a module's globals, given as sizes and alignments; the addresses are in their order.
    pub(crate) fn alloc_globals(
        &mut self,
        device: usize,
        globals: &[(u64, u64)],
    ) -> Result<(Option<PlacementId>, Vec<u64>), CUresult> {
        let mut offsets = Vec::with_capacity(globals.len());
        let mut end = 0u64;
        for &(bytes, align) in globals {
            // An alignment of 256 is what the loader gives; a larger one asked for is kept.
            let start =
                end.checked_next_multiple_of(align.clamp(256, 4096)).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
            offsets.push(start);
            end = start.checked_add(bytes.max(1)).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        }
        if offsets.is_empty() {
            return Ok((None, Vec::new()));
        }
        let (id, base) = self.place(device, Chunks::Globals, end)?;
        // Globals without an initial value start as zeros.
        self.store.fill(base, 0, end);
        let addresses: Vec<u64> = offsets.into_iter().map(|offset| base + offset).collect();
        for (&address, &(bytes, _)) in addresses.iter().zip(globals) {
            self.insert(address, device, bytes, AllocationKind::Global, None);
        }
        Ok((Some(id), addresses))
    }

    pub(crate) fn free_globals(&mut self, device: usize, id: Option<PlacementId>, addresses: &[u64]) {
        for address in addresses {
            self.allocations.remove(address);
        }
        if let Some(id) = id {
            self.unplace(device, Chunks::Globals, id);
        }
    }

    /// The stream's place, which [`Memory::close_stream`] wants back.
    pub(crate) fn open_stream(&mut self, device: usize) -> Result<u64, CUresult> {
        self.need(device, self.accounts[device].streams.growth())?;
        Ok(self.accounts[device].streams.open())
    }

    pub(crate) fn close_stream(&mut self, device: usize, place: u64) {
        self.accounts[device].streams.close(place);
    }

    pub(crate) fn open_graph(&mut self, device: usize, kernel_nodes: usize) -> Result<u64, CUresult> {
        let bytes = KERNEL_NODE_BYTES * kernel_nodes as u64;
        let account = &self.accounts[device];
        let more = account.one_graph_more(bytes, self.profiles[device].packing.page_bytes());
        self.need(device, more + account.streams.growth())?;
        let account = &mut self.accounts[device];
        let place = account.streams.open();
        account.streams.close(place);
        account.graphs_used += bytes;
        account.graphs_reserved += more;
        Ok(bytes)
    }

    pub(crate) fn close_graph(&mut self, device: usize, bytes: u64) {
        self.accounts[device].graphs_used -= bytes;
    }

    fn insert(
        &mut self,
        address: u64,
        device: usize,
        bytes: u64,
        kind: AllocationKind,
        host: Option<HostBlock>,
    ) {
        self.next_serial += 1;
        let serial = self.next_serial;
        let allocation = Allocation { bytes, device, kind, host, serial, free_submitted: false };
        self.allocations.insert(address, allocation);
    }

    /// Sees that a device has so many free bytes; before it has not, what is kept unused goes back.
    fn need(&mut self, device: usize, bytes: u64) -> Result<(), CUresult> {
        if bytes > self.free_bytes(device) {
            self.trim_pools_but(device, None);
            self.accounts[device].trim(self.profiles[device].packing.page_bytes());
        }
        if bytes > self.free_bytes(device) { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
    }

    fn place(&mut self, device: usize, chunks: Chunks, bytes: u64) -> Result<(PlacementId, u64), CUresult> {
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let page = self.profiles[device].packing.page_bytes();
        let placement = self.accounts[device].chunks(chunks);
        // What cannot be counted is more than there is.
        let new_bytes =
            placement.would_take(bytes).ok().and_then(|pages| pages.checked_mul(page)).unwrap_or(u64::MAX);
        self.need(device, new_bytes)?;
        let fresh = match new_bytes {
            0 => None,
            _ => Some(self.space.alloc(new_bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?),
        };
        let placed = match self.accounts[device].chunks(chunks).alloc(bytes) {
            Ok(placed) => placed,
            Err(_) => {
                if let Some(base) = fresh {
                    self.space.free(base, new_bytes);
                }
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
        };
        let key = (device, chunks, placed.chunk);
        if let Some(base) = fresh {
            self.bases.insert(key, base);
            self.mapped.insert(base, new_bytes);
        }
        let base = self.bases.get(&key).copied().ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok((placed.id, base + placed.offset_bytes))
    }

    fn unplace(&mut self, device: usize, chunks: Chunks, id: PlacementId) {
        let Ok(freed) = self.accounts[device].chunks(chunks).free(id) else { return };
        if freed.freed_pages > 0
            && let Some(base) = self.bases.remove(&(device, chunks, freed.chunk))
        {
            self.unmap(base);
        }
    }

    fn unmap(&mut self, base: u64) {
        if let Some(bytes) = self.mapped.remove(&base) {
            self.store.forget(base, bytes);
            self.space.free(base, bytes);
        }
    }
}

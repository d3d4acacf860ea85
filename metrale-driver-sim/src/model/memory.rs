// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: allocations of every kind, what they take off a device's free figure, and who may touch which byte.
//!
//! Device allocations follow the packing rule of `metrale_ledger::placement`; this file gives its chunks addresses. What
//! else moves the free figure follows what MEASURED.md of this crate tells (H200, driver 580.159.04):
//!
//! | what | here |
//! |---|---|
//! | primary context | the profile's figure, given back with the context |
//! | module globals | packed by the same rule into chunks of their own |
//! | streams | a pool of 2 MiB chunks by the highest number alive at once, kept to the context's end |
//! | instantiated graph | the place of a stream for a moment; 2480 bytes a kernel node from a pool of 2 MiB chunks that never shrinks |
//! | pinned host memory | nothing |
//! | managed memory | nothing until the device touches it: then whole pages, and once per context 120 MiB that stay |

use std::collections::{BTreeMap, HashMap, VecDeque};

use metrale_driver_sys::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use metrale_ledger::placement::{ChunkId, Placement, PlacementId};

use super::host::{self, HostBlock};
use super::space::AddressSpace;
use super::store::Store;
use crate::profile::{KernelBounds, Profile};

/// What the pool of streams grows by.
const STREAM_CHUNK_BYTES: u64 = 2 << 20;
/// Streams that a chunk of the pool holds. The first place of a context needs none of it; each further device that the
/// process sees takes a place too, once there are streams.
const STREAMS_PER_CHUNK: u64 = 4;
/// From so many places on the pool has one chunk more: 35 took 18 MiB, 36 took 20.
const PLACES_BEYOND: u64 = 36;
/// What a kernel's node of an instantiated graph takes, and what all of them take before the pool grows. Modelled: with these,
/// measured graphs of 1 to 10,000 nodes come out as they were, or within a chunk, since those before them matter too. 5,000
/// nodes that fill took nothing.
const KERNEL_NODE_BYTES: u64 = 2480;
const GRAPHS_FREE_BYTES: u64 = 3_670_016;
/// What the first device touch of managed memory takes beyond the memory itself, and keeps.
const MANAGED_ONCE_BYTES: u64 = 120 << 20;

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
}

/// One allocation, by its base address in [`Memory`]'s map.
pub(crate) struct Allocation {
    /// As asked for.
    pub(crate) bytes: u64,
    pub(crate) device: usize,
    pub(crate) kind: AllocationKind,
    /// The host memory behind pinned and managed allocations.
    host: Option<HostBlock>,
    /// Tells this allocation from a later one at the same address.
    pub(crate) serial: u64,
}

impl Allocation {
    pub(crate) fn is_host(&self) -> bool {
        self.host.is_some()
    }
}

/// One of a context's two sets of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Pool {
    Allocations,
    Globals,
}

/// What one device has given away.
struct Account {
    total: u64,
    context: u64,
    allocations: Placement,
    globals: Placement,
    streams: u64,
    /// The highest number of streams there ever were, a graph's instantiation counted as one more.
    streams_peak: u64,
    /// Places that other devices take beside the streams.
    other_devices: u64,
    graphs_reserved: u64,
    graphs_used: u64,
    managed: u64,
}

impl Account {
    fn new(profile: &Profile, other_devices: u64) -> Self {
        Self {
            total: profile.total_bytes,
            context: 0,
            allocations: Placement::new(profile.packing),
            globals: Placement::new(profile.packing),
            streams: 0,
            streams_peak: 0,
            other_devices,
            graphs_reserved: 0,
            graphs_used: 0,
            managed: 0,
        }
    }

    fn free(&self) -> u64 {
        [
            self.context,
            self.allocations.resident_bytes(),
            self.globals.resident_bytes(),
            self.stream_pool_bytes(self.streams_peak),
            self.graphs_reserved,
            self.managed,
        ]
        .iter()
        .fold(self.total, |free, taken| free.saturating_sub(*taken))
    }

    /// What the pool of streams holds once `peak` of them were alive at once.
    fn stream_pool_bytes(&self, peak: u64) -> u64 {
        if peak == 0 {
            return 0;
        }
        let places = peak + self.other_devices;
        let chunks = (places - 1).div_ceil(STREAMS_PER_CHUNK) + u64::from(places >= PLACES_BEYOND);
        chunks * STREAM_CHUNK_BYTES
    }

    /// The highest number of streams once there was one more than there are now, and what the pool grows by for it.
    fn one_stream_more(&self) -> (u64, u64) {
        let peak = self.streams_peak.max(self.streams + 1);
        (peak, self.stream_pool_bytes(peak) - self.stream_pool_bytes(self.streams_peak))
    }

    fn pool(&mut self, pool: Pool) -> &mut Placement {
        match pool {
            Pool::Allocations => &mut self.allocations,
            Pool::Globals => &mut self.globals,
        }
    }
}

/// How many devices there are beside one of them.
fn others(profiles: &[Profile]) -> u64 {
    profiles.len().saturating_sub(1) as u64
}

/// Freed ranges that are remembered for replays.
const MAX_FREED: usize = 1 << 16;
/// Freed ranges that are looked at for one access: an earlier one may reach over the nearest.
const FREED_SEARCH: usize = 64;

/// How an access to memory is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Work enqueued now: what lies outside is a fault.
    Strict,
    /// Replay of a graph: memory that was freed before is touched without a fault, as on hardware.
    Replay,
}

/// Memory that nobody owns was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stray {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// Where an accepted access goes.
enum Target {
    Device,
    Host,
    /// Freed and given back: reads show fresh bytes, writes vanish.
    Nowhere,
}

/// All memory of an instance.
pub(crate) struct Memory {
    accounts: Vec<Account>,
    profiles: Vec<Profile>,
    allocations: BTreeMap<u64, Allocation>,
    space: AddressSpace,
    /// Base address of each chunk.
    bases: HashMap<(usize, Pool, ChunkId), u64>,
    /// Bytes of each mapped run of pages, by base address.
    mapped: BTreeMap<u64, u64>,
    store: Store,
    next_serial: u64,
    /// Bytes of freed allocations by address, and their order.
    freed: BTreeMap<u64, u64>,
    freed_order: VecDeque<u64>,
    /// The last access of a replay to freed memory.
    freed_touch: Option<Stray>,
}

impl Memory {
    pub(crate) fn new(profiles: &[Profile]) -> Self {
        Self {
            accounts: profiles.iter().map(|profile| Account::new(profile, others(profiles))).collect(),
            profiles: profiles.to_vec(),
            allocations: BTreeMap::new(),
            space: AddressSpace::new(),
            bases: HashMap::new(),
            mapped: BTreeMap::new(),
            store: Store::new(profiles.first().map_or(0xFF, |profile| profile.fresh_byte)),
            next_serial: 0,
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

    /// Takes the context's share.
    pub(crate) fn open_context(&mut self, device: usize) -> Result<(), CUresult> {
        let bytes = self.profiles[device].context_bytes;
        self.need(device, bytes)?;
        self.accounts[device].context = bytes;
        Ok(())
    }

    /// Gives back everything of a device's context.
    pub(crate) fn close_context(&mut self, device: usize) {
        self.allocations.retain(|_, allocation| allocation.device != device);
        let chunks: Vec<_> =
            self.bases.iter().filter(|((d, ..), _)| *d == device).map(|(&key, &base)| (key, base)).collect();
        for (key, base) in chunks {
            self.bases.remove(&key);
            self.unmap(base);
        }
        self.accounts[device] = Account::new(&self.profiles[device], others(&self.profiles));
    }

    /// `cuMemAlloc`: 1 for no bytes, 2 when there is not enough.
    pub(crate) fn alloc(&mut self, device: usize, bytes: u64) -> Result<u64, CUresult> {
        let (id, address) = self.place(device, Pool::Allocations, bytes)?;
        self.insert(address, device, bytes, AllocationKind::Device(id), None);
        Ok(address)
    }

    /// `cuMemFree`: 1 for what is not the base of a device or managed allocation.
    pub(crate) fn free(&mut self, address: u64) -> Result<(), CUresult> {
        let Some(Allocation { device, kind, bytes, .. }) = self.allocations.get(&address) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let (device, bytes) = (*device, *bytes);
        match *kind {
            AllocationKind::Device(id) => {
                self.allocations.remove(&address);
                self.unplace(device, Pool::Allocations, id);
                self.remember_freed(address, bytes);
            }
            AllocationKind::Managed { resident_bytes } => {
                self.allocations.remove(&address);
                self.accounts[device].managed -= resident_bytes;
            }
            AllocationKind::Global | AllocationKind::Pinned => return Err(CUDA_ERROR_INVALID_VALUE),
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
        let (id, base) = self.place(device, Pool::Globals, end)?;
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
            self.unplace(device, Pool::Globals, id);
        }
    }

    pub(crate) fn open_stream(&mut self, device: usize) -> Result<(), CUresult> {
        let (peak, more) = self.accounts[device].one_stream_more();
        self.need(device, more)?;
        let account = &mut self.accounts[device];
        account.streams += 1;
        account.streams_peak = peak;
        Ok(())
    }

    /// What the stream took stays in the pool for later ones.
    pub(crate) fn close_stream(&mut self, device: usize) {
        self.accounts[device].streams -= 1;
    }

    pub(crate) fn open_graph(&mut self, device: usize, kernel_nodes: usize) -> Result<u64, CUresult> {
        let bytes = KERNEL_NODE_BYTES * kernel_nodes as u64;
        let account = &self.accounts[device];
        let reserved = (account.graphs_used + bytes)
            .saturating_sub(GRAPHS_FREE_BYTES)
            .next_multiple_of(self.profiles[device].packing.page_bytes());
        let more = reserved.saturating_sub(account.graphs_reserved);
        let (peak, more_for_place) = account.one_stream_more();
        self.need(device, more + more_for_place)?;
        let account = &mut self.accounts[device];
        account.streams_peak = peak;
        account.graphs_used += bytes;
        account.graphs_reserved += more;
        Ok(bytes)
    }

    pub(crate) fn close_graph(&mut self, device: usize, bytes: u64) {
        self.accounts[device].graphs_used -= bytes;
    }

    /// The allocation that holds `address`, with its base.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&base, allocation) = self.allocations.range(..=address).next_back()?;
        (address - base < allocation.bytes).then_some((base, allocation))
    }

    /// The one allocation that holds all of a range.
    pub(crate) fn covers(&self, address: u64, len: u64) -> Option<&Allocation> {
        let (base, allocation) = self.find(address)?;
        (len <= allocation.bytes - (address - base)).then_some(allocation)
    }

    /// The pinned (not managed) allocation that holds all of a host range.
    pub(crate) fn pinned(&self, address: usize, len: usize) -> Option<&Allocation> {
        self.covers(address as u64, len as u64).filter(|a| matches!(a.kind, AllocationKind::Pinned))
    }

    /// Whether a range still lies in the allocation of that serial.
    pub(crate) fn is_still(&self, address: u64, len: u64, serial: u64) -> bool {
        self.covers(address, len).is_some_and(|allocation| allocation.serial == serial)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.allocations.iter().map(|(&base, allocation)| (base, allocation))
    }

    /// Whether an access would be accepted.
    pub(crate) fn check(&mut self, address: u64, len: u64, access: Access) -> Result<(), Stray> {
        self.target(address, len, access).map(drop)
    }

    /// Reads memory that the device reaches, in pieces that may each lie elsewhere in one allocation.
    pub(crate) fn read(&mut self, address: u64, out: &mut [u8], access: Access) -> Result<(), Stray> {
        match self.target(address, out.len() as u64, access)? {
            Target::Device => self.store.read(address, out),
            // SAFETY: the range lies in a live pinned or managed block, which this instance owns.
            Target::Host => unsafe { host::read(address as usize, out) },
            Target::Nowhere => self.store.read(address, out),
        }
        Ok(())
    }

    /// Writes memory that the device reaches.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8], access: Access) -> Result<(), Stray> {
        match self.target(address, bytes.len() as u64, access)? {
            Target::Device => self.store.write(address, bytes),
            // SAFETY: the range lies in a live pinned or managed block, which this instance owns.
            Target::Host => unsafe { host::write(address as usize, bytes) },
            Target::Nowhere => {}
        }
        Ok(())
    }

    /// Repeats a little-endian word over `len` bytes.
    pub(crate) fn fill(&mut self, address: u64, word: u32, len: u64, access: Access) -> Result<(), Stray> {
        match self.target(address, len, access)? {
            Target::Device => self.store.fill(address, word, len),
            Target::Host => {
                let mut piece = [0; 4096];
                piece.chunks_exact_mut(4).for_each(|to| to.copy_from_slice(&word.to_le_bytes()));
                let mut done = 0;
                while done < len {
                    let take = (len - done).min(4096);
                    // SAFETY: the whole range lies in a live pinned or managed block, which this instance owns.
                    unsafe { host::write((address + done) as usize, &piece[..take as usize]) }
                    done += take;
                }
            }
            Target::Nowhere => {}
        }
        Ok(())
    }

    /// Decides where an access goes, and counts the device's touch of managed memory.
    fn target(&mut self, address: u64, len: u64, access: Access) -> Result<Target, Stray> {
        if len == 0 {
            return Ok(Target::Nowhere);
        }
        if let Some(allocation) = self.covers(address, len) {
            let managed = matches!(allocation.kind, AllocationKind::Managed { resident_bytes: 0 });
            let host = allocation.is_host();
            if managed {
                self.touch_managed(address);
            }
            return Ok(if host { Target::Host } else { Target::Device });
        }
        let bounds = self.profiles.first().map(|profile| profile.kernel_bounds).unwrap_or_default();
        let in_page = self.mapped.range(..=address).next_back().is_some_and(|(&base, &bytes)| {
            let inside = address - base;
            inside < bytes && len <= bytes - inside
        });
        let stray = Stray { address, bytes: len };
        if bounds == KernelBounds::Page && in_page {
            return Ok(Target::Device);
        }
        if access == Access::Replay && self.was_freed(address, len) {
            self.freed_touch = Some(stray);
            return Ok(if in_page { Target::Device } else { Target::Nowhere });
        }
        Err(stray)
    }

    /// What a replay touched of freed memory since this was asked last.
    pub(crate) fn take_freed_touch(&mut self) -> Option<Stray> {
        self.freed_touch.take()
    }

    fn remember_freed(&mut self, address: u64, bytes: u64) {
        match self.freed.get_mut(&address) {
            Some(known) => *known = bytes.max(*known),
            None => {
                if self.freed_order.len() == MAX_FREED
                    && let Some(oldest) = self.freed_order.pop_front()
                {
                    self.freed.remove(&oldest);
                }
                self.freed.insert(address, bytes);
                self.freed_order.push_back(address);
            }
        }
    }

    fn was_freed(&self, address: u64, len: u64) -> bool {
        self.freed.range(..=address).rev().take(FREED_SEARCH).any(|(&base, &bytes)| {
            let inside = address - base;
            inside < bytes && len <= bytes - inside
        })
    }

    fn touch_managed(&mut self, address: u64) {
        let Some((&base, allocation)) = self.allocations.range_mut(..=address).next_back() else { return };
        debug_assert!(address - base < allocation.bytes);
        let device = allocation.device;
        let page = self.profiles[device].packing.page_bytes();
        let first = if self.accounts[device].managed == 0 { MANAGED_ONCE_BYTES } else { 0 };
        // Managed memory may pass what the device has: the rest then stays on the host.
        let free = self.accounts[device].free().saturating_sub(first);
        let taken = allocation.bytes.next_multiple_of(page).min(free);
        if let AllocationKind::Managed { resident_bytes } = &mut allocation.kind {
            *resident_bytes = taken;
        }
        self.accounts[device].managed += first + taken;
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
        self.allocations.insert(address, Allocation { bytes, device, kind, host, serial });
    }

    fn need(&self, device: usize, bytes: u64) -> Result<(), CUresult> {
        if bytes > self.free_bytes(device) { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
    }

    fn place(&mut self, device: usize, pool: Pool, bytes: u64) -> Result<(PlacementId, u64), CUresult> {
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let page = self.profiles[device].packing.page_bytes();
        let placement = self.accounts[device].pool(pool);
        let pages = placement.would_take(bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        let taken = pages.checked_mul(page).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.need(device, taken)?;
        let fresh = match taken {
            0 => None,
            _ => Some(self.space.take(taken).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?),
        };
        let placed = match self.accounts[device].pool(pool).alloc(bytes) {
            Ok(placed) => placed,
            Err(_) => {
                if let Some(base) = fresh {
                    self.space.give(base, taken);
                }
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
        };
        let key = (device, pool, placed.chunk);
        if let Some(base) = fresh {
            self.bases.insert(key, base);
            self.mapped.insert(base, taken);
        }
        let base = self.bases.get(&key).copied().ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok((placed.id, base + placed.offset_bytes))
    }

    fn unplace(&mut self, device: usize, pool: Pool, id: PlacementId) {
        let Ok(freed) = self.accounts[device].pool(pool).free(id) else { return };
        if freed.freed_pages > 0
            && let Some(base) = self.bases.remove(&(device, pool, freed.chunk))
        {
            self.unmap(base);
        }
    }

    fn unmap(&mut self, base: u64) {
        if let Some(bytes) = self.mapped.remove(&base) {
            self.store.forget(base, bytes);
            self.space.give(base, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn open() -> Memory {
        let mut memory = Memory::new(&[Profile::h200()]);
        memory.open_context(0).unwrap();
        memory
    }

    /// Free bytes before less free bytes after.
    fn taken(memory: &mut Memory, work: impl FnOnce(&mut Memory)) -> i64 {
        let before = memory.free_bytes(0) as i64;
        work(memory);
        before - memory.free_bytes(0) as i64
    }

    #[test]
    fn what_else_moves_the_free_figure_moves_it_as_measured() {
        let mut memory = open();
        assert_eq!(memory.free_bytes(0), 149_557_477_376);
        // 32 streams.
        assert_eq!(taken(&mut memory, |m| (0..32).for_each(|_| m.open_stream(0).unwrap())), 16 << 20);
        // Modules with 300 KB of globals each.
        let per_module: Vec<i64> = (0..7)
            .map(|_| taken(&mut memory, |m| drop(m.alloc_globals(0, &[(300_000, 4)]).unwrap())) >> 20)
            .collect();
        assert_eq!(per_module, [2, 0, 0, 0, 0, 0, 2]);
        // Graphs, in contexts of their own, which have the stream that captured them.
        let mut memory = open();
        memory.open_stream(0).unwrap();
        assert_eq!(taken(&mut memory, |m| assert!(m.open_graph(0, 1).is_ok())), 2 << 20);
        let mut memory = open();
        memory.open_stream(0).unwrap();
        let mut bytes = 0;
        assert_eq!(taken(&mut memory, |m| bytes = m.open_graph(0, 5000).unwrap()), 12 << 20);
        assert_eq!(taken(&mut memory, |m| m.close_graph(0, bytes)), 0);
        // Pinned and managed memory.
        assert_eq!(taken(&mut memory, |m| assert!(m.alloc_host(0, 64 << 20, false).is_ok())), 0);
        let mut managed = 0;
        assert_eq!(taken(&mut memory, |m| managed = m.alloc_host(0, 8 << 20, true).unwrap()), 0);
        assert_eq!(taken(&mut memory, |m| m.fill(managed, 0, 4, Access::Strict).unwrap()), 128 << 20);
        assert_eq!(taken(&mut memory, |m| m.free(managed).unwrap()), -(8 << 20));
    }

    #[test]
    fn a_graph_needs_room_for_its_place_and_its_nodes_together() {
        // 5,000 kernel nodes take 10 MiB, and the place of a second stream 2.
        for (room, answers) in [(10, Err(2)), (11, Err(2)), (12, Ok(()))] {
            let mut memory = Memory::new(&[Profile::custom("small", 552_402_944 + room * MIB)]);
            memory.open_context(0).unwrap();
            memory.open_stream(0).unwrap();
            assert_eq!(memory.open_graph(0, 5000).map(drop), answers, "{room} MiB");
            let left = if answers.is_ok() { 0 } else { room * MIB };
            assert_eq!(memory.free_bytes(0), left, "what is refused takes nothing");
        }
    }

    #[test]
    fn out_of_memory_comes_exactly_when_the_pages_do_not_fit() {
        let profile = Profile::custom("small", 552_402_944 + 8 * MIB);
        let mut memory = Memory::new(&[profile]);
        memory.open_context(0).unwrap();
        assert_eq!(memory.alloc(0, 8 * MIB + 1), Err(2));
        let all = memory.alloc(0, 8 * MIB).unwrap();
        assert_eq!((memory.free_bytes(0), memory.alloc(0, 1)), (0, Err(2)));
        memory.free(all).unwrap();
        let small = memory.alloc(0, 1).unwrap();
        assert_eq!(memory.alloc(0, 6 * MIB + 1), Err(2));
        let rest = memory.alloc(0, 6 * MIB).unwrap();
        // The chunk that is held still has room.
        assert!(memory.alloc(0, MIB).is_ok());
        assert_eq!(memory.alloc(0, MIB), Err(2));
        memory.free(small).unwrap();
        memory.free(rest).unwrap();
        assert_eq!(memory.alloc(0, u64::MAX), Err(2));
        assert_eq!(memory.alloc(0, 0), Err(1));
    }

    #[test]
    fn no_context_fits_on_a_device_that_is_smaller() {
        let mut memory = Memory::new(&[Profile::custom("tiny", 1)]);
        assert_eq!(memory.open_context(0), Err(2));
    }

    #[test]
    fn a_page_given_back_forgets_its_bytes_and_a_shared_one_does_not() {
        let mut memory = open();
        let keep = memory.alloc(0, 512).unwrap();
        let gone = memory.alloc(0, 512).unwrap();
        memory.write(gone, &[1, 2, 3], Access::Strict).unwrap();
        memory.free(gone).unwrap();
        let mut seen = [0; 3];
        let stray = Stray { address: gone, bytes: 3 };
        assert_eq!(memory.read(gone, &mut seen, Access::Strict), Err(stray));
        assert_eq!((memory.read(gone, &mut seen, Access::Replay), seen), (Ok(()), [1, 2, 3]));
        assert_eq!(memory.alloc(0, 512).unwrap(), gone);
        memory.free(gone).unwrap();
        memory.free(keep).unwrap();
        assert_eq!((memory.read(gone, &mut seen, Access::Replay), seen), (Ok(()), [0xFF; 3]));
        assert_eq!(memory.write(gone, &seen, Access::Replay), Ok(()));
        assert_eq!(memory.take_freed_touch(), Some(stray));
        // What was never anybody's is a fault in a replay too.
        assert!(memory.write(0x1000, &seen, Access::Replay).is_err());
        assert!(memory.write(gone + 510, &seen, Access::Replay).is_err());
        assert_eq!(memory.backing_bytes(), 0);
    }
}

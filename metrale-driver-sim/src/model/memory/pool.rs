// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pools: the objects around `metrale_ledger::placement::pool`, their addresses, and frees in stream order.
//!
//! A free counts for the attributes at the call. The space is used again by later allocations of the same stream at once,
//! and by others once the stream has reached the free; the memory goes back to the device when the stream is synchronized.

use std::collections::{BTreeMap, HashMap};

use metrale_driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_OUT_OF_MEMORY, CUmemAccess_flags, CUmemPool_attribute, CUresult, pool_attribute,
};
use metrale_ledger::placement::pool::{Pool, PoolRule};

use super::{AllocationKind, Memory, PendingFree};
use crate::model::stream::Point;

/// What a pool is made of by `cuMemPoolCreate`.
pub(crate) struct PoolState {
    pub(crate) device: usize,
    placement: Pool,
    /// Start of its addresses, from the first allocation on.
    base: Option<u64>,
    /// The most bytes that it may reserve, a multiple of the piece.
    limit: u64,
    /// `cuMemPoolDestroy` was called; the pool lives until its last allocation is freed.
    destroyed: bool,
    used: u64,
    used_high: u64,
    /// The three reuse attributes, which only hold what was set: on which streams memory is used again is fixed here.
    reuse: [i32; 3],
    /// What each device may do, by its ordinal.
    access: Vec<CUmemAccess_flags>,
    /// By stream: where its last free into this pool stands.
    frees: HashMap<u64, Point>,
    /// Frees that their stream has not reached.
    pending_frees: usize,
}

impl PoolState {
    fn new(device: usize, max_bytes: u64, devices: usize) -> Self {
        let placement = Pool::new(PoolRule::H200);
        let piece = placement.rule().piece_bytes();
        let mut access = vec![CU_MEM_ACCESS_FLAGS_PROT_NONE; devices];
        access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        Self {
            device,
            placement,
            base: None,
            limit: max_bytes.checked_next_multiple_of(piece).unwrap_or(u64::MAX / piece * piece),
            destroyed: false,
            used: 0,
            used_high: 0,
            reuse: [1; 3],
            access,
            frees: HashMap::new(),
            pending_frees: 0,
        }
    }

    /// Bytes of its range of addresses. Measured: twice what it may reserve.
    fn range_bytes(&self) -> u64 {
        self.limit.saturating_mul(2)
    }
}

/// All pools of an instance.
pub(crate) struct Pools {
    pools: BTreeMap<u64, PoolState>,
    /// By device.
    default: Vec<u64>,
    /// By device: where `cuMemAllocAsync` allocates.
    current: Vec<u64>,
}

impl Pools {
    /// `default` has a handle for each device, whose memory is `totals` bytes.
    pub(super) fn new(default: Vec<u64>, totals: &[u64]) -> Self {
        let pools = default
            .iter()
            .enumerate()
            .map(|(device, &handle)| (handle, PoolState::new(device, totals[device], totals.len())))
            .collect();
        Self { pools, current: default.clone(), default }
    }

    pub(crate) fn default_of(&self, device: usize) -> u64 {
        self.default[device]
    }

    pub(crate) fn current_of(&self, device: usize) -> u64 {
        self.current[device]
    }

    /// `cuDeviceSetMemPool`: 1 for a pool of another device.
    pub(crate) fn set_current(&mut self, device: usize, handle: u64) -> Result<(), CUresult> {
        if self.usable(handle)?.device != device {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.current[device] = handle;
        Ok(())
    }

    /// A pool that was not destroyed.
    pub(crate) fn usable(&self, handle: u64) -> Result<&PoolState, CUresult> {
        self.pools.get(&handle).filter(|pool| !pool.destroyed).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn usable_mut(&mut self, handle: u64) -> Result<&mut PoolState, CUresult> {
        self.pools.get_mut(&handle).filter(|pool| !pool.destroyed).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Handle and device of every pool that was made and not destroyed.
    pub(crate) fn made(&self) -> impl Iterator<Item = (u64, usize)> {
        let made = |handle: u64, pool: &PoolState| !pool.destroyed && !self.default.contains(&handle);
        self.pools
            .iter()
            .filter(move |&(&handle, pool)| made(handle, pool))
            .map(|(&handle, pool)| (handle, pool.device))
    }

    /// One of the reuse attributes.
    pub(crate) fn reuse(
        &mut self,
        handle: u64,
        attribute: CUmemPool_attribute,
    ) -> Result<&mut i32, CUresult> {
        let place = attribute.checked_sub(pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES);
        let pool = self.usable_mut(handle)?;
        place.and_then(|place| pool.reuse.get_mut(place as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// An attribute that counts bytes.
    pub(crate) fn bytes(&self, handle: u64, attribute: CUmemPool_attribute) -> Result<u64, CUresult> {
        let pool = self.usable(handle)?;
        Ok(match attribute {
            pool_attribute::RELEASE_THRESHOLD => pool.placement.release_threshold(),
            pool_attribute::RESERVED_MEM_CURRENT => pool.placement.reserved_bytes(),
            pool_attribute::RESERVED_MEM_HIGH => pool.placement.reserved_high_bytes(),
            pool_attribute::USED_MEM_CURRENT => pool.used,
            pool_attribute::USED_MEM_HIGH => pool.used_high,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    }

    /// Sets an attribute that counts bytes: the high-water marks can only be set to 0, which begins them anew.
    pub(crate) fn set_bytes(
        &mut self,
        handle: u64,
        attribute: CUmemPool_attribute,
        bytes: u64,
    ) -> Result<(), CUresult> {
        let pool = self.usable_mut(handle)?;
        match (attribute, bytes) {
            (pool_attribute::RELEASE_THRESHOLD, _) => pool.placement.set_release_threshold(bytes),
            (pool_attribute::RESERVED_MEM_HIGH, 0) => pool.placement.reset_reserved_high(),
            (pool_attribute::USED_MEM_HIGH, 0) => pool.used_high = pool.used,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// What a device may do with a pool's memory.
    pub(crate) fn access(&self, handle: u64, device: usize) -> Result<CUmemAccess_flags, CUresult> {
        Ok(self.usable(handle)?.access[device])
    }

    /// `cuMemPoolSetAccess`: 1 for taking access from the pool's own device.
    pub(crate) fn set_access(
        &mut self,
        handle: u64,
        wanted: &[(usize, CUmemAccess_flags)],
    ) -> Result<(), CUresult> {
        let pool = self.usable_mut(handle)?;
        if wanted
            .iter()
            .any(|&(device, flags)| device == pool.device && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for &(device, flags) in wanted {
            pool.access[device] = flags;
        }
        Ok(())
    }

    /// Where the frees of other streams stand, which must be reached before `stream` may use what they freed.
    pub(crate) fn frees_of_others(&self, handle: u64, stream: u64) -> Vec<Point> {
        let Some(pool) = self.pools.get(&handle) else { return Vec::new() };
        let mut points: Vec<Point> =
            pool.frees.iter().filter(|&(&other, _)| other != stream).map(|(_, &point)| point).collect();
        points.sort_unstable_by_key(|point| point.stream);
        points
    }

    /// Remembers where a free stands in its stream.
    pub(crate) fn freed_at(&mut self, handle: u64, point: Point) {
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.frees.insert(point.stream, point);
        }
    }

    /// Pools, with where the last free of `stream` into each stands.
    pub(crate) fn frees_of(&self, stream: u64) -> Vec<(u64, Option<Point>)> {
        self.pools.iter().map(|(&handle, pool)| (handle, pool.frees.get(&stream).copied())).collect()
    }
}

impl Memory {
    /// `cuMemPoolCreate`; `max_bytes` is 0 for all of the device's memory.
    pub(crate) fn create_pool(&mut self, handle: u64, device: usize, max_bytes: u64) {
        let max_bytes = if max_bytes == 0 { self.accounts[device].total } else { max_bytes };
        self.pools.pools.insert(handle, PoolState::new(device, max_bytes, self.profiles.len()));
    }

    /// `cuMemPoolDestroy`: 1 for a default pool. A pool that is in use goes with its last allocation.
    pub(crate) fn destroy_pool(&mut self, handle: u64) -> Result<(), CUresult> {
        let default = self.pools.default.contains(&handle);
        let pool = self.pools.usable_mut(handle)?;
        if default {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pool.destroyed = true;
        let device = pool.device;
        if self.pools.current[device] == handle {
            self.pools.current[device] = self.pools.default[device];
        }
        self.drop_unused_pool(handle);
        Ok(())
    }

    /// `cuMemAllocFromPoolAsync`: 2 when the device, the pool's limit or its addresses do not suffice.
    pub(crate) fn alloc_of_pool(&mut self, handle: u64, stream: u64, bytes: u64) -> Result<u64, CUresult> {
        let pool = self.pools.usable_mut(handle)?;
        let more = pool.placement.would_take(stream, bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        let (device, range) = (pool.device, pool.range_bytes());
        if pool.placement.reserved_bytes().saturating_add(more) > pool.limit {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let base = match pool.base {
            Some(base) => base,
            None => self.space.alloc(range).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?,
        };
        pool.base = Some(base);
        if more > self.free_bytes(device) {
            self.trim_pools_but(device, Some(handle));
        }
        if more > self.free_bytes(device) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let placed = self.on_pool(handle, |pool| {
            let placed = pool.placement.alloc(stream, bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
            if placed.offset_bytes.saturating_add(placed.rounded_bytes) > range {
                let freed = pool.placement.free(stream, placed.id);
                debug_assert!(freed.is_ok());
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
            pool.used = pool.used.saturating_add(bytes);
            pool.used_high = pool.used_high.max(pool.used);
            Ok(placed)
        });
        let placed = placed.unwrap_or(Err(CUDA_ERROR_INVALID_VALUE))?;
        let address = base + placed.offset_bytes;
        self.insert(address, device, bytes, AllocationKind::Pool { pool: handle, id: placed.id }, None);
        Ok(address)
    }

    /// `cuMemFreeAsync`, at the call: 1 for what is not the base of a pool's or a `cuMemAlloc` allocation. Returns what
    /// [`finish_free`](Self::finish_free) is told once the stream reaches the free, and the pool.
    pub(crate) fn begin_free(&mut self, address: u64, stream: u64) -> Result<(u64, Option<u64>), CUresult> {
        let kind = self.allocations.get(&address).map(|allocation| &allocation.kind);
        let Some(AllocationKind::Device(_) | AllocationKind::Pool { .. }) = kind else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let Some(allocation) = self.allocations.remove(&address) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let mut of = None;
        if let AllocationKind::Pool { pool: handle, id } = allocation.kind {
            of = Some(handle);
            self.on_pool(handle, |pool| {
                let freed = pool.placement.free(stream, id);
                debug_assert!(freed.is_ok());
                pool.used = pool.used.saturating_sub(allocation.bytes);
                pool.pending_frees += 1;
            });
        }
        let serial = allocation.serial;
        let free = PendingFree { bytes: allocation.bytes, device: allocation.device, kind: allocation.kind };
        self.pending_frees.insert((address, serial), free);
        Ok((serial, of))
    }

    /// The stream has reached a free.
    pub(crate) fn finish_free(&mut self, address: u64, serial: u64) {
        let Some(free) = self.pending_frees.remove(&(address, serial)) else { return };
        match free.kind {
            AllocationKind::Pool { pool: handle, .. } => {
                if let Some(pool) = self.pools.pools.get_mut(&handle) {
                    pool.pending_frees -= 1;
                }
                self.forget_freed(address, free.bytes);
                self.drop_unused_pool(handle);
            }
            AllocationKind::Device(id) => self.unplace(free.device, super::Chunks::Allocations, id),
            _ => {}
        }
        self.remember_freed(address, free.bytes);
    }

    /// `cuMemFree` of a pool's allocation, once all work is done. Measured: the bytes stay counted as used for ever.
    pub(super) fn free_of_pool_now(&mut self, address: u64) {
        let Some(allocation) = self.allocations.remove(&address) else { return };
        let AllocationKind::Pool { pool: handle, id } = allocation.kind else { return };
        self.on_pool(handle, |pool| {
            // A stream that no handle names.
            let freed = pool.placement.free(u64::MAX, id);
            debug_assert!(freed.is_ok());
            pool.placement.synchronize_all();
            pool.frees.clear();
        });
        self.forget_freed(address, allocation.bytes);
        self.remember_freed(address, allocation.bytes);
        self.drop_unused_pool(handle);
    }

    /// A stream was synchronized, which had reached all its frees into a pool.
    pub(crate) fn synchronize_pool(&mut self, handle: u64, stream: u64) {
        self.on_pool(handle, |pool| {
            pool.placement.synchronize(stream);
            pool.frees.remove(&stream);
        });
    }

    /// A context was synchronized.
    pub(crate) fn synchronize_pools(&mut self, device: usize) {
        for handle in self.pools_of(device) {
            self.on_pool(handle, |pool| {
                pool.placement.synchronize_all();
                pool.frees.clear();
            });
        }
    }

    /// `cuMemPoolTrimTo`.
    pub(crate) fn trim_pool(&mut self, handle: u64, bytes_to_keep: u64) -> Result<(), CUresult> {
        self.pools.usable(handle)?;
        self.on_pool(handle, |pool| pool.placement.trim_to(bytes_to_keep));
        Ok(())
    }

    /// Measured: memory that pools do not use goes to an allocation that would fail without it, all at once.
    pub(super) fn trim_pools(&mut self, device: usize) {
        self.trim_pools_but(device, None);
    }

    fn trim_pools_but(&mut self, device: usize, kept: Option<u64>) {
        for handle in self.pools_of(device).into_iter().filter(|&handle| Some(handle) != kept) {
            self.on_pool(handle, |pool| pool.placement.trim_to(0));
        }
    }

    /// A context ended: its device has its default pool alone, as new.
    pub(super) fn close_pools(&mut self, device: usize) {
        for handle in self.pools_of(device) {
            if let Some(pool) = self.pools.pools.remove(&handle) {
                self.free_addresses_of(&pool);
            }
        }
        let default = self.pools.default[device];
        self.pools.current[device] = default;
        self.create_pool(default, device, 0);
    }

    fn pools_of(&self, device: usize) -> Vec<u64> {
        self.pools.pools.iter().filter(|(_, pool)| pool.device == device).map(|(&handle, _)| handle).collect()
    }

    /// Works on a pool, and takes what it then reserves off the free figure.
    fn on_pool<R>(&mut self, handle: u64, work: impl FnOnce(&mut PoolState) -> R) -> Option<R> {
        let pool = self.pools.pools.get_mut(&handle)?;
        let before = pool.placement.reserved_bytes();
        let result = work(pool);
        let account = &mut self.accounts[pool.device];
        account.pools = account.pools - before + pool.placement.reserved_bytes();
        Some(result)
    }

    /// Removes a pool that was destroyed and has neither an allocation nor a pending free.
    fn drop_unused_pool(&mut self, handle: u64) {
        let unused =
            |pool: &PoolState| pool.destroyed && pool.placement.live_count() == 0 && pool.pending_frees == 0;
        if !self.pools.pools.get(&handle).is_some_and(unused) {
            return;
        }
        if let Some(pool) = self.pools.pools.remove(&handle) {
            self.accounts[pool.device].pools -= pool.placement.reserved_bytes();
            self.free_addresses_of(&pool);
        }
    }

    fn free_addresses_of(&mut self, pool: &PoolState) {
        if let Some(base) = pool.base {
            self.store.forget(base, pool.range_bytes());
            self.space.free(base, pool.range_bytes());
        }
    }

    /// Forgets the bytes of a range in a pool unless it is in use again.
    fn forget_freed(&mut self, address: u64, bytes: u64) {
        let last = self.allocations.range(..address + bytes).next_back();
        if last.is_none_or(|(&base, allocation)| base + allocation.bytes <= address) {
            self.store.forget(address, bytes);
        }
    }
}

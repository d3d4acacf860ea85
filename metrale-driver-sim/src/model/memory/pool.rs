// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of pools: allocation by `metrale_ledger::placement::pool`, addresses, and frees in stream order.
//!
//! A free counts for the attributes at the call. Later allocations of the same stream use its space at once, others when the
//! rule lets them; the device has the memory back when the stream is synchronized.

use metrale_driver_sys::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, CUresult,
};
use metrale_ledger::placement::pool::PoolEvent;

use super::pools::MemoryPool;
use super::{Allocation, AllocationKind, Memory, PendingFree};

impl Memory {
    /// `cuMemPoolCreate`; `max_bytes` is 0 for no limit.
    pub(crate) fn create_pool(&mut self, handle: u64, device: usize, max_bytes: u64) {
        let total = self.accounts[device].total;
        let pool = MemoryPool::new(device, max_bytes, total, self.profiles.len());
        self.pools.pools.insert(handle, pool);
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
        let (device, range) = (pool.device, pool.range_bytes);
        if bytes > self.accounts[device].total {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let base = match pool.base {
            Some(base) => base,
            None => self.space.alloc(range).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?,
        };
        pool.base = Some(base);
        // `would_take` may cost time, so it is called only where memory is scarce.
        let piece = pool.placement.rule().piece_bytes();
        if bytes.next_multiple_of(piece) + piece > self.accounts[device].free() {
            let more = pool.placement.would_take(stream, bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
            if more > self.accounts[device].free() {
                self.trim_pools_but(device, Some(handle));
            }
        }
        let available = self.free_bytes(device);
        let placed = self.on_pool(handle, |pool| {
            let placed = pool.placement.alloc_within(stream, bytes, available).ok()?;
            if placed.offset_bytes.saturating_add(placed.rounded_bytes) > range {
                let freed = pool.placement.free(stream, placed.id);
                debug_assert!(freed.is_ok());
                return None;
            }
            Some(placed)
        });
        let Some(placed) = placed.flatten() else {
            self.trim_pools_but(device, Some(handle));
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        };
        let address = base + placed.offset_bytes;
        self.insert(address, device, bytes, AllocationKind::Pool { pool: handle, id: placed.id }, None);
        Ok(address)
    }

    /// The serial of what `cuMemFreeAsync` may free: 801 for managed memory, 1 for what is not the base of a pool's or a
    /// `cuMemAlloc` allocation.
    pub(crate) fn freeable(&self, address: u64) -> Result<u64, CUresult> {
        match self.allocations.get(&address) {
            Some(
                allocation @ Allocation {
                    kind: AllocationKind::Device(_) | AllocationKind::Pool { .. }, ..
                },
            ) => Ok(allocation.serial),
            Some(Allocation { kind: AllocationKind::Managed { .. }, .. }) => Err(CUDA_ERROR_NOT_SUPPORTED),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuMemFreeAsync`, at the call. `unfinished` says whether the stream has work before the free. Once it reaches the free,
    /// [`finish_free`](Self::finish_free) is called. Measured: memory of `cuMemAlloc` can be freed again until then, by either
    /// call.
    pub(crate) fn begin_free(&mut self, address: u64, stream: u64, unfinished: bool) {
        let Some(allocation) = self.allocations.get_mut(&address) else { return };
        let (bytes, device, serial) = (allocation.bytes, allocation.device, allocation.serial);
        let AllocationKind::Pool { pool: handle, id } = allocation.kind else {
            allocation.free_submitted = true;
            return;
        };
        self.allocations.remove(&address);
        let work = self.on_pool(handle, |pool| {
            let work = unfinished.then(|| pool.placement.begin_work(stream));
            let freed = pool.placement.free(stream, id);
            debug_assert!(freed.is_ok());
            pool.pending_frees += 1;
            work
        });
        let free = PendingFree { bytes, device, pool: handle, work: work.flatten() };
        self.pending_frees.insert((address, serial), free);
    }

    /// Whether a stream is about to free the allocation at a base.
    pub(crate) fn is_free_submitted(&self, address: u64) -> bool {
        self.allocations.get(&address).is_some_and(|allocation| allocation.free_submitted)
    }

    /// The stream has reached a free.
    pub(crate) fn finish_free(&mut self, address: u64, serial: u64) {
        if let Some(free) = self.pending_frees.remove(&(address, serial)) {
            if let Some(pool) = self.pools.pools.get_mut(&free.pool) {
                pool.pending_frees -= 1;
                if let Some(work) = free.work {
                    pool.placement.finish_work(work);
                }
            }
            self.forget_freed(address, free.bytes);
            self.remember_freed(address, free.bytes);
            self.drop_unused_pool(free.pool);
        } else if self.allocations.get(&address).is_some_and(|allocation| allocation.serial == serial) {
            // It is there, and a kind that can be freed, or the free would not have been submitted.
            let freed = self.free(address);
            debug_assert!(freed.is_ok());
        }
    }

    /// `cuMemFree` of a pool's allocation, once all work is done.
    pub(super) fn free_of_pool_now(&mut self, address: u64) {
        let Some(allocation) = self.allocations.remove(&address) else { return };
        let AllocationKind::Pool { pool: handle, id } = allocation.kind else { return };
        self.on_pool(handle, |pool| {
            let freed = pool.placement.free_synchronously(id);
            debug_assert!(freed.is_ok());
        });
        self.forget_freed(address, allocation.bytes);
        self.remember_freed(address, allocation.bytes);
        self.drop_unused_pool(handle);
    }

    /// A stream was synchronized.
    pub(crate) fn synchronize_stream(&mut self, stream: u64) {
        for handle in self.used_pools() {
            self.on_pool(handle, |pool| pool.placement.synchronize(stream));
        }
    }

    /// An event was synchronized.
    pub(crate) fn synchronize_event(&mut self, events: &[(u64, PoolEvent)]) {
        for (handle, event) in events {
            self.on_pool(*handle, |pool| pool.placement.synchronize_event(event));
        }
    }

    /// The context of a device was synchronized.
    pub(crate) fn synchronize_context(&mut self, device: usize) {
        for handle in self.pools_of(device) {
            self.on_pool(handle, |pool| pool.placement.synchronize_all());
        }
    }

    /// `cuMemPoolTrimTo`.
    pub(crate) fn trim_pool(&mut self, handle: u64, bytes_to_keep: u64) -> Result<(), CUresult> {
        self.pools.usable(handle)?;
        self.on_pool(handle, |pool| pool.placement.trim_to(bytes_to_keep));
        Ok(())
    }

    /// Measured: an allocation that would fail otherwise makes all pools but its own return what is idle.
    pub(super) fn trim_pools_but(&mut self, device: usize, own: Option<u64>) {
        for handle in self.pools_of(device).into_iter().filter(|&handle| Some(handle) != own) {
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

    fn used_pools(&self) -> Vec<u64> {
        self.pools.pools.iter().filter(|(_, pool)| pool.base.is_some()).map(|(&handle, _)| handle).collect()
    }

    /// Works on a pool, and takes what it then reserves off the free figure.
    fn on_pool<R>(&mut self, handle: u64, work: impl FnOnce(&mut MemoryPool) -> R) -> Option<R> {
        let pool = self.pools.pools.get_mut(&handle)?;
        let before = pool.placement.reserved_bytes();
        let result = work(pool);
        let account = &mut self.accounts[pool.device];
        account.pools = account.pools - before + pool.placement.reserved_bytes();
        Some(result)
    }

    /// Removes a pool that was destroyed and has neither an allocation nor a pending free.
    fn drop_unused_pool(&mut self, handle: u64) {
        let in_use = |pool: &MemoryPool| pool.placement.live_count() > 0 || pool.pending_frees > 0;
        if !self.pools.pools.get(&handle).is_some_and(|pool| pool.destroyed && !in_use(pool)) {
            return;
        }
        if let Some(pool) = self.pools.pools.remove(&handle) {
            self.accounts[pool.device].pools -= pool.placement.reserved_bytes();
            self.free_addresses_of(&pool);
        }
    }

    fn free_addresses_of(&mut self, pool: &MemoryPool) {
        if let Some(base) = pool.base {
            self.store.forget(base, pool.range_bytes);
            self.space.free(base, pool.range_bytes);
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

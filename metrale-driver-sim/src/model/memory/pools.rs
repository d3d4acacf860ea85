// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pools as objects: handles, attributes, access, and which pool a device allocates from.

use std::collections::BTreeMap;

use metrale_driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_ERROR_INVALID_DEVICE,
    CUDA_ERROR_INVALID_VALUE, CUmemAccess_flags, CUmemPool_attribute, CUresult, pool_attribute,
};
use metrale_ledger::placement::pool::{Pool, PoolEvent, PoolReuse, PoolRule};

/// A memory pool.
pub(crate) struct MemoryPool {
    pub(crate) device: usize,
    pub(super) placement: Pool,
    /// Start of its addresses, from the first allocation on.
    pub(super) base: Option<u64>,
    /// Bytes of its range of addresses. Measured: twice what it may reserve, in whole pieces.
    pub(super) range_bytes: u64,
    /// `cuMemPoolDestroy` was called; the pool lives until its last allocation is freed.
    pub(super) destroyed: bool,
    /// The three reuse attributes. The last has no effect here.
    reuse: [bool; 3],
    /// What each device may do, by its ordinal.
    access: Vec<CUmemAccess_flags>,
    /// Frees that their stream has not reached.
    pub(super) pending_frees: usize,
}

impl MemoryPool {
    /// `max_bytes` is 0 for a pool without a limit, on a device of `total_bytes`.
    pub(super) fn new(device: usize, max_bytes: u64, total_bytes: u64, devices: usize) -> Self {
        let mut placement = Pool::new(PoolRule::H200);
        if max_bytes > 0 {
            placement.set_max_bytes(max_bytes);
        }
        let piece = placement.rule().piece_bytes();
        let most = if max_bytes > 0 { max_bytes } else { total_bytes };
        let whole = most.checked_next_multiple_of(piece).unwrap_or(u64::MAX / piece * piece);
        let mut access = vec![CU_MEM_ACCESS_FLAGS_PROT_NONE; devices];
        access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        Self {
            device,
            placement,
            base: None,
            range_bytes: whole.saturating_mul(2),
            destroyed: false,
            reuse: [true; 3],
            access,
            pending_frees: 0,
        }
    }
}

/// All pools of an instance.
pub(crate) struct Pools {
    pub(super) pools: BTreeMap<u64, MemoryPool>,
    /// By device.
    pub(super) default: Vec<u64>,
    /// By device: where `cuMemAllocAsync` allocates.
    pub(super) current: Vec<u64>,
}

impl Pools {
    /// `default` has a handle for each device, whose memory is `totals` bytes.
    pub(super) fn new(default: Vec<u64>, totals: &[u64]) -> Self {
        let pools = default
            .iter()
            .enumerate()
            .map(|(device, &handle)| (handle, MemoryPool::new(device, 0, totals[device], totals.len())))
            .collect();
        Self { pools, current: default.clone(), default }
    }

    pub(crate) fn default_of(&self, device: usize) -> u64 {
        self.default[device]
    }

    pub(crate) fn current_of(&self, device: usize) -> u64 {
        self.current[device]
    }

    /// A pool that was destroyed may be made current; what is then allocated from it is refused.
    pub(crate) fn set_current(&mut self, device: usize, handle: u64) {
        self.current[device] = handle;
    }

    /// A pool that was not destroyed.
    pub(crate) fn usable(&self, handle: u64) -> Result<&MemoryPool, CUresult> {
        self.pools.get(&handle).filter(|pool| !pool.destroyed).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub(super) fn usable_mut(&mut self, handle: u64) -> Result<&mut MemoryPool, CUresult> {
        self.pools.get_mut(&handle).filter(|pool| !pool.destroyed).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Handle and device of every pool that was made and not destroyed.
    pub(crate) fn made(&self) -> impl Iterator<Item = (u64, usize)> {
        let made = |handle: u64, pool: &MemoryPool| !pool.destroyed && !self.default.contains(&handle);
        self.pools
            .iter()
            .filter(move |&(&handle, pool)| made(handle, pool))
            .map(|(&handle, pool)| (handle, pool.device))
    }

    /// One of the reuse attributes.
    pub(crate) fn reuse(&self, handle: u64, attribute: CUmemPool_attribute) -> Result<bool, CUresult> {
        let pool = self.usable(handle)?;
        Ok(pool.reuse[reuse_place(attribute)?])
    }

    pub(crate) fn set_reuse(
        &mut self,
        handle: u64,
        attribute: CUmemPool_attribute,
        allowed: bool,
    ) -> Result<(), CUresult> {
        let pool = self.usable_mut(handle)?;
        pool.reuse[reuse_place(attribute)?] = allowed;
        let [follow_events, opportunistic, _] = pool.reuse;
        pool.placement.set_reuse(PoolReuse { follow_events, opportunistic });
        Ok(())
    }

    /// An attribute that counts bytes.
    pub(crate) fn bytes(&self, handle: u64, attribute: CUmemPool_attribute) -> Result<u64, CUresult> {
        let placement = &self.usable(handle)?.placement;
        Ok(match attribute {
            pool_attribute::RELEASE_THRESHOLD => placement.release_threshold(),
            pool_attribute::RESERVED_MEM_CURRENT => placement.reserved_bytes(),
            pool_attribute::RESERVED_MEM_HIGH => placement.reserved_high_bytes(),
            pool_attribute::USED_MEM_CURRENT => placement.used_bytes(),
            pool_attribute::USED_MEM_HIGH => placement.used_high_bytes(),
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
        let placement = &mut self.usable_mut(handle)?.placement;
        match (attribute, bytes) {
            (pool_attribute::RELEASE_THRESHOLD, _) => placement.set_release_threshold(bytes),
            (pool_attribute::RESERVED_MEM_HIGH, 0) => placement.reset_reserved_high(),
            (pool_attribute::USED_MEM_HIGH, 0) => placement.reset_used_high(),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// What a device may do with a pool's memory.
    pub(crate) fn access(&self, handle: u64, device: usize) -> Result<CUmemAccess_flags, CUresult> {
        Ok(self.usable(handle)?.access[device])
    }

    /// `cuMemPoolSetAccess`: 101 where the pool's own device would lose access.
    pub(crate) fn set_access(
        &mut self,
        handle: u64,
        wanted: &[(usize, CUmemAccess_flags)],
    ) -> Result<(), CUresult> {
        let pool = self.usable_mut(handle)?;
        let loses = |&(device, flags)| device == pool.device && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if wanted.iter().any(loses) {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        for &(device, flags) in wanted {
            pool.access[device] = flags;
        }
        Ok(())
    }

    /// What an event of a stream stands for in every pool that was used.
    pub(crate) fn record(&self, stream: u64) -> Vec<(u64, PoolEvent)> {
        let used = self.pools.iter().filter(|(_, pool)| pool.base.is_some());
        used.map(|(&handle, pool)| (handle, pool.placement.record(stream))).collect()
    }

    /// A stream waits for an event.
    pub(crate) fn wait(&mut self, stream: u64, events: &[(u64, PoolEvent)]) {
        for (handle, event) in events {
            if let Some(pool) = self.pools.get_mut(handle) {
                pool.placement.wait(stream, event);
            }
        }
    }
}

/// The place of a reuse attribute.
fn reuse_place(attribute: CUmemPool_attribute) -> Result<usize, CUresult> {
    match attribute {
        pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES => Ok(0),
        pool_attribute::REUSE_ALLOW_OPPORTUNISTIC => Ok(1),
        pool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => Ok(2),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

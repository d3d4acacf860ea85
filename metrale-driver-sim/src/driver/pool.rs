// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pools, and allocation and free in stream order.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::{c_int, c_void};

use metrale_driver_sys::{
    CUDA_ERROR_INVALID_VALUE, CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, pool_attribute,
};

use super::Face;
use super::raw::{Out, get};
use super::virtual_memory::{device_at, memory_on, wanted_access};

/// The last of the attributes that are a C `int`; the others are a `u64`.
const LAST_INT: CUmemPool_attribute = pool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES;

impl Face {
    pub(super) unsafe fn cuMemAllocAsync(
        &self,
        dptr: *mut CUdeviceptr,
        bytesize: usize,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(dptr) }?;
            out.put(model.alloc_async(None, bytesize as u64, hStream)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemAllocFromPoolAsync(
        &self,
        dptr: *mut CUdeviceptr,
        bytesize: usize,
        pool: CUmemoryPool,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(dptr) }?;
            out.put(model.alloc_async(Some(pool), bytesize as u64, hStream)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemFreeAsync(&self, dptr: CUdeviceptr, hStream: CUstream) -> CUresult {
        self.call(|model| model.free_async(dptr, hStream))
    }

    pub(super) unsafe fn cuDeviceGetDefaultMemPool(
        &self,
        pool_out: *mut CUmemoryPool,
        dev: CUdevice,
    ) -> CUresult {
        self.call(|model| {
            let device = model.device(dev)?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pool_out) }?;
            out.put(model.memory.pools.default_of(device));
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceGetMemPool(&self, pool: *mut CUmemoryPool, dev: CUdevice) -> CUresult {
        self.call(|model| {
            let device = model.device(dev)?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pool) }?;
            out.put(model.memory.pools.current_of(device));
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceSetMemPool(&self, dev: CUdevice, pool: CUmemoryPool) -> CUresult {
        self.call(|model| {
            let device = model.device(dev)?;
            model.set_pool(device, pool)
        })
    }

    pub(super) unsafe fn cuMemPoolCreate(
        &self,
        pool: *mut CUmemoryPool,
        poolProps: *const CUmemPoolProps,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pool) }?;
            // SAFETY: the trait's promise for pointers to structures.
            let props = unsafe { get(poolProps) }?;
            let device = memory_on(model, props.allocType, props.handleTypes, props.location);
            // Measured: not 101 for a device that does not exist, as `cuMemCreate` has it.
            let device = device.map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
            out.put(model.pool_create(device, props.maxSize as u64));
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemPoolDestroy(&self, pool: CUmemoryPool) -> CUresult {
        self.call(|model| {
            model.sound()?;
            model.memory.destroy_pool(pool)
        })
    }

    pub(super) unsafe fn cuMemPoolGetAttribute(
        &self,
        pool: CUmemoryPool,
        attr: CUmemPool_attribute,
        value: *mut c_void,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            if attr <= LAST_INT {
                // SAFETY: the trait's promise for result pointers.
                let out = unsafe { Out::new(value.cast::<c_int>()) }?;
                out.put(model.memory.pools.reuse(pool, attr)?.into());
            } else {
                // SAFETY: as above.
                let out = unsafe { Out::new(value.cast::<u64>()) }?;
                out.put(model.memory.pools.bytes(pool, attr)?);
            }
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemPoolSetAttribute(
        &self,
        pool: CUmemoryPool,
        attr: CUmemPool_attribute,
        value: *mut c_void,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            if attr <= LAST_INT {
                // SAFETY: the trait's promise: `value` points to a value of the attribute's type.
                let value = unsafe { get(value.cast_const().cast::<c_int>()) }?;
                return model.memory.pools.set_reuse(pool, attr, value != 0);
            }
            // SAFETY: as above.
            let bytes = unsafe { get(value.cast_const().cast::<u64>()) }?;
            model.memory.pools.set_bytes(pool, attr, bytes)
        })
    }

    pub(super) unsafe fn cuMemPoolTrimTo(&self, pool: CUmemoryPool, minBytesToKeep: usize) -> CUresult {
        self.call(|model| {
            model.sound()?;
            model.memory.trim_pool(pool, minBytesToKeep as u64)
        })
    }

    pub(super) unsafe fn cuMemPoolSetAccess(
        &self,
        pool: CUmemoryPool,
        map: *const CUmemAccessDesc,
        count: usize,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for arrays.
            let wanted = unsafe { wanted_access(model, map, count) }?;
            model.memory.pools.set_access(pool, &wanted)
        })
    }

    pub(super) unsafe fn cuMemPoolGetAccess(
        &self,
        flags: *mut CUmemAccess_flags,
        memPool: CUmemoryPool,
        location: *mut CUmemLocation,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(flags) }?;
            // SAFETY: the trait's promise for pointers to structures.
            let device = device_at(model, unsafe { get(location.cast_const()) }?)?;
            out.put(model.memory.pools.access(memPool, device)?);
            Ok(())
        })
    }
}

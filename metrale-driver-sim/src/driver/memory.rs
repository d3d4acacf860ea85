// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation, the free figure, and questions about addresses.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::{c_int, c_uint, c_void};

use metrale_driver_sys::{
    CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST,
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUdeviceptr,
    CUpointer_attribute, CUresult, pointer_attribute,
};

use super::Face;
use super::raw::Out;
use crate::model::memory::AllocationKind;

impl Face {
    pub(super) unsafe fn cuMemAlloc_v2(&self, dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(dptr) }?;
            model.unsafe_call(device)?;
            out.put(model.memory.alloc(device, bytesize as u64)?);
            Ok(())
        })
    }

    /// Waits for all work of the context, as the hardware's driver does.
    pub(super) unsafe fn cuMemFree_v2(&self, dptr: CUdeviceptr) -> CUresult {
        self.call(|model| {
            // Measured: without a current context the address says whose memory it is.
            let owner =
                model.memory.find(dptr).filter(|&(base, _)| base == dptr).map(|(_, found)| found.device);
            let device = match (model.context(), owner) {
                (Err(CUDA_ERROR_INVALID_CONTEXT), Some(owner)) => owner,
                (context, _) => context?,
            };
            model.unsafe_call(device)?;
            if dptr == 0 {
                return Ok(());
            }
            let is_free_submitted = model.memory.is_free_submitted(dptr);
            model.run_all(device);
            model.alive(device)?;
            match model.memory.free(dptr) {
                // Measured: 0 for memory of `cuMemAlloc` that a stream was about to free, which the wait has done here.
                Err(CUDA_ERROR_INVALID_VALUE) if is_free_submitted => Ok(()),
                answer => answer,
            }
        })
    }

    pub(super) unsafe fn cuMemAllocManaged(
        &self,
        dptr: *mut CUdeviceptr,
        bytesize: usize,
        flags: c_uint,
    ) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(dptr) }?;
            if bytesize == 0 || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            model.unsafe_call(device)?;
            out.put(model.memory.alloc_host(device, bytesize, true)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemAllocHost_v2(&self, pp: *mut *mut c_void, bytesize: usize) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pp) }?;
            model.unsafe_call(device)?;
            if bytesize == 0 {
                out.put(core::ptr::null_mut());
                return Ok(());
            }
            let address = model.memory.alloc_host(device, bytesize, false)?;
            out.put(core::ptr::with_exposed_provenance_mut(address as usize));
            Ok(())
        })
    }

    /// Waits for all work of the context, which may still use the memory.
    pub(super) unsafe fn cuMemFreeHost(&self, p: *mut c_void) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            if p.is_null() {
                return Ok(());
            }
            model.unsafe_call(device)?;
            model.run_all(device);
            model.alive(device)?;
            model.memory.free_host(p.addr() as u64)
        })
    }

    pub(super) unsafe fn cuMemHostGetDevicePointer_v2(
        &self,
        pdptr: *mut CUdeviceptr,
        p: *mut c_void,
        Flags: c_uint,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pdptr) }?;
            if Flags != 0 || model.memory.pinned(p.addr(), 1).is_none() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            out.put(p.addr() as u64);
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemGetInfo_v2(&self, free: *mut usize, total: *mut usize) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out_free = unsafe { Out::new(free) }?;
            // SAFETY: as above.
            let out_total = unsafe { Out::new(total) }?;
            out_free.put(model.memory.free_bytes(device) as usize);
            out_total.put(model.memory.total_bytes(device) as usize);
            Ok(())
        })
    }

    /// Base and size as asked for. An address of no allocation is answered 500.
    pub(super) unsafe fn cuMemGetAddressRange_v2(
        &self,
        pbase: *mut CUdeviceptr,
        psize: *mut usize,
        dptr: CUdeviceptr,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers, either of which may be null.
            let base = unsafe { Out::optional(pbase) }?;
            // SAFETY: as above.
            let size = unsafe { Out::optional(psize) }?;
            let (address, allocation) = model.memory.find(dptr).ok_or(CUDA_ERROR_NOT_FOUND)?;
            // Measured: an address behind the reserved ones is not found, though a mapping may reach there.
            if matches!(allocation.kind, AllocationKind::Mapped(_))
                && model.memory.reserved_around(dptr).is_err()
            {
                return Err(CUDA_ERROR_NOT_FOUND);
            }
            if let Some(base) = base {
                base.put(address);
            }
            if let Some(size) = size {
                size.put(allocation.bytes as usize);
            }
            Ok(())
        })
    }

    pub(super) unsafe fn cuPointerGetAttribute(
        &self,
        data: *mut c_void,
        attribute: CUpointer_attribute,
        ptr: CUdeviceptr,
    ) -> CUresult {
        use pointer_attribute as a;
        self.call(|model| {
            model.context()?;
            let (base, allocation) = model.memory.find(ptr).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let device = allocation.device;
            // Measured: of mapped memory the size is that of the reserved range, not of the mapping.
            let (start, bytes) = match allocation.kind {
                AllocationKind::Mapped(_) => model.memory.reserved_around(base)?,
                _ => (base, allocation.bytes),
            };
            let is_host = allocation.is_host();
            // Mapped memory and that of pools belong to no context.
            let (context, pool) = match allocation.kind {
                AllocationKind::Pool { pool, .. } => (0, pool),
                AllocationKind::Mapped(_) => (0, 0),
                _ => (model.context_handle(device), 0),
            };
            let pinned = matches!(allocation.kind, AllocationKind::Pinned);
            let managed = matches!(allocation.kind, AllocationKind::Managed { .. });
            match attribute {
                // SAFETY: the trait's promise: `data` points to a value of the attribute's type.
                a::CONTEXT => unsafe { Out::new(data.cast::<u64>()) }?.put(context),
                a::MEMORY_TYPE => {
                    let kind: c_uint = if pinned { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE };
                    // SAFETY: as above.
                    unsafe { Out::new(data.cast::<c_uint>()) }?.put(kind);
                }
                // SAFETY: as above.
                a::DEVICE_POINTER => unsafe { Out::new(data.cast::<u64>()) }?.put(ptr),
                // SAFETY: as above.
                a::HOST_POINTER if is_host => unsafe { Out::new(data.cast::<u64>()) }?.put(ptr),
                // One byte: the narrowest type that callers have for a boolean, which they clear before.
                // SAFETY: as above.
                a::IS_MANAGED => unsafe { Out::new(data.cast::<u8>()) }?.put(managed.into()),
                // SAFETY: as above.
                a::DEVICE_ORDINAL => unsafe { Out::new(data.cast::<c_int>()) }?.put(device as c_int),
                // SAFETY: as above.
                a::RANGE_START_ADDR => unsafe { Out::new(data.cast::<u64>()) }?.put(start),
                // SAFETY: as above.
                a::MEMPOOL_HANDLE => unsafe { Out::new(data.cast::<u64>()) }?.put(pool),
                // SAFETY: as above.
                a::RANGE_SIZE => unsafe { Out::new(data.cast::<usize>()) }?.put(bytes as usize),
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            Ok(())
        })
    }
}

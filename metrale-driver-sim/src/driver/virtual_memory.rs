// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual memory: address ranges, physical memory, mappings and access. None of these calls needs a current context.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::c_void;

use metrale_driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
    CUDA_ERROR_INVALID_VALUE, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUresult, DriverFn,
};

use super::Face;
use super::raw::{Out, get, readable};
use crate::model::Model;

/// The bits of the handle types that the headers have.
const HANDLE_TYPES: CUmemAllocationHandleType = 0xF;

impl Face {
    pub(super) unsafe fn cuMemGetAllocationGranularity(
        &self,
        granularity: *mut usize,
        prop: *const CUmemAllocationProp,
        option: CUmemAllocationGranularity_flags,
    ) -> CUresult {
        self.call(|model| {
            model.initialized()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(granularity) }?;
            // SAFETY: the trait's promise for pointers to structures. Measured: neither the kind of memory nor the location need
            // exist.
            unsafe { get(prop) }?;
            if option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            out.put(model.memory.granularity() as usize);
            Ok(())
        })
    }

    /// The wish for an address is not followed.
    pub(super) unsafe fn cuMemAddressReserve(
        &self,
        ptr: *mut CUdeviceptr,
        size: usize,
        alignment: usize,
        _addr: CUdeviceptr,
        flags: u64,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(ptr) }?;
            no_flags(flags)?;
            out.put(model.memory.reserve_addresses(size as u64, alignment as u64)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemAddressFree(&self, ptr: CUdeviceptr, size: usize) -> CUresult {
        self.call(|model| {
            model.sound()?;
            model.memory.free_addresses(ptr, size as u64)
        })
    }

    pub(super) unsafe fn cuMemCreate(
        &self,
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        prop: *const CUmemAllocationProp,
        flags: u64,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(handle) }?;
            // SAFETY: the trait's promise for pointers to structures.
            let prop = unsafe { get(prop) }?;
            let device = memory_on(model, prop.type_, prop.requestedHandleTypes, prop.location)?;
            no_flags(flags)?;
            out.put(model.physical_create(device, size as u64, prop.requestedHandleTypes)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemRelease(&self, handle: CUmemGenericAllocationHandle) -> CUresult {
        self.call(|model| {
            model.sound()?;
            model.not_freed(DriverFn::cuMemRelease, handle)?;
            model.memory.release_physical(handle)
        })
    }

    pub(super) unsafe fn cuMemMap(
        &self,
        ptr: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            no_flags(flags)?;
            model.not_freed(DriverFn::cuMemMap, handle)?;
            let outside = model.memory.map(ptr, size as u64, offset as u64, handle)?;
            if outside > 0 {
                model.diagnose(format!(
                    "cuMemMap of {size} bytes at {ptr:#x}: the last {outside} bytes lie behind the reserved addresses; \
                     reserve more, because other memory may come to lie there on hardware"
                ));
            }
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemUnmap(&self, ptr: CUdeviceptr, size: usize) -> CUresult {
        self.call(|model| {
            model.sound()?;
            model.memory.unmap_range(ptr, size as u64)
        })
    }

    pub(super) unsafe fn cuMemSetAccess(
        &self,
        ptr: CUdeviceptr,
        size: usize,
        desc: *const CUmemAccessDesc,
        count: usize,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for arrays.
            let wanted = unsafe { wanted_access(model, desc, count) }?;
            model.memory.set_access(ptr, size as u64, &wanted)
        })
    }

    pub(super) unsafe fn cuMemGetAccess(
        &self,
        flags: *mut u64,
        location: *const CUmemLocation,
        ptr: CUdeviceptr,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(flags) }?;
            // SAFETY: the trait's promise for pointers to structures.
            let device = device_at(model, unsafe { get(location) }?)?;
            out.put(model.memory.access(ptr, device)?.into());
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemRetainAllocationHandle(
        &self,
        handle: *mut CUmemGenericAllocationHandle,
        addr: *mut c_void,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(handle) }?;
            out.put(model.memory.retain_physical(addr.addr() as u64)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuMemGetAllocationPropertiesFromHandle(
        &self,
        prop: *mut CUmemAllocationProp,
        handle: CUmemGenericAllocationHandle,
    ) -> CUresult {
        self.call(|model| {
            model.sound()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(prop) }?;
            model.not_freed(DriverFn::cuMemGetAllocationPropertiesFromHandle, handle)?;
            let (device, requestedHandleTypes) = model.memory.physical_properties(handle)?;
            out.put(CUmemAllocationProp {
                type_: CU_MEM_ALLOCATION_TYPE_PINNED,
                requestedHandleTypes,
                location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device as i32 },
                ..CUmemAllocationProp::default()
            });
            Ok(())
        })
    }
}

fn no_flags(flags: u64) -> Result<(), CUresult> {
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// The device at a location, where pinned memory can be made.
pub(super) fn memory_on(
    model: &Model,
    kind: CUmemAllocationType,
    handle_types: CUmemAllocationHandleType,
    location: CUmemLocation,
) -> Result<usize, CUresult> {
    if kind != CU_MEM_ALLOCATION_TYPE_PINNED || handle_types & !HANDLE_TYPES != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    device_at(model, location)
}

/// The device that a location names.
pub(super) fn device_at(model: &Model, location: CUmemLocation) -> Result<usize, CUresult> {
    if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    model.device(location.id)
}

/// What devices shall be able to do: 1 for an empty list, for more elements than there are devices, and for flags or devices
/// that do not exist.
///
/// # Safety
/// `desc` has `count` elements that can be read, unless it is null or one of this driver's own numbers.
pub(super) unsafe fn wanted_access(
    model: &Model,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> Result<Vec<(usize, CUmemAccess_flags)>, CUresult> {
    if count == 0 || count > model.profiles.len() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    readable(desc, count)?;
    let mut wanted = Vec::new();
    for at in 0..count {
        // SAFETY: the caller's promise.
        let CUmemAccessDesc { location, flags } = unsafe { get(desc.wrapping_add(at)) }?;
        let exists = matches!(
            flags,
            CU_MEM_ACCESS_FLAGS_PROT_NONE
                | CU_MEM_ACCESS_FLAGS_PROT_READ
                | CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        );
        if !exists {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        wanted.push((device_at(model, location).map_err(|_| CUDA_ERROR_INVALID_VALUE)?, flags));
    }
    Ok(wanted)
}

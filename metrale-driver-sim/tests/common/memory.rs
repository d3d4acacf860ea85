// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls about memory pools and virtual memory, and what their tests make.
#![allow(non_snake_case, reason = "fields of structures keep the C spelling")]

use metrale_driver_sim::driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
    CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemPoolProps, CUresult,
};

use super::{Answer, Cuda, answer};

/// Pools and virtual memory.
impl Cuda {
    pub(crate) fn pool(&self, props: &CUmemPoolProps) -> Answer<u64> {
        let mut pool = 0;
        // SAFETY: the result pointer is a local, the other is to a structure.
        let status = unsafe { self.api.cuMemPoolCreate(&mut pool, props) };
        answer(status, pool)
    }

    /// A pool of device 0 that may reserve so many bytes, or (0) all there are.
    pub(crate) fn new_pool(&self, max_bytes: usize) -> u64 {
        let (allocType, location, maxSize) = (CU_MEM_ALLOCATION_TYPE_PINNED, on_device(0), max_bytes);
        self.pool(&CUmemPoolProps { allocType, location, maxSize, ..CUmemPoolProps::default() }).unwrap()
    }

    /// An attribute of a pool that counts bytes.
    pub(crate) fn pool_bytes(&self, pool: u64, attribute: u32) -> Answer<u64> {
        let mut bytes = 0u64;
        // SAFETY: the result pointer is a local of the attribute's type.
        let status = unsafe { self.api.cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) };
        answer(status, bytes)
    }

    pub(crate) fn pool_set_bytes(&self, pool: u64, attribute: u32, mut bytes: u64) -> CUresult {
        // SAFETY: the pointer is to a local of the attribute's type.
        unsafe { self.api.cuMemPoolSetAttribute(pool, attribute, (&raw mut bytes).cast()) }
    }

    /// An attribute of a pool that is a C `int`.
    pub(crate) fn pool_flag(&self, pool: u64, attribute: u32) -> Answer<i32> {
        let mut flag = 0i32;
        // SAFETY: the result pointer is a local of the attribute's type.
        let status = unsafe { self.api.cuMemPoolGetAttribute(pool, attribute, (&raw mut flag).cast()) };
        answer(status, flag)
    }

    pub(crate) fn pool_set_flag(&self, pool: u64, attribute: u32, mut flag: i32) -> CUresult {
        // SAFETY: the pointer is to a local of the attribute's type.
        unsafe { self.api.cuMemPoolSetAttribute(pool, attribute, (&raw mut flag).cast()) }
    }

    pub(crate) fn pool_access(&self, pool: u64, mut location: CUmemLocation) -> Answer<u32> {
        let mut flags = 0xDEAD;
        // SAFETY: the pointers are to locals.
        let status = unsafe { self.api.cuMemPoolGetAccess(&mut flags, pool, &mut location) };
        answer(status, flags)
    }

    pub(crate) fn pool_set_access(&self, pool: u64, access: &[CUmemAccessDesc]) -> CUresult {
        // SAFETY: the pointer is to so many structures.
        unsafe { self.api.cuMemPoolSetAccess(pool, access.as_ptr(), access.len()) }
    }

    /// An attribute of an address that is a 64-bit number.
    pub(crate) fn wide_attribute(&self, attribute: u32, address: u64) -> Answer<u64> {
        let mut value = 0u64;
        // SAFETY: the result pointer is a local of the attribute's type.
        let status = unsafe { self.api.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
        answer(status, value)
    }

    pub(crate) fn granularity(&self, prop: &CUmemAllocationProp, option: u32) -> Answer<usize> {
        let mut bytes = 0;
        // SAFETY: the result pointer is a local, the other is to a structure.
        let status = unsafe { self.api.cuMemGetAllocationGranularity(&mut bytes, prop, option) };
        answer(status, bytes)
    }

    pub(crate) fn create(&self, bytes: usize, prop: &CUmemAllocationProp, flags: u64) -> Answer<u64> {
        let mut handle = 0;
        // SAFETY: the result pointer is a local, the other is to a structure.
        let status = unsafe { self.api.cuMemCreate(&mut handle, bytes, prop, flags) };
        answer(status, handle)
    }

    pub(crate) fn set_access(&self, address: u64, bytes: usize, access: &[CUmemAccessDesc]) -> CUresult {
        // SAFETY: the pointer is to so many structures.
        unsafe { self.api.cuMemSetAccess(address, bytes, access.as_ptr(), access.len()) }
    }

    pub(crate) fn access(&self, address: u64, location: CUmemLocation) -> Answer<u64> {
        let mut flags = 0xDEAD;
        // SAFETY: the pointers are to locals.
        let status = unsafe { self.api.cuMemGetAccess(&mut flags, &location, address) };
        answer(status, flags)
    }

    pub(crate) fn retain_physical(&self, address: u64) -> Answer<u64> {
        let mut handle = 0;
        let address = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: the result pointer is a local; the other is an address that the driver looks up.
        let status = unsafe { self.api.cuMemRetainAllocationHandle(&mut handle, address) };
        answer(status, handle)
    }

    pub(crate) fn properties(&self, handle: u64) -> Answer<CUmemAllocationProp> {
        let mut prop = CUmemAllocationProp::default();
        // SAFETY: the result pointer is a local.
        let status = unsafe { self.api.cuMemGetAllocationPropertiesFromHandle(&mut prop, handle) };
        answer(status, prop)
    }
}

/// A device as a location of memory.
pub(crate) fn on_device(id: i32) -> CUmemLocation {
    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id }
}

pub(crate) const GRANULE: usize = 2 << 20;
/// [`GRANULE`] as a distance of addresses.
pub(crate) const STEP: u64 = GRANULE as u64;

pub(crate) fn on(device: i32) -> CUmemAllocationProp {
    let (type_, location) = (CU_MEM_ALLOCATION_TYPE_PINNED, on_device(device));
    CUmemAllocationProp { type_, location, ..CUmemAllocationProp::default() }
}

pub(crate) fn may(flags: u32) -> [CUmemAccessDesc; 1] {
    [CUmemAccessDesc { location: on_device(0), flags }]
}

pub(crate) fn read_write() -> [CUmemAccessDesc; 1] {
    may(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

/// Memory of so many granules, mapped and readable and writable: its address and its handle.
pub(crate) fn mapped(cuda: &Cuda, granules: usize) -> (u64, u64) {
    let bytes = granules * GRANULE;
    let (address, handle) = (cuda.reserve(bytes, 0, 0, 0).unwrap(), cuda.create(bytes, &on(0), 0).unwrap());
    assert_eq!(
        (cuda.map(address, bytes, 0, handle, 0), cuda.set_access(address, bytes, &read_write())),
        (0, 0)
    );
    (address, handle)
}

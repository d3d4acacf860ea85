// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual memory: address ranges, physical memory, and the mappings of one to the other.
//!
//! ```text
//!   cuMemAddressReserve    addresses, no memory         cuMemAddressFree
//!   cuMemCreate            memory, no address           cuMemRelease
//!   cuMemMap               memory at addresses          cuMemUnmap
//!   cuMemSetAccess         devices may use them
//! ```
//!
//! Only `cuMemCreate` changes the free figure. Its memory is free once its handle is released and its last mapping is removed.
//! A mapping is an [`Allocation`] of the memory map, so that every question about addresses finds it there.

use core::ops::Range;
use std::collections::{BTreeMap, HashMap};

use metrale_driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, CUmemAccess_flags,
    CUresult, DriverFn,
};

use super::{Allocation, AllocationKind, Memory};
use crate::model::Model;
use crate::model::handle::Kind;
use crate::model::host::HOST_PAGE;
use crate::model::space::AddressSpace;

/// Where the store keeps the bytes of physical memory: behind every address of host and device.
const PLACES: Range<u64> = 1 << 60..1 << 62;

/// Physical memory at an address.
pub(crate) struct Mapping {
    /// Of the physical memory.
    handle: u64,
    /// Where the store keeps its bytes.
    place: u64,
    /// What each device may do, by its ordinal.
    access: Vec<CUmemAccess_flags>,
    /// Bytes at its end that lie behind the reserved range. The address space keeps them for this mapping.
    bytes_outside: u64,
}

impl Mapping {
    pub(super) fn place(&self) -> u64 {
        self.place
    }

    pub(super) fn can_read(&self) -> bool {
        self.access.iter().any(|&flags| flags & CU_MEM_ACCESS_FLAGS_PROT_READ != 0)
    }

    pub(super) fn can_write(&self) -> bool {
        self.access.contains(&CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }
}

/// Memory that `cuMemCreate` made.
struct Physical {
    device: usize,
    bytes: u64,
    handle_types: u32,
    /// Where the store keeps its bytes.
    place: u64,
    /// How often the handle must still be released.
    references: usize,
    mappings: usize,
}

impl Physical {
    fn is_used(&self) -> bool {
        self.references > 0 || self.mappings > 0
    }
}

/// Reserved address ranges and physical memory of an instance. They belong to no context.
pub(super) struct VirtualMemory {
    /// Bytes as asked for, by start.
    ranges: BTreeMap<u64, u64>,
    /// By handle.
    physical: HashMap<u64, Physical>,
    places: AddressSpace,
}

impl VirtualMemory {
    pub(super) fn new() -> Self {
        Self { ranges: BTreeMap::new(), physical: HashMap::new(), places: AddressSpace::new(PLACES) }
    }

    /// Memory that is not free. Its handle may be released, if the memory is mapped.
    fn of(&self, handle: u64) -> Result<&Physical, CUresult> {
        self.physical.get(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Start and bytes of the reserved range that holds an address.
    fn range_of(&self, address: u64) -> Result<(u64, u64), CUresult> {
        let range = self.ranges.range(..=address).next_back().map(|(&start, &bytes)| (start, bytes));
        range.filter(|&(start, bytes)| address - start < bytes).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

impl Memory {
    /// What sizes and addresses are multiples of, in bytes: the page of the first device for all.
    pub(crate) fn granularity(&self) -> u64 {
        self.profiles.first().map_or(HOST_PAGE as u64, |profile| profile.packing.page_bytes())
    }

    /// `cuMemAddressReserve`. Sizes are multiples of the granularity.
    pub(crate) fn reserve_addresses(&mut self, bytes: u64, alignment: u64) -> Result<u64, CUresult> {
        let granularity = self.granularity();
        if bytes == 0 || !bytes.is_multiple_of(granularity) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let start = match alignment {
            wide if wide > granularity => self.space.alloc_aligned(bytes, wide),
            _ => self.space.alloc(bytes),
        };
        let start = start.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.virtual_memory.ranges.insert(start, bytes);
        Ok(start)
    }

    /// `cuMemAddressFree`: 1 unless the range is one that was reserved and nothing is mapped in it.
    pub(crate) fn free_addresses(&mut self, start: u64, bytes: u64) -> Result<(), CUresult> {
        if self.virtual_memory.ranges.get(&start) != Some(&bytes) || self.is_anything_mapped(start, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.virtual_memory.ranges.remove(&start);
        self.space.free(start, bytes);
        Ok(())
    }

    /// `cuMemCreate`: takes its bytes off the free figure.
    pub(crate) fn create_physical(
        &mut self,
        handle: u64,
        device: usize,
        bytes: u64,
        handle_types: u32,
    ) -> Result<(), CUresult> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.need(device, bytes)?;
        let place = self.virtual_memory.places.alloc(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.accounts[device].physical += bytes;
        let physical = Physical { device, bytes, handle_types, place, references: 1, mappings: 0 };
        self.virtual_memory.physical.insert(handle, physical);
        Ok(())
    }

    /// `cuMemRelease`: 1 for a handle that was released, also while its memory is mapped.
    pub(crate) fn release_physical(&mut self, handle: u64) -> Result<(), CUresult> {
        let physical = self.virtual_memory.physical.get_mut(&handle);
        let physical = physical.filter(|physical| physical.references > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        physical.references -= 1;
        self.drop_unused(handle);
        Ok(())
    }

    /// `cuMemMap`: 801 for a part of the memory. 1 unless the first address is reserved and nothing is mapped in the range.
    /// Measured: the last address need not be reserved. Answers how many bytes lie behind the reserved range, where no one
    /// else may have an address.
    pub(crate) fn map(
        &mut self,
        address: u64,
        bytes: u64,
        offset: u64,
        handle: u64,
    ) -> Result<u64, CUresult> {
        // Measured: a handle that was released works while its memory is mapped.
        let physical = self.virtual_memory.of(handle)?;
        let (device, place) = (physical.device, physical.place);
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if offset != 0 || bytes != physical.bytes {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let (start, reserved) = self.virtual_memory.range_of(address)?;
        if !address.is_multiple_of(self.granularity()) || self.is_anything_mapped(address, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let bytes_outside = (address + bytes).saturating_sub(start + reserved);
        if bytes_outside > 0 && !self.space.alloc_behind(start + reserved, bytes_outside) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let access = vec![CU_MEM_ACCESS_FLAGS_PROT_NONE; self.profiles.len()];
        let kind = AllocationKind::Mapped(Mapping { handle, place, access, bytes_outside });
        self.insert(address, device, bytes, kind, None);
        if let Some(physical) = self.virtual_memory.physical.get_mut(&handle) {
            physical.mappings += 1;
        }
        Ok(bytes_outside)
    }

    /// `cuMemUnmap` of all mappings in a range, which may have gaps; 1 where the range would cut a mapping. Does not wait for
    /// work.
    pub(crate) fn unmap_range(&mut self, address: u64, bytes: u64) -> Result<(), CUresult> {
        for base in self.mappings_within(address, bytes)? {
            let Some(Allocation { kind: AllocationKind::Mapped(mapping), bytes, .. }) =
                self.allocations.remove(&base)
            else {
                continue;
            };
            if mapping.bytes_outside > 0 {
                self.space.free(base + bytes - mapping.bytes_outside, mapping.bytes_outside);
            }
            if let Some(physical) = self.virtual_memory.physical.get_mut(&mapping.handle) {
                physical.mappings -= 1;
            }
            self.drop_unused(mapping.handle);
        }
        Ok(())
    }

    /// `cuMemSetAccess`: 1 unless the range is made of whole mappings without gaps.
    pub(crate) fn set_access(
        &mut self,
        address: u64,
        bytes: u64,
        wanted: &[(usize, CUmemAccess_flags)],
    ) -> Result<(), CUresult> {
        for base in self.whole_mappings(address, bytes)? {
            if let Some(Allocation { kind: AllocationKind::Mapped(mapping), .. }) =
                self.allocations.get_mut(&base)
            {
                for &(device, flags) in wanted {
                    mapping.access[device] = flags;
                }
            }
        }
        Ok(())
    }

    /// `cuMemGetAccess`: 1 for an address where nothing is mapped.
    pub(crate) fn access(&self, address: u64, device: usize) -> Result<CUmemAccess_flags, CUresult> {
        self.mapping(address).map(|mapping| mapping.access[device])
    }

    /// `cuMemRetainAllocationHandle`: 1 for an address where nothing is mapped.
    pub(crate) fn retain_physical(&mut self, address: u64) -> Result<u64, CUresult> {
        let handle = self.mapping(address)?.handle;
        if let Some(physical) = self.virtual_memory.physical.get_mut(&handle) {
            physical.references += 1;
        }
        Ok(handle)
    }

    /// Device and handle types that memory was made with. Measured: a handle that was released is answered while its memory is
    /// mapped.
    pub(crate) fn physical_properties(&self, handle: u64) -> Result<(usize, u32), CUresult> {
        self.virtual_memory.of(handle).map(|physical| (physical.device, physical.handle_types))
    }

    /// Handle, device and bytes of all physical memory.
    pub(crate) fn physical(&self) -> impl Iterator<Item = (u64, usize, u64)> {
        self.virtual_memory
            .physical
            .iter()
            .map(|(&handle, physical)| (handle, physical.device, physical.bytes))
    }

    /// Start and bytes of the reserved range that holds an address; 1 where none does.
    pub(crate) fn reserved_around(&self, address: u64) -> Result<(u64, u64), CUresult> {
        self.virtual_memory.range_of(address)
    }

    /// Starts of the reserved address ranges.
    pub(crate) fn address_ranges(&self) -> impl Iterator<Item = u64> {
        self.virtual_memory.ranges.keys().copied()
    }

    fn mapping(&self, address: u64) -> Result<&Mapping, CUresult> {
        match self.find(address) {
            Some((_, Allocation { kind: AllocationKind::Mapped(mapping), .. })) => Ok(mapping),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Whether an allocation, which in a reserved range is a mapping, touches the range.
    fn is_anything_mapped(&self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return true };
        let last = self.allocations.range(..end).next_back();
        last.is_some_and(|(&base, allocation)| base + allocation.bytes > start)
    }

    /// Bases of the mappings in a range, none of which it cuts and all of which begin in the reserved range of its first
    /// address. Measured: where nothing is mapped its size and its end do not matter.
    fn mappings_within(&self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (start, reserved) = self.virtual_memory.range_of(address)?;
        if self.find(address).is_some_and(|(base, _)| base < address) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut bases = Vec::new();
        for (&base, allocation) in self.allocations.range(address..end) {
            if base >= start + reserved || base + allocation.bytes > end {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            bases.push(base);
        }
        Ok(bases)
    }

    /// Bases of the mappings that a range is made of.
    fn whole_mappings(&self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut bases = Vec::new();
        let mut at = address;
        while at < end {
            let next =
                self.allocations.get(&at).filter(|next| matches!(next.kind, AllocationKind::Mapped(_)));
            bases.push(at);
            at += next.ok_or(CUDA_ERROR_INVALID_VALUE)?.bytes;
        }
        if at == end { Ok(bases) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Returns memory to its device that has neither a reference nor a mapping.
    fn drop_unused(&mut self, handle: u64) {
        if self.virtual_memory.physical.get(&handle).is_none_or(Physical::is_used) {
            return;
        }
        if let Some(physical) = self.virtual_memory.physical.remove(&handle) {
            self.accounts[physical.device].physical -= physical.bytes;
            self.store.forget(physical.place, physical.bytes);
            self.virtual_memory.places.free(physical.place, physical.bytes);
        }
    }
}

impl Model {
    pub(crate) fn physical_create(
        &mut self,
        device: usize,
        bytes: u64,
        handle_types: u32,
    ) -> Result<u64, CUresult> {
        let handle = self.handles.make(Kind::Physical);
        self.memory.create_physical(handle, device, bytes, handle_types)?;
        Ok(handle)
    }

    /// 1 for a handle whose memory is free, with a diagnostic. Measured: an H200's driver crashes over one of the calls that ask.
    pub(crate) fn not_freed(&mut self, call: DriverFn, handle: u64) -> Result<(), CUresult> {
        if self.handles.was_made(Kind::Physical, handle) && self.memory.virtual_memory.of(handle).is_err() {
            self.diagnose(format!(
                "{call}: {handle:#x} was released and its memory was freed: a real driver may crash here"
            ));
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(())
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual memory on both drivers. Measured on an H200 (driver 580.159.04): the granularity, and what moves the free figure.
//! The table of statuses was not measured when it was written: it follows the driver's reference, and a run on a GPU tells
//! which rows are wrong.

mod common;

use std::sync::Arc;

use common::{Cuda, PTX, Table, on_device, status};
use metrale_driver_sim::driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_LOCATION_TYPE_DEVICE, CUmemAccessDesc, CUmemAllocationProp, DriverApi, attribute,
    pointer_attribute,
};
use metrale_driver_sim::{ContextGuard, MemoryKind, Profile, SimDriver, on_both_drivers};

const GRANULE: usize = 2 << 20;
/// [`GRANULE`] as a distance of addresses.
const STEP: u64 = GRANULE as u64;

fn on(device: i32) -> CUmemAllocationProp {
    let (type_, location) = (CU_MEM_ALLOCATION_TYPE_PINNED, on_device(device));
    CUmemAllocationProp { type_, location, ..CUmemAllocationProp::default() }
}

fn may(flags: u32) -> [CUmemAccessDesc; 1] {
    [CUmemAccessDesc { location: on_device(0), flags }]
}

fn read_write() -> [CUmemAccessDesc; 1] {
    may(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

/// Memory of so many granules, mapped and readable and writable: its address and its handle.
fn mapped(cuda: &Cuda, granules: usize) -> (u64, u64) {
    let bytes = granules * GRANULE;
    let (address, handle) = (cuda.reserve(bytes, 0, 0, 0).unwrap(), cuda.create(bytes, &on(0), 0).unwrap());
    assert_eq!(
        (cuda.map(address, bytes, 0, handle, 0), cuda.set_access(address, bytes, &read_write())),
        (0, 0)
    );
    (address, handle)
}

fn unmapped(cuda: &Cuda, address: u64, granules: usize, handle: u64) {
    let bytes = granules * GRANULE;
    assert_eq!(cuda.sync(), 0);
    assert_eq!((cuda.unmap(address, bytes), cuda.release_physical(handle)), (0, 0));
    assert_eq!(cuda.free_addresses(address, bytes), 0);
}

on_both_drivers! {
    /// Only `cuMemCreate` uses memory, until both release and unmap were called.
    figures(driver) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let fresh = guard.memory_info().unwrap().0;
        let used = || (fresh - guard.memory_info().unwrap().0) / GRANULE;
        assert_eq!(cuda.attribute(attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), Ok(1));
        for option in [CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED] {
            assert_eq!(cuda.granularity(&on(0), option), Ok(GRANULE));
        }
        let address = cuda.reserve(64 * GRANULE, 0, 0, 0).unwrap();
        assert_eq!((address % STEP, used()), (0, 0), "reserve");
        let handle = cuda.create(3 * GRANULE, &on(0), 0).unwrap();
        assert_eq!(used(), 3, "create");
        assert_eq!((cuda.map(address, 3 * GRANULE, 0, handle, 0), used()), (0, 3), "map");
        assert_eq!((cuda.set_access(address, 3 * GRANULE, &read_write()), used()), (0, 3), "access");
        assert_eq!((cuda.memset(address, 7, 3 * GRANULE), cuda.sync(), used()), (0, 0, 3), "touch");
        assert_eq!((cuda.release_physical(handle), used()), (0, 3), "a mapping keeps it");
        assert_eq!(cuda.bytes(address + 3 * STEP - 2), [7; 2]);
        assert_eq!((cuda.unmap(address, 3 * GRANULE), used()), (0, 0), "unmap");

        let handle = cuda.create(5 * GRANULE, &on(0), 0).unwrap();
        assert_eq!((cuda.map(address, 5 * GRANULE, 0, handle, 0), used()), (0, 5));
        assert_eq!((cuda.unmap(address, 5 * GRANULE), used()), (0, 5), "the handle keeps it");
        assert_eq!((cuda.release_physical(handle), used()), (0, 0), "release");
        assert_eq!((cuda.free_addresses(address, 64 * GRANULE), used()), (0, 0), "free of the addresses");
    }

    /// More than there is, while nothing is held and while most is.
    out_of_memory(driver) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (free, total) = guard.memory_info().unwrap();
        assert_eq!(status(cuda.create(total.next_multiple_of(GRANULE), &on(0), 0)), 2);
        let most = (free - (1 << 30)) / GRANULE * GRANULE;
        let handle = cuda.create(most, &on(0), 0).unwrap();
        assert_eq!(guard.memory_info().unwrap().0, free - most);
        assert_eq!(status(cuda.create(2 << 30, &on(0), 0)), 2);
        assert_eq!(status(cuda.alloc(2 << 30)), 2);
        assert_eq!((cuda.release_physical(handle), guard.memory_info().unwrap().0), (0, free));
    }

    /// Memory mapped twice is one memory; what lies side by side is copied as one; what is mapped anew is as it was.
    bytes(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let address = cuda.reserve(4 * GRANULE, 0, 0, 0).unwrap();
        let handles = [(); 2].map(|()| cuda.create(GRANULE, &on(0), 0).unwrap());
        for (at, handle) in [(0, handles[0]), (1, handles[1]), (2, handles[0])] {
            assert_eq!(cuda.map(address + at * STEP, GRANULE, 0, handle, 0), 0);
        }
        assert_eq!(cuda.set_access(address, 3 * GRANULE, &read_write()), 0);
        let content: Vec<u8> = (0..2 * GRANULE).map(|at| (at / 7) as u8).collect();
        assert_eq!(cuda.upload(address, &content), 0, "over two mappings");
        let mut seen = vec![0; 2 * GRANULE];
        assert_eq!(cuda.download(&mut seen, address + STEP), 0);
        assert!(seen[..GRANULE] == content[GRANULE..] && seen[GRANULE..] == content[..GRANULE]);

        // An odd start, so that the word of the fill does not begin with the second mapping.
        assert_eq!((cuda.memset(address + STEP - 3, 9, 6), cuda.sync()), (0, 0));
        assert_eq!(cuda.bytes(address + STEP - 4), [content[GRANULE - 4], 9, 9, 9, 9, 9, 9, content[GRANULE + 3]]);
        assert_eq!(cuda.copy_on_device(address + 1, address + STEP - 2, 4), 0);
        assert_eq!(cuda.bytes(address + 2 * STEP), [content[0], 9, 9, 9, 9, content[5]]);

        assert_eq!(cuda.unmap(address, 3 * GRANULE), 0);
        assert_eq!(cuda.map(address + 3 * STEP, GRANULE, 0, handles[1], 0), 0);
        assert_eq!(cuda.set_access(address + 3 * STEP, GRANULE, &read_write()), 0);
        assert_eq!(cuda.bytes(address + 3 * STEP), [9, 9, 9, content[GRANULE + 3]]);
        assert_eq!(cuda.unmap(address + 3 * STEP, GRANULE), 0);
        assert_eq!(handles.map(|handle| cuda.release_physical(handle)), [0; 2]);
        assert_eq!(cuda.free_addresses(address, 4 * GRANULE), 0);
    }

    /// A kernel reaches mapped memory like any other.
    kernels(driver; sim: common::sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let poke = cuda.function(module, "poke").unwrap();
        let (address, handle) = mapped(&cuda, 1);
        assert_eq!((cuda.poke(poke, address + STEP - 4, 41, 0), cuda.sync()), (0, 0));
        assert_eq!(cuda.bytes(address + STEP - 4), 41u32.to_le_bytes());
        unmapped(&cuda, address, 1, handle);
        assert_eq!(cuda.unload(module), 0);
    }

    /// Every bad call, and what good ones answer.
    statuses(driver) {
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        assert_eq!(cuda.init(0), 0);
        without_a_context(&cuda, &mut table);
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        address_ranges(&cuda, &mut table);
        physical(&cuda, &mut table);
        mappings(&cuda, &mut table);
        access(&cuda, &mut table);
        table.check();
    }

    /// Handles that were released, or never made. Apart from the others: a driver may crash here.
    stale_handles(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        let (address, handle) = mapped(&cuda, 1);
        let spare = cuda.reserve(GRANULE, 0, 0, 0).unwrap();
        table.row("release", cuda.release_physical(handle), 0);
        table.row("release while it is mapped", cuda.release_physical(handle), 1);
        table.row("map while it is mapped", cuda.map(spare, GRANULE, 0, handle, 0), 1);
        table.row("properties while it is mapped", status(cuda.properties(handle)), 1);
        table.row("unmap", cuda.unmap(address, GRANULE), 0);
        table.row("release of what is free", cuda.release_physical(handle), 1);
        table.row("map what is free", cuda.map(spare, GRANULE, 0, handle, 0), 1);
        table.row("release of 0", cuda.release_physical(0), 1);
        table.row("map 0", cuda.map(spare, GRANULE, 0, 0, 0), 1);
        table.row("properties of 0", status(cuda.properties(0)), 1);
        assert_eq!([spare, address].map(|address| cuda.free_addresses(address, GRANULE)), [0; 2]);
        table.check();
    }
}

fn without_a_context(cuda: &Cuda, table: &mut Table) {
    let address = cuda.reserve(GRANULE, 0, 0, 0);
    table.row("reserve without a context", status(address), 0);
    if let Ok(address) = address {
        table.row("free of the addresses", cuda.free_addresses(address, GRANULE), 0);
    }
    let handle = cuda.create(GRANULE, &on(0), 0);
    table.row("create without a context", status(handle), 0);
    if let Ok(handle) = handle {
        table.row("release", cuda.release_physical(handle), 0);
    }
}

fn address_ranges(cuda: &Cuda, table: &mut Table) {
    table.row("reserve 0", status(cuda.reserve(0, 0, 0, 0)), 1);
    table.row("reserve 1 byte", status(cuda.reserve(1, 0, 0, 0)), 1);
    table.row("reserve 2^60", status(cuda.reserve(1 << 60, 0, 0, 0)), 2);
    table.row("reserve with flags 1", status(cuda.reserve(GRANULE, 0, 0, 1)), 1);
    table.row("reserve with alignment 3", status(cuda.reserve(GRANULE, 3, 0, 0)), 1);
    let page = cuda.reserve(4096, 0, 0, 0);
    table.row("reserve one page of the host", status(page), 0);
    if let Ok(page) = page {
        table.row("free it", cuda.free_addresses(page, 4096), 0);
    }
    let wide = cuda.reserve(GRANULE, 1 << 30, 0, 0);
    table.row("reserve at a multiple of 1 GiB", wide.map(|address| address % (1 << 30)), Ok(0));
    if let Ok(wide) = wide {
        table.row("free it", cuda.free_addresses(wide, GRANULE), 0);
        table.row("free it again", cuda.free_addresses(wide, GRANULE), 1);
    }
    let address = cuda.reserve(2 * GRANULE, 0, 0, 0).unwrap();
    table.row("free one half", cuda.free_addresses(address, GRANULE), 1);
    table.row("free the other half", cuda.free_addresses(address + STEP, GRANULE), 1);
    table.row("free more", cuda.free_addresses(address, 3 * GRANULE), 1);
    table.row("free null", cuda.free_addresses(0, GRANULE), 1);
    table.row("memset of reserved addresses", cuda.memset(address, 0, 16), 1);
    table.row("cuMemFree of reserved addresses", cuda.free(address), 1);
    table.row("range of reserved addresses", cuda.range(address), Err(500));
    table.row("type of reserved addresses", cuda.pointer_attribute(2, address), Err(1));
    table.row("free all", cuda.free_addresses(address, 2 * GRANULE), 0);
}

fn physical(cuda: &Cuda, table: &mut Table) {
    table.row("create 0", status(cuda.create(0, &on(0), 0)), 1);
    table.row("create 4096", status(cuda.create(4096, &on(0), 0)), 1);
    table.row("create with flags 1", status(cuda.create(GRANULE, &on(0), 1)), 1);
    table.row("create on device 99", status(cuda.create(GRANULE, &on(99), 0)), 101);
    table.row("create on device -1", status(cuda.create(GRANULE, &on(-1), 0)), 101);
    let (none, nowhere) =
        (CUmemAllocationProp { type_: 0, ..on(0) }, CUmemAllocationProp::default().location);
    table.row("create of no type", status(cuda.create(GRANULE, &none, 0)), 1);
    let nowhere = CUmemAllocationProp { location: nowhere, ..on(0) };
    table.row("create at no location", status(cuda.create(GRANULE, &nowhere, 0)), 1);
    table.row("granularity by option 2", status(cuda.granularity(&on(0), 2)), 1);
    table.row("granularity on device 99", status(cuda.granularity(&on(99), 0)), 101);
    table.row("granularity of no type", status(cuda.granularity(&none, 0)), 1);

    let handle = cuda.create(GRANULE, &on(0), 0).unwrap();
    let got = cuda.properties(handle).map(|prop| (prop.type_, prop.requestedHandleTypes, prop.location));
    table.row("properties", got, Ok((CU_MEM_ALLOCATION_TYPE_PINNED, 0, on_device(0))));
    table.row("release", cuda.release_physical(handle), 0);
}

fn mappings(cuda: &Cuda, table: &mut Table) {
    let address = cuda.reserve(8 * GRANULE, 0, 0, 0).unwrap();
    let handle = cuda.create(2 * GRANULE, &on(0), 0).unwrap();
    table.row("map half a granule on", cuda.map(address + STEP / 2, GRANULE, 0, handle, 0), 1);
    table.row("map half a granule", cuda.map(address, GRANULE / 2, 0, handle, 0), 1);
    table.row("map nothing", cuda.map(address, 0, 0, handle, 0), 1);
    table.row("map more than there is", cuda.map(address, 3 * GRANULE, 0, handle, 0), 1);
    table.row("map from the second granule", cuda.map(address, GRANULE, GRANULE, handle, 0), 1);
    table.row("map with flags 1", cuda.map(address, 2 * GRANULE, 0, handle, 1), 1);
    table.row("map past the range", cuda.map(address + 7 * STEP, 2 * GRANULE, 0, handle, 0), 1);
    table.row("map what is not reserved", cuda.map(address + 8 * STEP, 2 * GRANULE, 0, handle, 0), 1);
    table.row("unmap what is not mapped", cuda.unmap(address, 2 * GRANULE), 1);
    let part = cuda.map(address + 6 * STEP, GRANULE, 0, handle, 0);
    table.row("map a part", part, 0);
    if part == 0 {
        table.row("unmap it", cuda.unmap(address + 6 * STEP, GRANULE), 0);
    }
    table.row("map", cuda.map(address, 2 * GRANULE, 0, handle, 0), 0);
    table.row("map there again", cuda.map(address, 2 * GRANULE, 0, handle, 0), 1);
    table.row("map over its second half", cuda.map(address + STEP, 2 * GRANULE, 0, handle, 0), 1);
    table.row("free of addresses with a mapping", cuda.free_addresses(address, 8 * GRANULE), 1);
    table.row("unmap its first half", cuda.unmap(address, GRANULE), 1);
    table.row("unmap its second half", cuda.unmap(address + STEP, GRANULE), 1);
    table.row("unmap more", cuda.unmap(address, 3 * GRANULE), 1);
    table.row("unmap nothing", cuda.unmap(address, 0), 1);
    table.row("map it behind", cuda.map(address + 2 * STEP, 2 * GRANULE, 0, handle, 0), 0);
    table.row("unmap both at once", cuda.unmap(address, 4 * GRANULE), 0);

    table.row("map once more", cuda.map(address, 2 * GRANULE, 0, handle, 0), 0);
    let again = cuda.retain_physical(address + STEP);
    table.row("handle of the mapping", again, Ok(handle));
    table.row("handle of what is not mapped", status(cuda.retain_physical(address + 4 * STEP)), 1);
    table.row("release once", cuda.release_physical(handle), 0);
    table.row("release twice", cuda.release_physical(handle), 0);
    let again = cuda.retain_physical(address);
    table.row("handle of the mapping after the release", status(again), 0);
    if let Ok(again) = again {
        table.row("release of that", cuda.release_physical(again), 0);
    }
    table.row("cuMemFree of a mapping", cuda.free(address), 1);
    table.row("unmap", cuda.unmap(address, 2 * GRANULE), 0);
    table.row("free of the addresses", cuda.free_addresses(address, 8 * GRANULE), 0);
}

fn access(cuda: &Cuda, table: &mut Table) {
    let (address, handle) =
        (cuda.reserve(8 * GRANULE, 0, 0, 0).unwrap(), cuda.create(2 * GRANULE, &on(0), 0).unwrap());
    table.row("access before the mapping", cuda.set_access(address, 2 * GRANULE, &read_write()), 1);
    table.row("access asked before the mapping", status(cuda.access(address, on_device(0))), 1);
    assert_eq!(cuda.map(address, 2 * GRANULE, 0, handle, 0), 0);
    let (none, read) = (CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ);
    table.row("access at first", cuda.access(address, on_device(0)), Ok(none.into()));
    table.row("memset without access", cuda.memset(address, 1, 16), 1);
    table.row("upload without access", cuda.upload(address, &[1; 16]), 1);
    table.row("download without access", cuda.download(&mut [0; 16], address), 1);
    table.row("access by flags 2", cuda.set_access(address, 2 * GRANULE, &may(2)), 1);
    table.row("access for nobody", cuda.set_access(address, 2 * GRANULE, &[]), 1);
    let host = CUmemAccessDesc { location: Default::default(), flags: 3 };
    table.row("access for no location", cuda.set_access(address, 2 * GRANULE, &[host]), 1);
    let far = CUmemAccessDesc { location: on_device(99), flags: 3 };
    table.row("access for device 99", cuda.set_access(address, 2 * GRANULE, &[far]), 101);
    table.row("access to its first half", cuda.set_access(address, GRANULE, &read_write()), 1);
    table.row("access to more", cuda.set_access(address, 3 * GRANULE, &read_write()), 1);
    table.row("access to read", cuda.set_access(address, 2 * GRANULE, &may(read)), 0);
    table.row("access asked for then", cuda.access(address, on_device(0)), Ok(read.into()));
    table.row("access", cuda.set_access(address, 2 * GRANULE, &read_write()), 0);
    table.row("access asked for last", cuda.access(address + STEP, on_device(0)), Ok(3));
    table.row("memset", cuda.memset(address, 1, 2 * GRANULE), 0);
    table.row("memset past the mapping", cuda.memset(address, 1, 2 * GRANULE + 1), 1);
    table.row("range inside it", cuda.range(address + STEP + 5), Ok((address, 2 * GRANULE)));
    table.row("memory type", cuda.pointer_attribute(2, address), Ok(2));
    table.row("ordinal", cuda.pointer_attribute(9, address), Ok(0));
    table.row("its context", cuda.wide_attribute(pointer_attribute::CONTEXT, address), Ok(0));
    table.row("its pool", cuda.wide_attribute(pointer_attribute::MEMPOOL_HANDLE, address), Ok(0));
    table.row("start", cuda.wide_attribute(pointer_attribute::RANGE_START_ADDR, address + 5), Ok(address));
    table.row("size", cuda.wide_attribute(pointer_attribute::RANGE_SIZE, address), Ok(2 * STEP));
    table.row("sync", cuda.sync(), 0);
    table.row("no access again", cuda.set_access(address, 2 * GRANULE, &may(none)), 0);
    table.row("memset after that", cuda.memset(address, 1, 16), 1);

    // In a capture that forbids what is unsafe.
    let stream = cuda.stream(1).unwrap();
    assert_eq!(cuda.capture_begin(stream, 0), 0);
    let other = cuda.create(GRANULE, &on(0), 0);
    table.row("create in a capture", status(other), 0);
    if let Ok(other) = other {
        let there = address + 2 * STEP;
        table.row("map in a capture", cuda.map(there, GRANULE, 0, other, 0), 0);
        table.row("access in a capture", cuda.set_access(there, GRANULE, &read_write()), 0);
        table.row("unmap in a capture", cuda.unmap(there, GRANULE), 0);
        table.row("release in a capture", cuda.release_physical(other), 0);
    }
    table.row("end of the capture", cuda.end(stream).0, 0);
    assert_eq!(cuda.stream_destroy(stream), 0);
    assert_eq!((cuda.unmap(address, 2 * GRANULE), cuda.release_physical(handle)), (0, 0));
    assert_eq!(cuda.free_addresses(address, 8 * GRANULE), 0);
}

fn open(driver: &SimDriver) -> (Cuda, ContextGuard) {
    let driver: Arc<dyn DriverApi> = Arc::new(driver.clone());
    (Cuda::new(&driver), ContextGuard::new(&driver, 0).unwrap())
}

#[test]
fn work_that_comes_after_an_unmap_is_a_fault() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let (address, _) = mapped(&cuda, 1);
    assert_eq!(cuda.memset(address, 1, 16), 0);
    // Nobody waited for the memset.
    assert_eq!((cuda.unmap(address, GRANULE), cuda.sync()), (0, 700));
}

#[test]
fn work_that_writes_where_it_may_read_is_a_fault() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let (address, _) = mapped(&cuda, 1);
    assert_eq!(cuda.set_access(address, GRANULE, &may(CU_MEM_ACCESS_FLAGS_PROT_READ)), 0);
    assert_eq!(cuda.bytes(address), [0xFF; 4]);
    assert_eq!((cuda.memset(address, 1, 16), cuda.sync()), (0, 700));
}

#[test]
fn memory_outlives_contexts_and_has_a_name_when_it_leaks() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, guard) = open(&driver);
    let (address, handle) = mapped(&cuda, 1);
    assert_eq!(cuda.upload(address, &[5; 8]), 0);
    drop(guard);
    let leaks = driver.leaks();
    assert_eq!((leaks.memory.len(), leaks.memory[0].kind), (1, MemoryKind::Physical), "{leaks}");
    assert_eq!((leaks.memory[0].address, leaks.memory_bytes()), (handle, STEP));
    assert_eq!(leaks.address_ranges[0].handle, address);

    let (cuda, guard) = open(&driver);
    assert_eq!(guard.memory_info().unwrap().0, 149_557_477_376 - GRANULE);
    assert_eq!(cuda.bytes(address), [5; 8]);
    // Released, and still mapped.
    assert_eq!((cuda.release_physical(handle), driver.leaks().memory_bytes()), (0, STEP));
    assert_eq!((cuda.unmap(address, GRANULE), cuda.free_addresses(address, GRANULE)), (0, 0));
    assert_eq!(driver.backing_bytes(), 0);
    drop(guard);
    assert!(driver.leaks().is_empty(), "{}", driver.leaks());
}

#[test]
fn each_device_has_its_own_access() {
    let two = SimDriver::builder().device(Profile::h200()).device(Profile::h200()).build();
    let (cuda, _guard) = open(&two);
    let (address, _) = mapped(&cuda, 1);
    assert_eq!((cuda.access(address, on_device(0)), cuda.access(address, on_device(1))), (Ok(3), Ok(0)));
    let both = [0, 1].map(|id| CUmemAccessDesc { location: on_device(id), flags: 1 });
    assert_eq!(cuda.set_access(address, GRANULE, &both), 0);
    assert_eq!((cuda.access(address, on_device(0)), cuda.access(address, on_device(1))), (Ok(1), Ok(1)));
    let there = cuda.create(GRANULE, &on(1), 0).unwrap();
    let device = cuda.properties(there).map(|prop| (prop.location.type_, prop.location.id));
    assert_eq!(device, Ok((CU_MEM_LOCATION_TYPE_DEVICE, 1)));
}

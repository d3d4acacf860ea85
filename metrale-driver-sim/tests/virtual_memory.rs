// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual memory on both drivers. Measured on an H200 (driver 580.159.04): the granularity, and what moves the free figure.

mod common;

use std::sync::Arc;

use common::memory::{GRANULE, STEP, mapped, may, on, on_device, read_write};
use common::{Cuda, PTX, status};
use metrale_driver_sim::driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    CU_MEM_LOCATION_TYPE_DEVICE, CUmemAccessDesc, DriverApi, attribute,
};
use metrale_driver_sim::{ContextGuard, MemoryKind, Profile, SimDriver, on_both_drivers};

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

/// The addresses behind the reserved ones are the mapping's until it is unmapped, and what others hold is never covered.
#[test]
fn a_mapping_past_the_reserved_addresses_is_told_and_covers_nothing() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let handle = cuda.create(2 * GRANULE, &on(0), 0).unwrap();
    let [first, second] = [(); 2].map(|()| cuda.reserve(GRANULE, 0, 0, 0).unwrap());
    assert_eq!(second, first + STEP);
    assert_eq!(cuda.map(first, 2 * GRANULE, 0, handle, 0), 1, "the second range is there");
    assert_eq!((driver.diagnostics().len(), cuda.free_addresses(second, GRANULE)), (0, 0));
    assert_eq!(cuda.map(first, 2 * GRANULE, 0, handle, 0), 0);
    assert!(driver.diagnostics()[0].contains("behind the reserved addresses"));
    assert_eq!(cuda.set_access(first, 2 * GRANULE, &read_write()), 0);
    assert_eq!((cuda.memset(first, 3, 2 * GRANULE), cuda.sync()), (0, 0));
    let allocated = cuda.alloc(GRANULE).unwrap();
    assert_eq!(allocated, first + 2 * STEP);
    assert_eq!(cuda.bytes(allocated), [0xFF; 4]);
    assert_eq!((cuda.unmap(first, 3 * GRANULE), cuda.unmap(first, GRANULE)), (1, 1));
    assert_eq!((cuda.unmap(first, 2 * GRANULE), cuda.reserve(GRANULE, 0, 0, 0)), (0, Ok(second)));
    assert_eq!(cuda.free_addresses(first, GRANULE), 0);
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What calls about virtual memory answer. Measured on an H200 (driver 580.159.04), whose driver crashes over what the last
//! test does; that one is for the software driver only.

mod common;

use std::sync::Arc;

use common::memory::{GRANULE, STEP, mapped, may, on, on_device, read_write};
use common::{Cuda, Table, status};
use metrale_driver_sim::driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ALLOCATION_TYPE_PINNED,
    CUmemAccessDesc, CUmemAllocationProp, DriverApi, pointer_attribute,
};
use metrale_driver_sim::{ContextGuard, Profile, SimDriver, on_both_drivers};

on_both_drivers! {
    /// Every bad call, and what good ones answer.
    statuses(driver) {
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        assert_eq!(cuda.init(0), 0);
        without_a_context(&cuda, &mut table);
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        address_ranges(&cuda, &mut table);
        physical(&cuda, &mut table);
        parts(&cuda, &mut table);
        mappings(&cuda, &mut table);
        past_the_end(&cuda, &mut table);
        access(&cuda, &mut table);
        table.check();
    }

    /// Bytes that may not be touched. Apart from the other statuses: a driver that takes such a call may lose the context.
    bytes_without_access(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        let (address, handle) = (cuda.reserve(4 * GRANULE, 0, 0, 0).unwrap(), cuda.create(GRANULE, &on(0), 0).unwrap());
        let three = |cuda: &Cuda, at| [cuda.upload(at, &[1; 16]), cuda.download(&mut [0; 16], at), cuda.memset(at, 1, 16)];
        table.row("reserved", three(&cuda, address), [1; 3]);
        assert_eq!(cuda.map(address, GRANULE, 0, handle, 0), 0);
        table.row("mapped", three(&cuda, address), [1; 3]);
        assert_eq!(cuda.set_access(address, GRANULE, &read_write()), 0);
        table.row("with access", three(&cuda, address), [0; 3]);
        table.row("sync with access", cuda.sync(), 0);
        table.row("over the end of the mapping", three(&cuda, address + STEP - 8), [1; 3]);
        assert_eq!(cuda.set_access(address, GRANULE, &may(CU_MEM_ACCESS_FLAGS_PROT_NONE)), 0);
        table.row("without access again", three(&cuda, address), [1; 3]);
        assert_eq!(cuda.unmap(address, GRANULE), 0);
        table.row("unmapped", three(&cuda, address), [1; 3]);
        table.row("sync", cuda.sync(), 0);
        table.check();
        assert_eq!((cuda.release_physical(handle), cuda.free_addresses(address, 4 * GRANULE)), (0, 0));
    }

    /// Mapped memory whose handle was released can be mapped once more. Apart from the others, as are the next tests: a driver
    /// may crash.
    map_of_a_released_handle(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (address, handle) = mapped(&cuda, 1);
        let spare = cuda.reserve(GRANULE, 0, 0, 0).unwrap();
        assert_eq!(cuda.release_physical(handle), 0);
        assert_eq!(cuda.map(spare, GRANULE, 0, handle, 0), 0);
        assert_eq!((cuda.unmap(address, GRANULE), cuda.free_addresses(address, GRANULE)), (0, 0));
        assert_eq!(cuda.free_addresses(spare, GRANULE), 1, "still mapped");
    }

    /// A second release of a handle whose memory is mapped.
    second_release(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (address, handle) = mapped(&cuda, 1);
        assert_eq!(cuda.release_physical(handle), 0);
        let mut table = Table::default();
        table.row("release again", cuda.release_physical(handle), 1);
        table.row("bytes", cuda.memset(address, 1, 16), 0);
        table.row("sync", cuda.sync(), 0);
        table.row("unmap", cuda.unmap(address, GRANULE), 0);
        table.row("free of the addresses", cuda.free_addresses(address, GRANULE), 0);
        table.check();
    }

    /// They are answered while the memory is mapped.
    properties_of_a_released_handle(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (address, handle) = mapped(&cuda, 1);
        assert_eq!(cuda.release_physical(handle), 0);
        let got = status(cuda.properties(handle));
        assert_eq!((cuda.unmap(address, GRANULE), cuda.free_addresses(address, GRANULE)), (0, 0));
        assert_eq!(got, 0);
    }

    handle_0(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let address = cuda.reserve(GRANULE, 0, 0, 0).unwrap();
        let mut table = Table::default();
        table.row("map 0", cuda.map(address, GRANULE, 0, 0, 0), 1);
        table.row("properties of 0", status(cuda.properties(0)), 1);
        table.row("release of 0", cuda.release_physical(0), 1);
        table.row("free of the addresses", cuda.free_addresses(address, GRANULE), 0);
        table.check();
    }

    /// A mapping that reaches past the reserved addresses: what can be done with it.
    bytes_past_the_end(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let address = cuda.reserve(2 * GRANULE, 0, 0, 0).unwrap();
        let handle = cuda.create(2 * GRANULE, &on(0), 0).unwrap();
        let mut table = Table::default();
        table.row("map", cuda.map(address + STEP, 2 * GRANULE, 0, handle, 0), 0);
        table.row("range of what is not reserved", cuda.range(address + 2 * STEP), Err(500));
        table.row("access", cuda.set_access(address + STEP, 2 * GRANULE, &read_write()), 0);
        table.row("memset", cuda.memset(address + STEP, 1, 2 * GRANULE), 0);
        table.row("sync", cuda.sync(), 0);
        table.row("unmap", cuda.unmap(address + STEP, 2 * GRANULE), 0);
        table.row("free of the addresses", cuda.free_addresses(address, 2 * GRANULE), 0);
        table.row("release", cuda.release_physical(handle), 0);
        table.check();
    }

    /// Rows that `statuses` leaves open.
    further_statuses(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        for bytes in [64 << 10, 1 << 20, GRANULE + (64 << 10)] {
            table.row(&format!("reserve {bytes}"), status(cuda.reserve(bytes, 0, 0, 0)), 1);
        }
        table.row("bytes of granularity on device 99", cuda.granularity(&on(99), 0), Ok(GRANULE));
        let nowhere = CUmemAllocationProp { location: Default::default(), ..on(0) };
        table.row("granularity at no location", status(cuda.granularity(&nowhere, 0)), 0);

        let address = cuda.reserve(8 * GRANULE, 0, 0, 0).unwrap();
        let handle = cuda.create(2 * GRANULE, &on(0), 0).unwrap();
        table.row("map what is not reserved", cuda.map(address + 8 * STEP, 2 * GRANULE, 0, handle, 0), 1);
        table.row("map half a granule on", cuda.map(address + STEP / 2, 2 * GRANULE, 0, handle, 0), 1);
        table.row("map all, from the second granule", cuda.map(address, 2 * GRANULE, GRANULE, handle, 0), 801);
        table.row("unmap half a granule where nothing is", cuda.unmap(address, GRANULE / 2), 0);
        table.row("unmap past the range where nothing is", cuda.unmap(address + 7 * STEP, 2 * GRANULE), 0);
        table.row("unmap what is not reserved", cuda.unmap(address + 8 * STEP, GRANULE), 1);

        let second = address + 2 * STEP;
        assert_eq!(cuda.map(second, 2 * GRANULE, 0, handle, 0), 0);
        assert_eq!(cuda.set_access(second, 2 * GRANULE, &read_write()), 0);
        table.row("access of device 99", status(cuda.access(second, on_device(99))), 101);
        let (start, size) = (pointer_attribute::RANGE_START_ADDR, pointer_attribute::RANGE_SIZE);
        table.row("start", cuda.wide_attribute(start, second), Ok(address));
        table.row("size", cuda.wide_attribute(size, second), Ok(8 * STEP));
        table.row("cut its end off", cuda.unmap(address, 3 * GRANULE), 1);
        table.row("unmap it and what is around it", cuda.unmap(address, 8 * GRANULE), 0);
        table.row("it is unmapped", cuda.range(second), Err(500));
        table.row("map there again", cuda.map(second, 2 * GRANULE, 0, handle, 0), 0);
        table.row("unmap", cuda.unmap(second, 2 * GRANULE), 0);
        table.row("release", cuda.release_physical(handle), 0);
        table.row("free of the addresses", cuda.free_addresses(address, 8 * GRANULE), 0);
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
    table.row("reserve one page of the host", status(cuda.reserve(4096, 0, 0, 0)), 1);
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
    table.row("granularity on device 99", status(cuda.granularity(&on(99), 0)), 0);
    table.row("granularity of no type", status(cuda.granularity(&none, 0)), 0);

    let handle = cuda.create(GRANULE, &on(0), 0).unwrap();
    let got = cuda.properties(handle).map(|prop| (prop.type_, prop.requestedHandleTypes, prop.location));
    table.row("properties", got, Ok((CU_MEM_ALLOCATION_TYPE_PINNED, 0, on_device(0))));
    table.row("release", cuda.release_physical(handle), 0);
}

/// Memory can only be mapped whole.
fn parts(cuda: &Cuda, table: &mut Table) {
    let address = cuda.reserve(8 * GRANULE, 0, 0, 0).unwrap();
    let handle = cuda.create(2 * GRANULE, &on(0), 0).unwrap();
    table.row("map half a granule on", cuda.map(address + STEP / 2, GRANULE, 0, handle, 0), 801);
    table.row("map half a granule", cuda.map(address, GRANULE / 2, 0, handle, 0), 801);
    table.row("map nothing", cuda.map(address, 0, 0, handle, 0), 1);
    table.row("map more than there is", cuda.map(address, 3 * GRANULE, 0, handle, 0), 801);
    table.row("map from the second granule", cuda.map(address, GRANULE, GRANULE, handle, 0), 801);
    table.row("map with flags 1", cuda.map(address, 2 * GRANULE, 0, handle, 1), 1);
    table.row("map a part", cuda.map(address + 6 * STEP, GRANULE, 0, handle, 0), 801);
    table.row("release of what was not mapped", cuda.release_physical(handle), 0);
    table.row("free of the addresses", cuda.free_addresses(address, 8 * GRANULE), 0);
}

/// The last address of a mapping need not be reserved.
fn past_the_end(cuda: &Cuda, table: &mut Table) {
    let address = cuda.reserve(8 * GRANULE, 0, 0, 0).unwrap();
    let handle = cuda.create(2 * GRANULE, &on(0), 0).unwrap();
    table.row("map past the range", cuda.map(address + 7 * STEP, 2 * GRANULE, 0, handle, 0), 0);
    table.row("map behind the range", cuda.map(address + 8 * STEP, 2 * GRANULE, 0, handle, 0), 1);
    table.row("release of what is mapped", cuda.release_physical(handle), 0);
    table.row("free of the addresses", cuda.free_addresses(address, 8 * GRANULE), 1);
}

fn mappings(cuda: &Cuda, table: &mut Table) {
    let address = cuda.reserve(8 * GRANULE, 0, 0, 0).unwrap();
    let handle = cuda.create(2 * GRANULE, &on(0), 0).unwrap();
    table.row("unmap what is not mapped", cuda.unmap(address, 2 * GRANULE), 0);
    table.row("map", cuda.map(address, 2 * GRANULE, 0, handle, 0), 0);
    table.row("map there again", cuda.map(address, 2 * GRANULE, 0, handle, 0), 1);
    table.row("map over its second half", cuda.map(address + STEP, 2 * GRANULE, 0, handle, 0), 1);
    table.row("free of addresses with a mapping", cuda.free_addresses(address, 8 * GRANULE), 1);
    table.row("unmap its first half", cuda.unmap(address, GRANULE), 1);
    table.row("unmap its second half", cuda.unmap(address + STEP, GRANULE), 1);
    table.row("unmap more", cuda.unmap(address, 3 * GRANULE), 0);
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
    table.row("access by flags 2", cuda.set_access(address, 2 * GRANULE, &may(2)), 1);
    table.row("access for nobody", cuda.set_access(address, 2 * GRANULE, &[]), 1);
    let host = CUmemAccessDesc { location: Default::default(), flags: 3 };
    table.row("access for no location", cuda.set_access(address, 2 * GRANULE, &[host]), 1);
    let far = CUmemAccessDesc { location: on_device(99), flags: 3 };
    table.row("access for device 99", cuda.set_access(address, 2 * GRANULE, &[far]), 1);
    table.row("access to its first half", cuda.set_access(address, GRANULE, &read_write()), 1);
    table.row("access to more", cuda.set_access(address, 3 * GRANULE, &read_write()), 1);
    table.row("access to read", cuda.set_access(address, 2 * GRANULE, &may(read)), 0);
    table.row("access asked for then", cuda.access(address, on_device(0)), Ok(read.into()));
    table.row("access", cuda.set_access(address, 2 * GRANULE, &read_write()), 0);
    table.row("access asked for last", cuda.access(address + STEP, on_device(0)), Ok(3));
    table.row("memset", cuda.memset(address, 1, 2 * GRANULE), 0);
    table.row("range inside it", cuda.range(address + STEP + 5), Ok((address, 2 * GRANULE)));
    table.row("memory type", cuda.pointer_attribute(2, address), Ok(2));
    table.row("ordinal", cuda.pointer_attribute(9, address), Ok(0));
    table.row("its context", cuda.wide_attribute(pointer_attribute::CONTEXT, address), Ok(0));
    table.row("its pool", cuda.wide_attribute(pointer_attribute::MEMPOOL_HANDLE, address), Ok(0));
    table.row("start", cuda.wide_attribute(pointer_attribute::RANGE_START_ADDR, address + 5), Ok(address));
    table.row("size", cuda.wide_attribute(pointer_attribute::RANGE_SIZE, address), Ok(8 * STEP));
    table.row("sync", cuda.sync(), 0);
    table.row("no access again", cuda.set_access(address, 2 * GRANULE, &may(none)), 0);

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

/// On the software driver only: an H200's driver crashes over one of the three, and which is not known.
#[test]
fn handles_of_freed_memory_are_refused_and_told() {
    let sim = SimDriver::new(Profile::h200());
    let driver: Arc<dyn DriverApi> = Arc::new(sim.clone());
    let _guard = ContextGuard::new(&driver, 0).unwrap();
    let cuda = Cuda::new(&driver);
    let released = cuda.create(GRANULE, &on(0), 0).unwrap();
    assert_eq!(cuda.release_physical(released), 0);
    let (address, unmapped) = mapped(&cuda, 1);
    assert_eq!((cuda.release_physical(unmapped), cuda.release_physical(unmapped)), (0, 1));
    assert_eq!(sim.diagnostics(), [""; 0], "its memory is still mapped");
    assert_eq!(cuda.unmap(address, GRANULE), 0);
    for handle in [released, unmapped] {
        let told = sim.diagnostics().len();
        assert_eq!(cuda.map(address, GRANULE, 0, handle, 0), 1);
        assert_eq!((status(cuda.properties(handle)), cuda.release_physical(handle)), (1, 1));
        let calls = ["cuMemMap", "cuMemGetAllocationPropertiesFromHandle", "cuMemRelease"];
        for (diagnostic, call) in sim.diagnostics()[told..].iter().zip(calls) {
            assert!(diagnostic.starts_with(call) && diagnostic.contains("may crash"), "{diagnostic}");
            assert!(diagnostic.contains(&format!("{handle:#x}")), "{diagnostic}");
        }
        assert_eq!(sim.diagnostics().len(), told + calls.len());
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What calls about pools and their memory answer. Measured on an H200 (driver 580.159.04), but for the tests of the
//! software driver alone.

mod common;

use std::sync::Arc;

use common::memory::{mapped, on_device};
use common::{Cuda, PTX, Table, status};
use metrale_driver_sim::driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    CU_MEM_ALLOCATION_TYPE_PINNED, CUmemAccessDesc, CUmemPoolProps, DriverApi, pointer_attribute,
    pool_attribute as a,
};
use metrale_driver_sim::{ContextGuard, MemoryKind, Profile, SimDriver, on_both_drivers};

const NON_BLOCKING: u32 = 1;

fn pools(cuda: &Cuda, table: &mut Table) {
    let props = CUmemPoolProps {
        allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
        location: on_device(0),
        ..CUmemPoolProps::default()
    };
    let default = cuda.default_pool(0).unwrap();
    table.row("the current pool at first", cuda.current_pool(0), Ok(default));
    table.row("default pool of device 99", status(cuda.default_pool(99)), 101);
    table.row("destroy the default pool", cuda.pool_destroy(default), 1);
    table.row("pool of no type", status(cuda.pool(&CUmemPoolProps { allocType: 0, ..props })), 1);
    table.row(
        "pool of no location",
        status(cuda.pool(&CUmemPoolProps { location: Default::default(), ..props })),
        1,
    );
    table.row(
        "pool of device 99",
        status(cuda.pool(&CUmemPoolProps { location: on_device(99), ..props })),
        1,
    );

    let pool = cuda.pool(&props).unwrap();
    for attribute in [
        a::REUSE_FOLLOW_EVENT_DEPENDENCIES,
        a::REUSE_ALLOW_OPPORTUNISTIC,
        a::REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ] {
        table.row(&format!("reuse attribute {attribute}"), cuda.pool_flag(pool, attribute), Ok(1));
        table.row(&format!("clear {attribute}"), cuda.pool_set_flag(pool, attribute, 0), 0);
        table.row(&format!("then {attribute}"), cuda.pool_flag(pool, attribute), Ok(0));
    }
    table.row("release threshold", cuda.pool_bytes(pool, a::RELEASE_THRESHOLD), Ok(0));
    table.row("set it", cuda.pool_set_bytes(pool, a::RELEASE_THRESHOLD, 12_345), 0);
    table.row("release threshold as set", cuda.pool_bytes(pool, a::RELEASE_THRESHOLD), Ok(12_345));
    table.row("attribute 0", status(cuda.pool_flag(pool, 0)), 1);
    table.row("attribute 1000", status(cuda.pool_bytes(pool, 1000)), 1);
    table.row("set attribute 1000", cuda.pool_set_bytes(pool, 1000, 0), 1);
    table.row("trim of an empty pool", cuda.pool_trim(pool, 0), 0);

    let read_write = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = |flags| [CUmemAccessDesc { location: on_device(0), flags }];
    table.row("access of its own device", cuda.pool_access(pool, on_device(0)), Ok(read_write));
    table.row("set it again", cuda.pool_set_access(pool, &access(read_write)), 0);
    table.row("take it", cuda.pool_set_access(pool, &access(CU_MEM_ACCESS_FLAGS_PROT_NONE)), 101);
    table.row("access by flags 2", cuda.pool_set_access(pool, &access(2)), 1);

    table.row("make it the current pool", cuda.set_pool(0, pool), 0);
    table.row("the current pool then", cuda.current_pool(0), Ok(pool));
    let stream = cuda.stream(NON_BLOCKING).unwrap();
    let address = cuda.alloc_async(1000, stream).unwrap();
    table.row("used by cuMemAllocAsync", cuda.pool_bytes(pool, a::USED_MEM_CURRENT), Ok(1000));
    table.row("range inside it", cuda.range(address + 500), Ok((address, 1000)));
    table.row("memory type", cuda.pointer_attribute(pointer_attribute::MEMORY_TYPE, address), Ok(2));
    table.row("ordinal", cuda.pointer_attribute(pointer_attribute::DEVICE_ORDINAL, address), Ok(0));
    table.row("start", cuda.wide_attribute(pointer_attribute::RANGE_START_ADDR, address + 999), Ok(address));
    table.row("size", cuda.wide_attribute(pointer_attribute::RANGE_SIZE, address + 999), Ok(1000));
    table.row("its pool", cuda.wide_attribute(pointer_attribute::MEMPOOL_HANDLE, address), Ok(pool));
    table.row("its context", cuda.wide_attribute(pointer_attribute::CONTEXT, address), Ok(0));
    table.row("past its end by 1 byte", cuda.memset(address, 0, 1001), 1);
    table.row("free", cuda.free_async(address, stream), 0);
    table.row("memset after the free", cuda.memset_async(address, 0, 1000, stream), 1);
    table.row("range after the free", cuda.range(address), Err(500));
    table.row("cuMemFree after it", cuda.free(address), 1);
    table.row("sync", cuda.stream_sync(stream), 0);

    let plain = cuda.alloc(1000).unwrap();
    table.row("pool of plain memory", cuda.wide_attribute(pointer_attribute::MEMPOOL_HANDLE, plain), Ok(0));
    table.row("plain memory freed in stream order", cuda.free_async(plain, stream), 0);
    table.row("a second time", cuda.free_async(plain, stream), 0);
    table.row("cuMemFree after both", cuda.free(plain), 0);
    let managed = cuda.alloc_managed(4096, 1).unwrap();
    table.row("managed memory freed in stream order", cuda.free_async(managed, stream), 801);
    table.row("free of managed memory", cuda.free(managed), 0);

    table.row("destroy the current pool", cuda.pool_destroy(pool), 0);
    table.row("the current pool after that", cuda.current_pool(0), Ok(default));
    table.row("end of the stream", cuda.stream_destroy(stream), 0);
}

fn without_a_context(cuda: &Cuda, table: &mut Table) {
    table.row("default pool without a context", status(cuda.default_pool(0)), 0);
    table.row("allocation without a context", status(cuda.alloc_async(1000, 0)), 201);
}

on_both_drivers! {
    table(driver) {
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        assert_eq!(cuda.init(0), 0);
        without_a_context(&cuda, &mut table);
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        pools(&cuda, &mut table);
        table.check();
    }

    /// Handles of pools that were destroyed, or never made. Apart from the others: a driver may crash here.
    stale_handles(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        let pool = cuda.new_pool(0);
        assert_eq!(cuda.pool_destroy(pool), 0);
        for (what, pool) in [("destroyed", pool), ("null", 0)] {
            table.row(&format!("attribute, {what}"), status(cuda.pool_bytes(pool, a::USED_MEM_CURRENT)), 1);
            table.row(&format!("set attribute, {what}"), cuda.pool_set_bytes(pool, a::RELEASE_THRESHOLD, 0), 1);
            table.row(&format!("trim, {what}"), cuda.pool_trim(pool, 0), 1);
            let made_current = if pool == 0 { 1 } else { 0 };
            table.row(&format!("make current, {what}"), cuda.set_pool(0, pool), made_current);
            table.row(&format!("allocate, {what}"), status(cuda.alloc_of_pool(64, pool, 0)), 1);
            table.row(&format!("destroy, {what}"), cuda.pool_destroy(pool), 1);
        }
        table.check();
    }
}

fn open(driver: &SimDriver) -> (Cuda, ContextGuard) {
    let driver: Arc<dyn DriverApi> = Arc::new(driver.clone());
    (Cuda::new(&driver), ContextGuard::new(&driver, 0).unwrap())
}

#[test]
fn a_capture_refuses_and_says_why() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let stream = cuda.stream(NON_BLOCKING).unwrap();
    let address = cuda.alloc_async(64, stream).unwrap();
    assert_eq!(cuda.capture_begin(stream, 2), 0);
    assert_eq!((status(cuda.alloc_async(64, stream)), cuda.free_async(address, stream)), (801, 801));
    assert!(driver.diagnostics().join("\n").contains("nodes of a graph"));
    assert_eq!(cuda.end(stream).0, 0, "the capture goes on");
    assert_eq!(cuda.free_async(address, stream), 0);
}

#[test]
fn work_before_a_free_runs_in_the_memory_it_was_given() {
    let driver = common::sim();
    let (cuda, _guard) = open(&driver);
    let module = cuda.load(PTX.as_bytes()).unwrap();
    let poke = cuda.function(module, "poke").unwrap();
    let stream = cuda.stream(NON_BLOCKING).unwrap();
    let large = cuda.alloc_async(4096, stream).unwrap();
    assert_eq!(cuda.poke(poke, large + 4092, 1, stream), 0);
    assert_eq!(cuda.free_async(large, stream), 0);
    // It lies where the large one did, and ends before what the kernel touches.
    let small = cuda.alloc_async(512, stream).unwrap();
    assert_eq!((small, cuda.stream_sync(stream)), (large, 0));
    // After the free was reached it is nobody's.
    assert_eq!((cuda.poke(poke, large + 4092, 1, stream), cuda.stream_sync(stream)), (0, 700));
}

/// Measured: further frees are 0 until its stream is synchronized.
#[test]
fn plain_memory_freed_in_stream_order_is_freed_once() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, guard) = open(&driver);
    let stream = cuda.stream(NON_BLOCKING).unwrap();
    let fresh = guard.memory_info().unwrap().0;
    let free_twice = |address| assert_eq!([(); 2].map(|()| cuda.free_async(address, stream)), [0; 2]);
    let address = cuda.alloc(2 << 20).unwrap();
    free_twice(address);
    assert_eq!((guard.memory_info().unwrap().0, driver.leaks().memory_bytes()), (fresh - (2 << 20), 0));
    assert_eq!((cuda.stream_sync(stream), guard.memory_info().unwrap().0), (0, fresh));
    // What comes to lie at the same address is not freed by the earlier calls.
    let address = cuda.alloc(2 << 20).unwrap();
    free_twice(address);
    assert_eq!((cuda.free(address), cuda.alloc(2 << 20)), (0, Ok(address)));
    assert_eq!((cuda.stream_sync(stream), guard.memory_info().unwrap().0), (0, fresh - (2 << 20)));
    assert_eq!((cuda.free(address), cuda.free(address)), (0, 1));
}

/// On the software driver only: an H200's driver crashes over one of the calls after the first two, and which is not known.
#[test]
fn a_destroyed_pool_made_current_is_told() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let pool = cuda.new_pool(0);
    assert_eq!((cuda.pool_destroy(pool), cuda.set_pool(0, pool)), (0, 0));
    assert!(
        driver.diagnostics()[0].contains("was destroyed") && driver.diagnostics()[0].contains("may crash")
    );
    assert_eq!((cuda.current_pool(0), status(cuda.alloc_async(64, 0))), (Ok(pool), 1));
    assert_eq!(cuda.set_pool(0, cuda.default_pool(0).unwrap()), 0);
    assert_eq!(status(cuda.alloc_async(64, 0)), 0);
    assert_eq!(cuda.set_pool(0, pool + 0x10), 1, "never made");
}

/// On the software driver only: an H200's driver crashes somewhere in this sequence, and at which row is not known.
#[test]
fn access_of_a_pool_and_frees_of_memory_of_other_kinds() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let mut table = Table::default();
    let pool = cuda.new_pool(0);
    let access = |id, flags| [CUmemAccessDesc { location: on_device(id), flags }];
    let read = CU_MEM_ACCESS_FLAGS_PROT_READ;
    table.row("let its own device read only", cuda.pool_set_access(pool, &access(0, read)), 101);
    table.row("access for device 99", cuda.pool_set_access(pool, &access(99, 3)), 1);
    table.row("access of device 99", status(cuda.pool_access(pool, on_device(99))), 101);
    table.row("destroy", cuda.pool_destroy(pool), 0);

    let stream = cuda.stream(NON_BLOCKING).unwrap();
    let plain = cuda.alloc(1000).unwrap();
    table.row("free of plain memory in stream order", cuda.free_async(plain, stream), 0);
    table.row("range before the stream is synchronized", cuda.range(plain), Ok((plain, 1000)));
    table.row("sync", cuda.stream_sync(stream), 0);
    table.row("range after that", cuda.range(plain), Err(500));
    table.row("a second time after that", cuda.free_async(plain, stream), 1);
    table.row("cuMemFree after that", cuda.free(plain), 1);
    let plain = cuda.alloc(1000).unwrap();
    table.row("free of another", cuda.free_async(plain, stream), 0);
    table.row("cuMemFree of it before the stream is synchronized", cuda.free(plain), 0);
    table.row("cuMemFree of it again", cuda.free(plain), 1);
    table.row("sync", cuda.stream_sync(stream), 0);

    let managed = cuda.alloc_managed(4096, 1).unwrap();
    table.row("free inside managed memory", cuda.free_async(managed + 512, stream), 1);
    table.row("free of managed memory", cuda.free(managed), 0);
    let pinned = cuda.alloc_host(4096).unwrap();
    table.row("free of pinned memory", cuda.free_async(pinned.addr() as u64, stream), 1);
    table.row("cuMemFreeHost of it", cuda.free_host(pinned), 0);
    let (mapping, _) = mapped(&cuda, 1);
    table.row("free of mapped memory", cuda.free_async(mapping, stream), 1);
    table.row("end of the stream", cuda.stream_destroy(stream), 0);
    table.check();
}

#[test]
fn what_is_left_has_a_name() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, guard) = open(&driver);
    let stream = cuda.stream(NON_BLOCKING).unwrap();
    let pool = cuda.new_pool(0);
    let kept = cuda.alloc_of_pool(1000, pool, stream).unwrap();
    let freed = cuda.alloc_async(2000, stream).unwrap();
    assert_eq!(cuda.free_async(freed, stream), 0);
    let leaks = driver.leaks();
    assert_eq!((leaks.memory.len(), leaks.memory[0].kind), (1, MemoryKind::Pool), "{leaks}");
    assert_eq!((leaks.memory[0].address, leaks.memory_bytes()), (kept, 1000));
    assert_eq!(leaks.pools.len(), 1);
    assert_eq!(leaks.pools[0].handle, pool);
    assert!(leaks.to_string().contains("memory pool"), "{leaks}");
    drop(guard);
    let leaks = driver.leaks();
    assert!(leaks.memory[0].context_ended && leaks.pools[0].context_ended, "{leaks}");
    // The device is as new, and the handle stale.
    let (cuda, guard) = open(&driver);
    assert_eq!(guard.memory_info().unwrap().0, 149_557_477_376);
    assert_eq!((cuda.pool_destroy(pool), cuda.free(kept)), (1, 1));
    assert_eq!(status(cuda.alloc_async(1000, 0)), 0);
    assert_eq!(guard.memory_info().unwrap().0, 149_557_477_376 - (32 << 20));
}

#[test]
fn pools_belong_to_one_device() {
    let two = SimDriver::builder().device(Profile::h200()).device(Profile::h200()).build();
    let (cuda, _guard) = open(&two);
    let (here, there) = (cuda.default_pool(0).unwrap(), cuda.default_pool(1).unwrap());
    assert_ne!(here, there);
    assert_eq!((cuda.set_pool(0, there), cuda.set_pool(1, there)), (1, 0));
    assert_eq!(cuda.pool_access(here, on_device(1)), Ok(CU_MEM_ACCESS_FLAGS_PROT_NONE));
    let access = CUmemAccessDesc { location: on_device(1), flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    assert_eq!(cuda.pool_set_access(here, &[access]), 0);
    assert_eq!(cuda.pool_access(here, on_device(1)), Ok(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

#[test]
fn a_free_behind_a_wait_is_behind_what_the_event_waits_for() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let [busy, waits, other] = [(); 3].map(|()| cuda.stream(NON_BLOCKING).unwrap());
    let event = cuda.event(0).unwrap();
    let address = cuda.alloc_async(4096, busy).unwrap();
    assert_eq!((cuda.memset_async(address, 1, 4096, busy), cuda.event_record(event, busy)), (0, 0));
    assert_eq!((cuda.stream_wait(waits, event, 0), cuda.free_async(address, waits)), (0, 0));
    // The memset has not run, so the memory is not free for a stream that waits for nothing.
    let elsewhere = cuda.alloc_async(4096, other).unwrap();
    assert_ne!(elsewhere, address);
    // A blocking stream is behind the legacy stream in the same way.
    let blocking = cuda.stream(0).unwrap();
    assert_eq!((cuda.memset(elsewhere, 2, 4096), cuda.free_async(elsewhere, blocking)), (0, 0));
    assert!(![address, elsewhere].contains(&cuda.alloc_async(4096, other).unwrap()));
    // Once the work is done, both are.
    assert_eq!((cuda.stream_sync(blocking), cuda.stream_sync(waits)), (0, 0));
    assert_eq!(cuda.alloc_async(8192, other), Ok(address));
}

#[test]
fn frees_without_work_are_free_for_other_streams_however_many_there_are() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let [first, second] = [(); 2].map(|()| cuda.stream(NON_BLOCKING).unwrap());
    for round in 0..50_000 {
        let (from, to) = if round % 2 == 0 { (first, second) } else { (second, first) };
        let address = cuda.alloc_async(1000, from).unwrap();
        assert_eq!(cuda.free_async(address, to), 0);
    }
    assert_eq!(cuda.pool_bytes(cuda.default_pool(0).unwrap(), a::RESERVED_MEM_HIGH), Ok(32 << 20));
}

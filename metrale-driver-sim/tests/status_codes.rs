// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of status codes measured on an H200 (driver 580.159.04), row by row, on both drivers.

mod common;

use common::{Cuda, PTX, Table, status, visible};
use metrale_driver_sim::{ContextGuard, on_both_drivers};

/// Device attributes by number.
const H200_ATTRIBUTES: &[(u32, i32)] = &[
    (1, 1024),
    (2, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65_535),
    (8, 49_152),
    (10, 32),
    (12, 65_536),
    (16, 132),
    (18, 0),
    (38, 62_914_560),
    (39, 2048),
    (41, 1),
    (75, 9),
    (76, 0),
    (81, 233_472),
    (82, 65_536),
    (83, 1),
    (88, 0),
    (89, 1),
    (91, 1),
    (97, 232_448),
    (99, 1),
    (100, 0),
    (106, 32),
    (115, 1),
    (119, 9),
];

/// An attribute number that no driver has.
const NO_ATTRIBUTE: u32 = 100_000;

on_both_drivers! {
    /// Every row of the table.
    table(driver; sim: common::sim()) {
        let cuda = Cuda::new(&driver);
        let mut table = Table::default();
        assert_eq!(cuda.init(0), 0);
        table.row("cuMemGetInfo without a context", status(cuda.info()), 201);
        let context = ContextGuard::new(&driver, 0).unwrap();
        memory(&cuda, &mut table);
        host_memory(&cuda, &mut table);
        modules(&cuda, &mut table);
        captures(&cuda, &mut table);
        events(&cuda, &mut table);
        devices(&cuda, &mut table, context.device());
        table.check();
    }
}

fn memory(cuda: &Cuda, table: &mut Table) {
    table.row("alloc of 0", status(cuda.alloc(0)), 1);
    table.row("alloc of 2^50", status(cuda.alloc(1 << 50)), 2);
    let a = cuda.alloc(4096).unwrap();
    let b = cuda.alloc(4096).unwrap();
    table.row("free of null", cuda.free(0), 0);
    table.row("free of an interior pointer", cuda.free(a + 256), 1);
    table.row("free of what was never allocated", cuda.free(0x1234_5600), 1);
    let freed = cuda.alloc(64 << 20).unwrap();
    table.row("free", cuda.free(freed), 0);
    table.row("second free", cuda.free(freed), 1);

    let mut host = vec![0; 4096 + 5_000_000];
    for past in [1, 4096, 5_000_000] {
        let bytes = 4096 + past;
        table.row(&format!("upload {past} past the end"), cuda.upload(a, &host[..bytes]), 1);
        table.row(&format!("download {past} past the end"), cuda.download(&mut host[..bytes], a), 1);
        table.row(&format!("device copy {past} past the end"), cuda.copy_on_device(a, b, bytes), 1);
        table.row(&format!("memset {past} past the end"), cuda.memset(a, 0, bytes), 1);
    }
    table.row("download from a bogus address", cuda.download(&mut host[..16], 0x1234_5600), 1);
    table.row("upload to a bogus address", cuda.upload(0x1234_5600, &host[..16]), 1);
    table.row("upload of 0 bytes", cuda.upload(a, &[]), 0);
    table.row("upload of 0 bytes to null", cuda.upload(0, &[]), 0);
    table.row("download of 0 bytes from null", cuda.download(&mut [], 0), 0);
    table.row("overlapping device copy", cuda.copy_on_device(a + 16, a, 1024), 0);
    let odd = cuda.alloc(1000).unwrap();
    table.row("address range inside an allocation of 1000", cuda.range(odd + 500), Ok((odd, 1000)));
    // Its last 24 bytes up to the granule of 512 belong to no allocation.
    for (what, address) in [
        ("unknown", 0x1234_5678_9000),
        ("null", 0),
        ("one past the end", odd + 1000),
        ("two past the end", odd + 1001),
    ] {
        table.row(&format!("address range, {what}"), cuda.range(address), Err(500));
    }
    table.row("memory type of an unknown address", cuda.pointer_attribute(2, 0x1234_5678_9000), Err(1));
    for address in [a, b, odd] {
        table.row("free", cuda.free(address), 0);
    }
}

fn host_memory(cuda: &Cuda, table: &mut Table) {
    let pinned = cuda.alloc_host(4096).unwrap();
    table.row("free of pinned memory", cuda.free_host(pinned), 0);
    table.row("second free of pinned memory", cuda.free_host(pinned), 1);
    let mut plain = vec![0u64; 512];
    table.row("pinned free of plain memory", cuda.free_host(plain.as_mut_ptr().cast()), 1);
    table.row("device pointer of plain memory", status(cuda.device_pointer(plain.as_mut_ptr().cast())), 1);
    table.row("pinned memory of 0 bytes", status(cuda.alloc_host(0)), 0);
    table.row("managed memory with flags 0", status(cuda.alloc_managed(4096, 0)), 1);
    table.row("managed memory of 0 bytes", status(cuda.alloc_managed(0, 1)), 1);
}

fn modules(cuda: &Cuda, table: &mut Table) {
    let ptx = |version: &str, target: &str| {
        format!(".version {version}\n.target {target}\n.address_size 64\n.visible .entry e() {{ ret; }}\n\0")
    };
    table.row("module from hello", status(cuda.load(b"hello\0")), 200);
    table.row("module from nothing", status(cuda.load(b"\0")), 200);
    table.row("PTX 9.9", status(cuda.load(ptx("9.9", "sm_90").as_bytes())), 222);
    table.row("PTX for sm_100", status(cuda.load(ptx("8.7", "sm_100").as_bytes())), 218);
    let own = cuda.load(ptx("8.0", "sm_90a").as_bytes());
    table.row("PTX for sm_90a", status(own), 0);

    let module = cuda.load(PTX.as_bytes()).unwrap();
    table.row("function that is not there", status(cuda.function(module, "absent")), 500);
    table.row("global that is not there", status(cuda.global(module, "absent")), 500);
    let (answer, bytes) = cuda.global(module, "answer").unwrap();
    table.row("size of a global", bytes, 4);
    table.row("value of a global", cuda.bytes(answer), 42u32.to_le_bytes());

    table.row("global of a kernel's name", status(cuda.global(module, "nothing")), 1);
    table.row("function of a global's name", status(cuda.function(module, "answer")), 500);
    let hidden =
        cuda.load(b".version 7.0\n.target sm_70\n.address_size 64\n.global .u32 hidden;\n\0").unwrap();
    table.row("global without a linkage word", cuda.global(hidden, "hidden").map(|found| found.1), Ok(4));
    table.row("unload", cuda.unload(hidden), 0);

    let f = cuda.function(module, "nothing").unwrap();
    table.row("launch with grid 0", cuda.launch(f, [0, 1, 1], [1; 3], 0, 0), 1);
    table.row("launch with 2048 threads", cuda.launch(f, [1; 3], [2048, 1, 1], 0, 0), 1);
    table.row("launch with 2^96 threads", cuda.launch(f, [1; 3], [u32::MAX; 3], 0, 0), 1);
    table.row("launch with 1 MiB of shared memory", cuda.launch(f, [1; 3], [1; 3], 1 << 20, 0), 1);
    table.row("200 KiB of shared memory", cuda.function_set(f, 8, 200 << 10), 0);
    table.row("300 KiB of shared memory", cuda.function_set(f, 8, 300 << 10), 1);
    table.row("launch with what was opted into", cuda.launch(f, [1; 3], [1; 3], 200 << 10, 0), 0);
    table.row("synchronize", cuda.sync(), 0);
    for module in [Some(module), own.ok()].into_iter().flatten() {
        table.row("unload", cuda.unload(module), 0);
    }
}

fn captures(cuda: &Cuda, table: &mut Table) {
    const NON_BLOCKING: u32 = 1;
    let module = cuda.load(PTX.as_bytes()).unwrap();
    let f = cuda.function(module, "nothing").unwrap();
    let s = cuda.stream(NON_BLOCKING).unwrap();
    assert_eq!((cuda.nothing(f, s), cuda.stream_sync(s)), (0, 0));

    table.row("end a capture that was not begun", cuda.end(s), (401, 0));
    table.row("begin on the legacy stream", cuda.capture_begin(0, 2), 900);
    table.row("state before", cuda.capture_state(s), Ok(0));
    table.row("begin", cuda.capture_begin(s, 2), 0);
    table.row("begin twice", cuda.capture_begin(s, 2), 401);
    table.row("state meanwhile", cuda.capture_state(s), Ok(visible(1)));
    let (ended, graph) = cuda.end(s);
    table.row("end of an empty capture", ended, 0);
    let exec = cuda.instantiate(graph);
    table.row("instantiate the empty graph", status(exec), 0);
    if let Ok(exec) = exec {
        table.row("launch the empty graph", cuda.graph_launch(exec, s), 0);
        table.row("synchronize", cuda.stream_sync(s), 0);
        table.row("destroy", cuda.exec_destroy(exec), 0);
    }
    table.row("destroy", cuda.graph_destroy(graph), 0);

    for (mode, forbidden) in [(0, true), (1, true), (2, false)] {
        assert_eq!(cuda.capture_begin(s, mode), 0);
        let memory = cuda.alloc(1024);
        table.row(&format!("alloc in mode {mode}"), status(memory), if forbidden { 900 } else { 0 });
        table.row("state after it", cuda.capture_state(s), Ok(visible(if forbidden { 2 } else { 1 })));
        if forbidden {
            table.row("launch afterwards", cuda.nothing(f, s), 901);
            table.row("end afterwards", cuda.end(s), (901, 0));
        } else {
            let (ended, graph) = cuda.end(s);
            table.row("end", ended, 0);
            table.row("destroy", cuda.graph_destroy(graph), 0);
        }
        if let Ok(memory) = memory {
            table.row("free", cuda.free(memory), 0);
        }
        for query in [true, false] {
            assert_eq!(cuda.capture_begin(s, mode), 0);
            let got = if query { cuda.stream_query(s) } else { cuda.stream_sync(s) };
            table.row(&format!("query ({query}) or synchronize in mode {mode}"), got, 900);
            table.row("state after it", cuda.capture_state(s), Ok(visible(2)));
            table.row("end after it", cuda.end(s), (901, 0));
            table.row("state after the end", cuda.capture_state(s), Ok(0));
        }
    }

    let memory = cuda.alloc(1024).unwrap();
    assert_eq!(cuda.capture_begin(s, 2), 0);
    table.row("blocking memset, relaxed", cuda.memset(memory, 0, 1024), 0);
    table.row("launch on the legacy stream, relaxed", cuda.nothing(f, 0), 0);
    table.row("state after both", cuda.capture_state(s), Ok(visible(1)));
    let event = cuda.event(0).unwrap();
    table.row("record in the capture", cuda.event_record(event, s), 0);
    table.row("query of that event", cuda.event_query(event), 907);
    table.row("state after it", cuda.capture_state(s), Ok(visible(2)));
    table.row("end after it", cuda.end(s), (901, 0));

    let never = cuda.event(0).unwrap();
    table.row("query of an event never recorded", cuda.event_query(never), 0);
    table.row("wait for an event never recorded", cuda.stream_wait(s, never, 0), 0);
    table.row("synchronize", cuda.sync(), 0);
    for event in [event, never] {
        table.row("destroy", cuda.event_destroy(event), 0);
    }
    table.row("free", cuda.free(memory), 0);
    table.row("destroy", cuda.stream_destroy(s), 0);
    table.row("unload", cuda.unload(module), 0);
}

fn events(cuda: &Cuda, table: &mut Table) {
    const NO_TIMING: u32 = 2;
    let timeless = [cuda.event(NO_TIMING).unwrap(), cuda.event(NO_TIMING).unwrap()];
    for event in timeless {
        table.row("record", cuda.event_record(event, 0), 0);
    }
    table.row("synchronize", cuda.sync(), 0);
    table.row("time between events without timing", status(cuda.elapsed(timeless[0], timeless[1])), 400);
    let never = [cuda.event(0).unwrap(), cuda.event(0).unwrap()];
    table.row("time between events never recorded", status(cuda.elapsed(never[0], never[1])), 400);
    for event in timeless.into_iter().chain(never) {
        table.row("destroy", cuda.event_destroy(event), 0);
    }
}

fn devices(cuda: &Cuda, table: &mut Table, device: i32) {
    table.row("device 99", status(cuda.device(99)), 101);
    table.row("device -1", status(cuda.device(-1)), 101);
    table.row("unknown attribute", status(cuda.attribute(NO_ATTRIBUTE, device)), 1);
    let mut text = std::ptr::null();
    // SAFETY: the result pointer is a local.
    let unknown = unsafe { cuda.api.cuGetErrorName(12_345, &mut text) };
    table.row("name of an unknown status", unknown, 1);
    // SAFETY: as above.
    let found = unsafe { cuda.api.cuGetErrorName(2, &mut text) };
    table.row("name of status 2", found, 0);
    // SAFETY: the driver's string is static.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    table.row("name of status 2", text, c"CUDA_ERROR_OUT_OF_MEMORY");

    let mut name = [0; 64];
    // SAFETY: the buffer has the length that is passed.
    let named = unsafe { cuda.api.cuDeviceGetName(name.as_mut_ptr().cast(), 64, device) };
    table.row("name of the device", named, 0);
    if name.starts_with(b"NVIDIA H200\0") {
        for &(attribute, value) in H200_ATTRIBUTES {
            table.row(&format!("attribute {attribute}"), cuda.attribute(attribute, device), Ok(value));
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations recorded on an H200 (driver 580.159.04), done through the driver API: the free figure after each one, and
//! where in its 2 MiB page each small allocation lies.

mod common;

use std::collections::HashMap;
use std::io::Read;

use common::Cuda;
use metrale_driver_sim::{ContextGuard, on_both_drivers};

/// Free bytes of a fresh context before the first operation.
const FRESH_FREE_BYTES: u64 = 149_557_477_376;
const PAGE: u64 = 2 << 20;

fn replay(
    driver: std::sync::Arc<dyn metrale_driver_sim::driver_sys::DriverApi>,
    gz: &[u8],
    operations: usize,
) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(gz).read_to_string(&mut text).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Action,Pointer,Size,Free"));

    let guard = ContextGuard::new(&driver, 0).unwrap();
    let cuda = Cuda::new(&driver);
    let fresh = guard.memory_info().unwrap().0 as u64;
    if driver.source().starts_with("software") {
        assert_eq!(fresh, FRESH_FREE_BYTES);
    }
    let mut live = HashMap::new();
    let mut done = 0;
    for line in lines {
        let cells: Vec<_> = line.split(',').collect();
        let [action, pointer, bytes, free] = cells[..] else { panic!("{line}") };
        let pointer = u64::from_str_radix(pointer.trim_start_matches("0x"), 16).unwrap();
        let bytes: usize = bytes.parse().unwrap();
        if action == "allocate" {
            let address = cuda.alloc(bytes).unwrap();
            // What rounds up to a page starts one.
            assert_eq!(address % PAGE, pointer % PAGE, "operation {done}: {bytes} bytes");
            assert!(live.insert(pointer, address).is_none());
        } else {
            assert_eq!(cuda.free(live.remove(&pointer).unwrap()), 0, "operation {done}");
        }
        // On the GPU others may hold memory, so what counts is the difference.
        let used = fresh - guard.memory_info().unwrap().0 as u64;
        let recorded = FRESH_FREE_BYTES - free.parse::<u64>().unwrap();
        assert_eq!(used, recorded, "operation {done}: {line}");
        done += 1;
    }
    assert_eq!(done, operations);
    for (_, address) in live {
        assert_eq!(cuda.free(address), 0);
    }
    assert_eq!(guard.memory_info().unwrap().0 as u64, fresh);
}

on_both_drivers! {
    random_0(driver) { replay(driver, include_bytes!("../../metrale-ledger/tests/data/random-0.csv.gz"), 8000); }
    random_1(driver) { replay(driver, include_bytes!("../../metrale-ledger/tests/data/random-1.csv.gz"), 5098); }
    random_3(driver) { replay(driver, include_bytes!("../../metrale-ledger/tests/data/random-3.csv.gz"), 6000); }
}

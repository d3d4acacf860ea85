// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded operations of an H200, done again through the backend: the ledger's residency is the driver's own figure after
//! every one of them, and equals the recording.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::{MIB, backend};
use metrale_cuda_backend::{DevicePtr, DriverApi};
use metrale_driver_sim::on_both_drivers;

/// What the driver had free in the recording's fresh context.
const FRESH_FREE_BYTES: u64 = 149_557_477_376;

/// One recorded operation.
struct Operation {
    allocates: bool,
    addr: u64,
    bytes: usize,
    free_bytes: u64,
}

fn operations(log: &[u8]) -> Vec<Operation> {
    let mut reader = csv::Reader::from_reader(flate2::read::GzDecoder::new(log));
    let rows = reader.deserialize::<(String, String, usize, u64)>();
    rows.map(|row| {
        let (action, pointer, bytes, free_bytes) = row.unwrap();
        let addr = u64::from_str_radix(pointer.trim_start_matches("0x"), 16).unwrap();
        Operation { allocates: action == "allocate", addr, bytes, free_bytes }
    })
    .collect()
}

fn replay(driver: Arc<dyn DriverApi>, log: &[u8]) {
    let operations = operations(log);
    assert!(operations.len() > 1000, "the log was read");
    let backend = backend(driver);
    let fresh = backend.memory_info().unwrap().free_bytes;
    let mut live: HashMap<u64, DevicePtr> = HashMap::new();
    for (index, Operation { allocates, addr, bytes, free_bytes }) in operations.into_iter().enumerate() {
        if allocates {
            let ptr = backend.alloc(bytes).unwrap();
            if bytes < 2 * MIB - 511 {
                assert_eq!(ptr.addr() % (2 << 20), addr % (2 << 20), "place in the page, operation {index}");
            }
            live.insert(addr, ptr);
        } else {
            backend.free(live.remove(&addr).unwrap()).unwrap();
        }
        let used = fresh - backend.memory_info().unwrap().free_bytes;
        assert_eq!(backend.resident_bytes() as u64, used, "residency, operation {index}");
        assert_eq!(used, FRESH_FREE_BYTES - free_bytes, "the recording, operation {index}");
    }
    let left = live.len();
    assert_eq!(backend.sweep_unreleased().unwrap(), left);
    assert_eq!(backend.memory_info().unwrap().free_bytes, fresh);
}

on_both_drivers! {
    random_0(driver) {
        replay(driver, include_bytes!("../../metrale-ledger/tests/data/random-0.csv.gz"));
    }

    random_1(driver) {
        replay(driver, include_bytes!("../../metrale-ledger/tests/data/random-1.csv.gz"));
    }

    random_3(driver) {
        replay(driver, include_bytes!("../../metrale-ledger/tests/data/random-3.csv.gz"));
    }
}

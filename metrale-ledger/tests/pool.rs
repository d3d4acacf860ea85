// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's model against an H200 (driver 580.159.04): recorded operations, address, reserved and used bytes after each.

use std::collections::HashMap;
use std::io::Read;

use metrale_ledger::placement::pool::{Pool, PoolRule};

/// Address of the first allocation in the default pool.
const BASE: u64 = 0x3_0200_0000;

/// Columns as in the recorded logs of one stream that is, or is not, synchronized after each operation.
fn holds(gz: &[u8], operations: usize, threshold: u64, synchronizes: bool) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(gz).read_to_string(&mut text).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Action,Pointer,Size,Used,Reserved,Free"));
    let mut pool = Pool::new(PoolRule::H200);
    pool.set_release_threshold(threshold);
    let mut live = HashMap::new();
    let mut count = 0;
    for (i, line) in lines.enumerate() {
        let cells: Vec<_> = line.split(',').collect();
        let [action, pointer, bytes, used, reserved, _] = cells[..] else { panic!("{line}") };
        let pointer = u64::from_str_radix(pointer.strip_prefix("0x").unwrap(), 16).unwrap();
        let bytes: u64 = bytes.parse().unwrap();
        match action {
            "allocate" => {
                let before = pool.reserved_bytes();
                let take = pool.would_take(0, bytes).unwrap();
                let placed = pool.alloc(0, bytes).unwrap();
                assert_eq!(BASE + placed.offset_bytes, pointer, "row {i}: {bytes} bytes");
                assert_eq!((take, before + take), (placed.new_bytes, pool.reserved_bytes()), "row {i}");
                assert!(live.insert(pointer, placed.id).is_none());
            }
            "free" => pool.free(0, live.remove(&pointer).unwrap()).unwrap(),
            _ => panic!("{line}"),
        }
        if synchronizes {
            pool.synchronize(0);
        }
        assert_eq!(pool.used_bytes(), used.parse::<u64>().unwrap(), "row {i}");
        assert_eq!(pool.reserved_bytes(), reserved.parse::<u64>().unwrap(), "row {i}");
        count += 1;
    }
    assert_eq!((count, pool.live_count()), (operations, live.len()));
}

#[test]
fn small_0_holds_after_every_operation() {
    holds(include_bytes!("data/pool-small-0.csv.gz"), 1500, 0, true);
}

#[test]
fn small_1_holds_after_every_operation() {
    holds(include_bytes!("data/pool-small-1.csv.gz"), 1500, 0, false);
}

#[test]
fn small_2_holds_after_every_operation() {
    holds(include_bytes!("data/pool-small-2.csv.gz"), 1500, u64::MAX, true);
}

#[test]
fn mixed_0_holds_after_every_operation() {
    holds(include_bytes!("data/pool-mixed-0.csv.gz"), 1500, 0, true);
}

#[test]
fn mixed_2_holds_after_every_operation() {
    holds(include_bytes!("data/pool-mixed-2.csv.gz"), 1500, u64::MAX, true);
}

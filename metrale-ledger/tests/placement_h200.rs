// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing rule and ledger against an H200 (driver 580.159.04): recorded operations, free figure and addresses after each.

use std::collections::HashMap;
use std::io::Read;
use std::panic::Location;

use metrale_ledger::Ledger;
use metrale_ledger::placement::{Placement, PlacementId};

/// Free bytes of a fresh context before the first operation.
const FRESH_FREE_BYTES: u64 = 149_557_477_376;
const PAGE: u64 = 2 << 20;

struct Row {
    allocates: bool,
    pointer: u64,
    bytes: u64,
    free_bytes: u64,
}

fn rows(gz: &[u8]) -> Vec<Row> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(gz).read_to_string(&mut text).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Action,Pointer,Size,Free"));
    lines
        .map(|line| {
            let cells: Vec<_> = line.split(',').collect();
            let [action, pointer, bytes, free] = cells[..] else { panic!("{line}") };
            Row {
                allocates: match action {
                    "allocate" => true,
                    "free" => false,
                    _ => panic!("{line}"),
                },
                pointer: u64::from_str_radix(pointer.strip_prefix("0x").unwrap(), 16).unwrap(),
                bytes: bytes.parse().unwrap(),
                free_bytes: free.parse().unwrap(),
            }
        })
        .collect()
}

/// Every free figure, every small address, and every chunk where the driver put it.
fn holds(gz: &[u8], operations: usize) {
    let rows = rows(gz);
    assert_eq!(rows.len(), operations);
    let mut device = Placement::h200();
    let ledger = Ledger::new();
    let mut live: HashMap<u64, PlacementId> = HashMap::new();
    let mut base_of_chunk = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        if row.allocates {
            let take = device.would_take(row.bytes).unwrap();
            let placed = device.alloc(row.bytes).unwrap();
            assert_eq!(take, placed.new_pages, "row {i}");
            assert_eq!(placed.offset_bytes, row.pointer % PAGE, "row {i}: {} bytes", row.bytes);
            let base = *base_of_chunk.entry(placed.chunk).or_insert(row.pointer - row.pointer % PAGE);
            assert_eq!(base + placed.offset_bytes, row.pointer, "row {i}: another chunk than the driver's");
            assert!(live.insert(row.pointer, placed.id).is_none());
            assert!(ledger.record(row.pointer, row.bytes as usize, Location::caller()).misuse.is_none());
        } else {
            device.free(live.remove(&row.pointer).unwrap()).unwrap();
            ledger.try_forget(row.pointer).unwrap();
        }
        assert_eq!(ledger.resident_bytes() as u64, FRESH_FREE_BYTES - row.free_bytes, "row {i}");
        assert_eq!(device.resident_bytes(), FRESH_FREE_BYTES - row.free_bytes, "row {i}");
    }
    assert_eq!(device.live_count(), live.len());
}

#[test]
fn random_0_holds_after_every_operation() {
    holds(include_bytes!("data/random-0.csv.gz"), 8000);
}

#[test]
fn random_1_holds_after_every_operation() {
    holds(include_bytes!("data/random-1.csv.gz"), 5098);
}

#[test]
fn random_3_holds_after_every_operation() {
    holds(include_bytes!("data/random-3.csv.gz"), 6000);
}

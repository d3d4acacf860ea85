// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's model against an H200 (driver 580.159.04): recorded operations, address, reserved and used bytes after each.

use std::collections::HashMap;
use std::io::Read;

use metrale_ledger::placement::pool::{Pool, PoolRule};
use metrale_ledger::placement::{PlacementError, PlacementId};

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
    let mut live = HashMap::<u64, PlacementId>::new();
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

const PIECE: u64 = 32 << 20;

#[test]
fn sizes_of_no_bytes_and_past_64_bits_are_refused() {
    let mut pool = Pool::new(PoolRule::H200);
    assert_eq!(pool.alloc(0, 0), Err(PlacementError::ZeroBytes));
    assert_eq!(pool.would_take(0, 0), Err(PlacementError::ZeroBytes));
    for bytes in [u64::MAX, u64::MAX - 510, u64::MAX - PIECE + 2] {
        assert_eq!(pool.alloc(0, bytes), Err(PlacementError::TooLarge { bytes }));
        assert_eq!(pool.would_take(0, bytes), Err(PlacementError::TooLarge { bytes }));
    }
    // The last whole piece that 64 bits can count is the last that is placed.
    let huge = pool.alloc(0, u64::MAX - 2 * PIECE + 1).unwrap();
    assert_eq!(huge.new_bytes, u64::MAX - 2 * PIECE + 1);
    let bytes = PIECE + 1;
    assert_eq!(pool.alloc(0, bytes), Err(PlacementError::TooLarge { bytes }));
    assert_eq!((pool.live_count(), pool.reserved_bytes()), (1, u64::MAX - 2 * PIECE + 1));
    pool.free(0, huge.id).unwrap();
    pool.synchronize(0);
    assert_eq!((pool.used_bytes(), pool.reserved_bytes()), (0, 0));
    assert_eq!(pool.alloc(0, 1).unwrap().offset_bytes, 0);
}

#[test]
fn a_rule_must_fit_together() {
    for (piece_bytes, granularity_bytes) in [(0, 512), (512, 0), (0, 0), (1000, 512), (256, 512)] {
        let refused = PlacementError::BadPoolRule { piece_bytes, granularity_bytes };
        assert_eq!(PoolRule::new(piece_bytes, granularity_bytes), Err(refused));
        let text = refused.to_string();
        assert!(text.contains(&format!("a piece of {piece_bytes} bytes")), "{text}");
    }
    assert_eq!(PoolRule::new(PIECE, 512), Ok(PoolRule::H200));
    // One granule a piece.
    let mut pool = Pool::new(PoolRule::new(1, 1).unwrap());
    assert_eq!(pool.alloc(0, 7).unwrap().new_bytes, 7);
}

#[test]
fn an_id_is_good_for_one_free() {
    let mut pool = Pool::new(PoolRule::H200);
    let first = pool.alloc(0, 1000).unwrap();
    pool.free(0, first.id).unwrap();
    assert_eq!(pool.free(0, first.id), Err(PlacementError::NotLive { id: first.id }));
    let second = pool.alloc(0, 1000).unwrap();
    assert_eq!(second.offset_bytes, first.offset_bytes);
    assert_eq!(pool.free(1, first.id), Err(PlacementError::NotLive { id: first.id }));
    assert_eq!(pool.free_synchronously(first.id), Err(PlacementError::NotLive { id: first.id }));
    assert_eq!((pool.bytes_of(first.id), pool.bytes_of(second.id)), (None, Some(1000)));
    assert_eq!((pool.live_count(), pool.used_bytes()), (1, 1000));
}

#[test]
fn what_was_mapped_before_memory_ran_out_stays_until_a_trim() {
    let mut pool = Pool::new(PoolRule::H200);
    let held = pool.alloc_within(0, PIECE, PIECE).unwrap();
    let refused = pool.alloc_within(0, 3 * PIECE, 2 * PIECE + 5).unwrap_err();
    let (bytes, new_bytes, available_bytes) = (3 * PIECE, 3 * PIECE, 2 * PIECE + 5);
    assert_eq!(refused, PlacementError::OutOfMemory { bytes, new_bytes, available_bytes });
    let text = refused.to_string();
    assert!(
        text.contains("of 100663296 bytes cannot be placed") && text.contains("67108869 are left"),
        "{text}"
    );
    assert_eq!((pool.reserved_bytes(), pool.reserved_high_bytes()), (3 * PIECE, 3 * PIECE));
    // They serve the next allocation that they suffice for.
    assert_eq!(pool.would_take(0, 2 * PIECE), Ok(0));
    pool.trim_to(0);
    assert_eq!(pool.reserved_bytes(), PIECE);
    pool.free(0, held.id).unwrap();
    assert_eq!(pool.live_count(), 0);
}

#[test]
fn a_pool_of_a_greatest_size_takes_its_last_piece_as_a_whole() {
    let mut pool = Pool::new(PoolRule::H200);
    pool.set_max_bytes(PIECE + 1);
    pool.alloc(0, 2 * PIECE).unwrap();
    let refused = PlacementError::OutOfMemory { bytes: 1, new_bytes: PIECE, available_bytes: 0 };
    assert_eq!(pool.alloc(0, 1), Err(refused));
    assert_eq!(pool.reserved_bytes(), 2 * PIECE);
}

#[test]
fn work_that_finished_twice_or_before_the_wait_holds_nothing_up() {
    let mut pool = Pool::new(PoolRule::H200);
    let placed = pool.alloc(0, PIECE).unwrap();
    let work = pool.begin_work(0);
    let event = pool.record(0);
    pool.free(0, placed.id).unwrap();
    // What stream 0 freed is not complete, and nobody waited for it.
    assert_eq!(pool.would_take(1, PIECE), Ok(PIECE));
    pool.finish_work(work);
    pool.finish_work(work);
    pool.wait(1, &event);
    assert_eq!(pool.alloc(1, PIECE).unwrap().offset_bytes, 0);
}

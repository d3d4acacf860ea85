// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans from the stream-ordered pool against rows recorded on an H200 (driver 580.159.04).

use std::collections::BTreeMap;
use std::io::Read;

use metrale_ledger::placement::pool::{Pool, PoolRule};
use metrale_ledger::placement::{Placement, PlacementId};
use metrale_ledger::plan::{Allocator, Plan, PlanError, Step, Synchronize};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
/// The pool's physical memory comes in pieces of this many bytes.
const PIECE: u64 = 32 * MIB;
/// Free bytes of a fresh context on an H200 before the first operation.
const FRESH_FREE_BYTES: u64 = 149_557_477_376;

fn pool() -> Plan {
    Plan::h200().allocating_from(Allocator::Pool)
}

/// After every recorded operation the pool's two figures, and the device's free one, are the plan's.
fn holds(gz: &[u8], mut plan: Plan) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(gz).read_to_string(&mut text).unwrap();
    let (mut highest, mut rows) = (0, 0);
    for (row, line) in text.lines().skip(1).enumerate() {
        let cells: Vec<_> = line.split(',').collect();
        let pointer = u64::from_str_radix(cells[1].trim_start_matches("0x"), 16).unwrap();
        let [bytes, used, reserved, free] = [2, 3, 4, 5].map(|cell| cells[cell].parse::<u64>().unwrap());
        let step = match cells[0] {
            "allocate" => plan.alloc(pointer, bytes, None),
            _ => plan.free(pointer),
        };
        let expected = Step { operation: row as u64, live_bytes: used, resident_bytes: reserved };
        assert_eq!(step, Ok(expected), "row {row}");
        assert_eq!((plan.pool_used_bytes(), plan.pool_reserved_bytes()), (used, reserved), "row {row}");
        assert_eq!(plan.resident_bytes(), FRESH_FREE_BYTES - free, "row {row}");
        (highest, rows) = (highest.max(reserved), rows + 1);
    }
    assert_eq!(rows, 1500);
    assert_eq!(plan.summary().peak_resident.bytes, highest);
}

#[test]
fn a_pool_that_keeps_nothing_has_the_recorded_reserve() {
    holds(include_bytes!("data/pool-small-0.csv.gz"), pool());
    holds(include_bytes!("data/pool-mixed-0.csv.gz"), pool());
}

#[test]
fn a_pool_that_keeps_everything_has_the_recorded_reserve() {
    for log in [&include_bytes!("data/pool-small-2.csv.gz")[..], include_bytes!("data/pool-mixed-2.csv.gz")] {
        holds(log, pool().release_threshold_bytes(u64::MAX));
    }
}

#[test]
fn a_program_that_never_synchronises_has_the_recorded_reserve() {
    holds(include_bytes!("data/pool-small-1.csv.gz"), pool().synchronizing(Synchronize::WhenTold));
}

/// Measured: pieces that nothing touches go at a synchronisation, not at the free, and down to the threshold;
/// `cuMemPoolTrimTo` gives them back as well.
#[test]
fn the_pool_gives_memory_back_when_the_plan_is_told_of_a_synchronisation_or_a_trim() {
    let filled = |threshold: u64| {
        let mut plan = pool().synchronizing(Synchronize::WhenTold).release_threshold_bytes(threshold);
        for id in 0..4 {
            plan.alloc(id, PIECE, None).unwrap();
        }
        for id in 1..4 {
            assert_eq!(plan.free(id).unwrap().resident_bytes, 4 * PIECE);
        }
        plan
    };
    for (threshold, kept) in [(0, PIECE), (2 * PIECE, 2 * PIECE), (u64::MAX, 4 * PIECE)] {
        assert_eq!(filled(threshold).synchronize().resident_bytes, kept, "{threshold}");
    }
    let mut plan = filled(u64::MAX);
    plan.synchronize();
    assert_eq!(plan.trim(3 * PIECE).resident_bytes, 3 * PIECE);
    let step = plan.trim(0);
    assert_eq!((step.resident_bytes, step.live_bytes, step.operation), (PIECE, PIECE, 9));
    let peak = plan.summary().peak_resident;
    assert_eq!((peak.bytes, peak.operation, peak.hole_bytes), (4 * PIECE, Some(3), 0));
}

/// One allocation follows the other in an empty pool, so no order takes less, and an arena takes the same.
#[test]
fn the_order_of_allocation_does_not_matter_in_a_pool() {
    let mut plan = pool();
    for (id, bytes, label) in [(1, 1, "a"), (2, PIECE, "b"), (3, 5000, "a")] {
        plan.alloc(id, bytes, Some(label)).unwrap();
    }
    let (summary, orders) = (plan.summary(), plan.orders().unwrap());
    assert_eq!((summary.peak_resident.bytes, summary.arena_resident_bytes), (2 * PIECE, 2 * PIECE));
    assert_eq!(summary.peak_resident.hole_bytes, PIECE - 512 - 5120);
    assert!(orders.orders.iter().all(|&(_, bytes)| bytes == 2 * PIECE));
    assert_eq!((orders.best(), orders.arena_bytes), (None, 2 * PIECE));
    let holders: Vec<_> =
        summary.peak_resident.holders.iter().map(|h| (h.label.as_deref(), h.bytes)).collect();
    assert_eq!(holders, [(Some("b"), PIECE), (Some("a"), 5001)]);
}

#[test]
fn what_a_pool_cannot_place_changes_nothing() {
    let mut plan = pool();
    plan.alloc(1, 512, None).unwrap();
    for bytes in [u64::MAX, u64::MAX - PIECE] {
        assert!(matches!(plan.alloc(2, bytes, None), Err(PlanError::Placement(_))), "{bytes}");
    }
    assert_eq!((plan.live_bytes(), plan.resident_bytes(), plan.live_count()), (512, PIECE, 1));
    assert_eq!(plan.alloc(2, 0, None).unwrap().live_bytes, 512, "one of no bytes takes nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// Each allocator's memory is that of its model alone, and the peaks are the fullest moments of the sums.
    #[test]
    fn allocators_side_by_side_are_each_as_alone(
        ops in prop::collection::vec((0..12u64, prop_oneof![0..3000u64, 0..3 * MIB, 0..80 * MIB], 0..3usize), 1..80)
    ) {
        let mut plan = Plan::h200();
        let (mut packed, mut pool, mut created) = (Placement::h200(), Pool::new(PoolRule::H200), 0);
        let whole = |bytes: u64| bytes.next_multiple_of(2 * MIB);
        let mut live: BTreeMap<u64, (u64, usize, Option<PlacementId>)> = BTreeMap::new();
        let mut fullest = ((0, 0, 0), None, [0; 3]);
        for (i, (id, bytes, from)) in ops.into_iter().enumerate() {
            match live.remove(&id) {
                Some((bytes, from, place)) => {
                    match (from, place) {
                        (0, Some(place)) => drop(packed.free(place).unwrap()),
                        (1, Some(place)) => pool.free(0, place).unwrap(),
                        _ => created -= if from == 2 { whole(bytes) } else { 0 },
                    }
                    plan.free(id).unwrap();
                }
                None => {
                    let place = match from {
                        _ if bytes == 0 => None,
                        0 => Some(packed.alloc(bytes).unwrap().id),
                        1 => Some(pool.alloc(0, bytes).unwrap().id),
                        _ => {
                            created += whole(bytes);
                            None
                        }
                    };
                    live.insert(id, (bytes, from, place));
                    plan = plan.allocating_from(Allocator::ALL[from]);
                    plan.alloc(id, bytes, Some(Allocator::ALL[from].name())).unwrap();
                }
            }
            pool.synchronize_all();
            let resident = packed.resident_bytes() + pool.reserved_bytes() + created;
            let sum: u64 = live.values().map(|l| l.0).sum();
            prop_assert_eq!((plan.resident_bytes(), plan.live_bytes()), (resident, sum));
            if (resident, sum, live.len()) > fullest.0 {
                let by = [0, 1, 2].map(|from| live.values().filter(|l| l.1 == from).map(|l| l.0).sum::<u64>());
                fullest = ((resident, sum, live.len()), Some(i as u64), by);
            }
        }
        let peak = plan.summary().peak_resident;
        prop_assert_eq!((peak.bytes, peak.operation), (fullest.0.0, fullest.1));
        for holder in &peak.holders {
            let from = Allocator::ALL.iter().position(|from| holder.label.as_deref() == Some(from.name()));
            prop_assert_eq!(holder.bytes, fullest.2[from.unwrap()]);
        }
        prop_assert_eq!(peak.holders.iter().map(|holder| holder.count).sum::<u64>(), fullest.0.2 as u64);
    }
}

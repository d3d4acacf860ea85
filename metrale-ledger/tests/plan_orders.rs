// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other orders of the allocations at a plan's peak, against placing each, and sums done by hand.

use metrale_ledger::placement::{PackingRule, Placement, PlacementError};
use metrale_ledger::plan::{Order, Orders, Plan};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[test]
fn other_orders_are_planned_by_the_same_rule() {
    // Halves of a chunk and a little, and what fills the rest: smallest first, two small ones share a chunk and the large
    // ones get one each; largest first, each small one fills up a chunk.
    let large = 1200 << 10;
    let small = 800 << 10;
    let orders = Orders::of(4 * 2 * MIB, &[small, large, small, large], PackingRule::H200).unwrap();
    assert_eq!(orders.orders[0], (Order::LargestFirst, 4 * MIB));
    assert_eq!(orders.orders[1], (Order::SmallestFirst, 6 * MIB));
    assert_eq!(orders.orders[2], (Order::ByClass, 6 * MIB));
    assert_eq!(orders.arena_bytes, 4 * MIB);
    assert_eq!(orders.best(), Some((Order::LargestFirst, 4 * MIB)));
    assert_eq!(Orders::of(0, &[0], PackingRule::H200).unwrap().best(), None);
}

/// As each of them takes that is placed on its own.
fn orders_agree(sizes: &[u64], rule: PackingRule) -> Result<(), TestCaseError> {
    let take = |sizes: &[u64]| {
        let mut device = Placement::new(rule);
        for &bytes in sizes {
            device.alloc(bytes).unwrap();
        }
        device.resident_bytes()
    };
    let mut kept: Vec<u64> =
        sizes.iter().filter(|&&bytes| bytes > 0).map(|&bytes| rule.reserved_bytes(bytes).unwrap()).collect();
    kept.sort_unstable();
    let smallest_first = take(&kept);
    kept.reverse();
    let classes = kept.chunk_by(|a, b| a.ilog2() == b.ilog2());
    let expected = [
        (Order::LargestFirst, take(&kept)),
        (Order::SmallestFirst, smallest_first),
        (Order::ByClass, classes.map(take).sum()),
    ];
    prop_assert_eq!(Orders::of(0, sizes, rule).unwrap().orders, expected, "{:?}", rule);
    Ok(())
}

#[test]
fn orders_of_many_alike_take_what_each_takes() {
    let three: Vec<u64> = [(700 << 10, 5), (600 << 10, 4), (64 << 10, 40), (2 << 20, 2), (1, 5000), (0, 3)]
        .into_iter()
        .flat_map(|(bytes, count)| std::iter::repeat_n(bytes, count))
        .collect();
    orders_agree(&three, PackingRule::H200).unwrap();
    // All the sizes below a chunk there are, each in turn the only one.
    for granules in 1..4096 {
        orders_agree(&[granules * 512; 9], PackingRule::H200).unwrap();
    }
}

#[test]
fn orders_past_64_bits_are_refused() {
    // The largest come first; what is refused is told by the size that is kept for it.
    for (sizes, bytes) in [(vec![1 << 63, 1 << 63], 1 << 63), (vec![u64::MAX - (2 << 20) + 1, 1], 512)] {
        let refused = Orders::of(0, &sizes, PackingRule::H200).unwrap_err();
        assert_eq!(refused, PlacementError::TooLarge { bytes });
    }
}

#[test]
fn the_sizes_at_the_peak_are_known_afterwards() {
    let mut plan = Plan::h200();
    for id in 0..4 {
        plan.alloc(id, 3 * MIB, None).unwrap();
    }
    for id in 0..3 {
        plan.free(id).unwrap();
    }
    for id in 10..13 {
        plan.alloc(id, 600, None).unwrap();
    }
    plan.free(10).unwrap();
    // Four of 3 MiB, whatever lives by now.
    let orders = plan.orders().unwrap();
    assert_eq!((orders.planned_bytes, orders.arena_bytes), (16 * MIB, 12 * MIB));
}

/// What comes later fills holes of the peak's chunks: an order of all of it has to place that too.
#[test]
fn an_order_is_of_all_there_is_when_the_peak_is_fullest() {
    let of = |sizes: &[u64]| {
        let mut plan = Plan::h200();
        for (&bytes, id) in sizes.iter().zip(0..) {
            plan.alloc(id, bytes, None).unwrap();
        }
        plan
    };
    // With the first four in, the peak is there: these fit into two chunks, largest first. All five take three in any order.
    let sizes = [817_664, 817_664, 1_257_984, 1_257_984, 628_736];
    let orders = of(&sizes[..4]).orders().unwrap();
    assert_eq!((orders.best(), orders.operation), (Some((Order::LargestFirst, 2 * MIB)), Some(3)));
    let orders = of(&sizes).orders().unwrap();
    assert_eq!((orders.planned_bytes, orders.arena_bytes, orders.operation), (6 * MIB, 6 * MIB, Some(4)));
    assert_eq!(orders.best(), None);
    // Of two peaks of one height, the one in which more is live.
    let mut plan = of(&sizes[..4]);
    for id in 0..4 {
        plan.free(id).unwrap();
    }
    for id in 0..3 {
        plan.alloc(id, 1_887_436, None).unwrap();
    }
    // Both take 6 MiB. At operation 3 these are 4,151,296 live bytes, at operation 10 three of 1,887,436: 5,662,308.
    let peak = plan.summary().peak_resident;
    assert_eq!((peak.operation, peak.live_bytes, peak.frees_before), (Some(10), 5_662_308, 4));
    let orders = plan.orders().unwrap();
    assert_eq!((orders.operation, orders.frees_before, orders.best()), (Some(10), 4, None));
}

/// Four of 1 MiB fill two chunks; with every second gone, two of 1 MiB + 512 find no hole, though as many bytes are free.
#[test]
fn what_lies_in_gaps_that_frees_left_is_no_matter_of_order() {
    let mut plan = Plan::h200();
    for id in 0..4 {
        plan.alloc(id, MIB, None).unwrap();
    }
    assert_eq!(plan.summary().peak_resident.frees_before, 0);
    plan.free(1).unwrap();
    plan.free(3).unwrap();
    for id in 4..6 {
        plan.alloc(id, MIB + 512, None).unwrap();
    }
    let summary = plan.summary();
    assert_eq!((summary.peak_resident.bytes, summary.peak_resident.frees_before), (8 * MIB, 2));
    let saved = plan.orders().unwrap().best().unwrap().1;
    // The very order in which those live at the peak were allocated takes as little, where nothing went before.
    let mut afresh = Plan::h200();
    for (id, bytes) in [(0, MIB), (2, MIB), (4, MIB + 512), (5, MIB + 512)] {
        afresh.alloc(id, bytes, None).unwrap();
    }
    assert_eq!(8 * MIB - afresh.resident_bytes(), saved);
    assert_eq!(afresh.orders().unwrap().best(), None);
}

/// Sizes that came and went take no memory, and those of the peak are not forgotten.
#[test]
fn sizes_that_no_peak_needs_are_dropped() {
    let mut plan = Plan::h200();
    plan.alloc(0, 1 << 40, None).unwrap();
    plan.alloc(1, 600, None).unwrap();
    let before = plan.memory_bytes();
    plan.free(0).unwrap();
    for pages in 1..200_000 {
        plan.alloc(2, pages * 2 * MIB, None).unwrap();
        plan.free(2).unwrap();
    }
    assert!(plan.memory_bytes() - before < 1 << 20, "{} bytes", plan.memory_bytes());
    let orders = plan.orders().unwrap();
    assert_eq!((orders.operation, orders.planned_bytes), (Some(1), (1 << 40) + 2 * MIB));
    assert!(orders.orders.iter().all(|&(_, bytes)| bytes == (1 << 40) + 2 * MIB));
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn orders_take_what_placing_each_takes(
        (granularity, chunk, page) in (1..4u64, 1..40u64, 1..4u64).prop_map(|(g, chunk, page)| (g, g * chunk * page, g * page)),
        sizes in prop::collection::vec((0..200u64, 1..12usize), 0..20)
    ) {
        let rule = PackingRule::new(chunk, granularity).unwrap().with_page_bytes(page).unwrap();
        let sizes: Vec<u64> = sizes.into_iter().flat_map(|(bytes, count)| std::iter::repeat_n(bytes, count)).collect();
        orders_agree(&sizes, rule)?;
    }
}

/// Few cases, unless the environment (`PROPTEST_CASES`) asks for other than the 256 it asks for by default.
fn config(few: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { few } else { asked.cases };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

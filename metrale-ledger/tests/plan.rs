// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans against an H200's figures, a naive model, and sums done by hand.

use std::collections::BTreeMap;
use std::io::Read;

use metrale_ledger::placement::{PackingRule, Placement, PlacementError};
use metrale_ledger::plan::{Allocator, Orders, Plan, PlanError};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Free bytes of a fresh context on an H200 (driver 580.159.04) before the first operation.
const FRESH_FREE_BYTES: u64 = 149_557_477_376;

/// The device's free figure after every recorded operation is the fresh one less what the plan says.
fn holds(gz: &[u8]) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(gz).read_to_string(&mut text).unwrap();
    let mut plan = Plan::h200();
    // Of the rows with the most resident bytes, that with the most live bytes, then with the most allocations, then the first.
    let mut live = BTreeMap::new();
    let mut fullest = ((0, 0, 0), 0);
    for (i, line) in text.lines().skip(1).enumerate() {
        let cells: Vec<_> = line.split(',').collect();
        let pointer = u64::from_str_radix(cells[1].trim_start_matches("0x"), 16).unwrap();
        let step = match cells[0] {
            "allocate" => {
                let bytes = cells[2].parse().unwrap();
                live.insert(pointer, bytes);
                plan.alloc(pointer, bytes, None)
            }
            _ => {
                live.remove(&pointer);
                plan.free(pointer)
            }
        };
        let step = step.unwrap();
        assert_eq!(step.operation, i as u64);
        assert_eq!(step.resident_bytes, FRESH_FREE_BYTES - cells[3].parse::<u64>().unwrap(), "row {i}");
        let height = (step.resident_bytes, live.values().sum::<u64>(), live.len() as u64);
        if height > fullest.0 {
            fullest = (height, step.operation);
        }
    }
    let peak = plan.summary().peak_resident;
    assert_eq!((peak.bytes, peak.operation), (fullest.0.0, Some(fullest.1)));
    assert_eq!((peak.live_bytes, peak.holders[0].count), (fullest.0.1, fullest.0.2));
}

#[test]
fn random_0_is_planned_as_the_device_did_it() {
    holds(include_bytes!("data/random-0.csv.gz"));
}

#[test]
fn random_1_is_planned_as_the_device_did_it() {
    holds(include_bytes!("data/random-1.csv.gz"));
}

#[test]
fn random_3_is_planned_as_the_device_did_it() {
    holds(include_bytes!("data/random-3.csv.gz"));
}

#[test]
fn a_loader_with_staging() {
    let mut plan = Plan::h200();
    for (id, bytes, label) in [(1, 3 * MIB, "w"), (2, 1000, "w"), (3, 5 * MIB, "staging"), (4, 600, "bias")] {
        plan.alloc(id, bytes, Some(label)).unwrap();
    }
    plan.free(3).unwrap();
    plan.alloc(5, 100, None).unwrap();
    let summary = plan.summary();
    assert_eq!((summary.operations, summary.allocations, summary.frees), (6, 5, 1));
    assert_eq!(summary.requested_bytes, 8 * MIB + 1700);
    assert_eq!((summary.end_live_count, summary.end_live_bytes), (4, 3 * MIB + 1700));
    assert_eq!(summary.end_resident_bytes, 6 * MIB);
    assert_eq!((summary.peak_live.bytes, summary.peak_live.operation), (8 * MIB + 1600, Some(3)));
    // 4, 2 and 6 MiB of pages are there from operation 2 on. Operation 3 fits into the chunk, so it is fuller by 600 bytes.
    let peak = &summary.peak_resident;
    assert_eq!((peak.bytes, peak.operation, peak.live_bytes), (12 * MIB, Some(3), 8 * MIB + 1600));
    for peak in [peak, &summary.peak_live] {
        let holders: Vec<_> = peak.holders.iter().map(|h| (h.label.as_deref(), h.bytes, h.count)).collect();
        let expected =
            [(Some("staging"), 5 * MIB, 1), (Some("w"), 3 * MIB + 1000, 2), (Some("bias"), 600, 1)];
        assert_eq!(holders, expected);
    }
    let classes: Vec<_> =
        peak.classes.iter().map(|c| (c.from_bytes, c.count, c.bytes, c.rounding_bytes)).collect();
    // 1000 and 600 bytes are kept as 1024 each.
    let expected = [(512, 2, 1600, 24 + 424), (2 * MIB, 1, 3 * MIB, MIB), (4 * MIB, 1, 5 * MIB, MIB)];
    assert_eq!(classes, expected);
    assert_eq!(peak.hole_bytes, 2 * MIB - 2048);
    assert_eq!(summary.arena_resident_bytes, 10 * MIB, "8 MiB and 2048 bytes");
    assert!(summary.fits(12 * MIB) && !summary.fits(12 * MIB - 1));
    assert!(
        summary
            .to_string()
            .contains("peak resident: 12.00 MiB (8.00 MiB live, 12.00 MiB resident) at operation 3")
    );
    assert!(
        summary.to_string().ends_with("one arena would take at least 10.00 MiB, and save at most 2.00 MiB\n")
    );
}

#[test]
fn bert_base_in_one_arena_is_within_4_mib_of_its_bytes() {
    // The tensors of bert-base in bf16: 30522 x 768 word, 512 position, 2 type embeddings, 12 layers, a pooler.
    let h = 768;
    let layer =
        [[h * h, h].as_slice(); 4].concat().into_iter().chain([h, h, 4 * h * h, 4 * h, 4 * h * h, h, h, h]);
    let mut sizes = vec![30_522 * h, 512 * h, 2 * h, h, h];
    sizes.extend((0..12).flat_map(|_| layer.clone()));
    sizes.extend([h * h, h]);
    let mut plan = Plan::h200();
    for (id, elements) in sizes.iter().enumerate() {
        plan.alloc(id as u64, 2 * elements, None).unwrap();
    }
    let summary = plan.summary();
    assert_eq!(summary.end_live_bytes, 2 * 109_482_240);
    assert!(summary.arena_resident_bytes - summary.end_live_bytes < 4 * MIB);
    assert!(summary.peak_resident.bytes > summary.arena_resident_bytes);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut plan = Plan::h200();
    plan.alloc(7, 512, None).unwrap();
    assert_eq!(plan.alloc(7, 1, None), Err(PlanError::AlreadyLive { id: 7, bytes: 512 }));
    assert_eq!(plan.free(8), Err(PlanError::NotLive { id: 8 }));
    assert_eq!(
        plan.alloc(9, u64::MAX, None),
        Err(PlanError::Placement(PlacementError::TooLarge { bytes: u64::MAX }))
    );
    assert_eq!((plan.live_bytes(), plan.live_count(), plan.resident_bytes()), (512, 1, 2 * MIB));
    assert_eq!(plan.alloc(9, 0, None).unwrap().operation, 4, "refused ones are numbered too");
    plan.free(9).unwrap();
    assert_eq!(plan.free(9), Err(PlanError::NotLive { id: 9 }));
}

#[test]
fn the_rule_is_a_parameter() {
    let mut plan = Plan::new(PackingRule::new(64 << 10, 4096).unwrap());
    plan.alloc(1, 1, None).unwrap();
    plan.alloc(2, 100_000, None).unwrap();
    assert_eq!(plan.resident_bytes(), (64 << 10) * 3);
    assert_eq!(plan.summary().arena_resident_bytes, 128 << 10, "4096 and 102400");
}

#[test]
fn large_sizes_are_rounded_up_to_pages_that_may_be_smaller_than_chunks() {
    let rule = PackingRule::new(64 << 10, 4096).unwrap().with_page_bytes(16 << 10).unwrap();
    let mut plan = Plan::new(rule);
    plan.alloc(1, 1, None).unwrap();
    plan.alloc(2, 100_000, None).unwrap();
    assert_eq!(plan.resident_bytes(), (64 << 10) + 7 * (16 << 10), "100000 is 6.1 pages");
    assert_eq!(plan.summary().arena_resident_bytes, 7 * (16 << 10), "4096 and 102400");
    assert_eq!(plan.summary().rule(), rule);
    plan.free(1).unwrap();
    assert_eq!(plan.resident_bytes(), 7 * (16 << 10));
    let mut placement = Placement::new(rule);
    for (bytes, pages, new_pages) in [(1, 4, 4), (4096, 4, 0), (100_000, 7, 7), (65_536, 4, 4)] {
        assert_eq!(placement.would_take(bytes), Ok(new_pages));
        let placed = placement.alloc(bytes).unwrap();
        assert_eq!((placed.pages, placed.new_pages), (pages, new_pages), "{bytes}");
    }
    // 4096, 102400 and 8192: 7 pages, which no whole chunks are.
    assert_eq!(Orders::of(0, &[4096, 100_000, 5000], rule).unwrap().arena_bytes, 7 * (16 << 10));
    for (chunk, granularity, page) in
        [(0, 1, 1), (64, 0, 64), (64, 4, 0), (64, 4, 128), (64, 4, 48), (64, 8, 4), (64, 5, 64)]
    {
        let wrong = PackingRule::new(chunk, granularity).and_then(|rule| rule.with_page_bytes(page));
        assert!(
            wrong.is_err_and(|error| error.to_string().contains("each must be above 0")),
            "{chunk} {granularity} {page}"
        );
    }
}

#[test]
fn a_million_live_take_under_200_bytes_each() {
    let mut plan = Plan::h200();
    let mut most = 0.0f64;
    for id in 0..1_100_000u64 {
        plan.alloc(id * 512, 1 + id.wrapping_mul(0x9e37_79b9) % 4096, None).unwrap();
        if id > 50_000 {
            most = most.max(plan.memory_bytes() as f64 / (id + 1) as f64);
        }
    }
    assert!(most < 200.0, "{most} bytes a live allocation");
    // Come and go for a while: what was does not count.
    for id in 0..400_000u64 {
        plan.free(id * 512).unwrap();
        plan.alloc((1_100_000 + id) * 512, 1 + id.wrapping_mul(0x9e37_79b9) % (3 * MIB), None).unwrap();
    }
    let most = plan.memory_bytes() as f64 / plan.live_count() as f64;
    assert!(most < 200.0, "{most} bytes a live allocation");
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn the_plan_agrees_with_counting_anew(
        ops in prop::collection::vec((0..12u64, prop_oneof![0..3000u64, 0..3 * MIB], 0..3usize), 1..120)
    ) {
        let mut plan = Plan::h200();
        let mut device = Placement::h200();
        let mut live: BTreeMap<u64, (u64, Option<_>, usize)> = BTreeMap::new();
        let labels = [None, Some("a"), Some("b")];
        // Height, operation, frees before and what is live, at the fullest moment of live and of resident bytes.
        let mut at_peaks = [((0, 0, 0), None, 0, BTreeMap::new()), ((0, 0, 0), None, 0, BTreeMap::new())];
        let mut frees = 0;
        for (i, (id, bytes, label)) in ops.into_iter().enumerate() {
            // An id that lives is freed, one that does not is allocated.
            match live.remove(&id) {
                Some((_, place, _)) => {
                    if let Some(place) = place {
                        device.free(place).unwrap();
                    }
                    plan.free(id).unwrap();
                    frees += 1;
                }
                None => {
                    let place = (bytes > 0).then(|| device.alloc(bytes).unwrap().id);
                    live.insert(id, (bytes, place, label));
                    plan.alloc(id, bytes, labels[label]).unwrap();
                }
            }
            prop_assert_eq!(plan.resident_bytes(), device.resident_bytes());
            let live_bytes: u64 = live.values().map(|l| l.0).sum();
            prop_assert_eq!(plan.live_bytes(), live_bytes);
            let (resident_bytes, count) = (device.resident_bytes(), live.len());
            let heights = [(live_bytes, resident_bytes, count), (resident_bytes, live_bytes, count)];
            for (peak, height) in at_peaks.iter_mut().zip(heights) {
                if height > peak.0 {
                    *peak = (height, Some(i as u64), frees, live.clone());
                }
            }
        }
        let summary = plan.summary();
        for (peak, (height, operation, frees, live)) in [&summary.peak_live, &summary.peak_resident].into_iter().zip(&at_peaks) {
            prop_assert_eq!((peak.bytes, peak.operation, peak.frees_before), (height.0, *operation, *frees));
            prop_assert_eq!(peak.live_bytes, live.values().map(|l| l.0).sum::<u64>());
            prop_assert_eq!(peak.holders.iter().map(|h| h.count).sum::<u64>(), live.len() as u64);
            for holder in &peak.holders {
                let own = live.values().filter(|l| labels[l.2] == holder.label.as_deref());
                prop_assert_eq!(own.map(|l| l.0).sum::<u64>(), holder.bytes);
            }
            prop_assert_eq!(peak.classes.iter().map(|c| c.count).sum::<u64>(), live.len() as u64);
            for class in &peak.classes {
                let own = live.values().filter(|l| class.holds(l.0));
                prop_assert_eq!(own.map(|l| l.0).sum::<u64>(), class.bytes);
            }
            let kept = live.values().map(|l| l.0.checked_next_multiple_of(if l.0 < 2 * MIB - 511 { 512 } else { 2 * MIB }).unwrap());
            prop_assert_eq!(peak.hole_bytes, peak.resident_bytes - kept.sum::<u64>());
        }
        let (height, operation, frees_before, live) = &at_peaks[1];
        let sizes: Vec<u64> = live.values().map(|l| l.0).collect();
        let orders = plan.orders().unwrap();
        prop_assert_eq!((orders.operation, orders.frees_before), (*operation, *frees_before));
        let of_sizes = Orders::of(height.0, &sizes, PackingRule::H200).unwrap();
        prop_assert_eq!((orders.planned_bytes, orders.arena_bytes), (height.0, of_sizes.arena_bytes));
        prop_assert_eq!(orders.orders, of_sizes.orders);
    }
}

/// What fills the page that the first allocation took belongs to the peak: three of 512, 1,000,000 and 1,000,000 bytes are in
/// one chunk, which is resident from the first on.
#[test]
fn what_fills_the_same_pages_later_belongs_to_the_peak() {
    let mut plan = Plan::h200();
    for (id, bytes, label) in
        [(1, 512, "setup"), (2, 1_000_000, "train"), (3, 1_000_000, "train"), (4, 0, "empty")]
    {
        plan.alloc(id, bytes, Some(label)).unwrap();
    }
    plan.free(2).unwrap();
    // As high as before, but not higher.
    plan.alloc(2, 1_000_000, Some("later")).unwrap();
    let summary = plan.summary();
    for peak in [&summary.peak_resident, &summary.peak_live] {
        assert_eq!((peak.operation, peak.frees_before), (Some(3), 0));
        let holders: Vec<_> = peak.holders.iter().map(|h| (h.label.as_deref(), h.bytes, h.count)).collect();
        let expected = [(Some("train"), 2_000_000, 2), (Some("setup"), 512, 1), (Some("empty"), 0, 1)];
        assert_eq!(holders, expected, "one of no bytes is there too");
    }
    assert_eq!(plan.orders().unwrap().operation, Some(3));
}

/// A handle's pages are taken when it is created and given back when it is released and no longer mapped
/// (measured: creating takes its bytes at once, mapping nothing; a released handle's memory goes with its last mapping).
#[test]
fn created_memory_goes_with_its_handle_and_its_last_mapping() {
    let mut plan = Plan::h200();
    plan.alloc(1, 512, Some("a")).unwrap();
    assert_eq!(plan.create(7, 3 * MIB, Some("segment")).unwrap().resident_bytes, 2 * MIB + 4 * MIB);
    assert_eq!(plan.create(7, MIB, None), Err(PlanError::AlreadyLive { id: 7, bytes: 3 * MIB }));
    plan.map(0x1000_0000, 7).unwrap();
    plan.map(0x2000_0000, 7).unwrap();
    plan.release(7).unwrap();
    assert_eq!((plan.resident_bytes(), plan.live_count()), (6 * MIB, 2), "it is still mapped");
    assert_eq!(plan.release(7), Err(PlanError::UnknownHandle { handle: 7 }));
    assert_eq!(plan.map(0x3000_0000, 7), Err(PlanError::UnknownHandle { handle: 7 }));
    // The driver may use a released handle's number again.
    plan.create(7, 2 * MIB, None).unwrap();
    assert_eq!(plan.unmap(0x1000_0000, 0).unwrap().resident_bytes, 8 * MIB);
    assert_eq!(plan.unmap(0x1000_0000, 0), Err(PlanError::NotMapped { address: 0x1000_0000 }));
    assert_eq!(
        plan.unmap(0x1fff_ffff, 2).unwrap().resident_bytes,
        4 * MIB,
        "a range of which one mapping begins"
    );
    assert_eq!(plan.release(7).unwrap().resident_bytes, 2 * MIB);
    let peak = plan.summary().peak_resident;
    assert_eq!((peak.bytes, peak.live_bytes, peak.hole_bytes), (8 * MIB, 5 * MIB + 512, 2 * MIB - 512));
    // Created memory takes the same in any order; a chunk for 512 bytes comes to it.
    assert!(plan.orders().unwrap().orders.iter().all(|&(_, bytes)| bytes == 8 * MIB));
}

/// Where each allocation is created by itself, nothing shares a page.
#[test]
fn a_plan_from_virtual_memory_rounds_each_allocation_to_whole_pages() {
    let mut plan = Plan::h200().allocating_from(Allocator::VirtualMemory);
    for (id, bytes, resident) in [(1, 1, 2 * MIB), (2, 2 * MIB, 4 * MIB), (3, 2 * MIB + 1, 8 * MIB)] {
        assert_eq!(plan.alloc(id, bytes, None).unwrap().resident_bytes, resident);
    }
    plan.free(2).unwrap();
    assert_eq!((plan.resident_bytes(), plan.live_bytes()), (6 * MIB, 2 * MIB + 2));
    assert_eq!(plan.summary().arena_resident_bytes, 6 * MIB, "512 and 2 MiB and 2 MiB + 512");
    let refused = plan.alloc(9, u64::MAX, None);
    assert_eq!(refused, Err(PlanError::Placement(PlacementError::TooLarge { bytes: u64::MAX })));
    assert_eq!(plan.resident_bytes(), 6 * MIB);
}

/// Few cases, unless the environment (`PROPTEST_CASES`) asks for other than the 256 it asks for by default.
fn config(few: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { few } else { asked.cases };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

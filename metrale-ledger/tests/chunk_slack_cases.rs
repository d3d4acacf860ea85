// SPDX-License-Identifier: MIT OR Apache-2.0
//! Situations people reported with the driver's 2 MiB chunks, as the ledger answers them.
//!
//! Not here, since no address and size can tell them: stream-ordered pools (h10) and mapped physical handles (h11) take
//! their memory by other calls than the one the ledger records; page sizes of integrated (h14) and older (h16) devices
//! are not measured, so the 2 MiB rule is not claimed for them.

use std::panic::Location;

use metrale_ledger::placement::PackingRule;
use metrale_ledger::{ForgetError, Ledger, SMALL_ALLOC_CHUNK, chunk_slack};

const C: u64 = SMALL_ALLOC_CHUNK;

fn ledger_of(allocs: &[(u64, usize)]) -> Ledger {
    let ledger = Ledger::new();
    for &(addr, bytes) in allocs {
        assert!(ledger.record(addr, bytes, Location::caller()).misuse.is_none());
    }
    let pure = chunk_slack(allocs.iter().copied(), C);
    assert_eq!(ledger.chunk_slack_bytes(), pure, "kept per operation and counted anew");
    ledger
}

/// Eight live allocations of a published log. The five small ones sum to less than a chunk, but the driver had put them
/// into three. What is kept beyond the ledger, 9618032 bytes, is tails of large ones as well; `chunk_slack` is defined
/// over the small ones, so it is a part of that.
#[test]
fn h01_addresses_tell_what_sums_cannot() {
    let ledger = ledger_of(&[
        (0x7f61_3be0_0000, 720_984),
        (0x7f61_3ee0_0000, 5_056),
        (0x7f61_3f00_0000, 101_376),
        (0x7f61_0c00_0000, 23_246_208),
        (0x7f61_0a00_0000, 23_246_176),
        (0x7f61_0b80_0000, 5_811_544),
        (0x7f61_3ee0_1400, 5_120),
        (0x7f61_3f01_8c00, 160_064),
    ]);
    assert_eq!(ledger.live_bytes(), 53_296_528);
    assert_eq!(ledger.resident_bytes(), 30 * C as usize);
    assert_eq!(ledger.slack_bytes(), 9_618_032);
    assert_eq!(ledger.chunk_slack_bytes(), 3 * C as usize - 992_600);
}

/// Neighbours stand 512-byte granules apart, with no header between them.
#[test]
fn h02_neighbours_stand_granules_apart() {
    assert_eq!(PackingRule::H200.reserved_bytes(5_056), Ok(0x1400));
    assert_eq!(PackingRule::H200.reserved_bytes(101_376), Ok(0x18c00));
}

#[test]
fn h04_half_of_the_chunk_is_rounding() {
    let allocs: Vec<_> = (0..4096).map(|i| (C + i * 512, 256)).collect();
    let ledger = ledger_of(&allocs);
    assert_eq!((ledger.live_bytes(), ledger.resident_bytes()), (1_048_576, C as usize));
    assert_eq!((ledger.chunk_slack_bytes(), ledger.slack_bytes()), (1_048_576, 1_048_576));
}

#[test]
fn h05_exactly_two_mib_is_not_small() {
    let ledger = ledger_of(&[(3 * C, 2_097_152)]);
    assert_eq!(
        (ledger.resident_bytes(), ledger.chunk_slack_bytes(), ledger.slack_bytes()),
        (C as usize, 0, 0)
    );
}

#[test]
fn h07_two_blocks_of_a_mib_and_a_half_do_not_fit_one_chunk() {
    let ledger = ledger_of(&[(C, 1_572_864), (2 * C, 1_572_864)]);
    assert_eq!(ledger.chunk_slack_bytes(), 1_048_576);
    assert_eq!(ledger.resident_bytes(), 2 * C as usize);
}

#[test]
fn h08_slack_rises_as_allocations_are_freed() {
    let allocs: Vec<_> = (0..1000u64).map(|i| ((100 + i / 25) * C + (i % 25) * 4096, 4096)).collect();
    let ledger = ledger_of(&allocs);
    let before = ledger.slack_bytes();
    for (addr, _) in allocs.iter().filter(|(addr, _)| addr % C != 0) {
        ledger.forget(*addr).unwrap();
    }
    assert_eq!((ledger.live_bytes(), ledger.resident_bytes()), (163_840, 40 * C as usize));
    assert_eq!((ledger.chunk_slack_bytes(), ledger.slack_bytes()), (83_722_240, 83_722_240));
    assert!(ledger.slack_bytes() > before);
}

/// A wrapper that aligns hands out an inner pointer and frees that: told with the base, not as unknown.
#[test]
fn h13_an_inner_pointer_is_not_unknown() {
    let ledger = ledger_of(&[(C, 8192)]);
    assert!(
        matches!(ledger.try_forget(C + 256), Err(ForgetError::Interior { owner, .. }) if owner.addr == C)
    );
}

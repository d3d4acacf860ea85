// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chunk slack as a function of addresses and sizes.

use metrale_ledger::{SMALL_ALLOC_CHUNK as C, chunk_slack};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

#[test]
fn chunk_slack_gives_the_worked_values() {
    let slack = |allocs: &[(u64, usize)]| chunk_slack(allocs.iter().copied(), C);
    assert_eq!(slack(&[(7 * C, 512 * KIB), (7 * C + (1 << 20), 256 * KIB)]), 1280 * KIB);
    assert_eq!(
        slack(&[(3 * C, MIB), (5 * C + 4096, 4 * KIB), (8 * C - C / 4, MIB)]),
        8 * MIB - (2 * MIB + 4 * KIB)
    );
    assert_eq!(slack(&[(30 * C, 3 * MIB), (32 * C, 4 * KIB)]), 2 * MIB - 4 * KIB);
    assert_eq!(slack(&[]), 0);
}

#[test]
fn chunk_slack_answers_hostile_input() {
    assert_eq!(chunk_slack([(1, 1)].into_iter(), 0), 0);
    assert_eq!(chunk_slack([(1, 0), (u64::MAX, 0)].into_iter(), C), 0);
    assert_eq!(chunk_slack([(u64::MAX, 1)].into_iter(), C), C as usize - 1);
    // Ends with the address space instead of starting over at 0.
    assert_eq!(chunk_slack([(u64::MAX - 3, 4096)].into_iter(), C), C as usize - 4096);
    assert_eq!(chunk_slack([(u64::MAX, usize::MAX), (0, usize::MAX)].into_iter(), C), 0);
    // Two allocations said to be at one place cannot give less than nothing.
    assert_eq!(chunk_slack([(0, 2 * MIB - 1), (0, 2 * MIB - 1)].into_iter(), C), 0);
    // Chunks of one byte hold nothing smaller; of all 64 bits, one holds everything below it.
    assert_eq!(chunk_slack([(5, 1), (9, 2)].into_iter(), 1), 0);
    assert_eq!(chunk_slack([(5, 1), (9, 2)].into_iter(), u64::MAX), u64::MAX as usize - 3);
}

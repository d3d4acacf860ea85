// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool against a naive model of its rule.

mod naive;

use metrale_ledger::placement::PlacementError;
use metrale_ledger::placement::pool::{Pool, PoolEvent, PoolReuse, PoolRule, PoolWork};
use proptest::prelude::*;

use naive::{Event, Naive};

const GRANULE: u64 = 2;
const PIECE: u64 = 8;
const STREAMS: u64 = 3;

#[derive(Clone, Debug)]
enum Op {
    Alloc { stream: u64, bytes: u64, available: Option<u64> },
    Free { stream: u64, which: usize },
    FreeSynchronously { which: usize },
    Synchronize { stream: u64 },
    SynchronizeAll,
    Record { stream: u64 },
    Wait { stream: u64, which: usize },
    SynchronizeEvent { which: usize },
    BeginWork { stream: u64 },
    FinishWork { which: usize },
    Threshold { bytes: u64 },
    Trim { bytes: u64 },
    Reuse { follow_events: bool, opportunistic: bool },
    ResetHigh,
}

fn op() -> impl Strategy<Value = Op> {
    let stream = 0..STREAMS;
    let which = 0..64usize;
    let amount = prop_oneof![0..120u64, Just(u64::MAX)];
    prop_oneof![
        12 => (stream.clone(), 1..40u64).prop_map(|(stream, bytes)| Op::Alloc { stream, bytes, available: None }),
        1 => (stream.clone(), 1..80u64, 0..60u64)
            .prop_map(|(stream, bytes, left)| Op::Alloc { stream, bytes, available: Some(left) }),
        11 => (stream.clone(), which.clone()).prop_map(|(stream, which)| Op::Free { stream, which }),
        1 => which.clone().prop_map(|which| Op::FreeSynchronously { which }),
        2 => stream.clone().prop_map(|stream| Op::Synchronize { stream }),
        1 => Just(Op::SynchronizeAll),
        2 => stream.clone().prop_map(|stream| Op::Record { stream }),
        2 => (stream.clone(), which.clone()).prop_map(|(stream, which)| Op::Wait { stream, which }),
        1 => which.clone().prop_map(|which| Op::SynchronizeEvent { which }),
        2 => stream.prop_map(|stream| Op::BeginWork { stream }),
        2 => which.prop_map(|which| Op::FinishWork { which }),
        1 => amount.clone().prop_map(|bytes| Op::Threshold { bytes }),
        1 => amount.prop_map(|bytes| Op::Trim { bytes }),
        1 => any::<(bool, bool)>()
            .prop_map(|(follow_events, opportunistic)| Op::Reuse { follow_events, opportunistic }),
        1 => Just(Op::ResetHigh),
    ]
}

fn agree(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut pool = Pool::new(PoolRule::new(PIECE, GRANULE).unwrap());
    let mut naive = Naive::new();
    let mut live = Vec::new();
    let mut events: Vec<(PoolEvent, Event)> = Vec::new();
    let mut works: Vec<PoolWork> = Vec::new();
    for op in ops {
        match op {
            Op::Alloc { stream, bytes, available } => {
                let available = available.unwrap_or(u64::MAX);
                let take = pool.would_take(stream, bytes).unwrap();
                let placed = pool.alloc_within(stream, bytes, available);
                match naive.alloc(stream, bytes, available) {
                    Some((start, new_bytes)) => {
                        let placed = placed.unwrap();
                        let got = (placed.offset_bytes, placed.new_bytes, take);
                        prop_assert_eq!(got, (start as u64 * GRANULE, new_bytes, new_bytes));
                        live.push((placed.id, start, bytes));
                        naive.used += bytes;
                    }
                    None => {
                        let refused = PlacementError::OutOfMemory {
                            bytes,
                            new_bytes: take,
                            available_bytes: available,
                        };
                        prop_assert_eq!(placed, Err(refused));
                    }
                }
            }
            Op::Free { stream, which } if !live.is_empty() => {
                let (id, start, bytes) = live.swap_remove(which % live.len());
                pool.free(stream, id).unwrap();
                naive.free(stream, start, bytes.div_ceil(GRANULE) as usize);
                naive.used -= bytes;
            }
            Op::FreeSynchronously { which } if !live.is_empty() => {
                let (id, start, bytes) = live.swap_remove(which % live.len());
                pool.free_synchronously(id).unwrap();
                naive.settle(|_, _| u64::MAX);
                naive.taken[start..start + bytes.div_ceil(GRANULE) as usize].fill(false);
                naive.list_holes();
                naive.shrink(naive.threshold / PIECE);
            }
            Op::Synchronize { stream } => {
                pool.synchronize(stream);
                let event = naive.record(stream);
                naive.synchronize(&event);
            }
            Op::SynchronizeAll => {
                pool.synchronize_all();
                let any = naive.settle(|_, _| u64::MAX);
                naive.after_synchronize(any);
            }
            Op::Record { stream } => events.push((pool.record(stream), naive.record(stream))),
            Op::Wait { stream, which } if !events.is_empty() => {
                let (event, same) = &events[which % events.len()];
                pool.wait(stream, event);
                naive.wait(stream, same);
            }
            Op::SynchronizeEvent { which } if !events.is_empty() => {
                let (event, same) = &events[which % events.len()];
                pool.synchronize_event(event);
                naive.synchronize(same);
            }
            Op::BeginWork { stream } => {
                works.push(pool.begin_work(stream));
                naive.begin_work(stream);
            }
            Op::FinishWork { which } if !works.is_empty() => {
                let which = which % works.len();
                pool.finish_work(works[which]);
                naive.finish_work(which);
            }
            Op::Threshold { bytes } => {
                pool.set_release_threshold(bytes);
                (naive.threshold, naive.threshold_is_new) = (bytes, true);
            }
            Op::Trim { bytes } => {
                pool.trim_to(bytes);
                naive.shrink(bytes.div_ceil(PIECE));
            }
            Op::Reuse { follow_events, opportunistic } => {
                naive.reuse = PoolReuse { follow_events, opportunistic };
                pool.set_reuse(naive.reuse);
            }
            Op::ResetHigh => {
                pool.reset_used_high();
                pool.reset_reserved_high();
                (naive.used_high, naive.reserved_high) = (0, 0);
            }
            _ => {}
        }
        naive.used_high = naive.used_high.max(naive.used);
        naive.reserved_high = naive.reserved_high.max(naive.reserved());
        prop_assert_eq!((pool.used_bytes(), pool.used_high_bytes()), (naive.used, naive.used_high));
        prop_assert_eq!(
            (pool.reserved_bytes(), pool.reserved_high_bytes()),
            (naive.reserved(), naive.reserved_high)
        );
        prop_assert_eq!(pool.live_count(), live.len());
    }
    Ok(())
}

/// Few cases, unless the environment (`PROPTEST_CASES`) asks for other than the 256 it asks for by default.
fn config(few: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { few } else { asked.cases };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

proptest! {
    #![proptest_config(config(192))]

    #[test]
    fn agrees_with_the_naive_model(ops in prop::collection::vec(op(), 1..200)) {
        agree(ops)?;
    }
}

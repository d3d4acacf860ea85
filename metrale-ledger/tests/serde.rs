// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots and what came out of a plan survive JSON.
#![cfg(feature = "serde")]

use std::panic::Location;

use metrale_ledger::plan::{Orders, Plan, Summary};
use metrale_ledger::{Ledger, Snapshot, SnapshotDiff};

#[test]
fn a_snapshot_and_a_diff_read_back_as_they_were() {
    let ledger = Ledger::new();
    let empty = ledger.snapshot();
    let _scope = ledger.scope("embed");
    ledger.record(0x7f00_0000_0000, 4096, Location::caller());
    ledger.forget(1);
    let snapshot = ledger.snapshot();
    let json = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(json["totals"]["live_bytes"], 4096);
    assert_eq!(json["totals"]["misuse"]["foreign_frees"], 1);
    assert_eq!(json["groups"][0]["scope"], "embed");
    assert_eq!(json["groups"][0]["kind"], "device");
    assert_eq!(serde_json::from_value::<Snapshot>(json).unwrap(), snapshot);

    let diff = snapshot.diff(&empty);
    let json = serde_json::to_string(&diff).unwrap();
    assert_eq!(serde_json::from_str::<SnapshotDiff>(&json).unwrap(), diff);
}

#[test]
fn what_came_out_of_a_plan_reads_back_as_it_was() {
    let mut plan = Plan::h200();
    plan.alloc(1, 1000, Some("embed")).unwrap();
    plan.alloc(2, 3 << 20, None).unwrap();
    plan.free(1).unwrap();
    let (summary, orders) = (plan.summary(), plan.orders().unwrap());
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["peak_resident"]["bytes"], 6 << 20);
    assert_eq!(json["peak_resident"]["holders"][1]["label"], "embed");
    assert_eq!(serde_json::from_value::<Summary>(json).unwrap(), summary);
    let json = serde_json::to_value(&orders).unwrap();
    assert_eq!(json["orders"][0], serde_json::json!(["largest_first", 6 << 20]));
    assert_eq!(serde_json::from_value::<Orders>(json).unwrap(), orders);
}

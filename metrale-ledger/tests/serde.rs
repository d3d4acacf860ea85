// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots survive JSON.
#![cfg(feature = "serde")]

use std::panic::Location;

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

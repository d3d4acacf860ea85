// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale replay` from its arguments to its answer: the ledger and the driver agree after every row.

mod common;

use std::fs;

use common::{FRESH_FREE_BYTES, metrale, metrale_on, recorded_log, recorded_residency, table};
use metrale_cli::Exit;

/// In the program: a machine with a GPU has no tree of sources.
const RECORDED: [(&str, &[u8]); 3] = [
    ("random-0.csv.gz", include_bytes!("../../metrale-ledger/tests/data/random-0.csv.gz")),
    ("random-1.csv.gz", include_bytes!("../../metrale-ledger/tests/data/random-1.csv.gz")),
    ("random-3.csv.gz", include_bytes!("../../metrale-ledger/tests/data/random-3.csv.gz")),
];

fn replays_with_the_figures_of_the_h200(driver: &str) {
    let folder = tempfile::tempdir().unwrap();
    for (name, packed) in RECORDED {
        let log = folder.path().join(name);
        std::fs::write(&log, packed).unwrap();
        let out = folder.path().join(format!("{name}.per-op"));
        let more = ["--driver", driver, "--json", "--per-op", out.to_str().unwrap()];
        let ended = metrale_on("replay", &log, &more);
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        let json = ended.json();
        assert_eq!(json["unexplained_rows"], 0, "{name}");
        assert_eq!(
            (&json["unexplained_bytes"], &json["swept_allocations"]),
            (&0.into(), &0.into()),
            "{name}"
        );
        let (header, rows) = table(&out);
        assert_eq!(header, "op,live_bytes,resident_bytes,driver_free_bytes");
        let recorded = recorded_residency(&log);
        assert_eq!(rows.len(), recorded.len(), "{name}");
        // The recording began with this much free; the device here may have begun with less.
        let fresh = rows[0][2] + rows[0][3];
        for (op, (row, resident_bytes)) in rows.iter().zip(&recorded).enumerate() {
            assert_eq!(
                (row[0], row[2], fresh - row[3]),
                (op as u64, *resident_bytes, *resident_bytes),
                "{name}"
            );
        }
        if driver == "sim" {
            assert_eq!(fresh, FRESH_FREE_BYTES);
        }
        let peak = rows.iter().max_by(|a, b| a[1].cmp(&b[1]).then(b[0].cmp(&a[0]))).unwrap();
        assert_eq!(json["peak"]["operation"], peak[0], "{name}");
        assert_eq!(json["peak"]["line"], peak[0] + 2, "{name}: the header is line 1");
        assert_eq!(
            (&json["peak"]["live_bytes"], &json["peak"]["resident_bytes"]),
            (&peak[1].into(), &peak[2].into())
        );
        assert_eq!(json["peak_resident_bytes"], *recorded.iter().max().unwrap(), "{name}");
        assert_eq!(json["end"]["live_bytes"], rows.last().unwrap()[1], "{name}");
        assert_eq!(json["operations"], rows.len(), "{name}");
    }
}

#[test]
fn recorded_logs_on_the_software_h200() {
    replays_with_the_figures_of_the_h200("sim");
}

mod recorded_logs_on_the_gpu {
    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        super::replays_with_the_figures_of_the_h200("system");
    }
}

#[test]
fn the_text_has_both_reports_and_the_sum() {
    let ended = metrale_on("replay", &recorded_log("random-1.csv.gz"), &["--driver", "sim"]);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    for part in [
        "random-1.csv.gz replayed on device 0",
        "5098 operations",
        "\npeak, at operation ",
        "\nend, at operation 5097 (line 5099):",
        "driver used",
        "unexplained",
        "sweep found 0",
    ] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }
    assert!(!ended.out.contains("after every row"), "nobody asked the driver after each");
    assert_eq!(ended.out.matches("device allocations:").count(), 2);
}

#[test]
fn odd_rows_are_said_with_their_lines_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (log, out) = (folder.path().join("log.csv"), folder.path().join("ops.csv"));
    fs::write(
        &log,
        "Action,Pointer,Size,Stream,Location\n\
         allocate,0x1000,3000000,0,model.py:7\n\
         free,0x9000,1,0,\n\
         allocate,0x1000,100,0,model.py:9\n\
         free,0x1000,200,1,\n\
         free,0x1000,100,0,\n\
         free,0,0,0,\n\
         allocate,0x2000,0,0,\n\
         allocate failure,,8589934592000,0,\n\
         free,0x2000,0,0,\n\
         allocate,0x3000,5,0,model.py:9\n",
    )
    .unwrap();
    let more = ["--driver", "sim", "--json", "--per-op", out.to_str().unwrap()];
    let ended = metrale_on("replay", &log, &more);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    for part in [
        "line 3: 0x9000 is freed, but this log does not allocate it",
        "line 4: 0x1000 is allocated with 100 bytes, but is already live (3000000 bytes, from line 2)",
        "line 5: 0x1000 is freed as 200 bytes and was allocated with 100",
        "line 6: 0x1000 is freed, which line 5 has done before",
    ] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    let json = ended.json();
    let findings =
        serde_json::json!({"unknown_free": 1, "already_live": 1, "size_differs": 1, "double_free": 1});
    assert_eq!(json["findings"], findings);
    let lines = serde_json::json!({"unknown_free": [3], "already_live": [4], "size_differs": [5], "double_free": [6]});
    assert_eq!(json["finding_lines"], lines);
    assert_eq!(json["nothing_rows"], 1);
    assert_eq!((&json["failures_in_log"], &json["unexplained_rows"]), (&1.into(), &0.into()));
    assert_eq!((&json["peak"]["line"], &json["peak"]["live_bytes"]), (&2.into(), &3_000_000.into()));
    assert_eq!(json["peak"]["scopes"][0]["scope"], "model.py:7");
    assert_eq!(
        (&json["end"]["scopes"][0]["scope"], &json["end"]["live_bytes"]),
        (&"model.py:9".into(), &5.into())
    );
    assert_eq!(json["end"]["scopes"].as_array().unwrap().len(), 1, "labels do not nest");
    let live: Vec<u64> = table(&out).1.iter().map(|row| row[1]).collect();
    assert_eq!(live, [3_000_000, 3_000_000, 100, 0, 0, 0, 0, 0, 0, 5]);

    let text = metrale_on("replay", &log, &["--driver", "sim"]);
    for part in ["1 x double free", "1 x unknown free", "1 x allocation that failed then"] {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
}

#[test]
fn rows_that_make_no_sense_end_it_before_anything_is_done_or_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (log, out) = (folder.path().join("log.csv"), folder.path().join("ops.csv"));
    fs::write(&log, "Action,Pointer,Size\nallocate,1,5\nsteal,1,5\nfree,1,5\n").unwrap();
    let more = ["--driver", "sim", "--json", "--per-op", out.to_str().unwrap()];
    let ended = metrale_on("replay", &log, &more);
    assert_eq!(ended.exit, Exit::BadInput);
    assert_eq!(ended.json()["error"]["kind"], "bad_input");
    assert!(ended.err.contains("line 3: the action \"steal\""), "{}", ended.err);
    assert!(!out.exists());

    let ended = metrale_on("replay", &log, &[&more[..], &["--lenient"]].concat());
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    assert!(ended.err.contains("passed over: line 3"), "{}", ended.err);
    assert_eq!((&ended.json()["skipped_rows"], &ended.json()["operations"]), (&1.into(), &2.into()));
}

#[test]
fn a_log_that_does_not_fit_ends_with_3_and_the_whole_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (log, out) = (folder.path().join("log.csv"), folder.path().join("ops.csv"));
    fs::write(
        &log,
        "Action,Pointer,Size,Location\n\
         allocate,1,100000000000,cache.py:1\n\
         allocate,2,4096,cache.py:2\n\
         free,2,4096,\n\
         allocate,3,80000000000,batch.py:5\n\
         allocate,4,4096,batch.py:6\n",
    )
    .unwrap();
    let ended = metrale_on("replay", &log, &["--driver", "sim", "--json", "--per-op", out.to_str().unwrap()]);
    assert_eq!(ended.exit, Exit::OutOfMemory, "{}", ended.err);
    let json = ended.json();
    assert_eq!(
        (&json["error"]["kind"], &json["error"]["requested_bytes"]),
        (&"out_of_memory".into(), &80_000_000_000_u64.into())
    );
    let message = json["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("line 5: allocating 80000000000 bytes") && message.contains("cache.py:1"),
        "{message}"
    );
    assert!(ended.err.contains(message));
    assert_eq!((&json["operations"], &json["end"]["live_bytes"]), (&3.into(), &100_000_000_000_u64.into()));
    assert_eq!((&json["swept_allocations"], &json["unexplained_bytes"]), (&0.into(), &0.into()));
    assert_eq!(table(&out).1.len(), 3, "what was done is in the table");
    let text = metrale_on("replay", &log, &["--driver", "sim"]);
    assert!(text.out.contains("did not fit"), "{}", text.out);

    // More than the device has at all, and more than 64 bits can place.
    fs::write(&log, "Action,Pointer,Size\nallocate,1,9000000000000000000\n").unwrap();
    assert_eq!(metrale_on("replay", &log, &["--driver", "sim"]).exit, Exit::OutOfMemory);
    fs::write(&log, "Action,Pointer,Size\nallocate,1,18446744073709551615\n").unwrap();
    assert_eq!(metrale_on("replay", &log, &["--driver", "sim"]).exit, Exit::BadInput);
}

#[test]
fn what_is_no_log_and_lines_that_make_no_sense_end_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    common::write_model(&model, &[("a", "U8", &[3], 3)]);
    let ended = metrale_on("replay", &model, &["--driver", "sim"]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("this is a model"), "{}", ended.err);
    for args in [
        &["replay"][..],
        &["replay", "/nonexistent/log.csv", "--driver", "sim"],
        &["replay", env!("CARGO_MANIFEST_DIR"), "--driver", "sim"],
    ] {
        let ended = metrale(args.iter().copied());
        assert_eq!(ended.exit, Exit::BadInput, "{args:?}: {} {}", ended.out, ended.err);
    }
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size\n").unwrap();
    let ended = metrale_on("replay", &log, &["--driver", "sim", "--json"]);
    assert_eq!((ended.exit, ended.json()["operations"].as_u64()), (Exit::Done, Some(0)));
    let ended = metrale_on("replay", &log, &["--driver", "sim", "--device", "4"]);
    assert_eq!(ended.exit, Exit::Failed);
}

#[test]
fn a_row_passed_over_has_its_place_in_the_tables_of_plan_and_replay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let log = path("l.csv");
    let rows = format!("allocate,0x1,4096\nallocate,0x1,{0}\nallocate,0x2,{0}\nfree,0x1,0\n", u64::MAX);
    fs::write(&log, format!("Action,Pointer,Size\n{rows}")).unwrap();
    let of = |command: &str, more: &[&str]| {
        let out = path(command);
        let more = [&["--lenient", "--json", "--per-op", out.to_str().unwrap()], more].concat();
        let ended = metrale_on(command, &log, &more);
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        assert!(ended.err.contains("line 3") && ended.err.contains("line 4"), "{}", ended.err);
        table(&out).1.into_iter().map(|row| row[..3].to_vec()).collect::<Vec<_>>()
    };
    let page = 2 << 20;
    let expected = [[0, 4096, page], [1, 4096, page], [2, 4096, page], [3, 0, 0]];
    assert_eq!(of("plan", &[]), expected);
    assert_eq!(of("replay", &["--driver", "sim"]), expected);
}

#[test]
fn the_lines_of_findings_are_the_first_ten_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, format!("Action,Pointer,Size\n{}", "free,0x9000,1\n".repeat(30))).unwrap();
    let json = metrale_on("replay", &log, &["--driver", "sim", "--json"]).json();
    assert_eq!(json["findings"]["unknown_free"], 30);
    assert_eq!(json["finding_lines"]["unknown_free"], serde_json::json!((2..12).collect::<Vec<u64>>()));
}

/// Its free is done, though no row asked for it, and its allocation is not.
#[test]
fn what_makes_way_for_an_allocation_that_does_not_fit_is_gone_and_no_free_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size\nallocate,2,1\nallocate,1,4096\nallocate,1,900000000000\n").unwrap();
    let ended = metrale_on("replay", &log, &["--driver", "sim", "--json"]);
    assert_eq!(ended.exit, Exit::OutOfMemory);
    let json = ended.json();
    assert_eq!(
        (&json["operations"], &json["frees"], &json["live_at_end"]["bytes"]),
        (&2.into(), &0.into(), &1.into())
    );
    assert_eq!(json["end"]["live_bytes"], 1);
    // Where it fits, it is no free either.
    fs::write(&log, "Action,Pointer,Size\nallocate,1,4096\nallocate,1,1\nfree,1,1\n").unwrap();
    let json = metrale_on("replay", &log, &["--driver", "sim", "--json"]).json();
    assert_eq!((&json["allocations"], &json["frees"]), (&2.into(), &1.into()));
}

#[test]
fn what_is_live_when_a_log_does_not_fit_is_what_was_done_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(
        &log,
        "Action,Pointer,Size\nallocate,1,4096\nallocate,2,1\nfree,1,4096\nallocate,1,1\nallocate,4,900000000000\nfree,2,1\n",
    )
    .unwrap();
    let more = ["--driver", "sim"];
    let json = metrale_on("replay", &log, &[&more[..], &["--json"]].concat()).json();
    let first = [("0x2", 3), ("0x1", 5)]
        .map(|(address, line)| serde_json::json!({"address": address, "bytes": 1, "line": line}));
    assert_eq!(json["live_at_end"], serde_json::json!({"allocations": 2, "bytes": 2, "first": first}));
    assert_eq!(json["end"]["allocations"], 2);
    fs::write(&log, "Action,Pointer,Size\nallocate,1,1\n").unwrap();
    for option in ["--per-op", "--snapshot", "--peak-snapshot"] {
        let ended = metrale_on("replay", &log, &["--driver", "sim", option, "/nonexistent/file"]);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(ended.err.ends_with("No such file or directory (os error 2)\n"), "{}", ended.err);
    }
}

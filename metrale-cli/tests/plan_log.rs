// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale plan` of logs: held to what an H200 kept for the same operations, and who holds the peak.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{data, holders, metrale_on, recorded_log, recorded_residency, table};
use metrale_cli::Exit;

/// The 512 bytes of setup.py take a page of 2 MiB, and both allocations of train.py fit into it: the peak is there from the
/// first row on and fullest at the last, with 2 x 1,000,000 bytes (1.91 MiB) of train.py:88.
#[test]
fn whoever_fills_the_pages_of_the_peak_holds_it() {
    let ended = metrale_on("plan", &data(".").join("two_lines.csv"), &[]);
    let expected = [("1.91 MiB", 2, "train.py:88"), ("512 B", 1, "setup.py:10")];
    assert_eq!(
        holders(&ended.out),
        expected.map(|(size, count, label)| (size.to_owned(), count, label.to_owned()))
    );
    for peak in ["peak live ", "peak resident "] {
        let line = ended.out.lines().find(|line| line.starts_with(peak)).unwrap();
        assert!(line.ends_with("at operation 2 (line 4)"), "{line}");
    }
}

/// An allocation of no bytes is live too, and its label is listed.
#[test]
fn allocations_of_no_bytes_are_among_the_holders() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let rows = "allocate,0x10,5,a.py:1\nallocate,0x20,0,b.py:2\nfree,0x20,0,\nallocate,0x20,0,c.py:3\n";
    fs::write(&log, format!("Action,Pointer,Size,Location\n{rows}")).unwrap();
    let ended = metrale_on("plan", &log, &[]);
    let expected = [("5 B", 1, "a.py:1"), ("0 B", 1, "b.py:2")];
    assert_eq!(
        holders(&ended.out),
        expected.map(|(size, count, label)| (size.to_owned(), count, label.to_owned()))
    );
}

#[test]
fn a_recorded_log_gives_the_drivers_figure_at_every_row() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["random-0.csv.gz", "random-1.csv.gz", "random-3.csv.gz"] {
        let log = recorded_log(name);
        let out = folder.path().join(name);
        let ended = metrale_on("plan", &log, &["--json", "--per-op", out.to_str().unwrap()]);
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        assert_eq!(ended.err, "", "nothing is odd about it");
        let (header, rows) = table(&out);
        assert_eq!(header, "op,live_bytes,resident_bytes");
        let recorded = recorded_residency(&log);
        assert_eq!(rows.len(), recorded.len(), "{name}");
        for (op, (row, resident_bytes)) in rows.iter().zip(&recorded).enumerate() {
            assert_eq!((row[0], row[2]), (op as u64, *resident_bytes), "{name}");
        }
        let json = ended.json();
        assert_eq!(json["peak_resident_bytes"], *recorded.iter().max().unwrap(), "{name}");
        assert_eq!(json["end_resident_bytes"], *recorded.last().unwrap(), "{name}");
        assert_eq!(json["peak_live_bytes"], rows.iter().map(|row| row[1]).max().unwrap(), "{name}");
        assert_eq!(json["end_live_bytes"], rows.last().unwrap()[1], "{name}");
    }
}

#[test]
fn the_object_of_a_log_says_what_was_odd_in_it_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(
        &log,
        "Action,Pointer,Size\nallocate,1,5\nallocate,1,7\nallocate,zzz,5\nfree,9,1\nfree,9,1\nfree,1,5\n",
    )
    .unwrap();
    let ended = metrale_on("plan", &log, &["--json", "--lenient"]);
    let json = ended.json();
    assert_eq!(json["skipped_rows"], 1);
    assert_eq!(
        json["findings"],
        serde_json::json!({"already_live": 1, "size_differs": 1, "unknown_free": 2})
    );
    assert_eq!(json["broke_off"], serde_json::Value::Null);
    assert_eq!(json["finding_lines"]["unknown_free"], serde_json::json!([5, 6]));
    assert_eq!((&json["failures_in_log"], &json["nothing_rows"]), (&0.into(), &0.into()));
    let remarks: Vec<_> =
        json["remarks"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(remarks.iter().any(|text| text.contains("line 4: the pointer \"zzz\"")), "{remarks:?}");
    assert!(remarks.iter().all(|text| ended.err.contains(text)), "{remarks:?}: {}", ended.err);
    assert_eq!(json.as_object().unwrap().len(), 8 + 8, "and what is live at the end");
    // What made way for another was not freed by a row.
    let text = metrale_on("plan", &log, &["--lenient"]).out;
    assert!(text.contains("2 allocations of 12 B in all, 1 free in 5 operations"), "{text}");
}

#[test]
fn what_makes_way_for_another_comes_and_goes_though_no_row_frees_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let most = |second: u32| {
        let rows = [1, second, 3, 4].map(|pointer| format!("allocate,{pointer},1100000\n")).concat();
        fs::write(&log, format!("Action,Pointer,Size\n{rows}")).unwrap();
        metrale_on("plan", &log, &[]).out.contains("would save up to ")
    };
    assert!(most(1));
    assert!(!most(2), "nothing goes");
}

#[test]
fn figures_of_64_bits_are_whole_in_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size\nallocate,1,9223372036854775808\n").unwrap();
    let ended = metrale_on("plan", &log, &[]);
    assert!(ended.out.contains(" 9223372036854775808 "), "{}", ended.out);
}

#[test]
fn what_a_log_never_frees_is_listed_with_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("leak.csv");
    let rows: String = (0..29)
        .map(|n| format!("allocate,{:#x},{}\nfree,{:#x},0\n", 0x1000 * (n + 1), 1000 + n, 0x99))
        .collect();
    fs::write(&log, format!("Action,Pointer,Size\n{rows}free,0x2000,1001\n")).unwrap();
    for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
        let text = metrale_on(command, &log, more).out;
        let listed: Vec<_> = text
            .lines()
            .skip_while(|line| !line.starts_with("still live at the end"))
            .skip(1)
            .take_while(|line| !line.is_empty())
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(listed.len(), 11, "{text}");
        assert_eq!(listed[..2], ["1000 B 0x1000 line 2", "1002 B 0x3000 line 6"], "{text}");
        assert_eq!(
            (&listed[9][..], &listed[10][..]),
            ("1010 B 0xb000 line 22", "17.92 KiB in 18 more"),
            "{text}"
        );

        let json = metrale_on(command, &log, &[more, &["--json"]].concat()).json();
        let live = &json["live_at_end"];
        assert_eq!((&live["allocations"], &live["bytes"]), (&28.into(), &(29_406 - 1001).into()));
        let first = serde_json::json!({"address": "0x3000", "bytes": 1002, "line": 6});
        assert_eq!((&live["first"][1], live["first"].as_array().unwrap().len()), (&first, 10));

        fs::write(&log, "Action,Pointer,Size\nallocate,1,5\nfree,1,5\n").unwrap();
        let ended = metrale_on(command, &log, more);
        assert!(!ended.out.contains("still live"), "{}", ended.out);
        fs::write(&log, format!("Action,Pointer,Size\n{rows}free,0x2000,1001\n")).unwrap();
    }
}

#[test]
fn the_rows_that_are_neither_allocation_nor_free_are_in_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(
        &log,
        "Action,Pointer,Size,Location\n\
         allocate,0x10,5,a.py:1\nallocate failure,,7,\nfree,0,0,\nallocate,(nil),0,\nfree,0x99,1,\n\
         free,0x10,5,\nfree,0x10,5,\nsteal,0x10,5,\n",
    )
    .unwrap();
    for (command, more, sum) in [
        ("plan", &[][..], "1 allocation of 5 B in all, 1 free in 7 operations\n"),
        ("replay", &["--driver", "sim"], "7 operations (1 allocation, 1 free)"),
    ] {
        let ended = metrale_on(command, &log, &[more, &["--lenient"]].concat());
        for part in [
            sum,
            "\n1 x allocation that failed then\n",
            "\n2 x row that asks for nothing: a free of null, or no bytes at null\n",
            "\n1 x row passed over\n",
            "\n1 x unknown free\n",
            "\n1 x double free\n",
        ] {
            assert!(ended.out.contains(part), "{part}: {}", ended.out);
        }
    }
}

/// What is saved at the peak of the recorded log is saved in the very order of the log too, once nothing went before.
#[test]
fn a_saving_behind_frees_is_not_told_as_the_orders_alone() {
    let ended = metrale_on("plan", &recorded_log("random-1.csv.gz"), &[]);
    assert!(
        ended.out.contains(
            "what is live at operation 3965, the resident peak, allocated anew, largest first, would take \
             10.00 MiB less, without the gaps that earlier frees left; the order alone may save less of it, or nothing"
        ),
        "{}",
        ended.out
    );
}

#[test]
fn a_log_that_names_no_lines_is_said_to_name_none() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    for (text, names_none) in [
        ("Action,Pointer,Size\nallocate,1,5\n", true),
        ("Action,Pointer,Size,Location\nallocate,1,5,\n", true),
        ("Action,Pointer,Size,Location\nallocate,1,5,a.py:1\n", false),
        ("Action,Pointer,Size\n", false),
    ] {
        fs::write(&log, text).unwrap();
        for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
            let ended = metrale_on(command, &log, more);
            assert_eq!(
                ended.out.contains("the log names no source lines"),
                names_none,
                "{text}: {}",
                ended.out
            );
        }
    }
}

/// Real programs, whose libraries allocate too: the README lists every step at which the driver's figure moved by other than
/// the plan's, and by how much.
#[test]
fn the_readme_lists_every_step_at_which_the_driver_and_the_plan_of_a_real_program_differ() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("ops.csv");
    let mut differing = BTreeMap::new();
    for name in ["bert_infer", "gpt2_train", "cupy_ops"] {
        let log = data("h200").join(format!("{name}.csv.gz"));
        let ended = metrale_on("plan", &log, &["--per-op", out.to_str().unwrap()]);
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        let (rows, recorded) = (table(&out).1, recorded_residency(&log));
        assert_eq!(rows.len(), recorded.len(), "{name}");
        let mut before = (0, 0);
        for (row, kept) in rows.iter().zip(recorded) {
            let (planned, kept) = (row[2] as i64, kept as i64);
            let difference = (kept - before.1) - (planned - before.0);
            before = (planned, kept);
            if difference != 0 {
                differing.insert((name.to_owned(), row[0]), difference);
            }
        }
    }
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let mut listed = BTreeMap::new();
    for row in readme.lines() {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, operations, _, difference, cause, _] = cells[..] else { continue };
        let Ok(difference) = difference.parse::<i64>() else { continue };
        assert!(!cause.is_empty(), "{row}");
        for operation in operations.split(", ") {
            let step = (name.to_owned(), operation.parse().unwrap());
            assert_eq!(listed.insert(step, difference), None, "{operation} of {name} is listed twice");
        }
    }
    assert_eq!(listed, differing);
    assert_eq!(listed.len(), 37 + 14 + 59);
}

/// 22 GiB are live when 4 GiB more are refused, and 20 GiB when 1 GiB is: granting both takes 26 GiB at most, though what was
/// allocated never takes more than 22.
#[test]
fn a_request_that_failed_has_to_fit_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let rows = "allocate,0x10000000000,17179869184\nallocate,0x20000000000,6442450944\nallocate failure,0x0,4294967296\n\
                free,0x20000000000,6442450944\nallocate,0x20000000000,4294967296\nAllocate Failure,,1073741824.0\n";
    fs::write(&log, format!("Action,Pointer,Size\n{rows}")).unwrap();
    for (memory, exit, verdict) in [
        ("24GiB", Exit::OutOfMemory, "does not fit into the given memory (24.00 GiB), by 2.00 GiB"),
        ("26GiB", Exit::Done, "fits into the given memory (26.00 GiB), with 0 B to spare"),
    ] {
        let ended = metrale_on("plan", &log, &["--memory", memory]);
        assert_eq!(ended.exit, exit, "{}", ended.err);
        for said in [
            "line 4 asked for 4.00 GiB with 22.00 GiB live, and failed: granting it takes 26.00 GiB",
            "line 7 asked for 1.00 GiB with 20.00 GiB live, and failed: granting it takes 21.00 GiB",
            verdict,
        ] {
            assert!(ended.out.contains(said), "{said}: {}", ended.out);
        }
        let json = metrale_on("plan", &log, &["--memory", memory, "--json"]).json();
        assert_eq!(
            (&json["fits"], &json["needed_bytes"]),
            (&(exit == Exit::Done).into(), &(26_u64 << 30).into())
        );
        let failed = serde_json::json!({
            "line": 4, "requested_bytes": 4_u64 << 30, "live_bytes": 22_u64 << 30, "granted_resident_bytes": 26_u64 << 30,
        });
        assert_eq!((&json["failed_requests"][0], &json["failures_in_log"]), (&failed, &2.into()));
    }
}

/// What fits into pages that are held takes nothing more, and what no address space holds never fits.
#[test]
fn what_granting_takes_is_by_the_packing_rule() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    for (bytes, needed, exit) in
        [("512", None, Exit::Done), ("18446744073709551615", Some(u64::MAX), Exit::OutOfMemory)]
    {
        fs::write(&log, format!("Action,Pointer,Size\nallocate,0x200,1024\nallocate failure,0x0,{bytes}\n"))
            .unwrap();
        let ended = metrale_on("plan", &log, &["--memory", "2MiB", "--json"]);
        assert_eq!(ended.exit, exit, "{}", ended.out);
        assert_eq!(ended.json()["needed_bytes"].as_u64(), needed);
    }
}

#[test]
fn a_log_of_which_no_row_can_be_used_is_no_plan_however_lenient() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size\nallocate,0x200,many\nfree,here,5\n").unwrap();
    for command in ["plan", "replay"] {
        let ended = metrale_on(command, &log, &["--lenient"]);
        assert_eq!(ended.exit, Exit::BadInput, "{command}: {}", ended.out);
        assert!(
            ended.err.contains("none of its rows can be used (2 passed over): line 2: the size \"many\""),
            "{}",
            ended.err
        );
    }
    // One row that can be used is a log.
    fs::write(&log, "Action,Pointer,Size\nallocate,0x200,many\nallocate,0x400,512.0\n").unwrap();
    assert_eq!(metrale_on("plan", &log, &["--lenient"]).exit, Exit::Done);
}

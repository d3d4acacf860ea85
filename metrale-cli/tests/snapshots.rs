// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots that `load` and `replay` write, shown by `report` and compared by `diff`.

mod common;

use std::fs;

use common::{metrale, metrale_on, recorded_log, write_model};
use metrale_cli::Exit;

#[test]
fn a_loaded_models_snapshot_reports_as_the_load_did() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, packed) = (folder.path().join("plain.json"), folder.path().join("packed.json"));
    let load = |more: &[&str]| {
        let args = ["load", "--model", "bert-base", "--driver", "sim"].iter().chain(more);
        let ended = metrale(args.copied());
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        ended
    };
    let loaded = load(&["--snapshot", plain.to_str().unwrap()]);
    let report = metrale_on("report", &plain, &[]);
    assert_eq!(report.exit, Exit::Done, "{}", report.err);
    assert!(loaded.out.contains(report.out.trim_end()), "{}", report.out);
    let json = metrale_on("report", &plain, &["--json"]).json();
    assert_eq!(
        (&json["totals"]["live_bytes"], &json["sites"][0]["count"]),
        (&219_030_644.into(), &204.into())
    );
    assert!(json["arenas"].as_array().unwrap().is_empty());

    load(&["--arena", "--snapshot", packed.to_str().unwrap()]);
    let report = metrale_on("report", &packed, &["--top", "2"]);
    assert!(
        report.out.contains("bert.embeddings.word_embeddings.weight\n")
            && report.out.contains("in 202 more parts"),
        "{}",
        report.out
    );
    let json = metrale_on("report", &packed, &["--json"]).json();
    assert_eq!(json["arenas"][0]["parts"].as_array().unwrap().len(), 204);

    let paths = ["diff".as_ref(), plain.as_os_str(), packed.as_os_str()];
    let ended = metrale(paths);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    assert!(
        ended.out.contains("live -208.88 MiB (-204)") && ended.out.contains("arenas +208.88 MiB"),
        "{}",
        ended.out
    );
    let json = metrale(paths.iter().copied().chain(["--json".as_ref()])).json();
    assert_eq!((&json["live_bytes"], &json["arena_bytes"]), (&(-219_030_644).into(), &219_031_040.into()));
    let scopes = json["scopes"].as_array().unwrap();
    assert_eq!(scopes.iter().map(|row| row["bytes"].as_i64().unwrap()).sum::<i64>(), -219_030_644);
}

#[test]
fn a_replay_writes_its_peak_and_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (end, peak) = (folder.path().join("end.json"), folder.path().join("peak.json"));
    let more = [
        "--driver",
        "sim",
        "--json",
        "--snapshot",
        end.to_str().unwrap(),
        "--peak-snapshot",
        peak.to_str().unwrap(),
    ];
    let ended = metrale_on("replay", &recorded_log("random-3.csv.gz"), &more);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    let json = ended.json();
    for (path, then) in [(&end, "end"), (&peak, "peak")] {
        let totals = metrale_on("report", path, &["--json"]).json();
        assert_eq!(totals["totals"]["live_bytes"], json[then]["live_bytes"], "{then}");
        assert_eq!(totals["totals"]["resident_bytes"], json[then]["resident_bytes"], "{then}");
    }
    let diff = metrale(["diff".as_ref(), peak.as_os_str(), end.as_os_str(), "--json".as_ref()]).json();
    let bytes = |then: &str| json[then]["live_bytes"].as_i64().unwrap();
    assert_eq!(diff["live_bytes"], bytes("end") - bytes("peak"));
}

#[test]
fn nothing_is_written_over_what_is_read_nor_twice_into_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let arg = |name: &str| path(name).to_str().unwrap().to_owned();
    write_model(&path("m.safetensors"), &[("a.w", "U8", &[4096], 4096)]);
    let index = serde_json::json!({"weight_map": {"a.w": "m.safetensors"}});
    fs::write(path("m.safetensors.index.json"), index.to_string()).unwrap();
    fs::write(path("l.csv"), "Action,Pointer,Size\nallocate,0x1000,4096\n").unwrap();
    let names = ["m.safetensors", "m.safetensors.index.json", "l.csv"];
    let contents = || names.map(|name| fs::read(path(name)).unwrap());
    let before = contents();

    let (shard, log, new) = (arg("m.safetensors"), arg("l.csv"), arg("new"));
    for (command, input, more) in [
        ("load", names[0], &["--driver", "sim", "--snapshot", &shard][..]),
        // A shard that only the index names.
        ("load", names[1], &["--driver", "sim", "--snapshot", &shard]),
        ("plan", names[1], &["--per-op", &shard]),
        ("replay", names[2], &["--driver", "sim", "--snapshot", &log]),
        ("replay", names[2], &["--driver", "sim", "--peak-snapshot", &log]),
        ("replay", names[2], &["--driver", "sim", "--snapshot", &new, "--peak-snapshot", &new]),
        ("replay", names[2], &["--driver", "sim", "--snapshot", &new, "--per-op", &new]),
    ] {
        let ended = metrale_on(command, &path(input), more);
        assert_eq!(ended.exit, Exit::BadInput, "{command} {more:?}: {}", ended.err);
        assert!(
            ended.err.contains("names the input itself") || ended.err.contains("name one file"),
            "{}",
            ended.err
        );
        assert!(contents() == before && !path("new").exists(), "{command} {more:?}");
    }
}

#[test]
fn what_is_no_snapshot_ends_with_2_and_numbers_and_names_of_any_sort_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, odd) = (folder.path().join("bad.json"), folder.path().join("odd.json"));
    for text in ["", "{}", "[]", "{\"totals\": 5, \"groups\": []}", "\u{0}", "{\"totals\": {}"] {
        fs::write(&bad, text).unwrap();
        let ended = metrale_on("report", &bad, &["--json"]);
        assert_eq!(ended.exit, Exit::BadInput, "{text}");
        assert!(ended.err.contains("bad.json: this is no snapshot"), "{}", ended.err);
        assert_eq!(ended.json()["error"]["kind"], "bad_input");
        assert_eq!(metrale(["diff".as_ref(), bad.as_os_str(), bad.as_os_str()]).exit, Exit::BadInput);
    }
    assert_eq!(metrale(["report", "/nonexistent/x.json"]).exit, Exit::BadInput);
    assert_eq!(metrale(["diff", "/nonexistent/x.json"]).exit, Exit::BadInput);

    let site = serde_json::json!({"file": "a\u{1b}[31m\n.rs", "line": 1, "column": 1});
    let most = u64::MAX;
    let group = |scope: &str| serde_json::json!({"site": site, "scope": scope, "tag": null, "kind": "device", "bytes": most, "count": most});
    let part = serde_json::json!({"name": "p\u{7}", "site": site, "scope": null, "offset_bytes": most, "bytes": most});
    let arena = serde_json::json!({"site": site, "scope": null, "tag": null, "bytes": 1, "parts": [part, part, part]});
    let snapshot =
        serde_json::json!({"totals": {}, "groups": [group("x"), group("y"), group("z")], "arenas": [arena]});
    fs::write(&odd, snapshot.to_string()).unwrap();
    for args in [
        &["report".as_ref(), odd.as_os_str(), "--top".as_ref(), "1".as_ref()][..],
        &["diff".as_ref(), odd.as_os_str(), odd.as_os_str()],
    ] {
        let ended = metrale(args.iter().copied());
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        assert!(!ended.out.contains(['\u{1b}', '\u{7}']), "{}", ended.out);
    }
    let ended =
        metrale(["load", "--model", "gpt2", "--driver", "sim", "--snapshot", "/nonexistent/folder/s.json"]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("s.json: the snapshot cannot be written"), "{}", ended.err);
}

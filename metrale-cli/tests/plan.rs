// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale plan` from its arguments to its answer: held to what an H200 kept for the same tensors and operations.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use common::{data, metrale, metrale_on, recorded_log, recorded_residency, table, write_model};
use metrale_cli::Exit;
use metrale_cli::model::{Catalogue, TensorSpec};

/// Catalogue models in bf16: allocations, bytes, and what an H200's driver kept for the same tensors one by one.
const MODELS: [(&str, u64); 8] = [
    ("bert-base", 301_989_888),
    ("gpt2", 306_184_192),
    ("llama-7b", 13_478_395_904),
    ("mixtral-8x7b", 93_407_150_080),
    ("whisper-base", 60_817_408),
    ("qwen3-moe", 30_704_402_432),
    ("nemotron-h", 3_946_840_064),
    ("deepseek-v3", 30_230_446_080),
];

/// A safetensors file with a header and no data but a length.
fn write_sparse(path: &Path, tensors: &[TensorSpec]) {
    let mut header = String::from("{");
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.bytes;
        let comma = if header.len() > 1 { "," } else { "" };
        let name = serde_json::to_string(&tensor.name).unwrap();
        header += &format!(
            r#"{comma}{name}:{{"dtype":"BF16","shape":{:?},"data_offsets":[{at},{end}]}}"#,
            tensor.shape
        );
        at = end;
    }
    header.push('}');
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + at).unwrap();
}

#[test]
fn headers_of_sparse_files_and_catalogue_names_give_the_figures_of_the_h200() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::embedded().unwrap();
    for (model, resident_bytes) in MODELS {
        let tensors = catalogue.tensors(model).unwrap();
        let live_bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        let path = folder.path().join(format!("{model}.safetensors"));
        write_sparse(&path, &tensors);
        let by_file = metrale_on("plan", &path, &["--json"]);
        let by_name = metrale(["plan", "--model", model, "--json"]);
        for ended in [&by_file, &by_name] {
            assert_eq!(ended.exit, Exit::Done, "{model}: {}", ended.err);
            let json = ended.json();
            assert_eq!(json["peak_resident_bytes"], resident_bytes, "{model}");
            assert_eq!(json["end_resident_bytes"], resident_bytes, "{model}");
            assert_eq!(
                json["allocations"],
                tensors.iter().filter(|tensor| tensor.bytes > 0).count(),
                "{model}"
            );
            for field in ["requested_bytes", "peak_live_bytes", "end_live_bytes"] {
                assert_eq!(json[field], live_bytes, "{model} {field}");
            }
            let arena = json["arena_resident_bytes"].as_u64().unwrap();
            assert!(
                arena >= live_bytes && arena <= resident_bytes && arena.is_multiple_of(2 << 20),
                "{model}"
            );
            assert!(json["fits"].is_null(), "nothing to hold it against");
        }
        assert_eq!(by_file.out, by_name.out, "{model}");
    }
}

/// What the text lists below "held at the resident peak by": size, count and label of each row.
fn holders(text: &str) -> Vec<(String, u64, String)> {
    let rows = text.lines().skip_while(|line| !line.starts_with("held at the resident peak by")).skip(1);
    rows.take_while(|line| !line.is_empty())
        .map(|line| {
            let (size, rest) = line.split_once("  x").unwrap();
            let (count, label) = rest.split_once(' ').unwrap();
            (size.trim().to_owned(), count.trim().parse().unwrap(), label.trim().to_owned())
        })
        .collect()
}

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

/// Nothing is freed while a model is loaded, so at the fullest moment everything is live.
#[test]
fn every_tensor_of_every_model_is_held_at_the_peak_by_its_scope() {
    let catalogue = Catalogue::embedded().unwrap();
    for model in catalogue.names() {
        let tensors = catalogue.tensors(model).unwrap();
        let with_bytes = tensors.iter().filter(|tensor| tensor.bytes > 0).count() as u64;
        let ended = metrale(["plan", "--model", model, "--top", "1000000"]);
        let held: u64 = holders(&ended.out).iter().map(|holder| holder.1).sum();
        assert_eq!(held, with_bytes, "{model}");
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
fn the_object_has_these_fields_and_no_other() {
    let json = metrale(["plan", "--model", "bert-base", "--json", "--memory", "141GiB"]).json();
    let mut fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "allocations",
            "arena_resident_bytes",
            "end_live_bytes",
            "end_resident_bytes",
            "fits",
            "peak_live_bytes",
            "peak_resident_bytes",
            "requested_bytes"
        ]
    );
    assert_eq!(json["fits"], true);
}

#[test]
fn fits_is_held_against_bytes_or_what_a_device_has_free() {
    for (args, fits) in [
        (&["--memory", "301989888"][..], true),
        (&["--memory", "301989887"], false),
        (&["--memory", "288MiB"], true),
        (&["--memory", "0.28GiB"], false),
        (&["--device", "h200"], true),
        (&["--device", "rtx"], true),
    ] {
        let ended = metrale(["plan", "--model", "bert-base", "--json"].iter().chain(args).copied());
        assert_eq!(ended.json()["fits"], fits, "{args:?}");
        assert_eq!(ended.exit, if fits { Exit::Done } else { Exit::OutOfMemory }, "{args:?}");
    }
    // More than the device has, and less than its total but more than a context leaves of it.
    let ended = metrale(["plan", "--model", "qwen3-next", "--device", "h200"]);
    assert_eq!(ended.exit, Exit::OutOfMemory);
    assert!(
        ended.out.contains("does not fit into what NVIDIA H200 has free (139.29 GiB), by "),
        "{}",
        ended.out
    );
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size\nallocate,0x200000,149600000000\n").unwrap();
    assert_eq!(metrale_on("plan", &log, &["--device", "h200"]).exit, Exit::OutOfMemory);
    assert_eq!(metrale_on("plan", &log, &["--memory", "150109880320"]).exit, Exit::Done);
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
fn a_model_has_a_row_for_each_tensor_with_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    write_model(
        &path,
        &[
            ("a", "U8", &[3], 3),
            ("b", "F32", &[0], 0),
            ("c", "U8", &[2_097_153], 2_097_153),
            ("d", "I64", &[], 8),
        ],
    );
    let out = folder.path().join("ops.csv");
    let ended = metrale_on("plan", &path, &["--per-op", out.to_str().unwrap()]);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    let page = 2 << 20;
    assert_eq!(table(&out).1, [vec![0, 3, page], vec![1, page + 4, 3 * page], vec![2, page + 12, 3 * page]]);
}

#[test]
fn the_text_says_what_would_be_saved_and_who_holds_the_peak() {
    let ended = metrale(["plan", "--model", "bert-base", "--top", "3"]);
    for part in [
        "bert-base (catalogue): 204 allocations of 208.88 MiB",
        "301989888",
        "219030644",
        "208.88 MiB, in 204 allocations",
        "one arena for all of it would save 78.00 MiB of the peak",
        " would save ",
        "bert.embeddings.word_embeddings",
        "more",
        "--memory or --device",
    ] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }

    // Two of 1 MiB + 512 bytes do not share a chunk, but each shares one with a smaller.
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let sizes = [600 << 10, 600 << 10, (1 << 20) + 512, (1 << 20) + 512];
    let rows: String =
        sizes.iter().enumerate().map(|(i, bytes)| format!("allocate,{:x},{bytes}\n", i + 1)).collect();
    fs::write(&log, format!("action,pointer,size\n{rows}free,1,0\n")).unwrap();
    let ended = metrale_on("plan", &log, &[]);
    for part in [
        "4 allocations of 3.17 MiB in all, 1 free in 5 operations",
        "peak live                      3326976  3.17 MiB, at operation 3 (line 5)",
        "peak resident                  6291456  6.00 MiB, at operation 3 (line 5)",
        "one arena for all of it would save up to 2.00 MiB",
        "what is live at operation 3, the resident peak, allocated largest first, would take 2.00 MiB less",
    ] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
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
fn a_table_that_was_there_stays_until_another_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (log, table) = (folder.path().join("log.csv"), folder.path().join("ops.csv"));
    let per_op = ["--per-op", table.to_str().unwrap()];
    let replay = [&per_op[..], &["--driver", "/no/such/library.so"]].concat();
    fs::write(&table, "old").unwrap();
    for (text, command, more) in [
        ("Action,Pointer,Size\nallocate,1,-1\n", "plan", &per_op[..]),
        ("Action;Pointer;Size\nallocate;1;1\n", "plan", &per_op),
        ("Action,Pointer,Size\nallocate,1,1\n", "replay", &replay),
    ] {
        fs::write(&log, text).unwrap();
        assert_ne!(metrale_on(command, &log, more).exit, Exit::Done);
        assert_eq!(fs::read_to_string(&table).unwrap(), "old", "{command} {text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }
    assert_eq!(metrale_on("plan", &log, &per_op).exit, Exit::Done);
    assert_eq!(fs::read_to_string(&table).unwrap(), "op,live_bytes,resident_bytes\n0,1,2097152\n");
}

/// A shell opens the file, and the program is to add to it.
#[cfg(target_os = "linux")]
#[test]
fn a_table_onto_the_standard_output_goes_where_that_goes() {
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    let (log, kept) = (folder.path().join("log.csv"), folder.path().join("kept"));
    fs::write(&log, "Action,Pointer,Size\nallocate,1,1\n").unwrap();
    for output in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        fs::write(&kept, "before\n").unwrap();
        let append = fs::OpenOptions::new().append(true).open(&kept).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_metrale"));
        let status =
            program.arg("plan").arg(&log).args(["--per-op", output]).stdout(append).status().unwrap();
        assert!(status.success());
        let text = fs::read_to_string(&kept).unwrap();
        assert!(text.starts_with("before\nop,live_bytes,resident_bytes\n0,1,2097152\n"), "{text}");
        assert!(text.contains("peak resident"), "{text}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_log_that_may_have_been_cut_in_its_last_number_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    for (text, told) in [("allocate,1,5120", true), ("allocate,1,5120\n", false)] {
        fs::write(&log, format!("Action,Pointer,Size\n{text}")).unwrap();
        let ended = metrale_on("plan", &log, &[]);
        assert_eq!(ended.exit, Exit::Done);
        assert_eq!(ended.err.contains("its last cell is not whole"), told, "{}", ended.err);
    }
    fs::write(&log, "Thread,Time,Action,Pointer,Size,Stream\n1,12,allocate,0x10,10485").unwrap();
    let ended = metrale_on("plan", &log, &[]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("the last line is cut off: it has 5 of 6 columns"), "{}", ended.err);
}

#[test]
fn a_negative_number_is_told_as_the_wrong_value_that_it_is() {
    for (command, option) in [
        ("plan", "--memory"),
        ("plan", "--top"),
        ("load", "--top"),
        ("load", "--min-mb"),
        ("load", "--buffer-mb"),
        ("load", "--verify"),
    ] {
        let ended = metrale([command, "--model", "gpt2", option, "-1"]);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(ended.err.contains(&format!("invalid value '-1' for '{option} ")), "{}", ended.err);
    }
}

#[test]
fn advice_helps_where_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let utf16: Vec<u8> = "\u{feff}Action\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (bytes, words) in [
        (b"Action\tPointer\tSize\n".to_vec(), "set apart by tabs: write the table with commas"),
        (b"Action,Size\n".to_vec(), "the header names no column pointer"),
        (b"\xff\xff\xff".to_vec(), "line 1: it is no UTF-8 text"),
        (
            b"Action,Pointer,Size\rallocate,1,5\r".to_vec(),
            "line 1: it has a carriage return inside: end each line by",
        ),
        (utf16, "this is UTF-16 text, not an allocation log: a log is CSV text in UTF-8"),
        (b"\x28\xb5\x2f\xfd....".to_vec(), "this is a zstd file, not an allocation log"),
        (b"\x80\x04\x95....".to_vec(), "this is a PyTorch pickle, not an allocation log"),
    ] {
        fs::write(&log, bytes).unwrap();
        let ended = metrale_on("plan", &log, &[]);
        assert_eq!(ended.exit, Exit::BadInput);
        assert!(ended.err.contains(words) && !ended.err.contains("--lenient"), "{}", ended.err);
        assert_eq!(metrale_on("plan", &log, &["--lenient"]).exit, Exit::BadInput, "which would not help");
    }
    // Rows without a header among other lines: there it helps.
    fs::write(&log, "INFO begins\n1,12:00:00,allocate,0x10,7,0\n").unwrap();
    assert!(metrale_on("plan", &log, &[]).err.contains("--lenient passes over"));
    assert_eq!(metrale_on("plan", &log, &["--lenient"]).exit, Exit::Done);
    // Whatever its name, what is neither a log nor a model is told to be neither.
    for name in ["log.csv", "log.gz", "log"] {
        let path = folder.path().join(name);
        fs::write(&path, b"PK\x03\x04\x14\0\0\0\0\0").unwrap();
        let ended = metrale_on("replay", &path, &["--driver", "sim"]);
        assert!(ended.err.contains("this is a zip archive, not an allocation log"), "{}", ended.err);
        let ended = metrale_on("load", &path, &["--driver", "sim"]);
        assert!(
            ended.err.contains("a zip archive") && !ended.err.contains("allocation log"),
            "{}",
            ended.err
        );
    }
    for before in ["Loading the model", "10%\r100%"] {
        fs::write(&log, format!("{before}\nAction,Pointer,Size\nallocate,1,5\n")).unwrap();
        let ended = metrale_on("plan", &log, &[]);
        assert!(ended.err.contains("(--lenient passes over such rows)"), "{}", ended.err);
        assert_eq!(metrale_on("plan", &log, &["--lenient"]).exit, Exit::Done, "which helps");
    }
}

#[test]
fn a_log_does_not_write_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size,Location\nallocate,1,512,\x1b[31mred\x07\n").unwrap();
    for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
        let out = metrale_on(command, &log, more).out;
        assert!(out.contains("\\u{1b}[31mred\\u{7}") && !out.contains('\x1b'), "{out}");
    }
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
fn a_device_whose_rule_was_not_measured_is_said_to_be_one() {
    for (device, told) in [("h200", false), ("gb10", true)] {
        let ended = metrale(["plan", "--model", "gpt2", "--device", device]);
        assert_eq!(ended.err.contains("was not measured"), told, "{}", ended.err);
    }
}

#[test]
fn odd_rows_are_said_with_their_lines_and_senseless_ones_end_it_or_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(
        &log,
        "Thread,Time,Action,Pointer,Size,Stream\r\n\
         1,10:00:00.000001,allocate,0x7f0000000000,4096,0\r\n\
         2,10:00:00.000002,free,0x7f0000009000,512,0\r\n\
         1,10:00:00.000003,free,0x7f0000000000,4096,0\r\n\
         1,10:00:00.000004,free,0x7f0000000000,4096,0\r\n\
         1,10:00:00.000005,allocate failure,(nil),99999999999,0\r\n",
    )
    .unwrap();
    let ended = metrale_on("plan", &log, &["--json"]);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    assert!(
        ended.err.contains("line 3: 0x7f0000009000 is freed, but this log does not allocate it"),
        "{}",
        ended.err
    );
    assert!(
        ended.err.contains("line 5: 0x7f0000000000 is freed, which line 4 has done before"),
        "{}",
        ended.err
    );
    assert_eq!(ended.json()["peak_live_bytes"], 4096);

    let out = folder.path().join("ops.csv");
    let senseless = "Action,Pointer,Size\nallocate,1,5\nallocate,zzz,5\nfree,1\nallocate,2,18446744073709551615\nfree,1,5\n";
    fs::write(&log, senseless).unwrap();
    let per_op = ["--json", "--per-op", out.to_str().unwrap()];
    let ended = metrale_on("plan", &log, &per_op);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(
        ended.err.contains("log.csv: line 3: the pointer \"zzz\"") && ended.err.contains("--lenient"),
        "{}",
        ended.err
    );
    assert_eq!(ended.json()["error"]["kind"], "bad_input");
    assert!(!out.exists(), "half a table is none");

    let ended = metrale_on("plan", &log, &[&per_op[..], &["--lenient"]].concat());
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    for part in ["line 3: the pointer", "line 4: the row has 2 columns", "line 5: "] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    assert_eq!(ended.json()["allocations"], 1);
    assert_eq!(ended.json()["end_live_bytes"], 0);
}

#[test]
fn a_log_is_told_by_its_bytes_and_what_is_none_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let log = path("no suffix");
    fs::write(&log, "Action,Pointer,Size\nallocate,1,5\n").unwrap();
    assert_eq!(metrale_on("plan", &log, &["--json"]).json()["allocations"], 1);

    let empty = path("empty.csv");
    fs::write(&empty, "").unwrap();
    let ended = metrale_on("plan", &empty, &["--json"]);
    assert_eq!((ended.exit, ended.json()["allocations"].as_u64()), (Exit::Done, Some(0)));
    assert!(ended.err.contains("no rows"), "{}", ended.err);

    // A log among other programs' lines.
    let mixed = path("stderr.txt");
    fs::write(&mixed, "[INFO] starting\n1,10:00:00.1,allocate,0x10,512,0x0\n[INFO] done\n").unwrap();
    assert_eq!(metrale_on("plan", &mixed, &[]).exit, Exit::BadInput);
    let ended = metrale_on("plan", &mixed, &["--json", "--lenient"]);
    assert_eq!((ended.exit, ended.json()["allocations"].as_u64()), (Exit::Done, Some(1)), "{}", ended.err);

    let text = path("notes.txt");
    fs::write(&text, "shopping list\n").unwrap();
    let ended = metrale_on("plan", &text, &[]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("line 1") && ended.err.contains("Action, Pointer and Size"), "{}", ended.err);

    let cut = path("cut.csv.gz");
    let whole = fs::read(recorded_log("random-1.csv.gz")).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let ended = metrale_on("plan", &cut, &[]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("cannot be read on"), "{}", ended.err);

    // Said once: an error's text holds its reason already.
    for (file, more, reason) in [
        (&text, &[][..], "neither a header"),
        (&cut, &[], "cannot be read on"),
        (&cut, &["--lenient"], "cannot be read on"),
        (&log, &["--per-op", "/none/x"], "os error"),
    ] {
        let ended = metrale_on("plan", file, more);
        assert_eq!(ended.err.matches(reason).count(), 1, "{}", ended.err);
    }
    let ended = metrale_on("report", &text, &[]);
    assert_eq!(ended.err.matches("at line 1 column").count(), 1, "{}", ended.err);

    let two: [PathBuf; 3] = ["plan".into(), log.clone(), empty];
    assert_eq!(metrale(two).exit, Exit::BadInput);
    let itself = metrale_on("plan", &log, &["--per-op", log.to_str().unwrap()]);
    assert_eq!(itself.exit, Exit::BadInput);
    assert!(itself.err.contains("names the input itself"), "{}", itself.err);
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 2, "it is as it was");
}

#[test]
fn bad_models_and_command_lines_end_with_2() {
    for entry in fs::read_dir(data("safetensors")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let exit = metrale_on("plan", &path, &[]).exit;
        if name.contains("bad") {
            assert_eq!(exit, Exit::BadInput, "{name}");
        } else if name.contains("ok") {
            assert_eq!(exit, Exit::Done, "{name}");
        }
    }
    for args in [
        &["plan"][..],
        &["plan", "--model", "no-such-model"],
        &["plan", "--model", "gpt2", "--memory", "12 parsecs"],
        &["plan", "--model", "gpt2", "--memory", "1", "--device", "h200"],
        &["plan", "--model", "gpt2", "--device", "b300"],
        &["plan", "/nonexistent/model.safetensors"],
        &["plan", env!("CARGO_MANIFEST_DIR")],
    ] {
        let ended = metrale(args.iter().copied());
        assert_eq!(ended.exit, Exit::BadInput, "{args:?}: {} {}", ended.out, ended.err);
        assert!(!ended.err.is_empty(), "{args:?}");
    }
    let ended = metrale(["plan", "--model", "gpt2", "--per-op", "/nonexistent/folder/ops.csv"]);
    assert_eq!(ended.exit, Exit::BadInput, "nothing was done");
    assert!(ended.err.contains("ops.csv"), "{}", ended.err);
}

#[test]
fn what_is_no_log_at_all_is_refused_however_lenient() {
    let folder = tempfile::tempdir().unwrap();
    let (path, table) = (folder.path().join("snapshot.pickle.gz"), folder.path().join("ops.csv"));
    let mut encoder =
        flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, b"\x80\x04\x95\xff\n}\x94(\x8c\n").unwrap();
    encoder.finish().unwrap();
    for (command, more) in
        [("plan", &["--per-op", table.to_str().unwrap()][..]), ("replay", &["--driver", "sim"])]
    {
        let ended = metrale_on(command, &path, &[&["--lenient"], more].concat());
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(ended.err.contains("no allocation log") && ended.err.contains("line 1"), "{}", ended.err);
    }
    assert!(!table.exists());
    // A log whose rows are all wrong is still one.
    fs::write(&path, "Action,Pointer,Size\nallocate,0x1\n").unwrap();
    assert_eq!(metrale_on("plan", &path, &["--lenient"]).exit, Exit::Done);
}

/// Who names a file as a table is told of its lines, not of a model's header.
#[test]
fn a_table_by_its_name_is_no_broken_model() {
    let folder = tempfile::tempdir().unwrap();
    let utf16: Vec<u8> = "\u{feff}Action,Pointer,Size\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, bytes) in
        [("odd.csv", b"Action,Pointer,Size\n\x01allocate,0x1000,10\n".to_vec()), ("wide.CSV", utf16)]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let ended = metrale(["plan", path.to_str().unwrap()]);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(!ended.err.contains("safetensors"), "{}", ended.err);
        assert!(ended.err.contains("line 2: ") || ended.err.contains("this is UTF-16 text"), "{}", ended.err);
    }
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
fn a_cut_log_is_planned_as_far_as_it_goes_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (cut, out) = (folder.path().join("cut.csv.gz"), folder.path().join("ops.csv"));
    let log = recorded_log("random-1.csv.gz");
    let whole = fs::read(&log).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
        let more = [more, &["--per-op", out.to_str().unwrap()]].concat();
        let strict = metrale_on(command, &cut, &more);
        assert_eq!(strict.exit, Exit::BadInput, "{}", strict.err);
        assert!(strict.err.contains("(--lenient takes what came before)"), "{}", strict.err);
        assert!(!out.exists());

        let ended = metrale_on(command, &cut, &[&more[..], &["--lenient"]].concat());
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        let rows = table(&out).1;
        assert!(rows.len() > 1000 && rows.len() < 5098, "{}", rows.len());
        let warning = format!("warning: line {}: the log cannot be read on: ", rows.len() + 2);
        assert!(ended.err.contains(&warning), "{warning}: {}", ended.err);
        for (row, resident_bytes) in rows.iter().zip(recorded_residency(&log)) {
            assert_eq!(row[2], resident_bytes, "row {}", row[0]);
        }
        fs::remove_file(&out).unwrap();
        let json = metrale_on(command, &cut, &[&more[..], &["--lenient", "--json"]].concat()).json();
        assert!(warning.ends_with(&json["broke_off"].as_str().unwrap()[..warning.len() - "warning: ".len()]));
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn rows_of_two_devices_are_not_followed_together() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("dev.csv");
    let header = "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location";
    let row = |action: &str, device: u32, bytes: u32| {
        format!("{action},{device},0x7f0000000000,0,{bytes},0,0,1,1,1,1,a.cu:1\n")
    };
    let rows = [row("Alloc", 0, 1000), row("Alloc", 1, 2000), row("Free", 0, 0), row("Free", 1, 0)];
    fs::write(&log, format!("{header}\n{}", rows.concat())).unwrap();
    for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
        let ended = metrale_on(command, &log, more);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(
            ended.err.contains("line 3: the row is of device 1, and those before are of device 0: give the rows of one device"),
            "{}",
            ended.err
        );
        let ended = metrale_on(command, &log, &[more, &["--lenient"]].concat());
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        assert!(!ended.err.contains("already live"), "{}", ended.err);
        assert!(ended.err.contains("2 rows passed over in all, 2 of them of other devices"), "{}", ended.err);
        assert!(ended.out.contains("2 x row passed over"), "{}", ended.out);
    }
    fs::write(&log, format!("{header}\n{}{}", rows[0], rows[2])).unwrap();
    let ended = metrale_on("plan", &log, &["--json"]);
    assert_eq!((ended.exit, ended.err.as_str()), (Exit::Done, ""));
    assert_eq!(ended.json()["peak_live_bytes"], 1000);
}

#[test]
fn an_empty_file_is_an_empty_log_unless_its_name_says_model() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["rmm_debug", "x.txt", "STDERR", "e.gz", "rmm_log.dev0.csv", "memory.log", "t.tsv"] {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
            let ended = metrale_on(command, &path, more);
            assert_eq!(ended.exit, Exit::Done, "{command} {name}: {}", ended.err);
            assert!(ended.err.contains("note: the log has no rows"), "{command} {name}: {}", ended.err);
        }
    }
    for name in ["m.safetensors", "model.safetensors.index.json", "config.JSON", "w.bin", "w.gguf", "w.onnx"]
    {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        let ended = metrale_on("plan", &path, &[]);
        assert_eq!(ended.exit, Exit::BadInput, "{name}: {}", ended.out);
        assert!(ended.err.contains("the file is empty"), "{name}: {}", ended.err);
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

#[test]
fn a_column_named_twice_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size,Size\nallocate,0x10000,100,200\n").unwrap();
    for more in [&[][..], &["--lenient"]] {
        let ended = metrale_on("plan", &log, more);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.out);
        assert!(
            ended.err.contains("line 1: the header names \"Size\" twice, as columns 3 and 4"),
            "{}",
            ended.err
        );
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

#[test]
fn an_answer_without_an_account_names_its_input_as_the_account_would() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size\nsteal,1,5\n").unwrap();
    let path = log.to_str().unwrap();
    for (args, field) in [
        (&["replay", path, "--driver", "sim", "--json"][..], "log"),
        (&["plan", path, "--json"], "log"),
        (&["report", path, "--json"], "snapshot"),
        (&["load", path, "--driver", "sim", "--json"], "model"),
    ] {
        let json = metrale(args.iter().copied()).json();
        let mut fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        fields.retain(|field| *field != "error");
        assert_eq!((fields, &json[field]), (vec![field], &path.into()), "{args:?}");
    }
}

#[test]
fn the_help_names_every_profile() {
    let help = metrale(["plan", "--help"]).out;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let names = metrale_driver_sim::Profile::NAMES.join(", ");
    assert!(help.contains(&format!("({names})")), "{names}: {help}");
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

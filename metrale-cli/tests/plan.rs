// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale plan` from its arguments to its answer: held to what an H200 kept for the same tensors and operations.

mod common;

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
        "at operation 3 (line 5)",
        "one arena for all of it would save up to 2.00 MiB",
        "what is live at the peak, allocated largest first would save 2.00 MiB of the peak",
    ] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
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
    let ended = metrale_on("plan", &cut, &["--lenient"]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("cannot be read on"), "{}", ended.err);

    // Said once: an error's text holds its reason already.
    for (file, more, reason) in [
        (&text, &[][..], "neither a header"),
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
    assert_eq!(ended.exit, Exit::Failed);
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
        assert!(ended.err.contains("line ") && !ended.err.contains("safetensors"), "{}", ended.err);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale plan` of models from its arguments to its answer: held to what an H200 kept for the same tensors.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use common::{data, holders, metrale, metrale_on, table, write_model};
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
fn a_device_whose_rule_was_not_measured_is_said_to_be_one() {
    for (device, told) in [("h200", false), ("gb10", true)] {
        let ended = metrale(["plan", "--model", "gpt2", "--device", device]);
        assert_eq!(ended.err.contains("was not measured"), told, "{}", ended.err);
    }
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
fn the_help_names_every_profile() {
    let help = metrale(["plan", "--help"]).out;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let names = metrale_driver_sim::Profile::NAMES.join(", ");
    assert!(help.contains(&format!("({names})")), "{names}: {help}");
}

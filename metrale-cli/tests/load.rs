// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale load` from its arguments to its answer and exit code.

mod common;

use std::fs;

use common::{data, metrale, metrale_on, recorded_log, write_model};
use metrale_cli::{Console, Exit, run};

/// A model's name, its allocations and live bytes where they were counted by hand, and the bytes the H200's driver keeps
/// for the same tensors allocated one by one.
type Figures = (&'static str, Option<(u64, u64)>, u64);

/// Catalogue models in bf16.
const CATALOGUE: [Figures; 8] = [
    ("bert-base", Some((204, 219_030_644)), 301_989_888),
    ("llama-7b", Some((293, 13_476_831_488)), 13_478_395_904),
    ("gpt2", None, 306_184_192),
    ("mixtral-8x7b", None, 93_407_150_080),
    ("whisper-base", None, 60_817_408),
    ("qwen3-moe", None, 30_704_402_432),
    ("nemotron-h", None, 3_946_840_064),
    ("deepseek-v3", None, 30_230_446_080),
];

fn loads_with_the_figures_of_the_h200(driver: &str, models: &[Figures]) {
    for &(model, counted, resident_bytes) in models {
        let ended = metrale(["load", "--model", model, "--driver", driver, "--json"]);
        assert_eq!(ended.exit, Exit::Done, "{model}: {}", ended.err);
        let json = ended.json();
        assert_eq!(json["resident_bytes"], resident_bytes, "{model}");
        assert_eq!(json["driver_used_bytes"], resident_bytes, "{model}");
        assert_eq!(json["unexplained_bytes"], 0, "{model}");
        assert_eq!(json["swept_allocations"], 0, "{model}");
        let account = &json["account"];
        assert_eq!(account["remainder_bytes"], 0, "{model}: {account}");
        let terms = account["terms"].as_array().unwrap();
        let sum: i64 = terms.iter().map(|term| term["bytes"].as_i64().unwrap()).sum();
        assert_eq!(Some(sum), account["driver_used_bytes"].as_i64(), "{model}: {account}");
        let of =
            |name: &str| terms.iter().find(|term| term["name"] == name).unwrap()["bytes"].as_u64().unwrap();
        assert_eq!(of("ledger") + of("slack"), resident_bytes, "{model}: {account}");
        assert_eq!(json["bytes_copied"], 0, "{model}");
        let live = json["live_bytes"].as_u64().unwrap();
        assert_eq!(json["slack_bytes"].as_u64(), Some(resident_bytes - live), "{model}");
        if let Some((allocations, live_bytes)) = counted {
            assert_eq!(json["allocations"], allocations, "{model}");
            assert_eq!(json["live_bytes"], live_bytes, "{model}");
        }
        let held: u64 =
            json["scopes"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(held, live, "{model}: every byte has a scope");
        let site = &json["sites"][0];
        assert_eq!(site["bytes"], live, "{model}: one line allocates");
        assert!(site["site"].as_str().unwrap().contains("load.rs:"), "{site}");
    }
}

#[test]
fn catalogue_models_take_on_the_software_h200_what_they_take_on_the_hardware() {
    loads_with_the_figures_of_the_h200("sim", &CATALOGUE);
}

mod catalogue_models_on_the_gpu {
    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        super::loads_with_the_figures_of_the_h200("system", &super::CATALOGUE);
    }
}

fn an_arena_holds_a_model_in_little_more_than_its_tensors(driver: &str) {
    // What `plan` promises is what the driver then keeps.
    for (model, counted, one_by_one) in &CATALOGUE[..3] {
        let planned = metrale(["plan", "--model", model, "--json"]).json();
        let ended = metrale(["load", "--model", model, "--driver", driver, "--arena", "--json"]);
        assert_eq!(ended.exit, Exit::Done, "{model}: {}", ended.err);
        let json = ended.json();
        assert_eq!(json["driver_used_bytes"], planned["arena_resident_bytes"], "{model}");
        assert_eq!(json["resident_bytes"], json["driver_used_bytes"], "{model}");
        assert_eq!(
            (&json["unexplained_bytes"], &json["swept_allocations"]),
            (&0.into(), &0.into()),
            "{model}"
        );
        for field in ["allocations", "live_bytes"] {
            let requested = if field == "allocations" { field } else { "requested_bytes" };
            assert_eq!(json[field], planned[requested], "{model} {field}");
        }
        let used = json["driver_used_bytes"].as_u64().unwrap();
        assert!(used <= *one_by_one, "{model}");
        if let Some((allocations, live_bytes)) = counted {
            assert_eq!(
                (&json["allocations"], &json["live_bytes"]),
                (&(*allocations).into(), &(*live_bytes).into())
            );
            assert!(used - live_bytes < 4 << 20, "{model}: {used} for {live_bytes}");
        }
        let sum = |rows: &str| -> u64 {
            json[rows].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).sum()
        };
        assert_eq!(
            (sum("scopes"), sum("sites")),
            (json["live_bytes"].as_u64().unwrap(), sum("scopes")),
            "{model}"
        );
    }
    let text = metrale(["load", "--model", "bert-base", "--driver", driver, "--arena"]);
    for part in [
        "204 parts in",
        "arenas:",
        "bert.embeddings.word_embeddings.weight",
        "in 194 more parts",
        "219030644",
        "in one arena of",
        "sweep found 0",
    ] {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
}

#[test]
fn an_arena_holds_a_model_on_the_software_h200() {
    an_arena_holds_a_model_in_little_more_than_its_tensors("sim");
}

mod an_arena_on_the_gpu {
    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        super::an_arena_holds_a_model_in_little_more_than_its_tensors("system");
        super::a_file_with_data_arrives_in_an_arena("system");
    }
}

fn a_file_with_data_arrives_in_an_arena(driver: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_model(
        &path,
        &[
            ("a.w", "U8", &[2_500_001], 2_500_001),
            ("a.b", "U8", &[13], 13),
            ("e", "U8", &[0], 0),
            ("z", "I64", &[], 8),
        ],
    );
    let ended = common::metrale_on(
        "load",
        &path,
        &["--driver", driver, "--arena", "--json", "--verify", "3", "--buffer-mb", "1"],
    );
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    let json = ended.json();
    assert_eq!((&json["verified_tensors"], &json["allocations"]), (&3.into(), &3.into()));
    assert_eq!(
        (&json["live_bytes"], &json["arena_bytes"]),
        (&2_500_022.into(), &(2_500_096 + 2 * 512).into())
    );
    assert_eq!(json["driver_used_bytes"], 4 << 20);
    // All parts together fill less than a chunk, and nothing at all needs no arena.
    for (tensors, used) in [(&[("s", "U8", &[100][..], 100)][..], 2 << 20), (&[("e", "U8", &[0][..], 0)], 0)]
    {
        write_model(&path, tensors);
        let ended = common::metrale_on("load", &path, &["--driver", driver, "--arena", "--json"]);
        assert_eq!(
            (ended.exit, ended.json()["driver_used_bytes"].as_u64()),
            (Exit::Done, Some(used)),
            "{}",
            ended.err
        );
    }
}

#[test]
fn a_file_with_data_arrives_in_an_arena_on_the_software_device() {
    a_file_with_data_arrives_in_an_arena("sim");
}

#[test]
fn an_arena_that_does_not_fit_ends_with_3() {
    let ended = metrale(["load", "--model", "qwen3-next", "--driver", "sim", "--arena", "--json"]);
    assert_eq!(ended.exit, Exit::OutOfMemory, "{}", ended.err);
    let json = ended.json();
    assert_eq!(json["error"]["kind"], "out_of_memory");
    let message = json["error"]["message"].as_str().unwrap();
    assert!(message.contains("making an arena of") && message.contains("arena memory"), "{message}");
    assert_eq!((&json["live_bytes"], &json["swept_allocations"]), (&0.into(), &0.into()));
}

#[test]
fn a_model_that_does_not_fit_ends_with_3_and_the_whole_answer() {
    let ended = metrale(["load", "--model", "qwen3-next", "--driver", "sim", "--json"]);
    assert_eq!(ended.exit, Exit::OutOfMemory, "{}", ended.err);
    let json = ended.json();
    let error = &json["error"];
    assert_eq!(error["kind"], "out_of_memory");
    let requested = error["requested_bytes"].as_u64().unwrap();
    assert!(requested > error["free_bytes"].as_u64().unwrap());
    assert_eq!(error["total_bytes"], 150_109_880_320_u64);
    let message = error["message"].as_str().unwrap();
    let largest = json["scopes"][0]["scope"].as_str().unwrap();
    assert!(message.contains(largest), "the largest scope {largest} is named in: {message}");
    assert!(message.contains("load.rs:"), "{message}");
    assert!(ended.err.contains(message), "the answer is said on standard error too");
    assert_eq!(json["swept_allocations"], 0, "everything was freed");
    assert_eq!(json["unexplained_bytes"], 0);

    let text = metrale(["load", "--model", "qwen3-next", "--driver", "sim"]);
    assert_eq!(text.exit, Exit::OutOfMemory);
    assert!(text.out.contains("did not fit"), "{}", text.out);
}

fn a_file_with_data_arrives(driver: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    // More than two buffers of 1 MiB, pieces that straddle their ends, an empty tensor, odd sizes.
    let tensors: [(&str, &str, &[u64], usize); 5] = [
        ("model.layers.0.mlp.down_proj.weight", "F32", &[700, 1000], 2_800_000),
        ("model.layers.0.mlp.bias", "U8", &[13], 13),
        ("model.layers.0.mlp.empty", "F16", &[0, 8], 0),
        ("model.layers.1.attn.weight", "BF16", &[1_500_001], 3_000_002),
        ("lm_head.weight", "I64", &[], 8),
    ];
    write_model(&path, &tensors);
    let args = ["load".as_ref(), path.as_os_str(), "--driver".as_ref(), driver.as_ref()];
    let more = ["--json", "--verify", "3", "--buffer-mb", "1"].map(AsRef::as_ref);
    let ended = metrale(args.into_iter().chain(more));
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    let json = ended.json();
    assert_eq!(json["tensors"], 5);
    assert_eq!(json["empty_tensors"], 1);
    assert_eq!(json["allocations"], 4);
    assert_eq!(json["bytes_copied"], 2_800_000 + 13 + 3_000_002 + 8);
    assert_eq!(json["live_bytes"], json["bytes_copied"]);
    assert_eq!(json["verified_tensors"], 3);
    // 2 pages for each of the two large ones, one chunk for the two small ones.
    assert_eq!(json["resident_bytes"], (2 + 2 + 1) * (2 << 20));
    assert_eq!(json["unexplained_bytes"], 0);
    let scopes: Vec<_> = json["scopes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["scope"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(scopes, ["model.layers.1.attn", "model.layers.0.mlp", "lm_head"]);
}

#[test]
fn a_file_with_data_arrives_on_the_software_device() {
    a_file_with_data_arrives("sim");
}

mod a_file_with_data_on_the_gpu {
    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        super::a_file_with_data_arrives("system");
    }
}

#[test]
fn a_sharded_model_loads_by_its_index_and_a_missing_shard_is_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    let shards = ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"];
    fs::write(
        &index,
        serde_json::json!({"metadata": {"total_size": 12}, "weight_map": {"a": shards[0], "b": shards[1]}})
            .to_string(),
    )
    .unwrap();
    write_model(&folder.path().join(shards[0]), &[("a", "F32", &[2], 8)]);
    let args =
        || ["load".into(), index.clone().into_os_string(), "--driver".into(), "sim".into(), "--json".into()];

    let missing = metrale(args());
    assert_eq!(missing.exit, Exit::BadInput);
    assert!(missing.err.contains(shards[1]), "{}", missing.err);
    assert_eq!(missing.json()["error"]["kind"], "bad_input");

    write_model(&folder.path().join(shards[1]), &[("b", "F32", &[1], 4)]);
    let ended = metrale(args());
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    assert_eq!(ended.json()["allocations"], 2);
    assert_eq!(ended.json()["live_bytes"], 12);

    // A leading "./" is the index's own folder.
    let map = serde_json::json!({"weight_map": {"a": format!("./{}", shards[0]), "b": shards[1]}});
    fs::write(&index, map.to_string()).unwrap();
    assert_eq!(metrale(args()).exit, Exit::Done);
}

#[test]
fn every_refused_safetensors_case_ends_with_2_says_why_and_prints_no_answer() {
    let mut refused = 0;
    for entry in fs::read_dir(data("safetensors")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let ended = metrale(["load".into(), path.into_os_string(), "--driver".into(), "sim".into()]);
        if name.contains("bad") {
            refused += 1;
            assert_eq!(ended.exit, Exit::BadInput, "{name}");
            assert!(ended.err.contains(&name), "{name}: {}", ended.err);
            assert_eq!(ended.out, "", "{name}");
        } else if name.contains("ok") {
            assert_eq!(ended.exit, Exit::Done, "{name}: {}", ended.err);
        }
    }
    assert!(refused > 20, "only {refused} bad cases found");
}

#[test]
fn a_directory_an_empty_file_and_a_missing_one_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.safetensors");
    fs::write(&empty, "").unwrap();
    let absent = folder.path().join("absent.safetensors");
    for path in [folder.path(), &empty, &absent] {
        let ended = metrale(["load".into(), path.as_os_str().to_owned(), "--driver".into(), "sim".into()]);
        assert_eq!(ended.exit, Exit::BadInput, "{}", path.display());
        assert!(ended.err.contains(path.to_str().unwrap()), "{}", ended.err);
    }
}

#[test]
fn command_lines_that_make_no_sense_end_with_2() {
    for args in [
        &["load"][..],
        &["load", "--model", "no-such-model"],
        &["load", "--model", "gpt2", "--driver", "sim:b300"],
        &["load", "--model", "gpt2", "file.safetensors"],
        &["load", "--model", "gpt2", "--buffer-mb", "0"],
        &["frobnicate"],
        &[],
    ] {
        let ended = metrale(args.iter().copied());
        assert_eq!(ended.exit, Exit::BadInput, "{args:?}: {} {}", ended.out, ended.err);
        assert!(!ended.err.is_empty(), "{args:?}");
    }
    let near = metrale(["load", "--model", "lama-7b", "--driver", "sim"]);
    assert!(near.err.contains("llama-7b"), "{}", near.err);
}

#[test]
fn an_ordinal_that_is_not_there_fails_and_says_how_many_there_are() {
    let ended = metrale(["load", "--model", "gpt2", "--driver", "sim", "--device", "3"]);
    assert_eq!(ended.exit, Exit::Failed);
    assert!(ended.err.contains("device 3") && ended.err.contains("1 device"), "{}", ended.err);
}

#[test]
fn the_text_names_driver_scopes_and_the_sum() {
    let ended = metrale(["load", "--model", "bert-base", "--driver", "sim"]);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    for part in
        ["software h200", "NVIDIA H200", "bert.encoder.layer.0", "301989888", "219030644", "sweep found 0"]
    {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }
}

#[test]
fn help_version_and_the_catalogue_are_answers() {
    for args in [&["--help"][..], &["--version"], &["load", "--help"]] {
        assert_eq!(metrale(args.iter().copied()).exit, Exit::Done, "{args:?}");
    }
    let list = metrale(["load", "--list-models"]);
    assert_eq!(list.exit, Exit::Done);
    assert!(list.out.lines().any(|line| line == "qwen3-next"), "{}", list.out);
}

#[test]
fn a_failure_before_the_first_tensor_is_json_too() {
    let ended = metrale(["load", "--model", "gpt2", "--driver", "sim", "--device", "7", "--json"]);
    assert_eq!(ended.exit, Exit::Failed);
    let json = ended.json();
    assert_eq!(json["error"]["kind"], "failed");
    assert!(json["error"]["message"].as_str().unwrap().contains("device 7"), "{json}");
}

#[test]
fn bad_input_and_the_list_of_models_are_json_too() {
    let ended = metrale(["load", "/nonexistent/model.safetensors", "--json"]);
    assert_eq!(ended.exit, Exit::BadInput);
    let json = ended.json();
    assert_eq!(json["error"]["kind"], "bad_input");
    assert_eq!(json["model"], "/nonexistent/model.safetensors");
    let list = metrale(["load", "--list-models", "--json"]);
    assert!(list.json().as_array().unwrap().iter().any(|name| name == "llama-7b"));
}

/// An output that fails with one kind of error.
struct Broken(std::io::ErrorKind);

impl std::io::Write for Broken {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_said_and_a_reader_that_left_is_no_failure() {
    use std::io::ErrorKind::{BrokenPipe, StorageFull};
    for args in
        [&["load", "--model", "gpt2", "--driver", "sim"][..], &["doctor", "--driver", "sim"], &["--help"]]
    {
        for (kind, exit) in [(StorageFull, Exit::Failed), (BrokenPipe, Exit::Done)] {
            let mut err = Vec::new();
            let all = std::iter::once("metrale").chain(args.iter().copied());
            let ended = run(all.map(Into::into), &mut Console::new(&mut Broken(kind), &mut err, false));
            assert_eq!(ended, exit, "{args:?} {kind:?}");
            let said = String::from_utf8(err).unwrap();
            assert_eq!(said.contains("cannot be written"), exit == Exit::Failed, "{args:?}: {said}");
        }
    }
}

#[test]
fn a_file_that_became_shorter_is_refused_before_it_is_read() {
    use metrale_cli::model::{InputError, ModelInput};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_model(&path, &[("a", "U8", &[100_000], 100_000)]);
    let input = ModelInput::open(std::slice::from_ref(&path), None).unwrap();
    let tensor = &input.tensors()[0];
    input.check_whole(tensor).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let error = input.check_whole(tensor).unwrap_err();
    assert!(matches!(&error, InputError::Shrunk(shrunk) if *shrunk == path), "{error}");
    assert_eq!(error.exit_code(), 2);
}

/// The other way round than `replay MODEL`: the answer names the commands that take the file.
#[test]
fn a_log_given_as_a_model_is_told_to_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let log = "Action,Pointer,Size\nallocate,0x1,5\n";
    fs::write(path("log.csv"), log).unwrap();
    fs::write(path("memory.log"), "1,10:00:00.1,allocate,0x10,512,0x0\n").unwrap();
    fs::write(path("rmm_debug"), format!("[INFO] pool grew\n{log}")).unwrap();
    let packed = fs::read(recorded_log("random-1.csv.gz")).unwrap();
    fs::write(path("packed"), packed).unwrap();
    for name in ["log.csv", "memory.log", "rmm_debug", "packed"] {
        for more in [&["--driver", "sim"][..], &["--driver", "sim", "--arena"]] {
            let ended = metrale_on("load", &path(name), more);
            assert_eq!(ended.exit, Exit::BadInput, "{name}: {}", ended.err);
            assert!(
                ended.err.contains(
                    "this is an allocation log, not a model: metrale plan and metrale replay take it"
                ),
                "{name}: {}",
                ended.err
            );
        }
    }
    // What is neither keeps its own answer.
    for (name, text) in
        [("notes.txt", "shopping list\n"), ("odd.csv", "a,b,c\n1,2,3\n"), ("page.html", "<html>")]
    {
        fs::write(path(name), text).unwrap();
        let ended = metrale_on("load", &path(name), &["--driver", "sim"]);
        assert_eq!(ended.exit, Exit::BadInput);
        assert!(!ended.err.contains("allocation log"), "{name}: {}", ended.err);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a model may be given as: files, an index, a catalogue name, and everything that is none of these.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use metrale_cli::model::{InputError, ModelInput, TensorSpec};
use tempfile::TempDir;

/// A safetensors file of one-byte tensors, `(name, bytes)`, in the order given.
fn file_of(tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, bytes) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        let entry =
            serde_json::json!({"dtype": "U8", "shape": [bytes.len()], "data_offsets": [begin, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file
}

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn open(folder: &TempDir, names: &[&str]) -> Result<ModelInput, InputError> {
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.path().join(name)).collect();
    ModelInput::open(&paths, None)
}

fn refusal(result: Result<ModelInput, InputError>) -> String {
    let error = result.expect_err("must be refused");
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

fn names(input: &ModelInput) -> Vec<&str> {
    input.tensors().iter().map(|tensor| &*tensor.name).collect()
}

fn warnings(input: &ModelInput) -> Vec<String> {
    input.remarks().iter().map(ToString::to_string).collect()
}

fn case(name: &str) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/index").join(format!("{name}.index.json"));
    fs::read(path).unwrap()
}

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "m-00001-of-00002.safetensors";
const SECOND: &str = "m-00002-of-00002.safetensors";

/// The index case beside two shards, 16 bytes under `a` and 8 under `b`.
fn two_shards(index: &str) -> TempDir {
    folder(&[
        (INDEX, case(index)),
        (FIRST, file_of(&[("a", &[1; 16])])),
        (SECOND, file_of(&[("b", &[2; 8])])),
    ])
}

#[test]
fn an_index_opens_its_shards() {
    for index in ["i01_ok", "i02_no_metadata"] {
        let input = open(&two_shards(index), &[INDEX]).unwrap();
        assert_eq!(names(&input), ["a", "b"]);
        assert_eq!(input.files().len(), 2);
        assert_eq!(warnings(&input), [""; 0], "{index}");
        let data: Vec<_> = input.tensors().iter().map(|t| input.data(t).unwrap().to_vec()).collect();
        assert_eq!(data, [vec![1; 16], vec![2; 8]]);
    }
}

#[test]
fn an_index_is_known_by_its_content() {
    let folder = two_shards("i01_ok");
    fs::rename(folder.path().join(INDEX), folder.path().join("weights.safetensors")).unwrap();
    let input = open(&folder, &["weights.safetensors"]).unwrap();
    assert_eq!(names(&input), ["a", "b"]);
}

#[test]
fn a_single_file_may_have_an_index() {
    let folder = folder(&[
        (INDEX, case("i13_single_file_named_index")),
        ("model.safetensors", file_of(&[("a", &[3])])),
    ]);
    let input = open(&folder, &[INDEX]).unwrap();
    assert_eq!(names(&input), ["a"]);
    assert!(input.remarks().is_empty());
}

#[test]
fn a_tensor_that_is_not_in_its_shard_is_refused() {
    let text = refusal(open(&two_shards("i04_tensor_not_in_shard"), &[INDEX]));
    assert!(text.contains("1 tensor not in shard \"m-00002-of-00002.safetensors\""), "{text}");
    assert!(text.contains("\"ghost\"") && text.contains(INDEX), "{text}");
}

#[test]
fn a_missing_shard_is_refused_and_all_are_named() {
    let text = refusal(open(&folder(&[(INDEX, case("i01_ok"))]), &[INDEX]));
    assert!(text.contains(&format!("missing 2 shards: \"{FIRST}\", \"{SECOND}\": fetch them")), "{text}");
    let text = refusal(open(&folder(&[(INDEX, case("i01_ok")), (FIRST, file_of(&[("a", &[1])]))]), &[INDEX]));
    assert!(text.contains(&format!("missing 1 shard: \"{SECOND}\"")), "{text}");
}

#[test]
fn a_shard_outside_the_folder_is_refused() {
    let text = refusal(open(&folder(&[(INDEX, case("i05_path_traversal"))]), &[INDEX]));
    assert!(text.contains("shard name \"../../../etc/passwd\" leaves the folder"), "{text}");
    for shard in ["/etc/passwd", "a/../../b", ".."] {
        let index = serde_json::to_vec(&serde_json::json!({"weight_map": {"a": shard}})).unwrap();
        let text = refusal(open(&folder(&[(INDEX, index)]), &[INDEX]));
        assert!(text.contains("leaves the folder"), "{text}");
    }
}

#[test]
fn a_shard_below_the_folder_is_found_and_a_backslash_is_no_border() {
    let index = br#"{"weight_map": {"a": "sub/m.safetensors"}}"#.to_vec();
    let input = open(&folder(&[(INDEX, index), ("sub/m.safetensors", file_of(&[("a", &[1])]))]), &[INDEX]);
    assert_eq!(names(&input.unwrap()), ["a"]);

    let shard = ("sub/m-00001-of-00001.safetensors", file_of(&[("a", &[1])]));
    let text = refusal(open(&folder(&[(INDEX, case("i14_backslash_subdir")), shard]), &[INDEX]));
    assert!(text.contains(r#"shard name "sub\\m-00001-of-00001.safetensors" is not usable"#), "{text}");
    for shard in ["", "a\0b", "a\nb"] {
        let index = serde_json::to_vec(&serde_json::json!({"weight_map": {"a": shard}})).unwrap();
        assert!(refusal(open(&folder(&[(INDEX, index)]), &[INDEX])).contains("is not usable"));
    }
}

#[test]
fn the_total_size_is_advice() {
    let shard = ("m-00001-of-00001.safetensors", file_of(&[("a", &[1; 24])]));
    let input = open(&folder(&[(INDEX, case("i07_total_size_float")), shard.clone()]), &[INDEX]).unwrap();
    assert_eq!(
        warnings(&input),
        [
            "warning: total_size in the index is 15000000000.0, the shards hold 24 bytes: taken from the shards"
        ]
    );
    let input = open(&two_shards("i08_total_size_wrong"), &[INDEX]).unwrap();
    assert_eq!(
        warnings(&input),
        ["warning: total_size in the index is 9999999999, the shards hold 24 bytes: taken from the shards"]
    );
    for (total, expected) in [
        ("24", ""),
        ("24.0", ""),
        ("\"24\"", "is not a number"),
        ("-1", "is -1"),
        ("null", "is not a number"),
    ] {
        let index = format!(
            r#"{{"metadata":{{"total_size":{total}}},"weight_map":{{"a":"m-00001-of-00001.safetensors"}}}}"#
        );
        let input = open(&folder(&[(INDEX, index.into_bytes()), shard.clone()]), &[INDEX]).unwrap();
        let said = warnings(&input).join("\n");
        assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{total}: {said}");
    }
}

#[test]
fn a_name_mapped_twice_is_refused() {
    let text = refusal(open(&two_shards("i10_duplicate_key"), &[INDEX]));
    assert!(
        text.contains(&format!("tensor \"a\" is mapped twice, to \"{FIRST}\" and to \"{SECOND}\"")),
        "{text}"
    );
}

#[test]
fn a_stray_file_is_left_out_with_a_warning() {
    let folder = folder(&[
        (INDEX, case("i11_stray_extra_file")),
        ("m-00001-of-00001.safetensors", file_of(&[("a", &[1; 24])])),
        ("m-old.safetensors", file_of(&[("a", &[9; 24])])),
    ]);
    let input = open(&folder, &[INDEX]).unwrap();
    assert_eq!((names(&input), input.data(&input.tensors()[0])), (vec!["a"], Some(&[1; 24][..])));
    assert_eq!(
        warnings(&input),
        ["warning: 1 file beside the shards that the index does not name, left out: \"m-old.safetensors\""]
    );
}

#[test]
fn a_tensor_the_index_leaves_out_is_left_out_with_a_warning() {
    let index = br#"{"weight_map": {"a": "m.safetensors"}}"#.to_vec();
    let folder = folder(&[(INDEX, index), ("m.safetensors", file_of(&[("a", &[1]), ("extra", &[2])]))]);
    let input = open(&folder, &[INDEX]).unwrap();
    assert_eq!(names(&input), ["a"]);
    assert!(
        warnings(&input)[0].contains("1 tensor in shard \"m.safetensors\" that the index does not map to it")
    );
}

#[test]
fn shards_come_by_name_and_tensors_by_offset() {
    let index = br#"{"weight_map": {"z": "1.safetensors", "c": "2.safetensors", "a": "2.safetensors", "y": "1.safetensors"}}"#;
    let folder = folder(&[
        (INDEX, index.to_vec()),
        ("1.safetensors", case_in_order(&["z", "y"])),
        ("2.safetensors", case_in_order(&["c", "a"])),
    ]);
    assert_eq!(names(&open(&folder, &[INDEX]).unwrap()), ["z", "y", "c", "a"]);
}

/// One byte a tensor, data in the order given, whatever the header's.
fn case_in_order(names: &[&str]) -> Vec<u8> {
    let entries: BTreeMap<&str, usize> = names.iter().enumerate().map(|(i, name)| (*name, i)).collect();
    let header: Vec<String> = entries
        .iter()
        .map(|(name, i)| format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#, i + 1))
        .collect();
    let header = format!("{{{}}}", header.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(vec![0; names.len()]);
    file
}

#[test]
fn a_bad_shard_is_named_with_its_defect() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec();
    let folder = folder(&[(INDEX, case("i01_ok")), (FIRST, file_of(&[("a", &[1])])), (SECOND, pointer)]);
    let text = refusal(open(&folder, &[INDEX]));
    assert!(
        text.contains(&format!(
            "shard \"{SECOND}\": this is a Git LFS pointer, not safetensors: run git lfs pull"
        )),
        "{text}"
    );
}

#[test]
fn json_that_is_no_index_is_refused() {
    for (json, part) in [
        (r#"{"architectures": ["BertModel"]}"#, "not an index of shards: missing field `weight_map`"),
        (r#"{"weight_map": {}}"#, "the index maps no tensor"),
        (r#"{"weight_map": ["a"]}"#, "not an index of shards: invalid type: sequence"),
        (r#"{"weight_map": {"a": 1}}"#, "not an index of shards: invalid type: integer `1`"),
        (r#"{"weight_map": {"a": "b"}, "weight_map": {}}"#, "duplicate field `weight_map`"),
        (r#"{"weight_map": {"a": "#, "the index is not JSON: EOF"),
        ("[1, 2]", "not an index of shards: invalid type: sequence"),
        ("{}", "missing field `weight_map`"),
    ] {
        let text = refusal(open(&folder(&[(INDEX, json.as_bytes().to_vec())]), &[INDEX]));
        assert!(text.contains(part), "{json}: {text}");
    }
    let mut latin = br#"{"weight_map": {"a": ""#.to_vec();
    latin.push(0xe9);
    assert!(refusal(open(&folder(&[(INDEX, latin)]), &[INDEX])).contains("not UTF-8 text (byte 22)"));
}

#[test]
fn several_files_come_in_the_order_given() {
    let folder = folder(&[("b", file_of(&[("x", &[1]), ("y", &[2])])), ("a", file_of(&[("z", &[3])]))]);
    let input = open(&folder, &["b", "a"]).unwrap();
    assert_eq!(names(&input), ["x", "y", "z"]);
    assert_eq!(input.title(), "2 files");
    assert_eq!(input.data(&input.tensors()[2]), Some(&[3][..]));
    assert_eq!(names(&open(&folder, &["a", "b"]).unwrap()), ["z", "x", "y"]);
}

#[test]
fn a_name_in_two_files_is_refused() {
    let folder = folder(&[("b", file_of(&[("x", &[1])])), ("a", file_of(&[("y", &[1]), ("x", &[1])]))]);
    let text = refusal(open(&folder, &["b", "a"]));
    let paths = format!("in {0}/b and {0}/a:", folder.path().display());
    assert!(text.contains("duplicate tensor name \"x\"") && text.contains(&paths), "{text}");
    assert!(refusal(open(&folder, &["b", "b"])).contains("each once"));
}

#[test]
fn an_index_stands_alone() {
    let folder = two_shards("i01_ok");
    for order in [[INDEX, FIRST], [FIRST, INDEX]] {
        assert!(refusal(open(&folder, &order)).contains("is an index of shards: it is given alone"));
    }
}

#[test]
fn paths_that_are_no_model() {
    let folder = folder(&[
        ("empty", vec![]),
        ("model.bin", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec()),
        ("model.gguf", b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0".to_vec()),
        ("junk.pt", vec![0xab; 64]),
        ("junk", vec![0xab; 64]),
        ("utf8", [&4u64.to_le_bytes()[..], b"{\"\xff\""].concat()),
        ("sub/model.safetensors", file_of(&[])),
    ]);
    for (name, part) in [
        ("empty", "the file is empty"),
        ("nowhere", "no such file"),
        ("sub", "this is a directory: give the files in it, such as"),
        ("model.bin", "this is a PyTorch pickle, not safetensors: convert it to safetensors"),
        ("model.gguf", "this is a GGUF file, not safetensors"),
        ("junk.pt", "this is a PyTorch checkpoint, by its name, not safetensors: convert it"),
        ("junk", "header too large"),
        ("utf8", "the header is not UTF-8 text (byte 2 of it)"),
    ] {
        let text = refusal(open(&folder, &[name]));
        assert!(text.starts_with(&folder.path().join(name).display().to_string()), "{text}");
        assert!(text.contains(part), "{name}: {text}");
    }
    assert!(refusal(ModelInput::open(&["/dev/null".into()], None)).contains("not a regular file"));
    let nul = PathBuf::from("a\0b");
    assert!(refusal(ModelInput::open(&[nul], None)).starts_with("a\\0b: the file cannot be read"));
}

#[test]
fn data_offsets_past_the_end_are_refused_before_the_reader_adds_them_up() {
    // Eight tensors of nearly 2^61 bytes: each size has a number, and adding the header to their end overflows.
    let step = (1u64 << 61) - 1;
    let entries: Vec<String> = (0..8)
        .map(|i| {
            let end = if i == 7 { u64::MAX - 7 } else { (i + 1) * step };
            let (begin, size) = (i * step, end - i * step);
            format!(r#""t{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let text = refusal(open(&folder(&[("m", file)]), &["m"]));
    assert!(text.contains("tensor \"t0\": data offsets past the end"), "{text}");
}

#[test]
fn a_file_cut_short_is_refused() {
    let whole = file_of(&[("a", &[1; 16]), ("b", &[2; 16])]);
    let folder = folder(&[("m", whole[..whole.len() - 1].to_vec())]);
    let text = refusal(open(&folder, &["m"]));
    assert!(
        text.contains("tensor \"b\": data offsets past the end: they end at 32, the file has 31"),
        "{text}"
    );
}

#[test]
fn a_catalogue_model_has_tensors_and_no_data() {
    let input = ModelInput::open(&[], Some("llama-7b")).unwrap();
    assert_eq!((input.tensors().len(), input.total_bytes()), (293, 13_476_831_488));
    assert_eq!(input.title(), "llama-7b (catalogue)");
    assert!(input.files().is_empty() && input.data(&input.tensors()[0]).is_none());
    let text = refusal(ModelInput::open(&[], Some("lama-7b")));
    assert!(text.contains("did you mean llama-7b?") && text.contains("whisper-base"), "{text}");
}

#[test]
fn nothing_and_both_are_refused() {
    assert!(refusal(ModelInput::open(&[], None)).contains("no model given"));
    assert!(
        refusal(ModelInput::open(&["x".into()], Some("gpt2"))).contains("both files and --model \"gpt2\"")
    );
}

#[test]
fn a_file_of_64_gib_is_opened_by_its_header() {
    const DATA: u64 = 64 << 30;
    let header = format!(r#"{{"w":{{"dtype":"BF16","shape":[{}],"data_offsets":[0,{DATA}]}}}}"#, DATA / 2);
    let folder = folder(&[("m", [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())]);
    let path = folder.path().join("m");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + DATA).unwrap();
    let input = ModelInput::open(&[path], None).unwrap();
    let [TensorSpec { bytes, .. }] = input.tensors() else { panic!("{:?}", input.tensors()) };
    assert_eq!(*bytes, DATA);
    // The first and last bytes are in reach; nothing between them was touched.
    let data = input.data(&input.tensors()[0]).unwrap();
    assert_eq!((data.first(), data.last(), data.len() as u64), (Some(&0), Some(&0), DATA));
}

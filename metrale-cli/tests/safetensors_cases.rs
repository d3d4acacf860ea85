// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every awkward safetensors file of `tests/data/safetensors`, with the verdict it must get.

use std::path::{Path, PathBuf};

use metrale_cli::model::{Dtype, INPUT_EXIT_CODE, ModelInput, Remark, Shown};

/// What a file must get.
enum Want {
    /// Accepted, with this many tensors.
    Accept(usize),
    /// Refused, with this in the message.
    Refuse(&'static str),
}
use Want::{Accept, Refuse};

const CASES: &[(&str, Want)] = &[
    ("s01_ok_two", Accept(2)),
    ("s02_ok_space_padding", Accept(2)),
    ("s04_ok_metadata", Accept(2)),
    ("s05_bad_metadata_int", Refuse("__metadata__ must map text to text: invalid type: integer `1`")),
    ("s05c_bad_metadata_nested", Refuse("__metadata__ must map text to text: invalid type: map")),
    ("s06_ok_zero_size", Accept(2)),
    ("s06c_ok_all_zero_size", Accept(2)),
    ("s06d_zero_size_end_of_file", Accept(2)),
    (
        "s06f_bad_nonzero_shape_zero_bytes",
        Refuse("size mismatch: shape [1] of F32 takes 4 bytes, its data offsets hold 0"),
    ),
    ("s07_ok_scalar", Accept(1)),
    ("s08_dtype_BOOL", Accept(1)),
    ("s08_dtype_C64", Accept(1)),
    ("s08_dtype_F64", Accept(1)),
    ("s08_dtype_F6_E2M3", Accept(1)),
    ("s08_dtype_F8_E4M3", Accept(1)),
    ("s08_dtype_F8_E4M3FNUZ", Accept(1)),
    ("s08_dtype_F8_E5M2FNUZ", Accept(1)),
    ("s08_dtype_F8_E8M0", Accept(1)),
    ("s08_dtype_I8", Accept(1)),
    ("s08_dtype_U16", Accept(1)),
    ("s08_dtype_U64", Accept(1)),
    ("s08_dtype_U8", Accept(1)),
    ("s09b_bad_f6_not_whole_bytes", Refuse("takes 18 bits, which is no whole number of bytes")),
    ("s10_bad_dtype_unknown", Refuse("tensor \"t\": unknown dtype \"F128\", known are BOOL, F4,")),
    (
        "s11_bad_overlap",
        Refuse("overlapping data offsets: tensor \"b\" begins at 4, inside \"a\", which ends at 8"),
    ),
    ("s11b_bad_same_range_shared", Refuse("share one range (bytes 0 to 8)")),
    ("s12b_bad_hole_middle", Refuse("hole in the data: bytes 4 to 8, before tensor \"b\"")),
    (
        "s13_bad_trailing_bytes",
        Refuse("trailing bytes: the tensors end at 32, the file has 40 bytes of data"),
    ),
    ("s15_bad_duplicate_name", Refuse("duplicate tensor name \"a\"")),
    ("s15b_duplicate_name_identical", Refuse("duplicate tensor name \"a\"")),
    ("s15d_duplicate_metadata", Refuse("duplicate field `__metadata__`")),
    ("s16_bad_reversed_offsets", Refuse("reversed data offsets: begin 4 is past end 0")),
    ("s17b_bad_float_offset", Refuse("tensor \"a\": data_offsets: invalid type: floating point `0.0`")),
    ("s17c_bad_string_offset", Refuse("tensor \"a\": data_offsets: invalid type: string \"0\"")),
    ("s17e_bad_offset_over_u64", Refuse("tensor \"a\": data_offsets: invalid type: floating point")),
    ("s18_bad_shape_overflow_mul", Refuse("shape [8589934592, 8589934592] of F32 overflows")),
    ("s18c_bad_bits_overflow", Refuse("shape [2305843009213693952] of F64 overflows")),
    ("s18d_zero_times_huge", Accept(1)),
    ("s19_bad_len_zero", Refuse("the header is empty")),
    (
        "s19b_bad_len_past_file",
        Refuse("header length past the end: the header should have 4096 bytes, the file has 153"),
    ),
    (
        "s19d_bad_len_over_100MB",
        Refuse(
            "header too large: the first 8 bytes give a header of 100000001 bytes, the limit is 100,000,000",
        ),
    ),
    ("s19e_bad_len_one_short", Refuse("the header is not JSON: EOF while parsing an object")),
    ("s20b_policy_leading_newline", Accept(2)),
    ("s20c_bad_bom", Refuse("byte order mark")),
    ("s22_bad_nul_padding", Refuse("the header is not JSON: trailing characters")),
    ("s22b_pad_tab_newline", Accept(2)),
    ("s23_ok_unordered_header", Accept(2)),
    ("s24_ok_empty_object", Accept(0)),
    ("s24c_bad_empty_object_with_payload", Refuse("trailing bytes")),
    ("s25_extra_field", Accept(1)),
    ("s25c_bad_array_header", Refuse("not a safetensors header: invalid type: sequence")),
    ("s25d_bad_tensor_is_list", Refuse("tensor \"a\": invalid type: sequence")),
    ("s26b_name_nul_escape", Accept(1)),
    ("s26c_name_path", Accept(1)),
    (
        "s27_bad_size_mismatch_small",
        Refuse("size mismatch: shape [1000, 1000] of F32 takes 4000000 bytes, its data offsets hold 4"),
    ),
    (
        "s27b_bad_size_mismatch_large",
        Refuse("size mismatch: shape [1] of F32 takes 4 bytes, its data offsets hold 16"),
    ),
    ("s29_many_tensors", Accept(200)),
    ("s30_bad_file_7_bytes", Refuse("the file has 7 bytes, too short")),
    ("s30c_html_error_page", Refuse("this is HTML, not safetensors")),
    ("s30d_git_lfs_pointer", Refuse("this is a Git LFS pointer, not safetensors: run git lfs pull")),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/safetensors")
}

fn open(name: &str) -> Result<ModelInput, metrale_cli::model::InputError> {
    ModelInput::open(&[folder().join(format!("{name}.safetensors"))], None)
}

#[test]
fn every_case_gets_its_verdict() {
    for (name, want) in CASES {
        match (open(name), want) {
            (Ok(input), Accept(count)) => {
                assert_eq!(input.tensors().len(), *count, "{name}");
                for tensor in input.tensors() {
                    assert_eq!(input.data(tensor).map(|d| d.len() as u64), Some(tensor.bytes), "{name}");
                }
            }
            (Err(error), Refuse(part)) => {
                let text = error.to_string();
                assert!(text.contains(part), "{name}: {text}");
                assert!(text.contains(&format!("{name}.safetensors: ")), "names the file: {text}");
                assert_eq!(error.exit_code(), INPUT_EXIT_CODE);
            }
            (Ok(_), Refuse(part)) => panic!("{name} was accepted, not refused for: {part}"),
            (Err(error), Accept(_)) => panic!("{name} was refused: {error}"),
        }
    }
}

#[test]
fn every_file_has_a_case() {
    let mut files: Vec<String> = folder()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    let mut cases: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
    cases.sort_unstable();
    assert_eq!(files, cases);
}

#[test]
fn tensors_come_by_data_offset() {
    let input = open("s23_ok_unordered_header").unwrap();
    let names: Vec<_> = input.tensors().iter().map(|t| (&*t.name, t.dtype, t.bytes)).collect();
    assert_eq!(names, [("a", Dtype::F32, 4), ("z", Dtype::U8, 2)]);
    // The file's data begins 05 2a 4f 74 | 99 be.
    assert_eq!(input.data(&input.tensors()[0]), Some(&[0x05, 0x2a, 0x4f, 0x74][..]));
    assert_eq!(input.data(&input.tensors()[1]), Some(&[0x99, 0xbe][..]));

    let many = open("s29_many_tensors").unwrap();
    for (i, tensor) in many.tensors().iter().enumerate() {
        assert_eq!(tensor.name, format!("layers.{i}.w"));
    }
}

#[test]
fn tensors_of_no_bytes_are_counted() {
    let input = open("s06_ok_zero_size").unwrap();
    assert_eq!((input.tensors().len(), input.empty_tensors(), input.total_bytes()), (2, 1, 8));
    let huge = open("s18d_zero_times_huge").unwrap();
    assert_eq!(huge.tensors()[0].shape, [0, u64::MAX]);
    assert_eq!(huge.total_bytes(), 0);
}

#[test]
fn an_unknown_field_is_a_note_and_nothing_else_is() {
    for (name, want) in CASES {
        if let (Ok(input), Accept(_)) = (open(name), want) {
            if *name == "s25_extra_field" {
                let [note @ Remark::Note(_)] = input.remarks() else { panic!("{:?}", input.remarks()) };
                assert!(
                    note.to_string()
                        .ends_with("field \"stride\" of tensor \"a\" is not of the format and ignored")
                );
            } else {
                assert_eq!(input.remarks(), [], "{name}");
            }
        }
    }
}

#[test]
fn a_name_with_a_control_character_is_kept_and_printed_escaped() {
    let input = open("s26b_name_nul_escape").unwrap();
    assert_eq!(input.tensors()[0].name, "a\0b");
    assert_eq!(Shown(&input.tensors()[0].name).to_string(), r#""a\0b""#);
}

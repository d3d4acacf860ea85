// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random files against the format's own reader: what it refuses is refused here, what is accepted here it reads
//! the same, and nothing panics.

use std::fs;

use metrale_cli::model::ModelInput;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use safetensors::SafeTensors;

/// Opens the bytes as a file and holds the answer against the reader's.
fn check(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    fs::write(&path, bytes).unwrap();
    let Ok(input) = ModelInput::open(&[path], None) else { return Ok(false) };
    let peer = SafeTensors::deserialize(bytes)
        .map_err(|e| TestCaseError::fail(format!("the reader refuses: {e}")))?;
    prop_assert_eq!(peer.len(), input.tensors().len());
    let mut end = 0;
    for tensor in input.tensors() {
        let view = peer.tensor(&tensor.name).unwrap();
        prop_assert_eq!(input.data(tensor), Some(view.data()));
        prop_assert_eq!(tensor.dtype, view.dtype());
        let shape: Vec<u64> = view.shape().iter().map(|&dim| dim as u64).collect();
        prop_assert_eq!(&tensor.shape, &shape);
        let begin = view.data().as_ptr().addr();
        prop_assert!(begin >= end, "not by offset");
        end = begin + view.data().len();
    }
    Ok(true)
}

fn dtype() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("U8"), Just("BF16"), Just("F32"), Just("F4"), Just("F6_E3M2"), Just("F7")]
}

/// A tensor entry; offsets are mostly right, given where the one before ended.
#[derive(Debug, Clone)]
struct Entry {
    name: u8,
    dtype: &'static str,
    shape: Vec<u64>,
    shift: i64,
}

fn entry() -> impl Strategy<Value = Entry> {
    let shape = proptest::collection::vec(prop_oneof![8 => 0u64..5, 1 => Just(u64::MAX)], 0..3);
    let shift = prop_oneof![12 => Just(0i64), 1 => -8i64..8];
    (0u8..40, dtype(), shape, shift).prop_map(|(name, dtype, shape, shift)| Entry {
        name,
        dtype,
        shape,
        shift,
    })
}

fn build(entries: &[Entry], reverse: bool, extra: usize) -> Vec<u8> {
    let mut end = 0i64;
    let mut parts = Vec::new();
    for Entry { name, dtype, shape, shift } in entries {
        let bits = match *dtype {
            "U8" => 8,
            "BF16" => 16,
            "F32" => 32,
            "F4" => 4,
            _ => 6,
        };
        let elements = shape.iter().fold(1u64, |n, &dim| n.wrapping_mul(dim)) % 1000;
        let begin = (end + shift).max(0);
        end = begin + (elements * bits / 8) as i64;
        parts.push(format!(
            r#""t{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
    }
    if reverse {
        parts.reverse();
    }
    let header = format!("{{{}}}", parts.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..end.max(0) as usize + extra).map(|i| i as u8));
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn made_files(
        entries in proptest::collection::vec(entry(), 0..4),
        reverse: bool,
        extra in prop_oneof![9 => Just(0usize), 1 => 1usize..3],
    ) {
        check(&build(&entries, reverse, extra))?;
    }

    #[test]
    fn damaged_files(
        entries in proptest::collection::vec(entry(), 1..3),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3),
        cut in any::<Option<proptest::sample::Index>>(),
    ) {
        let mut file = build(&entries, false, 0);
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        check(&file)?;
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes)?;
    }
}

/// The properties above say little unless many made files pass and many do not.
#[test]
fn made_files_are_often_right_and_often_wrong() {
    let mut runner = TestRunner::deterministic();
    let entries = proptest::collection::vec(entry(), 0..4);
    let accepted = (0..200)
        .filter(|_| {
            let entries = entries.new_tree(&mut runner).unwrap().current();
            check(&build(&entries, true, 0)).unwrap()
        })
        .count();
    assert!((50..150).contains(&accepted), "{accepted} of 200");
}

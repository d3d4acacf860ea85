// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running the program inside a test, and files to give it.
#![allow(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use metrale_cli::{Console, Exit, run};
use serde_json::Value;

/// What a run of the program gave.
pub struct Ended {
    pub exit: Exit,
    pub out: String,
    pub err: String,
}

impl Ended {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} / {}", self.out, self.err))
    }
}

/// Runs the program.
pub fn metrale<S: Into<OsString>>(args: impl IntoIterator<Item = S>) -> Ended {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("metrale".into()).chain(args.into_iter().map(Into::into));
    let exit = run(args, &mut Console::new(&mut out, &mut err, false));
    Ended { exit, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

/// Runs the program with a command, a file and more arguments.
pub fn metrale_on(command: &str, file: &Path, more: &[&str]) -> Ended {
    let args = [command.as_ref(), file.as_os_str()].into_iter().chain(more.iter().map(AsRef::as_ref));
    metrale(args)
}

/// A folder of this package's test data.
pub fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

/// A safetensors file of these tensors, in this order, with counted bytes as data.
pub fn write_model(path: &Path, tensors: &[(&str, &str, &[u64], usize)]) {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, dtype, shape, bytes) in tensors {
        header.insert(
            (*name).into(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}),
        );
        at += bytes;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.extend((0..at).map(|index| (index * 31 % 251) as u8));
    fs::write(path, file).unwrap();
}

/// What the driver had free in the fresh context of the recorded logs.
pub const FRESH_FREE_BYTES: u64 = 149_557_477_376;

/// A log recorded on an H200: `Action,Pointer,Size,Free`.
pub fn recorded_log(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../metrale-ledger/tests/data").join(name)
}

/// What a recorded log's free column says was kept after each row.
pub fn recorded_residency(log: &Path) -> Vec<u64> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(fs::File::open(log).unwrap()).read_to_string(&mut text).unwrap();
    let free = |line: &str| line.rsplit(',').next().unwrap().parse::<u64>().unwrap();
    text.lines().skip(1).map(|line| FRESH_FREE_BYTES - free(line)).collect()
}

/// The rows of a table of numbers, and its header.
pub fn table(path: &Path) -> (String, Vec<Vec<u64>>) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header = lines.next().unwrap().to_owned();
    let rows = lines.map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect();
    (header, rows)
}

/// What the text lists below "held at the resident peak by": size, count and label of each row.
pub fn holders(text: &str) -> Vec<(String, u64, String)> {
    let rows = text.lines().skip_while(|line| !line.starts_with("held at the resident peak by")).skip(1);
    rows.take_while(|line| !line.is_empty())
        .map(|line| {
            let (size, rest) = line.split_once("  x").unwrap();
            let (count, label) = rest.split_once(' ').unwrap();
            (size.trim().to_owned(), count.trim().parse().unwrap(), label.trim().to_owned())
        })
        .collect()
}

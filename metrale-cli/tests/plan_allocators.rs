// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale plan` of memory from each allocator: the driver, the stream-ordered pool, virtual memory.

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;

use common::{metrale, metrale_on, recorded_log, table};
use metrale_cli::Exit;

const MIB: u64 = 1 << 20;

/// A log of these lines behind a header, in a folder.
fn written(folder: &Path, header: &str, rows: &str) -> std::path::PathBuf {
    let log = folder.join("log.csv");
    fs::write(&log, format!("{header}\n{rows}")).unwrap();
    log
}

/// The columns Used and Reserved of a recorded log.
fn recorded_figures(log: &Path) -> Vec<[u64; 2]> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(fs::File::open(log).unwrap()).read_to_string(&mut text).unwrap();
    let cell = |line: &str, at: usize| line.split(',').nth(at).unwrap().parse::<u64>().unwrap();
    text.lines().skip(1).map(|line| [cell(line, 3), cell(line, 4)]).collect()
}

/// The header of these logs names Used and Reserved, so nobody need say that they are a pool's.
#[test]
fn a_recorded_pool_has_its_used_and_reserved_bytes_at_every_row() {
    let folder = tempfile::tempdir().unwrap();
    for (name, more) in [
        ("pool-small-0", &[][..]),
        ("pool-mixed-0", &[]),
        ("pool-small-1", &["--synchronize", "rows"]),
        ("pool-small-2", &["--release-threshold", "max"]),
        ("pool-mixed-2", &["--release-threshold", "max"]),
    ] {
        let (log, out) = (recorded_log(&format!("{name}.csv.gz")), folder.path().join(name));
        let ended =
            metrale_on("plan", &log, &[&["--json", "--per-op", out.to_str().unwrap()], more].concat());
        assert_eq!((ended.exit, ended.err.as_str()), (Exit::Done, ""), "{name}");
        let (header, rows) = table(&out);
        assert_eq!(header, "op,live_bytes,resident_bytes,used_bytes,reserved_bytes");
        let recorded = recorded_figures(&log);
        assert_eq!(rows.len(), recorded.len(), "{name}");
        for (op, (row, [used, reserved])) in rows.iter().zip(&recorded).enumerate() {
            assert_eq!(row[..], [op as u64, *used, *reserved, *used, *reserved], "{name}");
        }
        let json = ended.json();
        assert_eq!(json["allocator"], "pool", "{name}");
        assert_eq!(json["peak_resident_bytes"], recorded.iter().map(|row| row[1]).max().unwrap(), "{name}");
        assert_eq!(json["end_resident_bytes"], recorded.last().unwrap()[1], "{name}");
    }
}

/// 3 MiB and 1 byte: the driver keeps two pages and a chunk, the pool one piece of 32 MiB, virtual memory three pages.
#[test]
fn the_allocator_is_the_options_or_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let log = written(folder.path(), "Action,Pointer,Size", "allocate,1,3145728\nallocate,2,1\nfree,1,0\n");
    for (more, peak, end, allocator) in [
        (&[][..], 6 * MIB, 2 * MIB, None),
        (&["--allocator", "driver"], 6 * MIB, 2 * MIB, None),
        (&["--allocator", "pool"], 32 * MIB, 32 * MIB, Some("pool")),
        (&["--allocator", "vmm"], 6 * MIB, 2 * MIB, Some("vmm")),
    ] {
        let json = metrale_on("plan", &log, &[&["--json"], more].concat()).json();
        assert_eq!((&json["peak_resident_bytes"], &json["end_resident_bytes"]), (&peak.into(), &end.into()));
        assert_eq!(json.get("allocator").map(|name| name.as_str().unwrap()), allocator);
    }
    // Two of 1 byte share a chunk, and have a page each as virtual memory; the pool's is a piece.
    let rows = "allocate,1,1,driver\nallocate,2,1,\nallocate,3,1,vmm\nallocate,4,1,pool\n";
    let log = written(folder.path(), "Action,Pointer,Size,Allocator", rows);
    let json = metrale_on("plan", &log, &["--json"]).json();
    assert_eq!(json["peak_resident_bytes"], (2 + 2 + 32) * MIB);
    // A model has as many allocations, and from the pool little is lost: its 219,030,644 bytes fill 7 pieces.
    let json = metrale(["plan", "--model", "bert-base", "--allocator", "pool", "--json"]).json();
    assert_eq!(json["peak_resident_bytes"], 7 * 32 * MIB);
    for wrong in
        [&["--allocator", "malloc"][..], &["--release-threshold", "much"], &["--synchronize", "never"]]
    {
        let ended = metrale_on("plan", &log, wrong);
        assert_eq!(ended.exit, Exit::BadInput, "{wrong:?}");
        assert!(ended.err.contains(wrong[1]), "{}", ended.err);
    }
}

/// The pool gives a piece back at the first synchronisation after its last allocation was freed.
#[test]
fn a_pool_gives_memory_back_after_each_operation_or_where_the_log_synchronises() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("ops.csv");
    let rows = "allocate,1,40000000\nfree,1,0\nallocate failure,,1\nsynchronize,,\nallocate,1,1\nfree,1,1\nsynchronize,,\ntrim,,0\n";
    let log = written(folder.path(), "Action,Pointer,Size", rows);
    let reserved = |more: &[&str]| {
        let per_op = ["--allocator", "pool", "--per-op", out.to_str().unwrap()];
        let ended = metrale_on("plan", &log, &[&per_op, more].concat());
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        (table(&out).1.iter().map(|row| row[4] / MIB).collect::<Vec<_>>(), ended)
    };
    let (each, ended) = reserved(&[]);
    assert_eq!(each, [64, 0, 0, 0, 32, 0, 0, 0]);
    assert!(ended.err.contains("note: the log says when it synchronised"), "{}", ended.err);
    assert!(ended.out.contains("3 x row that synchronises or trims the pool"), "{}", ended.out);
    let (rows, ended) = reserved(&["--synchronize", "rows"]);
    assert_eq!(rows, [64, 64, 64, 0, 32, 32, 0, 0]);
    assert_eq!(ended.err, "");
    assert!(ended.out.contains("planned from the stream-ordered pool, which releases"), "{}", ended.out);
    assert_eq!(reserved(&["--release-threshold", "32MiB"]).0, [64, 32, 32, 32, 32, 32, 32, 0]);
    assert_eq!(reserved(&["--release-threshold", "max"]).0, [64, 64, 64, 64, 64, 64, 64, 0]);
}

#[test]
fn virtual_memory_of_a_log_is_planned_and_not_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("ops.csv");
    let rows = "create,0x5,4194304,,seg.py:1\nmap,0x7f0000000000,4194304,0x5,\nrelease,0x5,,,\nunmap,0x7f0000000000,4194304,,\n";
    let log = written(folder.path(), "Action,Pointer,Size,Handle,Location", rows);
    let ended = metrale_on("plan", &log, &["--json", "--per-op", out.to_str().unwrap()]);
    assert_eq!((ended.exit, ended.err.as_str()), (Exit::Done, ""));
    let resident: Vec<u64> = table(&out).1.iter().map(|row| row[2]).collect();
    assert_eq!(resident, [4 * MIB, 4 * MIB, 4 * MIB, 0]);
    assert_eq!(ended.json()["mapping_rows"], 2);
    let ended = metrale_on("replay", &log, &["--driver", "sim"]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(
        ended.err.contains("line 2: a replay does not create virtual memory; metrale plan takes this log"),
        "{}",
        ended.err
    );
}

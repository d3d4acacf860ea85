// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs as programs wrote them: RMM's in all its forms, and what else stands in such files.
#![cfg(feature = "trace")]

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use metrale_ledger::plan::Plan;
use metrale_ledger::trace::{Action, Finding, FindingKind, Follow, Reader, Row, TraceError};

/// What a log came to.
struct Read {
    rows: Vec<Row>,
    findings: Vec<Finding>,
    follow: Follow,
    /// Lines passed over, with the reasons.
    skipped: Vec<(u64, String, bool)>,
    aliases: u64,
}

impl Read {
    /// Live bytes and allocations at the end, and the peak.
    fn live(&self) -> (u64, usize, u64) {
        let totals = self.follow.totals();
        assert_eq!(totals.live_bytes, self.follow.plan().live_bytes(), "log and plan agree");
        assert_eq!(totals.peak_live_bytes, self.follow.plan().summary().peak_live.bytes);
        (totals.live_bytes, self.follow.live().len(), totals.peak_live_bytes)
    }
}

fn read(log: &[u8]) -> Read {
    let mut follow = Follow::new();
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    let mut reader = Reader::new(log).unwrap().lenient(true);
    for row in reader.by_ref() {
        let row = row.unwrap();
        findings.extend(follow.row(&row).unwrap().finding);
        rows.push(row);
    }
    let skipped = reader.skipped().first.iter().map(|e| (e.line, e.reason.clone(), e.cut)).collect();
    Read { rows, findings, follow, skipped, aliases: reader.alias_count() }
}

/// As [`read`], of a log in which every row makes sense: a strict reader gives the same.
fn read_clean(log: &[u8]) -> Read {
    let read = read(log);
    assert!(read.skipped.is_empty(), "{:?}", read.skipped);
    let strict: Result<Vec<Row>, _> = Reader::new(log).unwrap().collect();
    assert_eq!(strict.unwrap(), read.rows);
    read
}

fn strict_error(log: &[u8]) -> (usize, String) {
    let mut reader = Reader::new(log).unwrap();
    let rows = reader.by_ref().take_while(Result::is_ok).count();
    let error = Reader::new(log).unwrap().find_map(Result::err).expect("a row that makes no sense");
    assert!(reader.next().is_none(), "nothing after an error");
    (rows, error.to_string())
}

macro_rules! case {
    ($name:literal) => {
        include_bytes!(concat!("data/rmm/", $name, ".csv")).as_slice()
    };
}

#[test]
fn c01_the_current_form() {
    let log = read_clean(case!("c01_current"));
    assert_eq!((log.follow.totals().allocations, log.follow.totals().frees), (2, 1));
    assert_eq!(log.live(), (256, 1, 1_048_832));
    assert_eq!(
        (log.rows[0].thread, log.rows[0].stream, log.rows[2].elapsed_ns),
        (Some(4711), Some(2), Some(188_000))
    );
}

#[test]
fn c02_null_as_0x0_on_a_failure() {
    let log = read_clean(case!("c02_fmt_era"));
    let totals = log.follow.totals();
    assert_eq!((totals.allocations, totals.failures, totals.largest_failure_bytes), (1, 1, 85_899_345_920));
    assert_eq!(log.live(), (0, 0, 512));
}

#[test]
fn c04_a_free_of_nil_is_nothing() {
    let log = read_clean(case!("c04_nil_null"));
    assert_eq!((log.follow.totals().allocations, log.follow.totals().failures), (1, 1));
    assert!(log.findings.is_empty());
    assert_eq!(log.live(), (0, 0, 512));
}

#[test]
fn c05_an_empty_pointer_is_a_failures_only() {
    let log = read_clean(case!("c05_empty_pointer"));
    assert_eq!(
        (log.follow.totals().allocations, log.follow.totals().largest_failure_bytes),
        (1, 107_374_182_400)
    );
    let (rows, error) = strict_error(b"Action,Pointer,Size\nallocate,,512\n");
    let missing = "line 2: the pointer is missing; an allocation that failed is an \"allocate failure\"";
    assert_eq!((rows, error.as_str()), (0, missing));
}

#[test]
fn c07_deallocate_is_a_free_and_noted() {
    let log = read_clean(b"Action,Pointer,Size\nalloc,0x1,9\nDEALLOC,0x1,9\nfree,0x2,1\n");
    assert_eq!((log.live().0, log.aliases), (0, 1));
    let log = read_clean(case!("c07_docs_format"));
    assert_eq!((log.aliases, log.follow.totals().allocations, log.follow.totals().frees), (1, 1, 1));
    assert_eq!(log.live(), (0, 0, 512));
    assert_eq!(log.rows[1].elapsed_ns, Some(100_000_000));
}

#[test]
fn c08_a_fall_of_time_is_midnight() {
    let log = read_clean(case!("c08_midnight"));
    assert_eq!(log.rows.iter().map(|row| row.elapsed_ns).collect::<Vec<_>>(), [Some(0), Some(200_000_000)]);
    assert_eq!(log.live(), (0, 0, 512));
}

#[test]
fn c10_a_pointer_used_again_with_another_size() {
    let log = read_clean(case!("c10_reuse_pointer"));
    assert_eq!(log.live(), (256, 1, 4096));
    assert!(log.findings.is_empty());
}

#[test]
fn c11_a_pointer_that_is_live_already_is_told() {
    let log = read_clean(case!("c11_duplicate_live_pointer"));
    assert_eq!(log.findings.len(), 1);
    assert_eq!(
        (log.findings[0].line, log.findings[0].kind),
        (3, FindingKind::AlreadyLive { bytes: 4096, line: 2 })
    );
    assert!(log.findings[0].to_string().contains("already live (4096 bytes"));
    // The newer one stands, so its free is in order.
    assert_eq!(log.live(), (0, 0, 8192));
}

#[test]
fn what_made_way_for_another_is_gone_before_a_peak_though_nobody_freed_it() {
    let log = read_clean(b"Action,Pointer,Size\nallocate,0x1,100\nallocate,0x1,4194304\n");
    let summary = log.follow.plan().summary();
    assert_eq!((summary.frees, summary.peak_resident.frees_before), (0, 1));
    assert!(
        summary.comes_and_goes() && summary.to_string().contains("one arena would take at least 4.00 MiB")
    );
    let log = read_clean(b"Action,Pointer,Size\nallocate,0x1,100\nallocate,0x2,4194304\n");
    let summary = log.follow.plan().summary();
    assert_eq!(summary.peak_resident.frees_before, 0);
    assert!(!summary.comes_and_goes() && !summary.to_string().contains("at least"));
}

/// Virtual memory as a program that reserves addresses uses it: pages are taken when memory is created, and go when its handle is
/// released and its last mapping is gone.
#[test]
fn created_memory_is_followed_by_handles_and_mappings() {
    const MIB: u64 = 1 << 20;
    let log = read_clean(
        b"Action,Pointer,Size,Handle,Location\n\
          allocate,0x10,512,,a.py:1\n\
          create,0x5,4194304,,seg.py:1\n\
          map,0x7f0000000000,4194304,0x5,\n\
          release,0x5,,,\n\
          create,0x5,2097152,,seg.py:2\n\
          unmap,0x7f0000000000,4194304,,\n\
          unmap,0x7f0000000000,,,\n\
          map,0x7f0000000000,,9,\n\
          release,9,,,\n\
          synchronize,,,,\n",
    );
    let kinds: Vec<_> = log.findings.iter().map(|f| (f.line, f.pointer, f.kind)).collect();
    assert_eq!(
        kinds,
        [
            (8, 0x7f00_0000_0000, FindingKind::NotMapped),
            (9, 9, FindingKind::UnknownHandle),
            (10, 9, FindingKind::UnknownHandle)
        ]
    );
    let totals = log.follow.totals();
    assert_eq!((totals.allocations, totals.frees, totals.mappings, totals.synchronizes), (3, 2, 4, 1));
    let summary = log.follow.plan().summary();
    // 512 bytes in a chunk, 4 MiB that are still mapped, and 2 MiB.
    assert_eq!((summary.peak_resident.bytes, summary.peak_resident.operation), (8 * MIB, Some(4)));
    assert_eq!(totals.peak_resident_line, 6);
    assert_eq!((summary.end_resident_bytes, summary.end_live_bytes), (4 * MIB, 2 * MIB + 512));
    let live: Vec<_> = log.follow.live().iter().map(|row| (row.pointer, row.bytes, row.line)).collect();
    assert_eq!(live, [(0x10, 512, 2), (5, 2 * MIB, 6)]);
    let holders: Vec<_> = summary.peak_resident.holders.iter().map(|h| h.label.clone().unwrap()).collect();
    assert_eq!(holders, ["seg.py:1", "seg.py:2", "a.py:1"]);
}

#[test]
fn a_row_may_name_its_allocator() {
    // 1 byte of a chunk and 1 byte in whole pages of its own.
    let log =
        read_clean(b"Action,Pointer,Size,Allocator\nallocate,1,1,driver\nallocate,2,1,VMM\nallocate,3,1,\n");
    assert_eq!(log.follow.plan().resident_bytes(), 4 << 20);
    let (_, error) = strict_error(b"Action,Pointer,Size,Allocator\nallocate,1,1,malloc\n");
    assert_eq!(error, "line 2: the allocator \"malloc\" is none of driver, pool, vmm");
    let (_, error) = strict_error(b"Action,Pointer,Size\nmap,1,2097152\n");
    assert_eq!(
        error,
        "line 2: the row maps memory and names none: write the memory's handle in a column Handle"
    );
}

#[test]
fn each_live_allocation_is_told_with_its_line_and_stream() {
    let mut log = String::from("Action,Pointer,Size,Stream\n");
    let stream = |n: u64| (!n.is_multiple_of(400)).then_some((n % 400) << 40);
    let shown = |stream: Option<u64>| stream.map_or(String::new(), |stream| stream.to_string());
    for n in 1..=70_000 {
        log.push_str(&format!("allocate,{n:x},{n},{}\n", shown(stream(n))));
    }
    let read = read_clean(log.as_bytes());
    for row in read.follow.live() {
        let n = row.pointer;
        assert_eq!((row.bytes, row.line, row.stream), (n, n + 1, stream(n)));
    }
    let freed = log + "free,3,3,1\nfree,4,4,4398046511104\nfree,190,400,1\nfree,191,401,1099511627776\n";
    let kinds: Vec<_> = read_clean(freed.as_bytes()).findings.into_iter().map(|found| found.kind).collect();
    assert_eq!(kinds, [FindingKind::OtherStream { allocated_on: 3 << 40 }]);
}

#[test]
fn c13_the_allocated_size_counts() {
    let log = read_clean(case!("c13_free_size_differs"));
    assert_eq!(log.findings[0].kind, FindingKind::SizeDiffers { allocated: 4096 });
    assert_eq!(log.live(), (0, 0, 4096));
}

#[test]
fn c14_what_is_never_freed_is_listed() {
    let log = read_clean(case!("c14_leak"));
    assert_eq!(log.live(), (29_406, 29, 29_406));
    assert_eq!(log.follow.live().iter().map(|row| row.bytes).sum::<u64>(), 29_406);
    assert_eq!(log.follow.live()[0].line, 2);
}

#[test]
fn c16_rows_among_other_lines_without_a_header() {
    let log = read(case!("c16_mixed_stderr"));
    assert_eq!((log.rows.len(), log.skipped.len()), (3, 3));
    assert_eq!(log.skipped.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!((log.follow.totals().failures, log.live()), (1, (0, 0, 512)));
    assert_eq!(log.rows[2].elapsed_ns, Some(176_000));
    let (rows, error) = strict_error(case!("c16_mixed_stderr"));
    assert!(rows == 0 && error.starts_with("line 1: "), "{error}");
    assert!(error.contains("neither a header that names Action, Pointer and Size nor a row"), "{error}");
}

#[test]
fn c17_failures_are_not_the_end() {
    let log = read_clean(case!("c17_failures_normal"));
    assert_eq!((log.follow.totals().failures, log.live()), (1, (134_217_728, 1, 134_217_728)));
}

#[test]
fn c19_byte_order_mark_and_windows_line_ends() {
    let log = read_clean(case!("c19_crlf_bom"));
    assert_eq!((log.rows[0].line, log.rows[0].stream, log.rows[0].thread), (2, Some(0), Some(1)));
    assert_eq!(log.live(), (512, 1, 512));
}

#[test]
fn c20_a_last_line_that_is_cut_off() {
    let log = read(case!("c20_truncated"));
    assert_eq!(log.rows.len(), 1);
    assert_eq!((log.skipped[0].0, log.skipped[0].2), (3, true));
    let (rows, error) = strict_error(case!("c20_truncated"));
    assert_eq!(rows, 1);
    assert!(error.starts_with("line 3: the last line is cut off: "), "{error}");
}

#[test]
fn c22_the_first_releases_with_12_columns() {
    let log = read_clean(case!("c22_old_12col"));
    assert_eq!((log.follow.totals().allocations, log.follow.totals().frees), (3, 1));
    assert_eq!(log.live().0, 10_176);
    assert_eq!(log.rows[0].location.as_deref(), Some("/src/app/mem.cu:85"));
    assert!(log.findings.is_empty(), "0 as the size of a free is no size");
    let holders = log.follow.plan().summary().peak_live.holders;
    assert_eq!((holders[0].label.as_deref(), holders[0].count), (Some("/src/app/mem.cu:85"), 3));
}

#[test]
fn c23_the_peak_is_not_the_sum_of_all() {
    let log = read_clean(case!("c23_1tb_cumulative"));
    assert_eq!(log.live().2, 80 << 20);
    assert_eq!(log.follow.totals().allocated_bytes, 8_388_608_000);
    assert_eq!(log.follow.plan().summary().requested_bytes, 8_388_608_000);
}

#[test]
fn c25_a_free_on_another_stream_is_noted() {
    let log = read_clean(case!("c25_non_default_streams"));
    assert_eq!(log.findings[0].kind, FindingKind::OtherStream { allocated_on: 0x55d0_c0ff_ee10 });
    assert_eq!(log.live(), (0, 0, 512));
}

#[test]
fn c26_further_columns_are_passed_over() {
    assert_eq!(read_clean(case!("c26_extra_columns")).live(), (512, 1, 512));
}

#[test]
fn c28_c29_nothing_is_no_error() {
    for log in [case!("c28_empty"), case!("c29_header_only")] {
        let log = read_clean(log);
        assert_eq!((log.rows.len(), log.live()), (0, (0, 0, 0)));
        assert_eq!(log.follow.plan().summary().peak_live.operation, None);
    }
}

/// The case gives 9618032 as `chunk_slack`; that is the whole slack of these pages. `chunk_slack` is defined over the small
/// allocations alone, so it is the part of it in three chunks.
#[test]
fn c31_pages_touched_come_from_addresses() {
    let log = read_clean(case!("c31_old_12col_chunks"));
    assert_eq!(log.live().0, 53_296_528);
    let live: Vec<_> = log.follow.live().iter().map(|row| (row.pointer, row.bytes as usize)).collect();
    assert_eq!(live.len(), 8);
    let ledger = metrale_ledger::Ledger::new();
    for &(pointer, bytes) in &live {
        assert!(ledger.record(pointer, bytes, std::panic::Location::caller()).misuse.is_none());
    }
    assert_eq!((ledger.resident_bytes(), ledger.slack_bytes()), (62_914_560, 9_618_032));
    assert_eq!(ledger.chunk_slack_bytes(), 3 * (2 << 20) - 992_600);
}

#[test]
fn columns_are_found_by_name_in_any_order_and_case() {
    let log = read_clean(b"SIZE, stream ,pOINTER,Action\n64,7,AB00,Allocate\n64,(nil),0xab00,FREE\n");
    assert_eq!(log.live(), (0, 0, 64));
    assert_eq!((log.rows[0].pointer, log.rows[0].stream, log.rows[1].stream), (0xab00, Some(7), Some(0)));
    let (_, error) = strict_error(b"Action,Pointer,Length\nallocate,0x1,1\n");
    assert_eq!(error, "line 1: the header names no column size: give the column that has it that name");
}

#[test]
fn headers_come_again_and_may_differ() {
    let log = read_clean(
        b"Action,Pointer,Size\nallocate,1,10\n\nAction,Pointer,Size\nallocate,2,20\nSize,Action,Pointer\n30,allocate,3\n",
    );
    assert_eq!(log.live(), (60, 3, 60));
    assert_eq!(log.rows[2].line, 7);
    // Where files are joined, each may bring its mark.
    let log = read_clean(
        "\u{feff}Action,Pointer,Size\nalloc,1,10\n\u{feff}Action,Pointer,Size\nalloc,2,20\n".as_bytes(),
    );
    assert_eq!(log.live(), (30, 2, 30));
}

#[test]
fn sizes_of_0_and_threads_side_by_side() {
    let log = read_clean(
        b"Thread,Action,Pointer,Size\n1,allocate,0,0\n2,allocate,0x100,0\n1,allocate,0x200,5\n2,free,0x100,0\n2,free,0x200,5\n1,free,0,0\n",
    );
    assert_eq!(log.live(), (0, 0, 5));
    assert_eq!((log.follow.totals().allocations, log.follow.totals().frees), (3, 3));
    assert!(log.findings.is_empty());
}

#[test]
fn frees_of_what_is_not_live_are_told_apart() {
    let log = read_clean(b"Action,Pointer,Size\nallocate,1,10\nfree,1,10\nfree,1,10\nfree,2,10\n");
    let kinds: Vec<_> = log.findings.iter().map(|f| (f.line, f.kind)).collect();
    assert_eq!(kinds, [(4, FindingKind::FreedBefore { line: 3 }), (5, FindingKind::Unknown)]);
}

#[test]
fn rows_that_make_no_sense_have_a_line_and_a_reason() {
    for (row, reason) in [
        ("allocate,0x1", "the row has 2 columns, too few for this header"),
        ("allocate,zzz,1", "the pointer \"zzz\" is no hexadecimal address of 64 bits"),
        ("allocate,0x1,-1", "the size \"-1\" is no number of bytes below 2^64"),
        (
            "allocate,0x1,18446744073709551616",
            "the size \"18446744073709551616\" is no number of bytes below 2^64",
        ),
        ("allocate,0x1,", "the size is missing"),
        (
            "alocate,0x1,1",
            "the action \"alocate\" is none of allocate, free, allocate failure, synchronize, trim, create, map, unmap, release",
        ),
        (
            "allocate,0x1,1,048,576",
            "the row has 5 columns and the header 3, so it is not clear which is which; if a size is written with commas, put quotes around it",
        ),
        (
            "allocate,(nil),512",
            "512 bytes are allocated at null; an allocation that failed is an \"allocate failure\"",
        ),
        (
            "allocate,0x1,1\rfree,0x1,1",
            "it has a carriage return inside: end each line by a line feed, with or without one before",
        ),
        ("\"allocate,0x1,1", "a quote in it is not closed; no cell of a log goes over several lines"),
    ] {
        let log = format!("Action,Pointer,Size\nallocate,0x10,1\n{row}\nallocate,0x20,2\n");
        let (rows, error) = strict_error(log.as_bytes());
        assert_eq!((rows, error), (1, format!("line 3: {reason}")));
        let lenient = read(log.as_bytes());
        assert_eq!((lenient.live(), lenient.skipped.len()), ((3, 2, 3), 1));
    }
    assert!(strict_error(b"Action,Pointer,Size\nallocate,0x1,\xff\n").1.ends_with("no UTF-8 text"));
}

#[test]
fn a_comma_at_the_end_of_each_line_is_no_column() {
    assert_eq!(read_clean(b"Action,Pointer,Size\nallocate,0x1,7,\nfree,0x2,,,\n").live(), (7, 1, 7));
}

#[test]
fn a_log_whose_lines_end_in_carriage_returns_alone_is_not_an_empty_one() {
    let log = b"Action,Pointer,Size\rallocate,0x10,512\rfree,0x10,512\r";
    for times in [1, 4000] {
        let error = Reader::new(log.repeat(times).as_slice()).unwrap().find_map(Result::err).unwrap();
        let TraceError::Row(error) = error else { panic!("{error}") };
        assert!(error.reason.contains("carriage return inside") && error.is_header && !error.cut, "{error}");
    }
    // A zero byte is none of a line that is too long.
    assert!(strict_error(b"Action,Pointer,Size\n\0\n").1.contains("the action"));
}

#[test]
fn a_header_set_apart_by_something_else_is_told_what_by() {
    for (apart, name) in [("\t", "tabs"), (";", "semicolons"), ("|", "bars")] {
        let log = "Action,Pointer,Size\nallocate,0x10,512\n".replace(',', apart);
        let error = Reader::new(log.as_bytes()).unwrap().find_map(Result::err).unwrap();
        let TraceError::Row(error) = error else { panic!("{error}") };
        assert!(
            error.is_header
                && error.reason.ends_with(&format!("set apart by {name}: write the table with commas"))
        );
    }
    let error = Reader::new("Action,Pointer,Size\nallocate,1\n".as_bytes()).unwrap().find_map(Result::err);
    assert!(matches!(error, Some(TraceError::Row(error)) if !error.is_header));
}

#[test]
fn a_log_cut_anywhere_gives_no_row_that_was_not_there() {
    // With a column behind the size, as RMM writes them: the cut row is whole or refused.
    let rmm = "Thread,Time,Action,Pointer,Size,Stream\n1,12,allocate,0x7f0010,512,0x12\n1,13,allocate,0x7f0000001000,1048576,0x12\n";
    let rows: Vec<_> = read_clean(rmm.as_bytes()).rows.iter().map(|row| (row.pointer, row.bytes)).collect();
    for end in 0..rmm.len() {
        let mut reader = Reader::new(&rmm.as_bytes()[..end]).unwrap();
        let read: Vec<Result<Row, _>> = reader.by_ref().collect();
        let whole = read.iter().flatten().map(|row| (row.pointer, row.bytes));
        assert!(whole.eq(rows.iter().copied().take(read.iter().flatten().count())), "{end}");
        if let Some(Err(error)) = read.last() {
            assert!(error.to_string().contains("the last line is cut off"), "{end}: {error}");
        }
        let is_row = read.last().is_some_and(Result::is_ok);
        assert_eq!(reader.has_open_end(), is_row && rmm.as_bytes()[end - 1] != b'\n', "{end}");
    }
    // With the size at the end, none can tell: the reader says so, where the line has no end.
    for log in ["Action,Pointer,Size\nallocate,0x10,5120", "Size,Action,Pointer\n5120,allocate,0x7f10"] {
        for (end, open) in [(log.len() - 1, true), (log.len(), true)] {
            let mut reader = Reader::new(&log.as_bytes()[..end]).unwrap();
            assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 1);
            assert_eq!(reader.has_open_end(), open);
        }
        let ended = format!("{log}\n");
        let mut reader = Reader::new(ended.as_bytes()).unwrap();
        assert_eq!((reader.by_ref().count(), reader.has_open_end()), (1, false));
    }
    // "allocate" may have been an "allocate failure".
    let mut reader = Reader::new("Pointer,Size,Action\n0x10,5120,allocate".as_bytes()).unwrap();
    assert_eq!((reader.by_ref().count(), reader.has_open_end()), (1, true));
    // Of joined logs, the last one's header says how many columns there are.
    let joined = b"Action,Pointer,Size,Stream\nallocate,0x1,4,0\nAction,Pointer,Size\nallocate,0x2,8";
    assert_eq!(read_clean(joined).live(), (12, 2, 12));
    // Rows may lack the last columns all along.
    let short = b"Action,Pointer,Size,Stream\nallocate,0x1,4\nallocate,0x2,8";
    assert_eq!(read_clean(short).live(), (12, 2, 12));
}

#[test]
fn days_beyond_64_bits_of_nanoseconds_are_as_many_as_there_is_room_for() {
    let mut log = String::from("Time,Action,Pointer,Size\n");
    for _ in 0..=i64::MAX / (86_400 * 1_000_000_000) + 1 {
        log.push_str("23:00:00,free,0x0,0\n00:00:00,free,0x0,0\n");
    }
    let last = Reader::new(log.as_bytes()).unwrap().last().unwrap().unwrap();
    assert_eq!(last.elapsed_ns, Some(i64::MAX - 23 * 3600 * 1_000_000_000));
}

#[test]
fn quotes_and_overlong_lines() {
    let log = read_clean(
        b"\"Action\",\"Pointer\",\"Size\",\"Note\"\n\"allocate\",\"0x1\",\"9\",\"a, \"\"b\"\"\"\n",
    );
    assert_eq!(log.live(), (9, 1, 9));
    // A stray quote takes its own line and no more.
    let log = read(b"Action,Pointer,Size\n\"allocate,0x1,1\nallocate,0x2,2\n");
    assert_eq!((log.rows.len(), log.skipped.len()), (1, 1));
    let mut long = b"Action,Pointer,Size\n".to_vec();
    long.extend(std::iter::repeat_n(b'x', 300_000));
    long.extend(b"\nallocate,0x2,2\n");
    let log = read(&long);
    assert_eq!((log.rows[0].line, log.skipped[0].0), (3, 2));
    assert!(log.skipped[0].1.starts_with("longer than"), "{:?}", log.skipped);
}

#[test]
fn a_line_without_end_ends_a_strict_reader() {
    let mut reader = Reader::new(std::io::repeat(b'x')).unwrap();
    let error = reader.next().unwrap().unwrap_err();
    assert!(error.to_string().starts_with("line 1: longer than"), "{error}");
    assert!(reader.next().is_none());
}

/// An address is given out again and again: a second free is told of the last one, however long ago the ones before were.
#[test]
fn of_several_frees_of_a_pointer_the_last_one_is_told() {
    for between in [0, 1, 1 << 15, (1 << 16) - 1, 1 << 16, 3 << 16] {
        let mut log = "Action,Pointer,Size\nallocate,a,1\nfree,a,1\n".to_owned();
        for pointer in 0..between {
            log += &format!("allocate,{0:x},1\nfree,{0:x},1\n", 0x1_0000 + pointer);
        }
        log += "allocate,a,1\nfree,a,1\nfree,a,1\nallocate,a,1\n";
        let log = read_clean(log.as_bytes());
        let line = 3 + 2 * between + 2;
        let kinds: Vec<_> = log.findings.iter().map(|finding| (finding.line, finding.kind)).collect();
        assert_eq!(kinds, [(line + 1, FindingKind::FreedBefore { line })], "{between} between");
        assert_eq!(log.live(), (1, 1, 1));
    }
}

#[test]
fn a_second_free_right_behind_the_first_is_one_however_many_came_before() {
    let mut log = "Action,Pointer,Size\n".to_owned();
    for pointer in 1..=(1 << 16) + 1 {
        log += &format!("allocate,{pointer:x},1\nfree,{pointer:x},1\n");
    }
    log += "free,10000,1\nfree,ffffff,1\n";
    let log = read_clean(log.as_bytes());
    let kinds: Vec<_> = log.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::FreedBefore { line: (2 << 16) + 1 }, FindingKind::Unknown]);
}

#[test]
fn a_row_that_no_device_can_follow_changes_nothing() {
    let log = format!("Action,Pointer,Size\nallocate,0x1,4096\nallocate,0x1,{}\nfree,0x1,4096\n", u64::MAX);
    let mut follow = Follow::new();
    let rows: Vec<Row> = Reader::new(log.as_bytes()).unwrap().map(Result::unwrap).collect();
    follow.row(&rows[0]).unwrap();
    follow.row(&rows[1]).unwrap_err();
    // What was live there still is, in the log as in the plan, and its free is in order.
    assert_eq!(
        (follow.live().len(), follow.totals().live_bytes, follow.plan().live_bytes()),
        (1, 4096, 4096)
    );
    let last = follow.row(&rows[2]).unwrap();
    assert_eq!((last.finding, last.step.operation, last.step.live_bytes), (None, 2, 0));
}

#[test]
fn gzip_is_told_by_its_magic_and_may_have_members() {
    let member = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let mut log = member("Action,Pointer,Size\nallocate,0x1,1\n");
    log.extend(member("allocate,0x2,2\n"));
    assert_eq!(read_clean(&log).live(), (3, 2, 3));
    // A signal between members ends none of them.
    struct Interrupted<'a>(&'a [u8], bool);
    impl io::Read for Interrupted<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let few = into.len().min(1);
            self.0.read(&mut into[..few])
        }
    }
    let rows = Reader::new(Interrupted(&log, false)).unwrap().map(Result::unwrap);
    assert_eq!(rows.map(|row| row.bytes).collect::<Vec<_>>(), [1, 2]);
    // Padding of zeros, as tapes and archives leave it.
    let padded: Vec<u8> = log.iter().copied().chain([0; 70_000]).collect();
    assert_eq!(read_clean(&padded).live(), (3, 2, 3));
    let junk: Vec<u8> = log.iter().copied().chain(*b"\0\0more").collect();
    let error = Reader::new(junk.as_slice()).unwrap().find_map(Result::err).unwrap().to_string();
    assert!(error.ends_with("what follows the compressed data is no gzip data"), "{error}");
    let cut = &log[..log.len() - 12];
    let error = Reader::new(cut).unwrap().find_map(Result::err).unwrap();
    assert!(matches!(error, TraceError::Io { line: 2.., .. }), "{error}");
}

#[test]
fn a_cut_gzip_log_gives_a_lenient_reader_what_could_be_read_and_the_line_it_broke_off_at() {
    let rows: String = (1..=2000).map(|n| format!("allocate,{n:x},{n}\n")).collect();
    let gzip = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let whole = gzip(&format!("Action,Pointer,Size\n{rows}"));
    let mut damaged = whole.clone();
    damaged[whole.len() / 2..].fill(0xff);
    for broken in [&whole[..whole.len() / 2], &damaged] {
        let mut reader = Reader::new(broken).unwrap().lenient(true);
        let lines: Vec<u64> = reader.by_ref().map(|row| row.unwrap().line).collect();
        let read = lines.len() as u64;
        assert!(read > 10 && read < 2000, "{read}");
        assert_eq!(reader.skipped().count, 0);
        match reader.broke_off() {
            Some(TraceError::Io { line, .. }) => {
                assert_eq!(*line, read + 2, "behind the header and those read")
            }
            other => panic!("{other:?}"),
        }
        let (strict, error) = strict_error(broken);
        assert_eq!(strict as u64, read, "a strict reader has read as many");
        assert!(error.starts_with(&format!("line {}: the log cannot be read on: ", read + 2)), "{error}");
    }
    // Where not even a header could be read, there is nothing to make do with.
    let mut reader = Reader::new(&whole[..12]).unwrap().lenient(true);
    assert!(matches!(reader.next(), Some(Err(TraceError::Io { line: 1, .. }))));
    assert!(reader.broke_off().is_none());
}

#[test]
fn rows_of_another_device_end_it_or_are_left_out() {
    for (column, one, other) in [
        ("Device ID", "0", "1"),
        ("device", "0", "7"),
        ("Device", "cuda:0", "cuda:1"),
        ("DEVICE ID", "1", "0"),
    ] {
        let log = format!(
            "Action,Pointer,Size,{column}\nallocate,0x10,100,{one}\nallocate,0x10,200,{other}\n\
             free,0x10,0,{one}\nfree,0x10,0,{other}\nallocate,0x20,5,{one}\nallocate,zzz,5,{other}\n"
        );
        let (rows, error) = strict_error(log.as_bytes());
        assert_eq!(
            (rows, error),
            (
                1,
                format!(
                    "line 3: the row is of device {other}, and those before are of device {one}: \
                     give the rows of one device at a time"
                )
            )
        );
        let lenient = read(log.as_bytes());
        assert!(lenient.findings.is_empty(), "{:?}", lenient.findings);
        assert_eq!(lenient.live(), (5, 1, 100));
        assert_eq!(lenient.skipped.len(), 1, "the others are counted");
        let mut reader = Reader::new(log.as_bytes()).unwrap().lenient(true);
        assert_eq!(reader.by_ref().count(), 3);
        assert_eq!((reader.skipped().count, reader.skipped().of_other_devices), (3, 3));
    }
    // One device, however it is written and where it is not.
    let log = b"Device ID,Action,Pointer,Size\n3,allocate,1,8\n,allocate,2,8\n0x3,free,1,8\n03,free,2,8\n";
    assert_eq!(read_clean(log).live(), (0, 0, 16));
}

/// A lenient reader goes by the first row that it can follow.
#[test]
fn a_row_that_makes_no_sense_does_not_say_which_device_is_read() {
    for broken in ["allocate,zzz,5,1", "allocate,0x10,many,1", "free,,0,1", "remember,0x10,5,1"] {
        let log = format!("Action,Pointer,Size,Device\n{broken}\nallocate,0x10,100,0\nfree,0x10,100,0\n");
        let mut reader = Reader::new(log.as_bytes()).unwrap().lenient(true);
        assert_eq!(reader.by_ref().count(), 2, "{broken}");
        assert_eq!((reader.skipped().count, reader.skipped().of_other_devices), (1, 0), "{broken}");
    }
}

#[test]
fn a_column_that_is_there_twice_is_named_and_not_guessed_at() {
    for (header, name, first, second) in [
        ("Action,Pointer,Size,Size", "Size", 3, 4),
        ("ptr,Action,SIZE,size,Pointer", "SIZE", 3, 4),
        ("Stream,Action,Pointer,Size,Stream", "Stream", 1, 5),
        ("Action,Action,Pointer,Size", "Action", 1, 2),
    ] {
        let log = format!("{header}\nallocate,0x10,100,200,1\n");
        let (_, error) = strict_error(log.as_bytes());
        let twice = format!(
            "the header names {name:?} twice, as columns {first} and {second}: rename the one that does not count"
        );
        assert_eq!(error, format!("line 1: {twice}"));
        assert!(!Reader::new(log.as_bytes()).unwrap().lenient(true).any(|row| row.is_ok()));
        // One that comes later, as where logs are joined.
        let later = format!("Action,Pointer,Size\nallocate,1,1\n{header}\n");
        assert_eq!(strict_error(later.as_bytes()), (1, format!("line 3: {twice}")));
    }
    // Two names that may stand for one column: the first of those that are asked for.
    let log = read_clean(b"Bytes,Event,Address,Action,Pointer,Size\n7,free,0x99,allocate,0x10,64\n");
    assert_eq!(log.live(), (64, 1, 64));
    // What nobody reads may come twice.
    assert_eq!(read_clean(b"Action,Note,Pointer,Note,Size\nallocate,a,1,b,64\n").live(), (64, 1, 64));
}

#[test]
fn one_is_said_in_the_singular() {
    assert_eq!(
        strict_error(b"Action,Pointer,Size\nfree\n").1,
        "line 2: the row has 1 column, too few for this header"
    );
    let log =
        read_clean(b"Action,Pointer,Size\nallocate,1,1\nallocate,1,1\nfree,1,5\nallocate,2,5\nfree,2,1\n");
    let said: Vec<_> = log.findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "line 3: 0x1 is allocated with 1 byte, but is already live (1 byte, from line 2)",
            "line 4: 0x1 is freed as 5 bytes and was allocated with 1",
            "line 6: 0x2 is freed as 1 byte and was allocated with 5"
        ]
    );
    let mut plan = Plan::h200();
    plan.alloc(1, 1, None).unwrap();
    assert!(plan.summary().to_string().starts_with("1 allocation of 1 B in all, 0 frees, 1 operation\n"));
}

#[test]
fn rows_that_ask_for_nothing_are_counted() {
    let log = read_clean(
        b"Action,Pointer,Size\nallocate,0,0\nfree,0,0\nfree,(nil),9\nallocate,0x10,0\nfree,0x10,0\nallocate,0x20,5\n\
          allocate failure,,7\n",
    );
    let (totals, planned) = (log.follow.totals(), log.follow.plan().summary());
    assert_eq!((totals.nothing, totals.failures), (3, 1));
    assert_eq!(planned.allocations + planned.frees + totals.nothing + totals.failures, planned.operations);
}

#[test]
fn a_recorded_run_reads_whole() {
    let rows: Result<Vec<Row>, _> =
        Reader::new(include_bytes!("data/random-1.csv.gz").as_slice()).unwrap().collect();
    let rows = rows.unwrap();
    assert_eq!(rows.len(), 5098);
    assert_eq!(
        (rows[0].action, rows[0].pointer, rows[0].bytes),
        (Action::Allocate, 0x7f0e_87e0_0000, 764_791)
    );
}

#[test]
fn tables_of_any_width_are_read_by_name() {
    for more in [0, 12, 13, 14, 100] {
        let extra: String = (0..more).map(|n| format!("extra {n},")).collect();
        let values: String = (0..more).map(|n| format!("{n},")).collect();
        let log = format!("{extra}Action,Pointer,Size\n{values}allocate,0x10,7\n");
        let rows: Vec<_> = Reader::new(log.as_bytes()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!((rows.len(), rows[0].pointer, rows[0].bytes), (1, 0x10, 7), "{more} more columns");
    }
}

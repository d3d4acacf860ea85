// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs read row by row: columns, quotes, compression, cuts, devices, and rows that make no sense.
#![cfg(feature = "trace")]

mod read_log;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use metrale_ledger::trace::{Action, Reader, Row, TraceError};
use read_log::{read, read_clean, strict_error};

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
fn rows_that_make_no_sense_have_a_line_and_a_reason() {
    for (row, reason) in [
        ("allocate,0x1", "the row has 2 columns, too few for this header"),
        ("allocate,zzz,1", "the pointer \"zzz\" is no hexadecimal address of 64 bits"),
        ("allocate,0x1,-1", "the size \"-1\" is no whole number of bytes below 2^64"),
        (
            "allocate,0x1,18446744073709551616",
            "the size \"18446744073709551616\" is no whole number of bytes below 2^64",
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
fn days_beyond_64_bits_of_nanoseconds_are_as_many_as_fit() {
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

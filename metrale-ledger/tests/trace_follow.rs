// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs followed row by row: what is live, where the peak is, and what is odd.
#![cfg(feature = "trace")]

mod read_log;

use metrale_ledger::plan::Plan;
use metrale_ledger::trace::{FindingKind, Follow, Reader, Row};
use read_log::{read_clean, strict_error};

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

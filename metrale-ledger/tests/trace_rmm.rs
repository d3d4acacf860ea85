// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs as RMM writes them, in all its forms.
#![cfg(feature = "trace")]

mod read_log;

use metrale_ledger::trace::FindingKind;
use read_log::{read, read_clean, strict_error};

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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger as its users see it: totals, probe, scopes, misuse, assertions, report.

use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Barrier;

use metrale_ledger::{
    AllocEventKind, AllocKind, ByteSize, ForgetError, FreedBy, Ledger, LedgerProbe, RecordMisuse, ScopeGuard,
    Whois, file_line,
};

const MIB: usize = 1 << 20;
const PAGE: u64 = 2 << 20;
const BASE: u64 = 0x7f0e_0000_0000;

#[track_caller]
fn here() -> &'static Location<'static> {
    Location::caller()
}

fn panic_text(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it should have panicked");
    panic.downcast_ref::<String>().expect("a formatted message").clone()
}

/// The pages of both ends must be held; what is wrong with the record is answered as by `record`.
#[test]
fn beside_is_where_device_memory_holds_the_page() {
    let ledger = Ledger::new();
    let beside = |addr, bytes| ledger.record_beside(addr, bytes, here());
    assert!(beside(BASE, 1000).is_none(), "nothing holds the page");
    for (at, kind) in [(BASE, AllocKind::Managed), (BASE + 512, AllocKind::Arena)] {
        ledger.record_as(at, 512, here(), kind);
        assert!(beside(BASE + 1024, 1000).is_none(), "{kind} says nothing of the page's context");
    }
    ledger.record(BASE + PAGE + 512, 4 * MIB, here());
    assert!(beside(BASE + 5 * PAGE - 512, 1024).is_none(), "the second page is not held");
    let scope = ledger.scope("layer");
    let before = ledger.mark();
    // The tail of the large one holds its page.
    assert!(beside(BASE + 3 * PAGE + 512, 1000).unwrap().misuse.is_none());
    drop(scope);
    assert_eq!(ledger.forget(BASE + 3 * PAGE + 512).unwrap().scope.as_deref(), Some("layer"));
    assert!(beside(BASE + 3 * PAGE + 512, 0).is_none(), "no bytes lie in no page");
    ledger.assert_unchanged_since(&before);
    assert_eq!(ledger.snapshot().totals.misuse, Default::default());
    assert!(matches!(
        beside(BASE + 3 * PAGE + 256, 512).unwrap().misuse.as_deref(),
        Some(RecordMisuse::Overlap { .. })
    ));
}

#[test]
fn slack_is_never_less_than_nothing_whatever_comes_beside_what_passes_the_end_of_all() {
    let end = u64::MAX - 99;
    for (bytes, kind) in [
        (1 << 40, AllocKind::Device),
        (2 * MIB - 1, AllocKind::Device),
        (usize::MAX, AllocKind::Device),
        (1 << 40, AllocKind::Padding),
        (usize::MAX, AllocKind::Padding),
    ] {
        let ledger = Ledger::new();
        let agree = || {
            let totals = ledger.snapshot().totals;
            assert_eq!(ledger.slack_bytes() as u64, totals.slack_bytes, "{bytes} bytes of {kind}");
            assert_eq!(
                ledger.chunk_slack_bytes() as u64,
                totals.chunk_slack_bytes,
                "{bytes} bytes of {kind}"
            );
        };
        assert!(ledger.record_as(end, bytes, here(), kind).misuse.is_some(), "it passes the end");
        agree();
        // All of a page, so that nothing of it makes up for what is missing; twice, since the first time makes a peak.
        for _ in 0..2 {
            for page in [BASE, BASE + PAGE, BASE] {
                for (offset, bytes) in [(0, 2 * MIB - 512), (PAGE - 512, 512)] {
                    ledger.record(page + offset, bytes, here());
                    agree();
                }
                ledger.forget(page).unwrap();
                agree();
                ledger.forget(page + PAGE - 512).unwrap();
                agree();
            }
        }
    }
}

#[test]
fn totals_follow_every_operation() {
    let ledger = Ledger::new();
    let probe = ledger.probe();
    assert!(ledger.record(BASE, 1000, here()).misuse.is_none());
    assert!(ledger.record(BASE + PAGE, 3 * MIB, here()).misuse.is_none());
    for (live, count, resident, slack, chunk_slack) in [
        (
            ledger.live_bytes(),
            ledger.live_count(),
            ledger.resident_bytes(),
            ledger.slack_bytes(),
            ledger.chunk_slack_bytes(),
        ),
        (
            probe.live_bytes(),
            probe.live_count(),
            probe.resident_bytes(),
            probe.slack_bytes(),
            probe.chunk_slack_bytes(),
        ),
    ] {
        assert_eq!((live, count), (3 * MIB + 1000, 2));
        assert_eq!(resident, 6 * MIB);
        assert_eq!(slack, 3 * MIB - 1000);
        assert_eq!(chunk_slack, 2 * MIB - 1000);
    }
    let record = ledger.forget(BASE + PAGE).unwrap();
    assert_eq!((record.bytes, record.index, record.kind), (3 * MIB, 1, AllocKind::Device));
    assert_eq!((ledger.live_bytes(), ledger.resident_bytes()), (1000, 2 * MIB));
    assert_eq!((ledger.peak_bytes(), ledger.peak_resident_bytes()), (3 * MIB + 1000, 6 * MIB));
    ledger.reset_peak();
    assert_eq!((ledger.peak_bytes(), ledger.peak_resident_bytes()), (1000, 2 * MIB));
    drop(ledger);
    assert_eq!(probe.live_count(), 1, "the probe outlives the ledger");
}

#[test]
fn the_handles_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Ledger>();
    shared::<LedgerProbe>();
}

#[test]
fn allocations_sharing_an_end_page_count_it_once() {
    let ledger = Ledger::new();
    // The tail of a large one, a small one and the head of another, all in page 1.
    ledger.record(BASE, 2 * MIB + 4096, here());
    ledger.record(BASE + PAGE + 8192, 512, here());
    ledger.record(BASE + 2 * PAGE - 4096, 8192, here());
    assert_eq!(ledger.resident_bytes(), 3 * 2 * MIB);
    // The straddling small one touches two chunks, the other lies in one of them.
    assert_eq!(ledger.chunk_slack_bytes(), 4 * MIB - 8192 - 512);
    ledger.forget(BASE).unwrap();
    assert_eq!(ledger.resident_bytes(), 2 * 2 * MIB);
    ledger.forget(BASE + 2 * PAGE - 4096).unwrap();
    assert_eq!(ledger.resident_bytes(), 2 * MIB);
}

#[test]
fn padding_is_resident_and_nobodys() {
    let ledger = Ledger::new();
    let scope = ledger.scope("layer");
    // 512 bytes in front, 1000 asked for, 256 behind; and a large one whose band alone takes a page more.
    ledger.record_as(BASE, 512, here(), AllocKind::Padding);
    ledger.record(BASE + 512, 1000, here());
    ledger.record_as(BASE + 1512, 256, here(), AllocKind::Padding);
    ledger.record(BASE + 4 * PAGE, 4 * MIB, here());
    ledger.record_as(BASE + 6 * PAGE, 256, here(), AllocKind::Padding);
    assert_eq!((ledger.live_bytes(), ledger.live_count()), (4 * MIB + 1000, 2));
    assert_eq!((ledger.padding_bytes(), ledger.resident_bytes()), (1024, 4 * 2 * MIB));
    assert_eq!(ledger.slack_bytes(), 4 * MIB - 2024);
    assert!(ledger.chunk_slack_bytes() <= ledger.slack_bytes());
    assert_eq!(ledger.snapshot().totals.padding_count, 3);
    assert!(ledger.report(10, 0).contains("1.00 KiB of padding in 3 ranges"), "{}", ledger.report(10, 0));
    assert_eq!(ledger.snapshot().by_site().iter().map(|row| row.bytes).sum::<u64>(), 4 * MIB as u64 + 1000);

    // Known to `whois` with its owner's line and scope, and no free takes it.
    let Whois::Live { allocation, offset_bytes: 16 } = ledger.whois(BASE + 1528) else { panic!() };
    assert_eq!(
        (allocation.record.kind, allocation.record.scope.as_deref()),
        (AllocKind::Padding, Some("layer"))
    );
    assert!(matches!(ledger.try_forget(BASE), Err(ForgetError::Foreign { .. })));
    assert!(matches!(ledger.try_forget(BASE + 1528), Err(ForgetError::Foreign { .. })));

    // Freed memory that is kept back as padding is still freed memory to whoever asks.
    ledger.forget(BASE + 512).unwrap();
    for addr in [BASE, BASE + 1512] {
        ledger.try_forget_padding(addr).unwrap();
    }
    ledger.record_as(BASE, 1768, here(), AllocKind::Padding);
    assert!(matches!(ledger.whois(BASE + 512), Whois::Freed { .. }));
    assert!(matches!(ledger.try_forget(BASE + 512), Err(ForgetError::DoubleFree { now_inside: None, .. })));
    assert_eq!(ledger.resident_bytes(), 4 * 2 * MIB);

    assert_eq!(ledger.drain().len(), 1, "a sweep leaves padding");
    ledger.assert_nothing_live();
    scope.assert_balanced();
    assert_eq!(ledger.try_forget_padding(BASE).unwrap().bytes, 1768);
    ledger.try_forget_padding(BASE + 6 * PAGE).unwrap();
    assert_eq!((ledger.resident_bytes(), ledger.padding_bytes()), (0, 0));
    assert!(matches!(ledger.whois(BASE + 1512), Whois::Unknown), "no tombstone of padding");
}

#[test]
fn kinds_are_accounted_apart() {
    let ledger = Ledger::new();
    ledger.record_as(BASE, 5 * MIB, here(), AllocKind::Arena);
    ledger.record_as(BASE + 4 * PAGE, 8 * MIB, here(), AllocKind::Managed);
    ledger.record_as(BASE, 64, here(), AllocKind::Pinned);
    assert_eq!((ledger.live_bytes(), ledger.live_count(), ledger.resident_bytes()), (8 * MIB, 1, 0));
    assert_eq!(
        (ledger.arena_bytes(), ledger.arena_count(), ledger.arena_resident_bytes()),
        (5 * MIB, 1, 6 * MIB)
    );
    assert_eq!((ledger.pinned_bytes(), ledger.pinned_count()), (64, 1));
    assert_eq!(ledger.slack_bytes(), 0, "managed bytes take nothing from the slack");
    // A small allocation behind the arena's end, in its last page: the page is then no longer the arena's alone.
    ledger.record(BASE + 2 * PAGE + 3 * PAGE / 4, 512, here());
    assert_eq!((ledger.resident_bytes(), ledger.arena_resident_bytes()), (2 * MIB, 4 * MIB));

    assert!(
        matches!(ledger.try_forget(BASE), Err(ForgetError::OtherKind { live }) if live.record.kind == AllocKind::Arena)
    );
    assert_eq!(ledger.drain().len(), 2);
    assert_eq!((ledger.arena_count(), ledger.pinned_count()), (1, 1), "a sweep leaves them");
    assert_eq!(ledger.allocations_of(AllocKind::Pinned)[0].0, BASE);
    assert_eq!(ledger.try_forget_pinned(BASE).unwrap().bytes, 64);
    assert_eq!(ledger.try_forget_arena(BASE).unwrap().bytes, 5 * MIB);
    ledger.assert_nothing_live();
}

#[test]
fn an_owner_frees_its_own_allocation_and_no_other() {
    let ledger = Ledger::new();
    let first = ledger.record(BASE, 4096, here()).index;
    let second = {
        ledger.try_forget_only(BASE, first, here()).unwrap();
        ledger.record(BASE, 4096, here()).index
    };
    let error = ledger.try_forget_only(BASE, first, here()).unwrap_err();
    let ForgetError::DoubleFree { freed, now_inside: Some(now) } = &error else { panic!("{error}") };
    assert_eq!((freed.record.index, now.record.index), (first, second));
    assert_eq!(ledger.live_count(), 1, "the other allocation stays");
    assert_eq!(ledger.snapshot().totals.misuse.double_frees, 1);
    // Where the first free is not remembered, nothing is known of the owner's allocation.
    let forgetful = Ledger::with_tombstones(0);
    let index = forgetful.record(BASE, 4096, here()).index;
    forgetful.try_forget_only(BASE, index, here()).unwrap();
    forgetful.record(BASE, 4096, here());
    assert_eq!(
        forgetful.try_forget_only(BASE, index, here()).unwrap_err(),
        ForgetError::Foreign { addr: BASE }
    );
    // Memory of another kind is told as that.
    ledger.record_as(2 * BASE, 4096, here(), AllocKind::Arena);
    let error = ledger.try_forget_only(2 * BASE, 7, here()).unwrap_err();
    assert!(matches!(error, ForgetError::OtherKind { .. }), "{error}");
    ledger.try_forget_only(BASE, second, here()).unwrap();
}

#[test]
fn a_double_free_names_the_first_free_and_the_allocation() {
    let ledger = Ledger::new();
    let site = here();
    ledger.record(BASE, 4096, site);
    let first_line = line!() + 1;
    ledger.forget(BASE).unwrap();
    let Err(ForgetError::DoubleFree { freed, now_inside: None }) = ledger.try_forget(BASE) else { panic!() };
    assert_eq!((freed.freed_at.line(), freed.freed_at.file()), (first_line, file!()));
    assert_eq!((freed.record.site, freed.record.bytes, freed.how), (site, 4096, FreedBy::Free));

    // The address lives again inside something else: both are told.
    ledger.record(BASE - 512, 8192, here());
    let error = ledger.try_forget(BASE).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("freed before at {}:{first_line};", file!())), "{text}");
    assert!(text.contains("now lies inside 0x7f0dfffffe00 (8.00 KiB"), "{text}");
    assert_eq!(ledger.live_count(), 1);
    assert_eq!(ledger.snapshot().totals.misuse.double_frees, 2);
}

#[test]
fn an_interior_pointer_is_answered_with_its_base_and_owner() {
    let ledger = Ledger::new();
    let site = here();
    ledger.record(BASE, 1 << 20, site);
    ledger.record(BASE + 10 * PAGE, 100 * MIB, site);
    for (addr, base) in [
        (BASE + 256, BASE),
        (BASE + (1 << 20) - 1, BASE),
        (BASE + 10 * PAGE + 1, BASE + 10 * PAGE),
        (BASE + 30 * PAGE, BASE + 10 * PAGE),
        (BASE + 60 * PAGE - 1, BASE + 10 * PAGE),
    ] {
        let Err(ForgetError::Interior { owner, .. }) = ledger.try_forget(addr) else { panic!("{addr:#x}") };
        assert_eq!((owner.addr, owner.record.site), (base, site));
        assert!(
            matches!(ledger.whois(addr), Whois::Live { offset_bytes, .. } if offset_bytes == addr - base)
        );
    }
    for addr in [BASE - 1, BASE + (1 << 20), BASE + 10 * PAGE - 1, BASE + 60 * PAGE, 1, u64::MAX] {
        assert_eq!(ledger.try_forget(addr), Err(ForgetError::Foreign { addr }));
        assert_eq!(ledger.whois(addr), Whois::Unknown);
    }
    assert_eq!(ledger.try_forget(0), Err(ForgetError::Null));
    let misuse = ledger.snapshot().totals.misuse;
    assert_eq!((misuse.interior_frees, misuse.foreign_frees, misuse.total()), (5, 6, 11));
    assert_eq!(ledger.live_count(), 2);
}

#[test]
fn an_address_of_the_past_is_told_as_freed() {
    let ledger = Ledger::new();
    ledger.record(BASE, 4096, here());
    assert_eq!(ledger.drain().len(), 1);
    let Whois::Freed { freed, offset_bytes: 100 } = ledger.whois(BASE + 100) else { panic!() };
    assert_eq!(freed.how, FreedBy::Drain);
    assert!(matches!(ledger.try_forget(BASE + 100), Err(ForgetError::InsideFreed { .. })));
    assert!(ledger.try_forget(BASE).unwrap_err().to_string().contains("swept before"));
}

#[test]
fn tombstones_are_bounded() {
    let ledger = Ledger::with_tombstones(2);
    for i in 0..3 {
        ledger.record(BASE + i * 512, 512, here());
        ledger.forget(BASE + i * 512).unwrap();
    }
    assert_eq!(ledger.whois(BASE), Whois::Unknown);
    assert!(matches!(ledger.whois(BASE + 512), Whois::Freed { .. }));
    let forgetful = Ledger::with_tombstones(0);
    forgetful.record(BASE, 1, here());
    forgetful.forget(BASE).unwrap();
    assert_eq!(forgetful.try_forget(BASE), Err(ForgetError::Foreign { addr: BASE }));
}

/// Who takes one place and gives it back again and again leaves the frees before to be told of.
#[test]
fn frees_of_one_place_are_remembered_once() {
    let ledger = Ledger::with_tombstones(2);
    let take_and_give = |addr: u64, bytes: usize| {
        ledger.record(addr, bytes, here());
        ledger.forget(addr).unwrap().index
    };
    take_and_give(BASE, 512);
    let mut last = None;
    (0..100).for_each(|_| last = Some(take_and_give(BASE + 4096, 512)));
    assert!(matches!(ledger.whois(BASE), Whois::Freed { .. }));
    let Whois::Freed { freed, .. } = ledger.whois(BASE + 4096) else { panic!() };
    assert_eq!(Some(freed.record.index), last);
    // Of another size it is another, by which some bytes are told that the last one did not hold.
    take_and_give(BASE + 4096, 256);
    assert_eq!(ledger.whois(BASE), Whois::Unknown);
    assert!(matches!(ledger.whois(BASE + 4096 + 300), Whois::Freed { .. }));
    assert!(matches!(ledger.whois(BASE + 4096 + 100), Whois::Freed { .. }));
}

/// Frees of two kinds are two, wherever they were: a second free of either is told as one.
#[test]
fn frees_of_one_place_by_two_kinds_are_remembered_both() {
    let ledger = Ledger::new();
    ledger.record(BASE, 512, here());
    ledger.forget(BASE).unwrap();
    ledger.record_as(BASE, 512, here(), AllocKind::Pinned);
    ledger.try_forget_pinned(BASE).unwrap();
    assert!(matches!(ledger.try_forget(BASE), Err(ForgetError::DoubleFree { .. })));
    assert!(matches!(ledger.try_forget_pinned(BASE), Err(ForgetError::DoubleFree { .. })));
}

/// A free that the driver refused is none: it takes the place of none that was, whenever that is told.
#[test]
fn a_refused_free_drives_out_no_other() {
    for (refused, told_after) in (0..8usize).flat_map(|i| (i as u64..8).map(move |after| (i, after))) {
        let ledger = Ledger::with_tombstones(3);
        let (mut gone, mut freed) = (Vec::new(), Vec::new());
        for i in 0..8 {
            let addr = BASE + i * 512;
            ledger.record(addr, 512, here());
            gone.push((addr, ledger.forget(addr).unwrap()));
            freed.push(addr);
            if i == told_after {
                let (addr, record) = &gone[refused];
                assert!(ledger.restore(*addr, record).misuse.is_none());
                freed.retain(|other| other != addr);
            }
            // One that it had driven out before stays so.
            let lacks_one = told_after > 2 && refused as u64 + 3 > told_after && i == told_after;
            let known = if lacks_one { 2 } else { 3 };
            for addr in freed.iter().rev().take(known) {
                assert!(
                    matches!(ledger.whois(*addr), Whois::Freed { .. }),
                    "{refused} after {told_after}, {i}"
                );
            }
        }
    }
}

#[test]
fn a_record_over_a_live_one_takes_its_place_and_loses_nothing() {
    let ledger = Ledger::new();
    let old = here();
    ledger.record(BASE, 3 * MIB, old);
    let answer = ledger.record(BASE, 512, here());
    let Some(RecordMisuse::OverLive { kept, displaced }) = answer.misuse.as_deref() else { panic!() };
    assert_eq!((kept.record.bytes, displaced.bytes, displaced.site), (512, 3 * MIB, old));
    assert_eq!((ledger.live_bytes(), ledger.live_count(), ledger.resident_bytes()), (512, 1, 2 * MIB));
    assert!(
        matches!(ledger.whois(BASE + PAGE), Whois::Freed { freed, .. } if freed.how == FreedBy::Displaced)
    );
    // And the other way: a small one gives way to one that crosses pages.
    assert!(ledger.record(BASE, 5 * MIB, here()).into_result().is_err());
    assert_eq!((ledger.live_bytes(), ledger.live_count(), ledger.resident_bytes()), (5 * MIB, 1, 6 * MIB));
}

#[test]
fn overlapping_records_both_stand_and_pages_count_once() {
    let ledger = Ledger::new();
    ledger.record(BASE, 5 * MIB, here());
    let answer = ledger.record(BASE + 4096, 3 * MIB, here());
    let Some(RecordMisuse::Overlap { new, with }) = answer.misuse.as_deref() else { panic!() };
    assert_eq!((new.addr, with.addr), (BASE + 4096, BASE));
    assert_eq!((ledger.live_bytes(), ledger.live_count(), ledger.resident_bytes()), (8 * MIB, 2, 6 * MIB));
    // In a page between the ends of the first.
    assert!(ledger.record(BASE + PAGE + 512, 512, here()).misuse.is_some());
    assert_eq!(ledger.resident_bytes(), 6 * MIB);
    assert_eq!(ledger.slack_bytes(), 0, "more is claimed than there are pages");
    ledger.forget(BASE).unwrap();
    assert_eq!(ledger.resident_bytes(), 4 * MIB);
    ledger.forget(BASE + 4096).unwrap();
    assert_eq!((ledger.resident_bytes(), ledger.slack_bytes()), (2 * MIB, 2 * MIB - 512));
    assert_eq!(ledger.snapshot().totals.misuse.overlapping_records, 2);
}

#[test]
fn the_end_of_an_overlap_makes_no_resident_peak() {
    let ledger = Ledger::new();
    // The end of the first lies in a page between the ends of the second, which is counted twice while both stand.
    ledger.record(BASE, 3 * MIB, here());
    assert!(ledger.record(BASE + 4096, 5 * MIB, here()).misuse.is_some());
    assert_eq!((ledger.resident_bytes(), ledger.peak_resident_bytes()), (6 * MIB, 6 * MIB));
    ledger.forget(BASE + 4096).unwrap();
    assert_eq!((ledger.resident_bytes(), ledger.peak_resident_bytes()), (4 * MIB, 6 * MIB));
    // The same where the next record ends it, and no read was between.
    ledger.reset_peak();
    assert!(ledger.record(BASE + 4096, 5 * MIB, here()).misuse.is_some());
    assert!(ledger.record(BASE + 4096, 512, here()).misuse.is_some());
    ledger.forget(BASE + 4096).unwrap();
    assert!(ledger.peak_resident_bytes() <= 6 * MIB, "{}", ledger.peak_resident_bytes());
}

#[test]
fn a_large_record_around_a_small_one_overlaps_it() {
    let ledger = Ledger::new();
    ledger.record(BASE + 7 * PAGE + 512, 512, here());
    // Near and far: the walk over its pages, and the walk over the ledger's.
    for bytes in [20 * MIB, 100_000 * MIB] {
        let answer = ledger.record(BASE, bytes, here());
        let Some(RecordMisuse::Overlap { with, .. }) = answer.misuse.as_deref() else { panic!() };
        assert_eq!(with.addr, BASE + 7 * PAGE + 512);
        assert_eq!(ledger.resident_bytes(), bytes);
        ledger.forget(BASE).unwrap();
    }
}

#[test]
fn odd_records_are_kept_and_answered() {
    let ledger = Ledger::new();
    assert!(matches!(ledger.record(BASE, 0, here()).misuse.as_deref(), Some(RecordMisuse::Empty { .. })));
    assert!(matches!(ledger.record(0, 64, here()).misuse.as_deref(), Some(RecordMisuse::Null { .. })));
    let end = ledger.record(u64::MAX - 99, 1000, here());
    assert!(matches!(end.misuse.as_deref(), Some(RecordMisuse::PastEnd { .. })));
    assert_eq!((ledger.live_bytes(), ledger.live_count()), (1064, 3));
    assert_eq!(ledger.resident_bytes(), 4 * MIB, "two pages: the first and the last there are");
    assert!(matches!(ledger.whois(u64::MAX), Whois::Live { offset_bytes: 99, .. }));
    assert_eq!(ledger.forget(BASE).unwrap().bytes, 0);
    assert_eq!(ledger.forget(0).unwrap().bytes, 64);
    assert_eq!(ledger.forget(u64::MAX - 99).unwrap().bytes, 1000);
    assert_eq!((ledger.live_bytes(), ledger.live_count(), ledger.resident_bytes()), (0, 0, 0));
}

#[test]
fn sums_past_64_bits_show_as_the_largest_and_come_back_exact() {
    let ledger = Ledger::new();
    ledger.record(BASE, 4096, here());
    ledger.record(1, usize::MAX, here());
    ledger.record(2, usize::MAX, here());
    assert_eq!((ledger.live_bytes(), ledger.live_count()), (usize::MAX, 3));
    assert_eq!(ledger.resident_bytes(), usize::MAX, "2^64 bytes, one more than can be said");
    assert_eq!(ledger.slack_bytes(), 0);
    assert!(!ledger.report(5, 0).is_empty());
    ledger.forget(1).unwrap();
    ledger.forget(2).unwrap();
    assert_eq!((ledger.live_bytes(), ledger.live_count(), ledger.resident_bytes()), (4096, 1, 2 * MIB));
}

#[test]
fn a_refused_free_puts_the_record_back_marked() {
    let ledger = Ledger::new();
    let scope = ledger.scope("kv");
    ledger.record(BASE, 4096, here());
    ledger.tag(BASE, "cache");
    drop(scope);
    ledger.record(BASE + 4096, 512, here());
    let record = ledger.try_forget(BASE).unwrap();
    assert!(ledger.restore(BASE, &record).misuse.is_none());
    let (addr, back) = ledger.live_allocations().swap_remove(0);
    assert_eq!(
        (addr, back.index, back.scope.as_deref(), back.tag.as_deref()),
        (BASE, 0, Some("kv"), Some("cache"))
    );
    assert!(back.free_refused && !record.free_refused);
    assert_eq!((ledger.live_bytes(), ledger.resident_bytes()), (4608, 2 * MIB));
    assert!(matches!(ledger.whois(BASE), Whois::Live { .. }));
    // Its free did not happen, so the next one is the first.
    let next_line = line!() + 1;
    ledger.forget(BASE).unwrap();
    let Err(ForgetError::DoubleFree { freed, .. }) = ledger.try_forget(BASE) else { panic!() };
    assert_eq!(freed.freed_at.line(), next_line);

    // Given out anew before the refusal came: the new owner stays.
    ledger.record(BASE, 100, here());
    let answer = ledger.restore(BASE, &record);
    let Some(RecordMisuse::OverLive { kept, displaced }) = answer.misuse.as_deref() else { panic!() };
    assert_eq!((kept.record.bytes, displaced.bytes), (100, 4096));
    assert_eq!(ledger.live_bytes(), 612);
}

#[test]
fn scopes_nest_per_thread_and_per_ledger() {
    let (a, b) = (Ledger::new(), Ledger::new());
    let scope_of = |ledger: &Ledger, addr: u64| {
        ledger.record(addr, 1, here());
        ledger.forget(addr).unwrap().scope.map(|s| s.to_string())
    };
    let outer = a.scope("layers.3");
    let other = b.scope("b");
    let inner = a.scope("attn");
    assert_eq!(inner.label(), "layers.3/attn");
    assert_eq!(scope_of(&a, 1).as_deref(), Some("layers.3/attn"));
    assert_eq!(scope_of(&b, 1).as_deref(), Some("b"));
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(scope_of(&a, 2), None));
    });
    // Out of order: each guard closes its own.
    drop(outer);
    assert_eq!(scope_of(&a, 1).as_deref(), Some("layers.3/attn"));
    drop(inner);
    assert_eq!(scope_of(&a, 1), None);
    assert_eq!(scope_of(&b, 1).as_deref(), Some("b"));
    drop(other);
    assert_eq!(scope_of(&b, 1), None);
    // A panic closes what it leaves.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _gone = a.scope("gone");
        panic!("on purpose");
    }));
    assert_eq!(scope_of(&a, 1), None);
}

#[test]
fn snapshots_are_the_same_for_the_same_ledger_and_diff_by_site_and_scope() {
    let ledger = Ledger::new();
    let (x, y) = (here(), here());
    ledger.record(BASE, 1000, x);
    let before = ledger.snapshot();
    let guard = ledger.scope("s");
    ledger.record(BASE + 4096, 500, y);
    ledger.record(BASE + 8192, 500, y);
    drop(guard);
    ledger.forget(BASE).unwrap();
    let after = ledger.snapshot();
    assert_eq!(after, ledger.snapshot());
    let diff = after.diff(&before);
    assert_eq!((diff.live_bytes, diff.live_count, diff.resident_bytes), (0, 1, 0));
    // Equal changes: by name, and here that is by line and column.
    let sites: Vec<_> =
        diff.by_site().into_iter().map(|row| (row.site.column, row.bytes, row.count)).collect();
    assert_eq!(sites, [(x.column(), -1000, -1), (y.column(), 1000, 2)]);
    let scopes: Vec<_> = diff.by_scope().into_iter().map(|row| (row.label, row.bytes)).collect();
    assert_eq!(scopes, [(None, -1000), (Some("s".to_owned()), 1000)]);
    let text = diff.to_string();
    assert!(text.starts_with("device allocations: live +0 B (+1), resident +0 B"), "{text}");
    assert!(after.diff(&after).groups.is_empty());
}

/// Rows of a section of the report, without the size column's padding.
fn section<'a>(report: &'a str, title: &str) -> Vec<&'a str> {
    report
        .lines()
        .skip_while(|l| *l != title)
        .skip(1)
        .take_while(|l| l.starts_with(' '))
        .map(str::trim)
        .collect()
}

/// A text names a line; which of the calls on it was meant is for programs to tell.
#[test]
fn calls_of_one_line_are_one_line_of_a_text_and_the_column_is_in_the_data() {
    let ledger = Ledger::new();
    let before = ledger.snapshot();
    let (first, second) = (here(), here());
    assert_ne!(first.column(), second.column());
    ledger.record(BASE, 4096, first);
    ledger.record(BASE + PAGE, 4096, second);
    let line = format!("{}:{}", file!(), first.line());
    let report = ledger.report(5, 0);
    assert_eq!(section(&report, "call sites:"), [format!("8.00 KiB  x2       {line}")]);
    assert!(report.lines().next().unwrap().ends_with("from 1 call site"), "{report}");
    let snapshot = ledger.snapshot();
    let columns: Vec<_> = snapshot.by_site().iter().map(|row| row.site.column).collect();
    assert_eq!(columns, [first.column(), second.column()]);
    assert_eq!(snapshot.by_site()[0].site.to_string(), line);
    let diff = snapshot.diff(&before).to_string();
    assert!(diff.lines().any(|text| text.trim() == format!("+8.00 KiB  x+2      {line}")), "{diff}");
    // Errors and records too, on whichever line they meet.
    ledger.forget(BASE).unwrap();
    let texts = [
        ledger.try_forget(BASE).unwrap_err().to_string(),
        ledger.try_forget(BASE + PAGE + 1).unwrap_err().to_string(),
        ledger.whois(BASE + PAGE).to_string(),
        ledger.live_allocations()[0].1.to_string(),
        file_line(first),
    ];
    for text in texts {
        let columns = [first.column(), second.column()].map(|column| format!("{line}:{column}"));
        assert!(text.contains(&line) && columns.iter().all(|column| !text.contains(column)), "{text}");
    }
}

#[test]
fn the_report_lists_sites_files_and_scopes_largest_first() {
    let ledger = Ledger::new();
    let large = here();
    let twice = here();
    let small = here();
    let tie = here();
    let guard = ledger.scope("embed");
    ledger.record(BASE, 1 << 30, large);
    drop(guard);
    ledger.record(BASE + 1000 * PAGE, 3 * MIB, twice);
    ledger.record(BASE + 1002 * PAGE, 3 * MIB, twice);
    ledger.record(BASE + 1004 * PAGE, 512, tie);
    ledger.record(BASE + 1004 * PAGE + 512, 512, small);

    let report = ledger.report(3, 0);
    let header = report.lines().next().unwrap();
    assert_eq!(header, "device allocations: 1.01 GiB live in 5 allocations from 4 call sites");
    assert_eq!(
        section(&report, "call sites:"),
        [
            format!("1.00 GiB  x1       {}", file_line(large)),
            format!("6.00 MiB  x2       {}", file_line(twice)),
            // Of two equal ones the first by name.
            format!("512 B  x1       {}", file_line(small)),
            "512 B  x1       in 1 more call site".to_owned(),
        ]
    );
    assert_eq!(section(&report, "files:"), [format!("1.01 GiB  x5       {}", file!())]);
    assert_eq!(section(&report, "scopes:"), ["1.00 GiB  x1       embed", "6.00 MiB  x4       (no scope)"]);

    // Sites below the floor go to the rest, whatever top_n allows; so do all of them at 0.
    let report = ledger.report(10, 1);
    assert_eq!(section(&report, "call sites:")[2], "1.00 KiB  x2       in 2 more call sites");
    let report = ledger.report(0, 0);
    assert_eq!(section(&report, "call sites:"), ["1.01 GiB  x5       in 4 call sites"]);
    assert_eq!(ledger.report(usize::MAX, usize::MAX), ledger.report(usize::MAX, usize::MAX));

    let empty = Ledger::new().report(5, 0);
    assert_eq!(empty.lines().next(), Some("device allocations: 0 B live in 0 allocations from 0 call sites"));
    assert_eq!(empty.lines().count(), 2);
}

#[test]
fn the_report_says_what_went_wrong_and_what_stands_apart() {
    let ledger = Ledger::new();
    ledger.record_as(BASE, 5 * MIB, here(), AllocKind::Arena);
    ledger.record_as(64, 4096, here(), AllocKind::Pinned);
    ledger.forget(12345);
    let report = ledger.report(5, 0);
    assert!(report.contains("  apart: 5.00 MiB in 1 arena\n"), "{report}");
    assert!(report.contains("  apart: 4.00 KiB of pinned host memory in 1 allocation\n"), "{report}");
    assert!(report.contains("  misuse: free of an unknown pointer x1\n"), "{report}");
}

#[test]
fn a_tag_names_one_allocation() {
    let ledger = Ledger::new();
    ledger.record(BASE, 4096, here());
    assert!(ledger.tag(BASE, "kv-cache"));
    assert!(!ledger.tag(BASE + 1, "inside"));
    assert!(ledger.whois(BASE + 5).to_string().contains("tag kv-cache"));
    assert!(ledger.report(5, 0).contains("tags:\n"));
    ledger.record(BASE + 4096, 1024, here());
    let by_tag = ledger.snapshot().by_tag();
    let rows: Vec<_> = by_tag.iter().map(|row| (row.label.as_deref(), row.bytes, row.count)).collect();
    assert_eq!(rows, [(Some("kv-cache"), 4096, 1), (None, 1024, 1)]);
    assert_eq!(ledger.forget(BASE).unwrap().tag.as_deref(), Some("kv-cache"));
}

#[test]
fn failed_assertions_bring_the_report() {
    let ledger = Ledger::new();
    ledger.record(BASE, 4096, here());
    let text = panic_text(|| ledger.assert_nothing_live());
    assert!(
        text.starts_with("1 allocation still live\n  0x7f0e00000000 (4.00 KiB of device memory from"),
        "{text}"
    );
    assert!(text.contains("device allocations: 4.00 KiB live"), "{text}");

    let mark = ledger.mark();
    ledger.assert_unchanged_since(&mark);
    ledger.record(BASE + 4096, 512, here());
    ledger.forget(BASE).unwrap();
    let text = panic_text(|| ledger.probe().assert_unchanged_since(&mark));
    assert!(text.contains("1 allocation since then still live, 1 from before gone"), "{text}");

    let guard = ledger.scope("step");
    let inner = ledger.scope("inner");
    ledger.record(BASE + 8192, 512, here());
    drop(inner);
    assert_eq!(guard.still_live().len(), 1);
    let text = panic_text(|| guard.assert_balanced());
    assert!(text.contains("scope step did not end where it began: 1 allocation still live"), "{text}");
    ledger.drain();

    // What was there before, and a neighbour whose label merely begins alike, are not the scope's.
    let before = ledger.scope("step");
    ledger.record(BASE, 1, here());
    drop(before);
    let again = ledger.scope("step");
    {
        let _alike = ScopeGuard::label(&again).to_owned();
        std::thread::scope(|s| {
            s.spawn(|| {
                let _two = ledger.scope("step2");
                ledger.record(BASE + 1, 1, here());
            });
        });
    }
    ledger.record(BASE + 2, 1, here());
    ledger.forget(BASE + 2).unwrap();
    again.assert_balanced();
}

#[test]
fn totals_are_exact_after_many_threads() {
    const THREADS: u64 = 4;
    const STEPS: u64 = 5_000;
    let ledger = Ledger::new();
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (ledger, start) = (&ledger, &start);
            s.spawn(move || {
                let _scope = ledger.scope(&format!("thread {t}"));
                start.wait();
                // Threads interleave in the same pages.
                let addr = |i: u64| BASE + (i * THREADS + t) * 512;
                for i in 0..STEPS {
                    assert!(ledger.record(addr(i), 500, here()).misuse.is_none());
                    if i % 2 == 1 {
                        ledger.try_forget(addr(i - 1)).unwrap();
                    }
                }
            });
        }
        let probe = ledger.probe();
        start_reading(&probe);
    });
    let live = (THREADS * STEPS / 2) as usize;
    assert_eq!((ledger.live_count(), ledger.live_bytes()), (live, live * 500));
    let pages = (THREADS * STEPS * 512).div_ceil(PAGE) as usize;
    assert_eq!(ledger.resident_bytes(), pages * 2 * MIB);
    assert_eq!(ledger.snapshot().by_scope().len(), THREADS as usize);
    assert_eq!(ledger.drain().len(), live);
    assert_eq!((ledger.live_bytes(), ledger.live_count(), ledger.resident_bytes()), (0, 0, 0));
}

/// Reads while others write: each snapshot is one moment, so its parts agree.
fn start_reading(probe: &LedgerProbe) {
    for _ in 0..50 {
        let snapshot = probe.snapshot();
        let (bytes, count) = snapshot.groups.iter().fold((0, 0), |sum, g| (sum.0 + g.bytes, sum.1 + g.count));
        assert_eq!((bytes, count), (snapshot.totals.live_bytes, snapshot.totals.live_count));
        assert_eq!(snapshot.totals.slack_bytes, snapshot.totals.resident_bytes - snapshot.totals.live_bytes);
        let text = ByteSize(snapshot.totals.live_bytes).to_string();
        assert!(snapshot.report(1, 0).contains(&text));
    }
}

#[test]
fn who_held_what_at_the_peak_is_known_later() {
    let ledger = Ledger::new();
    let (weights, staging) = (here(), here());
    {
        let _scope = ledger.scope("load");
        ledger.record(BASE, 3 * MIB, weights);
        ledger.record(BASE + 10 * PAGE, 5 * MIB, staging);
    }
    ledger.record_as(BASE + 20 * PAGE, MIB, here(), AllocKind::Arena);
    assert_eq!(ledger.peak_snapshot().totals.live_bytes, 8 << 20, "the peak is now");
    ledger.forget(BASE + 10 * PAGE).unwrap();
    ledger.record(BASE + 30 * PAGE, 1000, weights);
    ledger.record(BASE + 40 * PAGE, 5 * MIB - 1000, staging);

    let peak = ledger.peak_snapshot();
    assert_eq!(
        (peak.totals.live_bytes, peak.totals.peak_bytes, peak.totals.resident_bytes),
        (8 << 20, 8 << 20, 10 << 20)
    );
    let sites: Vec<_> = peak.by_site().into_iter().map(|row| (row.site.line, row.bytes, row.count)).collect();
    assert_eq!(sites, [(staging.line(), 5 << 20, 1), (weights.line(), 3 << 20, 1)]);
    assert_eq!(peak.by_scope()[0].label.as_deref(), Some("load"));
    assert_eq!(peak.totals.arena_count, 0, "as high again is no new peak, so the arena came later");
    assert!(peak.report(5, 0).starts_with("device allocations: 8.00 MiB live in 2 allocations"));
    // What came and went since, by site and scope.
    let since = ledger.snapshot().diff(&peak);
    assert_eq!(since.by_scope().iter().map(|row| row.bytes).collect::<Vec<_>>(), [5 << 20, -(5 << 20)]);

    ledger.reset_peak();
    assert_eq!(ledger.peak_snapshot(), ledger.snapshot());
}

#[test]
fn events_are_kept_only_where_asked_for_and_bounded() {
    let ledger = Ledger::new();
    ledger.record(BASE, 100, here());
    assert!(ledger.recent_events().is_empty());
    ledger.keep_events(3);
    let site = here();
    ledger.record(BASE + 4096, 200, site);
    let record = ledger.forget(BASE).unwrap();
    ledger.restore(BASE, &record);
    ledger.drain();
    let events = ledger.probe().recent_events();
    let told: Vec<_> = events.iter().map(|e| (e.number, e.kind, e.allocation.addr)).collect();
    assert_eq!(
        told,
        [
            (2, AllocEventKind::Restored, BASE),
            (3, AllocEventKind::Gone(FreedBy::Drain), BASE),
            (4, AllocEventKind::Gone(FreedBy::Drain), BASE + 4096),
        ]
    );
    assert_eq!(events[2].allocation.record.site, site);
    assert!(events[2].to_string().starts_with("4 swept 0x7f0e00001000 (200 B of device memory from"));
    ledger.keep_events(0);
    ledger.record(BASE, 100, here());
    assert!(ledger.recent_events().is_empty());
}

/// Host and device addresses are spaces of their own; a free by the wrong call is told what the memory is, in both.
#[test]
fn a_free_by_the_call_for_the_other_side_is_told_so() {
    let ledger = Ledger::new();
    ledger.record_as(BASE, MIB, here(), AllocKind::Pinned);
    ledger.record_as(BASE + 4 * PAGE, MIB, here(), AllocKind::Device);
    let kind = |answer: Result<_, ForgetError>| match answer {
        Err(ForgetError::OtherKind { live }) => live.record.kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(ledger.try_forget(BASE)), AllocKind::Pinned);
    assert_eq!(kind(ledger.try_forget_arena(BASE)), AllocKind::Pinned);
    assert_eq!(kind(ledger.try_forget_pinned(BASE + 4 * PAGE)), AllocKind::Device);
    assert!(
        ledger.try_forget(BASE).unwrap_err().to_string().contains("pinned memory; free it as what it was")
    );
    assert!(matches!(ledger.try_forget(BASE + 8), Err(ForgetError::Foreign { .. })));
    assert_eq!((ledger.live_count(), ledger.pinned_count()), (1, 1));
    assert_eq!(ledger.snapshot().totals.misuse.other_kind_frees, 4);
    // An address may stand for memory in both: each call takes its own.
    ledger.record_as(BASE, MIB, here(), AllocKind::Device);
    ledger.try_forget(BASE).unwrap();
    ledger.try_forget_pinned(BASE).unwrap();
}

/// Names come from model files.
#[test]
fn no_name_forges_a_line_of_a_report() {
    let ledger = Ledger::new();
    let odd = "a\nscopes:\n    9.00 GiB  x1       \u{1b}[2Jforged";
    {
        let _odd = ledger.scope(odd);
        ledger.record(BASE, MIB, here());
    }
    {
        let _empty = ledger.scope("");
        ledger.record(BASE + PAGE, MIB, here());
    }
    let before = ledger.snapshot();
    ledger.record_as(BASE + 8 * PAGE, MIB, here(), AllocKind::Arena);
    ledger.record_sub_range(BASE + 8 * PAGE, 0, 1000, odd, here()).unwrap();
    let texts = [
        ledger.report(10, 0),
        ledger.whois(BASE).to_string(),
        ledger.snapshot().diff(&Ledger::new().snapshot()).to_string(),
        before.report(10, 0),
    ];
    for text in &texts {
        assert!(text.contains(r"a\nscopes:\n    9.00 GiB  x1       \u{1b}[2Jforged"), "{text}");
        assert!(
            text.lines().all(|line| line != "scopes:" || text.matches("\nscopes:\n").count() == 1),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    assert!(texts[0].lines().any(|line| line.ends_with(" \"\"")), "{}", texts[0]);
}

/// A pool's block with the pool's parts recorded in it: each part makes a new peak, and leaving the last one keeps it whole.
#[test]
fn the_peak_of_what_overlaps_is_kept_when_it_is_left() {
    const BLOCK: u64 = 0x7f00_0000_0000;
    let ledger = Ledger::new();
    ledger.record(BLOCK, 1 << 30, Location::caller());
    for part in 0..1000 {
        let answer = ledger.record(BLOCK + part * 4096 + 512, 300, Location::caller());
        assert!(matches!(answer.misuse.as_deref(), Some(RecordMisuse::Overlap { .. })));
    }
    let before = ledger.snapshot();
    assert_eq!((ledger.peak_bytes(), ledger.resident_bytes()), ((1 << 30) + 300_000, 1 << 30));
    // Padding and arenas are no part of the peak, but of its totals.
    ledger.record_as(BLOCK + (2 << 30), 4096, Location::caller(), AllocKind::Padding);
    ledger.forget(BLOCK + 512);
    ledger.forget(BLOCK);
    let peak = ledger.peak_snapshot();
    assert_eq!(peak.totals.live_bytes, before.totals.live_bytes);
    assert_eq!((peak.totals.resident_bytes, peak.totals.padding_bytes), (1 << 30, 0));
    assert_eq!(peak.groups, before.groups);
}

/// Who asks for a peak later is told what a snapshot there would have told, even if nobody took one: its pages are among
/// those of the resident peak, and what went wrong after it is not among its misuse.
#[test]
fn a_peak_is_what_a_snapshot_there_would_have_told() {
    const BASE: u64 = 0x7f00_0000_0000;
    let grow = |ledger: &Ledger| {
        let site = Location::caller();
        ledger.record(BASE, 8 << 20, site);
        // Overlaps, and makes a peak of three more pages that no read sees.
        ledger.record(BASE + (7 << 20), 6 << 20, site);
    };
    let seen = Ledger::new();
    grow(&seen);
    let there = seen.snapshot().totals;
    assert_eq!((there.resident_bytes, there.peak_resident_bytes), (14 << 20, 14 << 20));
    for leave in [
        |ledger: &Ledger| assert!(ledger.forget(BASE).is_some()),
        |ledger: &Ledger| assert!(ledger.try_forget(BASE + 1).is_err()),
        |ledger: &Ledger| assert!(ledger.tag(BASE, "weights")),
    ] {
        let unseen = Ledger::new();
        grow(&unseen);
        leave(&unseen);
        unseen.drain();
        assert_eq!(unseen.peak_snapshot().totals, there);
    }
    // The same where nothing overlaps.
    let ledger = Ledger::new();
    ledger.record(BASE, 512, Location::caller());
    let there = ledger.snapshot();
    assert!(ledger.try_forget(BASE + 1).is_err());
    assert_eq!(ledger.peak_snapshot(), there);
    // A refused free puts nothing back where the address is live again.
    let ledger = Ledger::new();
    ledger.record(BASE, 512, Location::caller());
    let gone = ledger.forget(BASE).unwrap();
    ledger.record(BASE, 1024, Location::caller());
    let there = ledger.snapshot();
    assert!(ledger.restore(BASE, &gone).misuse.is_some());
    assert_eq!(ledger.peak_snapshot(), there);
}

/// An arena of a wrong size has nearly all pages there are, more than 64 bits count in bytes; what comes and goes in one of
/// them leaves that as it is.
#[test]
fn an_arena_over_the_whole_address_space_keeps_its_pages() {
    let ledger = Ledger::new();
    ledger.record_as(0x1000, usize::MAX, Location::caller(), AllocKind::Arena);
    assert_eq!(ledger.arena_resident_bytes(), usize::MAX);
    for bytes in [512, 300] {
        ledger.record(0x200, bytes, Location::caller());
        assert_eq!(ledger.arena_resident_bytes(), usize::MAX - (2 << 20) + 1);
        assert!(ledger.forget(0x200).is_some());
        assert_eq!(ledger.arena_resident_bytes(), usize::MAX);
        assert_eq!(ledger.snapshot().totals.arena_resident_bytes, u64::MAX);
    }
}

/// An allocation without bytes has a base all the same, and holds nobody up.
#[test]
fn one_without_bytes_is_displaced_by_what_gets_its_address() {
    const BASE: u64 = 0x7f00_0000_0000;
    let ledger = Ledger::new();
    ledger.record(BASE, 0, Location::caller());
    assert!(ledger.record(BASE + 512, 100, Location::caller()).misuse.is_none());
    let answer = ledger.record(BASE, 100, Location::caller());
    assert!(
        matches!(answer.misuse.as_deref(), Some(RecordMisuse::OverLive { displaced, .. }) if displaced.bytes == 0)
    );
    assert_eq!((ledger.live_count(), ledger.live_bytes(), ledger.resident_bytes()), (2, 200, 2 << 20));
}

/// The missing free of a displaced allocation comes by the call for its kind. A second free by another call is one too many.
#[test]
fn a_second_free_is_no_late_free_of_another_kind() {
    for kind in [AllocKind::Pinned, AllocKind::Arena] {
        let ledger = Ledger::new();
        ledger.record_as(BASE, 64, here(), kind);
        ledger.record_as(BASE, 32, here(), kind);
        let free_kind = || match kind {
            AllocKind::Pinned => ledger.try_forget_pinned(BASE),
            _ => ledger.try_forget_arena(BASE),
        };
        free_kind().unwrap();
        ledger.record(BASE, 100, here());
        ledger.forget(BASE).unwrap();
        let counts = || {
            let misuse = ledger.snapshot().totals.misuse;
            (misuse.double_frees, misuse.records_over_live)
        };
        assert!(matches!(ledger.try_forget(BASE), Err(ForgetError::DoubleFree { .. })));
        assert_eq!(counts(), (1, 1), "{kind}");
        assert!(matches!(free_kind(), Err(ForgetError::DoubleFree { .. })));
        assert_eq!(counts(), (1, 0), "{kind}: the late free");
    }
}

/// Managed memory is among the live allocations, so the chunk slack of these counts it.
#[test]
fn chunk_slack_is_that_of_the_live_allocations() {
    const BASE: u64 = 0x7f00_0000_0000;
    let ledger = Ledger::new();
    let told = || {
        let live = ledger.live_allocations().into_iter().map(|(addr, record)| (addr, record.bytes));
        metrale_ledger::chunk_slack(live, metrale_ledger::SMALL_ALLOC_CHUNK)
    };
    for (page, bytes, kind) in [
        (0, 4096, AllocKind::Managed),
        (0, 512, AllocKind::Device),
        (1, 1 << 20, AllocKind::Managed),
        (2, 4 << 20, AllocKind::Managed),
        (5, 4096, AllocKind::Padding),
        (6, 4096, AllocKind::Arena),
    ] {
        let offset = if kind == AllocKind::Device { 1 << 20 } else { 0 };
        ledger.record_as(BASE + page * (2 << 20) + offset, bytes, Location::caller(), kind);
        assert_eq!(ledger.chunk_slack_bytes(), told());
    }
    assert_eq!(ledger.chunk_slack_bytes(), (4 << 20) - (4096 + 512 + (1 << 20)));
    ledger.forget(BASE);
    assert_eq!(ledger.chunk_slack_bytes(), told());
}

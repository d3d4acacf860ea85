// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several threads on one ledger: exact at every join, every read of one moment, the peak and its holders as a copy has them.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use metrale_ledger::{AllocKind, ForgetError, Ledger, chunk_slack};

const PAGE: u64 = 2 << 20;

/// Three lines, told apart by their column.
fn site(which: usize) -> &'static Location<'static> {
    let sites = [Location::caller(), Location::caller(), Location::caller()];
    sites[which % 3]
}

/// A sequence without order (splitmix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Every thread's own allocations come and go in pages that all of them share.
fn many_threads(threads: u64, pairs: u64) {
    let ledger = Ledger::with_tombstones(16);
    let seen = AtomicU64::new(0);
    std::thread::scope(|s| {
        for t in 0..threads {
            let (ledger, seen) = (&ledger, &seen);
            s.spawn(move || {
                for i in 0..pairs {
                    // One in 16 allocations stays for 1024 rounds.
                    let addr = PAGE + (i % 1024 * threads + t) * 4096;
                    if i % 1024 == 0 && i > 0 {
                        for n in (0..1024).step_by(16) {
                            assert!(ledger.forget(PAGE + (n * threads + t) * 4096).is_some());
                        }
                    }
                    assert!(ledger.record(addr, 1000, site(t as usize)).misuse.is_none());
                    if i % 16 != 0 {
                        assert_eq!(ledger.forget(addr).map(|record| record.bytes), Some(1000));
                    }
                    if t == 0 && i % 4096 == 4095 {
                        let snapshot =
                            if i % 8192 == 4095 { ledger.peak_snapshot() } else { ledger.snapshot() };
                        seen.fetch_max(snapshot.totals.live_bytes, SeqCst);
                        let sum: u64 = snapshot.groups.iter().map(|group| group.bytes).sum();
                        assert_eq!(sum, snapshot.totals.live_bytes, "one moment");
                        assert_eq!(snapshot.totals.live_bytes, 1000 * snapshot.totals.live_count);
                    }
                }
            });
        }
    });
    let left = threads * ((pairs - 1) % 1024 / 16 + 1);
    assert_eq!(ledger.live_count() as u64, left);
    assert_eq!(ledger.live_bytes() as u64, 1000 * left);
    // What is left is less than a page apart, from the first address on.
    let last = ((pairs - 1) % 1024 / 16 * 16 * threads + threads - 1) * 4096;
    let resident = (last / PAGE + 1) * PAGE;
    assert_eq!(ledger.resident_bytes() as u64, resident);
    assert_eq!(ledger.slack_bytes() as u64, resident - 1000 * left);
    let peak = ledger.peak_bytes() as u64;
    assert!(peak >= seen.into_inner().max(64_000) && peak <= 1000 * threads * 65, "{peak}");
    let at_peak = ledger.peak_snapshot();
    let held: u64 = at_peak.groups.iter().map(|group| group.bytes).sum();
    assert_eq!((at_peak.totals.live_bytes, held), (peak, peak));
    let mut indices: Vec<_> = ledger.live_allocations().into_iter().map(|(_, record)| record.index).collect();
    indices.dedup();
    assert_eq!(indices.len() as u64, left, "each index once, in order");
}

#[test]
fn totals_are_exact_after_8_threads() {
    many_threads(8, 20_000);
}

#[test]
#[ignore = "long: 8 threads of a million operations each"]
fn totals_are_exact_after_8_threads_of_a_million_operations() {
    many_threads(8, 1_000_000);
}

/// Threads do random things at addresses of their own, in shared pages; at each join the ledger equals their maps together.
fn differential(threads: u64, rounds: u64, steps: u64) {
    type Live = BTreeMap<u64, (usize, AllocKind)>;
    let ledger = Ledger::new();
    let mut maps: Vec<Live> = vec![Live::new(); threads as usize];
    for round in 0..rounds {
        std::thread::scope(|s| {
            for (t, live) in (0..threads).zip(&mut maps) {
                let ledger = &ledger;
                s.spawn(move || {
                    let mut state = round << 32 | t;
                    for _ in 0..steps {
                        let pick = random(&mut state);
                        // 64 KiB for each place of each thread, so that large allocations of one never reach another's.
                        let addr = PAGE * 8 + (pick % 64 * threads + t) * (64 << 10);
                        let kind =
                            [AllocKind::Device, AllocKind::Device, AllocKind::Managed, AllocKind::Padding]
                                [(pick >> 8) as usize % 4];
                        match live.remove(&addr) {
                            Some((bytes, kind)) => {
                                let gone = match kind {
                                    AllocKind::Padding => ledger.try_forget_padding(addr),
                                    _ => ledger.try_forget(addr),
                                };
                                assert_eq!(gone.map(|record| (record.bytes, record.kind)), Ok((bytes, kind)));
                            }
                            None => {
                                let bytes = 1 + (pick >> 16) as usize % (64 << 10);
                                let done = ledger.record_as(addr, bytes, site(t as usize), kind);
                                assert!(done.misuse.is_none());
                                live.insert(addr, (bytes, kind));
                            }
                        }
                    }
                });
            }
        });
        let all: Live = maps.iter().flatten().map(|(&addr, &live)| (addr, live)).collect();
        let bytes = |fits: fn(AllocKind) -> bool| -> usize {
            all.values().filter(|live| fits(live.1)).map(|live| live.0).sum()
        };
        let packed = |kind| matches!(kind, AllocKind::Device | AllocKind::Padding);
        let pages: std::collections::BTreeSet<u64> = all
            .iter()
            .filter(|(_, live)| packed(live.1))
            .flat_map(|(&addr, live)| addr / PAGE..=(addr + live.0 as u64 - 1) / PAGE)
            .collect();
        let sweepable = all.iter().filter(|(_, live)| live.1.is_sweepable());
        assert_eq!(ledger.live_bytes(), bytes(AllocKind::is_sweepable));
        assert_eq!(ledger.live_count(), sweepable.clone().count());
        assert_eq!(ledger.resident_bytes(), pages.len() * PAGE as usize);
        assert_eq!(ledger.slack_bytes(), pages.len() * PAGE as usize - bytes(packed));
        assert_eq!(ledger.padding_bytes(), bytes(|kind| kind == AllocKind::Padding));
        let small = sweepable.map(|(&addr, live)| (addr, live.0));
        assert_eq!(ledger.chunk_slack_bytes(), chunk_slack(small, PAGE));
        let snapshot = ledger.snapshot();
        assert_eq!(snapshot.by_site().iter().map(|row| row.bytes).sum::<u64>(), snapshot.totals.live_bytes);
        assert_eq!(snapshot.totals.misuse, Default::default());
    }
}

#[test]
fn several_threads_are_exact_at_every_join() {
    differential(4, 40, 500);
}

#[test]
#[ignore = "long: 40 million operations"]
fn several_threads_are_exact_at_every_join_of_many() {
    differential(8, 1000, 5000);
}

/// The peak's holders against a copy of everything at every peak.
#[test]
fn the_peak_is_kept_as_a_copy_would_keep_it() {
    let ledger = Ledger::with_tombstones(0);
    let mut live: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    let mut peak = (0, BTreeMap::new());
    let mut state = 1;
    for step in 0..20_000u64 {
        let pick = random(&mut state);
        let which = (pick >> 40) as usize % 3;
        // Rising and falling, so that peaks come in runs and singly.
        let grows = pick % 100 < if step / 500 % 2 == 0 { 60 } else { 45 };
        let addr = PAGE + (pick >> 8) % 4096 * 512;
        if grows && !live.contains_key(&addr) {
            let bytes = 1 + (pick >> 24) as usize % 512;
            ledger.record(addr, bytes, site(which));
            live.insert(addr, (bytes, which));
        } else if let Some((&addr, _)) = live.range(addr..).next() {
            assert!(ledger.forget(addr).is_some());
            live.remove(&addr);
        }
        let sum: usize = live.values().map(|l| l.0).sum();
        if sum > peak.0 {
            peak = (sum, live.clone());
        }
        if step % 500 == 0 {
            let snapshot = ledger.peak_snapshot();
            assert_eq!(snapshot.totals.live_bytes, peak.0 as u64);
            assert_eq!(
                (snapshot.totals.peak_bytes, snapshot.totals.live_count),
                (peak.0 as u64, peak.1.len() as u64)
            );
            for row in snapshot.by_site() {
                let column = row.site.column;
                let own = peak.1.values().filter(|l| site(l.1).column() == column);
                assert_eq!(own.map(|l| l.0 as u64).sum::<u64>(), row.bytes);
            }
        }
    }
}

/// One total and then another: the second is never of an earlier moment. Each round allocates a page more than the one before.
#[test]
fn a_later_read_is_of_no_earlier_moment() {
    let ledger = Ledger::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for page in 1..=20_000u64 {
                ledger.record(page * PAGE, PAGE as usize, site(0));
            }
            done.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            let live = ledger.live_bytes();
            let resident = ledger.resident_bytes();
            let count = ledger.live_count();
            let peak = ledger.peak_bytes();
            assert!(live <= resident && resident <= count * PAGE as usize && count * PAGE as usize <= peak);
        }
    });
}

/// Thread B is given an address that thread A has freed in the driver, and records it before A has told the ledger. Both
/// orders end alike; only a free that never comes, or comes twice, is misuse.
#[test]
fn a_free_and_the_next_record_at_its_address_come_in_any_order() {
    for late in [false, true] {
        let ledger = Ledger::new();
        ledger.record(PAGE, 4096, site(0));
        if late {
            assert!(
                ledger.record(PAGE, 512, site(1)).misuse.is_some(),
                "at this moment it is a contradiction"
            );
            assert!(ledger.forget(PAGE).is_some());
        } else {
            assert!(ledger.forget(PAGE).is_some());
            assert!(ledger.record(PAGE, 512, site(1)).misuse.is_none());
        }
        // The last of the two frees.
        assert_eq!(ledger.forget(PAGE).is_none(), late);
        assert_eq!((ledger.live_count(), ledger.live_bytes(), ledger.resident_bytes()), (0, 0, 0));
        assert_eq!(ledger.snapshot().totals.misuse, Default::default(), "late: {late}");
        // One free more is one too many.
        assert!(matches!(ledger.try_forget(PAGE), Err(ForgetError::DoubleFree { .. })));
        assert_eq!(ledger.snapshot().totals.misuse.double_frees, 1);
    }
    // A free that never comes.
    let ledger = Ledger::new();
    ledger.record(PAGE, 4096, site(0));
    ledger.record(PAGE, 512, site(1));
    ledger.forget(PAGE);
    let misuse = ledger.snapshot().totals.misuse;
    assert_eq!((misuse.records_over_live, misuse.double_frees), (1, 0));
}

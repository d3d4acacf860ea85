// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dealt out and whole give the same answers; what threads count apart comes together exactly.

use std::collections::BTreeMap;
use std::panic::Location;

use proptest::prelude::*;

use super::*;
use crate::page::{Flips, Page};

const PAGE: u64 = crate::SMALL_ALLOC_CHUNK;

impl Shared {
    fn is_dealt(&self) -> bool {
        self.dealt.load(SeqCst)
    }
}

fn site(which: usize) -> &'static Location<'static> {
    let sites = [Location::caller(), Location::caller(), Location::caller()];
    sites[which % sites.len()]
}

fn forget(ledger: &Shared, addr: u64) -> Option<AllocRecord> {
    ledger.forget_small(addr, site(0), Some, |whole| whole.forget(addr, Class::Sweepable, site(0)).ok())
}

#[derive(Clone, Debug)]
enum Op {
    Record(u64, usize, usize),
    Forget(u64),
    Pad(u64, usize),
    Unpad(u64),
    Deal,
    Read,
    Whois(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let addr = || (1..48u64).prop_map(|n| n * PAGE / 4);
    let bytes = prop_oneof![6 => 1..(PAGE as usize / 4 + 1), 1 => 1..(3 * PAGE as usize)];
    let op = prop_oneof![
        8 => (addr(), bytes, 0..3usize).prop_map(|(addr, bytes, site)| Op::Record(addr, bytes, site)),
        8 => addr().prop_map(Op::Forget),
        1 => (addr(), 1..(PAGE as usize / 4 + 1)).prop_map(|(addr, bytes)| Op::Pad(addr, bytes)),
        1 => addr().prop_map(Op::Unpad),
        2 => Just(Op::Deal),
        1 => Just(Op::Read),
        1 => (1..48 * PAGE / 4).prop_map(Op::Whois),
    ];
    prop::collection::vec(op, 1..200)
}

fn totals(ledger: &Shared) -> Vec<usize> {
    let which = [
        Total::LiveBytes,
        Total::LiveCount,
        Total::ResidentBytes,
        Total::SlackBytes,
        Total::ChunkSlackBytes,
        Total::PeakBytes,
        Total::PeakResidentBytes,
        Total::PaddingBytes,
    ];
    which.into_iter().map(|total| ledger.read(total)).collect()
}

proptest! {
    #![proptest_config(config(96))]

    /// One thread, every operation: a ledger that is dealt out again and again, beside one that never is.
    #[test]
    fn dealt_out_is_as_exact_as_whole(ops in ops()) {
        let (whole, dealt) = (Shared::new(1000), Shared::new(1000));
        for op in &ops {
            match *op {
                Op::Record(addr, bytes, which) => {
                    let answers = [&whole, &dealt].map(|l| l.record(addr, bytes, site(which), AllocKind::Device, None));
                    prop_assert_eq!(answers[0].misuse.as_deref().map(ToString::to_string), answers[1].misuse.as_deref().map(ToString::to_string));
                }
                Op::Forget(addr) => {
                    let at = site(0);
                    let [a, b] = [&whole, &dealt].map(|l| {
                        l.forget_small(addr, at, Ok, |l| l.forget(addr, Class::Sweepable, at))
                    });
                    // Indices are drawn in blocks while dealt out.
                    prop_assert_eq!(a.map(|r| (r.bytes, r.site)).map_err(|e| e.to_string()), b.map(|r| (r.bytes, r.site)).map_err(|e| e.to_string()));
                }
                Op::Pad(addr, bytes) => {
                    let [a, b] = [&whole, &dealt].map(|l| {
                        l.record(addr, bytes, site(0), AllocKind::Padding, None).misuse.map(|m| m.to_string())
                    });
                    prop_assert_eq!(a, b);
                }
                Op::Unpad(addr) => {
                    let [a, b] = [&whole, &dealt].map(|l| {
                        l.forget(addr, Class::Padding, site(0)).map(|r| r.bytes).map_err(|e| e.to_string())
                    });
                    prop_assert_eq!(a, b);
                }
                Op::Deal => dealt.deal_out_now(),
                Op::Read => prop_assert_eq!(totals(&whole), totals(&dealt)),
                Op::Whois(addr) => {
                    let [a, b] = [&whole, &dealt].map(|l| l.ask(|book| book.whois(addr)).to_string());
                    prop_assert_eq!(a, b);
                }
            }
        }
        prop_assert_eq!(totals(&whole), totals(&dealt));
        for at_peak in [false, true] {
            prop_assert_eq!(whole.snapshot(at_peak), dealt.snapshot(at_peak));
        }
    }
}

/// What lanes bring in changes every total at once, those derived from others too.
#[test]
fn totals_agree_right_after_lanes_closed() {
    let ledger = Shared::new(0);
    let record = |addr, bytes| ledger.record(addr, bytes, site(0), AllocKind::Device, None);
    record(PAGE, 1000);
    forget(&ledger, PAGE);
    ledger.deal_out_now();
    for (n, bytes) in [(0, 1), (1, 300), (2, 5)] {
        record(PAGE + n * 512, bytes);
        let live = ledger.read(Total::LiveBytes);
        assert_eq!(ledger.read(Total::ChunkSlackBytes), PAGE as usize - live);
        assert_eq!(ledger.read(Total::SlackBytes), PAGE as usize - live);
    }
    forget(&ledger, PAGE + 512);
    assert_eq!((ledger.read(Total::ChunkSlackBytes), ledger.read(Total::LiveCount)), (PAGE as usize - 6, 2));
}

/// While allocations overlap, live bytes are written and slack is not, so that both together are of no moment.
#[test]
fn slack_is_not_made_of_two_moments_while_allocations_overlap() {
    let ledger = Shared::new(0);
    let record = |addr, bytes| ledger.record(addr, bytes, site(0), AllocKind::Device, None).misuse.is_some();
    assert!(!record(PAGE, 2000) && record(PAGE + 512, 1000));
    for total in [Total::SlackBytes, Total::ChunkSlackBytes] {
        assert_eq!(ledger.published.read(total), None, "{total:?} before it is counted anew");
    }
    for total in [Total::SlackBytes, Total::ChunkSlackBytes] {
        assert_eq!(ledger.read(total), PAGE as usize - 3000);
        assert_eq!(ledger.published.read(total), Some(PAGE - 3000));
    }
    assert!(forget(&ledger, PAGE + 512).is_some());
    assert_eq!(ledger.published.read(Total::SlackBytes), Some(PAGE - 2000), "nothing overlaps any more");
}

fn pages(ledger: &Shared, fits: impl Fn(&Page) -> bool) -> usize {
    let count = |shard: &Shard| shard.pages.iter().filter(|(_, page)| fits(page)).count();
    ledger.ask(|book| book.device.shards.iter().map(count).sum())
}

/// A question beside what nobody holds leaves nothing behind, whole or dealt out.
#[test]
fn asking_for_a_held_page_makes_none() {
    let ledger = Shared::new(0);
    for page in 1..1000 {
        if page == 500 {
            ledger.deal_out_now();
        }
        assert_eq!(ledger.record_small(page * PAGE, 512, site(0), None, Where::HeldPage), None);
    }
    assert!(ledger.is_dealt());
    assert_eq!(pages(&ledger, |_| true), 0);
}

/// The latest record, alone in its page, goes there late: the page counts as touched from then on, and so is kept when it is
/// free again, however often.
#[test]
fn a_page_is_kept_however_late_its_record_goes_there() {
    let ledger = Shared::new(1);
    let record = |addr, bytes| ledger.record(addr, bytes, site(0), AllocKind::Device, None);
    // So that what follows makes no peak.
    record(8 * PAGE, 1000);
    forget(&ledger, 8 * PAGE);
    for _ in 0..500 {
        record(PAGE, 100);
        assert_eq!(ledger.ask(|book| book.live_where(|_| true).len()), 1);
        forget(&ledger, PAGE).unwrap();
    }
    assert_eq!(pages(&ledger, |page| page.number() == 1 && page.is_untouched()), 1);
}

/// Pages that held thousands of allocations, one page after the other, do not all keep the memory that they needed.
#[test]
fn few_pages_that_are_gone_keep_much_memory() {
    const HELD: u64 = 2600;
    let ledger = Shared::new(0);
    for page in 1..300 {
        if page == 150 {
            ledger.deal_out_now();
        }
        for n in 0..HELD {
            ledger.record(page * PAGE + n * 512, 512, site(0), AllocKind::Device, None);
        }
        for n in 0..HELD {
            assert!(forget(&ledger, page * PAGE + n * 512).is_some());
        }
    }
    assert_eq!(pages(&ledger, |page| page.entries().slots() == 8192), 4 * SHARDS);
    assert_eq!(pages(&ledger, |_| true), 4 * SHARDS);
    // Of others, many stay for what comes next.
    for page in 301..6000 {
        ledger.record(page * PAGE, 512, site(0), AllocKind::Device, None);
        assert!(forget(&ledger, page * PAGE).is_some());
    }
    assert_eq!(pages(&ledger, |_| true), 64 * SHARDS);
}

/// The peak's holders against a copy of everything at every peak.
#[test]
fn the_peak_is_kept_as_a_copy_would_keep_it() {
    let ledger = Shared::new(0);
    let mut live: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    let mut peak = (0, BTreeMap::new());
    let mut state = 1u64;
    for step in 0..20_000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (random, which) = (state >> 33, (state >> 20) as usize % 3);
        // Rising and falling, so that peaks come in runs and singly.
        let grows = random % 100 < if step / 500 % 2 == 0 { 60 } else { 45 };
        let addr = PAGE + random % 4096 * 512;
        if step % 777 == 0 {
            ledger.deal_out_now();
        }
        if grows && !live.contains_key(&addr) {
            let bytes = 1 + random as usize % 512;
            ledger.record(addr, bytes, site(which), AllocKind::Device, None);
            live.insert(addr, (bytes, which));
        } else if let Some((&addr, _)) = live.range(addr..).next() {
            assert!(forget(&ledger, addr).is_some());
            live.remove(&addr);
        }
        let sum: usize = live.values().map(|l| l.0).sum();
        if sum > peak.0 {
            peak = (sum, live.clone());
        }
        if step % 500 == 0 {
            let snapshot = ledger.snapshot(true);
            assert_eq!(snapshot.totals.live_bytes, peak.0 as u64);
            assert_eq!(
                (snapshot.totals.peak_bytes, snapshot.totals.live_count),
                (peak.0 as u64, peak.1.len() as u64)
            );
            for row in snapshot.by_site() {
                let own = peak.1.values().filter(|l| crate::Site::of(site(l.1)) == row.site);
                assert_eq!(own.map(|l| l.0 as u64).sum::<u64>(), row.bytes);
            }
        }
    }
}

/// Every thread's own allocations come and go; whatever the others do, the sums come out, and the peak is one that was.
fn many_threads(threads: u64, pairs: u64) {
    let ledger = Shared::new(16);
    ledger.deal_out_now();
    let seen = AtomicU64::new(0);
    std::thread::scope(|s| {
        for t in 0..threads {
            let (ledger, seen) = (&ledger, &seen);
            s.spawn(move || {
                for i in 0..pairs {
                    // Threads meet in pages; one in 16 allocations stays until the end.
                    let addr = PAGE + (i % 1024 * threads + t) * 4096;
                    if i % 1024 == 0 && i > 0 {
                        for n in (0..1024).step_by(16) {
                            assert!(forget(ledger, PAGE + (n * threads + t) * 4096).is_some());
                        }
                    }
                    assert!(
                        ledger.record(addr, 1000, site(t as usize), AllocKind::Device, None).misuse.is_none()
                    );
                    if i % 16 != 0 {
                        assert_eq!(forget(ledger, addr).map(|r| r.bytes), Some(1000));
                    }
                    if t == 0 && i % 4096 == 4095 {
                        let snapshot = ledger.snapshot(i % 8192 == 4095);
                        seen.fetch_max(snapshot.totals.live_bytes, SeqCst);
                        let sum: u64 = snapshot.groups.iter().map(|g| g.bytes).sum();
                        assert_eq!(sum, snapshot.totals.live_bytes, "one moment");
                        assert_eq!(snapshot.totals.live_bytes, 1000 * snapshot.totals.live_count);
                    }
                }
            });
        }
    });
    let left = threads * ((pairs - 1) % 1024 / 16 + 1);
    assert_eq!(ledger.read(Total::LiveCount) as u64, left);
    assert_eq!(ledger.read(Total::LiveBytes) as u64, 1000 * left);
    // What is left stands less than a page apart, from the first address on.
    let last = ((pairs - 1) % 1024 / 16 * 16 * threads + threads - 1) * 4096;
    let resident = (last / PAGE + 1) * PAGE;
    assert_eq!(ledger.read(Total::ResidentBytes) as u64, resident);
    assert_eq!(ledger.read(Total::SlackBytes) as u64, resident - 1000 * left);
    let peak = ledger.read(Total::PeakBytes) as u64;
    assert!(peak >= seen.into_inner().max(64_000) && peak <= 1000 * threads * 65, "{peak}");
    let at_peak = ledger.snapshot(true);
    assert_eq!(
        (at_peak.totals.live_bytes, at_peak.groups.iter().map(|g| g.bytes).sum::<u64>()),
        (peak, peak)
    );
    assert_eq!(ledger.allocations(|_| true).len() as u64, left);
    let mut indices: Vec<_> =
        ledger.allocations(|_| true).into_iter().map(|(_, record)| record.index).collect();
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

/// Right below the peak, where none has room to spare, threads whose allocations come and go soon hold what they need in
/// their lanes, and meet no more.
#[test]
fn lanes_come_to_rest_right_below_the_peak() {
    const LANES_USED: usize = 8;
    let ledger = Shared::new(0);
    ledger.deal_out_now();
    let mut holds = [false; LANES_USED];
    let mut random = 1u64;
    let mut steps = |number_of: u64| {
        for _ in 0..number_of {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let lane = (random >> 33) as usize % LANES_USED;
            let step = if holds[lane] { -1 } else { 1 };
            holds[lane] = !holds[lane];
            let flips = Flips { device: step, arena_only: 0, small: step };
            ledger.count_in(lane, &Change::of(AllocKind::Device, 1000, holds[lane], flips));
        }
        let core = ledger.core.lock();
        (core.book.meter.next_index(), core.closings)
    };
    // By then all of them have held something at once.
    steps(8_000);
    let before = steps(0);
    let after = steps(1_000);
    assert_eq!(before.1, after.1, "no lane had to be closed");
    assert_eq!(ledger.read(Total::PeakBytes), 1000 * LANES_USED);
}

/// Who waited for the whole while another dealt it out works in its shard, and does not call all shards back.
#[test]
fn who_waited_for_the_whole_leaves_it_dealt_out() {
    let ledger = Shared::new(0);
    std::thread::scope(|s| {
        let mut core = ledger.whole();
        let waiting = s.spawn(|| {
            ledger.record(PAGE, 512, site(0), AllocKind::Device, None);
            assert!(forget(&ledger, PAGE).is_some());
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        ledger.deal_out(&mut core);
        drop(core);
        assert!(waiting.join().is_ok());
    });
    assert!(ledger.is_dealt());
}

/// With no thread left but one, and with something the shards cannot do, the whole comes back.
#[test]
fn the_whole_comes_back() {
    let ledger = Shared::new(16);
    ledger.record(PAGE, 512, site(0), AllocKind::Device, None);
    ledger.deal_out_now();
    assert!(ledger.is_dealt());
    for _ in 0..4 * LOOK_ABOUT {
        ledger.record(PAGE + 512, 512, site(0), AllocKind::Device, None);
        assert!(forget(&ledger, PAGE + 512).is_some());
    }
    assert!(!ledger.is_dealt(), "nobody else is about");
    ledger.deal_out_now();
    ledger.record(8 * PAGE, 3 << 20, site(0), AllocKind::Device, None);
    assert!(!ledger.is_dealt(), "a large one takes the whole");
    ledger.deal_out_now();
    let inside = ledger.record(8 * PAGE + 4096, 512, site(0), AllocKind::Device, None);
    assert!(inside.misuse.is_some(), "an overlap with a large one is seen");
}

/// Few cases, unless the environment (`PROPTEST_CASES`) asks for other than the 256 it asks for by default.
fn config(few: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { few } else { asked.cases };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

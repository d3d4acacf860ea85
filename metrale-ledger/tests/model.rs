// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random operations against models so plain that they are right by reading.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;

use metrale_ledger::placement::{PackingRule, Placement, PlacementId};
use metrale_ledger::{
    AllocKind, AllocRecord, ForgetError, FreedAllocation, Ledger, RecordMisuse, Whois, chunk_slack,
};
use proptest::prelude::*;

const PAGE: u64 = 2 << 20;

#[derive(Clone, Debug)]
enum Op {
    Record(u64, usize, AllocKind),
    Forget(u64),
    ForgetPadding(u64),
    Whois(u64),
    Restore,
    Drain,
}

/// The ledger as a plain map in address order, everything counted anew at every question.
#[derive(Default)]
struct Model {
    live: BTreeMap<u64, (usize, AllocKind)>,
    freed: Vec<Freed>,
    peak: usize,
}

/// A free that is remembered: its place, and the creation index of what was there.
#[derive(Clone, Copy)]
struct Freed {
    addr: u64,
    bytes: usize,
    kind: AllocKind,
    index: u64,
    is_displaced: bool,
}

fn last_byte(addr: u64, bytes: usize) -> Option<u64> {
    (bytes as u64).checked_sub(1).map(|more| addr.saturating_add(more))
}

impl Model {
    fn overlaps(&self, addr: u64, bytes: usize) -> bool {
        last_byte(addr, bytes).is_some_and(|last| {
            self.live.iter().any(|(&a, &(b, _))| last_byte(a, b).is_some_and(|l| a <= last && addr <= l))
        })
    }

    fn owner(&self, addr: u64) -> Option<u64> {
        let holds = |a: u64, b: usize| a <= addr && last_byte(a, b).is_some_and(|l| addr <= l);
        let owner = self.live.iter().rev().find(|&(&a, &(b, _))| holds(a, b)).map(|(&a, _)| a);
        owner.or_else(|| self.live.contains_key(&addr).then_some(addr))
    }

    fn is_padding(&self, base: u64) -> bool {
        self.live.get(&base).is_some_and(|live| live.1 == AllocKind::Padding)
    }

    /// The owner, but for padding, which is nobody's.
    fn own_owner(&self, addr: u64) -> Option<u64> {
        self.owner(addr).filter(|&base| !self.is_padding(base))
    }

    fn is_in_freed(&self, addr: u64) -> bool {
        let held = |a: u64, b: usize| a == addr || (a <= addr && last_byte(a, b).is_some_and(|l| addr <= l));
        self.freed.iter().any(|freed| held(freed.addr, freed.bytes))
    }

    fn was_freed(&self, freed: &FreedAllocation) -> bool {
        self.freed.iter().any(|other| (other.addr, other.bytes) == (freed.addr, freed.record.bytes))
    }

    /// Remembers a free, and forgets the one right before it if that was of the same place, size and kind: what is live there
    /// since, or this free, answers for it. A displaced allocation still waits for its free, so it is not forgotten.
    fn remember(&mut self, addr: u64, record: &AllocRecord, is_displaced: bool) {
        let freed = Freed { addr, bytes: record.bytes, kind: record.kind, index: record.index, is_displaced };
        let place = |freed: &Freed| (freed.addr, freed.bytes, freed.kind);
        if self.freed.last().is_some_and(|last| place(last) == place(&freed) && !last.is_displaced) {
            self.freed.pop();
        }
        self.freed.push(freed);
    }

    fn pages(&self, fits: impl Fn(AllocKind) -> bool) -> BTreeSet<u64> {
        let live = self.live.iter().filter(|(_, (_, kind))| fits(*kind));
        live.filter_map(|(&a, &(b, _))| Some(a / PAGE..=last_byte(a, b)? / PAGE)).flatten().collect()
    }

    fn bytes(&self, fits: impl Fn(AllocKind) -> bool) -> usize {
        self.live.values().filter(|(_, kind)| fits(*kind)).map(|(bytes, _)| bytes).sum()
    }
}

fn page_bytes(pages: usize) -> usize {
    pages * PAGE as usize
}

fn agrees(ledger: &Ledger, model: &Model) {
    let device = |kind| kind == AllocKind::Device;
    let packed = |kind| device(kind) || kind == AllocKind::Padding;
    let device_pages = model.pages(packed);
    let all_pages = model.pages(|kind| packed(kind) || kind == AllocKind::Arena);
    let live = model.bytes(AllocKind::is_sweepable);
    assert_eq!(ledger.live_bytes(), live);
    assert_eq!(ledger.live_count(), model.live.values().filter(|v| v.1.is_sweepable()).count());
    assert_eq!(ledger.peak_bytes(), model.peak);
    assert_eq!(ledger.resident_bytes(), page_bytes(device_pages.len()));
    assert_eq!(ledger.slack_bytes(), page_bytes(device_pages.len()).saturating_sub(model.bytes(packed)));
    assert_eq!(ledger.padding_bytes(), model.bytes(|kind| kind == AllocKind::Padding));
    assert_eq!(ledger.arena_bytes(), model.bytes(|kind| kind == AllocKind::Arena));
    assert_eq!(ledger.arena_resident_bytes(), page_bytes(all_pages.len() - device_pages.len()));
    let sweepable = model.live.iter().filter(|(_, v)| v.1.is_sweepable()).map(|(&addr, v)| (addr, v.0));
    assert_eq!(ledger.chunk_slack_bytes(), chunk_slack(sweepable, PAGE));
    let told = ledger.live_allocations().into_iter().map(|(addr, record)| (addr, record.bytes));
    assert_eq!(ledger.chunk_slack_bytes(), chunk_slack(told, PAGE));
    ledger.assert_unchanged_since(&ledger.mark());
}

fn run(ops: &[Op]) {
    let ledger = Ledger::with_tombstones(usize::MAX);
    let mut model = Model::default();
    let mut last_forgotten = None;
    for op in ops {
        match *op {
            Op::Record(addr, bytes, kind) => {
                let old = model.live.remove(&addr);
                let overlaps = model.overlaps(addr, bytes);
                let answer = ledger.record_as(addr, bytes, Location::caller(), kind);
                match answer.misuse.as_deref() {
                    Some(RecordMisuse::OverLive { displaced, .. }) => {
                        assert_eq!(old, Some((displaced.bytes, displaced.kind)));
                        if displaced.kind != AllocKind::Padding {
                            model.remember(addr, displaced, true);
                        }
                    }
                    Some(RecordMisuse::Overlap { with, .. }) => {
                        assert!(old.is_none() && overlaps);
                        let (bytes, _) = model.live[&with.addr];
                        assert_eq!(bytes, with.record.bytes);
                    }
                    Some(RecordMisuse::Empty { .. }) => assert!(old.is_none() && bytes == 0),
                    Some(RecordMisuse::Null { .. }) => assert!(old.is_none() && !overlaps && addr == 0),
                    None => assert!(old.is_none() && !overlaps && bytes > 0, "{op:?} passed"),
                    other => panic!("{op:?}: {other:?}"),
                }
                model.live.insert(addr, (bytes, kind));
            }
            Op::Forget(addr) => {
                let known = model.live.get(&addr).copied().filter(|live| live.1 != AllocKind::Padding);
                match (ledger.try_forget(addr), known) {
                    (Ok(record), Some((bytes, kind))) if kind.is_sweepable() => {
                        assert_eq!((record.bytes, record.kind), (bytes, kind));
                        model.live.remove(&addr);
                        model.remember(addr, &record, false);
                        last_forgotten = Some((addr, record));
                    }
                    (Err(ForgetError::OtherKind { live }), Some((_, kind))) => {
                        assert_eq!((live.addr, live.record.kind), (addr, kind));
                        assert!(!kind.is_sweepable());
                    }
                    (Err(ForgetError::Null), None) => assert_eq!(addr, 0),
                    (Err(ForgetError::DoubleFree { now_inside, .. }), None) => {
                        let waits = |freed: &&mut Freed| {
                            freed.addr == addr && freed.is_displaced && freed.kind.is_sweepable()
                        };
                        if let Some(freed) = model.freed.iter_mut().rev().find(waits) {
                            freed.is_displaced = false;
                        }
                        assert!(model.freed.iter().any(|freed| freed.addr == addr));
                        assert_eq!(now_inside.map(|live| live.addr), model.own_owner(addr));
                    }
                    (Err(ForgetError::Interior { owner, .. }), None) => {
                        assert_eq!(Some(owner.addr), model.own_owner(addr));
                    }
                    (Err(ForgetError::InsideFreed { freed, .. }), None) => {
                        assert_eq!(model.own_owner(addr), None);
                        assert!(model.was_freed(&freed));
                    }
                    (Err(ForgetError::Foreign { .. }), None) => {
                        assert_eq!(model.own_owner(addr), None);
                        assert!(!model.is_in_freed(addr));
                    }
                    (answer, known) => panic!("{op:?}: {answer:?}, in truth {known:?}"),
                }
            }
            Op::ForgetPadding(addr) => {
                let answer = ledger.try_forget_padding(addr);
                assert_eq!(answer.is_ok(), model.is_padding(addr), "{op:?}: {answer:?}");
                if let Ok(record) = answer {
                    assert_eq!(model.live.remove(&addr), Some((record.bytes, record.kind)));
                }
            }
            Op::Whois(addr) => {
                let left = model.own_owner(addr).map(|base| {
                    let (bytes, kind) = model.live[&base];
                    (kind, bytes as u64 - (addr - base))
                });
                assert_eq!(ledger.live_span(addr), left);
                match ledger.whois(addr) {
                    Whois::Live { allocation, offset_bytes } => {
                        assert_eq!(Some(allocation.addr), model.owner(addr));
                        assert_eq!(allocation.addr + offset_bytes, addr);
                        assert!(allocation.record.kind != AllocKind::Padding || !model.is_in_freed(addr));
                    }
                    Whois::Freed { freed, .. } => {
                        assert_eq!(model.own_owner(addr), None);
                        assert!(model.was_freed(&freed));
                    }
                    _ => {
                        assert_eq!(model.owner(addr), None);
                        assert!(!model.is_in_freed(addr));
                    }
                }
            }
            Op::Restore => {
                if let Some((addr, record)) = last_forgotten.take() {
                    ledger.restore(addr, &record);
                    // What is live there by now stays; the free is no longer remembered in either case.
                    model.live.entry(addr).or_insert((record.bytes, record.kind));
                    model.freed.retain(|freed| (freed.addr, freed.index) != (addr, record.index));
                }
            }
            Op::Drain => {
                let drained = ledger.drain();
                let gone: Vec<_> =
                    model.live.iter().filter(|(_, v)| v.1.is_sweepable()).map(|(&a, v)| (a, v.0)).collect();
                let mut told: Vec<_> = drained.iter().map(|(addr, record)| (*addr, record.bytes)).collect();
                told.sort_unstable();
                assert_eq!(told, gone);
                model.live.retain(|_, v| !v.1.is_sweepable());
                drained.iter().for_each(|(addr, record)| model.remember(*addr, record, false));
            }
        }
        model.peak = model.peak.max(model.bytes(AllocKind::is_sweepable));
        agrees(&ledger, &model);
    }
}

fn kind() -> impl Strategy<Value = AllocKind> {
    prop_oneof![
        6 => Just(AllocKind::Device),
        1 => Just(AllocKind::Managed),
        2 => Just(AllocKind::Arena),
        2 => Just(AllocKind::Padding),
    ]
}

/// Operations over few pages, on a grid of `grain` bytes, so that neighbours, overlaps and reuse are common.
fn ops(grain: u64, spread: u64) -> impl Strategy<Value = Vec<Op>> {
    let addr = (0..spread).prop_map(move |n| n * grain);
    let bytes = prop_oneof![
        4 => 1..(2 * grain as usize),
        2 => 1..(3 * PAGE as usize),
        2 => prop::sample::select(vec![0, 1, 512, PAGE as usize - 1, PAGE as usize, PAGE as usize + 1, 9 << 20]),
    ];
    let op = prop_oneof![
        5 => (addr.clone(), bytes, kind()).prop_map(|(a, b, k)| Op::Record(a, b, k)),
        4 => (addr.clone(), 0..2u64).prop_map(|(a, inside)| Op::Forget(a + inside)),
        1 => addr.clone().prop_map(Op::ForgetPadding),
        1 => (addr, 0..9_000u64).prop_map(|(a, inside)| Op::Whois(a + inside)),
        1 => Just(Op::Restore),
    ];
    prop::collection::vec(prop_oneof![60 => op, 1 => Just(Op::Drain)], 1..120)
}

proptest! {
    #![proptest_config(config(192))]

    #[test]
    fn the_ledger_agrees_with_a_plain_map_whatever_is_asked(ops in ops(PAGE / 8, 40)) {
        run(&ops);
    }

    #[test]
    fn the_ledger_agrees_where_addresses_are_crowded(ops in ops(3, 200)) {
        run(&ops);
    }

    #[test]
    fn placement_agrees_with_a_search_of_every_hole(
        steps in prop::collection::vec((any::<bool>(), 1..5_000u64, any::<prop::sample::Index>()), 1..300)
    ) {
        // A chunk of 16 granules, so that every size and hole comes up often.
        let rule = PackingRule::new(4096, 256).unwrap();
        placement_agrees(rule, &steps);
        placement_agrees(rule.with_page_bytes(1024).unwrap(), &steps);
    }
}

/// Few cases, unless the environment (`PROPTEST_CASES`) asks for other than the 256 it asks for by default.
fn config(few: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { few } else { asked.cases };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

/// A chunk as its granules: who holds each, by number.
struct Chunk {
    granules: Vec<Option<u64>>,
    /// Age of the hole that starts at a granule, set when it got its present extent.
    ages: BTreeMap<(usize, usize), u64>,
}

impl Chunk {
    /// Runs of free granules, as start and length.
    fn holes(&self) -> BTreeSet<(usize, usize)> {
        let mut holes = BTreeSet::new();
        let mut start = None;
        for (i, holder) in self.granules.iter().chain([&Some(u64::MAX)]).enumerate() {
            match (holder, start) {
                (None, None) => start = Some(i),
                (Some(_), Some(s)) => {
                    holes.insert((s, i - s));
                    start = None;
                }
                _ => {}
            }
        }
        holes
    }

    /// A hole that was not there with this very extent is born at `now`.
    fn age(&mut self, now: u64) {
        let holes = self.holes();
        self.ages.retain(|hole, _| holes.contains(hole));
        for hole in holes {
            self.ages.entry(hole).or_insert(now);
        }
    }
}

fn placement_agrees(rule: PackingRule, steps: &[(bool, u64, prop::sample::Index)]) {
    let (chunk_bytes, granule, page_bytes) =
        (rule.chunk_bytes(), rule.granularity_bytes(), rule.page_bytes());
    let mut device = Placement::new(rule);
    let mut chunks: BTreeMap<u64, Chunk> = BTreeMap::new();
    let mut live: Vec<(PlacementId, u64, u64)> = Vec::new();
    let mut next_chunk = 0;
    let mut large_pages = BTreeMap::new();
    for (now, &(allocates, bytes, which)) in (0u64..).zip(steps) {
        if allocates || live.is_empty() {
            let placed = device.alloc(bytes).unwrap();
            let wanted = bytes.div_ceil(granule) as usize;
            if wanted as u64 * granule >= chunk_bytes {
                assert_eq!((placed.chunk.0, placed.offset_bytes), (next_chunk, 0));
                large_pages.insert(now, bytes.div_ceil(page_bytes));
                next_chunk += 1;
            } else {
                let fits = chunks
                    .iter()
                    .flat_map(|(&id, chunk)| chunk.ages.iter().map(move |(&hole, &age)| (id, hole, age)));
                let best = fits.filter(|f| f.1.1 >= wanted).min_by_key(|&(_, (_, size), age)| (size, age));
                let (id, (start, _), _) = best.unwrap_or_else(|| {
                    let empty = Chunk {
                        granules: vec![None; (chunk_bytes / granule) as usize],
                        ages: BTreeMap::new(),
                    };
                    chunks.insert(next_chunk, empty);
                    next_chunk += 1;
                    (next_chunk - 1, (0, 0), 0)
                });
                let chunk = chunks.get_mut(&id).unwrap();
                chunk.granules[start..start + wanted].fill(Some(now));
                chunk.age(now);
                assert_eq!((placed.chunk.0, placed.offset_bytes), (id, start as u64 * granule));
            }
            live.push((placed.id, now, placed.chunk.0));
        } else {
            let (id, holder, chunk_id) = live.swap_remove(which.index(live.len()));
            device.free(id).unwrap();
            if large_pages.remove(&holder).is_none() {
                let chunk = chunks.get_mut(&chunk_id).unwrap();
                chunk.granules.iter_mut().filter(|g| **g == Some(holder)).for_each(|g| *g = None);
                chunk.age(now);
                if chunk.granules.iter().all(Option::is_none) {
                    chunks.remove(&chunk_id);
                }
            }
        }
        let pages = chunks.len() as u64 * (chunk_bytes / page_bytes) + large_pages.values().sum::<u64>();
        assert_eq!(device.resident_bytes(), pages * page_bytes);
        assert_eq!(device.live_count(), live.len());
        let largest = chunks.values().flat_map(|c| c.ages.keys()).map(|hole| hole.1 as u64 * granule).max();
        assert_eq!(device.largest_hole_bytes(), largest.unwrap_or(0));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions change nothing: a ledger that is asked after every operation answers as one that never is.

use std::panic::Location;

use metrale_ledger::{AllocKind, AllocRecord, Ledger};
use proptest::prelude::*;

const PAGE: u64 = 2 << 20;
/// Places in few pages, some of them alone in theirs; first and last what no driver gives.
const PLACES: [u64; 9] = [
    0,
    PAGE + 512,
    PAGE + 1024,
    PAGE + 4096,
    PAGE + (64 << 10),
    2 * PAGE - 512,
    3 * PAGE,
    5 * PAGE + 512,
    u64::MAX - 511,
];

#[derive(Clone, Copy, Debug)]
enum Op {
    Record {
        place: usize,
        bytes: usize,
        site: usize,
    },
    RecordAs(usize, usize, AllocKind),
    Forget(usize),
    ForgetInside(usize),
    ForgetPadding(usize),
    /// A free that the driver refuses, at once or after others.
    Restore,
    Tag(usize),
    Drain,
    ResetPeak,
    KeepEvents(usize),
    OpenScope,
    CloseScope,
    Look,
}

fn site(which: usize) -> &'static Location<'static> {
    let here = || Location::caller();
    let there = || Location::caller();
    if which == 0 { here() } else { there() }
}

/// A ledger and what its caller holds.
#[derive(Default)]
struct Side {
    ledger: Ledger,
    scopes: Vec<metrale_ledger::ScopeGuard>,
    forgotten: Option<(u64, AllocRecord)>,
}

impl Side {
    /// The answer, in words.
    fn step(&mut self, op: Op) -> String {
        let ledger = &self.ledger;
        let mut keep = |addr: u64, record: Option<&AllocRecord>| {
            if let Some(record) = record {
                self.forgotten = Some((addr, record.clone()));
            }
        };
        match op {
            Op::Record { place, bytes, site: which } => {
                format!("{:?}", ledger.record(PLACES[place], bytes, site(which)))
            }
            Op::RecordAs(place, bytes, kind) => {
                format!("{:?}", ledger.record_as(PLACES[place], bytes, site(1), kind))
            }
            Op::Forget(place) => {
                let answer = ledger.try_forget(PLACES[place]);
                keep(PLACES[place], answer.as_ref().ok());
                format!("{answer:?}")
            }
            Op::ForgetInside(place) => format!("{:?}", ledger.forget(PLACES[place] + 1)),
            Op::ForgetPadding(place) => format!("{:?}", ledger.try_forget_padding(PLACES[place])),
            Op::Restore => match self.forgotten.take() {
                Some((addr, record)) => format!("{:?}", ledger.restore(addr, &record)),
                None => String::new(),
            },
            Op::Tag(place) => ledger.tag(PLACES[place], "cache").to_string(),
            Op::Drain => format!("{:?}", ledger.drain()),
            Op::ResetPeak => {
                ledger.reset_peak();
                String::new()
            }
            Op::KeepEvents(limit) => {
                ledger.keep_events(limit);
                String::new()
            }
            Op::OpenScope => {
                self.scopes.push(ledger.scope("layer"));
                String::new()
            }
            Op::CloseScope => {
                self.scopes.pop();
                String::new()
            }
            Op::Look => self.everything(),
        }
    }

    /// What is told without a look at any allocation.
    fn totals(&self) -> [usize; 8] {
        let ledger = &self.ledger;
        [
            ledger.live_bytes(),
            ledger.live_count(),
            ledger.peak_bytes(),
            ledger.resident_bytes(),
            ledger.peak_resident_bytes(),
            ledger.slack_bytes(),
            ledger.chunk_slack_bytes(),
            ledger.padding_bytes(),
        ]
    }

    fn everything(&self) -> String {
        let ledger = &self.ledger;
        let whois: Vec<_> =
            PLACES.iter().flat_map(|&addr| [ledger.whois(addr), ledger.whois(addr + 1)]).collect();
        format!(
            "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{whois:?}",
            ledger.live_allocations(),
            ledger.snapshot(),
            ledger.peak_snapshot(),
            ledger.recent_events(),
            ledger.report(20, 0)
        )
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let place = || 0..PLACES.len();
    // Mostly of a size, so that it fits where it was.
    let bytes = || prop_oneof![12 => Just(512), 1 => Just(500), 1 => Just(1000), 1 => Just(0), 1 => Just(PAGE as usize), 1 => Just(3 << 20)];
    let kinds = prop::sample::select(vec![
        AllocKind::Managed,
        AllocKind::Arena,
        AllocKind::Padding,
        AllocKind::Pinned,
    ]);
    let op = prop_oneof![
        30 => (place(), bytes(), 0..2usize).prop_map(|(place, bytes, site)| Op::Record { place, bytes, site }),
        1 => (place(), bytes(), kinds).prop_map(|(place, bytes, kind)| Op::RecordAs(place, bytes, kind)),
        30 => place().prop_map(Op::Forget),
        1 => place().prop_map(Op::ForgetInside),
        1 => place().prop_map(Op::ForgetPadding),
        2 => Just(Op::Restore),
        1 => place().prop_map(Op::Tag),
        1 => Just(Op::ResetPeak),
        1 => Just(Op::OpenScope),
        1 => Just(Op::CloseScope),
        1 => Just(Op::Look),
    ];
    let seldom = prop_oneof![Just(Op::Drain), Just(Op::KeepEvents(0)), Just(Op::KeepEvents(5))];
    // Pairs in a row, as a loop of a program makes them.
    let pairs = (place(), 1..4usize, 0..2usize).prop_map(|(place, pairs, site)| {
        let pair = [Op::Record { place, bytes: 512, site }, Op::Forget(place)];
        pair.into_iter().cycle().take(2 * pairs).collect::<Vec<_>>()
    });
    let some =
        prop_oneof![40 => op.prop_map(|op| vec![op]), 12 => pairs, 1 => seldom.prop_map(|op| vec![op])];
    prop::collection::vec(some, 1..60).prop_map(|all| all.concat())
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn a_ledger_that_is_asked_answers_as_one_that_is_not(below_peak in any::<bool>(), ops in ops()) {
        let (mut quiet, mut asked) = (Side::default(), Side::default());
        if below_peak {
            for side in [&quiet, &asked] {
                side.ledger.record(64 * PAGE, 40 << 20, site(0));
                side.ledger.forget(64 * PAGE);
            }
        }
        for (at, op) in ops.into_iter().enumerate() {
            let answers = (quiet.step(op), asked.step(op));
            prop_assert_eq!(&answers.0, &answers.1, "operation {}", at);
            prop_assert_eq!(quiet.totals(), asked.totals(), "operation {}", at);
            asked.ledger.whois(0);
        }
        prop_assert_eq!(quiet.everything(), asked.everything());
    }
}

/// Few cases, unless the environment (`PROPTEST_CASES`) asks for other than the 256 it asks for by default.
fn config(few: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if asked.cases == 256 { few } else { asked.cases };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

/// A loop that allocates and frees at one address: each free returns what was recorded there last, with its line and scope.
#[test]
fn each_free_is_of_what_was_recorded_last() {
    let ledger = Ledger::new();
    ledger.record(PAGE, 512, site(0));
    for round in 0..5 {
        let scope = (round % 2 == 1).then(|| ledger.scope("odd"));
        let index = ledger.record(PLACES[2], 512, site(round % 2)).index;
        drop(scope);
        assert_eq!((ledger.live_bytes(), ledger.resident_bytes()), (1024, PAGE as usize));
        let gone = ledger.forget(PLACES[2]).unwrap();
        assert_eq!((gone.index, gone.site, gone.bytes), (index, site(round % 2), 512));
        assert_eq!(gone.scope.as_deref(), (round % 2 == 1).then_some("odd"));
        assert!(ledger.forget(PLACES[2]).is_none(), "freed twice");
    }
    assert_eq!(ledger.live_allocations().len(), 1);
    assert_eq!(ledger.snapshot().totals.misuse.double_frees, 5);
}

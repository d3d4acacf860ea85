// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the backend beside the driver's bare calls.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::Result;

use crate::calls::{Calls, GRAPH_NODES};
use crate::ledger::Threads;
use crate::median;
use crate::table::{Figure, Table, Target};

/// Calls of a side in one round: fewer than a stream queues, so that no launch waits for another to end.
const BATCH: u32 = 200;
/// Calls of a side in one round where the wait for the device is timed too: few, so that it is much of what is timed.
const AWAITED: u32 = 4;
const ROUNDS: usize = 301;
/// Threads that allocate and free at the same time.
const THREADS: [u64; 3] = [2, 4, 8];
/// Rounds of several threads, which take longer: the driver makes its callers wait for each other.
const ROUNDS_OF_THREADS: usize = 101;
/// Rounds of a load.
const LOADS: usize = 7;

/// Up to where a round is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The calls have returned; what they queued is waited for untimed.
    Returned,
    /// The device has done what they queued.
    Done,
}

/// Nanoseconds a call by bare calls and through the backend, and their ratio: the median over pairs of rounds side by side,
/// which other load on the machine slows down alike.
struct Compared {
    bare: f64,
    through: f64,
    ratio: f64,
}

/// Runs rounds of both sides alternately. `time` runs the side of that number once, 0 for the bare calls, and returns
/// nanoseconds a call.
fn alternate(rounds: usize, mut time: impl FnMut(usize) -> f64) -> Compared {
    // Before the first round, so that neither pays for what is done once.
    time(0);
    time(1);
    let mut times = [const { Vec::new() }; 2];
    for round in 0..rounds {
        // The second of a round might find things warmer.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            times[side].push(time(side));
        }
    }
    let ratios = times[0].iter().zip(&times[1]).map(|(bare, through)| through / bare).collect();
    let [bare, through] = times.map(median);
    Compared { bare, through, ratio: median(ratios) }
}

/// Compares calls of one thread.
fn compare(
    calls: &mut Calls,
    until: Until,
    mut bare: impl FnMut(&mut Calls),
    mut through: impl FnMut(&mut Calls),
) -> Compared {
    let batch = if until == Until::Done { AWAITED } else { BATCH };
    alternate(ROUNDS, |side| {
        let call: &mut dyn FnMut(&mut Calls) = if side == 0 { &mut bare } else { &mut through };
        let begin = Instant::now();
        (0..batch).for_each(|_| call(calls));
        let returned = begin.elapsed();
        calls.settle();
        let took = if until == Until::Done { begin.elapsed() } else { returned };
        took.as_nanos() as f64 / f64::from(batch)
    })
}

/// Compares pairs of allocation and free of several threads at the same time: nanoseconds a pair as each thread sees it.
fn compare_threads(calls: &Calls, threads: u64) -> Compared {
    let sides: [fn(&Calls); 2] = [Calls::bare_alloc_free, Calls::alloc_free];
    alternate(ROUNDS_OF_THREADS, |side| {
        let (begin, end) = (Barrier::new(threads as usize + 1), Barrier::new(threads as usize + 1));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    calls.bind();
                    begin.wait();
                    (0..BATCH).for_each(|_| sides[side](calls));
                    end.wait();
                });
            }
            begin.wait();
            let started = Instant::now();
            end.wait();
            started.elapsed().as_nanos() as f64 / f64::from(BATCH)
        })
    })
}

/// Every row of a driver.
pub(crate) fn calls(table: &mut Table, driver: &str, calls: Result<Calls>) {
    let mut calls = match calls {
        Ok(calls) => calls,
        Err(error) => {
            table.group(&format!("backend: {driver}"));
            return table.not_run(&format!("{error:#}"));
        }
    };
    table.group(&format!("backend: {driver} ({})", calls.name()));
    // In software a bare call costs next to nothing, so there our own part is held to what a real driver's call leaves.
    let software = driver == "software";
    let target = |ratio, more| if software { Target::More(more) } else { Target::Ratio(ratio) };
    let mut row = |what: &str, compared: Compared, target| {
        let (through, bare) = (Figure::Nanos(compared.through), Figure::Nanos(compared.bare));
        table.row_with_ratio(what, through, ("bare calls", bare), compared.ratio, target);
    };

    let pair = compare(&mut calls, Until::Returned, |c| c.bare_alloc_free(), |c| c.alloc_free());
    row("alloc + free of 1 KiB", pair, target(1.08, 200.0));
    for threads in THREADS {
        let pair = compare_threads(&calls, threads);
        // The software driver has no service time that several threads could share.
        let target = if software { Target::None } else { Target::Ratio(1.08) };
        row(&format!("alloc + free of 1 KiB, {}", Threads(threads)), pair, target);
    }
    for (place, (name, _)) in calls.streams().into_iter().enumerate() {
        let stream = |c: &Calls| c.streams()[place].1;
        let launch =
            compare(&mut calls, Until::Returned, |c| c.bare_launch(stream(c)), |c| c.launch(stream(c)));
        row(&format!("launch on {name}"), launch, target(1.05, 200.0));
        let fill = compare(&mut calls, Until::Returned, |c| c.bare_fill(stream(c)), |c| c.fill(stream(c)));
        row(&format!("fill of 1 KiB on {name}"), fill, Target::None);
    }
    for (place, nodes) in GRAPH_NODES.into_iter().enumerate() {
        let mut replays = |until| compare(&mut calls, until, |c| c.bare_replay(place), |c| c.replay(place));
        row(&format!("replay of a graph of {nodes} nodes"), replays(Until::Returned), target(1.06, 200.0));
        // What a step of an engine waits for: the nodes take the device far longer than the host takes to queue them.
        if nodes == GRAPH_NODES[1] {
            let done = replays(Until::Done);
            row(&format!("replay of a graph of {nodes} nodes, done"), done, target(1.02, 200.0));
        }
    }
    let event = compare(&mut calls, Until::Returned, |c| c.bare_record_event(), |c| c.record_event());
    row("record an event", event, Target::None);

    if let Err(error) = load(table, &calls, if software { 64 << 20 } else { 1 << 30 }) {
        table.not_run(&format!("{error:#}"));
    }
}

/// Bytes a second from ordinary memory to the device.
fn load(table: &mut Table, calls: &Calls, bytes: usize) -> Result<()> {
    let mut load = calls.load(bytes)?;
    load.upload();
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..LOADS {
        let begin = Instant::now();
        load.upload();
        times[0].push(begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        load.bare_pinned();
        times[1].push(begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        load.bare_pageable();
        times[2].push(begin.elapsed().as_secs_f64());
    }
    let [ours, pinned, pageable] = times.map(|of| Figure::Rate(bytes as f64 / median(of)));
    let what = format!("load of {} MiB", bytes >> 20);
    table.ratio(&what, ours, ("copies of pinned memory", pinned), Target::None);
    table.ratio(&what, ours, ("the driver's plain copy", pageable), Target::None);
    Ok(())
}

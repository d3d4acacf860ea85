// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the backend beside the driver's bare calls.

use std::time::Instant;

use anyhow::Result;

use crate::calls::{Calls, GRAPH_NODES};
use crate::median;
use crate::table::{Figure, Table, Target};

/// Calls of a side in one turn: fewer than a stream queues, so that no launch waits for another to end.
const BATCH: u32 = 200;
/// Calls of a side in one turn where the wait for the device is timed too: few, so that it is much of what is timed.
const AWAITED: u32 = 4;
const ROUNDS: usize = 301;
/// Rounds of a load.
const LOADS: usize = 7;

/// Up to where a turn is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The calls have returned; what they queued is waited for untimed.
    Returned,
    /// The device has done what they queued.
    Done,
}

/// Nanoseconds a call by bare calls and through the backend; and how many times the one the other is: the median over pairs of
/// turns side by side, which a neighbour of the machine's slows down alike.
struct Turns {
    bare: f64,
    through: f64,
    ratio: f64,
}

/// Does both in turns.
fn in_turns(
    calls: &mut Calls,
    until: Until,
    mut bare: impl FnMut(&mut Calls),
    mut through: impl FnMut(&mut Calls),
) -> Turns {
    let batch = if until == Until::Done { AWAITED } else { BATCH };
    let time = |calls: &mut Calls, call: &mut dyn FnMut(&mut Calls)| {
        let begin = Instant::now();
        (0..batch).for_each(|_| call(calls));
        let returned = begin.elapsed();
        calls.settle();
        let took = if until == Until::Done { begin.elapsed() } else { returned };
        took.as_nanos() as f64 / f64::from(batch)
    };
    // Before the first round, so that none pays for what is done once.
    time(calls, &mut bare);
    time(calls, &mut through);
    let mut times = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        // Who comes second might find things warmer.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let call: &mut dyn FnMut(&mut Calls) = if side == 0 { &mut bare } else { &mut through };
            times[side].push(time(calls, call));
        }
    }
    let ratios = times[0].iter().zip(&times[1]).map(|(bare, through)| through / bare).collect();
    let [bare, through] = times.map(median);
    Turns { bare, through, ratio: median(ratios) }
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
    let mut row = |what: &str, turns: Turns, target| {
        let (through, bare) = (Figure::Nanos(turns.through), Figure::Nanos(turns.bare));
        table.turns(what, through, ("bare calls", bare), turns.ratio, target);
    };

    let pair = in_turns(&mut calls, Until::Returned, |c| c.bare_alloc_free(), |c| c.alloc_free());
    row("alloc + free of 1 KiB", pair, target(1.05, 110.0));
    for (place, (name, _)) in calls.streams().into_iter().enumerate() {
        let stream = |c: &Calls| c.streams()[place].1;
        let launch =
            in_turns(&mut calls, Until::Returned, |c| c.bare_launch(stream(c)), |c| c.launch(stream(c)));
        row(&format!("launch on {name}"), launch, target(1.05, 200.0));
        let fill = in_turns(&mut calls, Until::Returned, |c| c.bare_fill(stream(c)), |c| c.fill(stream(c)));
        row(&format!("fill of 1 KiB on {name}"), fill, Target::None);
    }
    for (place, nodes) in GRAPH_NODES.into_iter().enumerate() {
        let mut replays = |until| in_turns(&mut calls, until, |c| c.bare_replay(place), |c| c.replay(place));
        row(&format!("replay of a graph of {nodes} nodes"), replays(Until::Returned), target(1.02, 100.0));
        // What a step of an engine waits for: the nodes take the device far longer than the host takes to hand them over.
        if nodes == GRAPH_NODES[1] {
            let done = replays(Until::Done);
            row(&format!("replay of a graph of {nodes} nodes, done"), done, target(1.02, 100.0));
        }
    }
    let event = in_turns(&mut calls, Until::Returned, |c| c.bare_record_event(), |c| c.record_event());
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

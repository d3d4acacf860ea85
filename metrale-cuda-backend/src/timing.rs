// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device time by name: pairs of events around work, taken from a pool, read when they are done, given back.
//!
//! The spans themselves are [`metrale_telemetry::spans`]; here is what stands between them and a driver's events. Nothing
//! here waits, and nothing knows a driver: making, asking and reading an event are the caller's closures.

use std::sync::Arc;

use metrale_telemetry::spans::{PendingSpans, SpanRow, SpanTotals};
use parking_lot::Mutex;

use crate::parts::HAS_TIMING;

/// Two timing events, recorded in front of and behind some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventPair {
    /// Recorded in front of it.
    pub start: u64,
    /// Recorded behind it.
    pub end: u64,
}

/// What a harvest came to.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Harvested<E> {
    /// Spans that were read.
    pub read: usize,
    /// Spans whose time was no time; they count in no total.
    pub invalid: usize,
    /// Spans that could not be read, by name. Their events are in [`to_destroy`](Self::to_destroy).
    pub failed: Vec<(Arc<str>, E)>,
    /// Events that are no longer trusted, or more than the pool keeps: destroy them.
    pub to_destroy: Vec<EventPair>,
}

/// Spans under way, finished ones by name, and a pool of events. Off when made; then asking costs one relaxed load.
#[derive(Debug)]
pub struct SpanTimer {
    totals: SpanTotals,
    state: Mutex<State>,
    keep: usize,
}

#[derive(Debug)]
struct State {
    pending: PendingSpans<EventPair>,
    idle: Vec<EventPair>,
}

impl SpanTimer {
    /// Room for `limit` spans that wait to be read, and as many event pairs kept for use again.
    #[must_use]
    pub const fn with_limit(limit: usize) -> Self {
        Self {
            totals: SpanTotals::new(),
            state: Mutex::new(State { pending: PendingSpans::with_limit(limit), idle: Vec::new() }),
            keep: limit,
        }
    }

    /// Switches timing on or off; without the feature `timing` it stays off. Spans begun before are still read.
    pub fn set_enabled(&self, on: bool) {
        self.totals.set_enabled(on && HAS_TIMING);
    }

    /// Whether to record events around work.
    #[inline]
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.totals.is_enabled()
    }

    /// A pair from the pool, or a new one of `make`. Record its start, do the work, record its end, and
    /// [`finish`](Self::finish) it; or [`give_back`](Self::give_back) it where the work did not come about.
    ///
    /// # Errors
    /// What `make` answers.
    pub fn begin<E>(&self, make: impl FnOnce() -> Result<EventPair, E>) -> Result<EventPair, E> {
        // Not in the scrutinee: `make` asks the driver, and must not do so under the lock.
        let idle = self.state.lock().idle.pop();
        match idle {
            Some(pair) => Ok(pair),
            None => make(),
        }
    }

    /// Keeps a span whose events are both recorded on `stream`. Where too many wait already it is dropped, counted in
    /// [`refused`](Self::refused), and its events go back to the pool.
    pub fn finish(&self, stream: u64, name: impl Into<Arc<str>>, pair: EventPair) {
        let mut state = self.state.lock();
        if let Err(full) = state.pending.push(stream, name.into(), pair) {
            state.idle.push(full.0);
        }
    }

    /// Puts a pair that was not used back into the pool.
    pub fn give_back(&self, pair: EventPair) {
        self.state.lock().idle.push(pair);
    }

    /// Reads every span that is done. `is_done` asks an event, `elapsed_ms` reads the milliseconds between two. Events of
    /// a stream come in order, so the first that is not done ends the asking there.
    #[must_use = "events have to be destroyed, and failures looked at"]
    pub fn harvest<E>(
        &self,
        mut is_done: impl FnMut(u64) -> Result<bool, E>,
        mut elapsed_ms: impl FnMut(u64, u64) -> Result<f32, E>,
    ) -> Harvested<E> {
        let mut state = self.state.lock();
        // An event that answered with an error may do so again: it is not used twice.
        let mut distrusted = Vec::new();
        let harvest = state.pending.harvest(
            &self.totals,
            |pair| is_done(pair.end).inspect_err(|_| distrusted.push(*pair)),
            |pair| elapsed_ms(pair.start, pair.end),
        );
        let (mut to_destroy, good): (Vec<_>, Vec<_>) =
            harvest.handles.into_iter().partition(|pair| distrusted.contains(pair));
        state.idle.extend(good);
        if state.idle.len() > self.keep {
            let keep = self.keep;
            to_destroy.extend(state.idle.drain(keep..));
        }
        Harvested { read: harvest.read, invalid: harvest.invalid, failed: harvest.failed, to_destroy }
    }

    /// The finished spans by name, the most time first.
    #[must_use]
    pub fn rows(&self) -> Vec<SpanRow> {
        self.totals.rows()
    }

    /// Forgets the finished spans.
    pub fn reset(&self) {
        self.totals.reset();
    }

    /// Spans that wait to be read.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state.lock().pending.len()
    }

    /// Spans that found no room.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state.lock().pending.refused()
    }

    /// Takes every pair out, read or not, to destroy them at teardown.
    #[must_use = "the events have to be destroyed"]
    pub fn drain(&self) -> Vec<EventPair> {
        let mut state = self.state.lock();
        let mut pairs = std::mem::take(&mut state.idle);
        pairs.extend(state.pending.drain());
        pairs
    }
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;

    use super::*;

    fn pair(number: u64) -> EventPair {
        EventPair { start: number * 2, end: number * 2 + 1 }
    }

    fn made(number: u64) -> impl FnOnce() -> Result<EventPair, Infallible> {
        move || Ok(pair(number))
    }

    fn read(timer: &SpanTimer) -> Harvested<Infallible> {
        timer.harvest(|_| Ok(true), |start, end| Ok((end - start) as f32))
    }

    #[test]
    fn it_is_off_until_it_is_switched_on() {
        let timer = SpanTimer::with_limit(4);
        assert!(!timer.is_enabled());
        timer.set_enabled(true);
        assert_eq!(timer.is_enabled(), HAS_TIMING);
    }

    #[test]
    fn pairs_go_round() {
        let timer = SpanTimer::with_limit(4);
        let first = timer.begin(made(1)).unwrap();
        timer.finish(7, "mlp", first);
        assert_eq!(timer.begin(made(2)), Ok(pair(2)), "the first is still out");
        timer.give_back(pair(2));
        let harvest = read(&timer);
        assert_eq!((harvest.read, harvest.invalid, harvest.to_destroy.len()), (1, 0, 0));
        for _ in 0..2 {
            timer.begin(|| -> Result<EventPair, Infallible> { panic!("the pool has some") }).unwrap();
        }
        assert_eq!(timer.begin(|| Err("no more events")), Err("no more events"));
        let rows = timer.rows();
        assert_eq!((rows.len(), &*rows[0].name, rows[0].total_ns), (1, "mlp", 1_000_000));
        timer.reset();
        assert!(timer.rows().is_empty());
    }

    #[test]
    fn what_finds_no_room_is_counted_and_its_events_kept() {
        let timer = SpanTimer::with_limit(1);
        timer.finish(7, "a", pair(1));
        timer.finish(7, "b", pair(2));
        assert_eq!((timer.waiting(), timer.refused()), (1, 1));
        let mut all = timer.drain();
        all.sort_by_key(|pair| pair.start);
        assert_eq!(all, [pair(1), pair(2)]);
        assert!(timer.drain().is_empty());
    }

    #[test]
    fn events_that_answer_with_an_error_are_not_used_again() {
        let timer = SpanTimer::with_limit(8);
        for number in 1..=3 {
            timer.finish(number, "mlp", pair(number));
        }
        let harvest = timer.harvest(
            |end| match end {
                3 => Err("lost"),
                5 => Ok(false),
                _ => Ok(true),
            },
            |_, _| Ok(1.0),
        );
        assert_eq!((harvest.read, harvest.failed.len(), timer.waiting()), (1, 1, 1));
        assert_eq!(harvest.to_destroy, [pair(1)]);
    }

    #[test]
    fn the_pool_keeps_as_many_as_may_wait() {
        let timer = SpanTimer::with_limit(2);
        for number in 1..=5 {
            timer.give_back(pair(number));
        }
        assert_eq!(read(&timer).to_destroy.len(), 3);
        assert_eq!(timer.drain().len(), 2);
    }
}

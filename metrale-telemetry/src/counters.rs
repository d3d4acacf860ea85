// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the events that stall a step: waits, blocking copies, graph captures and replays.

use std::fmt;
use std::ops::Index;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Counter {
    /// Times the host waited for a stream.
    StreamSyncs,
    /// Device-to-host copies that blocked the host.
    BlockingD2hCopies,
    /// Bytes moved by those copies.
    BlockingD2hBytes,
    /// Stream captures that ended in an instantiated graph.
    GraphCaptures,
    /// Launches of an instantiated graph.
    GraphReplays,
}

impl Counter {
    /// Every counter, in the order in which texts list them.
    pub const ALL: [Self; 5] = [
        Self::StreamSyncs,
        Self::BlockingD2hCopies,
        Self::BlockingD2hBytes,
        Self::GraphCaptures,
        Self::GraphReplays,
    ];

    /// The name shown in texts, also fit as a metric's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StreamSyncs => "stream_syncs",
            Self::BlockingD2hCopies => "blocking_d2h_copies",
            Self::BlockingD2hBytes => "blocking_d2h_bytes",
            Self::GraphCaptures => "graph_captures",
            Self::GraphReplays => "graph_replays",
        }
    }

    const fn slot(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of counters, on when made. Switched off, counting costs one relaxed load.
#[derive(Debug)]
pub struct Counters {
    on: AtomicBool,
    values: [AtomicU64; Counter::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl Counters {
    /// All zero, counting.
    pub const fn new() -> Self {
        Self { on: AtomicBool::new(true), values: [const { AtomicU64::new(0) }; Counter::ALL.len()] }
    }

    /// Switches counting on or off; values stay.
    pub fn set_enabled(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether counting is on.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Counts one event.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `amount`. A counter stops at `u64::MAX` instead of starting again from zero.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        if !self.is_enabled() {
            return;
        }
        let value = &self.values[counter.slot()];
        let before = value.fetch_add(amount, Ordering::Relaxed);
        if before.checked_add(amount).is_none() {
            value.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// The present value.
    pub fn value(&self, counter: Counter) -> u64 {
        self.values[counter.slot()].load(Ordering::Relaxed)
    }

    /// All present values. Each is exact; counting that goes on meanwhile may be in one and not yet in another.
    pub fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot { values: Counter::ALL.map(|counter| self.value(counter)) }
    }

    /// Back to zero; the switch stays as it is.
    pub fn reset(&self) {
        for value in &self.values {
            value.store(0, Ordering::Relaxed);
        }
    }
}

/// Values of all counters at one moment, read with `snapshot[Counter::StreamSyncs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterSnapshot {
    values: [u64; Counter::ALL.len()],
}

impl CounterSnapshot {
    /// What was counted from `earlier` to this snapshot. A counter that was reset in between gives 0, not a wrapped number.
    pub fn since(&self, earlier: &Self) -> Self {
        Self { values: Counter::ALL.map(|c| self[c].saturating_sub(earlier[c])) }
    }

    /// Counter and value, in the order of [`Counter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.into_iter().map(|counter| (counter, self[counter]))
    }
}

impl Index<Counter> for CounterSnapshot {
    type Output = u64;

    fn index(&self, counter: Counter) -> &u64 {
        &self.values[counter.slot()]
    }
}

impl fmt::Display for CounterSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (counter, value)) in self.iter().enumerate() {
            let gap = if i == 0 { "" } else { " " };
            write!(f, "{gap}{counter}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_while_on() {
        let counters = Counters::new();
        counters.count(Counter::StreamSyncs);
        counters.set_enabled(false);
        counters.count(Counter::StreamSyncs);
        assert_eq!(counters.value(Counter::StreamSyncs), 1);
        counters.set_enabled(true);
        counters.add(Counter::GraphReplays, 7);
        assert_eq!(
            counters.snapshot().to_string(),
            "stream_syncs=1 blocking_d2h_copies=0 blocking_d2h_bytes=0 graph_captures=0 graph_replays=7"
        );
    }

    #[test]
    fn a_full_counter_stays_full() {
        let counters = Counters::new();
        counters.add(Counter::BlockingD2hBytes, u64::MAX - 1);
        counters.add(Counter::BlockingD2hBytes, 5);
        assert_eq!(counters.value(Counter::BlockingD2hBytes), u64::MAX);
    }

    #[test]
    fn a_step_is_the_difference_of_two_snapshots_and_a_reset_gives_zero() {
        let counters = Counters::new();
        counters.add(Counter::GraphCaptures, 3);
        let before = counters.snapshot();
        counters.count(Counter::GraphCaptures);
        assert_eq!(counters.snapshot().since(&before)[Counter::GraphCaptures], 1);
        counters.reset();
        assert_eq!(counters.snapshot().since(&before), CounterSnapshot::default());
        assert_eq!(counters.snapshot(), CounterSnapshot::default());
    }

    #[test]
    fn slots_and_names_are_distinct() {
        for (i, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter.slot(), i);
        }
        let names: std::collections::BTreeSet<_> = Counter::ALL.map(Counter::name).into();
        assert_eq!(names.len(), Counter::ALL.len());
    }

    #[test]
    fn threads_lose_no_count() {
        let counters = Counters::new();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..1000).for_each(|_| counters.count(Counter::StreamSyncs)));
            }
        });
        assert_eq!(counters.value(Counter::StreamSyncs), 4000);
    }
}

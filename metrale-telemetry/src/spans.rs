// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device time by name, from pairs of events that are read only once they are done: no wait anywhere.
//!
//! [`PendingSpans`] holds what was recorded and not yet read; the backend asks it to [`harvest`] now and
//! then, giving two closures over its own handle type: is this span done, and how long did it take.
//! Finished handles come back, to be used again. [`SpanTotals`] is the table of sums.
//!
//! [`harvest`]: PendingSpans::harvest

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Sums of one span name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanRow {
    /// The name.
    pub name: Arc<str>,
    /// How many spans were read.
    pub count: u64,
    /// Their times together, in nanoseconds.
    pub total_ns: u64,
    /// The shortest, in nanoseconds.
    pub min_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

/// Device time by span name. Off when made; [`is_enabled`](Self::is_enabled) is one relaxed load.
#[derive(Debug, Default)]
pub struct SpanTotals {
    on: AtomicBool,
    rows: Mutex<BTreeMap<Arc<str>, SpanRow>>,
}

impl SpanTotals {
    /// An empty table, off.
    pub const fn new() -> Self {
        Self { on: AtomicBool::new(false), rows: Mutex::new(BTreeMap::new()) }
    }

    /// Switches the recording of spans on or off. Spans begun before are still harvested.
    pub fn set_enabled(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether a backend should record events around its work.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Adds one finished span of `ns` nanoseconds.
    pub fn add(&self, name: &Arc<str>, ns: u64) {
        let mut rows = self.rows.lock();
        let row = match rows.get_mut(name) {
            Some(row) => row,
            None => rows.entry(name.clone()).or_insert(SpanRow {
                name: name.clone(),
                count: 0,
                total_ns: 0,
                min_ns: u64::MAX,
                max_ns: 0,
            }),
        };
        row.count += 1;
        row.total_ns = row.total_ns.saturating_add(ns);
        row.min_ns = row.min_ns.min(ns);
        row.max_ns = row.max_ns.max(ns);
    }

    /// All rows, the most time first, ties by name.
    pub fn rows(&self) -> Vec<SpanRow> {
        let mut rows: Vec<SpanRow> = self.rows.lock().values().cloned().collect();
        rows.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.name.cmp(&b.name)));
        rows
    }

    /// Empties the table; the switch stays as it is.
    pub fn reset(&self) {
        self.rows.lock().clear();
    }
}

/// A span beyond the limit, with its handle for the caller to destroy.
#[derive(Debug, PartialEq, Eq)]
pub struct SpanFull<H>(pub H);

impl<H> fmt::Display for SpanFull<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many spans wait to be read: harvest more often, or allow more pending spans")
    }
}

impl<H: fmt::Debug> std::error::Error for SpanFull<H> {}

/// What one harvest brought.
#[derive(Debug)]
pub struct Harvest<H, E> {
    /// Spans read into the totals.
    pub read: usize,
    /// Spans whose time was no time (negative, infinite or not a number); they are in no total.
    pub invalid: usize,
    /// Handles no longer needed, of read and failed spans: use again or destroy.
    pub handles: Vec<H>,
    /// Spans that could not be read: name and the caller's error. Their handles are in `handles`.
    pub failed: Vec<(Arc<str>, E)>,
}

struct Pending<H> {
    name: Arc<str>,
    handle: H,
}

/// Spans recorded and not yet read, in queues. A queue is whatever finishes in order, usually a stream: a harvest asks
/// about the spans of a queue up to the first unfinished one, so it asks once a queue where nothing is done.
pub struct PendingSpans<H> {
    queues: BTreeMap<u64, VecDeque<Pending<H>>>,
    pending: usize,
    limit: usize,
    refused: u64,
}

impl<H> fmt::Debug for PendingSpans<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSpans")
            .field("queues", &self.queues.len())
            .field("pending", &self.pending)
            .field("limit", &self.limit)
            .field("refused", &self.refused)
            .finish()
    }
}

impl<H> PendingSpans<H> {
    /// Holds up to `limit` spans.
    pub const fn with_limit(limit: usize) -> Self {
        Self { queues: BTreeMap::new(), pending: 0, limit, refused: 0 }
    }

    /// Keeps a span whose events are both recorded.
    ///
    /// # Errors
    /// [`SpanFull`] with the handle when `limit` spans wait already; it is counted in [`refused`](Self::refused).
    pub fn push(&mut self, queue: u64, name: Arc<str>, handle: H) -> Result<(), SpanFull<H>> {
        if self.pending >= self.limit {
            self.refused += 1;
            return Err(SpanFull(handle));
        }
        self.queues.entry(queue).or_default().push_back(Pending { name, handle });
        self.pending += 1;
        Ok(())
    }

    /// Reads every span that is done into `totals`, asking and never waiting. `is_done` tells whether the
    /// span's end was reached; `elapsed_ms` gives its time in milliseconds, as drivers do. A span for which
    /// either fails is taken out and reported; the rest is still read.
    pub fn harvest<E>(
        &mut self,
        totals: &SpanTotals,
        mut is_done: impl FnMut(&H) -> Result<bool, E>,
        mut elapsed_ms: impl FnMut(&H) -> Result<f32, E>,
    ) -> Harvest<H, E> {
        let mut harvest = Harvest { read: 0, invalid: 0, handles: Vec::new(), failed: Vec::new() };
        for queue in self.queues.values_mut() {
            while let Some(next) = queue.front() {
                let answer = match is_done(&next.handle) {
                    Ok(false) => break,
                    Ok(true) => elapsed_ms(&next.handle),
                    Err(error) => Err(error),
                };
                match answer.map(ns_of_ms) {
                    Ok(Some(ns)) => {
                        totals.add(&next.name, ns);
                        harvest.read += 1;
                    }
                    Ok(None) => harvest.invalid += 1,
                    Err(error) => harvest.failed.push((next.name.clone(), error)),
                }
                if let Some(done) = queue.pop_front() {
                    self.pending -= 1;
                    harvest.handles.push(done.handle);
                }
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        harvest
    }

    /// Spans that wait to be read.
    pub fn len(&self) -> usize {
        self.pending
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.pending == 0
    }

    /// Spans refused so far because of the limit.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Removes every waiting handle unread, to destroy them at teardown or before a stream is destroyed.
    pub fn drain(&mut self) -> Vec<H> {
        self.pending = 0;
        std::mem::take(&mut self.queues).into_values().flatten().map(|pending| pending.handle).collect()
    }
}

fn ns_of_ms(ms: f32) -> Option<u64> {
    // `as` from a float saturates, so a finite time beyond 584 years ends at u64::MAX.
    (ms.is_finite() && ms >= 0.0).then(|| (f64::from(ms) * 1e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::convert::Infallible;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn only_what_is_done_is_read_and_a_queue_is_asked_no_further() {
        let totals = SpanTotals::new();
        let mut spans = PendingSpans::with_limit(10);
        // Queue 1: done, not done, done (but after one that is not). Queue 2: done.
        for (queue, handle) in [(1, 10), (1, 21), (1, 12), (2, 14)] {
            spans.push(queue, name("mlp"), handle).unwrap();
        }
        let asked = Cell::new(0);
        let harvest = spans.harvest::<Infallible>(
            &totals,
            |&h| {
                asked.set(asked.get() + 1);
                Ok(h % 2 == 0)
            },
            |&h| Ok(h as f32 / 1000.0),
        );
        assert_eq!((harvest.read, harvest.handles, asked.get()), (2, vec![10, 14], 3));
        assert_eq!(spans.len(), 2);
        let row = SpanRow { name: name("mlp"), count: 2, total_ns: 24_000, min_ns: 10_000, max_ns: 14_000 };
        assert_eq!(totals.rows(), [row]);
        assert_eq!(spans.drain(), [21, 12]);
        assert!(spans.is_empty());
    }

    #[test]
    fn failures_give_their_handle_back_and_the_rest_is_read() {
        let totals = SpanTotals::new();
        let mut spans = PendingSpans::with_limit(10);
        for handle in 0..5 {
            spans.push(0, name("x"), handle).unwrap();
        }
        let harvest = spans.harvest(
            &totals,
            |&h| if h == 1 { Err("query") } else { Ok(true) },
            |&h| match h {
                2 => Err("elapsed"),
                3 => Ok(f32::NAN),
                _ => Ok(1.0),
            },
        );
        assert_eq!(harvest.handles, [0, 1, 2, 3, 4]);
        assert_eq!(harvest.failed, [(name("x"), "query"), (name("x"), "elapsed")]);
        assert_eq!((harvest.read, harvest.invalid), (2, 1));
        assert_eq!(totals.rows()[0].total_ns, 2_000_000);
    }

    #[test]
    fn a_full_queue_gives_the_handle_back() {
        let mut spans = PendingSpans::with_limit(1);
        spans.push(0, name("a"), 7).unwrap();
        assert_eq!(spans.push(0, name("b"), 8), Err(SpanFull(8)));
        assert_eq!((spans.len(), spans.refused()), (1, 1));
    }

    #[test]
    fn rows_come_by_time_and_ties_by_name() {
        let totals = SpanTotals::new();
        for (span, ns) in [("b", 5), ("a", 5), ("c", 9), ("a", u64::MAX)] {
            totals.add(&name(span), ns);
        }
        let rows: Vec<_> = totals.rows().iter().map(|r| (r.name.to_string(), r.total_ns)).collect();
        assert_eq!(rows, [("a".into(), u64::MAX), ("c".into(), 9), ("b".into(), 5)]);
        totals.reset();
        assert!(totals.rows().is_empty());
    }

    #[test]
    fn times_that_are_none() {
        assert_eq!([f32::NAN, f32::INFINITY, -1.0].map(ns_of_ms), [None; 3]);
        assert_eq!(ns_of_ms(0.0), Some(0));
        assert_eq!(ns_of_ms(f32::MAX), Some(u64::MAX));
    }
}

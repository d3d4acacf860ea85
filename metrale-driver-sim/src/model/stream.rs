// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: in-order queues that run late.
//!
//! Work is queued when it is submitted and runs only when a call waits for it: on synchronization of its stream, of an
//! event behind it or of the context, through work of another stream that depends on it, by the second of two queries,
//! and before memory is freed. So what was not waited for has not happened, and a missing synchronization shows as wrong
//! data, always and not once in a thousand runs.
//!
//! ```text
//! Point = (stream, n): the first n operations of that stream are done
//!
//!   legacy stream      waits for the present end of every blocking stream
//!   blocking stream    waits for the present end of the legacy stream
//!   non-blocking       waits for neither
//!   cuStreamWaitEvent  waits for the point at which the event was last recorded
//! ```
//!
//! A query of pending work answers 600 and runs nothing; the next query first runs what the former saw. A polling loop
//! so ends at its second query, and a caller that ignores the 600 still sees old data.

use std::collections::{HashMap, VecDeque};

use super::work::Work;

/// The first `seq` operations of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) seq: u64,
}

pub(crate) struct Queued {
    pub(crate) after: Vec<Point>,
    pub(crate) work: Work,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Legacy,
    Blocking,
    NonBlocking,
    /// The per-thread default stream: blocking, and no caller can destroy it.
    PerThread,
}

pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) kind: StreamKind,
    /// Its place in the device's memory, where it was made by a call.
    pub(crate) place: u64,
    /// The capture it takes part in.
    pub(crate) capture: Option<u64>,
    queue: VecDeque<Queued>,
    submitted: u64,
    completed: u64,
    /// What the last query saw.
    queried: u64,
    /// So many of the first operations need no work that keeps the device busy. What was found once stays so.
    light: u64,
}

impl Stream {
    pub(crate) fn new(device: usize, kind: StreamKind) -> Self {
        Self {
            device,
            kind,
            place: 0,
            capture: None,
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
            queried: 0,
            light: 0,
        }
    }

    /// Whether it and the legacy stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        matches!(self.kind, StreamKind::Blocking | StreamKind::PerThread)
    }

    fn is_idle(&self) -> bool {
        self.completed == self.submitted
    }
}

/// All streams of an instance, by handle.
#[derive(Default)]
pub(crate) struct Streams {
    streams: HashMap<u64, Stream>,
}

impl Streams {
    pub(crate) fn insert(&mut self, handle: u64, stream: Stream) {
        self.streams.insert(handle, stream);
    }

    pub(crate) fn get(&self, handle: u64) -> Option<&Stream> {
        self.streams.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: u64) -> Option<&mut Stream> {
        self.streams.get_mut(&handle)
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Option<Stream> {
        self.streams.remove(&handle)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Stream) -> bool) {
        self.streams.retain(|_, stream| keep(stream));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Stream)> {
        self.streams.iter().map(|(&handle, stream)| (handle, stream))
    }

    /// Queues work and returns the point at which it will be done.
    pub(crate) fn submit(&mut self, handle: u64, work: Work, mut after: Vec<Point>) -> Option<Point> {
        let stream = self.streams.get(&handle)?;
        let device = stream.device;
        let waits_for: fn(&Stream) -> bool = match stream.kind {
            StreamKind::Legacy => Stream::is_blocking,
            StreamKind::Blocking | StreamKind::PerThread => |other| other.kind == StreamKind::Legacy,
            StreamKind::NonBlocking => |_| false,
        };
        for (&other, stream) in &self.streams {
            if other != handle && stream.device == device && !stream.is_idle() && waits_for(stream) {
                after.push(Point { stream: other, seq: stream.submitted });
            }
        }
        let stream = self.streams.get_mut(&handle)?;
        stream.queue.push_back(Queued { after, work });
        stream.submitted += 1;
        Some(Point { stream: handle, seq: stream.submitted })
    }

    /// Whether work that keeps the device busy must run before a stream's end is reached: anything but marks and frees.
    pub(crate) fn has_work(&mut self, handle: u64) -> bool {
        let mut open = vec![self.end(handle)];
        let mut seen: HashMap<u64, u64> = HashMap::new();
        while let Some(point) = open.pop() {
            let Some(stream) = self.streams.get(&point.stream) else { continue };
            let first = seen.get(&point.stream).copied().unwrap_or(stream.light.max(stream.completed));
            if point.seq <= first {
                continue;
            }
            seen.insert(point.stream, point.seq);
            let done = stream.completed;
            for queued in stream.queue.range((first - done) as usize..(point.seq - done) as usize) {
                if queued.work.keeps_busy() {
                    return true;
                }
                open.extend(&queued.after);
            }
        }
        for (stream, seq) in seen {
            if let Some(stream) = self.streams.get_mut(&stream) {
                stream.light = seq;
            }
        }
        false
    }

    /// Whether a stream that the legacy stream waits for has work left.
    pub(crate) fn any_blocking_pending(&self, device: usize) -> bool {
        self.streams
            .values()
            .any(|stream| stream.device == device && stream.is_blocking() && !stream.is_idle())
    }

    /// The stream's present end.
    pub(crate) fn end(&self, handle: u64) -> Point {
        Point { stream: handle, seq: self.streams.get(&handle).map_or(0, |stream| stream.submitted) }
    }

    /// The present ends of all streams of a device.
    pub(crate) fn ends(&self, device: usize) -> Vec<Point> {
        let mut ends: Vec<Point> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.device == device && !stream.is_idle())
            .map(|(&stream, of)| Point { stream, seq: of.submitted })
            .collect();
        // The map has no order of its own; running must not depend on chance.
        ends.sort_unstable_by_key(|point| point.stream);
        ends
    }

    /// Whether a point is passed; a destroyed stream has run all its work.
    pub(crate) fn is_done(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|stream| stream.completed >= point.seq)
    }

    /// Removes and returns the next operation that must run for the points in `wanted` to be passed, or `None` when all are.
    /// Operations wait only for earlier ones, so following what the head of a queue waits for always ends at one that
    /// can run. `wanted` is the path so far, kept by the caller from one operation to the next.
    pub(crate) fn next_for(&mut self, wanted: &mut Vec<Point>) -> Option<(usize, Work)> {
        while let Some(&point) = wanted.last() {
            if self.is_done(point) {
                wanted.pop();
                continue;
            }
            let head = self.streams.get(&point.stream)?.queue.front()?;
            if let Some(&blocker) = head.after.iter().find(|&&point| !self.is_done(point)) {
                wanted.push(blocker);
                continue;
            }
            let stream = self.streams.get_mut(&point.stream)?;
            let head = stream.queue.pop_front()?;
            stream.completed += 1;
            return Some((stream.device, head.work));
        }
        None
    }

    /// What a query does first: the point to run, if the last query saw work that is still pending.
    pub(crate) fn seen_by_query(&self, handle: u64) -> Option<Point> {
        let stream = self.streams.get(&handle)?;
        (stream.queried > stream.completed).then_some(Point { stream: handle, seq: stream.queried })
    }

    /// What a query does last: whether all is done; what is not will run before the next query.
    pub(crate) fn query(&mut self, handle: u64) -> bool {
        let Some(stream) = self.streams.get_mut(&handle) else { return true };
        stream.queried = stream.submitted;
        stream.is_idle()
    }

    /// Drops all pending work of a device: its context has faulted.
    pub(crate) fn abandon(&mut self, device: usize) {
        for stream in self.streams.values_mut().filter(|stream| stream.device == device) {
            stream.queue.clear();
            stream.completed = stream.submitted;
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a pool knows of streams: their pending frees, which of them come after which, and which are complete.

use std::collections::{BTreeMap, BTreeSet};

use super::holes::Hole;
use super::pending::Pending;
use super::space::Space;

/// Work of a stream that has begun and not finished; see [`Pool::begin_work`](super::Pool::begin_work).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolWork(u64);

/// A point in the order of a stream; see [`Pool::record`](super::Pool::record).
#[derive(Clone, Debug, Default)]
pub struct PoolEvent {
    /// By stream: the time up to which its frees come before the event.
    after: BTreeMap<u64, u64>,
    /// Work that the event comes after.
    work: BTreeSet<PoolWork>,
}

/// A stream is not past `work`. What it freed before counts as complete, as far as that was seen.
#[derive(Clone)]
struct Block {
    /// The time up to which other streams see its frees to be complete.
    time: u64,
    /// The time up to which the stream itself does.
    own_time: u64,
    work: BTreeSet<PoolWork>,
}

#[derive(Clone, Default)]
struct Stream {
    /// Place in the order in which streams first used the pool.
    rank: Option<u64>,
    pending: Pending,
    /// By other stream: the time up to which its frees come before what this one does next.
    after: BTreeMap<u64, u64>,
    /// The time up to which frees were seen to be complete.
    seen_complete: u64,
    blocks: Vec<Block>,
}

/// The streams of a pool. Time counts frees.
#[derive(Clone, Default)]
pub(super) struct Streams {
    by_id: BTreeMap<u64, Stream>,
    /// Ids of the streams that have pending frees, by rank.
    with_pending: BTreeMap<u64, u64>,
    next_rank: u64,
    now: u64,
    begun: u64,
    unfinished: BTreeSet<PoolWork>,
}

impl Streams {
    /// The stream uses the pool.
    pub(super) fn touch(&mut self, id: u64) -> u64 {
        let stream = self.by_id.entry(id).or_default();
        *stream.rank.get_or_insert_with(|| {
            self.next_rank += 1;
            self.next_rank
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let pending: usize = self.by_id.values().map(|stream| stream.pending.memory_bytes()).sum();
        2 * size_of::<(u64, Stream)>() * self.by_id.len() + pending
    }

    pub(super) fn free(&mut self, id: u64, start: u64, bytes: u64) {
        let rank = self.touch(id);
        self.now += 1;
        self.by_id.entry(id).or_default().pending.add(start, bytes, self.now);
        self.with_pending.insert(rank, id);
    }

    /// The best fit among the stream's own pending frees.
    pub(super) fn own(&self, id: u64, bytes: u64) -> Option<Hole> {
        self.by_id.get(&id)?.pending.best(bytes, u64::MAX)
    }

    /// The best fit among what the first other stream freed that has one, up to where the stream waited for it.
    pub(super) fn followed(&self, id: u64, bytes: u64) -> Option<(u64, Hole)> {
        let after = &self.by_id.get(&id)?.after;
        self.with_pending.values().filter(|&&other| other != id).find_map(|other| {
            let pending = &self.by_id.get(other)?.pending;
            Some((*other, pending.best(bytes, *after.get(other)?)?))
        })
    }

    /// The best fit among what the first other stream freed that has one, of what is complete.
    pub(super) fn completed(&mut self, id: u64, bytes: u64) -> Option<(u64, Hole)> {
        let now = self.now;
        self.with_pending.values().filter(|&&other| other != id).find_map(|other| {
            let stream = self.by_id.get_mut(other)?;
            let time = stream.complete_until(now);
            Some((*other, stream.pending.best(bytes, time)?))
        })
    }

    /// Places so many bytes at the start of a pending hole.
    pub(super) fn reuse(&mut self, id: u64, hole: Hole, bytes: u64) {
        if let Some(stream) = self.by_id.get_mut(&id) {
            stream.pending.reuse(hole, bytes);
        }
        self.drop_empty(id);
    }

    /// Settles what is complete, of all streams, as `viewer` sees it.
    pub(super) fn settle_completed(&mut self, viewer: u64, space: &mut Space) {
        for id in self.ids_with_pending() {
            let now = self.now;
            let Some(stream) = self.by_id.get_mut(&id) else { continue };
            let time = match stream.blocks.first() {
                Some(block) if id == viewer => block.own_time,
                _ => stream.complete_until(now),
            };
            self.settle_until(id, time, space);
        }
    }

    /// Settles what comes before the event; whether there was something.
    pub(super) fn settle_before(&mut self, event: &PoolEvent, space: &mut Space) -> bool {
        self.settle_each(space, |id| event.after.get(&id).copied().unwrap_or(0))
    }

    /// Settles everything; whether there was something.
    pub(super) fn settle_all(&mut self, space: &mut Space) -> bool {
        self.settle_each(space, |_| u64::MAX)
    }

    pub(super) fn record(&self, id: u64) -> PoolEvent {
        let Some(stream) = self.by_id.get(&id) else { return PoolEvent::default() };
        let mut after = self.still_pending(&stream.after);
        after.insert(id, self.now);
        PoolEvent { after, work: stream.blocks.iter().flat_map(|block| &block.work).copied().collect() }
    }

    pub(super) fn wait(&mut self, id: u64, event: &PoolEvent) {
        let work: BTreeSet<PoolWork> = event.work.intersection(&self.unfinished).copied().collect();
        let mut after = self.still_pending(&event.after);
        let stream = self.by_id.entry(id).or_default();
        after.remove(&id);
        for (other, time) in after {
            let until = stream.after.entry(other).or_default();
            *until = time.max(*until);
        }
        if !work.is_empty() {
            let time = stream.seen_complete;
            let own_time = if stream.blocks.is_empty() { self.now } else { time };
            stream.block(time, own_time, work);
        }
        let after = std::mem::take(&mut stream.after);
        let after = self.still_pending(&after);
        self.by_id.entry(id).or_default().after = after;
    }

    pub(super) fn begin_work(&mut self, id: u64) -> PoolWork {
        let work = PoolWork(self.begun);
        self.begun += 1;
        self.unfinished.insert(work);
        let stream = self.by_id.entry(id).or_default();
        stream.seen_complete = self.now;
        let (time, own_time) = (self.now, self.now);
        stream.block(time, own_time, BTreeSet::from([work]));
        work
    }

    pub(super) fn finish_work(&mut self, work: PoolWork) {
        if !self.unfinished.remove(&work) {
            return;
        }
        for stream in self.by_id.values_mut() {
            stream.blocks.retain_mut(|block| {
                block.work.remove(&work);
                !block.work.is_empty()
            });
        }
    }

    fn ids_with_pending(&self) -> Vec<u64> {
        self.with_pending.values().copied().collect()
    }

    /// Settles what each stream freed up to its time; whether there was something.
    fn settle_each(&mut self, space: &mut Space, time_of: impl Fn(u64) -> u64) -> bool {
        let mut any = false;
        for id in self.ids_with_pending() {
            any |= self.settle_until(id, time_of(id), space);
        }
        any
    }

    /// Settles what a stream freed up to `time`, the latest first; whether there was something.
    fn settle_until(&mut self, id: u64, time: u64, space: &mut Space) -> bool {
        let mut any = false;
        if let Some(stream) = self.by_id.get_mut(&id) {
            while let Some(freed) = stream.pending.pop_latest(time) {
                space.settle(freed.start..freed.end());
                any = true;
            }
        }
        self.drop_empty(id);
        any
    }

    fn drop_empty(&mut self, id: u64) {
        if let Some(Stream { rank: Some(rank), pending, .. }) = self.by_id.get(&id)
            && pending.is_empty()
        {
            self.with_pending.remove(rank);
        }
    }

    /// Of such times those up to which something is still pending.
    fn still_pending(&self, after: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
        let oldest = |id| self.by_id.get(id)?.pending.oldest();
        let times = after.iter().filter(|&(id, time)| oldest(id).is_some_and(|oldest| oldest <= *time));
        times.map(|(&id, &time)| (id, time)).collect()
    }
}

impl Stream {
    /// Stays behind more work. Blocks that differ in nothing else are one.
    fn block(&mut self, time: u64, own_time: u64, work: BTreeSet<PoolWork>) {
        match self.blocks.last_mut() {
            Some(last) if (last.time, last.own_time) == (time, own_time) => last.work.extend(work),
            _ => self.blocks.push(Block { time, own_time, work }),
        }
    }

    /// The time up to which its frees are complete, as far as the pool can know, and notes it.
    fn complete_until(&mut self, now: u64) -> u64 {
        match self.blocks.first() {
            Some(block) => block.time,
            None => {
                self.seen_complete = now;
                now
            }
        }
    }
}

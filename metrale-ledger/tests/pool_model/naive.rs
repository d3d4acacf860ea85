// SPDX-License-Identifier: MIT OR Apache-2.0
//! The naive model of a pool: a map of granules, lists in the order of age, linear search.

use std::collections::{BTreeMap, BTreeSet};

use metrale_ledger::placement::pool::PoolReuse;

use crate::{GRANULE, PIECE, STREAMS};

/// More granules than any case reaches.
const GRANULES: usize = 4096;

/// Start and length in granules, and the time of the latest free of it.
#[derive(Clone, Copy)]
struct Freed {
    start: usize,
    len: usize,
    time: u64,
}

/// A point in the order of a stream.
#[derive(Clone, Default)]
pub(crate) struct Event {
    after: BTreeMap<u64, u64>,
    work: BTreeSet<usize>,
}

#[derive(Clone, Default)]
struct Block {
    others_see: u64,
    own: u64,
    work: BTreeSet<usize>,
}

/// The pool, naively.
pub(crate) struct Naive {
    /// Live or pending.
    pub(crate) taken: Vec<bool>,
    /// Holes, the oldest first.
    holes: Vec<(usize, usize)>,
    /// By stream, in the order of first use; of each stream the oldest first.
    pending: Vec<(u64, Vec<Freed>)>,
    pub(crate) mapped: BTreeSet<usize>,
    now: u64,
    after: BTreeMap<(u64, u64), u64>,
    seen: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, Vec<Block>>,
    works: usize,
    finished: BTreeSet<usize>,
    pub(crate) reuse: PoolReuse,
    pub(crate) threshold: u64,
    pub(crate) threshold_is_new: bool,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved_high: u64,
}

fn pieces(start: usize, len: usize) -> std::ops::RangeInclusive<usize> {
    let granules = (PIECE / GRANULE) as usize;
    start / granules..=(start + len - 1) / granules
}

/// The smallest, and the first of those.
fn best<T: Copy>(
    all: &[T],
    len: impl Fn(&T) -> usize,
    wanted: usize,
    fits: impl Fn(&T) -> bool,
) -> Option<T> {
    all.iter().filter(|one| len(one) >= wanted && fits(one)).min_by_key(|one| len(one)).copied()
}

impl Naive {
    pub(crate) fn new() -> Self {
        Self {
            taken: vec![false; GRANULES],
            holes: Vec::new(),
            pending: Vec::new(),
            mapped: BTreeSet::new(),
            now: 0,
            after: BTreeMap::new(),
            seen: BTreeMap::new(),
            blocks: BTreeMap::new(),
            works: 0,
            finished: BTreeSet::new(),
            reuse: PoolReuse::default(),
            threshold: 0,
            threshold_is_new: false,
            used: 0,
            used_high: 0,
            reserved_high: 0,
        }
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.mapped.len() as u64 * PIECE
    }

    fn end(&self) -> usize {
        self.taken.iter().rposition(|&taken| taken).map_or(0, |last| last + 1)
    }

    fn idle(&self) -> Vec<usize> {
        let granules = (PIECE / GRANULE) as usize;
        let free = |piece: &usize| !self.taken[piece * granules..(piece + 1) * granules].contains(&true);
        self.mapped.iter().copied().filter(free).collect()
    }

    /// Free stretches before the end that are not listed are new; listed ones that are no more are over.
    pub(crate) fn list_holes(&mut self) {
        let end = self.end();
        let mut holes = Vec::new();
        let mut at = 0;
        while at < end {
            let len = self.taken[at..end].iter().take_while(|&&taken| !taken).count();
            if len > 0 {
                holes.push((at, len));
            }
            at += len.max(1);
        }
        self.holes.retain(|hole| holes.contains(hole));
        for hole in holes {
            if !self.holes.contains(&hole) {
                self.holes.push(hole);
            }
        }
    }

    fn use_stream(&mut self, stream: u64) -> &mut Vec<Freed> {
        if !self.pending.iter().any(|(id, _)| *id == stream) {
            self.pending.push((stream, Vec::new()));
        }
        &mut self.pending.iter_mut().find(|(id, _)| *id == stream).unwrap().1
    }

    fn complete(&mut self, stream: u64, viewer: u64) -> u64 {
        match self.blocks.get(&stream).and_then(|blocks| blocks.first()) {
            Some(block) if stream == viewer => block.own,
            Some(block) => block.others_see,
            None => {
                self.seen.insert(stream, self.now);
                self.now
            }
        }
    }

    pub(crate) fn settle(&mut self, until: impl Fn(&mut Self, u64) -> u64) -> bool {
        let mut any = false;
        for at in 0..self.pending.len() {
            let stream = self.pending[at].0;
            let until = until(self, stream);
            let (mut settled, kept): (Vec<_>, Vec<_>) =
                self.pending[at].1.iter().copied().partition(|freed| freed.time <= until);
            self.pending[at].1 = kept;
            settled.sort_by_key(|freed| std::cmp::Reverse(freed.time));
            for freed in settled {
                any = true;
                self.taken[freed.start..freed.start + freed.len].fill(false);
                self.list_holes();
            }
        }
        any
    }

    /// Places so many granules at the start of a pending hole of that stream.
    fn reuse(&mut self, stream: u64, freed: Freed, len: usize) -> usize {
        let list = self.use_stream(stream);
        list.retain(|other| other.start != freed.start);
        if freed.len > len {
            list.push(Freed { start: freed.start + len, len: freed.len - len, time: freed.time });
        }
        freed.start
    }

    /// Start and newly mapped bytes; none where memory runs out.
    pub(crate) fn alloc(&mut self, stream: u64, bytes: u64, available: u64) -> Option<(usize, u64)> {
        let len = bytes.div_ceil(GRANULE) as usize;
        let own = self.use_stream(stream).clone();
        if let Some(freed) = best(&own, |freed| freed.len, len, |_| true) {
            return Some((self.reuse(stream, freed, len), 0));
        }
        let whole =
            |&(start, len): &(usize, usize)| pieces(start, len).all(|piece| self.mapped.contains(&piece));
        let mut hole = best(&self.holes, |hole| hole.1, len, whole);
        if hole.is_none() {
            let others: Vec<_> = self.pending.iter().filter(|(id, _)| *id != stream).cloned().collect();
            for (other, list) in
                others.iter().filter(|_| self.reuse.follow_events).cloned().collect::<Vec<_>>()
            {
                let until = self.after.get(&(stream, other)).copied().unwrap_or(0);
                if let Some(freed) = best(&list, |freed| freed.len, len, |freed| freed.time <= until) {
                    return Some((self.reuse(other, freed, len), 0));
                }
            }
            if self.reuse.opportunistic {
                for (other, list) in others.into_iter().filter(|(_, list)| !list.is_empty()) {
                    let until = self.complete(other, stream);
                    if let Some(freed) = best(&list, |freed| freed.len, len, |freed| freed.time <= until) {
                        return Some((self.reuse(other, freed, len), 0));
                    }
                }
                self.settle(|naive, id| naive.complete(id, stream));
            }
            hole = best(&self.holes, |hole| hole.1, len, |_| true);
        }
        let start = hole.map_or(self.end(), |hole| hole.0);
        let idle = self.idle();
        let granules = (PIECE / GRANULE) as usize;
        let untouched: Vec<usize> = pieces(start, len)
            .filter(|piece| !self.taken[piece * granules..(piece + 1) * granules].contains(&true))
            .collect();
        let new = untouched.len().saturating_sub(idle.len());
        let can = (available / PIECE).min(usize::MAX as u64) as usize;
        if new > can {
            self.mapped.retain(|piece| !idle.contains(piece));
            self.mapped.extend(&untouched[..idle.len() + can]);
            return None;
        }
        self.taken[start..start + len].fill(true);
        self.list_holes();
        for piece in untouched {
            if !self.mapped.contains(&piece) {
                if let Some(highest) = self.idle().last() {
                    self.mapped.remove(highest);
                }
                self.mapped.insert(piece);
            }
        }
        Some((start, new as u64 * PIECE))
    }

    pub(crate) fn free(&mut self, stream: u64, start: usize, len: usize) {
        self.now += 1;
        let now = self.now;
        let list = self.use_stream(stream);
        let mut merged = Freed { start, len, time: now };
        for freed in list.clone() {
            if freed.start + freed.len == merged.start {
                merged = Freed { start: freed.start, len: freed.len + merged.len, ..merged };
            } else if merged.start + merged.len == freed.start {
                merged.len += freed.len;
            } else {
                continue;
            }
            list.retain(|other| other.start != freed.start);
        }
        list.push(merged);
    }

    pub(crate) fn shrink(&mut self, pieces: u64) {
        while self.mapped.len() as u64 > pieces
            && let Some(highest) = self.idle().last()
        {
            self.mapped.remove(highest);
        }
    }

    pub(crate) fn after_synchronize(&mut self, any: bool) {
        if any || self.threshold_is_new {
            self.shrink(self.threshold / PIECE);
        }
        self.threshold_is_new = false;
    }

    pub(crate) fn record(&self, stream: u64) -> Event {
        let mut after: BTreeMap<u64, u64> =
            (0..STREAMS).filter_map(|other| Some((other, *self.after.get(&(stream, other))?))).collect();
        after.insert(stream, self.now);
        let blocks = self.blocks.get(&stream).into_iter().flatten();
        Event { after, work: blocks.flat_map(|block| block.work.iter().copied()).collect() }
    }

    pub(crate) fn wait(&mut self, stream: u64, event: &Event) {
        for (&other, &time) in &event.after {
            let until = self.after.entry((stream, other)).or_insert(0);
            *until = time.max(*until);
        }
        let work: BTreeSet<_> = event.work.difference(&self.finished).copied().collect();
        if !work.is_empty() {
            let others_see = self.seen.get(&stream).copied().unwrap_or(0);
            let blocks = self.blocks.entry(stream).or_default();
            let own = if blocks.is_empty() { self.now } else { others_see };
            blocks.push(Block { others_see, own, work });
        }
    }

    pub(crate) fn synchronize(&mut self, event: &Event) {
        let any = self.settle(|_, id| event.after.get(&id).copied().unwrap_or(0));
        self.after_synchronize(any);
    }

    pub(crate) fn begin_work(&mut self, stream: u64) {
        self.seen.insert(stream, self.now);
        let block = Block { others_see: self.now, own: self.now, work: BTreeSet::from([self.works]) };
        self.works += 1;
        self.blocks.entry(stream).or_default().push(block);
    }

    pub(crate) fn finish_work(&mut self, work: usize) {
        self.finished.insert(work);
        for blocks in self.blocks.values_mut() {
            for block in blocks.iter_mut() {
                block.work.remove(&work);
            }
            blocks.retain(|block| !block.work.is_empty());
        }
    }
}

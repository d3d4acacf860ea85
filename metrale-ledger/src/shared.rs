// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state that a ledger and its probes share: in one piece, or dealt out to the threads.
//!
//! ```text
//!              many threads meet at the book's lock
//!   whole  ──────────────────────────────────────────>  dealt out
//!   one lock, the book holds all                        each shard (pages, number mod shards) behind a lock of its own;
//!          <──────────────────────────────────────────  each thread counts in its lane, the book holds the rest
//!              something needs the whole: a large or odd record, a wrong free, a snapshot, one thread left alone
//! ```
//! Dealt out, a thread that records or frees takes its shard's lock and its lane's, which other threads seldom want. What
//! this path cannot do for certain it leaves alone, and the caller does it on the whole. Locks are taken in this order:
//! `turn`, a shard, the book, a lane; but `turn` is only ever tried with the book's lock held.

use std::array::from_fn;
use std::panic::Location;
use std::sync::Arc;

use crate::book::{Book, Class, is_small};
use crate::entries::{Entry, Item};
use crate::group::Key;
use crate::index::{Extent, Standing, locate};
use crate::meter::{Change, Lane, News};
use crate::misuse::{ForgetError, FreedBy, Recorded, Tombstone};
use crate::page::{Page, Where};
use crate::published::{Published, Total};
use crate::shard::{SHARDS, Shard};
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::{Apart, AtomicBool, AtomicU64, Biased, BiasedGuard, Mutex, thread_number};
use crate::{AllocKind, AllocRecord, LiveAllocation, Snapshot};

/// Threads beyond this number share lanes. A lane is a bit of the meter's.
#[cfg(not(loom))]
const LANES: usize = 64;
#[cfg(loom)]
const LANES: usize = 2;

/// What a meeting of threads at the lock weighs against operations that met nobody.
const MEETING: u32 = 16;
/// Meetings, less what the others outweigh, at which the shards are dealt out.
const MANY_MEETINGS: u32 = 16 * MEETING;
/// Operations of one lane between two looks whether other threads are about.
const LOOK_ABOUT: u64 = 1024;

/// The book, and whether its shards are elsewhere.
pub(crate) struct Core {
    pub(crate) book: Book,
    dealt: bool,
    /// Rises when threads meet here, falls by the operations in between.
    meetings: u32,
    /// The operations so far, when threads last met.
    last_met: u64,
    /// How many times more meetings it takes, since dealing out did not pay the last times.
    patience: u32,
    /// Since the shards were dealt out: operations counted in lanes, and times all lanes had to be closed for a peak.
    lane_ops: u64,
    closings: u64,
}

pub(crate) struct Shared {
    core: Apart<Biased<Core>>,
    published: Apart<Published>,
    /// The shards are dealt out, or were a moment ago.
    dealt: Apart<AtomicBool>,
    /// The number of the last peak, which changes only while all lanes are closed.
    peaks: AtomicU64,
    /// Live allocations overlap, so most totals must be asked of the book.
    stale: AtomicBool,
    /// Rises by 2 when a lane opens while another is, to an odd number when the first does, to an even one when all close.
    lanes_state: AtomicU64,
    turn: Apart<Mutex<()>>,
    shards: [Apart<Mutex<Option<Shard>>>; SHARDS],
    lanes: [Apart<Mutex<Lane>>; LANES],
    /// A scope was opened on this ledger at least once.
    scoped: AtomicBool,
    /// The lane that last looked about.
    last_to_look: Apart<AtomicU64>,
}

/// How an operation in a shard ended.
enum Dealt<T> {
    Done(T),
    /// Done, and the whole is better called back.
    DoneAndBack(T),
    /// Nothing was done: it takes the whole.
    TakesWhole,
}

impl Shared {
    pub(crate) fn new(tombstones: usize) -> Self {
        // Not at some record, which it would hold up.
        metrale_lock::prepare();
        let core = Core {
            book: Book::new(tombstones),
            dealt: false,
            meetings: 0,
            last_met: 0,
            patience: 1,
            lane_ops: 0,
            closings: 0,
        };
        Self {
            core: Apart(Biased::new(core)),
            published: Apart::default(),
            dealt: Apart(AtomicBool::new(false)),
            peaks: AtomicU64::new(0),
            stale: AtomicBool::new(false),
            lanes_state: AtomicU64::new(0),
            turn: Apart(Mutex::new(())),
            shards: from_fn(|_| Apart(Mutex::new(None))),
            lanes: from_fn(|_| Apart(Mutex::new(Lane::default()))),
            scoped: AtomicBool::new(false),
            last_to_look: Apart(AtomicU64::new(0)),
        }
    }

    // The whole.

    /// Locks the book with all shards in it and all lanes closed.
    fn whole(&self) -> BiasedGuard<'_, Core> {
        self.undealt().unwrap_or_else(|| self.call_back())
    }

    /// Locks the book, if all shards are in it.
    fn undealt(&self) -> Option<BiasedGuard<'_, Core>> {
        let mut core = self.core.lock();
        if core.dealt {
            return None;
        }
        core.book.device.settle();
        Some(core)
    }

    /// Gathers the shards. Whoever finds one gone comes here too, and waits for its turn.
    #[cold]
    fn call_back(&self) -> BiasedGuard<'_, Core> {
        let _turn = self.turn.lock();
        if let Some(core) = self.undealt() {
            return core;
        }
        // A thread in a shard may be waiting for the book, so the shards come first.
        let shards: [Option<Shard>; SHARDS] = from_fn(|i| self.shards[i].lock().take());
        let mut core = self.core.lock();
        for (place, shard) in core.book.device.shards.iter_mut().zip(shards) {
            *place = shard.unwrap_or_default();
        }
        core.dealt = false;
        core.book.phase += 1;
        self.close_lanes(&mut core);
        // Dealing out paid, unless most operations had to come to the book nevertheless.
        core.patience = if core.lane_ops > 1000 * (core.closings + 1) {
            1
        } else if core.lane_ops < 16 * core.closings {
            (core.patience * 2).min(256)
        } else {
            core.patience
        };
        core.meetings = 0;
        self.dealt.store(false, SeqCst);
        self.publish_all(&mut core);
        core
    }

    /// Puts the shards where threads can take them one by one.
    #[cold]
    fn deal_out(&self, core: &mut Core) {
        let Some(_turn) = self.turn.try_lock() else { return };
        core.meetings = 0;
        if !core.book.may_be_dealt() {
            return;
        }
        core.book.device.settle();
        core.book.phase += 1;
        let (phase, spanning_state) = (core.book.phase, core.book.device.spanning_state);
        for (place, shard) in self.shards.iter().zip(&mut core.book.device.shards) {
            let mut shard = std::mem::take(shard);
            shard.phase = phase;
            shard.spanning_state = spanning_state;
            *place.lock() = Some(shard);
        }
        core.dealt = true;
        core.lane_ops = 0;
        core.closings = 0;
        self.dealt.store(true, SeqCst);
    }

    /// Changes the book and publishes its totals before the lock goes.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let mut core = self.whole();
        let answer = change(&mut core.book);
        self.publish_all(&mut core);
        answer
    }

    /// Asks the book for what does not change it.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&mut Book) -> T) -> T {
        question(&mut self.whole().book)
    }

    /// Locks the whole for an everyday operation, unless the shards are dealt out, if only since a moment ago: then whoever
    /// waited has no need of the whole. Who finds the lock taken notes that.
    #[inline]
    fn whole_often(&self) -> Option<BiasedGuard<'_, Core>> {
        if self.dealt.load(Relaxed) {
            return None;
        }
        match self.core.try_lock() {
            Some(core) => (!core.dealt).then_some(core),
            None => self.whole_met(),
        }
    }

    /// [`whole_often`](Self::whole_often), where that needs no wait.
    #[inline(always)]
    fn whole_at_once(&self) -> Option<BiasedGuard<'_, Core>> {
        if self.dealt.load(Relaxed) {
            return None;
        }
        self.core.try_lock().filter(|core| !core.dealt)
    }

    /// Waits for the whole, and deals the shards out if threads meet too often.
    #[cold]
    fn whole_met(&self) -> Option<BiasedGuard<'_, Core>> {
        let (mut core, waited) = self.core.wait();
        if !core.dealt {
            let operations = core.book.meter.operations();
            let calm = operations.saturating_sub(core.last_met).try_into().unwrap_or(u32::MAX);
            core.last_met = operations;
            core.meetings = core.meetings.saturating_sub(calm).saturating_add(MEETING).saturating_add(waited);
            if core.meetings > MANY_MEETINGS * core.patience {
                self.deal_out(&mut core);
            }
        }
        (!core.dealt).then_some(core)
    }

    /// Makes the totals readable.
    #[inline]
    fn publish(&self, core: &mut Core) {
        if core.book.meter.has_news() {
            self.publish_news(core);
        } else {
            self.publish_live(core);
        }
    }

    /// Makes live bytes and count readable, where nothing else changed.
    #[inline(always)]
    fn publish_live(&self, core: &Core) {
        let running = core.book.meter.running();
        self.published.set(Total::LiveBytes, running.live_bytes);
        self.published.set(Total::LiveCount, running.live_count);
    }

    /// Makes the totals readable after the everyday case, in which a page may have come to be one of device memory, or no
    /// longer.
    #[inline(always)]
    fn publish_small(&self, core: &mut Core, flips: bool, comes: bool) {
        if flips {
            self.publish_flip(core, comes);
        } else {
            self.publish_live(core);
        }
    }

    #[inline(never)]
    fn publish_flip(&self, core: &mut Core, comes: bool) {
        core.book.meter.flip_small_page(comes);
        let running = core.book.meter.running();
        self.published.publish(running, |published| published.write_device_pages(running));
    }

    /// Makes those totals readable, too, that small allocations seldom change; or all, where there was more.
    #[inline(never)]
    fn publish_news(&self, core: &mut Core) {
        let news = core.book.meter.take_news();
        if news.has(News::ALL) {
            return self.publish_all(core);
        }
        let running = core.book.meter.running();
        self.published.publish(running, |published| {
            if news.has(News::PAGES) {
                published.write_device_pages(running);
                published.set(Total::ArenaResidentBytes, running.arena_resident_bytes);
            }
            if news.has(News::PEAK) {
                self.peaks.store(core.book.meter.peaks(), Release);
            }
        });
    }

    #[inline(never)]
    fn publish_all(&self, core: &mut Core) {
        core.book.meter.take_news();
        core.book.look_ahead();
        let meter = &core.book.meter;
        self.peaks.store(meter.peaks(), Release);
        let (running, overlaps) = (meter.running(), core.book.has_overlaps());
        if overlaps {
            // Slack stays unreadable, since its cells are of an earlier moment than live bytes: one who saw before that
            // nothing overlapped may be reading them.
            self.published.begin(running);
        } else {
            self.published.publish(running, |published| {
                published.write(&meter.totals(meter.pages()));
                published.write_slack(running);
            });
        }
        self.stale.store(overlaps, Release);
    }

    /// One of the totals: a few loads, where no lane is open and nothing overlaps.
    #[inline]
    pub(crate) fn read(&self, total: Total) -> usize {
        let state = self.lanes_state.load(Acquire);
        if state & 1 == 0
            && !self.stale.load(Acquire)
            && let Some(value) = self.published.read(total)
        {
            // Had a lane opened in between, the value might lack what was counted there.
            if self.lanes_state.load(Acquire) == state {
                return value as usize;
            }
        }
        self.read_settled(total)
    }

    #[cold]
    fn read_settled(&self, total: Total) -> usize {
        let mut core = self.core.lock();
        if core.book.has_overlaps() {
            let totals = core.book.settled_totals();
            self.published.publish(core.book.meter.running(), |published| published.write(&totals));
            // The overlap lasts, but no change can come between: every change says so itself.
            self.stale.store(false, Release);
        } else {
            self.close_lanes(&mut core);
            self.publish(&mut core);
        }
        // Under the lock, so no change can come between.
        self.published.read(total).unwrap_or_default() as usize
    }

    // Dealt out.

    /// Brings what all lanes hold into the totals. A lane once closed stays so until its owner gets the book's lock, so
    /// when the last is closed they are all of one moment.
    fn close_lanes(&self, core: &mut Core) {
        let mut open = core.book.meter.open_lanes();
        if open == 0 {
            return;
        }
        while open != 0 {
            let number = open.trailing_zeros() as usize;
            open &= open - 1;
            core.lane_ops += core.book.meter.close(number, &mut self.lanes[number].lock());
        }
        self.publish(core);
        // Even again, as none is open.
        self.lanes_state.fetch_add(1, SeqCst);
    }

    fn open_lane(&self, core: &mut Core, number: usize, after: &Change) {
        let first = core.book.meter.open_lanes() == 0;
        // Said before anything is counted there.
        self.lanes_state.fetch_add(if first { 1 } else { 2 }, SeqCst);
        core.book.meter.open(number, &mut self.lanes[number].lock(), after);
    }

    /// Counts a change made in a shard whose lock the caller holds: its index, the peak before it, and whether the whole
    /// is better called back.
    fn count(&self, change: &Change) -> (u64, Option<u64>, bool) {
        self.count_in(thread_number() as usize % LANES, change)
    }

    fn count_in(&self, number: usize, change: &Change) -> (u64, Option<u64>, bool) {
        {
            let mut lane = self.lanes[number].lock();
            if let Some(index) = lane.apply(change) {
                // The lane is open, so this is still the last peak.
                let peaks = self.peaks.load(Relaxed);
                let looks = lane.since_look >= LOOK_ABOUT;
                if looks {
                    lane.since_look = 0;
                }
                drop(lane);
                let alone = looks && self.last_to_look.swap(number as u64 + 1, Relaxed) == number as u64 + 1;
                return (index, Some(peaks), alone);
            }
        }
        let mut core = self.core.lock();
        let core = &mut *core;
        if core.book.meter.open_lanes() >> number & 1 == 1 {
            let was_last = core.book.meter.open_lanes() == 1 << number;
            core.lane_ops += core.book.meter.close(number, &mut self.lanes[number].lock());
            if was_last {
                self.publish(core);
                self.lanes_state.fetch_add(1, SeqCst);
            }
        }
        if core.book.meter.may_be_peak(change) {
            core.closings += 1;
            self.close_lanes(core);
        }
        let after = core.book.meter.apply(change, false);
        let index = if change.count() > 0 { core.book.meter.draw_index() } else { 0 };
        self.publish(core);
        self.open_lane(core, number, change);
        let restless = core.closings > 256 && core.lane_ops < 16 * core.closings;
        (index, after, restless)
    }

    fn record_dealt(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        scope: Option<u32>,
        allowed: Where,
    ) -> Dealt<u64> {
        let (number, offset) = locate(addr);
        let mut place = self.shards[number as usize % SHARDS].lock();
        let Some(shard) = place.as_mut() else { return Dealt::TakesWhole };
        let key = Key::new(site, scope, AllocKind::Device);
        let group = match shard.numbers.get(&key) {
            Some(&group) => group,
            None => {
                let mut core = self.core.lock();
                let group = core.book.group_of(key);
                shard.groups.entry(group).or_insert_with(|| core.book.known(group));
                shard.numbers.insert(key, group);
                group
            }
        };
        let Some(page) = shard.pages.open_for(number, allowed) else { return Dealt::TakesWhole };
        // As for the whole; what is known of an empty page stays true, since nothing spanning comes while this is dealt out.
        let sure = page.is_clear(false) || page.clear_as_of == shard.spanning_state;
        if !sure && !self.is_clear(page, shard.spanning_state, addr, bytes) {
            return Dealt::TakesWhole;
        }
        let first = page.is_untouched();
        let item = Item::new(0, group, AllocKind::Device);
        let Some(flips) = page.put_small(Entry::new(offset, bytes as u32, item)) else {
            return Dealt::TakesWhole;
        };
        let change = Change::of(AllocKind::Device, bytes, true, flips);
        let (index, after, back) = self.count(&change);
        if let Some(item) = page.item_mut(offset) {
            item.index = index;
        }
        if first {
            shard.pages.note_touched();
        }
        if let Some(known) = shard.groups.get_mut(&group) {
            known.held.change(change.bytes(), 1, after);
        }
        if back { Dealt::DoneAndBack(index) } else { Dealt::Done(index) }
    }

    /// Whether no spanning allocation is in the way of that range in that page.
    #[cold]
    fn is_clear(&self, page: &mut Page, spanning_state: u64, addr: u64, bytes: usize) -> bool {
        let core = self.core.lock();
        let device = &core.book.device;
        if device.is_page_clear(page.number()) {
            page.clear_as_of = spanning_state;
            return true;
        }
        Extent::new(addr, bytes).is_some_and(|extent| device.is_clear(extent))
    }

    fn forget_dealt(&self, addr: u64, freed_at: &'static Location<'static>) -> Dealt<AllocRecord> {
        let (number, offset) = locate(addr);
        let mut place = self.shards[number as usize % SHARDS].lock();
        let Some(shard) = place.as_mut() else { return Dealt::TakesWhole };
        let Some((entry, flips)) = shard.pages.remove_if(number, offset, Entry::is_small) else {
            return Dealt::TakesWhole;
        };
        let bytes = entry.bytes() as usize;
        let change = Change::of(AllocKind::Device, bytes, false, flips);
        let (_, after, back) = self.count(&change);
        let known = shard
            .groups
            .entry(entry.item.group())
            .or_insert_with(|| self.core.lock().book.known(entry.item.group()));
        known.held.change(change.bytes(), -1, after);
        let record = AllocRecord {
            bytes,
            site: known.key.site,
            kind: AllocKind::Device,
            scope: known.scope.clone(),
            tag: known.tag.clone(),
            index: entry.item.index,
            free_refused: entry.item.is_free_refused(),
        };
        let was = Standing { addr, bytes, item: entry.item };
        shard.graveyard.bury(Tombstone { was, freed_at, how: FreedBy::Free, phase: shard.phase });
        if back { Dealt::DoneAndBack(record) } else { Dealt::Done(record) }
    }

    /// What [`Dealt`] asks for.
    fn finish<T>(&self, dealt: Dealt<T>) -> Option<T> {
        match dealt {
            Dealt::Done(answer) => Some(answer),
            Dealt::DoneAndBack(answer) => {
                drop(self.whole());
                Some(answer)
            }
            Dealt::TakesWhole => None,
        }
    }

    // Operations.

    #[inline(always)]
    pub(crate) fn record(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        kind: AllocKind,
        scope: Option<u32>,
    ) -> Recorded {
        if kind == AllocKind::Device
            && let Some(index) = self.record_small(addr, bytes, site, scope, Where::Anywhere)
        {
            return Recorded { index, misuse: None };
        }
        self.record_with_care(addr, bytes, site, kind, scope)
    }

    /// Records a small device allocation, if there is a place for it and nothing amiss: its index. Else nothing is done.
    #[inline(always)]
    pub(crate) fn record_small(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        scope: Option<u32>,
        place: Where,
    ) -> Option<u64> {
        if !is_small(addr, bytes) {
            return None;
        }
        let Some(mut core) = self.whole_at_once() else {
            return self.record_small_later(addr, bytes, site, scope, place);
        };
        let Some((index, flips)) = core.book.record_quickly(addr, bytes, site, scope, place) else {
            return self.record_small_in(core, addr, bytes, site, scope, place);
        };
        self.publish_small(&mut core, flips, true);
        Some(index)
    }

    /// [`record_small`](Self::record_small) where it is not the everyday case.
    #[inline(never)]
    fn record_small_in(
        &self,
        mut core: BiasedGuard<'_, Core>,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        scope: Option<u32>,
        place: Where,
    ) -> Option<u64> {
        let index = core.book.record_small(addr, bytes, site, scope, place)?;
        self.publish(&mut core);
        Some(index)
    }

    /// [`record_small`](Self::record_small) where others are at the whole, or it is dealt out.
    #[inline(never)]
    fn record_small_later(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        scope: Option<u32>,
        place: Where,
    ) -> Option<u64> {
        match self.whole_often() {
            Some(core) => self.record_small_in(core, addr, bytes, site, scope, place),
            None => self.finish(self.record_dealt(addr, bytes, site, scope, place)),
        }
    }

    #[inline(never)]
    fn record_with_care(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
        kind: AllocKind,
        scope: Option<u32>,
    ) -> Recorded {
        let mut core = self.whole();
        let answer = core.book.record(addr, bytes, site, kind, scope);
        self.publish(&mut core);
        answer
    }

    /// Takes a small device allocation off, if there is one; else it is left to `otherwise`. The answer is made where it is
    /// wanted, since moving a record costs as much as finding it.
    #[inline]
    pub(crate) fn forget_small<T>(
        &self,
        addr: u64,
        freed_at: &'static Location<'static>,
        done: impl Fn(AllocRecord) -> T,
        otherwise: impl FnOnce(&Self) -> T,
    ) -> T {
        let later = match self.whole_at_once() {
            Some(mut core) => match core.book.forget_quickly(addr, freed_at) {
                Some((gone, flips)) => {
                    self.publish_small(&mut core, flips, false);
                    return done(core.book.outward(&gone.item, gone.bytes() as usize));
                }
                None => self.forget_small_in(core, addr, freed_at),
            },
            None => self.forget_small_later(addr, freed_at),
        };
        match later {
            Some(gone) => done(gone),
            None => otherwise(self),
        }
    }

    /// [`forget_small`](Self::forget_small) where it is not the everyday case.
    #[inline(never)]
    fn forget_small_in(
        &self,
        mut core: BiasedGuard<'_, Core>,
        addr: u64,
        freed_at: &'static Location<'static>,
    ) -> Option<AllocRecord> {
        let gone = core.book.forget_small(addr, freed_at)?;
        self.publish(&mut core);
        Some(gone)
    }

    /// [`forget_small`](Self::forget_small) where others are at the whole, or it is dealt out.
    #[inline(never)]
    fn forget_small_later(&self, addr: u64, freed_at: &'static Location<'static>) -> Option<AllocRecord> {
        match self.whole_often() {
            Some(core) => self.forget_small_in(core, addr, freed_at),
            None => self.finish(self.forget_dealt(addr, freed_at)),
        }
    }

    pub(crate) fn forget(
        &self,
        addr: u64,
        class: Class,
        freed_at: &'static Location<'static>,
    ) -> Result<AllocRecord, ForgetError> {
        self.change(|book| book.forget(addr, class, freed_at))
    }

    /// Whether this thread can have a scope open on this ledger.
    #[inline]
    pub(crate) fn may_be_scoped(&self) -> bool {
        // A thread sees at least what it did itself.
        self.scoped.load(Relaxed)
    }

    /// A scope's number and whole label, and the index of the next allocation.
    pub(crate) fn open_scope(&self, parent: Option<u32>, label: &str) -> (u32, Arc<str>, u64) {
        self.scoped.store(true, Relaxed);
        let mut core = self.core.lock();
        // Indices that lanes have drawn and not used are given up, so that whatever comes next is younger.
        self.close_lanes(&mut core);
        let (id, label) = core.book.open_scope(parent, label);
        (id, label, core.book.meter.next_index())
    }

    pub(crate) fn live_where(&self, fits: impl Fn(&AllocRecord) -> bool) -> Vec<LiveAllocation> {
        self.ask(|book| book.live_where(fits))
    }

    /// What was recorded at `index` or later, and how many live allocations are older; padding is left out.
    pub(crate) fn live_since(&self, index: u64) -> (Vec<LiveAllocation>, usize) {
        let is_new = |record: &AllocRecord| record.index >= index && record.kind != AllocKind::Padding;
        self.ask(|book| (book.live_where(is_new), book.count_before(index)))
    }

    pub(crate) fn snapshot(&self, at_peak: bool) -> Snapshot {
        // Names are put in when the lock is free again.
        let moment = self.ask(|book| book.moment(at_peak));
        moment.snapshot()
    }

    pub(crate) fn allocations(&self, fits: impl Fn(AllocKind) -> bool) -> Vec<(u64, AllocRecord)> {
        let live = self.live_where(|record| fits(record.kind));
        live.into_iter().map(|live| (live.addr, live.record)).collect()
    }
}

#[cfg(test)]
impl Shared {
    /// Deals out as if threads had met often.
    fn deal_out_now(&self) {
        // Not by way of the whole, which has the latest record in its page.
        let core = self.core.lock();
        let mut core = if core.dealt {
            drop(core);
            self.call_back()
        } else {
            core
        };
        self.deal_out(&mut core);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;

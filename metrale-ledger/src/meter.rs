// SPDX-License-Identifier: MIT OR Apache-2.0
//! The totals, their peaks, and the lanes in which threads count apart.
//!
//! A lane is a thread's own account: changes not yet in the totals, and how far these may go up. What all lanes may go up,
//! on top of the totals, never passes the peak so far; so no sum inside a lane can be a new peak, and nobody need look. A
//! change that might be one closes all lanes first, which brings every change into the totals, and is then judged exactly.

use crate::group::Sum;
use crate::page::{Flips, PageCounts};
use crate::snapshot::Totals;
use crate::{AllocKind, MisuseCounts, SMALL_ALLOC_CHUNK};

/// Creation indices that a lane draws at once.
const INDEX_BLOCK: u64 = 64;

/// Changes such as the last that fit in a plentiful part.
const PLENTY: i128 = 16;

/// A byte total as the API counts them: what no `usize` holds shows as the largest.
#[inline]
pub(crate) fn narrow(bytes: i128) -> u64 {
    match usize::try_from(bytes) {
        Ok(bytes) => bytes as u64,
        Err(_) => beyond(bytes < 0),
    }
}

#[cold]
fn beyond(negative: bool) -> u64 {
    if negative { 0 } else { usize::MAX as u64 }
}

fn page_bytes(pages: u64) -> i128 {
    i128::from(pages) * i128::from(SMALL_ALLOC_CHUNK)
}

/// How far a lane may go up after a change of its thread's, of what is free. A quarter where that is plenty: what is left for
/// the others is always as much again. Where it is scarce, no more than the change has just left free, which its thread is
/// the likeliest to want again; whatever it does not want would be missing to another, who then had to close all lanes. So
/// threads that allocate and free again and again right below the peak soon have what they need each.
fn grant(free: i128, change: i128) -> i64 {
    let part = free / 4;
    let granted = if part >= PLENTY * change.abs().max(1) { part } else { free.min(-change) };
    granted.clamp(0, i128::from(i64::MAX)) as i64
}

/// What is summed apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account {
    /// Device allocations smaller than a chunk.
    Small,
    /// All other device allocations.
    Large,
    Managed,
    Arena,
    Pinned,
    Padding,
}

impl Account {
    fn of(kind: AllocKind, bytes: usize) -> Self {
        match kind {
            AllocKind::Device if (bytes as u64) < SMALL_ALLOC_CHUNK => Self::Small,
            AllocKind::Device => Self::Large,
            AllocKind::Managed => Self::Managed,
            AllocKind::Arena => Self::Arena,
            AllocKind::Pinned => Self::Pinned,
            AllocKind::Padding => Self::Padding,
        }
    }

    fn is_sweepable(self) -> bool {
        matches!(self, Self::Small | Self::Large | Self::Managed)
    }
}

/// One allocation coming or going.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    account: Account,
    bytes: i128,
    count: i64,
    flips: Flips,
}

impl Change {
    pub(crate) fn of(kind: AllocKind, bytes: usize, comes: bool, flips: Flips) -> Self {
        let signed = bytes as i128;
        let (bytes_change, count) = if comes { (signed, 1) } else { (-signed, -1) };
        Self { account: Account::of(kind, bytes), bytes: bytes_change, count, flips }
    }

    pub(crate) fn bytes(&self) -> i128 {
        self.bytes
    }

    pub(crate) fn count(&self) -> i64 {
        self.count
    }
}

/// The totals that small device allocations change, ready to be read; exact as long as none passes 2^62.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Running {
    pub(crate) live_bytes: u64,
    /// Slack and live bytes together, and so for the chunks of small allocations, whatever else lies in them: what a small
    /// allocation that comes or goes leaves as it is. They may wrap; their difference to the live bytes, a signed one, does
    /// not.
    slack_and_live: u64,
    chunk_rest_and_live: u64,
    // Not beside the bytes: both would be read as one, which is slow right after each was written.
    pub(crate) live_count: u64,
    /// There is padding, so chunk slack is bounded by slack.
    padded: bool,
    pub(crate) resident_bytes: u64,
    pub(crate) arena_resident_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) peak_resident_bytes: u64,
}

impl Running {
    /// Slack and live bytes together.
    pub(crate) fn slack_and_live(&self) -> u64 {
        self.slack_and_live
    }

    /// Chunk slack and live bytes together.
    pub(crate) fn chunk_slack_and_live(&self) -> u64 {
        let beyond_live = |sum: u64| sum.wrapping_sub(self.live_bytes) as i64;
        if self.padded && beyond_live(self.slack_and_live) < beyond_live(self.chunk_rest_and_live) {
            self.slack_and_live
        } else {
            self.chunk_rest_and_live
        }
    }
}

/// Which totals changed beyond those that every change concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News(u8);

impl News {
    /// A page was touched for the first time, or left.
    pub(crate) const PAGES: Self = Self(1);
    /// There is a new peak of live bytes.
    pub(crate) const PEAK: Self = Self(2);
    /// Any of them: this was more than a small allocation.
    pub(crate) const ALL: Self = Self(4);

    #[inline]
    pub(crate) fn has(self, one: Self) -> bool {
        self.0 & one.0 != 0
    }

    #[inline]
    fn add(&mut self, one: Self) {
        self.0 |= one.0;
    }
}

/// The totals, exact where no lane is open.
pub(crate) struct Meter {
    running: Running,
    /// The running live bytes and count that the sums know of. Since then only small allocations came and went, and the
    /// difference is theirs.
    summed: (u64, u64),
    news: News,
    /// Counts the peaks.
    peaks: u64,
    kept_for: u64,
    next_index: u64,
    sums: [Sum; 6],
    pages: PageCounts,
    peak_bytes: i128,
    peak_resident: i128,
    /// The totals at the peak that `kept_for` counts.
    at_peak: Totals,
    /// What the open lanes may go up.
    granted_bytes: i128,
    granted_pages: i64,
    /// Bit l: lane l is open.
    open: u64,
    pub(crate) misuse: MisuseCounts,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            running: Running::default(),
            summed: (0, 0),
            news: News::default(),
            peaks: 0,
            kept_for: u64::MAX,
            next_index: 0,
            sums: Default::default(),
            pages: PageCounts::default(),
            peak_bytes: 0,
            peak_resident: 0,
            at_peak: Totals::default(),
            granted_bytes: 0,
            granted_pages: 0,
            open: 0,
            misuse: MisuseCounts::default(),
        }
    }

    pub(crate) fn next_index(&self) -> u64 {
        self.next_index
    }

    #[inline]
    pub(crate) fn draw_index(&mut self) -> u64 {
        let index = self.next_index;
        self.next_index += 1;
        index
    }

    /// The records and frees so far; approximately, where there is more than small allocations.
    pub(crate) fn operations(&self) -> u64 {
        // Each record drew an index, and what is no longer live was freed.
        (2 * self.next_index).wrapping_sub(self.running.live_count)
    }

    /// The number of peaks so far.
    #[inline]
    pub(crate) fn peaks(&self) -> u64 {
        self.peaks
    }

    pub(crate) fn pages(&self) -> PageCounts {
        self.pages
    }

    fn sum(&self, account: Account) -> Sum {
        let mut sum = self.sums[account as usize];
        if account == Account::Small {
            let (bytes, count) = self.not_summed();
            sum.change(bytes, count);
        }
        sum
    }

    /// What small allocations changed since the sums were brought up to date.
    fn not_summed(&self) -> (i128, i64) {
        let since = |now: u64, then: u64| now.wrapping_sub(then) as i64;
        let (bytes, count) = self.summed;
        (since(self.running.live_bytes, bytes).into(), since(self.running.live_count, count))
    }

    fn device(&self) -> Sum {
        let mut sum = self.sum(Account::Small);
        let large = self.sum(Account::Large);
        sum.change(large.bytes, large.count);
        sum
    }

    fn live_bytes(&self) -> i128 {
        self.device().bytes + self.sum(Account::Managed).bytes
    }

    /// How many live allocations of every kind but padding there are.
    pub(crate) fn count_of_own(&self) -> usize {
        let all = self.sums.iter().map(|sum| sum.count).sum::<i64>() + self.not_summed().1;
        (all - self.sum(Account::Padding).count) as usize
    }

    /// Whether the totals at the last peak are still to be kept, since none has changed so far.
    #[inline]
    pub(crate) fn is_at_peak(&self) -> bool {
        self.kept_for != self.peaks
    }

    /// Keeps these as the totals at the last peak, before anything changes.
    #[cold]
    pub(crate) fn keep_peak(&mut self, pages: PageCounts) {
        self.at_peak = self.totals(pages);
        self.kept_for = self.peaks;
    }

    /// The totals at the last peak, if they are not those of now.
    pub(crate) fn kept_peak(&self) -> Option<Totals> {
        (!self.is_at_peak()).then_some(self.at_peak)
    }

    /// Whether one that comes makes a new peak of live bytes.
    pub(crate) fn makes_peak(&self, kind: AllocKind, bytes: usize) -> bool {
        self.makes_peak_in(Account::of(kind, bytes), bytes as i128)
    }

    fn makes_peak_in(&self, account: Account, bytes: i128) -> bool {
        account.is_sweepable() && self.live_bytes() + bytes + self.granted_bytes > self.peak_bytes
    }

    /// Adds one change. Answers the number of the last peak, or none where this makes a new one. No lane may be open
    /// unless [`may_be_peak`](Self::may_be_peak) denied it. While allocations overlap, residency is not to be judged here.
    pub(crate) fn apply(&mut self, change: &Change, overlaps: bool) -> Option<u64> {
        let new_peak = change.count > 0 && self.makes_peak_in(change.account, change.bytes);
        if !new_peak && self.is_at_peak() {
            self.keep_peak(self.pages);
        }
        self.sums[change.account as usize].change(change.bytes, change.count);
        if new_peak {
            self.peak_bytes = self.live_bytes();
            self.peaks += 1;
        }
        self.add_pages(change.flips.into(), overlaps);
        (!new_peak).then_some(self.peaks)
    }

    /// Adds pages that were touched for the first time, or were left.
    pub(crate) fn add_pages(&mut self, pages: PageCounts, overlaps: bool) {
        self.pages.add(pages);
        if !overlaps {
            self.peak_resident = self.peak_resident.max(page_bytes(self.pages.device));
        }
        self.settle();
    }

    /// Brings the running totals up to date after what was not a small allocation on its own.
    fn settle(&mut self) {
        let (bytes, count) = self.not_summed();
        self.sums[Account::Small as usize].change(bytes, count);
        self.summed = (self.running.live_bytes, self.running.live_count);
        let totals = self.totals(self.pages);
        let with_live = |slack: i128| {
            let signed = slack.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
            totals.live_bytes.wrapping_add_signed(signed)
        };
        self.running = Running {
            live_bytes: totals.live_bytes,
            live_count: totals.live_count,
            slack_and_live: with_live(self.slack(self.pages)),
            chunk_rest_and_live: with_live(self.chunk_rest(self.pages)),
            padded: totals.padding_bytes > 0,
            resident_bytes: totals.resident_bytes,
            arena_resident_bytes: totals.arena_resident_bytes,
            peak_bytes: totals.peak_bytes,
            peak_resident_bytes: totals.peak_resident_bytes,
        };
        self.summed = (self.running.live_bytes, self.running.live_count);
        self.news.add(News::ALL);
    }

    /// Whether small allocations may be counted by the short way: with no lane open, and every total far from 64 bits.
    pub(crate) fn is_narrow(&self) -> bool {
        let (resident, missing) = (page_bytes(self.pages.device), -self.slack(self.pages));
        let arenas = page_bytes(self.pages.arena_only);
        let totals = [self.peak_bytes, self.peak_resident, self.live_bytes(), resident, missing, arenas];
        self.open == 0 && totals.iter().all(|total| *total < 1 << 62)
    }

    /// [`apply`](Self::apply) for a small device allocation that comes, by the short way.
    pub(crate) fn small_comes(&mut self, bytes: u32, flips: Flips) -> Option<u64> {
        let is_peak = self.running.live_bytes + u64::from(bytes) > self.running.peak_bytes;
        if !is_peak && self.is_at_peak() {
            self.keep_peak(self.pages);
        }
        self.small_more(bytes);
        self.flip(flips);
        if is_peak {
            self.note_peak();
        }
        (!is_peak).then_some(self.peaks)
    }

    /// [`apply`](Self::apply) for a small device allocation that goes, by the short way.
    pub(crate) fn small_goes(&mut self, bytes: u32, flips: Flips) -> u64 {
        if self.is_at_peak() {
            self.keep_peak(self.pages);
        }
        self.small_less(bytes);
        self.flip(flips);
        self.peaks
    }

    /// Whether so many more bytes make no new peak, and nothing of the last one is to be put aside first. Then a change of a
    /// small allocation is counted by [`small_more`](Self::small_more) and [`small_less`](Self::small_less) alone, but for
    /// [its flips](Self::flip).
    #[inline(always)]
    pub(crate) fn is_below_peak(&self, bytes: u32) -> bool {
        !self.is_at_peak() && self.running.live_bytes + u64::from(bytes) <= self.running.peak_bytes
    }

    #[inline(always)]
    pub(crate) fn small_more(&mut self, bytes: u32) {
        self.running.live_bytes += u64::from(bytes);
        self.running.live_count += 1;
    }

    #[inline(always)]
    pub(crate) fn small_less(&mut self, bytes: u32) {
        self.running.live_bytes -= u64::from(bytes);
        self.running.live_count -= 1;
    }

    /// Takes note of a new peak of live bytes.
    #[inline]
    fn note_peak(&mut self) {
        self.running.peak_bytes = self.running.live_bytes;
        self.peak_bytes = self.running.live_bytes.into();
        self.peaks += 1;
        self.news.add(News::PEAK);
    }

    /// [`flip`](Self::flip) for a page that only small device allocations touch, which comes to have any, or none. It is no
    /// news, but to be published at once.
    #[inline]
    pub(crate) fn flip_small_page(&mut self, comes: bool) {
        let signed = |number: u64| if comes { number } else { number.wrapping_neg() };
        self.pages.add(PageCounts { device: signed(1), arena_only: 0, small: signed(1) });
        self.flip_running(signed(SMALL_ALLOC_CHUNK), signed(SMALL_ALLOC_CHUNK));
    }

    /// Counts pages that the touch of a small allocation flipped.
    fn flip(&mut self, flips: Flips) {
        if flips.is_none() {
            return;
        }
        self.pages.add(flips.into());
        let page = |flip: i8| (i64::from(flip) << SMALL_ALLOC_CHUNK.trailing_zeros()) as u64;
        let arena_resident = &mut self.running.arena_resident_bytes;
        *arena_resident = arena_resident.wrapping_add(page(flips.arena_only));
        self.flip_running(page(flips.device), page(flips.small));
        self.news.add(News::PAGES);
    }

    /// Changes the running totals by bytes of device pages, and of such with small allocations; negative ones wrap.
    #[inline]
    fn flip_running(&mut self, device: u64, small: u64) {
        let running = &mut self.running;
        running.resident_bytes = running.resident_bytes.wrapping_add(device);
        running.slack_and_live = running.slack_and_live.wrapping_add(device);
        running.chunk_rest_and_live = running.chunk_rest_and_live.wrapping_add(small);
        if running.resident_bytes > running.peak_resident_bytes {
            running.peak_resident_bytes = running.resident_bytes;
            self.peak_resident = running.resident_bytes.into();
        }
    }

    pub(crate) fn reset_peak(&mut self, pages: PageCounts) {
        self.peak_bytes = self.live_bytes();
        self.peak_resident = page_bytes(pages.device);
        self.peaks += 1;
        self.settle();
    }

    /// What the pages hold beyond what was asked for; less than nothing where that passes the end of the address space.
    fn slack(&self, pages: PageCounts) -> i128 {
        page_bytes(pages.device) - self.device().bytes - self.sum(Account::Padding).bytes
    }

    /// What the chunks of small allocations hold beyond these.
    fn chunk_rest(&self, pages: PageCounts) -> i128 {
        page_bytes(pages.small) - self.sum(Account::Small).bytes
    }

    /// All totals, given the distinct pages of this moment.
    pub(crate) fn totals(&self, pages: PageCounts) -> Totals {
        let (device, managed) = (self.device(), self.sum(Account::Managed));
        let (arena, pinned) = (self.sum(Account::Arena), self.sum(Account::Pinned));
        let padding = self.sum(Account::Padding);
        let resident = page_bytes(pages.device);
        let slack = self.slack(pages);
        let chunk_rest = self.chunk_rest(pages);
        Totals {
            live_bytes: narrow(self.live_bytes()),
            live_count: (device.count + managed.count) as u64,
            resident_bytes: narrow(resident),
            slack_bytes: narrow(slack),
            // Padding in the chunks cannot be told from padding elsewhere, so it only bounds what is said of them.
            chunk_slack_bytes: narrow(if padding.bytes > 0 { chunk_rest.min(slack) } else { chunk_rest }),
            peak_bytes: narrow(self.peak_bytes),
            peak_resident_bytes: narrow(self.peak_resident),
            managed_bytes: narrow(managed.bytes),
            managed_count: managed.count as u64,
            arena_bytes: narrow(arena.bytes),
            arena_count: arena.count as u64,
            arena_resident_bytes: narrow(page_bytes(pages.arena_only)),
            pinned_bytes: narrow(pinned.bytes),
            pinned_count: pinned.count as u64,
            padding_bytes: narrow(padding.bytes),
            padding_count: padding.count as u64,
            misuse: self.misuse,
        }
    }

    /// Takes note of a resident peak that was counted anew.
    pub(crate) fn note_resident(&mut self, pages: PageCounts) {
        self.peak_resident = self.peak_resident.max(page_bytes(pages.device));
    }

    #[inline]
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news != News::default()
    }

    /// What changed since the last such question, besides live bytes and count, slack and chunk slack.
    #[inline]
    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    // Lanes.

    /// The lanes that are open, as bits.
    pub(crate) fn open_lanes(&self) -> u64 {
        self.open
    }

    /// Whether a change may make a new peak, of bytes or pages, for all that is known while lanes are open.
    pub(crate) fn may_be_peak(&self, change: &Change) -> bool {
        let pages = i128::from(self.pages.device) + i128::from(self.granted_pages);
        change.count > 0
            && (self.live_bytes() + self.granted_bytes + change.bytes > self.peak_bytes
                || (pages + i128::from(change.flips.device)) * i128::from(SMALL_ALLOC_CHUNK)
                    > self.peak_resident)
    }

    /// Opens lane `number` after a change of its thread's, with a part of what is free below the peaks.
    pub(crate) fn open(&mut self, number: usize, lane: &mut Lane, after: &Change) {
        let free_bytes = self.peak_bytes - self.live_bytes() - self.granted_bytes;
        let free_pages = self.peak_resident / i128::from(SMALL_ALLOC_CHUNK)
            - i128::from(self.pages.device)
            - i128::from(self.granted_pages);
        *lane = Lane {
            open: true,
            may_bytes: grant(free_bytes, after.bytes),
            may_pages: grant(free_pages, after.flips.device.into()),
            next_index: self.next_index,
            end_index: self.next_index + INDEX_BLOCK,
            since_look: lane.since_look,
            ..Lane::default()
        };
        self.next_index += INDEX_BLOCK;
        self.granted_bytes += i128::from(lane.may_bytes);
        self.granted_pages += lane.may_pages;
        self.open |= 1 << number;
    }

    /// Brings a lane's changes into the totals and closes it. Answers how many changes there were.
    pub(crate) fn close(&mut self, number: usize, lane: &mut Lane) -> u64 {
        if !lane.open {
            return 0;
        }
        if lane.ops > 0 && self.is_at_peak() {
            self.keep_peak(self.pages);
        }
        let since_look = lane.since_look;
        let lane = std::mem::replace(lane, Lane { since_look, ..Lane::default() });
        self.open &= !(1 << number);
        self.granted_bytes -= i128::from(lane.may_bytes);
        self.granted_pages -= lane.may_pages;
        self.sums[Account::Small as usize].change(lane.bytes.into(), lane.count);
        self.pages.add(lane.pages);
        self.settle();
        if lane.end_index == self.next_index {
            self.next_index = lane.next_index;
        }
        lane.ops
    }
}

/// What threads with this lane's number have counted apart.
#[derive(Default)]
pub(crate) struct Lane {
    open: bool,
    bytes: i64,
    count: i64,
    pages: PageCounts,
    may_bytes: i64,
    may_pages: i64,
    next_index: u64,
    end_index: u64,
    ops: u64,
    /// Changes since its thread last looked whether others are about, closed or not in between.
    pub(crate) since_look: u64,
}

impl Lane {
    /// Counts the change of a small device allocation here, if that is sure to make no peak. Answers the index of what comes.
    #[inline]
    pub(crate) fn apply(&mut self, change: &Change) -> Option<u64> {
        let bytes = self.bytes + change.bytes as i64;
        let pages = self.pages.device as i64 + i64::from(change.flips.device);
        let comes = change.count > 0;
        if !self.open
            || comes
                && (bytes > self.may_bytes || pages > self.may_pages || self.next_index == self.end_index)
        {
            return None;
        }
        self.bytes = bytes;
        self.count += change.count;
        self.pages.add(change.flips.into());
        self.ops += 1;
        self.since_look += 1;
        let index = self.next_index;
        self.next_index += u64::from(comes);
        Some(index)
    }
}

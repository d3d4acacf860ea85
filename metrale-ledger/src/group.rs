// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each line holds in each scope, under each tag, of each kind: now, and at the peak.
//!
//! A new peak only raises the number of peaks; a group keeps its value at the last peak by itself, when it changes for the
//! first time after it. So the peak's holders are known at any time without a copy of all groups and without a history.

use std::collections::HashMap;
use std::panic::Location;

use crate::AllocKind;
use crate::mixer::Mixer;

/// No scope, no tag.
pub(crate) const NO_LABEL: u32 = u32::MAX;

/// Who: a line, a scope, a tag, a kind. Labels are numbers of the book's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) site: &'static Location<'static>,
    pub(crate) scope: u32,
    pub(crate) tag: u32,
    pub(crate) kind: AllocKind,
}

impl Key {
    #[inline]
    pub(crate) fn new(site: &'static Location<'static>, scope: Option<u32>, kind: AllocKind) -> Self {
        Self { site, scope: scope.unwrap_or(NO_LABEL), tag: NO_LABEL, kind }
    }
}

/// By the address of the location: where a line has two, snapshots join them.
impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.site, other.site)
            && self.scope == other.scope
            && self.tag == other.tag
            && self.kind == other.kind
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_usize(address(self.site));
        state.write_u64(u64::from(self.scope) << 32 | u64::from(self.tag));
        state.write_u8(self.kind as u8);
    }
}

/// Bytes and number of allocations. Wide, since a caller may claim any size; signed, since a shard holds only changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) bytes: i128,
    pub(crate) count: i64,
}

impl Sum {
    #[inline]
    pub(crate) fn change(&mut self, bytes: i128, count: i64) {
        self.bytes = self.bytes.wrapping_add(bytes);
        self.count += count;
    }
}

/// A sum now and at the last peak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    now: Sum,
    then: Sum,
    /// The peak that `then` belongs to; for any later one `now` still holds.
    peak: u64,
}

impl Default for Held {
    fn default() -> Self {
        Self { now: Sum::default(), then: Sum::default(), peak: u64::MAX }
    }
}

impl Held {
    /// Changes the sum. `after` is the number of the last peak, or none where this very change makes a new one.
    #[inline]
    pub(crate) fn change(&mut self, bytes: i128, count: i64, after: Option<u64>) {
        if let Some(peak) = after
            && self.peak != peak
        {
            self.then = self.now;
            self.peak = peak;
        }
        self.now.change(bytes, count);
    }

    pub(crate) fn now(&self) -> Sum {
        self.now
    }

    pub(crate) fn at_peak(&self, peak: u64) -> Sum {
        if self.peak == peak { self.then } else { self.now }
    }
}

/// All groups a ledger has seen, numbered.
pub(crate) struct Groups {
    numbers: HashMap<Key, u32, Mixer>,
    list: Vec<(Key, Held)>,
    /// Groups of device memory without a tag that were asked for not long ago, each in the place of its line and scope.
    recent: [Recent; RECENT],
}

/// Places for groups that are found again without a map.
const RECENT: usize = 64;

/// Line, scope and number of a group of device memory without a tag.
#[derive(Clone, Copy, Default)]
struct Recent {
    /// The location's address; 0 where there is none.
    site: usize,
    scope: u32,
    number: u32,
}

impl Default for Groups {
    fn default() -> Self {
        Self { numbers: HashMap::default(), list: Vec::new(), recent: [Recent::default(); RECENT] }
    }
}

fn address(site: &'static Location<'static>) -> usize {
    std::ptr::from_ref(site).addr()
}

/// The place of a line and scope among the recent.
#[inline(always)]
fn recent_place(site: usize, scope: u32) -> usize {
    let both = site as u64 ^ u64::from(scope) << u32::BITS;
    (both.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - RECENT.trailing_zeros())) as usize
}

impl Groups {
    /// The number of a line's device memory without a tag.
    pub(crate) fn number_of_device(&mut self, site: &'static Location<'static>, scope: Option<u32>) -> u32 {
        self.recent_of_device(site, scope).unwrap_or_else(|| self.look_up_device(site, scope))
    }

    /// That number, if it was asked for not long ago.
    #[inline(always)]
    pub(crate) fn recent_of_device(
        &self,
        site: &'static Location<'static>,
        scope: Option<u32>,
    ) -> Option<u32> {
        let (site, scope) = (address(site), scope.unwrap_or(NO_LABEL));
        let recent = &self.recent[recent_place(site, scope)];
        (recent.site == site && recent.scope == scope).then_some(recent.number)
    }

    fn look_up_device(&mut self, site: &'static Location<'static>, scope: Option<u32>) -> u32 {
        let key = Key::new(site, scope, AllocKind::Device);
        let number = self.number(key);
        let site = address(site);
        self.recent[recent_place(site, key.scope)] = Recent { site, scope: key.scope, number };
        number
    }

    pub(crate) fn number(&mut self, key: Key) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.list.push((key, Held::default()));
        }
        number
    }

    #[inline]
    pub(crate) fn key(&self, number: u32) -> Key {
        self.list[number as usize].0
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> (Key, &mut Held) {
        let (key, held) = &mut self.list[number as usize];
        (*key, held)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Key, Held)> {
        self.list.iter()
    }
}

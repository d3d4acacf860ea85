// SPDX-License-Identifier: MIT OR Apache-2.0
//! A backend's red zones: which allocations have bands, where, and what is known of them.

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

use metrale_ledger::file_line;
use parking_lot::{Mutex, MutexGuard};

use super::scanner::Scanner;
use super::{
    Band, BandChange, BandLayout, BandTable, BandUpdate, CleanScan, Fill, Pattern, Quarantine, RedzoneConfig,
    ScanReport, Side, TableFull, TooLargeForBands, Violation, creation,
};

/// Violations that are kept to be asked for.
const KEPT_VIOLATIONS: usize = 256;
/// A warp checks a band, so freed memory is split into pieces of this many bytes.
const FREED_PIECE_BYTES: usize = 64 << 10;
/// What is in freed memory: one byte throughout, since a memset is the only fill that is fast.
const FREED: Pattern = Pattern::byte(238);

/// The state of all red zones of a backend. Off, it is a lock that nobody takes.
pub(crate) struct Zones {
    config: RedzoneConfig,
    state: Mutex<ZoneState>,
}

/// What the lock guards. A scan holds it from the first question to the last answer, so that no band goes back to the
/// driver while a kernel reads it.
pub(crate) struct ZoneState {
    /// All bands, and what the device's table does not know yet.
    pub(crate) table: BandTable<BandOwner>,
    /// Padded allocations by the caller's address, those in quarantine too: the driver does not use their addresses again.
    padded: HashMap<u64, Padded>,
    /// Freed ones, by the caller's address.
    quarantine: Quarantine<u64>,
    poison: Option<(u64, u64)>,
    /// What checks them.
    pub(crate) scanner: Scanner,
    /// Scans that looked at every band, and the last of them.
    scans: u64,
    last_scan: Option<(u64, Instant)>,
    recent: VecDeque<Violation>,
    violations: u64,
}

/// Whose a band is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BandOwner {
    /// The caller's address.
    pub(crate) address: u64,
    pub(crate) side: Side,
    index: u64,
    /// Where the piece begins in the band; other than 0 in freed memory only.
    offset: usize,
}

/// An allocation with bands.
#[derive(Clone, Debug)]
pub(crate) struct Padded {
    /// The driver's address.
    pub(crate) base: u64,
    pub(crate) layout: BandLayout,
    pub(crate) site: &'static Location<'static>,
    pub(crate) scope: Option<Arc<str>>,
    /// Whether it was freed and is in quarantine.
    pub(crate) freed: bool,
    index: u64,
    /// Scans before its bands were laid.
    born: u64,
    /// The poison that its bands were laid under: what is in them follows it, whatever came since.
    poison: Option<(u64, u64)>,
    slots: Vec<u32>,
}

/// What `alloc` is to ask the driver for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) layout: BandLayout,
    pub(crate) index: u64,
}

/// The status of the red zones of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedzoneStatus {
    /// Allocations with bands, those in quarantine not counted.
    pub allocations: usize,
    /// Bands of them, and pieces of freed memory, that a scan looks at.
    pub bands: usize,
    /// Freed allocations in quarantine.
    pub quarantined: usize,
    /// Their bytes, bands included.
    pub quarantine_bytes: u64,
    /// Scans that looked at every band.
    pub scans: u64,
    /// Violations found so far, by scans and by frees.
    pub violations: u64,
    /// Whether scans are made by one kernel launch; `None` before the first.
    pub by_kernel: Option<bool>,
}

impl Padded {
    /// The caller's address.
    pub(crate) fn address(&self) -> u64 {
        self.base.saturating_add(self.layout.front_bytes as u64)
    }

    /// Its bands: side, device address, bytes. Freed memory is one of them.
    pub(crate) fn bands(&self) -> impl Iterator<Item = (Side, u64, usize)> {
        let BandLayout { requested_bytes, front_bytes, back_bytes } = self.layout;
        let back = self.base.saturating_add(self.layout.back_offset() as u64);
        let freed = if self.freed { requested_bytes } else { 0 };
        [
            (Side::Front, self.base, front_bytes),
            (Side::Freed, self.address(), freed),
            (Side::Back, back, back_bytes),
        ]
        .into_iter()
        .filter(|&(_, _, bytes)| bytes > 0)
    }

    /// What the ledger has as padding: base and bytes.
    pub(crate) fn padding(&self) -> impl Iterator<Item = (u64, usize)> {
        let whole = self.freed.then_some((self.base, self.layout.total_bytes()));
        let bands = self.bands().filter(|_| !self.freed).map(|(_, address, bytes)| (address, bytes));
        bands.chain(whole)
    }

    fn violation(&self, side: Side, change: BandChange, last_scan: Option<(u64, Instant)>) -> Violation {
        let band_bytes = self.bands().find(|band| band.0 == side).map_or(0, |band| band.2);
        Violation {
            index: self.index,
            address: self.address(),
            bytes: self.layout.requested_bytes,
            site: self.site,
            scope: self.scope.clone(),
            side,
            band_bytes,
            change,
            last_clean: last_scan
                .filter(|&(number, _)| number > self.born)
                .map(|(number, at)| CleanScan { number, ago: at.elapsed() }),
        }
    }
}

/// What is in a band.
fn pattern_of(index: u64, side: Side, fill: Fill, poison: Option<(u64, u64)>) -> Pattern {
    match (side, poison) {
        (Side::Freed, _) => FREED,
        (_, Some((low, high))) => Pattern::poisoned(index, low, high),
        (_, None) => fill.pattern(index),
    }
}

impl Zones {
    pub(crate) fn new(config: RedzoneConfig) -> Self {
        let state = ZoneState {
            table: BandTable::new(),
            padded: HashMap::new(),
            quarantine: Quarantine::new(config.quarantine_bytes),
            poison: None,
            scanner: Scanner::new(config.scan_by),
            scans: 0,
            last_scan: None,
            recent: VecDeque::new(),
            violations: 0,
        };
        Self { config, state: Mutex::new(state) }
    }

    /// Counts an `alloc` of `bytes`, and says what it needs. Logs the backtrace that was asked for.
    #[inline]
    pub(crate) fn plan(&self, bytes: usize, site: &Location<'_>) -> Result<Plan, TooLargeForBands> {
        let index = creation::next_index();
        if self.config.trace_index == Some(index) {
            let trace = std::backtrace::Backtrace::force_capture();
            tracing::warn!("allocation {index} of {bytes} bytes is made at {}:\n{trace}", file_line(site));
        }
        Ok(Plan { layout: self.config.layout(bytes, index)?, index })
    }

    /// Whether any allocation may have bands.
    pub(crate) const fn is_on(&self) -> bool {
        self.config.band_bytes > 0
    }

    /// Whether freed memory is kept for a while.
    pub(crate) const fn quarantines(&self) -> bool {
        self.is_on() && self.config.quarantine_bytes > 0
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ZoneState> {
        self.state.lock()
    }

    /// An allocation that is about to get its bands.
    pub(crate) fn padded(
        &self,
        state: &ZoneState,
        base: u64,
        plan: Plan,
        site: &'static Location<'static>,
        scope: Option<Arc<str>>,
    ) -> Padded {
        let Plan { layout, index } = plan;
        let (born, poison) = (state.scans, state.poison);
        Padded { base, layout, site, scope, freed: false, index, born, poison, slots: Vec::new() }
    }

    /// The bands of an allocation with what is in them.
    pub(crate) fn laid(&self, padded: &Padded) -> Vec<(Side, u64, usize, Pattern)> {
        let of = |side| pattern_of(padded.index, side, self.config.fill, padded.poison);
        let with = |(side, address, bytes)| (side, address, bytes, of(side));
        padded.bands().map(with).collect()
    }

    /// Takes an allocation in whose bands are filled.
    pub(crate) fn insert(&self, state: &mut ZoneState, mut padded: Padded) -> Result<(), TableFull> {
        let (address, index) = (padded.address(), padded.index);
        for (side, start, bytes, pattern) in self.laid(&padded) {
            for offset in (0..bytes).step_by(if side == Side::Freed { FREED_PIECE_BYTES } else { bytes }) {
                let piece = (bytes - offset).min(if side == Side::Freed { FREED_PIECE_BYTES } else { bytes });
                let band = Band {
                    address: start.saturating_add(offset as u64),
                    // A band is 1 GiB at most, a piece less.
                    bytes: piece as u32,
                    pattern,
                };
                match state.table.insert(band, BandOwner { address, side, index, offset }, false) {
                    Ok(slot) => padded.slots.push(slot),
                    Err(full) => {
                        state.vacate(&padded.slots);
                        return Err(full);
                    }
                }
            }
        }
        state.padded.insert(address, padded);
        Ok(())
    }

    /// Begins poison, or moves it.
    pub(crate) fn poison(&self, state: &mut ZoneState, low: u64, high: u64) -> usize {
        state.poison = Some((low, high));
        state.padded.values_mut().for_each(|padded| padded.poison = state.poison);
        let fill = self.config.fill;
        state.table.repaint(|owner| pattern_of(owner.index, owner.side, fill, state.poison));
        let in_range = |owner: &BandOwner| owner.side != Side::Freed && (low..high).contains(&owner.index);
        state.table.iter().filter(|(_, _, owner)| in_range(owner)).count()
    }
}

impl ZoneState {
    /// Removes an allocation with its bands. The device's table is told before the next scan reads it.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Padded> {
        let mut padded = self.padded.remove(&address)?;
        let slots = std::mem::take(&mut padded.slots);
        self.vacate(&slots);
        Some(padded)
    }

    /// As [`remove`](Self::remove), for one that is not in quarantine.
    pub(crate) fn remove_live(&mut self, address: u64) -> Option<Padded> {
        if self.padded.get(&address).is_some_and(|padded| !padded.freed) {
            self.remove(address)
        } else {
            None
        }
    }

    fn vacate(&mut self, slots: &[u32]) {
        for &slot in slots {
            self.table.remove(slot);
        }
    }

    /// Whose band or freed memory an address lies in. Looks at every one of them.
    pub(crate) fn owner_at(&self, address: u64) -> Option<(&Padded, Side)> {
        self.padded.values().find_map(|padded| {
            let holds = |&(_, start, bytes): &(Side, u64, usize)| {
                address.checked_sub(start).is_some_and(|offset| offset < bytes as u64)
            };
            padded.bands().find(holds).map(|band| (padded, band.0))
        })
    }

    /// Puts a freed allocation, whose bands are inserted already, into quarantine; returns those that leave for it.
    pub(crate) fn quarantine(&mut self, padded: &Padded) -> Vec<u64> {
        let leaving = self.quarantine.push(padded.layout.total_bytes() as u64, padded.address());
        leaving.into_iter().map(|entry| entry.what).collect()
    }

    /// Removes at least `bytes` from quarantine, or all there is.
    pub(crate) fn release(&mut self, bytes: u64) -> Vec<u64> {
        self.quarantine.release(bytes).into_iter().map(|entry| entry.what).collect()
    }

    /// What is laid now stands under the poison of now, and no scan before has looked at it. Tells whether the poison is
    /// another than when it was laid first, so that it has to be laid again.
    pub(crate) fn renew(&self, padded: &mut Padded) -> bool {
        padded.born = self.scans;
        std::mem::replace(&mut padded.poison, self.poison) != self.poison
    }

    /// Notes a scan that looked at every band.
    pub(crate) fn scanned(&mut self) {
        self.scans += 1;
        self.last_scan = Some((self.scans, Instant::now()));
    }

    /// What changed bands come to, pieces of one put together, in order.
    pub(crate) fn violations_of(
        &self,
        changes: impl IntoIterator<Item = (BandOwner, BandChange)>,
    ) -> Vec<Violation> {
        let mut by_band: HashMap<(u64, Side), BandChange> = HashMap::new();
        for (owner, change) in changes {
            let change = change.shifted(owner.offset);
            by_band
                .entry((owner.address, owner.side))
                .and_modify(|before| *before = before.joined(change))
                .or_insert(change);
        }
        let violations = by_band.into_iter().filter_map(|((address, side), change)| {
            Some(self.padded.get(&address)?.violation(side, change, self.last_scan))
        });
        let mut report = ScanReport { violations: violations.collect(), ..ScanReport::default() };
        report.sort();
        report.violations
    }

    /// The violation of an allocation that was removed.
    pub(crate) fn violation(&self, padded: &Padded, side: Side, change: BandChange) -> Violation {
        padded.violation(side, change, self.last_scan)
    }

    /// Logs violations and keeps the last of them.
    pub(crate) fn report(&mut self, violations: &[Violation]) {
        for violation in violations {
            tracing::error!("{violation}");
            if self.recent.len() == KEPT_VIOLATIONS {
                self.recent.pop_front();
            }
            self.recent.push_back(violation.clone());
        }
        self.violations += violations.len() as u64;
    }

    pub(crate) fn recent(&self) -> Vec<Violation> {
        self.recent.iter().cloned().collect()
    }

    pub(crate) fn status(&self) -> RedzoneStatus {
        RedzoneStatus {
            allocations: self.padded.len() - self.quarantine.len(),
            bands: self.table.len(),
            quarantined: self.quarantine.len(),
            quarantine_bytes: self.quarantine.bytes(),
            scans: self.scans,
            violations: self.violations,
            by_kernel: self.scanner.is_by_kernel(),
        }
    }

    /// All changes that the device's table does not have, for those who have none.
    pub(crate) fn take_all_updates(&mut self) -> Vec<BandUpdate> {
        self.table.take_updates(usize::MAX)
    }
}

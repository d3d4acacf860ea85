// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans: every band looked at, what changed reported and restored; and poison.

use metrale_driver_sys::{CU_STREAM_CAPTURE_STATUS_NONE, stream_capture_status};

use super::ScanReport;
use super::pattern::BandChange;
use super::zones::{BandOwner, ZoneState};
use crate::backend::MetraleCudaBackend;
use crate::error::{BadArgument, Error, Remedy, Result};
use crate::graph::Reach;

impl MetraleCudaBackend {
    /// Looks at every band. What kept it from doing so is returned beside the report.
    pub(crate) fn scan(&self) -> Result<(ScanReport, Option<Error>)> {
        const DOING: &str = "scanning red zones";
        const ADVICE: &str = "scan before the capture begins, or end it first";
        if !self.zones().is_on() {
            let _bound = self.bound(DOING)?;
            return Ok((ScanReport::default(), None));
        }
        // In a lost context a report still says how many bands nobody has looked at.
        let sound = self.latch().sound(|| DOING.to_owned());
        if sound.is_ok() {
            let _bound = self.bound(DOING)?;
            self.outside_capture(Reach::ThreadOrStream(self.stream()), DOING, ADVICE)?;
            self.refuse_foreign_capture()?;
        }
        let mut state = self.zones().lock();
        let bands = state.table.len();
        if bands == 0 {
            sound?;
            state.scanned();
            return Ok((ScanReport::default(), None));
        }
        let sound = sound.map_err(Error::from);
        let changes = sound.and_then(|()| self.wait_for_known_work()).and_then(|()| self.changes(&mut state));
        match changes {
            Ok(changes) => {
                let violations = state.violations_of(changes);
                state.scanned();
                state.report(&violations);
                Ok((ScanReport { checked: bands, violations, ..ScanReport::default() }, None))
            }
            Err(error) => {
                let reason = Some(format!("{error:#}"));
                tracing::error!("{bands} red zones were not checked: {error:#}");
                Ok((ScanReport { not_checked: bands, reason, ..ScanReport::default() }, Some(error)))
            }
        }
    }

    /// The bands that changed, restored.
    fn changes(&self, state: &mut ZoneState) -> Result<Vec<(BandOwner, BandChange)>> {
        let ZoneState { table, scanner, .. } = state;
        match scanner.device_table(self)?.map(|device| device.check(self, table)) {
            Some(Ok(found)) => {
                let changes = found.into_iter().filter_map(|found| {
                    let (_, owner) = table.get(found.slot)?;
                    Some((*owner, found.change))
                });
                return Ok(changes.collect());
            }
            Some(Err(error)) => {
                let is_lost = error.remedy() == Remedy::Relaunch;
                // Its table is not to be trusted any more, nor what it was told.
                scanner.reset(self);
                table.forget_device();
                if is_lost {
                    return Err(error);
                }
                tracing::warn!("the scan by kernel failed, so bands are copied one by one: {error:#}");
            }
            None => {}
        }
        self.changes_by_copies(state)
    }

    fn changes_by_copies(&self, state: &mut ZoneState) -> Result<Vec<(BandOwner, BandChange)>> {
        self.fill_updates(state)?;
        let mut changes = Vec::new();
        for (_, band, owner) in state.table.iter() {
            let Some(change) = self.read_band(band.address, band.bytes as usize, band.pattern)? else {
                continue;
            };
            self.fill_band(band.address, band.bytes as usize, band.pattern)?;
            changes.push((*owner, change));
        }
        if !changes.is_empty() {
            self.legacy_stream_done("restoring red zones")?;
        }
        Ok(changes)
    }

    /// Fills the bands that are to be filled.
    pub(crate) fn paint(&self, state: &mut ZoneState) -> Result<()> {
        let ZoneState { table, scanner, .. } = state;
        match scanner.device_table(self)? {
            Some(device) => device.tell(self, table),
            None => {
                self.fill_updates(state)?;
                self.legacy_stream_done("poisoning red zones")
            }
        }
    }

    /// What a device's table would be told, done without one.
    fn fill_updates(&self, state: &mut ZoneState) -> Result<()> {
        let updates = state.take_all_updates();
        let mut to_fill = updates.iter().filter(|update| update.fill && update.band.bytes > 0);
        let filled = to_fill.try_for_each(|update| {
            self.fill_band(update.band.address, update.band.bytes as usize, update.band.pattern)
        });
        if filled.is_err() {
            state.table.return_updates(updates);
        }
        filled
    }

    /// A scan runs on the backend's own stream, which may have been set to capture without this crate.
    fn refuse_foreign_capture(&self) -> Result<(), BadArgument> {
        // SAFETY: the stream is the host's own, which lives as long as it.
        match unsafe { stream_capture_status(self.driver(), self.own_stream().raw()) } {
            Ok(status) if status != CU_STREAM_CAPTURE_STATUS_NONE => Err(BadArgument::new(
                "scanning red zones: the backend's own stream captures, begun outside this crate; end that capture first",
            )),
            // An error shows at the next call, with its own words.
            _ => Ok(()),
        }
    }
}

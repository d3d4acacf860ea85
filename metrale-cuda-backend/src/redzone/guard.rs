// SPDX-License-Identifier: MIT OR Apache-2.0
//! Red zones at the two ends of an allocation's life: bands laid before the caller gets it, checked before it is freed.
//!
//! ```text
//! alloc:  driver gives base -> ledger: the caller's bytes, then the bands as padding -> bands filled -> in the table
//! free:   ledger forgets -> out of the table -> bands checked -> quarantine, filled ─ later, checked again ─┐
//!                                                  `- without quarantine -> driver frees <──────────────────┘
//! ```

use std::panic::Location;

use metrale_driver_sys::DriverError;
use metrale_ledger::{AllocKind, Whois, file_line};
use metrale_registry::is_teardown_noop;

use super::pattern::{BandChange, Pattern};
use super::zones::{Padded, Plan};
use super::{Side, Violation};
use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{BadArgument, Error, LedgerConflict, Result};
use crate::raw_handles::{DevicePtr, StreamHandle};

/// Bytes copied at a time, to lay a pattern or to read a band; a multiple of 256, after which a pattern repeats.
const PIECE_BYTES: usize = 1 << 20;

impl MetraleCudaBackend {
    /// Lays the bands of an allocation that the driver has just made and the ledger has recorded. On an error nothing of them
    /// is left, and the caller has to free the memory.
    pub(crate) fn lay_bands(&self, base: u64, plan: Plan, site: &'static Location<'static>) -> Result<()> {
        let user = base.saturating_add(plan.layout.front_bytes as u64);
        let scope = match self.ledger_writer().whois(user) {
            Whois::Live { allocation, .. } => allocation.record.scope,
            _ => None,
        };
        let mut padded = self.zones().padded(&self.zones().lock(), base, plan, site, scope);
        self.record_padding(&padded)?;
        let laid = self.fill_bands(&padded, "filling red zones").and_then(|()| {
            let mut state = self.zones().lock();
            if state.renew(&mut padded) {
                // Poison came while they were filled, and is for this allocation too. Under the lock none comes again.
                self.fill_bands(&padded, "filling red zones")?;
            }
            Ok(self.zones().insert(&mut state, padded.clone())?)
        });
        if laid.is_err() {
            self.forget_padding(&padded);
        }
        laid
    }

    /// Removes the bands of a live allocation before its free. `None` where it has none.
    pub(crate) fn remove_bands(&self, address: u64) -> Option<Padded> {
        if !self.zones().is_on() {
            return None;
        }
        let padded = self.zones().lock().remove_live(address)?;
        self.forget_padding(&padded);
        Some(padded)
    }

    /// Checks the bands of an allocation that was removed, and reports what changed.
    pub(crate) fn check_bands(&self, padded: &Padded) {
        if let Err(error) = self.try_check_bands(padded) {
            tracing::error!(
                "the red zones of {:#x} from {} could not be checked before its free: {error:#}",
                padded.address(),
                padded.site
            );
        }
    }

    fn try_check_bands(&self, padded: &Padded) -> Result<()> {
        // A kernel under way may still write; the driver's own free would wait for it too.
        self.wait_for_known_work()?;
        let mut violations: Vec<Violation> = Vec::new();
        for (side, address, bytes, pattern) in self.zones().laid(padded) {
            if let Some(change) = self.read_band(address, bytes, pattern)? {
                violations.push(self.zones().lock().violation(padded, side, change));
            }
        }
        if !violations.is_empty() {
            self.zones().lock().report(&violations);
        }
        Ok(())
    }

    /// Frees an allocation that had bands: into quarantine where there is one, and otherwise to the driver.
    pub(crate) fn free_padded(&self, padded: &Padded) -> Result<(), DriverError> {
        self.check_bands(padded);
        if self.zones().quarantines() && self.quarantine(padded) {
            return Ok(());
        }
        self.driver_free(padded.base)
    }

    /// Restores the bands that a refused free had removed.
    pub(crate) fn restore_bands(&self, padded: Padded) {
        let restored = self.record_padding(&padded).and_then(|()| {
            let mut state = self.zones().lock();
            Ok(self.zones().insert(&mut state, padded)?)
        });
        if let Err(error) = restored {
            tracing::error!("an allocation lost its red zones: {error:#}");
        }
    }

    /// Keeps freed memory, filled. `false` where that is impossible: then the driver frees it.
    fn quarantine(&self, padded: &Padded) -> bool {
        let mut kept = padded.clone();
        kept.freed = true;
        let leaving = {
            let mut state = self.zones().lock();
            if kept.layout.total_bytes() as u64 > self.config().redzone.quarantine_bytes {
                return false;
            }
            // Filled under the lock in any case: nothing looks at it before.
            let _ = state.renew(&mut kept);
            let filled = self.fill_bands(&kept, "filling freed memory");
            let kept_padding = filled.and_then(|()| self.record_padding(&kept));
            if let Err(error) = kept_padding {
                tracing::warn!("{:#x} is freed without quarantine: {error:#}", kept.address());
                return false;
            }
            if let Err(error) = self.zones().insert(&mut state, kept.clone()) {
                self.forget_padding(&kept);
                tracing::warn!("{:#x} is freed without quarantine: {error}", kept.address());
                return false;
            }
            state.quarantine(&kept)
        };
        self.expel(leaving);
        true
    }

    /// Checks and frees what leaves the quarantine.
    fn expel(&self, leaving: Vec<u64>) {
        for address in leaving {
            let Some(padded) = self.zones().lock().remove(address) else { continue };
            self.forget_padding(&padded);
            self.check_bands(&padded);
            if let Err(error) = self.driver_free(padded.base) {
                tracing::error!("freed memory at {address:#x} could not leave the quarantine: {error}");
                // It still takes its pages. Nothing else is there, so this cannot fail.
                let _ = self.record_padding(&padded);
            }
        }
    }

    /// Frees the oldest memory in quarantine, where the driver has no more. Whether there was any.
    pub(crate) fn relieve_quarantine(&self) -> bool {
        if !self.zones().quarantines() {
            return false;
        }
        let leaving = self.zones().lock().release(1);
        let some = !leaving.is_empty();
        self.expel(leaving);
        some
    }

    /// Frees the quarantine and what the scans used, at the end. The context is current.
    pub(crate) fn close_zones(&self) {
        if !self.zones().is_on() {
            return;
        }
        let leaving = self.zones().lock().release(u64::MAX);
        self.expel(leaving);
        self.zones().lock().scanner.reset(self);
    }

    /// Refuses a copy or fill whose end begins in a red zone, or in freed memory in quarantine.
    pub(crate) fn refuse_redzone(
        &self,
        operation: &str,
        what: &str,
        ptr: DevicePtr,
    ) -> Result<(), BadArgument> {
        match self.redzone_at(ptr) {
            Some(zone) => Err(BadArgument::new(format!("{operation}: the {what} {ptr} lies {zone}"))),
            None => Ok(()),
        }
    }

    /// In whose red zone, or freed memory in quarantine, an address lies.
    pub(crate) fn redzone_at(&self, ptr: DevicePtr) -> Option<String> {
        if !self.zones().is_on() {
            return None;
        }
        let state = self.zones().lock();
        let (padded, side) = state.owner_at(ptr.0)?;
        let (address, bytes, site) = (padded.address(), padded.layout.requested_bytes, padded.site);
        let zone = match side {
            Side::Front => "in the red zone in front of",
            Side::Back => "in the red zone behind",
            Side::Freed => "in memory that was freed and is in quarantine:",
        };
        Some(format!("{zone} {address:#x} ({bytes} bytes, allocated at {})", file_line(site)))
    }

    /// Waits for the work queued so far on every stream this backend knows: the legacy one, its own, those it made or
    /// adopted. One that captures has run nothing and is left alone, because a wait would end the capture.
    pub(crate) fn wait_for_known_work(&self) -> Result<()> {
        const DOING: &str = "waiting for a stream before red zones are looked at";
        self.legacy_stream_done("looking at red zones")?;
        for stream in self.streams().live().into_iter().map(StreamHandle).chain([self.stream()]) {
            // One that another thread destroys meanwhile is left to its end: the driver lets its work finish, and a free
            // waits for that.
            let Ok(_held) = self.hold_stream(stream, DOING) else { continue };
            // SAFETY: the stream is held.
            if !unsafe { self.is_capturing_or_cannot_tell(stream) } {
                // SAFETY: takes a handle, which is held.
                unsafe { ask!(self.driver(), cuStreamSynchronize(stream.raw())) }
                    .doing(|| DOING.to_owned())?;
            }
        }
        Ok(())
    }

    /// Writes what is in the bands of an allocation, and waits until it does.
    fn fill_bands(&self, padded: &Padded, doing: &'static str) -> Result<()> {
        for (_, address, bytes, pattern) in self.zones().laid(padded) {
            self.fill_band(address, bytes, pattern)?;
        }
        self.legacy_stream_done(doing)
    }

    /// Writes a pattern; the legacy stream has passed it some time later.
    pub(crate) fn fill_band(&self, address: u64, bytes: usize, pattern: Pattern) -> Result<()> {
        const DOING: &str = "filling a red zone";
        if let Some(byte) = pattern.single_byte() {
            // SAFETY: no host memory is passed; the range is part of an allocation of this backend.
            return unsafe { ask!(self.driver(), cuMemsetD8_v2(address, byte, bytes)) }
                .doing(|| DOING.to_owned());
        }
        let mut piece = vec![0; bytes.min(PIECE_BYTES)];
        pattern.fill(&mut piece);
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            let length = (bytes - offset).min(PIECE_BYTES);
            let to = address.saturating_add(offset as u64);
            // SAFETY: the source has at least that many bytes, and is consumed before the call returns.
            unsafe { ask!(self.driver(), cuMemcpyHtoD_v2(to, piece.as_ptr().cast(), length)) }
                .doing(|| DOING.to_owned())?;
        }
        Ok(())
    }

    /// Reads a band and says what changed in it.
    pub(crate) fn read_band(
        &self,
        address: u64,
        bytes: usize,
        pattern: Pattern,
    ) -> Result<Option<BandChange>> {
        let mut piece = vec![0; bytes.min(PIECE_BYTES)];
        let mut seen: Option<BandChange> = None;
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            let length = (bytes - offset).min(PIECE_BYTES);
            let from = address.saturating_add(offset as u64);
            // SAFETY: the destination has at least that many bytes, filled before the call returns.
            unsafe { ask!(self.driver(), cuMemcpyDtoH_v2(piece.as_mut_ptr().cast(), from, length)) }
                .doing(|| "reading a red zone".to_owned())?;
            // A piece is a multiple of 256, so that the pattern begins anew in each.
            if let Some(change) = pattern.changed(&piece[..length]) {
                let change = change.shifted(offset);
                seen = Some(seen.map_or(change, |before| before.joined(change)));
            }
        }
        Ok(seen)
    }

    fn record_padding(&self, padded: &Padded) -> Result<()> {
        for (address, bytes) in padded.padding() {
            if let Err(misuse) = self.ledger_writer().record(address, bytes, AllocKind::Padding, padded.site)
            {
                self.forget_padding(padded);
                let reason = misuse.to_string();
                return Err(Error::from(LedgerConflict { addr: address, bytes, reason, not_freed: None }));
            }
        }
        Ok(())
    }

    fn forget_padding(&self, padded: &Padded) {
        for (address, _) in padded.padding() {
            // Not there only where recording it had failed.
            let _ = self.ledger_writer().forget(address, AllocKind::Padding);
        }
    }

    /// Frees what a sweep removed from the ledger, with its bands where it has some.
    pub(crate) fn free_swept(&self, address: u64) -> Result<(), DriverError> {
        match self.remove_bands(address) {
            Some(padded) => {
                self.check_bands(&padded);
                let answer = self.driver_free(padded.base);
                if answer.is_err_and(|error| !is_teardown_noop(error.status)) {
                    self.restore_bands(padded);
                }
                answer
            }
            None => self.driver_free(address),
        }
    }
}

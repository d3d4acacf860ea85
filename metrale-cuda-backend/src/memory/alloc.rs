// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocating and freeing device memory, with the ledger kept in step.
//!
//! ```text
//! alloc:  bound? -> not above the total? -> driver allocates -> ledger records -> bands laid -> DevicePtr
//!                                                 `- on any failure from here on the memory is freed
//! free:   ledger forgets (or says what is wrong) -> bands checked -> driver frees
//!                                                 `- refused: bound? the record is restored, marked
//! ```
//! Most small allocations take the short path of [`small`](super::small).

use std::panic::Location;

use metrale_driver_sys::{CU_MEM_ATTACH_GLOBAL, CUDA_ERROR_OUT_OF_MEMORY, DriverError, is_sticky};
use metrale_ledger::{AllocKind, ByteSize, ForgetError, RecordMisuse, file_line};
use metrale_registry::is_teardown_noop;

use crate::backend::MetraleCudaBackend;
use crate::binding::Bound;
use crate::call::{ask, failed};
use crate::error::{BadArgument, Error, LedgerConflict, Result, causes};
use crate::graph::{Reach, Unpinned};
use crate::memory::AllocLockGuard;
use crate::memory::{ArenaOwner, OwnedMemory};
use crate::raw_handles::DevicePtr;
use crate::redzone::BandLayout;

/// Why nothing is allocated in a capture.
pub(crate) const ALLOCATE_BEFORE: &str = "allocate before the capture begins, or on another thread";
/// Why nothing is freed in a capture.
pub(crate) const FREE_AFTER: &str = "free after the capture has ended, or on another thread";

/// What is being done, in errors.
pub(crate) const ALLOCATING: &str = "allocating device memory";
/// What is being done, in errors.
pub(crate) const FREEING: &str = "freeing device memory";

/// A free of what is not live, or not of this kind. The driver was not asked to free it and nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} called at {}: {cause}{}", file_line(site), place.as_ref().map_or_else(String::new, |place| format!("; it lies {place}")))]
#[non_exhaustive]
pub struct FreeError {
    /// Which call.
    pub call: &'static str,
    /// The line that called it.
    pub site: &'static Location<'static>,
    /// What is wrong, with the sites of the allocation and, for a double free, of the first free.
    pub cause: ForgetError,
    /// Where an address lies that the ledger has never known, if anybody knows: in a module's global, in a red zone.
    pub place: Option<String>,
}

causes! { FreeError: InvalidFree }

impl MetraleCudaBackend {
    /// Allocates memory of a kind and records it.
    pub(crate) fn alloc_kind(
        &self,
        bytes: usize,
        kind: AllocKind,
        site: &'static Location<'static>,
    ) -> Result<DevicePtr> {
        self.alloc_recorded(bytes, kind, site).map(|memory| memory.ptr())
    }

    /// [`alloc_kind`](Self::alloc_kind) with the index of the record.
    pub(crate) fn alloc_recorded(
        &self,
        bytes: usize,
        kind: AllocKind,
        site: &'static Location<'static>,
    ) -> Result<OwnedMemory> {
        // Every call of `alloc` counts, those that fail too: the same program gives the same indices.
        let plan = (kind == AllocKind::Device).then(|| self.zones().plan(bytes, site)).transpose();
        refuse_no_bytes(bytes, kind, site)?;
        let _bound = self.bound(ALLOCATING)?;
        self.outside_capture(Reach::Thread, ALLOCATING, ALLOCATE_BEFORE)?;
        // What no address reaches with its bands is more than any device has.
        let Ok(plan) = plan else {
            return Err(self.out_of_memory(bytes, usize::MAX, kind, site, None).into());
        };
        let layout = plan.map_or(BandLayout::bare(bytes), |plan| plan.layout);
        let driver_bytes = layout.total_bytes();
        // A driver may think long about what can never fit. Managed memory may: it migrates.
        if kind != AllocKind::Managed && driver_bytes as u64 > self.total_bytes() {
            return Err(self.out_of_memory(bytes, driver_bytes, kind, site, None).into());
        }
        let _moving = self.moves();
        let (locked, base) = self
            .ask_for_memory(driver_bytes, kind)
            .map_err(|error| self.alloc_error(error, bytes, kind, site))?;
        drop(locked);
        let addr = base.saturating_add(layout.front_bytes as u64);
        let index = self.record_alloc(base, addr, bytes, kind, site)?;
        if let Some(plan) = plan.filter(|plan| plan.layout.has_bands())
            && let Err(error) = self.lay_bands(base, plan, site)
        {
            // What kept the bands from being laid is the error that counts.
            let _ = self.ledger_writer().forget(addr, kind);
            if let Err(error) = self.driver_free(base) {
                tracing::error!("{driver_bytes} bytes at {base:#x} could not be freed: {error}");
                // As memory of the backend's own, which its drop frees.
                let _ = self.ledger_writer().record(base, driver_bytes, AllocKind::Padding, site);
            }
            return Err(error);
        }
        Ok(OwnedMemory::new(DevicePtr(addr), bytes, index))
    }

    /// Records what the driver has just allocated at `base`, and returns its creation index. Frees it where the ledger refuses
    /// it.
    pub(crate) fn record_alloc(
        &self,
        base: u64,
        addr: u64,
        bytes: usize,
        kind: AllocKind,
        site: &'static Location<'static>,
    ) -> Result<u64, LedgerConflict> {
        let recorded = self.ledger_writer().record(addr, bytes, kind, site);
        recorded.map_err(|misuse| self.refused_record(base, addr, bytes, &misuse))
    }

    /// The error for memory whose record is misuse; it is freed.
    pub(crate) fn refused_record(
        &self,
        base: u64,
        addr: u64,
        bytes: usize,
        misuse: &RecordMisuse,
    ) -> LedgerConflict {
        let not_freed = self.driver_free(base).err();
        LedgerConflict { addr, bytes, reason: misuse.to_string(), not_freed }
    }

    /// The driver's allocation, alone, and the lock under which it was made. Where the driver has no more, what waits to be freed is freed first: what owners gave up,
    /// then the quarantine.
    pub(super) fn ask_for_memory(
        &self,
        bytes: usize,
        kind: AllocKind,
    ) -> Result<(AllocLockGuard<'_>, u64), DriverError> {
        let ask = || {
            let locked = self.alloc_lock.lock();
            let mut addr = 0;
            if kind == AllocKind::Managed {
                // SAFETY: the result pointer is a local.
                unsafe { ask!(self.driver(), cuMemAllocManaged(&mut addr, bytes, CU_MEM_ATTACH_GLOBAL)) }?;
            } else {
                // SAFETY: the result pointer is a local.
                unsafe { ask!(self.driver(), cuMemAlloc_v2(&mut addr, bytes)) }?;
            }
            Ok::<_, DriverError>((locked, addr))
        };
        loop {
            match ask() {
                Err(error)
                    if error.status == CUDA_ERROR_OUT_OF_MEMORY
                        && (self.free_deferred() || self.relieve_quarantine()) => {}
                answer => return answer,
            }
        }
    }

    /// The error for an allocation that the driver refused.
    pub(crate) fn alloc_error(
        &self,
        error: DriverError,
        bytes: usize,
        kind: AllocKind,
        site: &'static Location<'static>,
    ) -> Error {
        if error.status == CUDA_ERROR_OUT_OF_MEMORY {
            self.out_of_memory(bytes, bytes, kind, site, Some(error)).into()
        } else {
            failed(
                error,
                format!("allocating {} of {kind} memory at {}", ByteSize::of(bytes), file_line(site)),
                None,
            )
        }
    }

    /// Removes memory from the ledger, then has the driver free it.
    #[track_caller]
    pub(crate) fn free_kind(
        &self,
        ptr: DevicePtr,
        kind: AllocKind,
        call: &'static str,
        owner: Option<ArenaOwner>,
    ) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let _bound = self.may_free(kind)?;
        let record = self.forget(ptr.0, kind, call, owner)?;
        let freed = self.free_forgotten(ptr, kind, record);
        if freed.is_err() && kind == AllocKind::Arena {
            self.owned_arenas().abandon(ptr.0);
        }
        freed
    }

    /// Refuses to free memory of this kind where that may not be done now on this thread.
    #[inline]
    pub(crate) fn may_free(&self, kind: AllocKind) -> Result<Option<Bound<'_>>> {
        let bound = if self.has_zones(kind) {
            // Bands are looked at in the context that is current.
            self.bound_to_free(FREEING)?
        } else {
            self.latch().sound(|| FREEING.to_owned())?;
            None
        };
        self.outside_capture(Reach::Thread, FREEING, FREE_AFTER)?;
        Ok(bound)
    }

    /// Whether memory of this kind may have bands.
    fn has_zones(&self, kind: AllocKind) -> bool {
        kind == AllocKind::Device && self.zones().is_on()
    }

    /// Has the driver free what was removed from the ledger.
    #[inline]
    pub(crate) fn free_forgotten(
        &self,
        ptr: DevicePtr,
        kind: AllocKind,
        record: Option<metrale_ledger::AllocRecord>,
    ) -> Result<()> {
        let _moving = self.moves();
        let Some(padded) = self.has_zones(kind).then(|| self.remove_bands(ptr.0)).flatten() else {
            // The address says whose memory it is, so which context is current matters only where the driver says no.
            return match self.driver_free(ptr.0) {
                Ok(()) => Ok(()),
                Err(error) => self.not_freed(error, ptr, record.as_ref(), FREEING),
            };
        };
        let answer = self.free_padded(&padded);
        if answer.is_err_and(|error| !is_teardown_noop(error.status)) {
            self.restore_bands(padded);
        }
        self.settle_free(answer, ptr.0, record.as_ref(), || format!("freeing {ptr}"))
    }

    /// What the driver's refusal to free means: perhaps no more than that this thread is not bound. Then it is asked again.
    #[cold]
    pub(crate) fn not_freed(
        &self,
        error: DriverError,
        ptr: DevicePtr,
        record: Option<&metrale_ledger::AllocRecord>,
        doing: &'static str,
    ) -> Result<()> {
        let elsewhere = !is_sticky(error.status) && !self.is_current();
        let bound = elsewhere.then(|| self.bound_to_free(doing).ok().flatten()).flatten();
        let answer = if bound.is_some() { self.driver_free(ptr.0) } else { Err(error) };
        self.settle_free(answer, ptr.0, record, || format!("freeing {ptr}"))
    }

    /// Removes an address from the ledger before the driver is asked: the driver may hand it to another thread at once.
    /// Refused for what a graph uses, and for an arena that another than `owner` owns.
    #[inline]
    #[track_caller]
    pub(crate) fn forget(
        &self,
        addr: u64,
        kind: AllocKind,
        call: &'static str,
        owner: Option<ArenaOwner>,
    ) -> Result<Option<metrale_ledger::AllocRecord>> {
        let site = Location::caller();
        let unpinned = self.unpinned(addr, kind, call, site)?;
        let owned = (kind == AllocKind::Arena)
            .then(|| self.owned_arenas().free_by(addr, owner, call, site))
            .transpose()?;
        if kind == AllocKind::Arena {
            self.claim_surviving(addr);
        }
        let forgotten = self.ledger_writer().forget(addr, kind);
        let record = self.unused(unpinned, forgotten, (addr, kind), call, site)?;
        if let Some(owned) = owned {
            owned.forgotten();
        }
        Ok(record)
    }

    /// Passes on what the ledger has just forgotten, or its error. Refused, and recorded again, where a capture came to use it.
    #[inline]
    pub(crate) fn unused(
        &self,
        unpinned: Unpinned<'_>,
        forgotten: Result<Option<metrale_ledger::AllocRecord>, ForgetError>,
        (addr, kind): (u64, AllocKind),
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Result<Option<metrale_ledger::AllocRecord>> {
        if let Ok(record) = &forgotten
            && let Err(pinned) = self.came_to_use(&unpinned, addr, kind, call, site)
        {
            self.ledger_writer().restore(addr, record.as_ref());
            return Err(pinned.into());
        }
        drop(unpinned);
        forgotten.map_err(|cause| self.not_forgotten(&cause, addr, call, site))
    }

    /// The error for what the ledger does not forget.
    #[cold]
    pub(crate) fn not_forgotten(
        &self,
        cause: &ForgetError,
        addr: u64,
        call: &'static str,
        site: &'static Location<'static>,
    ) -> Error {
        let is_foreign = matches!(cause, ForgetError::Foreign { .. });
        let place = if is_foreign { self.foreign_place(addr) } else { None };
        FreeError { call, site, cause: cause.clone(), place }.into()
    }

    /// Where an address lies that is on no ledger. Looks at every red zone and every global.
    #[cold]
    fn foreign_place(&self, addr: u64) -> Option<String> {
        if let Some(zone) = self.redzone_at(DevicePtr(addr)) {
            return Some(zone);
        }
        self.registry().modules().iter().find_map(|module| {
            module.globals.iter().find_map(|global| {
                let (at, bytes) = self.registry().device_symbol(module.name, global).ok()?;
                let is_in = addr.checked_sub(at).is_some_and(|offset| offset < bytes as u64);
                is_in.then(|| {
                    format!(
                        "in the global {global:?} of module {:?}, and is freed when that is unloaded",
                        module.name
                    )
                })
            })
        })
    }

    /// Finishes a free by the driver's answer: the record that was removed for it is restored where the driver refused.
    pub(crate) fn settle_free(
        &self,
        answer: Result<(), DriverError>,
        addr: u64,
        record: Option<&metrale_ledger::AllocRecord>,
        doing: impl FnOnce() -> String,
    ) -> Result<()> {
        match answer {
            Ok(()) => Ok(()),
            // The memory went with the context.
            Err(error) if is_teardown_noop(error.status) => Ok(()),
            Err(error) => {
                self.ledger_writer().restore(addr, record);
                Err(failed(error, doing(), record.map(|record| format!("it stays on the ledger: {record}"))))
            }
        }
    }

    /// The driver's free, alone.
    #[inline]
    pub(crate) fn driver_free(&self, addr: u64) -> Result<(), DriverError> {
        self.driver_free_locked(&self.alloc_lock.lock(), addr)
    }

    /// The driver's free, under a lock that is held.
    #[inline]
    pub(crate) fn driver_free_locked(
        &self,
        _locked: &AllocLockGuard<'_>,
        addr: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: no memory is passed; the driver checks the address.
        unsafe { ask!(self.driver(), cuMemFree_v2(addr)) }
    }
}

/// Refuses an allocation of nothing before the driver does, which only says "invalid argument".
pub(crate) fn refuse_no_bytes(bytes: usize, kind: AllocKind, site: &Location<'_>) -> Result<(), BadArgument> {
    if bytes > 0 {
        return Ok(());
    }
    Err(BadArgument::new(format!(
        "an allocation of 0 bytes of {kind} memory at {}: the driver allocates none; skip it, and use null for an empty \
         tensor",
        file_line(site)
    )))
}

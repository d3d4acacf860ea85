// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small allocations without red zones: the short way through `alloc` and `free`, for most of what an engine asks for.
//!
//! ```text
//! alloc:  small and plain? -> nothing lost or capturing? -> driver gives -> beside what is on the ledger? records -> DevicePtr
//!                                                                            `- no: bound? records -> DevicePtr, or back it goes
//! free:   nothing lost, capturing or pinned? -> ledger forgets -> driver frees
//! ```
//! Whatever a look here does not rule out takes the long way of [`alloc`](super::alloc), which says what is wrong. After a
//! call of the driver the processor's caches hold little of this crate, so each line of code or data that is fetched anew
//! costs as much as many instructions: both ways are kept to few of them, and what seldom happens stands apart.
//!
//! Asking the driver which context is current costs as much as the ledger does. So memory is asked for first: where its
//! address lies in a page that holds others of this backend, it came from this context, since a page belongs to one. Only
//! what lies in a page of its own, which costs the driver ten times as much, is asked about.

use std::panic::Location;

use anyhow::{Error, Result};
use metrale_driver_sys::{DriverError, is_sticky};
use metrale_ledger::{AllocKind, SMALL_ALLOC_CHUNK};

use super::alloc::{ALLOCATE_BEFORE, ALLOCATING, FREEING};
use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::config::BackendConfig;
use crate::gpu::DevicePtr;
use crate::graph::Reach;
use crate::parts::KEEPS_LEDGER;
use crate::redzone::count_alloc;

/// The most bytes of an allocation that takes the short way; 0 where none does: with red zones, with a creation index to be
/// traced, without a ledger.
pub(crate) fn small_most(config: &BackendConfig, total_bytes: u64) -> usize {
    let is_plain = KEEPS_LEDGER && config.redzone.band_bytes == 0 && config.redzone.trace_index.is_none();
    if is_plain { (SMALL_ALLOC_CHUNK - 1).min(total_bytes) as usize } else { 0 }
}

impl MetraleCudaBackend {
    /// See [`GpuBackend::alloc`](crate::GpuBackend::alloc).
    #[track_caller]
    pub fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        let site = Location::caller();
        // Nothing is not small: it comes out as the largest number.
        if bytes.wrapping_sub(1) < self.small_most() {
            self.take_small(bytes, site)
        } else {
            self.take(bytes, AllocKind::Device, site)
        }
    }

    /// See [`GpuBackend::free`](crate::GpuBackend::free).
    #[track_caller]
    pub fn free(&self, ptr: DevicePtr) -> Result<()> {
        let is_plain = self.small_most() > 0 && !ptr.is_null();
        if is_plain && self.is_quiet() && !self.seat().room.may_pin(ptr.0) {
            self.give_plain(ptr)
        } else {
            self.give(ptr, AllocKind::Device, "free")
        }
    }

    /// Whether the context is not known to be lost, and nothing captures.
    #[inline]
    fn is_quiet(&self) -> bool {
        self.context_fault().is_none() && !self.seat().room.is_capturing()
    }

    #[inline]
    fn take_small(&self, bytes: usize, site: &'static Location<'static>) -> Result<DevicePtr> {
        let is_quiet = self.is_quiet();
        // Behind what is read: an addition that other threads see holds later reads up.
        count_alloc();
        if !is_quiet {
            self.may_take_small()?;
        }
        let mut addr = 0;
        // SAFETY: the result pointer is a local.
        if let Err(error) = unsafe { ask!(self.driver(), cuMemAlloc_v2(&mut addr, bytes)) } {
            return Err(self.small_not_given(error, bytes, site));
        }
        if self.book().record_beside(addr, bytes, site) {
            Ok(DevicePtr(addr))
        } else {
            self.keep_alone(addr, bytes, site)
        }
    }

    /// Refuses where the context is lost, or this thread captures.
    #[cold]
    fn may_take_small(&self) -> Result<()> {
        self.latch().sound(|| ALLOCATING.to_owned())?;
        Ok(self.outside_capture(Reach::Thread, ALLOCATING, ALLOCATE_BEFORE)?)
    }

    /// What it means that the driver gave nothing: perhaps no more than that this thread is not bound.
    #[cold]
    fn small_not_given(&self, error: DriverError, bytes: usize, site: &'static Location<'static>) -> Error {
        let bound = if is_sticky(error.status) { Ok(()) } else { self.bound(ALLOCATING) };
        match bound {
            Ok(()) => self.not_given(error, bytes, AllocKind::Device, site),
            Err(not_bound) => not_bound,
        }
    }

    /// Writes down what lies in a page of its own, if it is this context's.
    #[cold]
    fn keep_alone(&self, addr: u64, bytes: usize, site: &'static Location<'static>) -> Result<DevicePtr> {
        if let Err(error) = self.bound(ALLOCATING) {
            // Another context's: back it goes, to where it came from.
            return Err(match self.give_to_driver(addr) {
                Ok(()) => error,
                Err(kept) => error.context(format!("{addr:#x} could not be given back: {kept}")),
            });
        }
        self.record_given(addr, addr, bytes, AllocKind::Device, site)?;
        Ok(DevicePtr(addr))
    }

    /// Takes memory without bands off the ledger, of whatever size, then has the driver free it.
    #[inline]
    #[track_caller]
    fn give_plain(&self, ptr: DevicePtr) -> Result<()> {
        // Read where it was written: moving a record costs as much as finding it.
        let forgotten = self.book().forget_device(ptr.0);
        let record = match &forgotten {
            Ok(record) => record,
            Err(cause) => return Err(self.not_forgotten(cause, ptr.0, "free", Location::caller())),
        };
        let _moving = self.moves(record.bytes);
        // The address says whose memory it is, so which context is current matters only where the driver says no.
        match self.give_to_driver(ptr.0) {
            Ok(()) => Ok(()),
            Err(error) => self.not_freed(error, ptr, Some(record), FREEING),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_red_zones_or_a_trace_concern_goes_the_long_way_and_so_does_what_is_not_small() {
        let plain = BackendConfig::default();
        let most = if KEEPS_LEDGER { SMALL_ALLOC_CHUNK as usize - 1 } else { 0 };
        assert_eq!(small_most(&plain, 141 << 30), most);
        assert_eq!(
            small_most(&plain, 1000),
            most.min(1000),
            "what is above the total is refused, the long way"
        );
        let (mut padded, mut traced) = (plain.clone(), plain);
        padded.redzone.band_bytes = 16;
        traced.redzone.trace_index = Some(0);
        assert_eq!([padded, traced].map(|config| small_most(&config, 141 << 30)), [0, 0]);
    }
}

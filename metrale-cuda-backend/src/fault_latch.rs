// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lost contexts: the check that finds out, and the latch that remembers why.
//!
//! ```text
//!   any driver call ── a status the context does not survive ──────────────┐
//!   launch or fill refused ── check: wait for the stream ── such a status ─┤
//!                                                                          v
//!                                            FaultLatch: first reason kept, logged once
//!                                                                          |
//!   every later call <── fails with that reason, the driver not asked ─────┘
//! ```
//! A fault belongs to a context, and the process has one context for each driver and device. So has it one latch: every
//! backend on the device shares it, and a context that is retained anew is as lost as it was. Software drivers have
//! latches of their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use metrale_driver_sys::{CUcontext, DriverApi, DriverError, is_sticky};
use metrale_registry::CudaHost;
use parking_lot::Mutex;

use crate::error::ContextLost;
use crate::fault_reason::FaultReason;

/// Remembers the first reason for which a device's context was lost.
///
/// One for each driver and device in a process. It never opens again: only a new process gets a sound context.
#[derive(Debug)]
pub struct FaultLatch {
    ordinal: usize,
    /// The primary context, 0 before anybody had it.
    context: AtomicU64,
    first: OnceLock<FaultReason>,
}

impl FaultLatch {
    fn new(ordinal: usize) -> Self {
        Self { ordinal, context: AtomicU64::new(0), first: OnceLock::new() }
    }

    /// The latch of a host's driver and device.
    #[must_use]
    pub fn of(host: &CudaHost) -> Arc<Self> {
        let latch = Self::at(&host.driver_arc(), host.ordinal());
        latch.context.store(host.context(), Ordering::Relaxed);
        latch
    }

    /// The latch of a driver and a device that may have no context yet.
    #[must_use]
    pub fn at(driver: &Arc<dyn DriverApi>, ordinal: usize) -> Arc<Self> {
        let mut latches = LATCHES.lock();
        // A weak handle keeps an address from being used again, so that a dropped driver is told from the next one.
        latches.retain(|entry| entry.driver.strong_count() > 0);
        let addr = address_of(driver.as_ref());
        let found = latches.iter().find(|entry| entry.is_of(addr) && entry.latch.ordinal == ordinal);
        if let Some(entry) = found {
            return Arc::clone(&entry.latch);
        }
        let latch = Arc::new(Self::new(ordinal));
        latches.push(DriverLatch { driver: Arc::downgrade(driver), latch: Arc::clone(&latch) });
        latch
    }

    /// Why the context is lost, or `None` while nothing is known of it. One atomic load.
    #[must_use]
    #[inline]
    pub fn reason(&self) -> Option<&FaultReason> {
        self.first.get()
    }

    /// Keeps a status that the context does not survive, logged where it is the first. Ignores any other status.
    pub(crate) fn trip(&self, driver: DriverError, after: Option<String>) {
        if !is_sticky(driver.status) {
            return;
        }
        let mut is_first = false;
        let reason = self.first.get_or_init(|| {
            is_first = true;
            FaultReason { ordinal: self.ordinal, driver, after }
        });
        if is_first {
            tracing::error!("{reason}; every later call on it fails: restart the process");
        }
    }

    /// Refuses to go on where the context is lost.
    #[inline]
    pub(crate) fn sound(&self, doing: impl FnOnce() -> String) -> Result<(), ContextLost> {
        match self.reason() {
            None => Ok(()),
            Some(first) => Err(lost(first, doing())),
        }
    }
}

#[cold]
fn lost(first: &FaultReason, doing: String) -> ContextLost {
    ContextLost { doing, driver: first.driver, first: Some(Box::new(first.clone())) }
}

/// A latch with its driver.
struct DriverLatch {
    driver: Weak<dyn DriverApi>,
    latch: Arc<FaultLatch>,
}

impl DriverLatch {
    fn is_of(&self, driver: usize) -> bool {
        self.driver.as_ptr().cast::<()>().addr() == driver
    }
}

/// The latches of this process. Those of dropped drivers are removed at the next look-up.
static LATCHES: Mutex<Vec<DriverLatch>> = Mutex::new(Vec::new());

pub(crate) fn address_of(driver: &dyn DriverApi) -> usize {
    core::ptr::from_ref(driver).cast::<()>().addr()
}

/// Passes an answer of the driver on, after a look at whether it tells of a lost context.
#[inline]
pub(crate) fn noted<T>(driver: &dyn DriverApi, answer: Result<T, DriverError>) -> Result<T, DriverError> {
    answer.map_err(|error| noted_error(driver, error))
}

#[cold]
fn noted_error(driver: &dyn DriverApi, error: DriverError) -> DriverError {
    if is_sticky(error.status) {
        trip_current(driver, error);
    }
    error
}

/// Trips the latch of the context that is current on this thread.
fn trip_current(driver: &dyn DriverApi, error: DriverError) {
    let mut context: CUcontext = 0;
    // SAFETY: the result pointer is a local.
    let is_known = unsafe { driver.cuCtxGetCurrent(&mut context) } == 0 && context != 0;
    let addr = address_of(driver);
    let latches = LATCHES.lock();
    let of_driver: Vec<_> = latches.iter().filter(|entry| entry.is_of(addr)).collect();
    let found = match &of_driver[..] {
        // A driver with one device leaves no doubt, even where it does not say which context is current.
        [only] if !is_known => Some(*only),
        several => several
            .iter()
            .copied()
            .find(|entry| is_known && entry.latch.context.load(Ordering::Relaxed) == context),
    }
    .map(|entry| Arc::clone(&entry.latch));
    drop(of_driver);
    drop(latches);
    // With no lock held: what logs may do anything.
    if let Some(latch) = found {
        latch.trip(error, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_driver_sim::{Profile, SimDriver};
    use metrale_driver_sys::DriverFn;

    fn driver() -> Arc<dyn DriverApi> {
        Arc::new(SimDriver::new(Profile::h200()))
    }

    const FAULT: DriverError = DriverError { function: DriverFn::cuStreamSynchronize, status: 700 };

    #[test]
    fn the_first_reason_stays() {
        let latch = FaultLatch::new(2);
        latch.trip(DriverError { function: DriverFn::cuMemAlloc_v2, status: 2 }, None);
        assert_eq!(latch.reason(), None, "out of memory is survived");
        latch.trip(FAULT, Some("a launch".to_owned()));
        latch.trip(DriverError { function: DriverFn::cuMemFree_v2, status: 719 }, None);
        let reason = latch.reason().unwrap();
        assert_eq!((reason.ordinal, reason.driver), (2, FAULT));
        let text = reason.to_string();
        assert!(
            text.contains("device 2") && text.contains("(700)") && text.contains("after a launch"),
            "{text}"
        );
        let refused = latch.sound(|| "allocating".to_owned()).unwrap_err();
        assert_eq!((refused.driver, refused.first.as_deref()), (FAULT, latch.reason()));
    }

    #[test]
    fn a_driver_and_a_device_have_one_latch_and_share_it_with_no_other() {
        let (one, two) = (driver(), driver());
        assert!(Arc::ptr_eq(&FaultLatch::at(&one, 0), &FaultLatch::at(&one, 0)));
        FaultLatch::at(&one, 0).trip(FAULT, None);
        assert!(FaultLatch::at(&one, 1).reason().is_none());
        assert!(FaultLatch::at(&two, 0).reason().is_none());
        assert!(FaultLatch::at(&one, 0).reason().is_some());
    }

    #[test]
    fn a_driver_that_is_gone_leaves_nothing_to_the_next() {
        for _ in 0..50 {
            let driver = driver();
            assert!(FaultLatch::at(&driver, 0).reason().is_none());
            FaultLatch::at(&driver, 0).trip(FAULT, None);
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory can be had: the driver's figure, the effective one, the cheap one.

use std::path::Path;
use std::time::Instant;

use metrale_driver_sys::{DriverApi, DriverError, attribute};
use metrale_registry::HostError;

use super::{
    Aged, CgroupLimit, EffectiveFree, FreeSituation, HostFigure, MemInfo, MemInfoError, MemoryInfo,
    PolledFree, effective_free,
};
use crate::backend::MetraleCudaBackend;
use crate::binding::Bound;
use crate::call::{Doing, ask};
use crate::error::Result;
use crate::graph::Reach;
use crate::memory::info::memory_info_of;

/// Questions to the driver before a figure is taken though the ledger changed meanwhile.
const TRIES: usize = 4;

/// Bytes that can be had on the device whose context is current on this thread: what the system's driver says is free, and
/// on an integrated GPU what the host has available where that is more
/// ([`effective_free_bytes`](super::effective_free_bytes)).
///
/// Does not block; some 7 µs, and on an integrated GPU the time that reading `/proc/meminfo` takes. Allowed during a capture.
///
/// # Errors
/// [`HostError::NoDriver`] without a driver; [`CallFailed`](crate::CallFailed) or [`ContextLost`](crate::ContextLost),
/// the latter also where no context is current on this thread.
pub fn cuda_free_memory_bytes() -> Result<u64> {
    let driver = metrale_driver_sys::system().map_err(HostError::NoDriver)?;
    free_bytes_of_current(&*driver, None)
        .doing(|| "asking for the free memory of this thread's device".to_owned())
}

/// The effective figure of the device whose context is current. Where it could not be asked whether the device is
/// integrated, it counts as discrete.
fn free_bytes_of_current(driver: &dyn DriverApi, meminfo: Option<&Path>) -> Result<u64, DriverError> {
    let info = memory_info_of(driver)?;
    let (mut device, mut integrated) = (0, 0);
    // SAFETY: the result pointer is a local.
    let asked = unsafe { ask!(driver, cuCtxGetDevice(&mut device)) }.and_then(|()| {
        // SAFETY: the result pointer is a local.
        unsafe { ask!(driver, cuDeviceGetAttribute(&mut integrated, attribute::INTEGRATED, device)) }
    });
    let integrated = asked.ok().map(|()| integrated != 0);
    let facts = FreeFacts { integrated, total_bytes: info.total_bytes, meminfo };
    // The driver has answered, so there is a figure.
    Ok(facts.effective(Some(info.free_bytes), None).map_or(info.free_bytes, |free| free.bytes))
}

/// What is known of the device without its driver, and where the host's figure is.
#[derive(Clone, Debug)]
pub(crate) struct FreeFacts<'a> {
    pub(crate) integrated: Option<bool>,
    pub(crate) total_bytes: u64,
    pub(crate) meminfo: Option<&'a Path>,
}

impl FreeFacts<'_> {
    /// The effective figure for what the driver said, if it said something. The limit is shown and changes nothing.
    pub(crate) fn effective(
        &self,
        driver_free_bytes: Option<u64>,
        cgroup_limit: Option<CgroupLimit>,
    ) -> Result<EffectiveFree, super::FreeUnknown> {
        effective_free(FreeSituation {
            integrated: self.integrated,
            total_bytes: Some(self.total_bytes),
            driver_free_bytes: driver_free_bytes.map(Aged::now),
            // On a discrete GPU it would only be shown, and reading the file costs more than asking the driver.
            host: if self.integrated == Some(true) { self.host_figure().map(Aged::now) } else { None },
            cgroup_limit,
        })
    }

    fn host_figure(&self) -> Option<HostFigure> {
        match read_meminfo(self.meminfo).and_then(|info| info.host_figure()) {
            Ok(figure) => Some(figure),
            Err(error) => {
                tracing::debug!("the host's free memory is not known: {error}");
                None
            }
        }
    }
}

/// What the host says of its memory, in the machine's own file or in another.
pub(crate) fn read_meminfo(path: Option<&Path>) -> Result<MemInfo, MemInfoError> {
    path.map_or_else(MemInfo::of_this_machine, MemInfo::read)
}

impl MetraleCudaBackend {
    /// The effective free memory, asked for seldom and corrected by the ledger in between.
    pub(crate) fn poll_effective(&self) -> Result<PolledFree> {
        let ledger = self.ledger_writer().ledger();
        let resident = || ledger.resident_bytes().saturating_add(ledger.arena_resident_bytes()) as u64;
        let mut refused = None;
        let mut poll = self.polling().0.lock();
        let mut polled = None;
        // What another thread allocates between the two figures would count twice until the next question.
        for _ in 0..TRIES {
            let before = resident();
            let mut was_asked = false;
            let now = poll.poll(Instant::now(), before, || {
                was_asked = true;
                let free = self.ask_effective(None).map_err(|error| refused = Some(error)).ok()?;
                Some(MemoryInfo { free_bytes: free.bytes, total_bytes: self.total_bytes() })
            });
            polled = now.or(polled);
            if !was_asked || refused.is_some() || resident() == before {
                break;
            }
            poll.forget();
        }
        match (polled, refused) {
            (Some(polled), _) => Ok(polled),
            (None, Some(error)) => Err(error.context("polling the free memory")),
            (None, None) => Err(super::FreeUnknown { integrated: Some(self.facts().integrated) }.into()),
        }
    }

    /// The effective figure, with a limit to be shown; the thread is known to be bound.
    pub(crate) fn ask_effective(&self, cgroup_limit: Option<CgroupLimit>) -> Result<EffectiveFree> {
        let answer = self.ask_memory_info();
        // On an integrated GPU the host knows where the driver does not answer.
        let free = self.free_facts().effective(answer.ok().map(|info| info.free_bytes), cgroup_limit);
        match (free, answer) {
            (Err(_), Err(error)) => Err(error).doing(|| "asking for the free memory".to_owned()),
            (free, _) => Ok(free?),
        }
    }

    pub(crate) fn free_facts(&self) -> FreeFacts<'_> {
        FreeFacts {
            integrated: Some(self.facts().integrated),
            total_bytes: self.total_bytes(),
            meminfo: self.config().meminfo_path.as_deref(),
        }
    }
}

impl MetraleCudaBackend {
    /// Refuses to have the driver asked for its figures on a thread that captures. The context is current until the answer is
    /// dropped.
    pub(crate) fn may_ask(&self, doing: &'static str) -> Result<Bound<'_>> {
        const ADVICE: &str = "ask before the capture begins, or on another thread";
        let bound = self.bound(doing)?;
        self.outside_capture(Reach::Thread, doing, ADVICE)?;
        Ok(bound)
    }

    /// The driver's figures; the thread is known to be bound.
    pub(crate) fn ask_memory_info(&self) -> Result<MemoryInfo, DriverError> {
        memory_info_of(self.driver())
    }
}

#[cfg(test)]
mod tests {
    use metrale_driver_sim::{FaultDriver, Profile, SimDriver};
    use metrale_driver_sys::DriverFn;
    use metrale_registry::CudaHost;
    use std::sync::Arc;

    use super::*;

    /// What [`cuda_free_memory_bytes`] does, on a driver of the test's.
    #[test]
    fn the_free_memory_of_the_current_device_is_the_effective_figure() {
        let path = std::env::temp_dir().join(format!("metrale-meminfo-current-{}", std::process::id()));
        std::fs::write(&path, "MemTotal: 127601452 kB\nMemAvailable: 100000000 kB\n").unwrap();
        let of = |profile: Profile, lost: Option<DriverFn>| {
            let driver: Arc<FaultDriver> = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(profile))));
            let host = CudaHost::acquire(driver.clone(), 0).unwrap();
            let total = host.facts().total_bytes;
            let mut hog = 0;
            // SAFETY: the result pointer is a local.
            unsafe { ask!(&*driver, cuMemAlloc_v2(&mut hog, (total - (30 << 30)) as usize)) }.unwrap();
            if let Some(function) = lost {
                driver.fail_every(function, 999);
            }
            let free = free_bytes_of_current(&*driver, Some(&path));
            driver.clear();
            (free, memory_info_of(&*driver).unwrap().free_bytes)
        };
        let (free, driver_free) = of(Profile::gb10(), None);
        assert!(driver_free < 30 << 30);
        assert_eq!(free, Ok(100_000_000 << 10));
        for lost in [None, Some(DriverFn::cuDeviceGetAttribute), Some(DriverFn::cuCtxGetDevice)] {
            let (free, driver_free) = of(Profile::h200(), lost);
            assert_eq!(free, Ok(driver_free), "{lost:?}");
        }
        for lost in [DriverFn::cuDeviceGetAttribute, DriverFn::cuCtxGetDevice] {
            let (free, driver_free) = of(Profile::gb10(), Some(lost));
            assert_eq!(free, Ok(driver_free), "not known to be integrated: {lost}");
        }
        assert!(of(Profile::gb10(), Some(DriverFn::cuMemGetInfo_v2)).0.is_err());
        std::fs::remove_file(&path).unwrap();
    }
}

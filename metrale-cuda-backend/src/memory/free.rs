// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory can be had: the driver's figure, the effective one, the cheap one.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use metrale_driver_sys::{DriverApi, DriverError};
use metrale_registry::HostError;
use parking_lot::Mutex;

use super::{
    Aged, CgroupLimit, EffectiveFree, FreePoll, FreeSituation, HostFigure, MemInfo, MemoryInfo, PolledFree,
    effective_free,
};
use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};

/// Questions to the driver before a figure is taken though the ledger changed meanwhile.
const TRIES: usize = 4;

/// How old the driver's figure may be in a cheap poll.
const POLL_PERIOD: Duration = Duration::from_millis(250);

/// Free bytes of the device whose context is current on this thread, as the system's driver says them.
///
/// Does not block; some 7 µs. Allowed during a capture.
///
/// # Errors
/// [`HostError::NoDriver`] without a driver; [`CallFailed`](crate::CallFailed) or [`ContextLost`](crate::ContextLost),
/// the latter also where no context is current on this thread.
pub fn cuda_free_memory_bytes() -> Result<u64> {
    let driver = metrale_driver_sys::system().map_err(HostError::NoDriver)?;
    let info =
        memory_info_of(&*driver).doing(|| "asking for the free memory of this thread's device".to_owned())?;
    Ok(info.free_bytes)
}

/// The figures of the device whose context is current.
pub(crate) fn memory_info_of(driver: &dyn DriverApi) -> Result<MemoryInfo, DriverError> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: the result pointers are locals.
    unsafe { ask!(driver, cuMemGetInfo_v2(&mut free, &mut total)) }?;
    Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
}

/// What a poll keeps from one question to the next.
#[derive(Debug)]
pub(crate) struct Polling(Mutex<FreePoll>);

impl Default for Polling {
    fn default() -> Self {
        Self(Mutex::new(FreePoll::new(POLL_PERIOD)))
    }
}

/// What is known of the device without its driver, and where the host's figure is.
#[derive(Clone, Debug)]
pub(crate) struct FreeFacts<'a> {
    pub(crate) integrated: bool,
    pub(crate) total_bytes: u64,
    pub(crate) meminfo: Option<&'a Path>,
}

impl FreeFacts<'_> {
    /// The effective figure for what the driver said, if it said something.
    pub(crate) fn effective(
        &self,
        driver_free_bytes: Option<u64>,
    ) -> Result<EffectiveFree, super::FreeUnknown> {
        effective_free(FreeSituation {
            integrated: Some(self.integrated),
            total_bytes: Some(self.total_bytes),
            driver_free_bytes: driver_free_bytes.map(Aged::now),
            // On a discrete GPU it would only be shown, and reading the file costs more than asking the driver.
            host: if self.integrated { self.host_figure().map(Aged::now) } else { None },
            cgroup_limit: if self.integrated { CgroupLimit::of_this_process() } else { None },
        })
    }

    fn host_figure(&self) -> Option<HostFigure> {
        let info = match self.meminfo {
            Some(path) => MemInfo::read(path),
            None => MemInfo::of_this_machine(),
        };
        match info.and_then(|info| info.host_figure()) {
            Ok(figure) => Some(figure),
            Err(error) => {
                tracing::debug!("the host's free memory is not known: {error}");
                None
            }
        }
    }
}

impl MetraleCudaBackend {
    /// See [`GpuBackend::free_memory`](crate::GpuBackend::free_memory).
    pub fn free_memory(&self) -> Result<u64> {
        Ok(self.effective_free()?.bytes)
    }

    /// See [`GpuBackend::device_free_memory`](crate::GpuBackend::device_free_memory).
    pub fn device_free_memory(&self) -> Result<u64> {
        Ok(self.memory_info()?.free_bytes)
    }

    /// See [`GpuBackend::total_memory`](crate::GpuBackend::total_memory).
    #[must_use]
    pub fn total_memory(&self) -> u64 {
        self.total_bytes()
    }

    /// See [`GpuBackend::effective_free`](crate::GpuBackend::effective_free).
    pub fn effective_free(&self) -> Result<EffectiveFree> {
        self.may_ask("asking for the free memory")?;
        match self.ask_memory_info() {
            Ok(info) => Ok(self.free_facts().effective(Some(info.free_bytes))?),
            // On an integrated GPU the host still knows.
            Err(error) => match self.free_facts().effective(None) {
                Ok(free) => Ok(free),
                Err(_) => Err(error).doing(|| "asking for the free memory".to_owned()),
            },
        }
    }

    /// See [`GpuBackend::poll_free_memory`](crate::GpuBackend::poll_free_memory).
    pub fn poll_free_memory(&self) -> Result<PolledFree> {
        self.may_ask("polling the free memory")?;
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
                self.ask_memory_info().inspect_err(|error| refused = Some(*error)).ok()
            });
            polled = now.or(polled);
            if !was_asked || refused.is_some() || resident() == before {
                break;
            }
            poll.forget();
        }
        match (polled, refused) {
            (Some(polled), _) => Ok(polled),
            (None, Some(error)) => Err(error).doing(|| "polling the free memory".to_owned()),
            (None, None) => Err(super::FreeUnknown { integrated: Some(self.facts().integrated) }.into()),
        }
    }

    pub(crate) fn free_facts(&self) -> FreeFacts<'_> {
        FreeFacts {
            integrated: self.facts().integrated,
            total_bytes: self.total_bytes(),
            meminfo: self.config().meminfo_path.as_deref(),
        }
    }
}

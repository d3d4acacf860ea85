// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend's watchdog: the decision machine of [`Watchdog`] on the backend's own figures.

use core::time::Duration;
use std::sync::{Arc, Weak};

use anyhow::Result;
use metrale_registry::CudaHost;

use super::free::{FreeFacts, memory_info_of};
use super::{LowMemoryHandler, Watchdog, WatchdogParts, WatchdogThread};
use crate::backend::MetraleCudaBackend;
use crate::error::FeatureOff;
use crate::parts::HAS_WATCHDOG;

/// Rows of the report that is printed when it fires.
const ROWS: usize = 20;

impl MetraleCudaBackend {
    /// See [`GpuBackend::spawn_oom_watchdog`](crate::GpuBackend::spawn_oom_watchdog).
    pub fn spawn_oom_watchdog(&self, threshold_mb: u64, interval: Duration) -> Result<WatchdogThread> {
        self.watch(threshold_mb, interval, None)
    }

    /// See [`GpuBackend::spawn_oom_watchdog_with`](crate::GpuBackend::spawn_oom_watchdog_with).
    pub fn spawn_oom_watchdog_with(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: LowMemoryHandler,
    ) -> Result<WatchdogThread> {
        self.watch(threshold_mb, interval, Some(handler))
    }

    fn watch(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: Option<LowMemoryHandler>,
    ) -> Result<WatchdogThread> {
        if !HAS_WATCHDOG {
            return Err(FeatureOff { feature: "watchdog" }.into());
        }
        let watchdog = Watchdog::new(threshold_mb, self.total_bytes())?;
        let reader = Reader {
            host: Arc::downgrade(self.host()),
            integrated: self.facts().integrated,
            total_bytes: self.total_bytes(),
            meminfo: self.config().meminfo_path.clone(),
        };
        let probe = self.ledger_probe();
        let parts = WatchdogParts {
            free_bytes: Box::new(move || reader.read()),
            report: Box::new(move || probe.report(ROWS, 0)),
            handler,
        };
        Ok(WatchdogThread::spawn(watchdog, interval, parts)?)
    }
}

/// Reads on the watchdog's thread, without holding what it watches.
struct Reader {
    host: Weak<CudaHost>,
    integrated: bool,
    total_bytes: u64,
    meminfo: Option<std::path::PathBuf>,
}

impl Reader {
    fn read(&self) -> Option<u64> {
        let host = self.host.upgrade()?;
        // Every time, because a handler or a driver may have changed what is current.
        let driver_free = host
            .bind_to_thread()
            .and_then(|()| memory_info_of(host.driver()))
            .ok()
            .map(|info| info.free_bytes);
        let facts = FreeFacts {
            integrated: self.integrated,
            total_bytes: self.total_bytes,
            meminfo: self.meminfo.as_deref(),
        };
        facts.effective(driver_free).ok().map(|free| free.bytes)
    }
}

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
    /// Starts the process's watchdog over this device's free memory, which ends the process: three readings in a row
    /// below `threshold_mb` MiB, taken every `interval`, print the ledger's report and exit with
    /// [`LOW_MEMORY_EXIT_CODE`](super::LOW_MEMORY_EXIT_CODE).
    ///
    /// A good reading in between starts the count anew, an unanswered one changes nothing. What is read is the
    /// [effective free memory](Self::effective_free). The watchdog keeps no context alive: when the device's last user
    /// is gone its readings go unanswered. Does not block. Allowed during a capture, where it goes on reading.
    ///
    /// # Errors
    /// [`WatchdogError`](super::WatchdogError): a threshold of 0 or above the device's total, an interval of 0 or above a
    /// minute, a process that has one already. [`FeatureOff`] without the feature `watchdog`.
    pub fn spawn_oom_watchdog(&self, threshold_mb: u64, interval: Duration) -> Result<WatchdogThread> {
        self.watch(threshold_mb, interval, None)
    }

    /// As [`spawn_oom_watchdog`](Self::spawn_oom_watchdog), and calls `handler`, once, instead of ending the process. The
    /// report is printed before. The handler runs on the watchdog's thread, to which the device's context is bound.
    ///
    /// # Errors
    /// As [`spawn_oom_watchdog`](Self::spawn_oom_watchdog).
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
        // Every time, for a handler or a driver may have changed what is current.
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

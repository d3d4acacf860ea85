// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend's watchdog: the decision machine of [`Watchdog`] on the backend's own figures.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use metrale_driver_sys::DriverApi;
use metrale_registry::{CudaHost, DeviceFacts};

use super::free::FreeFacts;
use super::info::memory_info_of;
use super::{LowMemoryHandler, Watchdog, WatchdogParts, WatchdogThread};
use crate::backend::MetraleCudaBackend;
use crate::builder::BackendBuilder;
use crate::error::{FeatureOff, Result};
use crate::features::HAS_WATCHDOG;

/// Rows of the report that is printed when it fires.
const ROWS: usize = 20;

/// Starts the process's watchdog on device 0 of the system's driver, before there is a backend or beside one. Otherwise as
/// [`BackendBuilder::spawn_oom_watchdog`], which takes another device, driver or handler.
///
/// # Errors
/// As [`BackendBuilder::spawn_oom_watchdog`].
pub fn spawn_oom_watchdog(threshold_mb: u64, interval: Duration) -> Result<WatchdogThread> {
    MetraleCudaBackend::builder().spawn_oom_watchdog(threshold_mb, interval, None)
}

impl BackendBuilder {
    /// Starts the process's watchdog for the device that a backend would be built on, before there is one: three readings in
    /// a row below `threshold_mb` MiB of free memory end the process, or call the handler. Makes no context and does not
    /// block.
    ///
    /// On an integrated GPU it reads the host's figure at once. On any GPU it asks the driver as soon as the process has a
    /// backend, or another user of the device's [`CudaHost`]; until then a discrete GPU gives no reading, which changes
    /// nothing. What it prints when it fires has no report of call sites: start it through
    /// [`GpuDiagnostics::spawn_oom_watchdog`](crate::GpuDiagnostics::spawn_oom_watchdog) for one.
    ///
    /// # Errors
    /// [`HostError`](crate::HostError) without a driver that starts, or without such a device;
    /// [`WatchdogError`](super::WatchdogError) for a threshold or an interval that makes no sense, and where the process has a
    /// watchdog; [`FeatureOff`] without the feature `watchdog`.
    pub fn spawn_oom_watchdog(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: Option<LowMemoryHandler>,
    ) -> Result<WatchdogThread> {
        check_feature()?;
        let driver = self.driver_or_system()?;
        let facts = DeviceFacts::of(&*driver, self.ordinal)?;
        let meminfo = self.config.as_ref().and_then(|config| config.meminfo_path.clone());
        let reader = Reader {
            host: HostSource::Looked { driver, ordinal: self.ordinal },
            facts: facts.clone(),
            meminfo,
        };
        let report =
            || "who holds the memory is not known: the watchdog was started without a backend".to_owned();
        spawn(threshold_mb, interval, reader, Box::new(report), handler)
    }
}

impl MetraleCudaBackend {
    pub(crate) fn watch(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: Option<LowMemoryHandler>,
    ) -> Result<WatchdogThread> {
        check_feature()?;
        let reader = Reader {
            host: HostSource::Backend(Arc::downgrade(self.host())),
            facts: self.facts().clone(),
            meminfo: self.config().meminfo_path.clone(),
        };
        let probe = self.ledger_probe();
        spawn(threshold_mb, interval, reader, Box::new(move || probe.report(ROWS, 0)), handler)
    }
}

const fn check_feature() -> Result<(), FeatureOff> {
    if HAS_WATCHDOG { Ok(()) } else { Err(FeatureOff { feature: "watchdog" }) }
}

fn spawn(
    threshold_mb: u64,
    interval: Duration,
    reader: Reader,
    report: Box<dyn FnOnce() -> String + Send>,
    handler: Option<LowMemoryHandler>,
) -> Result<WatchdogThread> {
    let watchdog = Watchdog::new(threshold_mb, reader.facts.total_bytes)?;
    let parts = WatchdogParts { free_bytes: Box::new(move || reader.read()), report, handler };
    Ok(WatchdogThread::spawn(watchdog, interval, parts)?)
}

/// Where the watchdog's thread finds a context to ask in, without holding it.
enum HostSource {
    /// The backend that started it.
    Backend(Weak<CudaHost>),
    /// Whoever has made the device ready by then.
    Looked { driver: Arc<dyn DriverApi>, ordinal: usize },
}

/// Reads on the watchdog's thread.
struct Reader {
    host: HostSource,
    facts: DeviceFacts,
    meminfo: Option<PathBuf>,
}

impl Reader {
    fn read(&self) -> Option<u64> {
        let host = match &self.host {
            // With its backend gone there is nothing to watch.
            HostSource::Backend(host) => Some(host.upgrade()?),
            HostSource::Looked { driver, ordinal } => CudaHost::existing(driver, *ordinal),
        };
        // Every time, because a handler or a driver may have changed what is current.
        let driver_free = host.and_then(|host| {
            host.bind_to_thread()
                .and_then(|()| memory_info_of(host.driver()))
                .ok()
                .map(|info| info.free_bytes)
        });
        let facts = FreeFacts {
            integrated: Some(self.facts.integrated),
            total_bytes: self.facts.total_bytes,
            meminfo: self.meminfo.as_deref(),
        };
        facts.effective(driver_free, None).ok().map(|free| free.bytes)
    }
}

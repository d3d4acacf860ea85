// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuDiagnostics`].

use core::time::Duration;

use metrale_ledger::LedgerProbe;

use crate::error::Result;
use crate::memory::{Account, LowMemoryHandler, WatchdogThread};
use crate::raw_handles::{DevicePtr, StreamHandle};
use crate::redzone::{RedzoneStatus, ScanReport, Violation};
use crate::timing::{SpanHarvest, TimingSpan};

/// What is live and whose it is: the ledger's reads, the account, red zones, the watchdog, spans of device time.
pub trait GpuDiagnostics: Send + Sync {
    /// Bytes on the ledger: live device and managed allocations, as callers asked for them. A few atomic loads.
    fn live_bytes(&self) -> usize;

    /// Every live device and managed allocation: address, bytes, and `file:line` of who allocated it.
    fn live_allocations(&self) -> Vec<(DevicePtr, usize, String)>;

    /// Bytes of the 2 MiB chunks that small allocations touch, less their own bytes.
    fn chunk_slack_bytes(&self) -> usize;

    /// Bytes the driver keeps for the ledger's device allocations: the 2 MiB pages they touch. A few atomic loads.
    fn resident_bytes(&self) -> usize;

    /// A clonable handle that reads the same ledger, for a reader that cannot hold the backend.
    fn ledger_probe(&self) -> LedgerProbe;

    /// The ledger as text: up to `top_n` call sites of at least `min_mb` MiB each, largest first, then files and scopes; then
    /// a line for each graph.
    fn alloc_report(&self, top_n: usize, min_mb: usize) -> String;

    /// Starts the ledger's peaks anew from what is live now, so that the next [`peak_snapshot`] is of a phase: a request, or
    /// all after the load. Does not block.
    ///
    /// [`peak_snapshot`]: LedgerProbe::peak_snapshot
    fn reset_peak(&self);

    /// The account: the driver's used bytes as a sum of named terms, each measured, modelled or unknown, and a signed
    /// remainder that closes it. Does not block; some 7 µs and a walk over the ledger. Refused on a thread that captures.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn account(&self) -> Result<Account>;

    /// Starts the process's watchdog over this device's free memory, which ends the process: three readings in a row
    /// below `threshold_mb` MiB, taken every `interval`, print the ledger's report and exit with
    /// [`LOW_MEMORY_EXIT_CODE`](crate::memory::LOW_MEMORY_EXIT_CODE).
    ///
    /// A good reading in between starts the count anew, an unanswered one changes nothing. What is read is the
    /// [effective free memory](crate::GpuDevice::effective_free). The watchdog keeps no context alive: when the device's last user
    /// is gone its readings go unanswered. Does not block. Allowed during a capture, where it goes on reading.
    ///
    /// # Errors
    /// [`WatchdogError`](crate::memory::WatchdogError): a threshold of 0 or above the device's total, an interval of 0 or above a
    /// minute, a process that has one already. [`FeatureOff`](crate::FeatureOff) without the feature `watchdog`.
    fn spawn_oom_watchdog(&self, threshold_mb: u64, interval: Duration) -> Result<WatchdogThread>;

    /// As [`spawn_oom_watchdog`](Self::spawn_oom_watchdog), and calls `handler`, once, instead of ending the process. The
    /// report is printed before. The handler runs on the watchdog's thread, to which the device's context is bound.
    ///
    /// # Errors
    /// As [`spawn_oom_watchdog`](Self::spawn_oom_watchdog).
    fn spawn_oom_watchdog_with(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: LowMemoryHandler,
    ) -> Result<WatchdogThread>;

    /// Looks at every red zone, and returns how many bands were written to. Each is logged at ERROR with its owner's line,
    /// scope and creation index, what changed and since when, and is filled again. 0 without red zones.
    ///
    /// Blocking: waits for the legacy stream, the backend's own and those of [`create_stream`](crate::GpuStreams::create_stream) that do
    /// not capture; then one kernel launch checks all bands, or copies do where there is no kernel. Refused on a thread that
    /// captures, and while the backend's own stream does.
    ///
    /// # Errors
    /// What kept it from looking, such as [`ContextLost`](crate::ContextLost): then nothing is known of any band.
    fn scan_redzones(&self) -> Result<usize>;

    /// [`scan_redzones`](Self::scan_redzones) with everything it found. Bands that could not be looked at are counted as not
    /// checked, with the reason, and are no error.
    ///
    /// # Errors
    /// [`Capturing`](crate::Capturing) on a thread that captures or while the backend's
    /// own stream does, [`BadArgument`](crate::BadArgument) where that was begun outside this crate, and
    /// [`ContextLost`](crate::ContextLost) where there is no band to count.
    fn scan_redzones_report(&self) -> Result<ScanReport>;

    /// Fills the bands of allocations with a creation index in `low..high` with 0xEE and all others with zeros, those of
    /// later allocations too, and returns how many bands are poisoned. A result that changes with the range reads past
    /// the end of an allocation inside it. Scans first, so that nothing written so far is lost, and blocks as a scan does.
    ///
    /// # Errors
    /// As [`scan_redzones`](Self::scan_redzones).
    fn poison_redzones(&self, low: u64, high: u64) -> Result<usize>;

    /// The violations found last, by scans and by frees, up to 256 of them, oldest first.
    fn redzone_violations(&self) -> Vec<Violation>;

    /// The status of the red zones.
    fn redzone_status(&self) -> RedzoneStatus;

    /// Begins a span on a stream: an event after what is queued there so far. Does not block. While spans are switched
    /// off, as they are at first, it costs one relaxed load and times nothing; nor does it during a capture of the stream,
    /// or without the feature `timing`.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use metrale_cuda_backend::MetraleCudaBackend;
    /// # use metrale_driver_sim::{Profile, SimDriver};
    /// # let backend = MetraleCudaBackend::builder().driver(Arc::new(SimDriver::new(Profile::h200()))).build()?;
    /// # let data = backend.alloc(1 << 20)?;
    /// let spans = metrale_telemetry::run_metrics::process().spans();
    /// spans.set_enabled(true);
    /// let span = backend.span("clear", backend.stream())?;
    /// backend.memset_async(data, 0, 1 << 20, backend.stream())?;
    /// span.end()?;
    /// // Later, as often as convenient: what has passed is read, nothing is waited for.
    /// # backend.synchronize_stream(backend.stream())?;
    /// assert_eq!(backend.harvest_spans()?.read, 1);
    /// assert_eq!(&*spans.rows()[0].name, "clear");
    /// # backend.free(data)?;
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    fn span(&self, name: &str, stream: StreamHandle) -> Result<TimingSpan<'_>>;

    /// Adds the times of all spans that have passed to the sums in [`metrale_telemetry::run_metrics`]. Does not block:
    /// asks for events and waits for none. Allowed during a capture, whose spans are not recorded.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says.
    fn harvest_spans(&self) -> Result<SpanHarvest>;
}

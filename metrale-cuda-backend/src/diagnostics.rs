// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuDiagnostics`] for [`MetraleCudaBackend`].

use core::time::Duration;

use metrale_ledger::{LedgerProbe, file_line};

use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::gpu::{GpuDiagnostics, GpuGraphs};
use crate::memory::{Account, LowMemoryHandler, WatchdogThread};
use crate::raw_handles::{DevicePtr, StreamHandle};
use crate::redzone::{RedzoneStatus, ScanReport, Violation};
use crate::timing::{SpanHarvest, TimingSpan};

impl GpuDiagnostics for MetraleCudaBackend {
    fn live_bytes(&self) -> usize {
        self.ledger_writer().ledger().live_bytes()
    }

    fn live_allocations(&self) -> Vec<(DevicePtr, usize, String)> {
        let live = self.ledger_writer().ledger().live_allocations().into_iter();
        live.map(|(addr, record)| (DevicePtr(addr), record.bytes, file_line(record.site))).collect()
    }

    fn chunk_slack_bytes(&self) -> usize {
        self.ledger_writer().ledger().chunk_slack_bytes()
    }

    fn resident_bytes(&self) -> usize {
        self.ledger_writer().ledger().resident_bytes()
    }

    fn ledger_probe(&self) -> LedgerProbe {
        self.ledger_writer().ledger().probe()
    }

    fn alloc_report(&self, top_n: usize, min_mb: usize) -> String {
        let mut report = self.ledger_writer().ledger().report(top_n, min_mb);
        for graph in self.graphs() {
            report.push_str(&format!("{graph}\n"));
        }
        report
    }

    fn reset_peak(&self) {
        self.ledger_writer().ledger().reset_peak();
    }

    fn account(&self) -> Result<Account> {
        let _bound = self.may_ask("making an account of the memory")?;
        let (used_bytes, totals) = self.one_moment()?;
        Ok(Account::close(used_bytes, self.terms(&totals))?)
    }

    fn spawn_oom_watchdog(&self, threshold_mb: u64, interval: Duration) -> Result<WatchdogThread> {
        self.watch(threshold_mb, interval, None)
    }

    fn spawn_oom_watchdog_with(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: LowMemoryHandler,
    ) -> Result<WatchdogThread> {
        self.watch(threshold_mb, interval, Some(handler))
    }

    fn scan_redzones(&self) -> Result<usize> {
        match self.scan()? {
            (report, None) => Ok(report.violations.len()),
            (report, Some(error)) => {
                Err(error.context(format!("{} red zones were not checked", report.not_checked)))
            }
        }
    }

    fn scan_redzones_report(&self) -> Result<ScanReport> {
        self.scan().map(|(report, _)| report)
    }

    fn poison_redzones(&self, low: u64, high: u64) -> Result<usize> {
        // What was written before would be painted over.
        self.scan_redzones()?;
        let mut state = self.zones().lock();
        let poisoned = self.zones().poison(&mut state, low, high);
        self.paint(&mut state)?;
        Ok(poisoned)
    }

    fn redzone_violations(&self) -> Vec<Violation> {
        self.zones().lock().recent()
    }

    fn redzone_status(&self) -> RedzoneStatus {
        self.zones().lock().status()
    }

    fn span(&self, name: &str, stream: StreamHandle) -> Result<TimingSpan<'_>> {
        self.begin_span(name, stream)
    }

    fn harvest_spans(&self) -> Result<SpanHarvest> {
        self.read_spans()
    }
}

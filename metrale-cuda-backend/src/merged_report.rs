// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MergedReport`]: the ledgers of several backends as one report, device by device.

use core::fmt;
use std::collections::BTreeMap;

use metrale_ledger::{ByteSize, Snapshot};

use crate::gpu::GpuBackend;

/// One backend's ledger at the moment of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLedger {
    /// The backend's device.
    pub ordinal: usize,
    /// Its ledger.
    pub snapshot: Snapshot,
}

/// The ledgers of several backends at one time each, sorted by device. Displays as a sum over all devices and then each
/// device's own report.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{MergedReport, MetraleCudaBackend};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let driver = Arc::new(SimDriver::builder().device(Profile::h200()).device(Profile::rtx()).build());
/// # let on = |ordinal| MetraleCudaBackend::builder().driver(driver.clone()).ordinal(ordinal).build();
/// # let (first, second) = (on(0)?, on(1)?);
/// let ptr = second.alloc(3 << 20)?;
/// let report = MergedReport::of(&[&first, &second]);
/// assert_eq!((report.live_bytes(), report.resident_bytes()), (3 << 20, 4 << 20));
/// assert!(report.to_string().contains("device 1"));
/// # second.free(ptr)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergedReport {
    /// One entry for each backend, by ordinal, those of one device in the order they were given.
    pub ledgers: Vec<DeviceLedger>,
    /// Call sites in the text of each device.
    pub top_n: usize,
    /// The smallest call site in the text, in MiB.
    pub min_mb: usize,
}

impl MergedReport {
    /// The ledgers as they are now, each of one moment; the ten largest call sites in the text. Needs no context and asks
    /// no driver; allowed during a capture.
    #[must_use]
    pub fn of(backends: &[&dyn GpuBackend]) -> Self {
        let mut ledgers: Vec<_> = backends
            .iter()
            .map(|backend| DeviceLedger {
                ordinal: backend.ordinal(),
                snapshot: backend.ledger_probe().snapshot(),
            })
            .collect();
        // Stable.
        ledgers.sort_by_key(|ledger| ledger.ordinal);
        Self { ledgers, top_n: 10, min_mb: 0 }
    }

    /// As [`GpuDiagnostics::alloc_report`](crate::GpuDiagnostics::alloc_report) takes them: up to `top_n` call sites of at least `min_mb` MiB each in the text.
    #[must_use]
    pub fn showing(self, top_n: usize, min_mb: usize) -> Self {
        Self { top_n, min_mb, ..self }
    }

    /// Bytes live on all devices.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.sum(|snapshot| snapshot.totals.live_bytes)
    }

    /// Allocations live on all devices.
    #[must_use]
    pub fn live_count(&self) -> u64 {
        self.sum(|snapshot| snapshot.totals.live_count)
    }

    /// Bytes that the drivers keep for them.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.sum(|snapshot| snapshot.totals.resident_bytes)
    }

    /// Live bytes by device.
    #[must_use]
    pub fn live_bytes_by_device(&self) -> BTreeMap<usize, u64> {
        let mut sums = BTreeMap::new();
        for ledger in &self.ledgers {
            let sum: &mut u64 = sums.entry(ledger.ordinal).or_default();
            *sum = sum.saturating_add(ledger.snapshot.totals.live_bytes);
        }
        sums
    }

    fn sum(&self, of: impl Fn(&Snapshot) -> u64) -> u64 {
        self.ledgers.iter().fold(0, |sum, ledger| sum.saturating_add(of(&ledger.snapshot)))
    }
}

impl fmt::Display for MergedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_device = self.live_bytes_by_device();
        let (devices, count) = (by_device.len(), self.live_count());
        writeln!(
            f,
            "{devices} device{}: {} live in {count} allocation{}, {} resident",
            plural(devices as u64),
            ByteSize(self.live_bytes()),
            plural(count),
            ByteSize(self.resident_bytes())
        )?;
        for (index, ledger) in self.ledgers.iter().enumerate() {
            let ordinal = ledger.ordinal;
            let of_device = |other: &&DeviceLedger| other.ordinal == ordinal;
            let nth = self.ledgers[..index].iter().filter(of_device).count() + 1;
            match self.ledgers.iter().filter(of_device).count() {
                1 => writeln!(f, "device {ordinal}:")?,
                of => writeln!(f, "device {ordinal}, backend {nth} of {of}:")?,
            }
            for line in ledger.snapshot.report(self.top_n, self.min_mb).lines() {
                writeln!(f, "  {line}")?;
            }
        }
        Ok(())
    }
}

const fn plural(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

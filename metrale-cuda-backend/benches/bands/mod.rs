// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations with a red zone each, to scan: for criterion, and for the table of ratios.

use std::sync::Arc;

use anyhow::{Result, ensure};
use metrale_cuda_backend::redzone::{KERNELS_PTX, ScanBy};
use metrale_cuda_backend::{BackendConfig, DevicePtr, DriverApi, MetraleCudaBackend};

/// How many.
pub(crate) const BANDS: usize = 25_000;
pub(crate) const BAND_BYTES: usize = 256;
/// Bytes asked for by each allocation; with its band it takes 1 KiB of the device.
pub(crate) const ASKED: usize = 700;

/// A backend that holds so many allocations with a band each.
pub(crate) struct Bands {
    pub(crate) backend: MetraleCudaBackend,
    pub(crate) held: Vec<DevicePtr>,
}

impl Bands {
    /// On a driver. The module `bare` has the kernels too.
    pub(crate) fn new(driver: &Arc<dyn DriverApi>, scan_by: ScanBy) -> Result<Self> {
        let mut config = BackendConfig::default();
        config.redzone.band_bytes = BAND_BYTES;
        config.redzone.scan_by = scan_by;
        let builder = MetraleCudaBackend::builder().driver(driver.clone()).modules(&[("bare", KERNELS_PTX)]);
        let backend = builder.config(config).build()?;
        let held = (0..BANDS).map(|_| backend.alloc(ASKED)).collect::<metrale_cuda_backend::Result<_>>()?;
        Ok(Self { backend, held })
    }

    /// A scan that is to find nothing.
    pub(crate) fn scan_clean(&self) -> Result<()> {
        ensure!(self.backend.scan_redzones()? == 0, "a clean band was told as changed");
        Ok(())
    }

    /// Whether a scan finds what was written, because a scan that reads nothing would be quick too.
    pub(crate) fn finds_a_planted_byte(&self) -> Result<()> {
        let middle = self.held[self.held.len() / 2];
        // SAFETY: the source is one byte.
        let status = unsafe {
            self.backend.driver().cuMemcpyHtoD_v2(middle.addr() + ASKED as u64, [1_u8].as_ptr().cast(), 1)
        };
        ensure!(status == 0, "planting a byte: status {status}");
        let found = self.backend.scan_redzones()?;
        ensure!(found == 1, "one byte was planted, and {found} bands were told");
        Ok(())
    }
}

impl Drop for Bands {
    fn drop(&mut self) {
        for ptr in self.held.drain(..) {
            if let Err(error) = self.backend.free(ptr) {
                panic!("{ptr} is live: {error:#}");
            }
        }
    }
}

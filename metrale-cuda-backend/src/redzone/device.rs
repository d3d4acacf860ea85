// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of bands in device memory and the kernels that read it: every band is checked by one launch.
//!
//! ```text
//!   one allocation:  | table, 16 B a slot | found, 20 B a slot | counter | updates, one portion |
//! ```
//! The table stays where it is from scan to scan; what came and went since is sent as updates, in portions. A clean scan
//! brings four bytes back.

use core::ffi::c_void;
use std::panic::Location;
use std::sync::Arc;

use metrale_ledger::AllocKind;
use metrale_registry::MetraleRegistry;

use super::scanner::{Chosen, DeviceTable, Scanner};
use super::zones::BandOwner;
use super::{
    BLOCK_THREADS, Band, BandFound, BandTable, BandUpdate, CHECK_KERNEL, KERNELS_PTX, ScanBy, UPDATE_KERNEL,
    blocks_for,
};
use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{BadArgument, Error, LedgerConflict, Remedy, Result};
use crate::memory::Cost;

const MODULE: &str = "metrale_redzone";
/// Updates sent at a time.
const PORTION: usize = 4096;
const UPDATE_BYTES: usize = PORTION * BandUpdate::BYTES;
const COUNTER_BYTES: usize = 16;
/// Capacity in slots at first.
const LEAST_SLOTS: usize = 4096;
/// Pages of its own, so that an overrun of a neighbour in the same page does not reach it.
const LEAST_BYTES: usize = 2 << 20;

impl Scanner {
    /// The device's table, loaded on first use; `None` where bands are to be copied. An error where the kernel was asked
    /// for and cannot be had, or the context is lost.
    pub(crate) fn device_table(&mut self, backend: &MetraleCudaBackend) -> Result<Option<&mut DeviceTable>> {
        if matches!(self.chosen, Chosen::NotYet) {
            self.chosen = self.choose(backend)?;
        }
        Ok(match &mut self.chosen {
            Chosen::Kernel(table) => Some(table),
            Chosen::NotYet | Chosen::Copies => None,
        })
    }

    fn choose(&self, backend: &MetraleCudaBackend) -> Result<Chosen> {
        // A driver in software loads the module and has no code for its kernels.
        let in_software = backend.driver().source().starts_with("software");
        if self.wanted == ScanBy::Copies || (self.wanted == ScanBy::Auto && in_software) {
            return Ok(Chosen::Copies);
        }
        match DeviceTable::load(backend) {
            Ok(table) => Ok(Chosen::Kernel(table)),
            Err(error) if self.wanted == ScanBy::Kernel || error.remedy() == Remedy::Relaunch => Err(error),
            Err(error) => {
                tracing::warn!(
                    "the red zones' kernel cannot be used on this device, so bands are copied one by one: {error:#}"
                );
                Ok(Chosen::Copies)
            }
        }
    }

    /// Forgets the device's table after a scan by it failed; the next one starts anew.
    pub(crate) fn reset(&mut self, backend: &MetraleCudaBackend) {
        if let Chosen::Kernel(table) = std::mem::replace(&mut self.chosen, Chosen::NotYet) {
            table.free(backend);
        }
    }
}

impl DeviceTable {
    /// Loads the kernels, apart from the backend's own modules: no look-up of them is in the audit.
    fn load(backend: &MetraleCudaBackend) -> Result<Self> {
        // With the look-ups: a driver may load a kernel's code at the first of them.
        backend.measure(Cost::Modules, || {
            let registry = MetraleRegistry::load_into(Arc::clone(backend.host()), &[(MODULE, KERNELS_PTX)])?;
            let check = registry.function(MODULE, CHECK_KERNEL)?;
            let update = registry.function(MODULE, UPDATE_KERNEL)?;
            Ok(Self { registry, check, update, base: 0, slots: 0, counted: 0 })
        })
    }

    /// Checks every band and restores those that changed. The order of what was found is any.
    pub(crate) fn check(
        &mut self,
        backend: &MetraleCudaBackend,
        bands: &mut BandTable<BandOwner>,
    ) -> Result<Vec<BandFound>> {
        self.tell(backend, bands)?;
        let slots = bands.slots();
        if slots == 0 {
            return Ok(Vec::new());
        }
        let (mut table, mut found, mut counter) = (self.base, self.found(), self.counter());
        let (mut slots_arg, mut counted, mut refill) = (self.count(slots)?, self.counted, 1_u32);
        let mut params: [*mut c_void; 6] = [
            (&raw mut table).cast(),
            (&raw mut slots_arg).cast(),
            (&raw mut found).cast(),
            (&raw mut counter).cast(),
            (&raw mut counted).cast(),
            (&raw mut refill).cast(),
        ];
        self.launch(backend, self.check, slots, &mut params)?;
        let mut now = [0; 4];
        self.read(backend, self.counter(), &mut now)?;
        let now = u32::from_le_bytes(now);
        let new = now.wrapping_sub(self.counted) as usize;
        if new > slots {
            return Err(Error::from(BadArgument::new(format!(
                "the red zones' own table was written over: {new} changes in {slots} bands"
            ))));
        }
        self.counted = now;
        let mut records = vec![0; new * BandFound::BYTES];
        if new > 0 {
            self.read(backend, self.found(), &mut records)?;
        }
        let (records, _) = records.as_chunks();
        Ok(records.iter().map(|&record| BandFound::from_bytes(record)).collect())
    }

    /// Sends what the device does not know, and waits until it does. Bands that are to be filled are.
    pub(crate) fn tell(
        &mut self,
        backend: &MetraleCudaBackend,
        bands: &mut BandTable<BandOwner>,
    ) -> Result<()> {
        if self.slots < bands.slots() {
            self.grow(backend, bands.slots())?;
            bands.forget_device();
        }
        // Kept until the stream has passed them: some devices read pageable memory late.
        let mut sent: Vec<(Vec<BandUpdate>, Vec<u8>)> = Vec::new();
        let told = loop {
            let updates = bands.take_updates(PORTION);
            if updates.is_empty() {
                break Ok(());
            }
            let bytes: Vec<u8> = updates.iter().flat_map(|update| update.to_bytes()).collect();
            let told = self.send(backend, &bytes, updates.len());
            sent.push((updates, bytes));
            if told.is_err() {
                break told;
            }
        };
        if sent.is_empty() {
            return told;
        }
        let waited = self.wait(backend);
        let told = told.and(waited);
        if told.is_err() {
            bands.return_updates(sent.into_iter().flat_map(|(updates, _)| updates));
        }
        told
    }

    fn send(&self, backend: &MetraleCudaBackend, updates: &[u8], count: usize) -> Result<()> {
        let stream = backend.stream();
        let source = updates.as_ptr().cast::<c_void>();
        // SAFETY: the caller keeps the updates until the stream has passed the copy; the device side holds a
        // portion.
        unsafe {
            ask!(backend.driver(), cuMemcpyHtoDAsync_v2(self.updates(), source, updates.len(), stream.raw()))
        }
        .doing(|| "telling the device of red zones".to_owned())?;
        let (mut table, mut updates, mut count_arg) = (self.base, self.updates(), self.count(count)?);
        let mut params: [*mut c_void; 3] =
            [(&raw mut table).cast(), (&raw mut updates).cast(), (&raw mut count_arg).cast()];
        self.launch(backend, self.update, count, &mut params)
    }

    fn launch(
        &self,
        backend: &MetraleCudaBackend,
        kernel: u64,
        warps: usize,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        let grid = [blocks_for(self.count(warps)?), 1, 1];
        let block = [BLOCK_THREADS, 1, 1];
        // SAFETY: the arguments are the kernels' parameters; the memory they name holds what they are told, and
        // every band of the table is live: one is taken out before its memory goes back.
        let launched = unsafe {
            self.registry.launch_on_stream(kernel, grid, block, 0, backend.own_stream().raw(), params)
        };
        launched.map_err(|error| {
            if let Some(driver) = error.driver_error() {
                // SAFETY: the stream is the host's own, which lives as long as it.
                unsafe {
                    backend.check_after_refusal(driver, backend.stream(), || {
                        "the launch of a scan of red zones".to_owned()
                    })
                };
            }
            error.into()
        })
    }

    /// Copies from the device in the order of the stream, and waits.
    fn read(&self, backend: &MetraleCudaBackend, from: u64, to: &mut [u8]) -> Result<()> {
        let target = to.as_mut_ptr().cast::<c_void>();
        // SAFETY: the destination is a slice of that many bytes, and stays borrowed over the wait below.
        let queued = unsafe {
            ask!(backend.driver(), cuMemcpyDtoHAsync_v2(target, from, to.len(), backend.own_stream().raw()))
        };
        let waited = self.wait(backend);
        queued.doing(|| "reading what a scan of red zones found".to_owned())?;
        waited
    }

    /// Waits until nothing that was queued uses host memory any more.
    fn wait(&self, backend: &MetraleCudaBackend) -> Result<()> {
        // SAFETY: the stream is the host's own, which lives as long as it.
        unsafe { backend.wait_until_at_rest(backend.stream(), self.base) }
    }

    /// New memory, with spare capacity. The content of the old memory is lost.
    fn grow(&mut self, backend: &MetraleCudaBackend, slots: usize) -> Result<()> {
        self.free_memory(backend);
        let wanted = slots.max(LEAST_SLOTS).next_power_of_two();
        let bytes =
            (wanted * (Band::TABLE_BYTES + BandFound::BYTES) + COUNTER_BYTES + UPDATE_BYTES).max(LEAST_BYTES);
        let mut base = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(backend.driver(), cuMemAlloc_v2(&mut base, bytes)) }
            .doing(|| format!("allocating {bytes} bytes for the table of red zones"))?;
        // Padding of no one allocation: this line's.
        if let Err(misuse) =
            backend.ledger_writer().record(base, bytes, AllocKind::Padding, Location::caller())
        {
            let not_freed = backend.driver_free(base).err();
            let reason = misuse.to_string();
            return Err(Error::from(LedgerConflict { addr: base, bytes, reason, not_freed }));
        }
        (self.base, self.slots, self.counted) = (base, wanted, 0);
        // The slots too: one that no update has named yet must read as free.
        // SAFETY: no host memory is passed; the range is the allocation just made.
        unsafe { ask!(backend.driver(), cuMemsetD8Async(base, 0, bytes, backend.own_stream().raw())) }
            .doing(|| "clearing the table of red zones".to_owned())
    }

    fn free_memory(&mut self, backend: &MetraleCudaBackend) {
        let base = std::mem::take(&mut self.base);
        self.slots = 0;
        if base == 0 {
            return;
        }
        let _ = backend.ledger_writer().forget(base, AllocKind::Padding);
        if let Err(error) = backend.driver_free(base) {
            tracing::debug!("the table of red zones could not be freed: {error}");
        }
    }

    fn free(mut self, backend: &MetraleCudaBackend) {
        self.free_memory(backend);
    }

    fn found(&self) -> u64 {
        self.base.saturating_add((self.slots * Band::TABLE_BYTES) as u64)
    }

    fn counter(&self) -> u64 {
        self.found().saturating_add((self.slots * BandFound::BYTES) as u64)
    }

    fn updates(&self) -> u64 {
        self.counter().saturating_add(COUNTER_BYTES as u64)
    }

    /// A number of slots as the kernels take it.
    fn count(&self, slots: usize) -> Result<u32> {
        Ok(u32::try_from(slots).map_err(|_| super::TableFull { slots })?)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned host memory: page-locked, so that the device reads and writes it directly.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::panic::Location;

use metrale_driver_sys::DriverError;
use metrale_ledger::AllocKind;

use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::error::{BadArgument, LedgerConflict, Result};
use crate::graph::Reach;
use crate::memory::alloc::{ALLOCATE_BEFORE, FREE_AFTER, refuse_no_bytes};
use crate::memory::followed::Pinning;
use crate::memory::pinned_ptr::PinnedPtr;
use crate::memory::pinned_table::LivePinned;

impl MetraleCudaBackend {
    /// Takes pinned memory off the ledger and frees it.
    pub(crate) fn unpin_memory(&self, pinned: PinnedPtr, site: &'static Location<'static>) -> Result<()> {
        let _bound = self.bound_to_free("freeing pinned memory")?;
        self.outside_capture(Reach::Thread, "freeing pinned memory", FREE_AFTER)?;
        let mut table = self.pinned_table();
        // An address alone proves nothing: by now it may be that of a buffer somebody else has borrowed.
        if table.at(pinned).is_some_and(|live| live.generation() != pinned.generation()) {
            return Err(table.stale(pinned, site).into());
        }
        // Where nothing is live there, the ledger knows best what was.
        let record = self.forget(pinned.addr(), AllocKind::Pinned, "free_pinned", None)?;
        let live = table.remove(pinned, site).ok_or_else(|| table.stale(pinned, site))?;
        drop(table);
        let answer = self.driver_free_pinned(pinned.addr());
        let mut table = self.pinned_table();
        let settled =
            self.settle_free(answer, pinned.addr(), record.as_ref(), || format!("freeing {pinned}"));
        if settled.is_err() {
            table.insert(pinned.addr(), live);
        }
        settled
    }

    /// Allocates pinned memory and puts it on the ledger.
    pub(crate) fn pin_memory(&self, bytes: usize, site: &'static Location<'static>) -> Result<PinnedPtr> {
        refuse_no_bytes(bytes, AllocKind::Pinned, site)?;
        let _bound = self.bound("allocating pinned memory")?;
        self.within_host_limit(bytes, site)?;
        self.outside_capture(Reach::Thread, "allocating pinned memory", ALLOCATE_BEFORE)?;
        // Until the ledger has it: a call on another thread may have checked the address before it was pinned.
        let pinning = self.graph_client().shared.followed.begin_pinning();
        let address = self.pin_unfollowed(&pinning, bytes, site)?;
        // SAFETY: the driver has just allocated `bytes` bytes there, and nobody else knows the address.
        unsafe { address.write_bytes(0, bytes) };
        let live = LivePinned::new(bytes, site);
        let pinned = PinnedPtr { address, bytes, generation: live.generation() };
        let addr = pinned.addr();
        // Table and ledger change under one lock, so that no free on another thread sees the one change without the other.
        let mut table = self.pinned_table();
        if let Err(misuse) = self.ledger_writer().record(addr, bytes, AllocKind::Pinned, site) {
            table.remove_stale(addr);
            drop(table);
            let not_freed = self.driver_free_pinned(addr).err();
            return Err(LedgerConflict { addr, bytes, reason: misuse.to_string(), not_freed }.into());
        }
        table.insert(addr, live);
        Ok(pinned)
    }

    /// New pinned memory in which no call under way follows an address. Memory where one does is kept aside until there is other.
    fn pin_unfollowed(
        &self,
        pinning: &Pinning<'_>,
        bytes: usize,
        site: &'static Location<'static>,
    ) -> Result<NonNull<u8>> {
        /// Places that are tried: more are followed only by calls that span most addresses there are.
        const TRIES: usize = 8;
        let mut aside = Vec::new();
        let found = loop {
            let mut address = core::ptr::null_mut();
            // SAFETY: the result pointer is a local.
            let answer = unsafe { ask!(self.driver(), cuMemAllocHost_v2(&mut address, bytes)) };
            if let Err(error) = answer {
                break Err(self.alloc_error(error, bytes, AllocKind::Pinned, site));
            }
            let Some(address) = NonNull::new(address.cast::<u8>()) else {
                let reason = "null is no address".to_owned();
                break Err(LedgerConflict { addr: 0, bytes, reason, not_freed: None }.into());
            };
            let addr = address.addr().get() as u64;
            if !pinning.meets(addr, bytes) {
                break Ok(address);
            }
            aside.push(addr);
            if aside.len() == TRIES {
                break Err(BadArgument::new(format!(
                    "pinned memory of {bytes} bytes at {}: copies or fills on other threads follow addresses in each of {TRIES} \
                     places that the driver gave; try again when they have returned",
                    metrale_ledger::file_line(site)
                ))
                .into());
            }
        };
        for addr in aside {
            // The driver waits for what was queued there.
            if let Err(error) = self.driver_free_pinned(addr) {
                tracing::error!("{bytes} bytes of pinned memory at {addr:#x} could not be freed: {error}");
            }
        }
        found
    }

    /// The driver's free of pinned memory, alone.
    pub(crate) fn driver_free_pinned(&self, addr: u64) -> Result<(), DriverError> {
        let address = core::ptr::without_provenance_mut::<c_void>(addr as usize);
        // SAFETY: the driver checks that the address is pinned memory of its own and follows it nowhere else.
        unsafe { ask!(self.driver(), cuMemFreeHost(address)) }
    }
}

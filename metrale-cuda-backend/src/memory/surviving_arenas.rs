// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arenas that outlive the backend which allocated them, as `alloc_arena` promises: engines keep in them what lives as
//! long as the process.
//!
//! ```text
//!   alloc_arena ──> on the backend's ledger ── drop ──> survives, on the ledger of the dropped backend
//!                     ^                                        │
//!                     ├── a backend is made on the device <────┤
//!                     └── a backend of the device frees it <───┘
//! ```
//! A survivor keeps the host of its device, and with it the context, until it is freed. It is on one ledger at any time, and a
//! free takes it out of this table and moves its record to the ledger of the backend that frees, under one lock: of two frees, by
//! whichever backends, one finds it.

use std::sync::Arc;

use metrale_ledger::{AllocKind, LiveAllocation, Whois};
use metrale_registry::CudaHost;
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::ledger_writer::{LedgerWriter, Left};
use crate::left::{LargestSites, counted};

/// An arena whose backend was dropped.
struct Survivor {
    host: Arc<CudaHost>,
    base: u64,
    /// Where its record is: with the dropped backend, or with a later one that took it over.
    ledger: Arc<LedgerWriter>,
    /// Whether that backend is dropped, so that the next one takes it over.
    is_unclaimed: bool,
}

impl Survivor {
    fn is_on(&self, ledger: &Arc<LedgerWriter>) -> bool {
        Arc::ptr_eq(&self.ledger, ledger)
    }
}

/// The survivors of all devices. Locked over changes of ledgers, never over a call of the driver, and after the pins.
static SURVIVING: Mutex<Vec<Survivor>> = Mutex::new(Vec::new());

impl MetraleCudaBackend {
    /// Moves to this backend's ledger what outlived the dropped backends of its device. To be called when it is made: what was
    /// there by then leaves the baseline of the account, since the ledger has it.
    pub(crate) fn take_over_arenas(&self) {
        // With the pins locked: a capture that looks for an arena meanwhile must find it on one of the ledgers.
        let count = self.graph_client().shared.with(|_| {
            let mut surviving = SURVIVING.lock();
            let unclaimed = surviving.iter_mut().filter(|survivor| self.may_claim(survivor));
            unclaimed.fold(0, |count, survivor| {
                self.ledger_writer().take_over_arena(&survivor.ledger, survivor.base);
                survivor.ledger = Arc::clone(self.ledger_writer());
                survivor.is_unclaimed = false;
                count + 1
            })
        });
        if count > 0 {
            let resident = self.ledger_writer().ledger().arena_resident_bytes() as u64;
            self.costs().set_baseline(self.costs().baseline().saturating_sub(resident));
            let left = self.ledger_writer().left_of(AllocKind::Arena);
            tracing::info!(
                "{} of dropped backends of device {} taken over{}",
                counted(&left, "arena"),
                self.ordinal(),
                LargestSites(&left)
            );
        }
    }

    /// Keeps arenas of this backend, which is being dropped, and those that it had taken over.
    pub(crate) fn leave_to_process(&self, arenas: &[Left]) {
        let mut surviving = SURVIVING.lock();
        surviving.retain(|survivor| !survivor.is_on(self.ledger_writer()));
        surviving.extend(arenas.iter().map(|&(base, _)| Survivor {
            host: Arc::clone(self.host()),
            base,
            ledger: Arc::clone(self.ledger_writer()),
            is_unclaimed: true,
        }));
    }

    /// Drops the survivors that went with the context: those that this backend had taken over, and those that no other has.
    pub(crate) fn drop_survivors(&self) {
        let is_gone =
            |survivor: &mut Survivor| survivor.is_on(self.ledger_writer()) || self.may_claim(survivor);
        let gone: Vec<_> = SURVIVING.lock().extract_if(.., is_gone).collect();
        // With no lock held: a host may be torn down with its last user.
        drop(gone);
    }

    /// Before a free of an arena: where it outlived the backend that allocated it, its record is moved to this ledger, and it
    /// survives no more. Nobody else can free it from here on, be it that the free is refused.
    #[track_caller]
    pub(crate) fn claim_surviving(&self, base: u64) {
        let mut surviving = SURVIVING.lock();
        let is_it = |survivor: &Survivor| survivor.base == base && Arc::ptr_eq(&survivor.host, self.host());
        let Some(at) = surviving.iter().position(is_it) else { return };
        // Its host is this backend's too, so it is not torn down here. The others stay in order of creation.
        let survivor = surviving.remove(at);
        if !survivor.is_on(self.ledger_writer()) {
            self.ledger_writer().take_over_arena(&survivor.ledger, base);
        }
    }

    /// The arena of a dropped backend of this driver around an address, which is on no backend's ledger.
    pub(crate) fn surviving_at(&self, addr: u64) -> Option<LiveAllocation> {
        let driver = self.driver().identity();
        let surviving = SURVIVING.lock();
        let of_driver = surviving.iter().filter(|survivor| survivor.host.driver().identity() == driver);
        of_driver.filter(|survivor| survivor.is_unclaimed).find_map(|survivor| {
            match survivor.ledger.whois(addr) {
                Whois::Live { allocation, .. } if allocation.addr == survivor.base => Some(allocation),
                _ => None,
            }
        })
    }

    fn may_claim(&self, survivor: &Survivor) -> bool {
        survivor.is_unclaimed && Arc::ptr_eq(&survivor.host, self.host())
    }
}

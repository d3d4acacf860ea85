// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend's side of the ledger: what is written when, and what stays empty without the feature.

use std::panic::Location;

use metrale_ledger::{
    AllocKind, AllocRecord, ForgetError, Ledger, RecordMisuse, Recorded, SubRangeError, Whois,
};
use parking_lot::Mutex;

use crate::features::KEEPS_LEDGER;
use crate::live_addresses::LiveAddresses;

/// The one ledger of a backend. Everything that writes goes through here.
#[derive(Debug)]
pub(crate) struct LedgerWriter {
    ledger: Ledger,
    /// In the ledger's place, without the feature.
    live: Mutex<LiveAddresses>,
}

/// What is left of an address that was taken off to be freed: its record, where a ledger is kept.
pub(crate) type Left = (u64, Option<AllocRecord>);

impl LedgerWriter {
    /// An empty ledger that keeps so many of its last events.
    pub(crate) fn new(events: usize) -> Self {
        let ledger = Ledger::new();
        ledger.keep_events(events);
        Self { ledger, live: Mutex::default() }
    }

    /// The ledger, for reading and for scopes.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Records what the driver has just allocated; returns its creation index, 0 where no ledger is kept. An answer of misuse
    /// leaves it off the ledger.
    pub(crate) fn record(
        &self,
        addr: u64,
        bytes: usize,
        kind: AllocKind,
        site: &'static Location<'static>,
    ) -> Result<u64, Box<RecordMisuse>> {
        if !KEEPS_LEDGER {
            self.live.lock().record(addr, kind);
            return Ok(0);
        }
        self.accept(self.ledger.record_as(addr, bytes, site, kind), addr, kind)
    }

    /// Records device memory that the driver has just allocated in a page that the ledger holds already, and so by the context
    /// whose ledger it is; returns its creation index. None, and nothing recorded, where the page is not held.
    pub(crate) fn record_beside(
        &self,
        addr: u64,
        bytes: usize,
        site: &'static Location<'static>,
    ) -> Result<Option<u64>, Box<RecordMisuse>> {
        if !KEEPS_LEDGER {
            return Ok(None);
        }
        let recorded = self.ledger.record_beside(addr, bytes, site);
        recorded.map(|recorded| self.accept(recorded, addr, AllocKind::Device)).transpose()
    }

    /// Takes a record off again that is misuse: the caller frees the memory, and the misuse stays counted.
    fn accept(&self, recorded: Recorded, addr: u64, kind: AllocKind) -> Result<u64, Box<RecordMisuse>> {
        recorded.into_result().inspect_err(|_| {
            let _ = self.forget(addr, kind);
        })
    }

    /// Takes an address off before the driver frees it, under the caller's line. `None` where no ledger is kept, and so
    /// nothing is known of any address.
    #[inline]
    #[track_caller]
    pub(crate) fn forget(&self, addr: u64, kind: AllocKind) -> Result<Option<AllocRecord>, ForgetError> {
        if !KEEPS_LEDGER {
            self.live.lock().forget(addr, kind);
            return Ok(None);
        }
        match kind {
            AllocKind::Arena => self.ledger.try_forget_arena(addr),
            AllocKind::Pinned => self.ledger.try_forget_pinned(addr),
            AllocKind::Padding => self.ledger.try_forget_padding(addr),
            _ => self.ledger.try_forget(addr),
        }
        .map(Some)
    }

    /// [`forget`](Self::forget) of the allocation with this creation index only, given up at `site`.
    pub(crate) fn forget_only(
        &self,
        addr: u64,
        index: u64,
        site: &'static Location<'static>,
    ) -> Result<Option<AllocRecord>, ForgetError> {
        if !KEEPS_LEDGER {
            return self.forget(addr, AllocKind::Device);
        }
        self.ledger.try_forget_only(addr, index, site).map(Some)
    }

    /// Puts back what the driver would not free, marked.
    pub(crate) fn restore(&self, addr: u64, record: Option<&AllocRecord>) {
        if !KEEPS_LEDGER {
            self.live.lock().restore(addr);
        }
        if let Some(record) = record {
            // Should the address be live again, that allocation stays; the ledger counts the misuse.
            let _ = self.ledger.restore(addr, record);
        }
    }

    /// The live memory of some kinds.
    pub(crate) fn live(&self, kinds: &[AllocKind]) -> Vec<(AllocKind, u64)> {
        if !KEEPS_LEDGER {
            return self.live.lock().of(|kind| kinds.contains(&kind));
        }
        let of_kind = |&kind: &AllocKind| {
            self.ledger.allocations_of(kind).into_iter().map(move |(addr, _)| (kind, addr))
        };
        kinds.iter().flat_map(of_kind).collect()
    }

    /// Takes every device and managed allocation off.
    #[track_caller]
    pub(crate) fn drain(&self) -> Vec<Left> {
        if !KEEPS_LEDGER {
            return self.take(AllocKind::is_sweepable);
        }
        self.ledger.drain().into_iter().map(|(addr, record)| (addr, Some(record))).collect()
    }

    /// Takes the device and managed allocations off whose addresses fit.
    #[track_caller]
    pub(crate) fn drain_where(&self, fits: impl Fn(u64) -> bool) -> Vec<Left> {
        let all = [AllocKind::Device, AllocKind::Managed];
        if self.live(&all).iter().all(|&(_, addr)| fits(addr)) {
            return self.drain();
        }
        all.into_iter().flat_map(|kind| self.drain_kind(kind, &fits)).collect()
    }

    /// What is live of a kind, with its records where a ledger is kept.
    pub(crate) fn left_of(&self, kind: AllocKind) -> Vec<Left> {
        if !KEEPS_LEDGER {
            let live = self.live.lock().of(|of| of == kind);
            return live.into_iter().map(|(_, addr)| (addr, None)).collect();
        }
        let live = self.ledger.allocations_of(kind).into_iter();
        live.map(|(addr, record)| (addr, Some(record))).collect()
    }

    /// Takes the allocations of a kind off that `is_wanted` picks by their addresses, each of which another thread may free first.
    #[track_caller]
    pub(crate) fn drain_kind(&self, kind: AllocKind, is_wanted: impl Fn(u64) -> bool) -> Vec<Left> {
        let mut left = self.left_of(kind);
        left.retain(|&(addr, _)| is_wanted(addr) && self.forget(addr, kind).is_ok());
        left
    }

    /// Moves the record of an arena here from the ledger of another backend, with its labels. Nothing where that has none.
    #[track_caller]
    pub(crate) fn take_over_arena(&self, from: &Self, addr: u64) {
        match from.forget(addr, AllocKind::Arena) {
            Ok(Some(AllocRecord { bytes, site, scope, tag, .. })) => {
                let _scope = scope.map(|label| self.ledger.scope(&label));
                // It was live on the other ledger, so nothing here can be where it is.
                let _ = self.ledger.record_as(addr, bytes, site, AllocKind::Arena);
                if let Some(tag) = tag {
                    self.ledger.tag(addr, &tag);
                }
            }
            Ok(None) => self.live.lock().record(addr, AllocKind::Arena),
            Err(_) => {}
        }
    }

    fn take(&self, is_wanted: impl Fn(AllocKind) -> bool) -> Vec<Left> {
        let mut live = self.live.lock();
        let taken = live.of(is_wanted);
        taken.iter().for_each(|&(kind, addr)| live.forget(addr, kind));
        taken.into_iter().map(|(_, addr)| (addr, None)).collect()
    }

    /// Writes a part of an arena down.
    pub(crate) fn begin_part(
        &self,
        arena: u64,
        offset: u64,
        bytes: usize,
        name: &str,
        site: &'static Location<'static>,
    ) -> Result<(), SubRangeError> {
        if KEEPS_LEDGER { self.ledger.record_sub_range(arena, offset, bytes, name, site) } else { Ok(()) }
    }

    /// Takes a part of an arena off, under the caller's line.
    #[track_caller]
    pub(crate) fn end_part(&self, addr: u64) -> Result<(), SubRangeError> {
        if KEEPS_LEDGER { self.ledger.end_sub_range(addr).map(drop) } else { Ok(()) }
    }

    /// Kind of the live allocation that holds an address, and its bytes from there on.
    pub(crate) fn live_span(&self, addr: u64) -> Option<(AllocKind, u64)> {
        if KEEPS_LEDGER { self.ledger.live_span(addr) } else { None }
    }

    /// What is known of an address.
    pub(crate) fn whois(&self, addr: u64) -> Whois {
        if KEEPS_LEDGER { self.ledger.whois(addr) } else { Whois::Unknown }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sweep: freeing what nobody freed, with one warning that says whose it was; and the drop, which runs it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use metrale_driver_sys::{DriverError, is_sticky};
use metrale_ledger::{AllocKind, ByteSize};
use metrale_registry::is_teardown_noop;

use crate::backend::MetraleCudaBackend;
use crate::call::failed;
use crate::error::{Cause, ContextLost, ErrorKind, Remedy, Result};
use crate::graph::Reach;
use crate::ledger_writer::{LedgerWriter, Left};
use crate::parts::KEEPS_LEDGER;

/// What a sweep takes.
const SWEEPABLE: [AllocKind; 2] = [AllocKind::Device, AllocKind::Managed];
/// What has an owner that a sweep leaves it to.
const OWNED: [AllocKind; 2] = [AllocKind::Arena, AllocKind::Pinned];

/// Call sites named in a warning.
const SITES: usize = 5;

/// A sweep that found the context lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sweep took {swept} allocations off the ledger, and {not_freed} of them could not be freed")]
#[non_exhaustive]
pub struct SweepIncomplete {
    /// Allocations that were on the ledger, what an undisturbed sweep returns.
    pub swept: usize,
    /// Those whose memory the driver did not free. They are on the ledger, marked.
    pub not_freed: usize,
    /// Why.
    #[source]
    pub lost: ContextLost,
}

impl Cause for SweepIncomplete {
    fn kind(&self) -> ErrorKind {
        ErrorKind::ContextLost
    }

    fn remedy(&self) -> Remedy {
        Remedy::Relaunch
    }
}

/// What one sweep took off the ledger, and what came of it.
struct Swept {
    left: Vec<Left>,
}

/// The call sites behind a list of records, largest first; nothing without records.
struct LargestSites<'a>(&'a [Left]);

impl fmt::Display for LargestSites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sums: BTreeMap<(&str, u32), (u64, u64)> = BTreeMap::new();
        for record in self.0.iter().filter_map(|(_, record)| record.as_ref()) {
            let site: &Location<'_> = record.site;
            let sum = sums.entry((site.file(), site.line())).or_default();
            sum.0 = sum.0.saturating_add(record.bytes as u64);
            sum.1 += 1;
        }
        if !KEEPS_LEDGER {
            return f.write_str(" (whose they were is not known without the feature \"ledger\")");
        }
        f.write_str(". Largest call sites: ")?;
        let mut rows: Vec<_> = sums.into_iter().collect();
        // Stable: equal sums stay in the order of their sites.
        rows.sort_by_key(|&(_, (bytes, _))| std::cmp::Reverse(bytes));
        for (index, ((file, line), (bytes, count))) in rows.iter().take(SITES).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{file}:{line} ({} in {count})", ByteSize(*bytes))?;
        }
        match rows.len().saturating_sub(SITES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The graphs that went before the memory they used.
struct Destroyed<'a>(&'a [Arc<str>]);

impl fmt::Display for Destroyed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().take(SITES).enumerate() {
            write!(
                f,
                "{}{name:?}",
                if index == 0 { ". Graphs that used them, destroyed before: " } else { ", " }
            )?;
        }
        match self.0.len().saturating_sub(SITES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Swept {
    /// How many there are and, where that is known, how large they are together.
    fn counted(&self, kind: &str) -> String {
        let count = match self.left.len() {
            1 => format!("1 {kind} allocation"),
            n => format!("{n} {kind} allocations"),
        };
        if !KEEPS_LEDGER {
            return count;
        }
        let records = self.left.iter().filter_map(|(_, record)| record.as_ref());
        let sum = records.fold(0_u64, |sum, record| sum.saturating_add(record.bytes as u64));
        format!("{count} ({})", ByteSize(sum))
    }

    /// Frees everything, once each, and returns how many could not be freed, which the ledger has back. What fails is logged
    /// and the rest still freed; of a context that is lost one line says how many stay.
    fn free(&self, ledger: &LedgerWriter, free: impl Fn(u64) -> Result<(), DriverError>) -> usize {
        let (mut refused, mut lost) = (0, 0);
        let mut first = None;
        for (addr, record) in &self.left {
            let Err(error) = free(*addr) else { continue };
            if is_teardown_noop(error.status) {
                // The memory went with the context.
                continue;
            }
            ledger.restore(*addr, record.as_ref());
            if is_sticky(error.status) {
                lost += 1;
                first.get_or_insert(error);
            } else {
                refused += 1;
                let record = record.as_ref().map(|record| format!(" ({record})")).unwrap_or_default();
                tracing::error!("{addr:#x}{record} could not be freed: {error}");
            }
        }
        if let Some(error) = first {
            tracing::error!(
                "{lost} of {} allocations cannot be freed because the context is lost: {error}; the system frees their \
                 memory when the process ends",
                self.left.len()
            );
        }
        refused + lost
    }
}

impl MetraleCudaBackend {
    /// Frees all that the ledger has, and says how many allocations that were.
    #[track_caller]
    pub(crate) fn sweep_ledger(&self) -> Result<usize> {
        const DOING: &str = "sweeping unreleased allocations";
        const ADVICE: &str = "sweep after the capture has ended";
        let sound = || self.latch().sound(|| DOING.to_owned());
        sound()?;
        self.outside_capture(Reach::ThreadOrOwner(self.graph_client().owner), DOING, ADVICE)?;
        match self.enter() {
            Ok(_current) => {
                let (swept, not_freed) =
                    self.sweep("a load was abandoned, or they have no owner that frees them");
                // A free may have been the call that showed a fault.
                match sound() {
                    Ok(()) => Ok(swept),
                    Err(lost) => Err(SweepIncomplete { swept, not_freed, lost }.into()),
                }
            }
            // The context is gone, and the memory with it: nothing to free, nothing to warn of.
            Err(error) if is_teardown_noop(error.status) => Ok(self.ledger_writer().drain().len()),
            Err(error) => Err(failed(error, DOING.to_owned(), None)),
        }
    }

    /// Drains the ledger and frees all of it, with one warning. Returns how many allocations that were, and how many of them the
    /// driver did not free. The context is current.
    #[track_caller]
    fn sweep(&self, causes: &str) -> (usize, usize) {
        // Graphs first: none may be left that would replay on freed memory.
        let memory = self.ledger_writer().live(&SWEEPABLE);
        let graphs = self.destroy_graphs_using(&memory, true);
        // What an owner gave up was not forgotten by anybody.
        self.free_deferred();
        let swept = Swept { left: self.ledger_writer().drain() };
        let count = swept.left.len();
        let mut not_freed = 0;
        if count > 0 {
            tracing::warn!(
                "{} never released, and freed now: {causes}{}{}",
                swept.counted("device"),
                LargestSites(&swept.left),
                Destroyed(&graphs)
            );
            not_freed = swept.free(self.ledger_writer(), |addr| self.free_swept(addr));
        }
        (count, not_freed)
    }

    /// Frees what is left of a kind that no sweep takes, with a warning of its own. The context is current.
    fn free_left(&self, kind: AllocKind, free: impl Fn(u64) -> Result<(), DriverError>) {
        let swept = self.left_of(kind);
        if swept.left.is_empty() {
            return;
        }
        tracing::warn!(
            "{} left when the backend was dropped, and freed now: their owner should have freed them before{}",
            swept.counted(kind.name()),
            LargestSites(&swept.left)
        );
        swept.free(self.ledger_writer(), free);
    }

    /// Takes what is left of a kind off the ledger.
    fn left_of(&self, kind: AllocKind) -> Swept {
        Swept { left: self.ledger_writer().drain_kind(kind) }
    }

    /// Whether the context is lost, so that nothing can be freed; one line then counts what stays.
    fn is_left_behind(&self) -> bool {
        let Some(reason) = self.context_fault() else { return false };
        let ledger = self.ledger_writer().ledger();
        let left = match KEEPS_LEDGER {
            true => ledger.live_count() + ledger.arena_count() + ledger.pinned_count(),
            false => self.ledger_writer().live(&[SWEEPABLE, OWNED].concat()).len(),
        };
        let padding = ledger.padding_bytes();
        let allocations = (left > 0).then(|| format!("{left} allocations"));
        let padding = (padding > 0).then(|| format!("{} of red zones and quarantine", ByteSize::of(padding)));
        let what: Vec<String> = allocations.into_iter().chain(padding).collect();
        if !what.is_empty() {
            tracing::warn!(
                "{} of a dropped backend cannot be freed because {reason}; the system frees their memory when the process ends",
                what.join(" and ")
            );
        }
        true
    }

    /// Destroys graphs of other backends that use an arena or pinned memory of this one, which is freed now. The sweep does the
    /// same for the other kinds of memory.
    fn destroy_foreign_graphs(&self) {
        let left = self.ledger_writer().live(&OWNED);
        let graphs = self.destroy_graphs_using(&left, true);
        if !graphs.is_empty() {
            tracing::warn!(
                "memory is freed with its backend while graphs of other backends use it{}",
                Destroyed(&graphs)
            );
        }
    }

    /// Frees all that is left, on whichever thread drops the backend. Never panics, and never frees twice: each
    /// allocation is removed from the ledger before it is freed.
    pub(crate) fn free_all_left(&self) {
        if self.is_left_behind() {
            self.end_all_graphs(false);
            return;
        }
        match self.enter() {
            Ok(_current) => {
                self.end_all_graphs(true);
                self.destroy_foreign_graphs();
                self.end_op_cache();
                self.end_timing();
                // Any of these may have found a fault.
                if self.is_left_behind() {
                    return;
                }
                self.sweep(
                    "either a load was abandoned on the way (an error or a panic), or these allocations have no owner that \
                     frees them",
                );
                // The first free may be what meets a fault.
                if self.is_left_behind() {
                    return;
                }
                self.close_zones();
                // Freed memory that the driver had refused to take back.
                let padding = self.left_of(AllocKind::Padding);
                padding.free(self.ledger_writer(), |addr| self.driver_free(addr));
                self.free_left(AllocKind::Arena, |addr| self.driver_free(addr));
                self.free_left(AllocKind::Pinned, |addr| self.driver_free_pinned(addr));
                // Behind the memory, whose freeing waits for the work that is left in the streams.
                self.destroy_left();
            }
            // A context that is gone has taken its memory with it; a probe that outlives the backend must not show it.
            Err(error) if is_teardown_noop(error.status) => {
                self.end_all_graphs(false);
                self.ledger_writer().drain();
                self.left_of(AllocKind::Padding);
                self.left_of(AllocKind::Arena);
                self.left_of(AllocKind::Pinned);
            }
            Err(error) => {
                self.end_all_graphs(false);
                let ledger = self.ledger_writer().ledger();
                let (left, padding) = (ledger.live_count(), ByteSize(ledger.padding_bytes() as u64));
                tracing::error!(
                    "{left} allocations and {padding} of red zones and quarantine could not be freed when their backend was \
                     dropped: {error}"
                );
            }
        }
    }
}

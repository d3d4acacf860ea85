// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sweep: freeing what nobody freed, with one warning that says whose it was; and the drop, which runs it.

use std::fmt;
use std::sync::Arc;

use metrale_driver_sys::{DriverError, is_sticky};
use metrale_ledger::{AllocKind, ByteSize};
use metrale_registry::is_teardown_noop;

use crate::backend::MetraleCudaBackend;
use crate::call::failed;
use crate::error::{Cause, ContextLost, ErrorKind, Remedy, Result};
use crate::graph::Reach;
use crate::ledger_writer::Left;
use crate::left::{LargestSites, counted};
use crate::memory::memory_info_of;

/// What a sweep takes.
const SWEEPABLE: [AllocKind; 2] = [AllocKind::Device, AllocKind::Managed];
/// What has an owner that a sweep leaves it to.
const OWNED: [AllocKind; 2] = [AllocKind::Arena, AllocKind::Pinned];

/// Graphs named in a warning.
const NAMES: usize = 5;

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

/// What one sweep took off the ledger.
struct Swept {
    left: Vec<Left>,
}

/// How many allocations of a sweep are still allocated.
struct NotFreed {
    /// The driver refused to free them.
    refused: usize,
    /// Their context is lost.
    lost: usize,
}

/// The graphs that went before the memory they used.
struct Destroyed<'a>(&'a [Arc<str>]);

impl fmt::Display for Destroyed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().take(NAMES).enumerate() {
            write!(
                f,
                "{}{name:?}",
                if index == 0 { ". Graphs that used them, destroyed before: " } else { ", " }
            )?;
        }
        match self.0.len().saturating_sub(NAMES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Swept {
    /// Frees everything, once each, and returns how many could not be freed, which the ledger has back. What fails is logged
    /// and the rest still freed; what stays because the context is lost is the caller's to tell.
    fn free(&self, backend: &MetraleCudaBackend, free: impl Fn(u64) -> Result<(), DriverError>) -> NotFreed {
        let mut not_freed = NotFreed { refused: 0, lost: 0 };
        for (addr, record) in &self.left {
            let Err(error) = free(*addr) else { continue };
            if is_teardown_noop(error.status) {
                // The memory went with the context.
                continue;
            }
            backend.ledger_writer().restore(*addr, record.as_ref());
            if is_sticky(error.status) {
                backend.latch().trip(error, None);
                not_freed.lost += 1;
            } else {
                not_freed.refused += 1;
                let record = record.as_ref().map(|record| format!(" ({record})")).unwrap_or_default();
                tracing::error!("{addr:#x}{record} could not be freed: {error}");
            }
        }
        not_freed
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
                let (swept, not_freed) = self
                    .sweep("a load was abandoned, or they have no owner that frees them", |addr| {
                        !self.owned_addresses.has(addr)
                    });
                if not_freed.lost > 0 {
                    tracing::error!(
                        "{} of {swept} allocations cannot be freed because the context is lost; the system frees their memory \
                         when the process ends",
                        not_freed.lost
                    );
                }
                // A free may have been the call that showed a fault.
                match sound() {
                    Ok(()) => Ok(swept),
                    Err(lost) => {
                        let not_freed = not_freed.refused + not_freed.lost;
                        Err(SweepIncomplete { swept, not_freed, lost }.into())
                    }
                }
            }
            // The context is gone, and the memory with it: nothing to free, nothing to warn of.
            Err(error) if is_teardown_noop(error.status) => Ok(self.ledger_writer().drain().len()),
            Err(error) => Err(failed(error, DOING.to_owned(), None)),
        }
    }

    /// Takes what fits off the ledger and frees all of it, with one warning; how many there were, and how many are still there. The context is
    /// current.
    #[track_caller]
    fn sweep(&self, causes: &str, takes: impl Fn(u64) -> bool) -> (usize, NotFreed) {
        // Graphs first: none may be left that would replay on freed memory.
        let mut memory = self.ledger_writer().live(&SWEEPABLE);
        memory.retain(|&(_, addr)| takes(addr));
        let graphs = self.destroy_graphs_using(&memory, true);
        // What an owner gave up was not forgotten by anybody.
        self.free_deferred();
        let _moving = self.moves();
        let swept = Swept { left: self.ledger_writer().drain_where(takes) };
        let count = swept.left.len();
        if count > 0 {
            tracing::warn!(
                "{} never released, and freed now: {causes}{}{}",
                counted(&swept.left, "device"),
                LargestSites(&swept.left),
                Destroyed(&graphs)
            );
        }
        (count, swept.free(self, |addr| self.free_swept(addr)))
    }

    /// Leaves the arenas that nobody owns to the process, with one line that says whose they are; none where the context is lost. No
    /// driver is asked.
    fn leave_arenas(&self) {
        if self.context_fault().is_some() {
            return self.drop_survivors();
        }
        let mut left = self.ledger_writer().left_of(AllocKind::Arena);
        left.retain(|&(base, _)| !self.ends_with_backend(AllocKind::Arena, base));
        self.leave_to_process(&left);
        if !left.is_empty() {
            tracing::info!(
                "{} left to the process by a dropped backend of device {}, for free_arena of any other backend there{}",
                counted(&left, "arena"),
                self.ordinal(),
                LargestSites(&left)
            );
        }
    }

    /// Whether there are arenas whose context is gone, and they with it. Asked twice, because nobody can free what is forgotten.
    fn arenas_are_gone(&self) -> bool {
        let is_gone = || memory_info_of(self.driver()).is_err_and(|error| is_teardown_noop(error.status));
        !self.ledger_writer().live(&[AllocKind::Arena]).is_empty() && is_gone() && is_gone()
    }

    /// Whether the drop frees memory of a kind that no sweep takes.
    fn ends_with_backend(&self, kind: AllocKind, base: u64) -> bool {
        kind != AllocKind::Arena || self.owned_arenas().ends_with_backend(base)
    }

    /// What the drop frees of the kinds that no sweep takes.
    fn owned_memory(&self) -> Vec<(AllocKind, u64)> {
        let mut owned = self.ledger_writer().live(&OWNED);
        owned.retain(|&(kind, base)| self.ends_with_backend(kind, base));
        owned
    }

    /// Frees what is left of a kind that no sweep takes, with a warning of its own. The context is current.
    fn free_left(&self, kind: AllocKind, free: impl Fn(u64) -> Result<(), DriverError>) {
        let swept = self.left_of(kind);
        if swept.left.is_empty() {
            return;
        }
        tracing::warn!(
            "{} left when the backend was dropped, and freed now: their owner should have freed them before{}",
            counted(&swept.left, kind.name()),
            LargestSites(&swept.left)
        );
        swept.free(self, free);
    }

    /// Takes what the drop frees of a kind off the ledger.
    fn left_of(&self, kind: AllocKind) -> Swept {
        Swept { left: self.ledger_writer().drain_kind(kind, |base| self.ends_with_backend(kind, base)) }
    }

    /// Forgets all that went with the context.
    fn forget_all(&self) {
        self.drop_survivors();
        self.ledger_writer().drain();
        for kind in [AllocKind::Padding, AllocKind::Arena, AllocKind::Pinned] {
            self.ledger_writer().drain_kind(kind, |_| true);
        }
    }

    /// Whether the context is lost, so that nothing can be freed; one line then counts what stays. An arena that nobody owns would
    /// have stayed anyway, and is not counted.
    fn is_left_behind(&self) -> bool {
        let Some(reason) = self.context_fault() else { return false };
        let ledger = self.ledger_writer().ledger();
        let left = self.ledger_writer().live(&SWEEPABLE).len() + self.owned_memory().len();
        let padding = ledger.padding_bytes();
        let allocations = (left > 0)
            .then(|| if left == 1 { "1 allocation".to_owned() } else { format!("{left} allocations") });
        let padding = (padding > 0).then(|| format!("{} of red zones and quarantine", ByteSize::of(padding)));
        let what: Vec<String> = allocations.into_iter().chain(padding).collect();
        if !what.is_empty() {
            tracing::warn!(
                "{} of a dropped backend cannot be freed because {reason}; the system frees their memory when the process ends",
                what.join(" and ")
            );
        }
        self.drop_survivors();
        true
    }

    /// Destroys graphs of other backends that use an owned arena or pinned memory of this one, which is freed now. The sweep does
    /// the same for the other kinds of memory.
    fn destroy_foreign_graphs(&self) {
        let graphs = self.destroy_graphs_using(&self.owned_memory(), true);
        if !graphs.is_empty() {
            tracing::warn!(
                "memory is freed with its backend while graphs of other backends use it{}",
                Destroyed(&graphs)
            );
        }
    }

    /// Frees all that is left but the arenas that nobody owns, on whichever thread drops the backend. Never panics, and never
    /// frees twice: each allocation is removed from the ledger before it is freed.
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
                    |_| true,
                );
                // The first free may be what meets a fault.
                if self.is_left_behind() {
                    return;
                }
                self.close_zones();
                // Freed memory that the driver had refused to take back.
                let padding = self.left_of(AllocKind::Padding);
                padding.free(self, |addr| self.driver_free(addr));
                self.free_left(AllocKind::Arena, |addr| self.driver_free(addr));
                self.free_left(AllocKind::Pinned, |addr| self.driver_free_pinned(addr));
                if self.is_left_behind() {
                    return;
                }
                // Behind the memory, whose freeing waits for the work that is left in the streams.
                self.destroy_left();
                if self.arenas_are_gone() {
                    self.forget_all();
                } else {
                    self.leave_arenas();
                }
            }
            // A context that is gone has taken its memory with it; a probe that outlives the backend must not show it.
            Err(error) if is_teardown_noop(error.status) => {
                self.end_all_graphs(false);
                self.forget_all();
            }
            Err(error) => {
                self.end_all_graphs(false);
                self.leave_arenas();
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

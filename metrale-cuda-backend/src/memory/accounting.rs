// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend's account: every term behind the driver's used bytes, and what is left over.

use metrale_ledger::{ByteSize, Totals};

use super::{Cost, Quality, Term};
use crate::backend::MetraleCudaBackend;
use crate::call::Doing;
use crate::error::Result;

/// Questions to the driver before an account is made of two moments: another thread allocates all the time.
const TRIES: usize = 4;

impl MetraleCudaBackend {
    /// The driver's used bytes and the ledger's totals, of one moment if the other threads let it be one.
    pub(crate) fn one_moment(&self) -> Result<(u64, Totals)> {
        let ask = || self.ask_memory_info().doing(|| "asking for the free memory".to_owned());
        let ledger = self.ledger_writer().ledger();
        for _ in 0..TRIES {
            let before = ledger.snapshot().totals;
            let Some(info) = self.at_rest(&ask) else { break };
            let after = ledger.snapshot().totals;
            if after == before {
                return Ok((info?.used_bytes(), after));
            }
        }
        Ok((ask()?.used_bytes(), ledger.snapshot().totals))
    }

    pub(crate) fn terms(&self, totals: &Totals) -> Vec<Term> {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let counted =
            |count: u64, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
        let costs = self.costs();
        let zones = self.redzone_status();
        let quarantine_bytes = zones.quarantine_bytes;
        let table = if zones.by_kernel == Some(true) { ", and the scan's table" } else { "" };
        let device_bytes = totals.live_bytes.saturating_sub(totals.managed_bytes);
        let mut terms = vec![
            Term::new("context baseline", signed(costs.baseline()), Quality::Measured)
                .note("the context, and what all else held when the backend began"),
            Term::new("modules", costs.of(Cost::Modules).bytes(), Quality::Measured)
                .note(counted(self.registry().modules().len() as u64, "module")),
            Term::new("streams", costs.of(Cost::Streams).bytes(), Quality::Measured).note(format!(
                "{} alive, {} made; the driver keeps their pool",
                self.streams().live().len(),
                costs.of(Cost::Streams).times()
            )),
            Term::new("graphs", costs.of(Cost::Graphs).bytes(), Quality::Measured).note(format!(
                "{} instantiated; the driver keeps their pool",
                costs.of(Cost::Graphs).times()
            )),
            Term::new("ledger", signed(device_bytes), Quality::Measured).note(format!(
                "{}, as asked for",
                counted(totals.live_count.saturating_sub(totals.managed_count), "allocation")
            )),
            Term::new("slack", signed(totals.slack_bytes), Quality::Modelled)
                .note("the rest of the 2 MiB pages they touch"),
            Term::new(
                "red-zone pads",
                signed(totals.padding_bytes.saturating_sub(quarantine_bytes)),
                Quality::Measured,
            )
            .note(format!("{}{table}", counted(zones.allocations as u64, "padded allocation"))),
            Term::new("quarantine", signed(quarantine_bytes), Quality::Measured)
                .note(counted(zones.quarantined as u64, "freed allocation")),
            Term::new("arenas", signed(totals.arena_resident_bytes), Quality::Modelled).note(format!(
                "{} of {}, pages that only they touch",
                counted(totals.arena_count, "arena"),
                ByteSize(totals.arena_bytes)
            )),
        ];
        if totals.managed_count > 0 {
            terms.push(Term::new("managed", 0, Quality::Unknown).note(format!(
                "{} of {}: how much of it lies on the device is not known, and shows in the remainder",
                counted(totals.managed_count, "allocation"),
                ByteSize(totals.managed_bytes)
            )));
        }
        terms.push(
            Term::new("other processes", 0, Quality::Unknown)
                .note("from before in the baseline, from since in the remainder"),
        );
        terms
    }
}

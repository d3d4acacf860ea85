// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an allocation that does not fit is told: who holds what, and what would have to go.

use std::panic::Location;

use metrale_driver_sys::DriverError;
use metrale_ledger::{AllocKind, SMALL_ALLOC_CHUNK, Snapshot};

use super::host_limit::HostMost;
use super::out_of_memory::{Holder, OutOfMemory, Verdict};
use crate::backend::MetraleCudaBackend;

/// Events shown, where any are kept.
const EVENTS: usize = 10;

/// Rows shown of call sites and of scopes.
const ROWS: usize = 5;

impl MetraleCudaBackend {
    /// Gathers the answer for `bytes`, which take `needed_bytes` with what surrounds them. The thread is known to be bound.
    pub(crate) fn out_of_memory(
        &self,
        bytes: usize,
        needed_bytes: usize,
        kind: AllocKind,
        site: &'static Location<'static>,
        driver: Option<DriverError>,
    ) -> OutOfMemory {
        // A driver that cannot say how much is free leaves the rest of the answer as useful as it was.
        let free_bytes = self.ask_memory_info().ok().map(|info| info.free_bytes);
        let snapshot = self.ledger_writer().ledger().snapshot();
        let request = Request {
            kind,
            bytes: bytes as u64,
            needed_bytes: needed_bytes as u64,
            site,
            driver,
            ordinal: self.ordinal(),
            free_bytes,
            host: self.host_most(),
        };
        let mut events = self.ledger_writer().ledger().recent_events();
        let last_events = events.split_off(events.len().saturating_sub(EVENTS));
        OutOfMemory { last_events, ..request.answer(&snapshot, self.total_bytes()) }
    }
}

/// What was asked for, and what the driver said.
struct Request {
    kind: AllocKind,
    bytes: u64,
    needed_bytes: u64,
    site: &'static Location<'static>,
    driver: Option<DriverError>,
    ordinal: usize,
    free_bytes: Option<u64>,
    host: HostMost,
}

impl Request {
    /// The whole answer, from numbers alone.
    fn answer(self, snapshot: &Snapshot, total_bytes: u64) -> OutOfMemory {
        let totals = snapshot.totals;
        let sites: Vec<_> = snapshot
            .by_site()
            .into_iter()
            .map(|row| Holder { name: row.site.to_string(), bytes: row.bytes, count: row.count })
            .collect();
        let scopes: Vec<_> = snapshot
            .by_scope()
            .into_iter()
            .filter_map(|row| Some(Holder { name: row.label?, bytes: row.bytes, count: row.count }))
            .collect();
        let held = totals.resident_bytes.saturating_add(totals.arena_resident_bytes);
        OutOfMemory {
            kind: self.kind,
            requested_bytes: self.bytes,
            site: self.site,
            ordinal: self.ordinal,
            free_bytes: self.free_bytes,
            total_bytes,
            live_bytes: totals.live_bytes,
            live_count: totals.live_count,
            resident_bytes: totals.resident_bytes,
            slack_bytes: totals.slack_bytes,
            arena_resident_bytes: totals.arena_resident_bytes,
            pinned_bytes: totals.pinned_bytes,
            verdict: match self.kind {
                AllocKind::Pinned => pinned_verdict(self.bytes, totals.pinned_bytes, self.host),
                AllocKind::Managed if self.bytes > self.host.managed_bytes => {
                    above_host(self.bytes, self.host.managed_bytes)
                }
                kind => verdict(kind, self.needed_bytes, self.free_bytes, total_bytes, held, &sites, &scopes),
            },
            largest_sites: sites.into_iter().take(ROWS).collect(),
            largest_scopes: scopes.into_iter().take(ROWS).collect(),
            last_events: Vec::new(),
            driver: self.driver,
        }
    }
}

const fn above_host(bytes: u64, most_bytes: u64) -> Verdict {
    Verdict::AboveHost { excess_bytes: bytes - most_bytes, most_bytes }
}

/// What would have to go for `bytes` to be pinned, where this backend has pinned `pinned_bytes`.
fn pinned_verdict(bytes: u64, pinned_bytes: u64, host: HostMost) -> Verdict {
    if bytes > host.pinned_bytes {
        return above_host(bytes, host.pinned_bytes);
    }
    let wanted = pinned_bytes.saturating_add(bytes);
    match host.limit_bytes {
        Some(limit_bytes) if wanted > limit_bytes => {
            Verdict::HostLimit { limit_bytes, missing_bytes: wanted - limit_bytes }
        }
        _ => Verdict::Host,
    }
}

/// What would have to go for `bytes` of device memory to fit, where this backend keeps `held` bytes of pages.
fn verdict(
    kind: AllocKind,
    bytes: u64,
    free: Option<u64>,
    total: u64,
    held: u64,
    sites: &[Holder],
    scopes: &[Holder],
) -> Verdict {
    // New memory comes in whole pages; what is smaller was refused because no chunk had a large enough hole and no page was left.
    let needed = bytes.checked_next_multiple_of(SMALL_ALLOC_CHUNK).unwrap_or(u64::MAX);
    if needed > total && kind != AllocKind::Managed {
        let least = if bytes > total { bytes } else { needed };
        return Verdict::AboveTotal { excess_bytes: least - total };
    }
    let Some(free) = free else { return Verdict::Unknown };
    let missing_bytes = needed.saturating_sub(free);
    if missing_bytes == 0 {
        return Verdict::EnoughIsFree;
    }
    if missing_bytes > held {
        return Verdict::FreeOthers { missing_bytes, beyond_ours_bytes: missing_bytes - held };
    }
    Verdict::FreeOurs {
        missing_bytes,
        sites: how_many(sites, missing_bytes),
        scopes: how_many(scopes, missing_bytes),
    }
}

/// How many of the holders, largest first, hold `bytes` together.
fn how_many(holders: &[Holder], bytes: u64) -> Option<usize> {
    let mut sum = 0_u64;
    let last = holders.iter().position(|holder| {
        sum = sum.saturating_add(holder.bytes);
        sum >= bytes
    });
    last.map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sites(mib: &[u64]) -> Vec<Holder> {
        let row = |&mib: &u64| Holder { name: format!("{mib}.rs:1:1"), bytes: mib * MIB, count: 1 };
        mib.iter().map(row).collect()
    }

    fn device(bytes: u64, free: u64, held: u64, holders: &[u64]) -> Verdict {
        verdict(AllocKind::Device, bytes, Some(free), 1000 * MIB, held, &sites(holders), &[])
    }

    #[test]
    fn the_verdict_follows_from_the_numbers() {
        assert_eq!(device(1001 * MIB, 900 * MIB, 0, &[]), Verdict::AboveTotal { excess_bytes: MIB });
        // 100 MiB + 1 byte takes 102 MiB of pages.
        let ours = |missing, sites| Verdict::FreeOurs { missing_bytes: missing * MIB, sites, scopes: None };
        assert_eq!(device(100 * MIB + 1, 90 * MIB, 500 * MIB, &[300, 200]), ours(12, Some(1)));
        assert_eq!(device(400 * MIB, 0, 500 * MIB, &[300, 200]), ours(400, Some(2)));
        // Pages hold more than was asked for.
        assert_eq!(device(500 * MIB, 0, 500 * MIB, &[300, 100]), ours(500, None));
        assert_eq!(
            device(500 * MIB, 0, 200 * MIB, &[200]),
            Verdict::FreeOthers { missing_bytes: 500 * MIB, beyond_ours_bytes: 300 * MIB }
        );
        assert_eq!(device(4096, 2 * MIB, 0, &[]), Verdict::EnoughIsFree);
        assert_eq!(
            device(4096, 2 * MIB - 1, 2 * MIB, &[1]),
            Verdict::FreeOurs { missing_bytes: 1, sites: Some(1), scopes: None }
        );
        assert_eq!(verdict(AllocKind::Device, 1, None, 4 * MIB, 0, &[], &[]), Verdict::Unknown);
        // In whole pages it is more than the device has, though its bytes are not.
        assert_eq!(
            verdict(AllocKind::Device, 2 * MIB + 1, Some(0), 3 * MIB, 0, &[], &[]),
            Verdict::AboveTotal { excess_bytes: MIB }
        );
    }

    #[test]
    fn what_can_be_pinned_is_bounded_by_the_host_and_by_the_groups_limit() {
        let host = |most, limit_bytes| HostMost { pinned_bytes: most, managed_bytes: most, limit_bytes };
        assert_eq!(pinned_verdict(100, 50, host(100, None)), Verdict::Host);
        assert_eq!(
            pinned_verdict(101, 0, host(100, None)),
            Verdict::AboveHost { excess_bytes: 1, most_bytes: 100 }
        );
        assert_eq!(pinned_verdict(50, 50, host(100, Some(100))), Verdict::Host);
        let limited = pinned_verdict(60, 50, host(100, Some(100)));
        assert_eq!(limited, Verdict::HostLimit { limit_bytes: 100, missing_bytes: 10 });
        assert!(limited.to_string().contains("control group"), "{limited}");
        assert!(matches!(pinned_verdict(u64::MAX, u64::MAX, host(1, Some(1))), Verdict::AboveHost { .. }));
    }

    #[test]
    fn what_to_free_is_told_by_call_site_and_by_scope() {
        let text = |sites, scopes| Verdict::FreeOurs { missing_bytes: 3 * MIB, sites, scopes }.to_string();
        assert_eq!(
            text(Some(1), Some(2)),
            "3.00 MiB must go; the largest call site, or the 2 largest scopes would do"
        );
        assert_eq!(text(Some(2), None), "3.00 MiB must go; the 2 largest call sites would do");
        assert!(text(None, None).contains("slack and arenas"));
        let given = verdict(
            AllocKind::Device,
            4 * MIB,
            Some(0),
            1000 * MIB,
            9 * MIB,
            &sites(&[7, 2]),
            &sites(&[2, 2]),
        );
        assert_eq!(given, Verdict::FreeOurs { missing_bytes: 4 * MIB, sites: Some(1), scopes: Some(2) });
    }

    #[test]
    fn the_largest_request_does_not_wrap() {
        assert!(matches!(
            verdict(AllocKind::Managed, u64::MAX, Some(1), 1000, 0, &[], &[]),
            Verdict::FreeOthers { missing_bytes, .. } if missing_bytes == u64::MAX - 1
        ));
    }
}

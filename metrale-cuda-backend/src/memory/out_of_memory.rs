// SPDX-License-Identifier: MIT OR Apache-2.0
//! Out of memory, said so that the reader knows what to do: who asked, who holds what, what would have to go.

use core::fmt;
use std::panic::Location;

use metrale_driver_sys::DriverError;
use metrale_ledger::{AllocEvent, AllocKind, ByteSize, Label, SMALL_ALLOC_CHUNK, Snapshot, file_line};

use super::host_limit::HostMost;
use crate::backend::MetraleCudaBackend;
use crate::error::{Cause, ErrorKind, Remedy};

/// Rows shown of call sites and of scopes.
const ROWS: usize = 5;
/// Events shown, where any are kept.
const EVENTS: usize = 10;

/// A call site or a scope, and what it holds on the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `file:line`, or the scope's label.
    pub name: String,
    /// Bytes it holds, as asked for.
    pub bytes: u64,
    /// Allocations it holds.
    pub count: u64,
}

/// What would have to happen for the request to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It never fits: the request, with the bands around it and in whole pages, is larger than the device.
    AboveTotal {
        /// By how many bytes.
        excess_bytes: u64,
    },
    /// It never fits: pinned or managed memory above what there is of it in all.
    AboveHost {
        /// By how many bytes.
        excess_bytes: u64,
        /// The bytes there are: the host's memory or the limit of the process's control group, whichever is less, and for
        /// managed memory the device's and the swap space too.
        most_bytes: u64,
    },
    /// So much must be freed, and this backend holds that much.
    FreeOurs {
        /// Bytes that are missing.
        missing_bytes: u64,
        /// How many of the largest call sites hold as much together; `None` where only slack and arenas make it up.
        sites: Option<usize>,
        /// The same for scopes; `None` too where most has no scope.
        scopes: Option<usize>,
    },
    /// So much must be freed, and this backend does not hold that much: contexts, modules, libraries, other processes.
    FreeOthers {
        /// Bytes that are missing.
        missing_bytes: u64,
        /// Bytes still missing when all that this backend holds is freed.
        beyond_ours_bytes: u64,
    },
    /// As much is free, and the driver refused anyway: another took it meanwhile, or a limit is in force.
    EnoughIsFree,
    /// The host has no more to pin; the device's figures do not bear on it.
    Host,
    /// The control group of this process limits host memory, and what is pinned already leaves too little.
    HostLimit {
        /// The limit in bytes.
        limit_bytes: u64,
        /// Bytes that must be freed.
        missing_bytes: u64,
    },
    /// The driver did not say how much is free.
    Unknown,
}

/// The driver has no memory to give, or never could have. Free something and try again, or ask for less.
///
/// `Display` is the whole answer over several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// What sort of memory was asked for.
    pub kind: AllocKind,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// The line that asked.
    pub site: &'static Location<'static>,
    /// The device.
    pub ordinal: usize,
    /// Bytes free on the device when the request was refused; `None` where the driver did not say.
    pub free_bytes: Option<u64>,
    /// The device's memory in bytes.
    pub total_bytes: u64,
    /// Bytes on the ledger, as asked for.
    pub live_bytes: u64,
    /// Allocations on the ledger.
    pub live_count: u64,
    /// Bytes the driver keeps for the ledger's device allocations, in whole pages.
    pub resident_bytes: u64,
    /// Of these, what nobody asked for.
    pub slack_bytes: u64,
    /// Bytes of the pages that only arenas use.
    pub arena_resident_bytes: u64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: u64,
    /// The largest call sites, up to five.
    pub largest_sites: Vec<Holder>,
    /// The largest scopes, up to five; allocations without one are left out.
    pub largest_scopes: Vec<Holder>,
    /// The ledger's last events, up to ten, the newest last; none unless
    /// [`recent_events`](crate::BackendConfig::recent_events) are kept.
    pub last_events: Vec<AllocEvent>,
    /// What would have to go.
    pub verdict: Verdict,
    /// The driver's answer; `None` where it was not asked, since the request is above the total or a limit.
    pub driver: Option<DriverError>,
}

impl Cause for OutOfMemory {
    fn kind(&self) -> ErrorKind {
        ErrorKind::OutOfMemory
    }

    fn remedy(&self) -> Remedy {
        self.remedy()
    }
}

impl OutOfMemory {
    /// What the caller can do: no freeing helps a request for more than there is.
    #[must_use]
    pub const fn remedy(&self) -> Remedy {
        match self.verdict {
            Verdict::AboveTotal { .. } | Verdict::AboveHost { .. } => Remedy::FixCall,
            _ => Remedy::FreeAndRetry,
        }
    }
}

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

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requested = ByteSize(self.requested_bytes);
        write!(
            f,
            "out of memory: {requested} of {} memory asked for at {}",
            self.kind,
            file_line(self.site)
        )?;
        match self.driver {
            Some(driver) => write!(f, " ({driver})")?,
            None => f.write_str(" (the driver was not asked)")?,
        }
        write!(f, "\n  device {}: ", self.ordinal)?;
        match self.free_bytes {
            Some(free) => write!(f, "{} free of {}", ByteSize(free), ByteSize(self.total_bytes))?,
            None => {
                write!(f, "{} in all, how much is free the driver does not say", ByteSize(self.total_bytes))?
            }
        }
        write!(
            f,
            "\n  this backend: {} live in {} allocation{}, {} resident, {} of it slack",
            ByteSize(self.live_bytes),
            self.live_count,
            if self.live_count == 1 { "" } else { "s" },
            ByteSize(self.resident_bytes),
            ByteSize(self.slack_bytes)
        )?;
        for (what, bytes) in
            [("arenas", self.arena_resident_bytes), ("pinned host memory", self.pinned_bytes)]
        {
            if bytes > 0 {
                write!(f, ", {} in {what}", ByteSize(bytes))?;
            }
        }
        for (title, rows) in [("call sites", &self.largest_sites), ("scopes", &self.largest_scopes)] {
            if rows.is_empty() {
                continue;
            }
            write!(f, "\n  largest {title}:")?;
            for Holder { name, bytes, count } in rows {
                let name = Label(name);
                write!(f, "\n  {:>14}  x{count:<6} {name}", ByteSize(*bytes).to_string())?;
            }
        }
        if !self.last_events.is_empty() {
            write!(f, "\n  last on the ledger:")?;
            self.last_events.iter().try_for_each(|event| write!(f, "\n    {event}"))?;
        }
        write!(f, "\n  to fit: {}", self.verdict)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AboveTotal { excess_bytes } => write!(
                f,
                "it never will, because it is {} more than the whole device: split it, or use a smaller or quantized model",
                ByteSize(excess_bytes)
            ),
            Self::AboveHost { excess_bytes, most_bytes } => write!(
                f,
                "it never will, because it is {} more than the {} there are on this machine and in this process's control \
                 group: split it, or raise the group's limit",
                ByteSize(excess_bytes),
                ByteSize(most_bytes)
            ),
            Self::FreeOurs { missing_bytes, sites, scopes } => {
                write!(f, "{} must go; ", ByteSize(missing_bytes))?;
                match (sites, scopes) {
                    (None, None) => {
                        return f.write_str("all call sites, with the slack and arenas around them, hold as much");
                    }
                    (Some(sites), None) => write!(f, "{}", Largest(sites, "call site"))?,
                    (None, Some(scopes)) => write!(f, "{}", Largest(scopes, "scope"))?,
                    (Some(sites), Some(scopes)) => {
                        write!(f, "{}, or {}", Largest(sites, "call site"), Largest(scopes, "scope"))?;
                    }
                }
                f.write_str(" would do")
            }
            Self::FreeOthers { missing_bytes, beyond_ours_bytes } => write!(
                f,
                "{} must go, {} more than all that this backend holds: see what else uses the device (contexts, modules, \
                 libraries, other processes; nvidia-smi lists them)",
                ByteSize(missing_bytes),
                ByteSize(beyond_ours_bytes)
            ),
            Self::EnoughIsFree => f.write_str(
                "as much is free now; another may have taken and returned it, so try again, and look for a limit on this \
                 process (MPS, a container)",
            ),
            Self::Host => f.write_str(
                "free pinned memory, or see the host's free memory and the limits on this process (ulimit -l, a \
                 container's memory)",
            ),
            Self::HostLimit { limit_bytes, missing_bytes } => write!(
                f,
                "{} of pinned memory must go, because the control group of this process limits host memory to {}; or raise \
                 that limit (a container's memory)",
                ByteSize(missing_bytes),
                ByteSize(limit_bytes)
            ),
            Self::Unknown => f.write_str("free memory and try again"),
        }
    }
}

/// `the largest scope`, `the 3 largest scopes`.
struct Largest(usize, &'static str);

impl fmt::Display for Largest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(1, noun) => write!(f, "the largest {noun}"),
            Self(n, noun) => write!(f, "the {n} largest {noun}s"),
        }
    }
}

/// The driver's answer is in the text; as a source it would be said twice.
impl core::error::Error for OutOfMemory {}

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

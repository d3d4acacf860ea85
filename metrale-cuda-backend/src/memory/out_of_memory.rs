// SPDX-License-Identifier: MIT OR Apache-2.0
//! Out of memory, said so that the reader knows what to do: who asked, who holds what, what would have to go.

use core::fmt;
use std::panic::Location;

use metrale_driver_sys::DriverError;
use metrale_ledger::{AllocEvent, AllocKind, ByteSize, Label, file_line};

use crate::error::{Cause, ErrorKind, Remedy};

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

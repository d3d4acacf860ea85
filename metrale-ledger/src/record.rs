// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records: kind, size, site and labels of one allocation.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::text::{ByteSize, Label, file_line};

/// A source line, as the compiler passes it.
pub(crate) type SourceLine = &'static Location<'static>;

/// The kind of memory of an allocation, which decides how it is counted.
///
/// | kind | `live_bytes`, report, `drain` | residency | address space |
/// |---|---|---|---|
/// | `Device` | yes | its 2 MiB pages | device |
/// | `Managed` | yes | none: the driver migrates it | device |
/// | `Arena` | no: own totals | pages only arenas touch, in a total of their own | device |
/// | `Pinned` | no: own totals | none: host memory | host |
/// | `Padding` | no: own totals | its pages count with those of `Device` | device |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum AllocKind {
    /// Plain device memory.
    Device,
    /// Managed (unified) memory.
    Managed,
    /// Device memory whose owner splits it into sub-ranges; no sweep frees it.
    Arena,
    /// Page-locked host memory. Its addresses are never compared with device addresses.
    Pinned,
    /// Device memory that the allocator itself adds or keeps: red zones and quarantine. Callers cannot free it: a free of an
    /// address in it gets the answer it would get without the padding, and [`whois`](crate::Ledger::whois) names the freed
    /// allocation that was there, or else the padding.
    Padding,
}

impl AllocKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Device, Self::Managed, Self::Arena, Self::Pinned, Self::Padding];

    /// Whether a sweep frees it, and live totals, report and drain include it.
    pub const fn is_sweepable(self) -> bool {
        matches!(self, Self::Device | Self::Managed)
    }

    /// Whether the driver packs it into the pages that [`resident_bytes`](crate::Ledger::resident_bytes) counts.
    pub(crate) const fn is_packed(self) -> bool {
        matches!(self, Self::Device | Self::Padding)
    }

    /// Whether callers allocate it, and so free it; padding is the allocator's own.
    pub(crate) const fn is_callers(self) -> bool {
        !matches!(self, Self::Padding)
    }

    /// The kind by whose call it is freed: managed memory by the call for device memory.
    pub(crate) const fn to_free(self) -> Self {
        if self.is_sweepable() { Self::Device } else { self }
    }

    /// One word for texts: `device`, `managed`, `arena`, `pinned`, `padding`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Managed => "managed",
            Self::Arena => "arena",
            Self::Pinned => "pinned",
            Self::Padding => "padding",
        }
    }
}

impl fmt::Display for AllocKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the ledger keeps of one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocRecord {
    /// Bytes as the caller asked for them.
    pub bytes: usize,
    /// The source line that allocated.
    pub site: &'static Location<'static>,
    /// Its kind of memory.
    pub kind: AllocKind,
    /// The scopes open on the allocating thread, outermost first, joined by `/`.
    pub scope: Option<Arc<str>>,
    /// The name given to this allocation.
    pub tag: Option<Arc<str>>,
    /// How many allocations this ledger had recorded before it.
    pub index: u64,
    /// Whether the driver refused to free it and the record was restored.
    pub free_refused: bool,
}

impl fmt::Display for AllocRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} memory from {}", ByteSize::of(self.bytes), self.kind, file_line(self.site))?;
        if let Some(scope) = &self.scope {
            write!(f, ", scope {}", Label(scope))?;
        }
        if let Some(tag) = &self.tag {
            write!(f, ", tag {}", Label(tag))?;
        }
        if self.free_refused {
            f.write_str(", whose free the driver refused")?;
        }
        Ok(())
    }
}

/// A record with its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveAllocation {
    /// The base address.
    pub addr: u64,
    /// Its record.
    pub record: AllocRecord,
}

impl fmt::Display for LiveAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} ({})", self.addr, self.record)
    }
}

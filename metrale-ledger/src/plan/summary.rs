// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of a plan, as plain data and in words.

use std::fmt;

use super::peaks::{LIVE, RESIDENT, class_of};
use super::{Allocator, Plan};
use crate::ByteSize;
use crate::placement::PackingRule;
use crate::text::counted;

/// What one label holds at a peak.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Holder {
    /// The label; none for the allocations without one.
    pub label: Option<String>,
    /// Bytes as asked for.
    pub bytes: u64,
    /// Number of allocations.
    pub count: u64,
}

/// The allocations of one class of sizes at a peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SizeClass {
    /// The smallest size of the class: a power of two; the largest is below twice that. Allocations of 0 bytes are in the class from 1.
    pub from_bytes: u64,
    /// Number of allocations.
    pub count: u64,
    /// Bytes as asked for.
    pub bytes: u64,
    /// Bytes kept beyond that since each size is rounded up.
    pub rounding_bytes: u64,
}

/// The fullest moment of live or of resident bytes. Everything in it is of this one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Peak {
    /// How high: live or resident bytes.
    pub bytes: u64,
    /// The number of the operation after which it was reached, from 0; none where nothing was allocated.
    pub operation: Option<u64>,
    /// Allocations that were freed before it, or made way for another one. Where there are none, rounding and holes come from
    /// sizes and their order alone.
    pub frees_before: u64,
    /// Bytes live there, as asked for.
    pub live_bytes: u64,
    /// Bytes the device keeps there.
    pub resident_bytes: u64,
    /// Who holds the live bytes, largest first, then by label.
    pub holders: Vec<Holder>,
    /// The live allocations by size, smallest first; classes with none are left out.
    pub classes: Vec<SizeClass>,
    /// Bytes of chunks in which nothing lies: what is neither live nor rounding.
    pub hole_bytes: u64,
}

/// What a stream of operations takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Summary {
    /// Number of operations, refused ones among them.
    pub operations: u64,
    /// Number of allocations.
    pub allocations: u64,
    /// Number of frees.
    pub frees: u64,
    /// Bytes of all allocations ever, as asked for.
    pub requested_bytes: u64,
    /// The highest live bytes.
    pub peak_live: Peak,
    /// The highest resident bytes: what the device must have.
    pub peak_resident: Peak,
    /// Number of allocations live at the end.
    pub end_live_count: u64,
    /// Bytes live at the end, as asked for.
    pub end_live_bytes: u64,
    /// Bytes the device keeps at the end.
    pub end_resident_bytes: u64,
    /// Bytes of one arena that holds everything: the highest sum of sizes, each rounded up to the granularity, in whole pages.
    /// It is exact where nothing is freed, and a lower bound where allocations come and go.
    pub arena_resident_bytes: u64,
    /// The allocator of the operations that named no other.
    pub allocator: Allocator,
    /// Bytes of a chunk of the packing rule, which small allocations share.
    pub chunk_bytes: u64,
    /// Bytes that every size is rounded up to.
    pub granularity_bytes: u64,
    /// Bytes of a page: sizes of a chunk or more are rounded up to whole pages.
    pub page_bytes: u64,
}

impl Plan {
    /// The results so far.
    pub fn summary(&self) -> Summary {
        let rule = self.rule();
        Summary {
            operations: self.operations,
            allocations: self.allocations,
            frees: self.frees,
            requested_bytes: self.requested_bytes,
            peak_live: self.peak(LIVE),
            peak_resident: self.peak(RESIDENT),
            end_live_count: self.live_count() as u64,
            end_live_bytes: self.live_bytes(),
            end_resident_bytes: self.resident_bytes(),
            arena_resident_bytes: self
                .arena_peak_bytes
                .checked_next_multiple_of(self.device.page_bytes(self.allocator))
                .unwrap_or(u64::MAX),
            allocator: self.allocator,
            chunk_bytes: rule.chunk_bytes(),
            granularity_bytes: rule.granularity_bytes(),
            page_bytes: rule.page_bytes(),
        }
    }

    fn peak(&self, which: usize) -> Peak {
        let moment = self.peaks.moment(which);
        let (live_bytes, resident_bytes) = (moment.live_bytes, moment.resident_bytes);
        let mut holders: Vec<Holder> = self
            .names
            .iter()
            .zip(self.peaks.by_label(which))
            .filter(|(_, sum)| sum.count > 0)
            .map(|(name, sum)| {
                let label = name.as_deref().map(str::to_owned);
                Holder { label, bytes: sum.bytes, count: sum.count }
            })
            .collect();
        holders.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.label.cmp(&b.label)));
        let classes: Vec<SizeClass> = (self.peaks.by_class(which).enumerate())
            .filter(|(_, sum)| sum.count > 0)
            .map(|(class, sum)| {
                let rounding_bytes = sum.reserved - sum.bytes;
                SizeClass { from_bytes: 1 << class, count: sum.count, bytes: sum.bytes, rounding_bytes }
            })
            .collect();
        let rounding: u64 = classes.iter().map(|class| class.rounding_bytes).sum();
        Peak {
            bytes: self.peaks.bytes(which),
            operation: moment.operation,
            frees_before: moment.gone,
            live_bytes,
            resident_bytes,
            holders,
            classes,
            hole_bytes: resident_bytes - live_bytes - rounding,
        }
    }
}

impl Summary {
    /// Whether the device keeps at most `memory_bytes` at the peak.
    pub fn fits(&self, memory_bytes: u64) -> bool {
        self.peak_resident.bytes <= memory_bytes
    }

    /// The packing rule of `cuMemAlloc` that was planned under.
    pub fn rule(&self) -> PackingRule {
        // Made from a rule, so the numbers fit together, unless someone wrote others into it.
        let rule = PackingRule::new(self.chunk_bytes, self.granularity_bytes);
        rule.and_then(|rule| rule.with_page_bytes(self.page_bytes)).unwrap_or_default()
    }

    /// Whether something was allocated that is not live any more.
    pub fn comes_and_goes(&self) -> bool {
        self.allocations > self.end_live_count
    }

    /// Bytes that one arena would save at the peak, if any.
    pub fn arena_saves_bytes(&self) -> u64 {
        self.peak_resident.bytes.saturating_sub(self.arena_resident_bytes)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} of {} in all, {}, {}",
            counted(self.allocations, "allocation"),
            ByteSize(self.requested_bytes),
            counted(self.frees, "free"),
            counted(self.operations, "operation")
        )?;
        for (name, peak) in [("live", &self.peak_live), ("resident", &self.peak_resident)] {
            write!(
                f,
                "peak {name}: {} ({} live, {} resident)",
                ByteSize(peak.bytes),
                ByteSize(peak.live_bytes),
                ByteSize(peak.resident_bytes)
            )?;
            match peak.operation {
                Some(operation) => writeln!(f, " at operation {operation}")?,
                None => writeln!(f)?,
            }
        }
        writeln!(
            f,
            "end: {} live in {}, {} resident",
            ByteSize(self.end_live_bytes),
            counted(self.end_live_count, "allocation"),
            ByteSize(self.end_resident_bytes)
        )?;
        let peak = &self.peak_resident;
        let rounding: u64 = peak.classes.iter().map(|class| class.rounding_bytes).sum();
        writeln!(
            f,
            "at the resident peak {} are rounding and {} holes between allocations",
            ByteSize(rounding),
            ByteSize(peak.hole_bytes)
        )?;
        let at_least = if self.comes_and_goes() { "at least " } else { "" };
        match self.arena_saves_bytes() {
            0 => writeln!(
                f,
                "one arena would take {at_least}{}, and save nothing",
                ByteSize(self.arena_resident_bytes)
            ),
            saved => writeln!(
                f,
                "one arena would take {at_least}{}, and save {}{}",
                ByteSize(self.arena_resident_bytes),
                if self.comes_and_goes() { "at most " } else { "" },
                ByteSize(saved)
            ),
        }
    }
}

impl SizeClass {
    /// Whether an allocation of `bytes` is of this class.
    pub fn holds(&self, bytes: u64) -> bool {
        1u64 << class_of(bytes) == self.from_bytes
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arenas and their parts in a snapshot, as plain data and as the report's tree.

use std::fmt::Write as _;

use crate::report::counted;
use crate::snapshot::{Group, Site};
use crate::sub_range::{Parts, SubRange};
use crate::{AllocKind, AllocRecord, ByteSize, Label};

/// A part of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PartRow {
    /// Its name.
    pub name: String,
    /// Who took it.
    pub site: Site,
    /// In which scope.
    pub scope: Option<String>,
    /// How far behind the arena's first byte, in bytes.
    pub offset_bytes: u64,
    /// Its bytes as asked for.
    pub bytes: u64,
}

/// An arena and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ArenaRow {
    /// Who made it.
    pub site: Site,
    /// In which scope.
    pub scope: Option<String>,
    /// Under which tag.
    pub tag: Option<String>,
    /// Its bytes as asked for.
    pub bytes: u64,
    /// Its parts, by offset.
    pub parts: Vec<PartRow>,
}

impl ArenaRow {
    /// From what was copied under the lock.
    pub(crate) fn new(base: u64, record: &AllocRecord, parts: &Parts) -> Self {
        let text = |label: &Option<std::sync::Arc<str>>| label.as_ref().map(ToString::to_string);
        let row = |part: &SubRange| PartRow {
            name: part.name.to_string(),
            site: Site::of(part.site),
            scope: text(&part.scope),
            offset_bytes: part.addr.wrapping_sub(base),
            bytes: part.bytes as u64,
        };
        Self {
            site: Site::of(record.site),
            scope: text(&record.scope),
            tag: text(&record.tag),
            bytes: record.bytes as u64,
            parts: parts.values().map(row).collect(),
        }
    }

    /// Bytes of its parts.
    pub fn used_bytes(&self) -> u64 {
        sum(self.parts.iter())
    }

    /// Its parts as groups, to be summed as allocations are.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> + '_ {
        self.parts.iter().map(|part| Group {
            site: part.site.clone(),
            scope: part.scope.clone(),
            tag: Some(part.name.clone()),
            kind: AllocKind::Arena,
            bytes: part.bytes,
            count: 1,
        })
    }
}

/// Bytes of parts together. A snapshot that was read from somewhere may claim any.
fn sum<'a>(parts: impl Iterator<Item = &'a PartRow>) -> u64 {
    parts.fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// Sorts arenas as a report shows them: largest first, then by name.
pub(crate) fn sort(arenas: &mut [ArenaRow]) {
    let name = |a: &ArenaRow| (a.site.clone(), a.scope.clone(), a.tag.clone());
    arenas.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| name(a).cmp(&name(b))).then_with(|| {
            let first = |arena: &ArenaRow| arena.parts.first().map(|part| part.name.clone());
            first(a).cmp(&first(b))
        })
    });
}

/// Adds the tree of arenas: for each up to `top_n` parts, largest first, one line that sums the rest, one
/// for what is free.
pub(crate) fn write(text: &mut String, arenas: &[ArenaRow], top_n: usize) {
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{words}");
    };
    if arenas.is_empty() {
        return;
    }
    line(format_args!("arenas:"));
    for arena in arenas {
        let parts = counted(arena.parts.len() as u64, "part");
        let site = &arena.site;
        line(format_args!("{:>12}  in {parts:<9} {site}", ByteSize(arena.bytes)));
        let mut largest: Vec<&PartRow> = arena.parts.iter().collect();
        // Stable: equally large ones stay in the order of their places.
        largest.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let (top, rest) = largest.split_at(top_n.min(largest.len()));
        for part in top {
            line(format_args!("{:>14}  {}", ByteSize(part.bytes), Label(&part.name)));
        }
        if !rest.is_empty() {
            let bytes = sum(rest.iter().copied());
            let more = if top.is_empty() { "" } else { "more " };
            let parts = counted(rest.len() as u64, &format!("{more}part"));
            line(format_args!("{:>14}  in {parts}", ByteSize(bytes)));
        }
        line(format_args!(
            "{:>14}  (free, or between parts)",
            ByteSize(arena.bytes.saturating_sub(arena.used_bytes()))
        ));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! One moment of a ledger as plain data.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::record::{AllocKind, AllocRecord};
use crate::sub_range::{Parts, SubRange};
use crate::totals::{Totals, narrow};

/// A place in the source, as a snapshot writes it. Shown as `file:line`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Site {
    /// The file as the compiler names it.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
    /// Its column, from 1.
    pub column: u32,
}

impl Site {
    pub(crate) fn of(location: &Location<'_>) -> Self {
        Self { file: location.file().to_owned(), line: location.line(), column: location.column() }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Live allocations of one site, in one scope, under one tag, of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Group {
    /// The call site.
    pub site: Site,
    /// Its scope; none outside any.
    pub scope: Option<String>,
    /// Its tag; none without one.
    pub tag: Option<String>,
    /// Its kind of memory.
    pub kind: AllocKind,
    /// Live bytes, as asked for.
    pub bytes: u64,
    /// Number of live allocations.
    pub count: u64,
}

impl Group {
    pub(crate) fn key(&self) -> (&Site, &Option<String>, &Option<String>, AllocKind) {
        (&self.site, &self.scope, &self.tag, self.kind)
    }
}

/// A call site and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SiteRow {
    /// The call site.
    pub site: Site,
    /// Live bytes, as asked for.
    pub bytes: u64,
    /// Number of live allocations.
    pub count: u64,
}

/// A source file and what its sites hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileRow {
    /// The file as the compiler names it.
    pub file: String,
    /// Live bytes, as asked for.
    pub bytes: u64,
    /// Number of live allocations.
    pub count: u64,
}

/// A scope or tag and what it holds; the row without a label sums the allocations that have none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LabelRow {
    /// The whole label.
    pub label: Option<String>,
    /// Live bytes, as asked for.
    pub bytes: u64,
    /// Number of live allocations.
    pub count: u64,
}

/// One moment of a ledger. The same state gives the same snapshot, whatever the order of the calls that led to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The totals.
    pub totals: Totals,
    /// The groups that hold them, largest first, then by site, scope, tag and kind.
    pub groups: Vec<Group>,
    /// The arenas that have parts, largest first. Empty in a snapshot of the peak, for which no parts are kept.
    #[cfg_attr(feature = "serde", serde(default))]
    pub arenas: Vec<ArenaRow>,
}

impl Snapshot {
    /// From groups in their order and arenas in any.
    pub(crate) fn new(totals: Totals, groups: Vec<Group>, mut arenas: Vec<ArenaRow>) -> Self {
        arenas.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.key().cmp(&b.key())));
        Self { totals, groups, arenas }
    }

    /// Call sites of sweepable allocations, largest first, then by file, line and column.
    pub fn by_site(&self) -> Vec<SiteRow> {
        site_rows(self.sweepable(|group| &group.site))
    }

    /// Source files of sweepable allocations, largest first, then by name.
    pub fn by_file(&self) -> Vec<FileRow> {
        let rows = gather(self.sweepable(|group| &group.site.file), narrow);
        rows.map(|(file, bytes, count)| FileRow { file: file.clone(), bytes, count }).collect()
    }

    /// Scopes of sweepable allocations, largest first, then by label. The row without a label sums what was allocated outside
    /// any scope.
    pub fn by_scope(&self) -> Vec<LabelRow> {
        label_rows(self.sweepable(|group| &group.scope))
    }

    /// Tags of sweepable allocations, as [`by_scope`](Self::by_scope) gives scopes.
    pub fn by_tag(&self) -> Vec<LabelRow> {
        label_rows(self.sweepable(|group| &group.tag))
    }

    /// Call sites of the parts of arenas, as [`by_site`](Self::by_site) gives those of allocations.
    pub fn parts_by_site(&self) -> Vec<SiteRow> {
        site_rows(self.parts(|part| &part.site))
    }

    /// Scopes of the parts of arenas, as [`by_scope`](Self::by_scope) gives those of allocations.
    pub fn parts_by_scope(&self) -> Vec<LabelRow> {
        label_rows(self.parts(|part| &part.scope))
    }

    /// Key, bytes and number of each group of sweepable allocations.
    fn sweepable<K: 'static>(&self, key: fn(&Group) -> &K) -> impl Iterator<Item = (&K, i128, i128)> {
        let groups = self.groups.iter().filter(|group| group.kind.is_sweepable());
        groups.map(move |group| (key(group), group.bytes.into(), group.count.into()))
    }

    /// Key, bytes and number (1) of each part of an arena.
    fn parts<K: 'static>(&self, key: fn(&PartRow) -> &K) -> impl Iterator<Item = (&K, i128, i128)> {
        let parts = self.arenas.iter().flat_map(|arena| &arena.parts);
        parts.map(move |part| (key(part), part.bytes.into(), 1))
    }
}

/// A part of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PartRow {
    /// Its name.
    pub name: String,
    /// The call site that took it.
    pub site: Site,
    /// Its scope; none outside any.
    pub scope: Option<String>,
    /// Its distance from the arena's first byte, in bytes.
    pub offset_bytes: u64,
    /// Its bytes as asked for.
    pub bytes: u64,
}

/// An arena and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ArenaRow {
    /// The call site that allocated it.
    pub site: Site,
    /// Its scope; none outside any.
    pub scope: Option<String>,
    /// Its tag; none without one.
    pub tag: Option<String>,
    /// Its bytes as asked for.
    pub bytes: u64,
    /// Its parts, by offset.
    pub parts: Vec<PartRow>,
}

impl ArenaRow {
    /// From the arena's base address, its record and its parts.
    pub(crate) fn new(base: u64, record: &AllocRecord, parts: &Parts) -> Self {
        let text = |label: &Option<Arc<str>>| label.as_deref().map(str::to_owned);
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

    /// What orders arenas of equal size.
    fn key(&self) -> impl Ord {
        let first_part = self.parts.first().map(|part| &part.name);
        (&self.site, &self.scope, &self.tag, first_part)
    }

    /// Bytes of its parts.
    pub fn used_bytes(&self) -> u64 {
        part_bytes(self.parts.iter())
    }
}

/// Bytes of parts together, limited to 64 bits: a snapshot that was read from a file may claim any sizes.
pub(crate) fn part_bytes<'a>(parts: impl Iterator<Item = &'a PartRow>) -> u64 {
    parts.fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// Sums of bytes and numbers by key, largest first, then by key; keys whose sums are 0 are left out. The sums are wide, since a
/// snapshot that was read from a file may claim any numbers; `narrow` limits them to the type of the row.
pub(crate) fn gather<K: Ord, N>(
    addends: impl Iterator<Item = (K, i128, i128)>,
    narrow: fn(i128) -> N,
) -> impl Iterator<Item = (K, N, N)> {
    let mut rows: Vec<_> = addends.collect();
    rows.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    rows.dedup_by(|next, sum| {
        let is_same = next.0 == sum.0;
        if is_same {
            sum.1 += next.1;
            sum.2 += next.2;
        }
        is_same
    });
    rows.retain(|&(_, bytes, count)| (bytes, count) != (0, 0));
    // Stable: what is equally large stays in the order of its key.
    rows.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes.unsigned_abs()));
    rows.into_iter().map(move |(key, bytes, count)| (key, narrow(bytes), narrow(count)))
}

fn site_rows<'a>(groups: impl Iterator<Item = (&'a Site, i128, i128)>) -> Vec<SiteRow> {
    let rows = gather(groups, narrow);
    rows.map(|(site, bytes, count)| SiteRow { site: site.clone(), bytes, count }).collect()
}

fn label_rows<'a>(groups: impl Iterator<Item = (&'a Option<String>, i128, i128)>) -> Vec<LabelRow> {
    let rows = gather(groups, narrow);
    rows.map(|(label, bytes, count)| LabelRow { label: label.clone(), bytes, count }).collect()
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! One moment of a ledger as plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::record::{AllocKind, AllocRecord};
use crate::sub_range::{Parts, SubRange};
use crate::totals::Totals;

/// A place in the source.
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
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Live allocations that one line made in one scope, under one tag, of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Group {
    /// Who made them.
    pub site: Site,
    /// In which scope.
    pub scope: Option<String>,
    /// Under which tag.
    pub tag: Option<String>,
    /// Of which memory.
    pub kind: AllocKind,
    /// Their bytes.
    pub bytes: u64,
    /// Their number.
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
    /// Bytes live.
    pub bytes: u64,
    /// Allocations live.
    pub count: u64,
}

/// A source file and what its lines hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileRow {
    /// The file as the compiler names it.
    pub file: String,
    /// Bytes live.
    pub bytes: u64,
    /// Allocations live.
    pub count: u64,
}

/// A scope or tag and what was allocated under it; no label gathers what had none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LabelRow {
    /// The whole label.
    pub label: Option<String>,
    /// Bytes live.
    pub bytes: u64,
    /// Allocations live.
    pub count: u64,
}

/// One moment of a ledger. The same state gives the same snapshot, whatever the order of the calls that led there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The totals.
    pub totals: Totals,
    /// Who holds them, largest first, then by site, scope, tag and kind.
    pub groups: Vec<Group>,
    /// The arenas that have parts, largest first. Empty in a snapshot of the peak, for which no parts are kept.
    #[cfg_attr(feature = "serde", serde(default))]
    pub arenas: Vec<ArenaRow>,
}

impl Snapshot {
    /// Sorts, and joins what differs only in the address of its location.
    pub(crate) fn new(totals: Totals, mut groups: Vec<Group>, mut arenas: Vec<ArenaRow>) -> Self {
        groups.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        groups.dedup_by(|next, kept| {
            let same = next.key() == kept.key();
            if same {
                kept.bytes = kept.bytes.saturating_add(next.bytes);
                kept.count = kept.count.saturating_add(next.count);
            }
            same
        });
        // Stable: what is equally large stays in the order of its name.
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        sort_arenas(&mut arenas);
        Self { totals, groups, arenas }
    }

    /// Call sites of sweepable allocations, largest first, then by file, line and column.
    pub fn by_site(&self) -> Vec<SiteRow> {
        let rows = gather(self.sweepable(), |group| &group.site);
        rows.into_iter().map(|(site, bytes, count)| SiteRow { site: site.clone(), bytes, count }).collect()
    }

    /// Source files of sweepable allocations, largest first, then by name.
    pub fn by_file(&self) -> Vec<FileRow> {
        let rows = gather(self.sweepable(), |group| &group.site.file);
        rows.into_iter().map(|(file, bytes, count)| FileRow { file: file.clone(), bytes, count }).collect()
    }

    /// Scopes of sweepable allocations, largest first, then by label; what had none is a row without label.
    pub fn by_scope(&self) -> Vec<LabelRow> {
        label_rows(gather(self.sweepable(), |group| &group.scope))
    }

    /// Tags of sweepable allocations, as [`by_scope`](Self::by_scope) gives scopes.
    pub fn by_tag(&self) -> Vec<LabelRow> {
        label_rows(gather(self.sweepable(), |group| &group.tag))
    }

    /// Call sites of the parts of arenas, as [`by_site`](Self::by_site) gives those of allocations.
    pub fn parts_by_site(&self) -> Vec<SiteRow> {
        let parts = self.parts();
        let rows = gather(parts.iter(), |group| &group.site);
        rows.into_iter().map(|(site, bytes, count)| SiteRow { site: site.clone(), bytes, count }).collect()
    }

    /// Scopes of the parts of arenas, as [`by_scope`](Self::by_scope) gives those of allocations.
    pub fn parts_by_scope(&self) -> Vec<LabelRow> {
        label_rows(gather(self.parts().iter(), |group| &group.scope))
    }

    fn parts(&self) -> Vec<Group> {
        self.arenas.iter().flat_map(ArenaRow::groups).collect()
    }

    fn sweepable(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| group.kind.is_sweepable())
    }
}

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
        let text = |label: &Option<Arc<str>>| label.as_ref().map(ToString::to_string);
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
        part_bytes(self.parts.iter())
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
pub(crate) fn part_bytes<'a>(parts: impl Iterator<Item = &'a PartRow>) -> u64 {
    parts.fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// Sorts arenas as a report shows them: largest first, then by name.
fn sort_arenas(arenas: &mut [ArenaRow]) {
    let name = |a: &ArenaRow| (a.site.clone(), a.scope.clone(), a.tag.clone());
    arenas.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| name(a).cmp(&name(b))).then_with(|| {
            let first = |arena: &ArenaRow| arena.parts.first().map(|part| part.name.clone());
            first(a).cmp(&first(b))
        })
    });
}

/// Sums per key, largest first, then by key.
fn gather<'a, K: Ord>(
    groups: impl Iterator<Item = &'a Group>,
    key: impl Fn(&'a Group) -> &'a K,
) -> Vec<(&'a K, u64, u64)> {
    let mut sums = BTreeMap::new();
    for group in groups {
        let (bytes, count) = sums.entry(key(group)).or_insert((0u64, 0u64));
        *bytes = bytes.saturating_add(group.bytes);
        // A snapshot that was read from somewhere may claim any number.
        *count = count.saturating_add(group.count);
    }
    let mut rows: Vec<_> = sums.into_iter().map(|(key, (bytes, count))| (key, bytes, count)).collect();
    rows.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes));
    rows
}

fn label_rows(rows: Vec<(&Option<String>, u64, u64)>) -> Vec<LabelRow> {
    rows.into_iter().map(|(label, bytes, count)| LabelRow { label: label.clone(), bytes, count }).collect()
}

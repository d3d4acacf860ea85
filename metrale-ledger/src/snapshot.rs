// SPDX-License-Identifier: MIT OR Apache-2.0
//! One moment of a ledger as plain data, and the difference of two.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

use crate::{AllocKind, ArenaRow, ByteSize, Label, MisuseCounts, arena_tree};

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

/// All totals of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Totals {
    /// Bytes of sweepable (device and managed) allocations, as asked for.
    pub live_bytes: u64,
    /// Their number.
    pub live_count: u64,
    /// Bytes of the distinct 2 MiB pages that device allocations and their padding touch.
    pub resident_bytes: u64,
    /// `resident_bytes` less the bytes of device allocations and of padding.
    pub slack_bytes: u64,
    /// The part of the slack in chunks of small allocations; see [`chunk_slack`](crate::chunk_slack).
    pub chunk_slack_bytes: u64,
    /// The highest `live_bytes` so far.
    pub peak_bytes: u64,
    /// The highest `resident_bytes` so far.
    pub peak_resident_bytes: u64,
    /// Bytes of managed allocations; part of `live_bytes`.
    pub managed_bytes: u64,
    /// Their number; part of `live_count`.
    pub managed_count: u64,
    /// Bytes of arenas.
    pub arena_bytes: u64,
    /// Their number.
    pub arena_count: u64,
    /// Bytes of the distinct pages that only arenas touch.
    pub arena_resident_bytes: u64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: u64,
    /// The number of pinned allocations.
    pub pinned_count: u64,
    /// Bytes of padding; part of `resident_bytes`. While there is any, `chunk_slack_bytes` counts what lies in chunks,
    /// up to `slack_bytes`.
    pub padding_bytes: u64,
    /// The number of ranges of padding.
    pub padding_count: u64,
    /// What went wrong so far.
    pub misuse: MisuseCounts,
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
    fn key(&self) -> (&Site, &Option<String>, &Option<String>, AllocKind) {
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
        arena_tree::sort(&mut arenas);
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

    /// What happened from `before` to this snapshot. Parts of arenas are left out: their arenas' bytes say what they take.
    ///
    /// ```
    /// use std::panic::Location;
    /// let ledger = metrale_ledger::Ledger::new();
    /// let before = ledger.snapshot();
    /// ledger.record(0x7f00_0000_0000, 4096, Location::caller());
    /// let diff = ledger.snapshot().diff(&before);
    /// assert_eq!((diff.live_bytes, diff.live_count, diff.resident_bytes), (4096, 1, 2 << 20));
    /// assert_eq!(diff.by_site()[0].bytes, 4096);
    /// ```
    pub fn diff(&self, before: &Self) -> SnapshotDiff {
        let mut changes = BTreeMap::new();
        for group in &before.groups {
            let (bytes, count) = changes.entry(group.key()).or_insert((0, 0));
            *bytes -= i128::from(group.bytes);
            *count -= i128::from(group.count);
        }
        for group in &self.groups {
            let (bytes, count) = changes.entry(group.key()).or_insert((0, 0));
            *bytes += i128::from(group.bytes);
            *count += i128::from(group.count);
        }
        let mut groups: Vec<_> = changes
            .into_iter()
            .filter(|&(_, change)| change != (0, 0))
            .map(|((site, scope, tag, kind), (bytes, count))| GroupChange {
                site: site.clone(),
                scope: scope.clone(),
                tag: tag.clone(),
                kind,
                bytes: clamp(bytes),
                count: clamp(count),
            })
            .collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes.unsigned_abs()));
        let (old, new) = (&before.totals, &self.totals);
        let step = |old: u64, new: u64| clamp(i128::from(new) - i128::from(old));
        SnapshotDiff {
            live_bytes: step(old.live_bytes, new.live_bytes),
            live_count: step(old.live_count, new.live_count),
            resident_bytes: step(old.resident_bytes, new.resident_bytes),
            slack_bytes: step(old.slack_bytes, new.slack_bytes),
            arena_bytes: step(old.arena_bytes, new.arena_bytes),
            pinned_bytes: step(old.pinned_bytes, new.pinned_bytes),
            groups,
        }
    }

    fn sweepable(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|group| group.kind.is_sweepable())
    }
}

/// What one line in one scope, under one tag, of one kind, holds more (or less) than before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GroupChange {
    /// Who.
    pub site: Site,
    /// In which scope.
    pub scope: Option<String>,
    /// Under which tag.
    pub tag: Option<String>,
    /// Of which memory.
    pub kind: AllocKind,
    /// Bytes more; negative for less.
    pub bytes: i64,
    /// Allocations more; negative for fewer.
    pub count: i64,
}

/// A call site and what it holds more than before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SiteChange {
    /// The call site.
    pub site: Site,
    /// Bytes more; negative for less.
    pub bytes: i64,
    /// Allocations more; negative for fewer.
    pub count: i64,
}

/// A scope and what it holds more than before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LabelChange {
    /// The whole label; none for what had none.
    pub label: Option<String>,
    /// Bytes more; negative for less.
    pub bytes: i64,
    /// Allocations more; negative for fewer.
    pub count: i64,
}

/// From one snapshot to another: every figure is later less earlier. Shown as text by `Display`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SnapshotDiff {
    /// Bytes of sweepable allocations.
    pub live_bytes: i64,
    /// Their number.
    pub live_count: i64,
    /// Bytes of pages.
    pub resident_bytes: i64,
    /// Bytes of slack.
    pub slack_bytes: i64,
    /// Bytes of arenas.
    pub arena_bytes: i64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: i64,
    /// What changed, largest change first; what did not is left out.
    pub groups: Vec<GroupChange>,
}

impl SnapshotDiff {
    /// Changes of sweepable allocations by call site, largest first, then by name.
    pub fn by_site(&self) -> Vec<SiteChange> {
        let rows = gather_changes(self.sweepable(), |group| &group.site);
        rows.into_iter().map(|(site, bytes, count)| SiteChange { site: site.clone(), bytes, count }).collect()
    }

    /// Changes of sweepable allocations by scope, largest first, then by name.
    pub fn by_scope(&self) -> Vec<LabelChange> {
        let rows = gather_changes(self.sweepable(), |group| &group.scope);
        rows.into_iter()
            .map(|(label, bytes, count)| LabelChange { label: label.clone(), bytes, count })
            .collect()
    }

    fn sweepable(&self) -> impl Iterator<Item = &GroupChange> {
        self.groups.iter().filter(|group| group.kind.is_sweepable())
    }
}

impl fmt::Display for SnapshotDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "device allocations: live {} ({:+}), resident {}, slack {}",
            signed(self.live_bytes),
            self.live_count,
            signed(self.resident_bytes),
            signed(self.slack_bytes)
        )?;
        if self.arena_bytes != 0 || self.pinned_bytes != 0 {
            writeln!(f, "apart: arenas {}, pinned {}", signed(self.arena_bytes), signed(self.pinned_bytes))?;
        }
        for SiteChange { site, bytes, count } in self.by_site() {
            writeln!(f, "{:>12}  x{count:<+7} {site}", signed(bytes))?;
        }
        let scopes = self.by_scope();
        if scopes.iter().any(|row| row.label.is_some()) {
            writeln!(f, "scopes:")?;
            for LabelChange { label, bytes, count } in scopes {
                let label = label
                    .map_or_else(|| crate::report::NO_SCOPE.to_owned(), |label| Label(&label).to_string());
                writeln!(f, "{:>12}  x{count:<+7} {label}", signed(bytes))?;
            }
        }
        Ok(())
    }
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", ByteSize(bytes.unsigned_abs()))
}

fn clamp(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
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

fn gather_changes<'a, K: Ord>(
    groups: impl Iterator<Item = &'a GroupChange>,
    key: impl Fn(&'a GroupChange) -> &'a K,
) -> Vec<(&'a K, i64, i64)> {
    let mut sums = BTreeMap::new();
    for group in groups {
        let (bytes, count) = sums.entry(key(group)).or_insert((0i64, 0i64));
        *bytes = bytes.saturating_add(group.bytes);
        *count = count.saturating_add(group.count);
    }
    let mut rows: Vec<_> = sums
        .into_iter()
        .filter(|&(_, change)| change != (0, 0))
        .map(|(key, (bytes, count))| (key, bytes, count))
        .collect();
    rows.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes.unsigned_abs()));
    rows
}

fn label_rows(rows: Vec<(&Option<String>, u64, u64)>) -> Vec<LabelRow> {
    rows.into_iter().map(|(label, bytes, count)| LabelRow { label: label.clone(), bytes, count }).collect()
}

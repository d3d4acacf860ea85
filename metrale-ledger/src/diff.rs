// SPDX-License-Identifier: MIT OR Apache-2.0
//! The difference of two snapshots as plain data.

use std::collections::BTreeMap;

use crate::record::AllocKind;
use crate::snapshot::{Site, Snapshot};

impl Snapshot {
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

fn clamp(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
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

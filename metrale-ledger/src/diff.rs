// SPDX-License-Identifier: MIT OR Apache-2.0
//! The difference of two snapshots as plain data.

use crate::record::AllocKind;
use crate::snapshot::{Site, Snapshot, gather};

impl Snapshot {
    /// The difference of this snapshot from the earlier one `before`. Parts of arenas are left out: the bytes of their arenas
    /// include them.
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
        let old = before.groups.iter().map(|group| (group, -1));
        let new = self.groups.iter().map(|group| (group, 1));
        let changes = old.chain(new).map(|(group, sign)| {
            (group.key(), sign * i128::from(group.bytes), sign * i128::from(group.count))
        });
        let groups = gather(changes, clamp).map(|((site, scope, tag, kind), bytes, count)| GroupChange {
            site: site.clone(),
            scope: scope.clone(),
            tag: tag.clone(),
            kind,
            bytes,
            count,
        });
        let (old, new) = (&before.totals, &self.totals);
        let step = |old: u64, new: u64| clamp(i128::from(new) - i128::from(old));
        SnapshotDiff {
            live_bytes: step(old.live_bytes, new.live_bytes),
            live_count: step(old.live_count, new.live_count),
            resident_bytes: step(old.resident_bytes, new.resident_bytes),
            slack_bytes: step(old.slack_bytes, new.slack_bytes),
            arena_bytes: step(old.arena_bytes, new.arena_bytes),
            pinned_bytes: step(old.pinned_bytes, new.pinned_bytes),
            groups: groups.collect(),
        }
    }
}

/// How much more (or less) one site holds in one scope, under one tag, of one kind, than before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GroupChange {
    /// The call site.
    pub site: Site,
    /// Its scope.
    pub scope: Option<String>,
    /// Its tag.
    pub tag: Option<String>,
    /// Its kind of memory.
    pub kind: AllocKind,
    /// Change of live bytes; negative for less.
    pub bytes: i64,
    /// Change of the number of live allocations.
    pub count: i64,
}

/// A call site and how much more it holds than before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SiteChange {
    /// The call site.
    pub site: Site,
    /// Change of live bytes; negative for less.
    pub bytes: i64,
    /// Change of the number of live allocations.
    pub count: i64,
}

/// A scope and how much more it holds than before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LabelChange {
    /// The whole label; none for allocations outside any scope.
    pub label: Option<String>,
    /// Change of live bytes; negative for less.
    pub bytes: i64,
    /// Change of the number of live allocations.
    pub count: i64,
}

/// The difference of two snapshots: every figure is the later less the earlier. `Display` shows it as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SnapshotDiff {
    /// Bytes of sweepable (device and managed) allocations.
    pub live_bytes: i64,
    /// Number of sweepable allocations.
    pub live_count: i64,
    /// Resident bytes.
    pub resident_bytes: i64,
    /// Slack, in bytes.
    pub slack_bytes: i64,
    /// Bytes of arenas.
    pub arena_bytes: i64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: i64,
    /// The groups that changed, largest change first.
    pub groups: Vec<GroupChange>,
}

impl SnapshotDiff {
    /// Changes of sweepable allocations by call site, largest first, then by name.
    pub fn by_site(&self) -> Vec<SiteChange> {
        let rows = self.rows(|group| &group.site);
        rows.map(|(site, bytes, count)| SiteChange { site: site.clone(), bytes, count }).collect()
    }

    /// Changes of sweepable allocations by scope, largest first, then by name.
    pub fn by_scope(&self) -> Vec<LabelChange> {
        let rows = self.rows(|group| &group.scope);
        rows.map(|(label, bytes, count)| LabelChange { label: label.clone(), bytes, count }).collect()
    }

    fn rows<K: Ord + 'static>(&self, key: fn(&GroupChange) -> &K) -> impl Iterator<Item = (&K, i64, i64)> {
        let groups = self.groups.iter().filter(|group| group.kind.is_sweepable());
        gather(groups.map(move |group| (key(group), group.bytes.into(), group.count.into())), clamp)
    }
}

pub(crate) fn clamp(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

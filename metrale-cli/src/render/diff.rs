// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `metrale diff` answers.

use std::fmt;

use metrale_ledger::{LabelChange, SiteChange, SnapshotDiff};
use serde::Serialize;

use crate::render::with_column;

/// What there is more (or, negative, less) than before. All `_bytes` are bytes.
#[derive(Debug, Serialize)]
pub struct DiffReport {
    /// Bytes live.
    pub live_bytes: i64,
    /// Live allocations.
    pub live_count: i64,
    /// Bytes of the pages they touch.
    pub resident_bytes: i64,
    /// Bytes of slack.
    pub slack_bytes: i64,
    /// Bytes of arenas.
    pub arena_bytes: i64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: i64,
    /// By call site, largest change first.
    pub sites: Vec<SiteDelta>,
    /// By scope, largest change first.
    pub scopes: Vec<ScopeDelta>,
    #[serde(skip)]
    text: String,
}

/// A call site's change.
#[derive(Debug, Serialize)]
pub struct SiteDelta {
    /// `file:line:column`.
    pub site: String,
    /// Bytes more.
    pub bytes: i64,
    /// Allocations more.
    pub count: i64,
}

/// A scope's change.
#[derive(Debug, Serialize)]
pub struct ScopeDelta {
    /// The scope's label; `null` for what was allocated outside any.
    pub scope: Option<String>,
    /// Bytes more.
    pub bytes: i64,
    /// Allocations more.
    pub count: i64,
}

impl DiffReport {
    pub(crate) fn new(diff: SnapshotDiff) -> Self {
        let site = |SiteChange { site, bytes, count }| SiteDelta { site: with_column(&site), bytes, count };
        let scope = |LabelChange { label, bytes, count }| ScopeDelta { scope: label, bytes, count };
        Self {
            live_bytes: diff.live_bytes,
            live_count: diff.live_count,
            resident_bytes: diff.resident_bytes,
            slack_bytes: diff.slack_bytes,
            arena_bytes: diff.arena_bytes,
            pinned_bytes: diff.pinned_bytes,
            sites: diff.by_site().into_iter().map(site).collect(),
            scopes: diff.by_scope().into_iter().map(scope).collect(),
            text: diff.to_string(),
        }
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())
    }
}

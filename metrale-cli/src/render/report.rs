// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `metrale report` answers.

use std::fmt;

use metrale_ledger::{ArenaRow, FileRow, Snapshot, Totals};
use serde::Serialize;

use crate::render::load::{ScopeLine, SiteLine};

/// A snapshot by who holds what. All `_bytes` are bytes.
#[derive(Debug, Serialize)]
pub struct SnapshotReport {
    /// All totals.
    pub totals: Totals,
    /// By call site, largest first.
    pub sites: Vec<SiteLine>,
    /// By source file, largest first.
    pub files: Vec<FileRow>,
    /// By scope, largest first.
    pub scopes: Vec<ScopeLine>,
    /// Arenas with their parts, largest first.
    pub arenas: Vec<ArenaRow>,
    #[serde(skip)]
    text: String,
}

impl SnapshotReport {
    pub(crate) fn new(snapshot: Snapshot, top: usize, min_mb: usize) -> Self {
        Self {
            totals: snapshot.totals,
            sites: snapshot.by_site().into_iter().map(SiteLine::from).collect(),
            files: snapshot.by_file(),
            scopes: snapshot.by_scope().into_iter().map(ScopeLine::from).collect(),
            text: snapshot.report(top, min_mb),
            arenas: snapshot.arenas,
        }
    }
}

impl fmt::Display for SnapshotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())
    }
}

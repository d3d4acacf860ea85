// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ledger's snapshot in a file, as JSON.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use metrale_ledger::Snapshot;

use crate::model::{ShownPath, label_text};

/// Why a snapshot cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The system refuses to read it.
    #[error("{}: the snapshot cannot be read: {problem}", ShownPath(.path))]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        problem: io::Error,
    },
    /// It is something else.
    #[error(
        "{}: this is no snapshot ({problem}): give a file that --snapshot of metrale load or metrale replay wrote",
        ShownPath(.path)
    )]
    NotASnapshot {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        problem: serde_json::Error,
    },
    /// The system refuses to write it.
    #[error("{}: the snapshot cannot be written: {problem}", ShownPath(.path))]
    Unwritable {
        /// Its path.
        path: PathBuf,
        /// Why.
        problem: io::Error,
    },
}

impl SnapshotError {
    /// Whether another file would mend it.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Unwritable { .. })
    }
}

/// Reads a snapshot. Its names come from whoever wrote the file, so they are made fit to be printed.
pub(crate) fn read(path: &Path) -> Result<Snapshot, SnapshotError> {
    let text =
        fs::read(path).map_err(|problem| SnapshotError::Unreadable { path: path.to_owned(), problem })?;
    let mut snapshot: Snapshot = serde_json::from_slice(&text)
        .map_err(|problem| SnapshotError::NotASnapshot { path: path.to_owned(), problem })?;
    let clean = |name: &mut String| *name = label_text(name);
    for group in &mut snapshot.groups {
        clean(&mut group.site.file);
        group.scope.iter_mut().chain(&mut group.tag).for_each(clean);
    }
    for arena in &mut snapshot.arenas {
        clean(&mut arena.site.file);
        arena.scope.iter_mut().chain(&mut arena.tag).for_each(clean);
        for part in &mut arena.parts {
            clean(&mut part.name);
            clean(&mut part.site.file);
            part.scope.iter_mut().for_each(clean);
        }
    }
    Ok(snapshot)
}

/// Writes a snapshot.
pub(crate) fn write(path: &Path, snapshot: &Snapshot) -> Result<(), SnapshotError> {
    let failed = |problem: io::Error| SnapshotError::Unwritable { path: path.to_owned(), problem };
    let text = serde_json::to_vec_pretty(snapshot).map_err(|error| failed(error.into()))?;
    fs::write(path, text).map_err(failed)
}

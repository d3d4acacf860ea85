// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ledger's snapshot in a file, as JSON.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use metrale_ledger::{ByteSize, Snapshot};

use crate::model::{ShownPath, label_text};
use crate::whole_file::WholeFile;

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
        /// Whether the file could not even be created; nothing was done then.
        is_uncreated: bool,
    },
}

/// Bytes of a snapshot that are read: some millions of call sites and scopes.
const MAX_BYTES: u64 = 1 << 30;

impl SnapshotError {
    /// Whether the file is at fault.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Unwritable { is_uncreated: false, .. })
    }
}

/// Reads a snapshot. Its names come from whoever wrote the file, so they are made fit to be printed.
pub(crate) fn read(path: &Path) -> Result<Snapshot, SnapshotError> {
    let unreadable = |problem| SnapshotError::Unreadable { path: path.to_owned(), problem };
    let text = fs::File::open(path).and_then(|file| whole(file, MAX_BYTES)).map_err(unreadable)?;
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

/// All bytes, where they are not more than the limit: a device or a sparse file may have no end.
fn whole(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= limit {
        return Ok(bytes);
    }
    let words = format!("it is longer than {}, which no snapshot is", ByteSize(limit));
    Err(io::Error::new(io::ErrorKind::InvalidData, words))
}

/// A snapshot's file, opened before anything is done.
pub(crate) struct SnapshotFile {
    path: PathBuf,
    file: WholeFile,
}

impl SnapshotFile {
    /// Opens it for writing.
    pub(crate) fn create(path: &Path) -> Result<Self, SnapshotError> {
        let unwritable =
            |problem| SnapshotError::Unwritable { path: path.to_owned(), problem, is_uncreated: true };
        Ok(Self { path: path.to_owned(), file: WholeFile::create(path).map_err(unwritable)? })
    }

    /// Writes it.
    pub(crate) fn write(self, snapshot: &Snapshot) -> Result<(), SnapshotError> {
        let Self { path, mut file } = self;
        let failed = |problem: io::Error| SnapshotError::Unwritable { path, problem, is_uncreated: false };
        let written = serde_json::to_vec_pretty(snapshot).map_err(io::Error::from);
        let written = written.and_then(|text| file.write_all(&text)).and_then(|()| file.finish());
        written.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_refused_at_the_limit() {
        assert_eq!(whole(&[7; 64][..], 64).unwrap(), [7; 64]);
        let error = whole(io::repeat(b'0'), 64).unwrap_err();
        assert!(error.to_string().contains("longer than 64 B"), "{error}");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! A regular file, mapped for reading.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use thiserror::Error;

/// Why a path could not be mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// Nothing there.
    #[error("no such file: check the path")]
    Missing,
    /// A folder.
    #[error("this is a directory: give the files in it{}", .0.as_ref().map(|name| format!(", such as {name}")).unwrap_or_default())]
    Directory(Option<String>),
    /// A pipe, a socket, a device.
    #[error("this is not a regular file, and only a regular file can be mapped: copy it to one first")]
    NotRegular,
    /// No bytes in it.
    #[error("the file is empty: fetch it again")]
    Empty,
    /// The system refuses to read it.
    #[error("the file cannot be read: {0}")]
    Unreadable(io::Error),
}

/// A mapped file. Derefs to its bytes.
#[derive(Debug)]
pub(crate) struct Mapped {
    file: File,
    map: Mmap,
}

impl Mapped {
    /// Whether the file still reaches as far as the map: reading past a file's end through a map ends the process.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.metadata().is_ok_and(|about| about.len() >= self.map.len() as u64)
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Maps `path`. Nothing of the file is read yet.
///
/// # Errors
/// [`MapError`], see there.
pub(super) fn map(path: &Path) -> Result<Mapped, MapError> {
    // Asked before the file is opened: opening a pipe would wait for its writer.
    let about = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MapError::Missing,
        _ => MapError::Unreadable(error),
    })?;
    if about.is_dir() {
        return Err(MapError::Directory(model_in(path)));
    }
    if !about.is_file() {
        return Err(MapError::NotRegular);
    }
    if about.len() == 0 {
        return Err(MapError::Empty);
    }
    let file = File::open(path).map_err(MapError::Unreadable)?;
    // SAFETY: the map is read-only and lives in `Mmap`, which unmaps it when dropped. No program can
    // prevent that somebody truncates or rewrites the file meanwhile: the documentation of `ModelInput` asks the user not to,
    // as every reader of mapped weights must.
    let map = unsafe { Mmap::map(&file) }.map_err(MapError::Unreadable)?;
    // The file may have shrunk between the question and the map.
    if map.is_empty() { Err(MapError::Empty) } else { Ok(Mapped { file, map }) }
}

/// The file in a folder that was most likely meant: its index, or its first .safetensors file by name.
fn model_in(folder: &Path) -> Option<String> {
    let names = file_names(folder).ok()?;
    let index = names.iter().find(|name| name.ends_with(".safetensors.index.json"));
    let name = index.or_else(|| names.iter().find(|name| name.ends_with(".safetensors")))?;
    Some(super::shown::ShownPath(&folder.join(name)).to_string())
}

/// Names of the files in a folder that are text, sorted.
pub(super) fn file_names(folder: &Path) -> io::Result<Vec<String>> {
    // The folder of a plain file name is the current one.
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() };
    let mut names = Vec::new();
    for entry in folder.read_dir()? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of the tree, less what is built and what git keeps.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Every file under `root` in the order of its path.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("looking into {}", folder.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && !is_left_out(&entry.file_name().to_string_lossy(), folder == root) {
                folders.push(entry.path());
            // In a second working tree of git's, `.git` is a file that says where the first one is.
            } else if kind.is_file() && entry.file_name() != ".git" {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// What .gitignore names, git's own folder, and hidden folders that tools leave at the root.
fn is_left_out(name: &str, at_root: bool) -> bool {
    let hidden = name.starts_with('.') && ![".cargo", ".ci", ".github", ".config"].contains(&name);
    hidden || name == "target" || (at_root && name.starts_with("bundle"))
}

/// The text of the file at `path`, or nothing where it is not text.
pub(crate) fn text(path: &Path) -> Result<Option<String>> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
}

/// `path` as seen from `root`, with forward slashes.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

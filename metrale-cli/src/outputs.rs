// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a command writes files, checked before it does anything: not over what it reads, and no two into one.

use std::fs;
use std::path::{Path, PathBuf};

use crate::model::ShownPath;

/// Why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// It would be written over what is to be read.
    #[error("{}: {option} names the input itself; give another file", ShownPath(.path))]
    IsInput {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The program's own words go there.
    #[error("{}: {option} names the file that {stream} goes to; give another file", ShownPath(.path))]
    IsStream {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// Standard output or standard error.
        stream: &'static str,
    },
    /// Two would be written into one file.
    #[error("{}: {first} and {second} name one file; give each its own", ShownPath(.path))]
    Twice {
        /// The option that names it.
        first: &'static str,
        /// The option that names it again.
        second: &'static str,
        /// The file.
        path: PathBuf,
    },
}

/// Checks the outputs that were asked for, by option, against each other and the inputs.
///
/// # Errors
/// [`OutputError`], before anything is written.
pub(crate) fn check<'input>(
    outputs: &[(&'static str, Option<&Path>)],
    inputs: impl IntoIterator<Item = &'input Path>,
) -> Result<(), OutputError> {
    let inputs: Vec<_> = inputs.into_iter().filter_map(identity).collect();
    let mut seen: Vec<(&'static str, Identity)> = Vec::new();
    for (option, path) in outputs.iter().filter_map(|&(option, path)| Some((option, path?))) {
        let Some(identity) = identity(path) else { continue };
        if inputs.contains(&identity) {
            return Err(OutputError::IsInput { option, path: path.to_owned() });
        }
        if let Some(stream) = stream(&identity) {
            return Err(OutputError::IsStream { option, path: path.to_owned(), stream });
        }
        if let Some((first, _)) = seen.iter().find(|(_, other)| *other == identity) {
            return Err(OutputError::Twice { first, second: option, path: path.to_owned() });
        }
        seen.push((option, identity));
    }
    Ok(())
}

/// What two names of one file have in common.
#[derive(PartialEq, Eq)]
enum Identity {
    /// Device and inode, which links to a file share.
    #[cfg(unix)]
    Inode(u64, u64),
    Path(PathBuf),
}

/// The stream of this program that goes to the file, whose words would be lost where another file takes its place.
#[cfg(unix)]
fn stream(file: &Identity) -> Option<&'static str> {
    use std::io::{stderr, stdout};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let goes_there = |stream: &dyn AsFd| {
        let stream = stream.as_fd().try_clone_to_owned().map(fs::File::from);
        let about = stream.and_then(|stream| stream.metadata());
        about.is_ok_and(|about| *file == Identity::Inode(about.dev(), about.ino()))
    };
    if goes_there(&stdout()) {
        Some("standard output")
    } else if goes_there(&stderr()) {
        Some("standard error")
    } else {
        None
    }
}

#[cfg(not(unix))]
fn stream(_: &Identity) -> Option<&'static str> {
    None
}

/// None for what nothing is lost in, such as a pipe, a terminal or `/dev/null`, and where no file can be.
fn identity(path: &Path) -> Option<Identity> {
    match fs::metadata(path) {
        Ok(about) if !about.is_file() => None,
        #[cfg(unix)]
        Ok(about) => {
            use std::os::unix::fs::MetadataExt;
            Some(Identity::Inode(about.dev(), about.ino()))
        }
        #[cfg(not(unix))]
        Ok(_) => path.canonicalize().ok().map(Identity::Path),
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(Identity::Path(folder.join(path.file_name()?)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_known_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("log"), "x").unwrap();
        fs::hard_link(at("log"), at("link")).unwrap();
        let check = |outputs: &[(&'static str, Option<&Path>)]| check(outputs, [at("log").as_path()]);
        for name in ["log", "link", "./log"] {
            let error = check(&[("--a", None), ("--b", Some(&at(name)))]).unwrap_err().to_string();
            assert!(error.contains("--b names the input itself"), "{error}");
        }
        let error = check(&[("--a", Some(&at("new"))), ("--b", Some(&at("./new")))]).unwrap_err().to_string();
        assert!(error.contains("--a and --b name one file"), "{error}");
        assert!(check(&[("--a", Some(&at("new"))), ("--b", Some(&at("newer")))]).is_ok());
        if cfg!(unix) {
            let null = Path::new("/dev/null");
            assert!(check(&[("--a", Some(null)), ("--b", Some(null))]).is_ok());
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is there whole, or as it was before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file being written under another name beside its own, which it takes when it is done. Dropped before, it leaves what was
/// there before.
#[derive(Debug)]
pub(crate) struct WholeFile(Inner);

#[derive(Debug)]
enum Inner {
    Beside {
        file: NamedTempFile,
        path: PathBuf,
    },
    /// A pipe or a terminal: what is written there is gone.
    Straight(File),
}

impl WholeFile {
    /// Begins to write `path`.
    ///
    /// # Errors
    /// The system's, where the file cannot be written or none can be made in its folder; nothing was changed then.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let before = match fs::metadata(path) {
            Ok(about) if !about.is_file() => return Ok(Self(Inner::Straight(File::create(path)?))),
            Ok(about) => {
                // It would be replaced even where it may not be written.
                OpenOptions::new().write(true).open(path)?;
                Some(about.permissions())
            }
            Err(_) => None,
        };
        // What a link leads to is replaced, and not the link.
        let path = if before.is_some() { path.canonicalize()? } else { path.to_owned() };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As of any new file: what the system masks is masked.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.prefix(".metrale-").suffix(".part").tempfile_in(folder)?;
        if let Some(permissions) = before {
            file.as_file().set_permissions(permissions)?;
        }
        Ok(Self(Inner::Beside { file, path }))
    }

    /// Puts the file in its place.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self.0 {
            Inner::Beside { file, path } => file.persist(path).map(drop).map_err(|error| error.error),
            Inner::Straight(_) => Ok(()),
        }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Beside { file, .. } => file.write(bytes),
            Inner::Straight(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::Beside { file, .. } => file.flush(),
            Inner::Straight(file) => file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        for before in [None, Some("old")] {
            if let Some(text) = before {
                fs::write(&path, text).unwrap();
            }
            let mut file = WholeFile::create(&path).unwrap();
            file.write_all(b"half").unwrap();
            drop(file);
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), before);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), usize::from(before.is_some()));
        }
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay_and_what_is_no_file_is_written_straight() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("table"), "old").unwrap();
        fs::set_permissions(at("table"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("table", at("link")).unwrap();
        let mut file = WholeFile::create(&at("link")).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(at("table")).unwrap(), "new");
        assert_eq!(fs::metadata(at("table")).unwrap().permissions().mode() & 0o777, 0o640);
        // A new one is as any new file here, and what may not be written is not replaced (but by who may do all).
        fs::write(at("other"), "").unwrap();
        WholeFile::create(&at("new")).unwrap().finish().unwrap();
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode();
        assert_eq!(mode("new"), mode("other"));
        fs::set_permissions(at("other"), fs::Permissions::from_mode(0o444)).unwrap();
        let may = OpenOptions::new().write(true).open(at("other")).is_ok();
        assert_eq!(WholeFile::create(&at("other")).is_ok(), may);
        WholeFile::create(Path::new("/dev/null")).unwrap().finish().unwrap();
        assert!(WholeFile::create(folder.path()).is_err());
        assert!(WholeFile::create(&at("no/such/folder")).is_err());
    }
}

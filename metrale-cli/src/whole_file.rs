// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is there whole, or as it was before.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file being written under another name beside its own, which it takes when it is done. Dropped before, it leaves what was
/// there before; a program that is killed leaves the other name, which begins with `.metrale-`.
///
/// Written in place, as it goes, is what cannot be replaced: a pipe, a terminal, what this program's own output goes to, and a
/// file in a folder in which none can be made.
#[derive(Debug)]
pub(crate) struct WholeFile(Inner);

#[derive(Debug)]
enum Inner {
    Beside { file: NamedTempFile, path: PathBuf },
    InPlace(File),
}

impl WholeFile {
    /// Begins to write `path`.
    ///
    /// # Errors
    /// The system's, where the file cannot be written; nothing was changed then.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let in_place = |path: &Path| Ok(Self(Inner::InPlace(File::create(path)?)));
        // Where no file can be made beside it, the system's words about the file itself are the ones that help.
        let beside = |to: &Path, permissions| Self::beside(to, permissions).or_else(|_| in_place(path));
        let Ok(about) = fs::metadata(path) else {
            // A link that leads nowhere yet has its file made where it leads.
            return if fs::symlink_metadata(path).is_ok() { in_place(path) } else { beside(path, None) };
        };
        if let Some(output) = own_output(&about) {
            return Ok(Self(Inner::InPlace(output)));
        }
        if !about.is_file() {
            return in_place(path);
        }
        // It would be replaced even where it may not be written.
        OpenOptions::new().write(true).open(path)?;
        // What a link leads to is replaced, and not the link.
        beside(&path.canonicalize()?, Some(about.permissions()))
    }

    fn beside(path: &Path, permissions: Option<fs::Permissions>) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As of any new file: what the system masks is masked.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.prefix(".metrale-").suffix(".part").tempfile_in(folder)?;
        if let Some(permissions) = permissions {
            file.as_file().set_permissions(permissions)?;
        }
        Ok(Self(Inner::Beside { file, path: path.to_owned() }))
    }

    /// Puts the file in its place.
    pub(crate) fn finish(self) -> io::Result<()> {
        let Inner::Beside { file, path } = self.0 else { return Ok(()) };
        let Err(refused) = file.persist(&path) else { return Ok(()) };
        // Some cannot be replaced, such as one that a container has mounted, and yet be written.
        let Ok(mut place) = OpenOptions::new().write(true).truncate(true).open(&path) else {
            return Err(refused.error);
        };
        io::copy(&mut refused.file.reopen()?, &mut place).map(drop)
    }
}

/// The standard output or error, where that is this file: named again it would be begun anew, or replaced, and what was printed
/// lost.
#[cfg(unix)]
fn own_output(about: &Metadata) -> Option<File> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let (out, err) = (io::stdout(), io::stderr());
    [out.as_fd(), err.as_fd()].into_iter().find_map(|output| {
        let output = File::from(output.try_clone_to_owned().ok()?);
        let its = output.metadata().ok()?;
        (its.dev() == about.dev() && its.ino() == about.ino()).then_some(output)
    })
}

#[cfg(not(unix))]
fn own_output(_: &Metadata) -> Option<File> {
    None
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Beside { file, .. } => file.write(bytes),
            Inner::InPlace(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::Beside { file, .. } => file.flush(),
            Inner::InPlace(file) => file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_whole(path: &Path, text: &str) {
        let mut file = WholeFile::create(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.finish().unwrap();
    }

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
        write_whole(&path, "new");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay_and_what_is_no_file_is_written_in_place() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("table"), "old").unwrap();
        fs::set_permissions(at("table"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("table", at("link")).unwrap();
        write_whole(&at("link"), "new");
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
        let error = WholeFile::create(&at("no/such/folder")).unwrap_err().to_string();
        assert_eq!(error, "No such file or directory (os error 2)");
        std::os::unix::fs::symlink("later", at("dangling")).unwrap();
        write_whole(&at("dangling"), "there");
        assert!(fs::symlink_metadata(at("dangling")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(at("later")).unwrap(), "there");
    }
}

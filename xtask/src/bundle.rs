// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folders that GPU tests and benches run from: programs, the list of tests, and the script that runs them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lzma_rust2::{XzOptions, XzWriter};

/// The script, the same for this machine and for one without Rust.
const RUN_SH: &str = include_str!("run.sh");
/// The script of a bundle of one program, which it calls `PROGRAM`.
const ONE_PROGRAM_SH: &str = include_str!("one_program.sh");
/// The programs of such bundles.
const ONE_PROGRAM: [&str; 2] = ["ratios", "conformance"];
/// The programs of a bundle that travels.
const ARCHIVE: &str = "programs.tar.xz";
/// How far back the archive looks for what it has already.
const DICTIONARY_BYTES: u32 = 128 << 20;
/// Lies in every folder made here; a folder without it is somebody else's and is left alone.
const MARKER: &str = ".metrale-gpu-tests";
/// The most a bundle may weigh, so that it travels.
pub(crate) const MAX_BYTES: u64 = 60 << 20;

/// A test program and the GPU tests in it.
pub(crate) struct Program {
    /// Unique name: the package, and the target where that is not the library.
    pub(crate) name: String,
    /// Where it was built.
    pub(crate) path: PathBuf,
    /// Its GPU tests by their paths.
    pub(crate) tests: Vec<String>,
}

/// How a built program comes into the folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing {
    /// As it is, by a link where the file system has them.
    Linked,
    /// To go elsewhere: test programs packed into one archive, which `run.sh` unpacks.
    Packed,
}

/// Checks that `dir` may be written: absent, empty, or made here before.
pub(crate) fn check_ours(dir: &Path) -> Result<()> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("looking into {}", dir.display())),
        Ok(mut entries) => {
            ensure!(
                entries.next().is_none() || dir.join(MARKER).is_file(),
                "{} exists and was not made by `cargo xtask`: name another folder, or empty it",
                dir.display()
            );
            Ok(())
        }
    }
}

/// Makes the folder anew with one of [`ONE_PROGRAM`].
pub(crate) fn make_one(dir: &Path, name: &str, program: &Path) -> Result<()> {
    check_ours(dir)?;
    clear(dir)?;
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    write(&dir.join(MARKER), "Made by `cargo xtask`, which may delete this folder.\n")?;
    place(program, &dir.join(name), Placing::Packed)?;
    let script = dir.join("run.sh");
    write(&script, &ONE_PROGRAM_SH.replace("PROGRAM", name))?;
    executable(&script)
}

/// Makes the folder anew with `programs`, and `metrale` where it is given.
pub(crate) fn make(dir: &Path, programs: &[Program], metrale: Option<&Path>, placing: Placing) -> Result<()> {
    check_ours(dir)?;
    clear(dir)?;
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    write(&dir.join(MARKER), "Made by `cargo xtask gpu-test`, which may delete this folder.\n")?;
    match placing {
        Placing::Linked => {
            let folder = dir.join("programs");
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
            programs
                .iter()
                .try_for_each(|program| place(&program.path, &folder.join(&program.name), placing))?;
        }
        Placing::Packed => pack(programs, &dir.join(ARCHIVE))?,
    }
    let mut table = String::new();
    for program in programs {
        for test in &program.tests {
            table.push_str(&format!("{}\t{test}\n", program.name));
        }
    }
    write(&dir.join("tests.tsv"), &table)?;
    if let Some(metrale) = metrale {
        place(metrale, &dir.join("metrale"), placing)?;
    }
    let script = dir.join("run.sh");
    write(&script, RUN_SH)?;
    executable(&script)
}

/// Every file of the folder with its size, largest first.
pub(crate) fn sizes(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("looking into {}", folder.display()))? {
            let entry = entry?;
            let data = entry.metadata()?;
            if data.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((data.len(), entry.path()));
            }
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Takes away what an earlier run made, and nothing else that may have come beside it.
fn clear(dir: &Path) -> Result<()> {
    if !dir.join(MARKER).is_file() {
        return Ok(());
    }
    for name in ["programs", ARCHIVE, "tests.tsv", "metrale", "run.sh", MARKER].into_iter().chain(ONE_PROGRAM)
    {
        let path = dir.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(error) = removed
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("removing {}", path.display()));
        }
    }
    Ok(())
}

fn place(from: &Path, to: &Path, placing: Placing) -> Result<()> {
    if placing == Placing::Linked && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to).with_context(|| format!("placing {} as {}", from.display(), to.display()))?;
    Ok(())
}

/// Writes the programs as one archive, so that what they have in common is in it once.
fn pack(programs: &[Program], to: &Path) -> Result<()> {
    let packing = || -> std::io::Result<()> {
        let mut options = XzOptions::with_preset(2);
        // A program finds its libraries in those before it.
        options.lzma_options.dict_size = DICTIONARY_BYTES;
        let mut archive = tar::Builder::new(XzWriter::new(fs::File::create(to)?, options)?);
        for program in programs {
            archive.append_path_with_name(&program.path, &program.name)?;
        }
        archive.into_inner()?.finish()?.sync_all()
    };
    packing().with_context(|| format!("packing the programs as {}", to.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("making {} executable", path.display()))
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn program(dir: &Path) -> Program {
        let path = dir.join("built");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        Program { name: "crate.topic".into(), path, tests: vec!["a::device".into(), "b::device".into()] }
    }

    #[test]
    fn folder_of_somebody_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("letter"), "dear").unwrap();
        let error = make(&theirs, &[], None, Placing::Packed).unwrap_err().to_string();
        assert!(error.contains("was not made by"), "{error}");
        assert_eq!(fs::read_to_string(theirs.join("letter")).unwrap(), "dear");
        assert!(!theirs.join("run.sh").exists());
    }

    #[test]
    fn own_folder_is_made_anew_and_guests_stay() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("ours");
        make(&ours, &[program(dir.path())], None, Placing::Packed).unwrap();
        assert_eq!(
            fs::read_to_string(ours.join("tests.tsv")).unwrap(),
            "crate.topic\ta::device\ncrate.topic\tb::device\n"
        );
        assert!(ours.join(ARCHIVE).is_file());
        fs::write(ours.join("notes"), "mine").unwrap();
        make(&ours, &[], None, Placing::Linked).unwrap();
        assert_eq!(fs::read_to_string(ours.join("tests.tsv")).unwrap(), "");
        assert!(!ours.join(ARCHIVE).exists());
        assert!(ours.join("notes").is_file());
    }

    #[test]
    fn bench_takes_the_place_of_tests_in_a_folder_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("ours");
        let program = program(dir.path());
        make(&ours, std::slice::from_ref(&program), None, Placing::Packed).unwrap();
        make_one(&ours, "ratios", &program.path).unwrap();
        assert_eq!(fs::read_to_string(ours.join("ratios")).unwrap(), "#!/bin/sh\n");
        assert!(fs::read_to_string(ours.join("run.sh")).unwrap().contains("exec \"$here/ratios\""));
        assert!(!ours.join("tests.tsv").exists());
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("ratios"), "dear").unwrap();
        make_one(&theirs, "ratios", &program.path).unwrap_err();
        assert_eq!(fs::read_to_string(theirs.join("ratios")).unwrap(), "dear");
    }

    #[test]
    fn packed_programs_come_out_as_they_went_in() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("ours");
        make(&ours, &[program(dir.path())], None, Placing::Packed).unwrap();
        let packed = lzma_rust2::XzReader::new(fs::File::open(ours.join(ARCHIVE)).unwrap(), false);
        let mut archive = tar::Archive::new(packed);
        let mut entries = archive.entries().unwrap();
        let mut entry = entries.next().unwrap().unwrap();
        assert_eq!(entry.path().unwrap().to_str(), Some("crate.topic"));
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!(text, "#!/bin/sh\n");
    }

    #[test]
    fn sizes_are_of_every_file_largest_first() {
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join("b"), &[program(dir.path())], None, Placing::Packed).unwrap();
        let sizes = sizes(&dir.path().join("b")).unwrap();
        assert_eq!(sizes.len(), 4);
        assert_eq!(sizes[0].0, RUN_SH.len() as u64);
        assert!(sizes.is_sorted_by(|a, b| a.0 >= b.0));
    }
}

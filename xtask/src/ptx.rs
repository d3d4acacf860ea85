// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask ptx`: the committed PTX, made again from the CUDA C beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{output, root};
use crate::ci::Outcome;
use crate::tidy::tree;

/// The compiler that made what is committed; another version words the same code differently.
const CLANG: &str = "14";
/// Plain PTX for every GPU since sm_70, with no CUDA toolkit needed to make it.
const FLAGS: [&str; 7] =
    ["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "-nocudainc", "-nocudalib", "-O2"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail where the committed PTX is not what its source gives
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match work(args.check)? {
        Outcome::Passed => {}
        Outcome::NotRun(reason) if args.check => println!("not run: {reason}"),
        Outcome::NotRun(reason) => bail!("{reason}"),
    }
    Ok(())
}

/// Compares every committed PTX with what its source gives.
pub(crate) fn check() -> Result<Outcome> {
    work(true)
}

fn work(check: bool) -> Result<Outcome> {
    let Some(clang) = clang() else {
        return Ok(Outcome::NotRun(format!(
            "neither `clang-{CLANG}` nor a `clang` of version {CLANG} is here"
        )));
    };
    let mut stale = Vec::new();
    for source in sources()? {
        let target = source.with_extension("ptx");
        let committed =
            fs::read_to_string(&target).with_context(|| format!("reading {}", target.display()))?;
        let shown = tree::relative(&root(), &target);
        let made = compile(clang, &source)?;
        if made == committed {
            println!("{shown} is what its source gives");
        } else if check {
            stale.push(shown);
        } else {
            fs::write(&target, made).with_context(|| format!("writing {}", target.display()))?;
            println!("{shown} made again");
        }
    }
    ensure!(stale.is_empty(), "not what the source gives, run `cargo xtask ptx`: {}", stale.join(", "));
    Ok(Outcome::Passed)
}

/// The name under which the right clang is found.
fn clang() -> Option<&'static str> {
    ["clang-14", "clang"].into_iter().find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|answer| is_wanted(&String::from_utf8_lossy(&answer.stdout)))
    })
}

fn is_wanted(version: &str) -> bool {
    let number =
        version.lines().next().and_then(|line| line.split_once("clang version ")).map(|(_, after)| after);
    number.and_then(|number| number.split('.').next()) == Some(CLANG)
}

/// Every CUDA C file with a PTX file beside it.
fn sources() -> Result<Vec<PathBuf>> {
    let mut files = tree::files(&root())?;
    files.retain(|path| path.extension().is_some_and(|is| is == "cu") && path.with_extension("ptx").exists());
    Ok(files)
}

fn compile(clang: &str, source: &Path) -> Result<String> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let text = output(Command::new(clang).args(FLAGS).args(["-S", "-o", "-"]).arg(source))?;
    Ok(format!(
        "// SPDX-License-Identifier: MIT OR Apache-2.0\n// Made from {name} by `cargo xtask ptx`; change that file instead.\n{text}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_first_line() {
        assert!(is_wanted("Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu\n"));
        assert!(is_wanted("clang version 14.0.0-1ubuntu1.1\n"));
        assert!(!is_wanted("Ubuntu clang version 18.1.3 (1ubuntu1)\n"));
        assert!(!is_wanted("Apple LLVM version 14.0.0\n"));
        assert!(!is_wanted(""));
    }
}

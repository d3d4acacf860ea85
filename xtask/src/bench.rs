// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bench`: one table of ratios, of this machine or, from a bundle, of one without Rust.
//!
//! The program that prints it is `metrale-cuda-backend/examples/ratios`: a row more is one more there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bundle;
use crate::cargo::{artifacts, cargo, run as run_command};

/// The program, an example of that package.
const PROGRAM: &str = "ratios";
const PACKAGE: &str = "metrale-cuda-backend";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Make a folder that prints the table on a machine without Rust, instead of printing it here
    #[arg(long, value_name = "DIR", conflicts_with = "groups")]
    bundle: Option<PathBuf>,
    /// Groups of rows: ledger, rmm, reads, plan, software, gpu, scan [default: all]
    groups: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.bundle {
        Some(dir) => make_bundle(dir),
        None => run_command(Command::new(build(false)?).args(&args.groups)),
    }
}

fn make_bundle(dir: &Path) -> Result<()> {
    // Said before minutes of building, not after.
    bundle::check_ours(dir)?;
    bundle::make_bench(dir, &build(true)?)?;
    println!("on the GPU machine: sh {}/run.sh", dir.file_name().unwrap_or_default().to_string_lossy());
    Ok(())
}

/// Builds the program and says where it lies.
fn build(stripped: bool) -> Result<PathBuf> {
    let mut command = cargo(["build", "--release", "--package", PACKAGE, "--example", PROGRAM]);
    command.arg("--message-format=json-render-diagnostics");
    if stripped {
        command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    }
    let built = artifacts(&mut command)?;
    let program =
        built.into_iter().filter(|artifact| artifact.target.name == PROGRAM).find_map(|a| a.executable);
    Ok(program.with_context(|| format!("cargo built no program named `{PROGRAM}`"))?.into())
}

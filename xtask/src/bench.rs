// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask bench`: one table of ratios, of this machine or, from a bundle, of one without Rust.
//!
//! The program that prints it is `metrale-cuda-backend/examples/ratios`: a row more is one more there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::bundle;
use crate::cargo::{example, run as run_command};

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
        None => run_command(Command::new(example(PACKAGE, PROGRAM, false)?).args(&args.groups)),
    }
}

fn make_bundle(dir: &Path) -> Result<()> {
    // Said before minutes of building, not after.
    bundle::check_ours(dir)?;
    bundle::make_one(dir, PROGRAM, &example(PACKAGE, PROGRAM, true)?)?;
    println!("on the GPU machine: sh {}/run.sh", dir.file_name().unwrap_or_default().to_string_lossy());
    Ok(())
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask conformance`: random programs of driver calls, on the software driver by its own rules and on the system's
//! driver by the software one, here or, from a bundle, on a machine without Rust.
//!
//! The program is `metrale-driver-sim/examples/conformance`; what fails is kept in `metrale-driver-sim/tests/programs/cases`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::bundle;
use crate::cargo::{example, root, run as run_command};

const PROGRAM: &str = "conformance";
const PACKAGE: &str = "metrale-driver-sim";
/// Where programs that fail are kept.
const CASES: &str = "metrale-driver-sim/tests/programs/cases";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Make a folder that runs the programs on a machine without Rust, instead of running them here
    #[arg(long, value_name = "DIR", conflicts_with_all = ["seed", "programs", "gpu_programs"])]
    bundle: Option<PathBuf>,
    /// The first program's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How many on the software driver
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    programs: u64,
    /// How many on the system's driver, where there is one
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    gpu_programs: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(dir) = &args.bundle {
        // Said before minutes of building, not after.
        bundle::check_ours(dir)?;
        bundle::make_one(dir, PROGRAM, &example(PACKAGE, PROGRAM, true)?)?;
        println!("on the GPU machine: sh {}/run.sh", dir.file_name().unwrap_or_default().to_string_lossy());
        return Ok(());
    }
    let mut command = Command::new(example(PACKAGE, PROGRAM, false)?);
    for (option, value) in
        [("--seed", args.seed), ("--programs", args.programs), ("--gpu-programs", args.gpu_programs)]
    {
        command.arg(option).arg(value.to_string());
    }
    run_command(command.arg("--save").arg(root().join(CASES)))
}

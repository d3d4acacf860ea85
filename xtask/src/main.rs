// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of this repository, run as `cargo xtask <command>`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program talks on both")]

mod bench;
mod bundle;
mod cargo;
mod ci;
mod circles;
mod commits;
mod conformance;
mod features;
mod gpu_test;
mod outside;
mod ptx;
mod readme;
mod sanitize;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Commands of this repository", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the whole list of checks, or the named ones
    Ci(ci::Args),
    /// Check what the compiler does not: headers, words, directions, reasons, circles
    Tidy,
    /// Show which files of the backend import each other in a circle; fails where there are any
    Circles,
    /// Run every GPU test on the GPU present, or bundle them for a machine without Rust
    GpuTest(gpu_test::Args),
    /// Print one table of what things cost here, or bundle it for a machine without Rust
    Bench(bench::Args),
    /// Run random programs of driver calls on the software driver and on the system's, or bundle them for a machine
    /// without Rust
    Conformance(conformance::Args),
    /// Run tests and a minute of the stress program under AddressSanitizer and ThreadSanitizer (nightly)
    Sanitize(sanitize::Args),
    /// Make the committed PTX again from its CUDA C
    Ptx(ptx::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Ci(args) => ci::run(&args),
        Command::Tidy => tidy::run(),
        Command::Circles => circles::run(),
        Command::GpuTest(args) => return gpu_test::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Ptx(args) => ptx::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

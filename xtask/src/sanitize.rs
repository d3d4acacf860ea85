// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask sanitize`: the tests of the crates with threads or `unsafe`, and a minute of the stress program, under
//! AddressSanitizer or ThreadSanitizer.
//!
//! It takes a nightly toolchain with the component `rust-src`: the standard library is built with the sanitizer too, because
//! ThreadSanitizer would not see what an uninstrumented one orders. No report is suppressed.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::{answers, root, run as run_command};

/// The crates whose tests run. The others have neither threads nor `unsafe` of their own that these do not reach.
const PACKAGES: [&str; 4] =
    ["metrale-ledger", "metrale-registry", "metrale-driver-sim", "metrale-cuda-backend"];
const TARGET: &str = "x86_64-unknown-linux-gnu";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which sanitizer; both where none is named
    #[arg(value_enum)]
    sanitizer: Option<Sanitizer>,
    /// Only this crate's tests (may be given several times)
    #[arg(long, value_name = "NAME", value_parser = PACKAGES)]
    package: Vec<String>,
    /// How long the stress program runs; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 60)]
    stress_seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sanitizer {
    /// Use after free, reads and writes past the end
    Address,
    /// Data races
    Thread,
}

impl Sanitizer {
    const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    const fn options_variable(self) -> &'static str {
        match self {
            Self::Address => "ASAN_OPTIONS",
            Self::Thread => "TSAN_OPTIONS",
        }
    }

    /// Builds of one do not replace the other's, nor those of a plain build.
    fn target_dir(self) -> PathBuf {
        let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        base.join("sanitize").join(self.name())
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        answers("rustup", &["run", "nightly", "cargo", "--version"]),
        "there is no nightly toolchain: `rustup toolchain install nightly --component rust-src`"
    );
    let both = [Sanitizer::Address, Sanitizer::Thread];
    for sanitizer in both.into_iter().filter(|each| args.sanitizer.is_none_or(|only| only == *each)) {
        for package in PACKAGES {
            if args.package.is_empty() || args.package.iter().any(|only| only == package) {
                // Doctests would be linked by a compiler that is not told of the sanitizer.
                run_command(
                    nightly(sanitizer, &["test", "--no-fail-fast", "--lib", "--tests"])
                        .args(["--package", package])
                        // What the compiler says there is the stable one's words; and no address comes again soon here.
                        .args(["--", "--skip", "does_not_compile", "--skip", "neither_recorded_nor_freed"]),
                )?;
            }
        }
        if args.stress_seconds > 0 {
            let seconds = args.stress_seconds.to_string();
            let program =
                ["--package", "metrale-cuda-backend", "--example", "stress", "--", "--seconds", &seconds];
            run_command(nightly(sanitizer, &["run"]).args(program))?;
        }
    }
    Ok(())
}

/// A cargo command of the nightly toolchain, with the sanitizer in all that runs.
fn nightly(sanitizer: Sanitizer, command: &[&str]) -> Command {
    let mut nightly = Command::new("rustup");
    nightly
        .args(["run", "nightly", "cargo"])
        .args(command)
        // The same crates for tests and program, so that what both depend on is built once.
        .args(["-Zbuild-std=std,test", "--target", TARGET])
        .current_dir(root())
        .env("RUSTFLAGS", format!("-Zsanitizer={}", sanitizer.name()))
        // A request that is too large is answered with null, as the system's allocator does; tests ask for such. Images are
        // `'static`, and tests leak those that they make.
        .env(sanitizer.options_variable(), "allocator_may_return_null=1:detect_leaks=0")
        .env("CARGO_TARGET_DIR", sanitizer.target_dir())
        // Instrumented code without optimization is slower than it needs to be.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    nightly
}

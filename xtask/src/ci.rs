// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask ci`: the one list of checks, the same on a laptop as anywhere else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Metadata, Package};

use crate::cargo::{answers, cargo, metadata, output, published, root, run as run_command};
use crate::tidy::direction::{DRIVERS, PURE};
use crate::{commits, features, outside, ptx, readme, tidy};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only this job (may be given several times)
    #[arg(long, value_name = "NAME")]
    job: Vec<String>,
    /// Name the jobs and run none
    #[arg(long)]
    list: bool,
    /// A job whose tool is missing fails instead of being reported as not run
    #[arg(long)]
    strict: bool,
}

/// How a job ended that did not fail.
pub(crate) enum Outcome {
    Passed,
    /// With the reason, chiefly a tool that is not here.
    NotRun(String),
}

struct Job {
    name: &'static str,
    what: &'static str,
    run: fn(&Metadata) -> Result<Outcome>,
}

/// In this order what one job builds serves the next. `scale` is the first to build: it changes a variable that a build
/// script reads, so anywhere else what comes before it would be built twice.
const JOBS: [Job; 17] = [
    Job { name: "fmt", what: "sources are formatted", run: fmt },
    Job { name: "tidy", what: "headers, words, directions, reasons, circles", run: |_| passed(tidy::run()) },
    Job { name: "commits", what: "subjects and bodies of new commits", run: |_| commits::check() },
    Job { name: "direction", what: "cargo tree of the pure crates shows no driver", run: direction },
    Job { name: "ptx", what: "committed PTX is what its source gives", run: |_| ptx::check() },
    Job {
        name: "scale",
        what: "builds for SCALE by feature and by environment, and tests of that build",
        run: scale,
    },
    Job { name: "clippy", what: "workspace, all targets, warnings denied", run: clippy },
    Job { name: "features", what: "each crate bare, then each of its features alone", run: each_feature },
    Job { name: "docs", what: "documentation, warnings denied", run: docs },
    Job { name: "msrv", what: "builds with the oldest Rust the workspace names", run: msrv },
    Job { name: "outside", what: "a crate elsewhere takes the ledger alone", run: outside_crate },
    Job { name: "package", what: "each crate builds from what would be published", run: package },
    Job { name: "load", what: "the README's first command", run: |_| passed(readme::run_with_its_sample()) },
    Job { name: "bare", what: "tests of the backend without its features", run: bare },
    Job {
        name: "models",
        what: "10,000 random cases of ledger and placement against naive models",
        run: models,
    },
    Job { name: "nextest", what: "every test in a process of its own", run: nextest },
    Job { name: "test", what: "the README's second command: all tests", run: |_| passed(readme::run(1)) },
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let unknown = args.job.iter().find(|name| JOBS.iter().all(|job| job.name != **name));
    if let Some(name) = unknown {
        let names: Vec<_> = JOBS.iter().map(|job| job.name).collect();
        bail!("no job is named `{name}`; there are: {}", names.join(", "));
    }
    let chosen =
        JOBS.iter().filter(|job| args.job.is_empty() || args.job.iter().any(|name| name == job.name));
    if args.list {
        chosen.for_each(|job| println!("{:<10} {}", job.name, job.what));
        return Ok(());
    }

    let metadata = metadata()?;
    let start = Instant::now();
    let mut rows = Vec::new();
    for job in chosen {
        println!("\n==> {}: {}", job.name, job.what);
        let start = Instant::now();
        let outcome = (job.run)(&metadata);
        if let Err(error) = &outcome {
            println!("{}: {error:#}", job.name);
        }
        rows.push((job.name, outcome, start.elapsed()));
    }

    println!();
    for (name, outcome, took) in &rows {
        println!("{name:<10} {:>8}  {}", seconds(*took), word(outcome));
    }
    println!("{:<10} {:>8}", "together", seconds(start.elapsed()));
    let bad: Vec<_> =
        rows.iter().filter(|(_, outcome, _)| is_bad(outcome, args.strict)).map(|row| row.0).collect();
    ensure!(bad.is_empty(), "failed: {}", bad.join(", "));
    Ok(())
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

fn word(outcome: &Result<Outcome>) -> String {
    match outcome {
        Ok(Outcome::Passed) => "passed".to_owned(),
        Ok(Outcome::NotRun(reason)) => format!("not run: {reason}"),
        Err(_) => "FAILED".to_owned(),
    }
}

fn is_bad(outcome: &Result<Outcome>, strict: bool) -> bool {
    match outcome {
        Ok(Outcome::Passed) => false,
        Ok(Outcome::NotRun(_)) => strict,
        Err(_) => true,
    }
}

fn passed(result: Result<()>) -> Result<Outcome> {
    result.map(|()| Outcome::Passed)
}

fn missing(tool: &str) -> Result<Outcome> {
    Ok(Outcome::NotRun(format!("{tool} is not installed")))
}

fn fmt(_: &Metadata) -> Result<Outcome> {
    if !answers("cargo", &["fmt", "--version"]) {
        return missing("rustfmt");
    }
    passed(run_command(&mut cargo(["fmt", "--all", "--check"])))
}

/// `tidy` asks the same of cargo's metadata; this asks the tool that people ask, with every feature on.
fn direction(_: &Metadata) -> Result<Outcome> {
    for name in PURE {
        let tree = output(&mut cargo(["tree", "-p", name, "--all-features", "--prefix", "none"]))?;
        println!("{tree}");
        let reached: BTreeSet<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        let driver = DRIVERS.iter().find(|driver| reached.contains(**driver));
        ensure!(reached.contains(name), "cargo tree does not name {name} itself");
        ensure!(driver.is_none(), "{name} reaches {}", driver.unwrap_or(&""));
    }
    Ok(Outcome::Passed)
}

/// The crates that act on a driver, in which a build for SCALE differs.
const ACT_ON_A_DRIVER: [&str; 4] =
    ["metrale-driver-sys", "metrale-driver-sim", "metrale-registry", "metrale-cuda-backend"];

fn scale(_: &Metadata) -> Result<Outcome> {
    let check = ["check", "--workspace", "--all-targets"];
    run_command(cargo(check).args(["--features", "metrale-driver-sys/metrale_scale"]))?;
    let variable = ("METRALE_TARGET_HW", "strix_halo");
    run_command(cargo(check).env(variable.0, variable.1))?;
    let mut tests = cargo(["test"]);
    for package in ACT_ON_A_DRIVER {
        tests.args(["-p", package]);
    }
    passed(run_command(tests.env(variable.0, variable.1)))
}

fn clippy(_: &Metadata) -> Result<Outcome> {
    if !has_clippy() {
        return missing("clippy");
    }
    passed(run_command(&mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])))
}

fn each_feature(metadata: &Metadata) -> Result<Outcome> {
    if !has_clippy() {
        return missing("clippy");
    }
    for combination in features::combinations(&published(metadata)) {
        run_command(cargo(["clippy", "--all-targets"]).args(combination).args(["--", "-D", "warnings"]))?;
    }
    Ok(Outcome::Passed)
}

fn has_clippy() -> bool {
    answers("cargo", &["clippy", "--version"])
}

fn bare(_: &Metadata) -> Result<Outcome> {
    let test = ["test", "-p", "metrale-cuda-backend", "--no-default-features", "--tests"];
    passed(run_command(&mut cargo(test)))
}

/// Optimized, because a case takes milliseconds otherwise.
fn models(_: &Metadata) -> Result<Outcome> {
    let test = [
        "test",
        "-p",
        "metrale-ledger",
        "--all-features",
        "--release",
        "--lib",
        "--test",
        "model",
        "--test",
        "plan",
    ];
    passed(run_command(cargo(test).args(["--", "--include-ignored"]).env("PROPTEST_CASES", "10000")))
}

fn docs(_: &Metadata) -> Result<Outcome> {
    passed(run_command(cargo(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")))
}

fn msrv(metadata: &Metadata) -> Result<Outcome> {
    let Some(oldest) = published(metadata).iter().filter_map(|package| package.rust_version.clone()).max()
    else {
        bail!("no published crate names the Rust it needs");
    };
    let version = format!("{}.{}", oldest.major, oldest.minor);
    let Ok(installed) = output(Command::new("rustup").args(["toolchain", "list"])) else {
        return missing("rustup");
    };
    let Some(toolchain) = installed.split_whitespace().find(|name| is_version(name, &version)) else {
        return missing(&format!("toolchain {version}"));
    };
    let mut check = Command::new("rustup");
    check.args(["run", toolchain, "cargo", "check", "--workspace"]).current_dir(root());
    passed(run_command(&mut check))
}

/// Whether the toolchain called `name` is Rust `version`, whatever its patch number.
fn is_version(name: &str, version: &str) -> bool {
    name.strip_prefix(version).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
}

fn outside_crate(metadata: &Metadata) -> Result<Outcome> {
    passed(outside::check(metadata.target_directory.as_std_path()))
}

fn package(metadata: &Metadata) -> Result<Outcome> {
    // Crates that need others of ours are verified against unpacked copies of those, which cargo keeps under their version
    // and would take again although the sources have changed since.
    let cargo_folder = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        Some(PathBuf::from(env::var_os("HOME").or_else(|| env::var_os("USERPROFILE"))?).join(".cargo"))
    });
    if let Some(folder) = cargo_folder {
        forget_unpacked(&folder.join("registry").join("src"), &published(metadata))?;
    }
    let mut command = cargo(["package", "--quiet", "--offline", "--allow-dirty"]);
    for package in published(metadata) {
        command.args(["-p", package.name.as_str()]);
    }
    passed(run_command(&mut command))
}

/// Removes what cargo has unpacked of our packages for itself: in folders without a host in their name.
fn forget_unpacked(sources: &Path, ours: &[&Package]) -> Result<()> {
    let Ok(registries) = fs::read_dir(sources) else { return Ok(()) };
    for registry in registries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with('-'))
    {
        for package in ours {
            let unpacked = registry.path().join(format!("{}-{}", package.name, package.version));
            if unpacked.is_dir() {
                fs::remove_dir_all(&unpacked).with_context(|| format!("removing {}", unpacked.display()))?;
            }
        }
    }
    Ok(())
}

/// In addition to `cargo test`, where the tests of a program share a process: neither way may hide the other's failures.
fn nextest(_: &Metadata) -> Result<Outcome> {
    if !answers("cargo", &["nextest", "--version"]) {
        return missing("cargo-nextest");
    }
    let quiet = ["--status-level", "fail", "--final-status-level", "fail"];
    passed(run_command(cargo(["nextest", "run", "--workspace", "--no-fail-fast"]).args(quiet)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_packages_unpacked_by_cargo_for_itself_are_forgotten() {
        let sources = tempfile::tempdir().unwrap();
        let metadata = metadata().unwrap();
        let ours = published(&metadata);
        let name = format!("{}-{}", ours[0].name, ours[0].version);
        let [stale, other, hosted] =
            [("-0123", &*name), ("-0123", "itoa-1.0.0"), ("index.example-0123", &*name)].map(
                |(registry, package)| {
                    let folder = sources.path().join(registry).join(package);
                    fs::create_dir_all(&folder).unwrap();
                    folder
                },
            );
        forget_unpacked(sources.path(), &ours).unwrap();
        assert_eq!([stale, other, hosted].map(|folder| folder.is_dir()), [false, true, true]);
        forget_unpacked(&sources.path().join("absent"), &ours).unwrap();
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = JOBS.iter().map(|job| job.name).collect();
        assert_eq!(names.len(), JOBS.len());
    }

    #[test]
    fn missing_tool_is_bad_only_where_strict() {
        let not_run = missing("clippy");
        assert_eq!(word(&not_run), "not run: clippy is not installed");
        assert!(!is_bad(&not_run, false));
        assert!(is_bad(&not_run, true));
        assert!(!is_bad(&Ok(Outcome::Passed), true));
        assert!(is_bad(&Err(anyhow::anyhow!("no")), false));
    }

    #[test]
    fn toolchain_matches_by_major_and_minor() {
        assert!(is_version("1.88-x86_64-unknown-linux-gnu", "1.88"));
        assert!(is_version("1.88.0-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!is_version("1.880.0", "1.88"));
        assert!(!is_version("stable-x86_64-unknown-linux-gnu", "1.88"));
    }
}

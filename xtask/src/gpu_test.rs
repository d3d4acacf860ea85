// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask gpu-test`: every test marked `#[ignore]` whose path ends in `::device`, on the GPU present; and those in
//! `::two_devices`, where two are.
//!
//! Each test has a process of its own, one at a time, so that it may measure the device's free memory. The script that
//! runs them is the one that a bundle carries to a machine without Rust: what passes here passes there by the same rule.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Artifact, TargetKind};

use crate::bundle::{self, Placing, Program};
use crate::cargo::{artifacts, cargo, metadata, output, published, root};

/// The cargo profile of a bundle: small programs that keep the checks of a debug build.
const BUNDLE_PROFILE: &str = "gpu-test";
/// Features that are off by default and hold GPU tests of their own.
const GPU_FEATURES: [&str; 1] = ["cudarc"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Make a folder that runs the tests on a machine without Rust, instead of running them here
    #[arg(long, value_name = "DIR", conflicts_with = "list")]
    bundle: Option<PathBuf>,
    /// Run only tests whose program::test matches this extended regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "bundle")]
    filter: Option<String>,
    /// Name the tests and run none
    #[arg(long)]
    list: bool,
    /// Build with this cargo profile [default: dev, for a bundle gpu-test]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

/// Ends with the script's own status where the tests ran: 1 for a failed one, 2 for none.
pub(crate) fn run(args: &Args) -> ExitCode {
    let outcome = match &args.bundle {
        Some(dir) => make_bundle(dir, args).map(|()| ExitCode::SUCCESS),
        None => run_here(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run_here(args: &Args) -> Result<ExitCode> {
    let built = Built::build(args.profile.as_deref().unwrap_or("dev"), None)?;
    let dir = built.target_dir.join("gpu-test");
    bundle::make(&dir, &built.programs, Some(&built.metrale), Placing::Linked)?;
    let mut script = Command::new("sh");
    script.arg(dir.join("run.sh"));
    if args.list {
        script.arg("--list");
    }
    if let Some(filter) = &args.filter {
        script.env("METRALE_TEST_FILTER", filter);
    }
    let status = script.status().context("starting run.sh with `sh`")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

fn make_bundle(dir: &Path, args: &Args) -> Result<()> {
    // Said before minutes of building, not after.
    bundle::check_ours(dir)?;
    let built = Built::build(args.profile.as_deref().unwrap_or(BUNDLE_PROFILE), Some("symbols"))?;
    let count: usize = built.programs.iter().map(|program| program.tests.len()).sum();
    ensure!(
        count > 0,
        "the workspace holds no GPU test: an ignored one whose path ends in `::device` or `::two_devices`"
    );
    bundle::make(dir, &built.programs, Some(&built.metrale), Placing::Packed)?;

    let sizes = bundle::sizes(dir)?;
    let total: u64 = sizes.iter().map(|(size, _)| size).sum();
    println!("{}: {count} tests in {} programs, {}", dir.display(), built.programs.len(), mib(total));
    if total > bundle::MAX_BYTES {
        for (size, path) in sizes.iter().take(5) {
            eprintln!("  {:>10}  {}", mib(*size), path.display());
        }
        bail!("the bundle is {}, more than {}", mib(total), mib(bundle::MAX_BYTES));
    }
    println!("on the GPU machine: sh {}/run.sh", dir.file_name().unwrap_or_default().to_string_lossy());
    Ok(())
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// What matters here of what the build made.
struct Built {
    programs: Vec<Program>,
    metrale: PathBuf,
    target_dir: PathBuf,
}

impl Built {
    /// Builds every test program and the command line program, and asks each test program for its GPU tests.
    fn build(profile: &str, strip: Option<&str>) -> Result<Self> {
        let metadata = metadata()?;
        let mut features: Vec<String> = Vec::new();
        for package in published(&metadata) {
            for feature in GPU_FEATURES.iter().filter(|feature| package.features.contains_key(**feature)) {
                features.push(format!("{}/{feature}", package.name));
            }
        }
        let mut command = cargo(["test", "--no-run", "--workspace", "--profile", profile]);
        command.arg("--message-format=json-render-diagnostics");
        if !features.is_empty() {
            command.args(["--features", &features.join(",")]);
        }
        if let Some(strip) = strip {
            let profile = profile.to_uppercase().replace('-', "_");
            command.env(format!("CARGO_PROFILE_{profile}_STRIP"), strip);
        }

        let mut programs = Vec::new();
        // Built along with the tests of the command line, which run it.
        let mut metrale = None;
        for artifact in artifacts(&mut command)? {
            let Some(path) = artifact.executable.clone() else { continue };
            if !artifact.profile.test {
                if artifact.target.is_bin() && artifact.target.name == "metrale" {
                    metrale = Some(path);
                }
                continue;
            }
            let package = metadata.packages.iter().find(|package| package.id == artifact.package_id);
            let package = package.with_context(|| format!("cargo built {path} of an unknown package"))?;
            let tests = device_tests(path.as_std_path())?;
            if !tests.is_empty() {
                let name = program_name(&package.name, &artifact);
                programs.push(Program { name, path: path.into(), tests });
            }
        }
        programs.sort_by(|a, b| a.name.cmp(&b.name));

        Ok(Self {
            programs,
            metrale: metrale.context("cargo built no program named `metrale`")?.into(),
            target_dir: metadata.target_directory.into(),
        })
    }
}

/// The package's name, and the target's beside it unless that is the library.
fn program_name(package: &str, artifact: &Artifact) -> String {
    let target = &artifact.target;
    match target.kind.first() {
        Some(TargetKind::Test) => format!("{package}.{}", target.name),
        Some(TargetKind::Bin) => format!("{package}.bin-{}", target.name),
        Some(TargetKind::Example) => format!("{package}.example-{}", target.name),
        Some(TargetKind::Bench) => format!("{package}.bench-{}", target.name),
        _ => package.to_owned(),
    }
}

/// The GPU tests that the program at `path` lists.
fn device_tests(path: &Path) -> Result<Vec<String>> {
    let mut command = Command::new(path);
    command.args(["--list", "--ignored", "--format", "terse"]).current_dir(root());
    let list = output(&mut command).context("asking a test program for its ignored tests")?;
    Ok(parse_list(&list))
}

fn parse_list(list: &str) -> Vec<String> {
    list.lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| ["::device", "::two_devices"].iter().any(|end| name.ends_with(end)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_whose_path_ends_in_device_or_two_devices_are_taken() {
        let list = "status::table::device: test\nslow_table: test\ndevice: test\nx::device: benchmark\n\
                    y::device_two: test\nz::device: test\npeer::two_devices: test\ntwo_devices: test\n";
        assert_eq!(parse_list(list), ["status::table::device", "z::device", "peer::two_devices"]);
    }
}

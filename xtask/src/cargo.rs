// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands as children: cargo at the workspace's root, what it built, and what it knows.

use std::env;
use std::ffi::OsStr;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Artifact, Message, Metadata, MetadataCommand, Package};

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    // Cargo's run-time answer first: a program kept in a shared target folder may serve another checkout.
    let member =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    member.parent().map(Path::to_path_buf).unwrap_or(member)
}

/// The cargo that runs this program, at the workspace's root.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Runs `command`, its output going where ours goes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("starting `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Runs `command` and returns what it wrote on standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` ended with {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` wrote what is not UTF-8"))
}

/// Everything that `command`, a cargo build with messages as JSON, built.
pub(crate) fn artifacts(command: &mut Command) -> Result<Vec<Artifact>> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("starting cargo")?;
    let stdout = child.stdout.take().context("cargo has no output")?;
    let mut artifacts = Vec::new();
    for message in Message::parse_stream(BufReader::new(stdout)) {
        if let Message::CompilerArtifact(artifact) = message.context("reading cargo's messages")? {
            artifacts.push(artifact);
        }
    }
    let status = child.wait().context("waiting for cargo")?;
    ensure!(status.success(), "the build ended with {status}");
    Ok(artifacts)
}

/// Builds an example of a package, optimized, and says where it lies.
pub(crate) fn example(package: &str, name: &str, stripped: bool) -> Result<PathBuf> {
    let mut command = cargo(["build", "--release", "--package", package, "--example", name]);
    command.arg("--message-format=json-render-diagnostics");
    if stripped {
        command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    }
    let built = artifacts(&mut command)?;
    let program =
        built.into_iter().filter(|artifact| artifact.target.name == name).find_map(|a| a.executable);
    Ok(program.with_context(|| format!("cargo built no program named `{name}`"))?.into())
}

/// Whether `program` starts and answers the given question with success.
pub(crate) fn answers(program: &str, question: &[&str]) -> bool {
    Command::new(program)
        .args(question)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command as it would be typed.
fn shown(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value)))
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = [program].into_iter().chain(command.get_args()).map(|word| quoted(&word.to_string_lossy()));
    set.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if word.contains([' ', '"', '$']) { format!("'{word}'") } else { word.to_owned() }
}

/// What cargo knows of the workspace and, for this host, of everything it depends on.
pub(crate) fn metadata() -> Result<Metadata> {
    // Without the filter cargo would fetch crates that only other systems build.
    let host = ["--filter-platform".to_owned(), host()?];
    MetadataCommand::new()
        .current_dir(root())
        .other_options(host)
        .exec()
        .context("asking cargo for the workspace's metadata")
}

/// The target triple this toolchain builds for.
fn host() -> Result<String> {
    let version = output(Command::new("rustc").arg("-vV").current_dir(root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}

/// The members that are published, by name.
pub(crate) fn published(metadata: &Metadata) -> Vec<&Package> {
    let mut members: Vec<_> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| package.publish.as_ref().is_none_or(|registries| !registries.is_empty()))
        .collect();
    members.sort_by_key(|package| package.name.to_string());
    members
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each member brings along, and the reasons beside dependencies and features.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::Metadata;

use super::tree::relative;
use crate::cargo::published;

/// Crates whose whole source is safe code, by the compiler's word.
const SAFE: [&str; 3] = ["metrale-ledger", "metrale-telemetry", "xtask"];

/// Adds what is wrong with the members to `found`.
pub(super) fn check(root: &Path, metadata: &Metadata, found: &mut Vec<String>) -> Result<()> {
    reasons("Cargo.toml", &read(&root.join("Cargo.toml"))?, "[workspace.dependencies]", found);
    for package in published(metadata) {
        let folder = package.manifest_path.parent().context("a manifest without a folder")?.as_std_path();
        for file in ["README.md", "CHANGELOG.md"] {
            if !folder.join(file).is_file() {
                found.push(format!("{}: has no {file}", relative(root, folder)));
            }
        }
        if package.readme.is_none() {
            found.push(format!("{}/Cargo.toml: names no readme", relative(root, folder)));
        }
        let manifest = package.manifest_path.as_std_path();
        reasons(&relative(root, manifest), &read(manifest)?, "[features]", found);
    }
    for name in SAFE {
        let lib = root.join(name).join("src/lib.rs");
        let main = if lib.is_file() { lib } else { root.join(name).join("src/main.rs") };
        if !read(&main)?.contains("#![forbid(unsafe_code)]") {
            found.push(format!("{}: does not say #![forbid(unsafe_code)]", relative(root, &main)));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// Every entry under `heading` is below a comment of its own; entries for our own crates share one.
fn reasons(path: &str, text: &str, heading: &str, found: &mut Vec<String>) {
    let section = (1..).zip(text.lines()).skip_while(|(_, line)| *line != heading).skip(1);
    let mut previous = "";
    for (number, line) in section.take_while(|(_, line)| !line.starts_with('[')) {
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
        // An entry starts at the margin; `default` lists the others, whose comments say what they are.
        let entry = line.contains('=') && !line.starts_with([' ', '#', ']']) && name != "default";
        let shared = name.starts_with("metrale-") && previous.starts_with("metrale-");
        if entry && !shared && !previous.starts_with('#') {
            found.push(format!("{path}:{number}: `{name}` has no comment above it that gives the reason"));
        }
        previous = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str, heading: &str) -> Vec<String> {
        let mut found = Vec::new();
        reasons("Cargo.toml", text, heading, &mut found);
        found
    }

    #[test]
    fn entry_without_reason_is_named_with_its_line() {
        let text = "[workspace.dependencies]\n# Ours.\nmetrale-a = \"1\"\nmetrale-b = \"1\"\n\
                    # Reads text.\ncsv = \"1\"\nserde = { version = \"1\" }\n\n[profile.dev]\nx = 1\n";
        let found = wrong(text, "[workspace.dependencies]");
        assert_eq!(found, ["Cargo.toml:7: `serde` has no comment above it that gives the reason"]);
    }

    #[test]
    fn default_needs_no_reason_and_a_list_over_several_lines_is_one_entry() {
        let text = "[features]\ndefault = [\n    \"a\",\n]\n# Why.\na = [\n    \"dep:a\",\n]\n";
        assert!(wrong(text, "[features]").is_empty());
        assert_eq!(wrong("[features]\na = []\n", "[features]").len(), 1);
        assert!(wrong("[package]\nname = \"a\"\n", "[features]").is_empty());
    }
}

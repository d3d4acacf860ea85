// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask tidy`: what the compiler does not check. Also an ordinary test, so that `cargo test` says it too.

pub(crate) mod direction;
mod manifests;
mod sources;
pub(crate) mod tree;
mod words;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cargo::{metadata, root};
use crate::circles::circles;

pub(crate) fn run() -> Result<()> {
    let found = violations(&root())?;
    for violation in &found {
        println!("{violation}");
    }
    match found.len() {
        0 => {
            println!("tidy");
            Ok(())
        }
        count => bail!("{count} untidy places"),
    }
}

/// Everything untidy under `root`, each as `path:line: what is wrong`.
fn violations(root: &Path) -> Result<Vec<String>> {
    let metadata = metadata()?;
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).context("reading ARCHITECTURE.md")?;
    let mut found = Vec::new();
    for path in tree::files(root)? {
        // Data that is no text has no words and no header.
        if let Some(text) = tree::text(&path)? {
            let path = tree::relative(root, &path);
            sources::check(&path, &text, &mut found);
            words::check(&path, &text, &mut found);
            sources::process_state(&path, &text, &architecture, &mut found);
        }
    }
    manifests::check(root, &metadata, &mut found)?;
    direction::check(&metadata, &mut found);
    found.extend(circles(root)?);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_is_tidy() {
        let found = violations(&root()).unwrap();
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }
}

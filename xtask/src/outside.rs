// SPDX-License-Identifier: MIT OR Apache-2.0
//! A throw-away crate outside the workspace that takes `metrale-ledger` alone, as a user without a GPU would.

use std::fs;

use anyhow::{Context, Result};

use crate::cargo::{cargo, root, run};

/// One chunk holds 512 KiB and 256 KiB: of its 2 MiB, 1280 KiB are nobody's.
const TEST: &str = "\
use metrale_ledger::{SMALL_ALLOC_CHUNK, chunk_slack};

#[test]
fn one_chunk_with_two_allocations() {
    let allocations = [(0, 512 << 10), (512 << 10, 256 << 10)];
    assert_eq!(chunk_slack(allocations.into_iter(), SMALL_ALLOC_CHUNK), 1280 << 10);
}
";

/// Makes the crate, builds it and runs its test.
pub(crate) fn check(target_dir: &std::path::Path) -> Result<()> {
    let dir = tempfile::tempdir().context("making a temporary folder")?;
    let at = dir.path();
    let ledger = root().join("metrale-ledger");
    // A workspace of its own, so that a temporary folder inside some other one does not matter.
    let manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
         [dependencies]\nmetrale-ledger = {{ path = {ledger:?} }}\n\n[workspace]\n"
    );
    fs::create_dir_all(at.join("src"))?;
    fs::create_dir_all(at.join("tests"))?;
    fs::write(at.join("Cargo.toml"), manifest)?;
    fs::write(at.join("src/lib.rs"), "")?;
    fs::write(at.join("tests/slack.rs"), TEST)?;
    // The workspace's versions, so that nothing is asked of a registry.
    fs::copy(root().join("Cargo.lock"), at.join("Cargo.lock")).context("copying Cargo.lock")?;
    run(cargo(["test", "--test", "slack"]).current_dir(at).env("CARGO_TARGET_DIR", target_dir))?;
    run(cargo(["tree", "--edges", "normal,build"]).current_dir(at))
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that the README tells a newcomer to type, run as they stand there.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{root, run as run_command};

/// Runs the README's set-up command number `which`, as it stands there.
pub(crate) fn run(which: usize) -> Result<()> {
    let text = fs::read_to_string(root().join("README.md")).context("reading README.md")?;
    let commands = commands(&text);
    ensure!(commands.len() == 2, "README.md opens with two commands, not {}", commands.len());
    run_command(Command::new("sh").args(["-c", commands[which]]).current_dir(root()))
}

/// The lines of the first shell block, less comments.
fn commands(text: &str) -> Vec<&str> {
    let block = text.lines().skip_while(|line| *line != "```sh").skip(1).take_while(|line| *line != "```");
    block.filter(|line| !line.trim().is_empty() && !line.starts_with('#')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_shell_block_counts_and_its_comments_do_not() {
        let text = "x\n```text\nno\n```\n```sh\n# first\na b\n\nc\n```\n```sh\nd\n```\n";
        assert_eq!(commands(text), ["a b", "c"]);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that the README tells a newcomer to type, run as they are there.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{root, run as run_command};

/// Runs the README's set-up command number `which`, as it is there.
pub(crate) fn run(which: usize) -> Result<()> {
    let text = fs::read_to_string(root().join("README.md")).context("reading README.md")?;
    let commands = commands(&text);
    ensure!(commands.len() == 2, "README.md opens with two commands, not {}", commands.len());
    run_command(Command::new("sh").args(["-c", commands[which]]).current_dir(root()))
}

/// Runs the README's first command and holds its answer against the sample beside it.
pub(crate) fn run_with_its_sample() -> Result<()> {
    let text = fs::read_to_string(root().join("README.md")).context("reading README.md")?;
    let commands = commands(&text);
    let command = commands.first().context("README.md has no command")?;
    let ended = Command::new("sh")
        .args(["-c", command])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("running `{command}`"))?;
    let answer = String::from_utf8_lossy(&ended.stdout);
    println!("{answer}");
    ensure!(ended.status.success(), "`{command}` ended with {}", ended.status);
    // A machine with a GPU answers for that GPU.
    if answer.lines().next().is_some_and(|line| line.contains("software h200")) {
        let (sample, answer) = (comparable(sample(&text)), comparable(answer.trim_end()));
        ensure!(
            sample == answer,
            "README.md's sample is not what `{command}` prints; paste its answer there"
        );
    }
    Ok(())
}

/// The block between the sample's marks, less its fences.
fn sample(text: &str) -> &str {
    let inside = text.split_once("<!-- sample-report -->").map_or("", |(_, rest)| rest);
    let block = inside.split_once("<!-- end of sample-report -->").map_or("", |(block, _)| block);
    block.trim().trim_start_matches("```text").trim_end_matches("```").trim()
}

/// The words without what differs from run to run and from edit to edit: the time, and lines of the source.
fn comparable(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let masked = words.iter().enumerate().map(|(index, word)| match words.get(index + 1) {
        Some(&"s;") => "#".to_owned(),
        _ if word.contains(".rs:") => word.replace(|c: char| c.is_ascii_digit(), "#"),
        _ => (*word).to_owned(),
    });
    masked.collect()
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
    fn the_sample_is_compared_without_times_and_lines() {
        let text = "a\n<!-- sample-report -->\n\n```text\nx in 0.001 s; 7 y.rs:161:26\n```\n<!-- end of sample-report -->\nb";
        assert_eq!(sample(text), "x in 0.001 s; 7 y.rs:161:26");
        assert_eq!(comparable(sample(text)), comparable("x in 0.734 s; 7 y.rs:172:33"));
        assert_ne!(comparable(sample(text)), comparable("x in 0.001 s; 8 y.rs:161:26"));
        assert_eq!(sample("no marks"), "");
    }

    #[test]
    fn only_the_first_shell_block_counts_and_its_comments_do_not() {
        let text = "x\n```text\nno\n```\n```sh\n# first\na b\n\nc\n```\n```sh\nd\n```\n";
        assert_eq!(commands(text), ["a b", "c"]);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The form of new commits: a subject of at most 72 characters and a body that says why.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::cargo::{answers, output, root};
use crate::ci::Outcome;

/// The last commit that is not checked: it and those before it are older than the rule.
const BASELINE: &str = "b99a6d084f8030d835cc5c96f4079d723ff35599";
/// Characters of a subject.
const MOST: usize = 72;
/// Ends a field, and a commit, of git's answer.
const FIELD_END: char = '\0';

/// Checks every commit since the baseline, those of merged branches too, as far as there is a history that holds it.
pub(crate) fn check() -> Result<Outcome> {
    check_in(&root(), BASELINE)
}

fn check_in(checkout: &Path, baseline: &str) -> Result<Outcome> {
    if let Some(reason) = why_not(checkout, baseline)? {
        return Ok(Outcome::NotRun(reason));
    }
    let range = format!("{baseline}..HEAD");
    let format = "--format=%h%x00%s%x00%b%x00";
    let log = output(git(checkout).args(["log", "--no-merges", format, &range]))?;
    let found = flaws(&log);
    ensure!(found.is_empty(), "commits since {baseline}:\n{}", found.join("\n"));
    Ok(Outcome::Passed)
}

/// Why the history cannot be checked, where it cannot.
fn why_not(checkout: &Path, baseline: &str) -> Result<Option<String>> {
    if !answers("git", &["--version"]) {
        return Ok(Some("git is not installed".to_owned()));
    }
    if !succeeds(git(checkout).args(["rev-parse", "HEAD"])) {
        return Ok(Some("there is no git history here".to_owned()));
    }
    if output(git(checkout).args(["rev-parse", "--is-shallow-repository"]))?.trim() == "true" {
        return Ok(Some("the clone is shallow: `git fetch --unshallow` gets its history".to_owned()));
    }
    if !succeeds(git(checkout).args(["merge-base", "--is-ancestor", baseline, "HEAD"])) {
        return Ok(Some(format!(
            "the history here does not hold {baseline}, after which commits are checked"
        )));
    }
    Ok(None)
}

fn git(checkout: &Path) -> Command {
    let mut command = Command::new("git");
    // Named, so that no repository around an unpacked archive is taken for this one.
    command.arg("--git-dir").arg(checkout.join(".git")).current_dir(checkout);
    command
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// What is wrong with commits, given as hash, subject and body, each ended by [`FIELD_END`].
fn flaws(log: &str) -> Vec<String> {
    let fields: Vec<&str> = log.split(FIELD_END).collect();
    let mut found = Vec::new();
    for commit in fields.chunks_exact(3) {
        let [hash, subject, body] = [commit[0].trim(), commit[1], commit[2]];
        let length = subject.chars().count();
        if length > MOST {
            found.push(format!(
                "{hash}: the subject has {length} characters, and {MOST} at most are allowed: {subject}"
            ));
        }
        if body.lines().all(|line| line.trim().is_empty() || is_trailer(line)) {
            found.push(format!("{hash}: no body says why: {subject}"));
        }
    }
    found
}

/// Whether a line of a body is for tools: `Signed-off-by: ...` and its like.
fn is_trailer(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(name, _)| name.contains('-') && !name.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(commits: &[(&str, &str)]) -> String {
        commits.iter().map(|(subject, body)| format!("abc1234\0{subject}\0{body}\0\n")).collect()
    }

    #[test]
    fn subject_is_held_to_72_characters() {
        let (longest, longer) = ("x".repeat(72), "ü".repeat(73));
        assert!(flaws(&log(&[(&longest, "Why.\n")])).is_empty());
        assert!(flaws(&log(&[("ü".repeat(72).as_str(), "Why.\n")])).is_empty(), "characters, not bytes");
        let found = flaws(&log(&[("good", "Why.\n"), (&longer, "Why.\n")]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("abc1234: the subject has 73 characters"), "{found:?}");
    }

    #[test]
    fn body_says_more_than_trailers() {
        for empty in ["", "\n\n", "Signed-off-by: A <a@b.c>\n"] {
            let found = flaws(&log(&[("subject", empty)]));
            assert_eq!(found, ["abc1234: no body says why: subject"], "{empty:?}");
        }
        assert!(flaws(&log(&[("subject", "Why: because.\n\nSigned-off-by: A <a@b.c>\n")])).is_empty());
        assert!(flaws("").is_empty());
    }

    /// Makes a repository with these commits, and returns the hash of the first.
    fn repository(checkout: &Path, commits: &[&[&str]]) -> String {
        let run = |arguments: &[&str]| {
            let who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"];
            let mut command = Command::new("git");
            output(command.current_dir(checkout).args(who).args(arguments)).unwrap()
        };
        run(&["init", "--quiet"]);
        for paragraphs in commits {
            let mut arguments = vec!["commit", "--quiet", "--allow-empty"];
            paragraphs.iter().for_each(|paragraph| arguments.extend(["-m", paragraph]));
            run(&arguments);
        }
        run(&["rev-list", "--max-parents=0", "HEAD"]).trim().to_owned()
    }

    #[test]
    fn commits_after_the_baseline_are_checked_and_older_ones_are_not() {
        if !answers("git", &["--version"]) {
            return;
        }
        let [good, bad] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let baseline = repository(good.path(), &[&["old, without a body"], &["new", "Why."]]);
        assert!(matches!(check_in(good.path(), &baseline).unwrap(), Outcome::Passed));
        let baseline = repository(bad.path(), &[&["old", "Why."], &["new, without a body"]]);
        let error = check_in(bad.path(), &baseline).err().expect("no body").to_string();
        assert!(error.contains("no body says why: new, without a body"), "{error}");
    }

    #[test]
    fn where_there_is_no_such_history_the_check_is_not_run() {
        let empty = tempfile::tempdir().unwrap();
        let Outcome::NotRun(reason) = check_in(empty.path(), BASELINE).unwrap() else { panic!("it ran") };
        assert!(reason.contains("git"), "{reason}");
        if !answers("git", &["--version"]) {
            return;
        }
        let other = tempfile::tempdir().unwrap();
        repository(other.path(), &[&["a", "Why."]]);
        let Outcome::NotRun(reason) = check_in(other.path(), BASELINE).unwrap() else { panic!("it ran") };
        assert!(reason.contains("does not hold"), "{reason}");
        let shallow = tempfile::tempdir().unwrap();
        let from = format!("file://{}", other.path().display());
        repository(other.path(), &[&["b", "Why."]]);
        output(Command::new("git").args(["clone", "--quiet", "--depth", "1", &from]).arg(shallow.path()))
            .unwrap();
        let Outcome::NotRun(reason) = check_in(shallow.path(), BASELINE).unwrap() else { panic!("it ran") };
        assert!(reason.contains("shallow"), "{reason}");
    }
}

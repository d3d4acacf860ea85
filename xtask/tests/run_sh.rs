// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bundle's script, run on programs that only play at being test programs.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use lzma_rust2::{XzOptions, XzWriter};
use tempfile::TempDir;

const RUN_SH: &str = include_str!("../src/run.sh");
/// Answers as libtest does: $3 is the test's name.
const FAKE: &str = r#"#!/bin/sh
[ "$1 $2 $4" = "--ignored --exact --nocapture" ] || { echo "wrong arguments: $*"; exit 99; }
case $3 in
good::device | other::device | pair::two_devices) echo "test result: ok. 1 passed; 0 failed; 0 ignored" ;;
absent::device) echo "test result: ok. 0 passed; 0 failed; 0 ignored" ;;
slow::device) exec sleep 30 ;;
leaves::device) exit 0 ;;
wrapped::device) [ "${WRAPPED:-}" = yes ] && echo "test result: ok. 1 passed; 0 failed" || exit 3 ;;
program::device) "$CARGO_BIN_EXE_metrale" && echo "test result: ok. 1 passed; 0 failed" ;;
reads::device) cat; echo "test result: ok. 1 passed; 0 failed" ;;
*) echo "assertion of $3 failed"; echo "test result: FAILED. 0 passed; 1 failed"; exit 101 ;;
esac
"#;

/// A bundle whose tests are `rows` of program and test.
struct Bundle(TempDir);

impl Bundle {
    fn new(rows: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let programs = dir.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let mut table = String::new();
        for (program, test) in rows {
            if *program != "missing" {
                script(&programs.join(program), FAKE);
            }
            table.push_str(&format!("{program}\t{test}\n"));
        }
        fs::write(dir.path().join("tests.tsv"), table).unwrap();
        script(&dir.path().join("run.sh"), RUN_SH);
        Self(dir)
    }

    /// The same as it travels: the programs as one archive.
    fn packed(rows: &[(&str, &str)]) -> Self {
        let bundle = Self::new(rows);
        let archive = fs::File::create(bundle.path().join("programs.tar.xz")).unwrap();
        let archive = XzWriter::new(archive, XzOptions::with_preset(0)).unwrap();
        let mut archive = tar::Builder::new(archive);
        archive.append_dir_all(".", bundle.path().join("programs")).unwrap();
        archive.into_inner().unwrap().finish().unwrap();
        fs::remove_dir_all(bundle.path().join("programs")).unwrap();
        bundle
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Ended {
        let mut command = Command::new("sh");
        command.arg(self.path().join("run.sh")).args(arguments);
        // What the one who runs these tests has set is not ours.
        for name in ["FILTER", "SKIP", "WRAPPER", "TIMEOUT", "LOGS", "GPUS"] {
            command.env_remove(format!("METRALE_TEST_{name}"));
        }
        Ended::of(
            command.env_remove("CARGO_BIN_EXE_metrale").envs(environment.iter().copied()).output().unwrap(),
        )
    }
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn ends(&self, code: i32, last: &str) {
        assert_eq!((self.code, self.out.lines().last()), (code, Some(last)), "{}{}", self.out, self.err);
    }

    #[track_caller]
    fn says(&self, part: &str) {
        assert!(self.out.contains(part), "{}{}", self.out, self.err);
    }
}

#[test]
fn packed_programs_run_and_leave_nothing_behind() {
    let bundle =
        Bundle::packed(&[("one", "good::device"), ("one", "other::device"), ("two", "good::device")]);
    let scratch = tempfile::tempdir().unwrap();
    let ended = bundle.run(&[("TMPDIR", scratch.path().to_str().unwrap())], &[]);
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    assert!(ended.out.ends_with("3 passed, 0 failed\n"), "{}", ended.out);
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);

    fs::write(bundle.path().join("programs.tar.xz"), "torn").unwrap();
    let ended = bundle.run(&[], &[]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("cannot unpack programs.tar.xz"), "{}", ended.err);
}

#[test]
fn all_pass() {
    let bundle = Bundle::new(&[("a", "good::device"), ("a.topic", "other::device"), ("a", "other::device")]);
    let ended = bundle.run(&[], &[]);
    ended.ends(0, "3 passed, 0 failed");
    for line in
        ["ok      a::good::device", "ok      a.topic::other::device", "program  passed  failed  seconds"]
    {
        ended.says(line);
    }
    ended.says("a             2       0");
}

#[test]
fn failure_shows_its_output_and_is_named_again_at_the_end() {
    let bundle = Bundle::new(&[("a", "bad::device"), ("a", "good::device")]);
    let ended = bundle.run(&[], &[]);
    ended.ends(1, "1 passed, 1 failed");
    ended.says("        | assertion of bad::device failed");
    ended.says("FAILED  a::bad::device: exit status 101");
}

#[test]
fn none_to_run_is_an_error() {
    let ended = Bundle::new(&[]).run(&[], &[]);
    ended.ends(2, "0 passed, 0 failed");
    ended.says("no test ran");
    let filtered = Bundle::new(&[("a", "good::device")]).run(&[("METRALE_TEST_FILTER", "nothing")], &[]);
    filtered.ends(2, "0 passed, 0 failed");
    let skipped = Bundle::new(&[("a", "good::device")]).run(&[("METRALE_TEST_SKIP", "good")], &[]);
    skipped.ends(2, "0 passed, 0 failed");
    skipped.says("1 left out");
}

#[test]
fn test_that_the_program_does_not_have_fails_in_spite_of_status_zero() {
    let bundle = Bundle::new(&[("a", "absent::device"), ("a", "leaves::device")]);
    let ended = bundle.run(&[], &[]);
    ended.ends(1, "0 passed, 2 failed");
    ended.says("FAILED  a::absent::device: no such test ran");
}

#[test]
fn missing_program_fails() {
    let ended = Bundle::new(&[("missing", "good::device"), ("a", "good::device")]).run(&[], &[]);
    ended.ends(1, "1 passed, 1 failed");
}

#[test]
fn filter_and_skip_are_expressions_on_program_and_test() {
    let bundle = Bundle::new(&[("a", "good::device"), ("b", "good::device"), ("b", "other::device")]);
    let run = |filter, skip| bundle.run(&[("METRALE_TEST_FILTER", filter), ("METRALE_TEST_SKIP", skip)], &[]);
    run("^b::", "").ends(0, "2 passed, 0 failed");
    run("::(good|none)::", "").ends(0, "2 passed, 0 failed");
    let both = run("", "^b::good");
    both.ends(0, "2 passed, 0 failed");
    both.says("1 left out by METRALE_TEST_SKIP");
    let broken = run("(", "");
    assert_eq!(broken.code, 2);
    assert!(broken.err.contains("not an extended regular expression: ("), "{}", broken.err);
}

#[test]
fn tests_that_need_two_gpus_run_where_there_are_two_and_are_counted_otherwise() {
    let bundle = Bundle::new(&[("a", "good::device"), ("a", "pair::two_devices")]);
    bundle.run(&[("METRALE_TEST_GPUS", "2")], &[]).ends(0, "2 passed, 0 failed");
    let one = bundle.run(&[("METRALE_TEST_GPUS", "1")], &[]);
    one.ends(0, "1 passed, 0 failed");
    one.says("not run a::pair::two_devices: needs two GPUs");
    one.says("1 not run: they need two GPUs, and there is 1");
    assert_eq!(bundle.run(&[], &["--list"]).out, "a::good::device\na::pair::two_devices\n");
    // Where nothing else is there to run, nothing ran.
    let pair = Bundle::new(&[("a", "pair::two_devices")]);
    pair.run(&[("METRALE_TEST_GPUS", "1")], &[]).ends(2, "0 passed, 0 failed");
    let wrong = bundle.run(&[("METRALE_TEST_GPUS", "two")], &[]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("METRALE_TEST_GPUS is 'two'"), "{}", wrong.err);
}

#[test]
fn the_gpus_are_counted_by_the_tool_of_the_driver() {
    let bundle = Bundle::new(&[("a", "pair::two_devices")]);
    let tools = bundle.path().join("tools");
    fs::create_dir(&tools).unwrap();
    script(
        &tools.join("nvidia-smi"),
        "#!/bin/sh\n[ \"$1\" = -L ] && printf 'GPU 0: A (UUID: x)\\nGPU 1: B (UUID: y)\\n'\n",
    );
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    bundle.run(&[("PATH", &path)], &[]).ends(0, "1 passed, 0 failed");
}

#[test]
fn list_names_the_tests_and_runs_none() {
    let bundle = Bundle::new(&[("a", "bad::device"), ("b", "good::device")]);
    let ended = bundle.run(&[], &["--list"]);
    assert_eq!((ended.code, ended.out.as_str()), (0, "a::bad::device\nb::good::device\n"));
    assert_eq!(bundle.run(&[("METRALE_TEST_FILTER", "none")], &["--list"]).code, 2);
    assert_eq!(bundle.run(&[], &["--lost"]).code, 2);
}

#[test]
fn wrapper_runs_each_test_and_its_status_counts() {
    let bundle = Bundle::new(&[("a", "wrapped::device"), ("a", "good::device")]);
    bundle.run(&[], &[]).ends(1, "1 passed, 1 failed");
    bundle.run(&[("METRALE_TEST_WRAPPER", "env WRAPPED=yes")], &[]).ends(0, "2 passed, 0 failed");
    // As a memory checker does: the test passes, the tool does not.
    let checker = bundle.path().join("checker");
    script(&checker, "#!/bin/sh\n[ \"$1 $2\" = '--code 9' ] || exit 1\nshift 2\n\"$@\"\nexit 9\n");
    let wrapper = format!("{} --code 9", checker.display());
    let ended = bundle.run(&[("METRALE_TEST_WRAPPER", &wrapper)], &[]);
    ended.ends(1, "0 passed, 2 failed");
    ended.says("FAILED  a::good::device: exit status 9");
}

#[test]
fn test_without_end_is_stopped() {
    if !Command::new("timeout").args(["5", "true"]).status().is_ok_and(|status| status.success()) {
        return;
    }
    let bundle = Bundle::new(&[("a", "slow::device"), ("a", "good::device")]);
    let ended = bundle.run(&[("METRALE_TEST_TIMEOUT", "1")], &[]);
    ended.ends(1, "1 passed, 1 failed");
    ended.says("FAILED  a::slow::device: no end within 1 s");
    let wrong = bundle.run(&[("METRALE_TEST_TIMEOUT", "soon")], &[]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("METRALE_TEST_TIMEOUT is 'soon'"), "{}", wrong.err);
}

#[test]
fn test_reads_no_input_and_so_takes_no_rows_from_the_list() {
    let bundle = Bundle::new(&[("a", "reads::device"), ("a", "good::device")]);
    bundle.run(&[], &[]).ends(0, "2 passed, 0 failed");
}

#[test]
fn command_line_tests_find_the_program_of_the_bundle() {
    let bundle = Bundle::new(&[("a", "program::device")]);
    script(&bundle.path().join("metrale"), "#!/bin/sh\nexit 0\n");
    bundle.run(&[], &[]).ends(0, "1 passed, 0 failed");
}

#[test]
fn logs_are_kept_where_asked() {
    let bundle = Bundle::new(&[("a.topic", "good::device")]);
    let logs = bundle.path().join("logs of today");
    bundle.run(&[("METRALE_TEST_LOGS", logs.to_str().unwrap())], &[]).ends(0, "1 passed, 0 failed");
    let log = fs::read_to_string(logs.join("a.topic--good--device.log")).unwrap();
    assert!(log.contains("1 passed"), "{log}");
}

#[test]
fn list_whose_last_line_is_not_ended_is_read_whole() {
    let bundle = Bundle::new(&[("a", "good::device")]);
    fs::write(bundle.path().join("tests.tsv"), "a\tgood::device\n\na\tother::device").unwrap();
    bundle.run(&[], &[]).ends(0, "2 passed, 0 failed");
}

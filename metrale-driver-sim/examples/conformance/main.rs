// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs of driver calls: how many were run, and how many were answered otherwise than they should be.
//!
//! `cargo xtask conformance` runs it; `cargo xtask conformance --bundle DIR` takes it to a machine without Rust. Programs are
//! run on the software driver, which is held to its own rules, and on the system's driver, whose every status, byte and free
//! figure is compared with the software driver's. A program that fails is made small, printed and, with `--save`, kept.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints a table")]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/programs/mod.rs"]
mod programs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use metrale_driver_sim::driver_sys;
use programs::Program;
use programs::compare::{Outcome, by_another, by_rules};

const USAGE: &str = "conformance [--seed N] [--programs N] [--gpu-programs N] [--save DIR]\n\
    --seed          the first program's number [0]\n\
    --programs      how many on the software driver [100000]\n\
    --gpu-programs  how many on the system's driver, where there is one [10000]\n\
    --save          the folder for programs that fail";

struct Args {
    seed: u64,
    programs: u64,
    gpu_programs: u64,
    save: Option<PathBuf>,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self { seed: 0, programs: 100_000, gpu_programs: 10_000, save: None };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{word} {value:?} is no number"));
            match word.as_str() {
                "--seed" => args.seed = number()?,
                "--programs" => args.programs = number()?,
                "--gpu-programs" => args.gpu_programs = number()?,
                "--save" => args.save = Some(PathBuf::from(value)),
                _ => return Err(format!("{word} is no option")),
            }
        }
        Ok(args)
    }
}

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("{:<44} {:>9} {:>11} {:>11} {:>12}", "driver", "programs", "operations", "calls", "differences");
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let software = by_rules(args.seed, args.programs, threads);
    row("the software driver, by its own rules", &software);
    let system = match driver_sys::system() {
        Ok(driver) => {
            let mut shown = 0;
            let outcome = by_another(&driver, args.seed, args.gpu_programs, |so_far| {
                eprint!("\r{} programs, {} differences ", so_far.programs, so_far.failures.len());
                // As they come: such a run is long, and may be ended before its end.
                show(&so_far.failures[shown..], args.save.as_deref());
                shown = so_far.failures.len();
            });
            eprintln!();
            row(&format!("{}, by the software driver", driver.source()), &outcome);
            outcome
        }
        Err(_) => {
            println!("{:<44} not run: no driver is installed", "the system's driver");
            Outcome::default()
        }
    };
    show(&software.failures, args.save.as_deref());
    if software.failures.is_empty() && system.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn show(failures: &[(u64, Program, String)], folder: Option<&Path>) {
    for (seed, program, wrong) in failures {
        println!("\nseed {seed}: {wrong}\n{program}");
        if let Some(folder) = folder
            && let Err(error) = save(folder, *seed, &program.to_string(), wrong)
        {
            eprintln!("error: saving the program in {}: {error}", folder.display());
        }
    }
}

fn row(driver: &str, outcome: &Outcome) {
    let Outcome { programs, operations, calls, failures } = outcome;
    println!("{driver:<44} {programs:>9} {operations:>11} {calls:>11} {:>12}", failures.len());
}

/// Writes a case as `programs/cases.rs` takes it: what was wrong as a remark, then the program.
fn save(folder: &Path, seed: u64, program: &str, wrong: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let remark: String = wrong.lines().map(|line| format!("# {line}\n")).collect();
    let path = folder.join(format!("seed_{seed}.txt"));
    std::fs::write(&path, format!("{remark}{program}"))?;
    println!("saved as {}; a line in tests/programs/cases.rs has it replayed", path.display());
    Ok(())
}

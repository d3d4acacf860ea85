// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of driver calls made by chance: the software driver keeps its own rules, and a GPU answers as it does.

mod common;
mod programs;

use std::collections::BTreeSet;
use std::sync::Arc;

use metrale_driver_sim::driver_sys::{DriverApi, DriverFn};
use metrale_driver_sim::{ContextGuard, FaultDriver, on_both_drivers};
use programs::cases::CASES;
use programs::compare::{Outcome, broken_rule, by_another, by_rules, software};
use programs::op::Op;
use programs::shrink::shrink;
use programs::{Program, run};

/// How many programs: the variable's, for long runs.
fn count(usual: u64) -> u64 {
    std::env::var("METRALE_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

#[track_caller]
fn assert_nothing_failed(outcome: &Outcome) {
    let shown = |(seed, program, wrong): &(u64, Program, String)| format!("seed {seed}: {wrong}\n{program}");
    let failures: Vec<_> = outcome.failures.iter().take(5).map(shown).collect();
    assert!(failures.is_empty(), "{} programs fail:\n{}", outcome.failures.len(), failures.join("\n"));
}

#[test]
fn the_software_driver_keeps_its_rules() {
    let outcome = by_rules(0, count(2000), 2);
    assert_nothing_failed(&outcome);
    assert!(outcome.calls > outcome.programs * 20, "{}", outcome.calls);
}

on_both_drivers! {
    /// Statuses, bytes and free figures are those of the software driver.
    chance_programs(driver; sim: software()) {
        assert_nothing_failed(&by_another(&driver, 1 << 32, count(250), |_| {}));
    }

    /// Programs with a name.
    named_programs(driver; sim: software()) {
        let other: Arc<dyn DriverApi> = Arc::new(software());
        for (name, text) in CASES {
            let program: Program = text.parse().unwrap();
            let [here, there] = [&driver, &other].map(|driver| {
                let _context = ContextGuard::new(driver, 0).unwrap();
                run(driver, &program)
            });
            assert_eq!(here.first_difference(&there), None, "{name}");
            assert!(here.wrong.is_empty(), "{name}: {:?}", here.wrong);
        }
    }
}

#[test]
fn named_programs_keep_the_rules_and_one_has_every_operation_succeed() {
    for (name, text) in CASES {
        let program: Program = text.parse().unwrap();
        assert!(broken_rule(&program).is_ok(), "{name}: {:?}", broken_rule(&program));
    }
    let driver: Arc<dyn DriverApi> = Arc::new(software());
    let _context = ContextGuard::new(&driver, 0).unwrap();
    let transcript = run(&driver, &CASES[0].1.parse().unwrap());
    for step in &transcript.steps {
        // What is left out has no status; a write of the host asks no driver.
        let left_out = step.statuses.is_empty() && !step.op.starts_with("write");
        let refused = step.statuses.iter().any(|status| *status != 0);
        let may_be_refused = step.op.starts_with("free-inside") || step.op.starts_with("free-again");
        assert!(!left_out && refused == may_be_refused, "{step}");
    }
    let verbs: BTreeSet<_> = transcript.steps.iter().filter_map(|step| step.op.split(' ').next()).collect();
    assert!(verbs.len() > 40, "{verbs:?}");
}

#[test]
fn a_program_is_its_text() {
    for seed in 0..500 {
        let program = Program::of_seed(seed);
        assert_eq!(program.to_string().parse(), Ok(program));
    }
    for wrong in
        ["allok b0 1", "alloc", "alloc b0", "alloc s0 1", "alloc b9 1", "alloc b0 1 2", "alloc b0 -1"]
    {
        assert!(wrong.parse::<Op>().is_err(), "{wrong}");
    }
}

#[test]
fn a_driver_that_answers_otherwise_is_found_by_a_small_program() {
    // From its second call on: the first is as it should be.
    let faulty = Arc::new(FaultDriver::new(Arc::new(software())));
    faulty.fail_from(DriverFn::cuMemsetD32Async, 2, 1);
    let driver: Arc<dyn DriverApi> = faulty;
    let outcome = by_another(&driver, 0, 100, |_| {});
    let (_, program, difference) = &outcome.failures[0];
    assert!(difference.contains("< fill-words") && difference.contains("> fill-words"), "{difference}");
    let lines: Vec<String> = program.0.iter().map(ToString::to_string).collect();
    assert!(lines.len() <= 4 && lines.iter().any(|line| line.starts_with("fill-words")), "{program}");
}

#[test]
fn a_failing_program_is_made_small() {
    let program = Program::of_seed(3);
    let big: Program = format!("alloc b3 5000\n{program}free b3\n").parse().unwrap();
    let has = |program: &Program, name: &str| program.to_string().lines().any(|line| line.starts_with(name));
    let small = shrink(&big, |program| has(program, "alloc b3") && has(program, "free b3"));
    assert_eq!(small.to_string(), "alloc b3 0\nfree b3\n");
}

#[test]
fn transcripts_part_where_the_answers_do() {
    let [left, right] = ["alloc b0 64\nfree b0\n", "alloc b0 64\nfree-inside b0 4\nfree b0\n"].map(|text| {
        let driver: Arc<dyn DriverApi> = Arc::new(software());
        let _context = ContextGuard::new(&driver, 0).unwrap();
        run(&driver, &text.parse().unwrap())
    });
    assert_eq!(left.first_difference(&left), None);
    let text = left.first_difference(&right).unwrap();
    assert!(text.contains("< free b0") && text.contains("> free-inside b0 4"), "{text}");
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many programs: on the software driver against its own rules, and on two drivers against each other.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use metrale_driver_sim::driver_sys::DriverApi;
use metrale_driver_sim::{ContextGuard, Profile, SimDriver};

use super::shrink::shrink;
use super::transcript::Transcript;
use super::{Program, machine, run};

/// Programs that share a context: making one costs a GPU a tenth of a second.
const TOGETHER: u64 = 25;
/// After so many failures the rest is not run.
const MOST_FAILURES: usize = 40;

/// What came of many programs.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) programs: u64,
    pub(crate) operations: u64,
    pub(crate) calls: u64,
    /// Programs that fail, each made small, and what is wrong.
    pub(crate) failures: Vec<(u64, Program, String)>,
}

/// A software H200 that knows the kernels of programs.
pub(crate) fn software() -> SimDriver {
    let driver = SimDriver::new(Profile::h200());
    machine::register(&driver);
    driver
}

/// Runs programs in a context of its own.
fn in_a_context(driver: &Arc<dyn DriverApi>, programs: &[Program]) -> Result<Vec<Transcript>, String> {
    let _context = ContextGuard::new(driver, 0).map_err(|error| error.to_string())?;
    Ok(programs.iter().map(|program| run(driver, program)).collect())
}

/// What is wrong with the software driver's answers to a program: it panics; it leaks; the same program is answered otherwise
/// in another instance; memory does not hold what was written; the free figure does not come back; a real driver would
/// crash. The count of calls where nothing is.
pub(crate) fn broken_rule(program: &Program) -> Result<u64, String> {
    let act = || {
        let sim = software();
        let driver: Arc<dyn DriverApi> = Arc::new(sim.clone());
        let twice = in_a_context(&driver, &[program.clone(), program.clone()])?;
        let other: Arc<dyn DriverApi> = Arc::new(software());
        let again = in_a_context(&other, std::slice::from_ref(program))?;
        if let Some(difference) = twice[0].first_difference(&again[0]) {
            return Err(format!("answered otherwise in another instance:\n{difference}"));
        }
        if let Some(wrong) = twice.iter().find_map(|transcript| transcript.wrong.first()) {
            return Err(wrong.clone());
        }
        // Streams and graphs keep chunks, but a second run needs no more of them, and out of memory it gives some back.
        let used = twice[1].steps.last().map(|step| step.used);
        if !matches!(used, Some(Ok(..=0))) {
            return Err(format!(
                "used bytes after all was freed: {used:?}\n{}",
                twice[1].steps.last().unwrap()
            ));
        }
        if !sim.leaks().is_empty() {
            return Err(sim.leaks().to_string());
        }
        if let Some(crash) = sim.diagnostics().iter().find(|line| line.contains("crash")) {
            return Err(crash.clone());
        }
        Ok(twice[0].calls())
    };
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err("it panics".to_owned()))
}

/// The programs of `count` seeds on the software driver, each held to its rules.
pub(crate) fn by_rules(seed: u64, count: u64, threads: u64) -> Outcome {
    let part = |thread: u64| {
        let mut outcome = Outcome::default();
        for seed in (seed..seed + count).filter(|seed| seed % threads == thread) {
            let program = Program::of_seed(seed);
            outcome.programs += 1;
            outcome.operations += program.0.len() as u64;
            match broken_rule(&program) {
                Ok(calls) => outcome.calls += calls,
                Err(_) if outcome.failures.len() < 5 => {
                    let small = shrink(&program, |program| broken_rule(program).is_err());
                    let wrong = broken_rule(&small).err().unwrap_or_default();
                    outcome.failures.push((seed, small, wrong));
                }
                Err(wrong) => outcome.failures.push((seed, program, wrong)),
            }
        }
        outcome
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let mut sum = Outcome::default();
        for part in parts.into_iter().filter_map(|part| part.join().ok()) {
            sum.programs += part.programs;
            sum.operations += part.operations;
            sum.calls += part.calls;
            sum.failures.extend(part.failures);
        }
        sum
    })
}

/// A context on each of two drivers.
struct Pair<'a> {
    drivers: [&'a Arc<dyn DriverApi>; 2],
    _contexts: [ContextGuard; 2],
}

impl<'a> Pair<'a> {
    fn new(drivers: [&'a Arc<dyn DriverApi>; 2]) -> Result<Self, String> {
        let context = |driver| ContextGuard::new(driver, 0).map_err(|error| format!("no context: {error}"));
        Ok(Self { drivers, _contexts: [context(drivers[0])?, context(drivers[1])?] })
    }

    /// Where the answers to a program part; `calls` counts.
    fn difference(&self, program: &Program, calls: &mut u64) -> Option<String> {
        let [left, right] = self.drivers.map(|driver| run(driver, program));
        *calls += left.calls();
        let wrong = || left.wrong.iter().chain(&right.wrong).next().cloned();
        left.comparable().first_difference(&right.comparable()).or_else(wrong)
    }
}

/// The programs of `count` seeds on a driver, against the software driver. `progress` is told after each context.
pub(crate) fn by_another(
    driver: &Arc<dyn DriverApi>,
    seed: u64,
    count: u64,
    mut progress: impl FnMut(&Outcome),
) -> Outcome {
    let other: Arc<dyn DriverApi> = Arc::new(software());
    let drivers = [driver, &other];
    let mut outcome = Outcome::default();
    let mut at = seed;
    while at < seed + count && outcome.failures.len() < MOST_FAILURES {
        match together(drivers, at..(at + TOGETHER).min(seed + count), &mut outcome) {
            Ok(next) => at = next,
            Err(wrong) => {
                outcome.failures.push((at, Program::default(), wrong));
                break;
            }
        }
        progress(&outcome);
    }
    outcome
}

/// Runs the programs of seeds in one context, up to the first that is answered otherwise; the seed to go on with.
fn together(
    drivers: [&Arc<dyn DriverApi>; 2],
    seeds: Range<u64>,
    outcome: &mut Outcome,
) -> Result<u64, String> {
    let found = {
        let pair = Pair::new(drivers)?;
        seeds.clone().find_map(|seed| {
            let program = Program::of_seed(seed);
            outcome.programs += 1;
            outcome.operations += program.0.len() as u64;
            pair.difference(&program, &mut outcome.calls).map(|difference| (seed, difference))
        })
    };
    let Some((seed, difference)) = found else { return Ok(seeds.end) };
    outcome.failures.push(smallest(drivers, seeds.start..seed, seed, difference)?);
    Ok(seed + 1)
}

/// The program of `seed`, which two drivers answer differently: alone and small where it differs alone, else with those
/// `before` it in its context.
fn smallest(
    drivers: [&Arc<dyn DriverApi>; 2],
    before: Range<u64>,
    seed: u64,
    found: String,
) -> Result<(u64, Program, String), String> {
    let program = Program::of_seed(seed);
    let alone = |program: &Program| Pair::new(drivers).map(|pair| pair.difference(program, &mut 0));
    let Some(found_alone) = alone(&program)? else {
        // All of them as one, which is a program too.
        let all = before.chain([seed]).flat_map(|seed| Program::of_seed(seed).0).collect();
        return Ok((seed, Program(all), format!("only in one context, one after the other:\n{found}")));
    };
    // In one context: a program leaves nothing behind, and a context is slow to make.
    let small = {
        let pair = Pair::new(drivers)?;
        shrink(&program, |program| pair.difference(program, &mut 0).is_some())
    };
    Ok(match alone(&small)? {
        Some(found) => (seed, small, found),
        None => (seed, program, found_alone),
    })
}

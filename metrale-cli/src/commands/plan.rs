// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale plan`: what a model or a recorded log will take, by the rules of CUDA's allocators, before anything is allocated.

use std::path::Path;

use metrale_ledger::plan::{Allocator, Plan, Step};
use metrale_ledger::trace::Follow;

use crate::allocation_log::{AllocationLog, LogError, is_log};
use crate::args::{PlanArgs, When};
use crate::commands::load::asked_for;
use crate::model::{ModelInput, ShownPath, scope_of};
use crate::per_op::PerOp;
use crate::render::failure::{Failed, Input};
use crate::render::of_log::OfLog;
use crate::render::plan::{Fit, PlanReport};
use crate::render::still_live::LiveAllocation;
use crate::{Console, Exit, concluded, outputs};

/// The device whose rules plans go by.
const MEASURED_ON: &str = "H200";

/// Whether that is what a device's name says; a GH200 is another.
fn is_measured(name: &str) -> bool {
    name.split_whitespace().any(|word| word == MEASURED_ON)
}

/// Runs the command.
pub fn run(args: &PlanArgs, console: &mut Console<'_>) -> Exit {
    match plan(args, console) {
        Ok(report) => concluded(&report, report.exit(), None, args.json, console),
        Err(error) => {
            let asked_for = asked_for(&args.files, args.model.as_deref());
            let is_log = args.files.iter().any(|path| is_log(path));
            let input = if is_log { Input::Log(asked_for) } else { Input::Model(asked_for) };
            Failed::new(input, &error).say(args.json, console)
        }
    }
}

fn plan(args: &PlanArgs, console: &mut Console<'_>) -> anyhow::Result<PlanReport> {
    let planned = if let Some(log) = args.files.iter().find(|path| is_log(path)) {
        if args.files.len() > 1 {
            return Err(LogError::NotAlone(log.clone()).into());
        }
        plan_log(log, args, console)?
    } else {
        let input = ModelInput::open(&args.files, args.model.as_deref())?;
        outputs::check(&[("--per-op", args.per_op.as_deref())], input.paths(&args.files))?;
        for remark in input.remarks() {
            console.remark(remark);
        }
        plan_model(&input, args)?
    };
    let fit = match (&args.memory, &args.device) {
        (Some(memory), _) => Some(Fit { into: "the given memory".to_owned(), bytes: memory.0 }),
        (None, Some(device)) => {
            let (name, bytes) = device.free()?;
            if !is_measured(&name) {
                console.remark(format_args!(
                    "note: the plan is by the rules of an {MEASURED_ON}; what {name} does was not measured"
                ));
            }
            Some(Fit { into: format!("what {name} has free"), bytes })
        }
        (None, None) => None,
    };
    let orders = planned.plan.orders()?;
    Ok(PlanReport::new(planned.title, &planned.plan.summary(), orders, fit)
        .planned_for(planned.plan.allocator(), args)
        .listing(args.top)
        .of_log(planned.of_log))
}

/// What was planned, and under which name.
struct Planned {
    title: String,
    plan: Plan,
    /// What only a log has.
    of_log: Option<OfLog>,
}

/// Plans a model as it is loaded: every tensor that has bytes, in the input's order, under its scope.
fn plan_model(input: &ModelInput, args: &PlanArgs) -> anyhow::Result<Planned> {
    let mut plan = args.plan(Allocator::Driver);
    let mut table = Table::create(args, &plan)?;
    for (tensor, id) in input.tensors().iter().filter(|tensor| tensor.bytes > 0).zip(0..) {
        let step = plan.alloc(id, tensor.bytes, Some(&scope_of(&tensor.name)))?;
        table.row(step, &plan)?;
    }
    table.finish()?;
    Ok(Planned { title: input.title().to_owned(), plan, of_log: None })
}

/// Plans a log, row by row, and says what was odd about it.
fn plan_log(path: &Path, args: &PlanArgs, console: &mut Console<'_>) -> anyhow::Result<Planned> {
    let mut log = AllocationLog::open(path, args.lenient)?;
    outputs::check(&[("--per-op", args.per_op.as_deref())], [path])?;
    // The header, which may say that the log is a pool's, is read with the first row.
    let mut next = log.next_row()?;
    let recorded_from = if log.is_of_pool() { Allocator::Pool } else { Allocator::Driver };
    let mut follow = Follow::through(args.plan(recorded_from));
    let mut table = Table::create(args, follow.plan())?;
    while let Some(row) = next {
        let step = match follow.row(&row) {
            Ok(followed) => {
                if let Some(finding) = &followed.finding {
                    log.note(finding);
                }
                followed.step
            }
            Err(error) => {
                log.no_place(row.line, error)?;
                // The plan has counted it and is as it was.
                let plan = follow.plan();
                Step {
                    operation: follow.totals().rows - 1,
                    live_bytes: plan.live_bytes(),
                    resident_bytes: plan.resident_bytes(),
                }
            }
        };
        table.row(step, follow.plan())?;
        next = log.next_row()?;
    }
    let totals = follow.totals();
    let mut notes = log.into_notes()?;
    if totals.synchronizes > 0
        && args.synchronize == When::Each
        && follow.plan().allocator() == Allocator::Pool
    {
        notes.has_synchronize_rows_unused = true;
    }
    let mut of_log = OfLog::new(&follow, notes);
    table.finish()?;
    for remark in &of_log.remarks {
        console.remark(remark);
    }
    let still_live = follow.live_unordered();
    of_log.live_at_end = still_live
        .map(|row| LiveAllocation { address: row.pointer, bytes: row.bytes, line: row.line })
        .collect();
    let (title, plan) = (ShownPath(path).to_string(), follow.into_plan());
    Ok(Planned { title, plan, of_log: Some(of_log) })
}

/// The table of `--per-op`, where one was asked for.
struct Table(Option<PerOp>);

impl Table {
    fn create(args: &PlanArgs, plan: &Plan) -> anyhow::Result<Self> {
        let columns = match plan.allocator() {
            Allocator::Pool => "op,live_bytes,resident_bytes,used_bytes,reserved_bytes",
            _ => "op,live_bytes,resident_bytes",
        };
        Ok(Self(args.per_op.as_deref().map(|path| PerOp::create(path, columns)).transpose()?))
    }

    fn row(&mut self, step: Step, plan: &Plan) -> anyhow::Result<()> {
        let Some(table) = &mut self.0 else { return Ok(()) };
        let Step { operation, live_bytes, resident_bytes } = step;
        match plan.allocator() {
            Allocator::Pool => {
                let (used_bytes, reserved_bytes) = (plan.pool_used_bytes(), plan.pool_reserved_bytes());
                table.row([operation, live_bytes, resident_bytes, used_bytes, reserved_bytes])?;
            }
            _ => table.row([operation, live_bytes, resident_bytes])?,
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        Ok(self.0.map_or(Ok(()), PerOp::finish)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_device_is_told_from_others_of_like_names() {
        assert!(is_measured("NVIDIA H200") && is_measured("NVIDIA H200 NVL"));
        assert!(!is_measured("NVIDIA GH200 480GB") && !is_measured("NVIDIA H100"));
    }
}

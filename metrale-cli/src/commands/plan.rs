// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale plan`: what a model or a recorded log will take, by the driver's packing rule, before anything is allocated.

use std::path::Path;

use metrale_ledger::plan::{Plan, Step};
use metrale_ledger::trace::Follow;

use crate::allocation_log::{AllocationLog, LogError, is_log};
use crate::args::PlanArgs;
use crate::commands::load::asked_for;
use crate::model::{ModelInput, ShownPath, scope_of};
use crate::per_op::PerOp;
use crate::render::failure::{Failed, Input};
use crate::render::of_log::OfLog;
use crate::render::plan::{Fit, PlanReport};
use crate::render::still_live::LiveAllocation;
use crate::{Console, Exit, concluded, outputs};

/// The device whose packing rule plans go by.
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
                    "note: the plan is by the packing rule of an {MEASURED_ON}; that of {name} was not measured"
                ));
            }
            Some(Fit { into: format!("what {name} has free"), bytes })
        }
        (None, None) => None,
    };
    let orders = planned.plan.orders()?;
    Ok(PlanReport::new(planned.title, &planned.plan.summary(), orders, fit)
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
    let mut table = table(args)?;
    let mut plan = Plan::h200();
    for (tensor, id) in input.tensors().iter().filter(|tensor| tensor.bytes > 0).zip(0..) {
        let step = plan.alloc(id, tensor.bytes, Some(&scope_of(&tensor.name)))?;
        write(&mut table, step)?;
    }
    finish(table)?;
    Ok(Planned { title: input.title().to_owned(), plan, of_log: None })
}

/// Plans a log, row by row, and says what was odd about it.
fn plan_log(path: &Path, args: &PlanArgs, console: &mut Console<'_>) -> anyhow::Result<Planned> {
    let mut log = AllocationLog::open(path, args.lenient)?;
    outputs::check(&[("--per-op", args.per_op.as_deref())], [path])?;
    let mut table = table(args)?;
    let mut follow = Follow::new();
    while let Some(row) = log.next_row()? {
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
        write(&mut table, step)?;
    }
    let mut of_log = OfLog::new(&follow.totals(), log.into_notes()?);
    finish(table)?;
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

fn table(args: &PlanArgs) -> anyhow::Result<Option<PerOp>> {
    let create = |path: &_| PerOp::create(path, "op,live_bytes,resident_bytes");
    Ok(args.per_op.as_deref().map(create).transpose()?)
}

fn write(table: &mut Option<PerOp>, step: Step) -> anyhow::Result<()> {
    if let Some(table) = table {
        table.row([step.operation, step.live_bytes, step.resident_bytes])?;
    }
    Ok(())
}

fn finish(table: Option<PerOp>) -> anyhow::Result<()> {
    Ok(table.map_or(Ok(()), PerOp::finish)?)
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

// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale diff`: what changed from one snapshot to another.

use std::path::PathBuf;

use crate::args::DiffArgs;
use crate::model::ShownPath;
use crate::render::diff::DiffReport;
use crate::render::failure::{Failed, Input};
use crate::{Console, Exit, answered, snapshot_file};

/// Runs the command.
pub fn run(args: &DiffArgs, console: &mut Console<'_>) -> Exit {
    let read = |path: &PathBuf| {
        snapshot_file::read(path)
            .map_err(|error| Failed::new(Input::Snapshot(ShownPath(path).to_string()), &error.into()))
    };
    match read(&args.before).and_then(|before| Ok((before, read(&args.after)?))) {
        Ok((before, after)) => {
            let report = DiffReport::new(after.diff(&before));
            let printed = console.answer_as(args.json, &report);
            answered(printed, console)
        }
        Err(failed) => failed.say(args.json, console),
    }
}

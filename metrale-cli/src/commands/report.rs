// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale report`: a snapshot from a file as the ledger's report.

use crate::args::ReportArgs;
use crate::model::ShownPath;
use crate::render::failure::{Failed, Input};
use crate::render::report::SnapshotReport;
use crate::{Console, Exit, answered, snapshot_file};

/// Runs the command.
pub fn run(args: &ReportArgs, console: &mut Console<'_>) -> Exit {
    match snapshot_file::read(&args.snapshot) {
        Ok(snapshot) => {
            let report = SnapshotReport::new(snapshot, args.top, args.min_mb);
            let printed = console.answer_as(args.json, &report);
            answered(printed, console)
        }
        Err(error) => {
            let input = Input::Snapshot(ShownPath(&args.snapshot).to_string());
            Failed::new(input, &error.into()).say(args.json, console)
        }
    }
}

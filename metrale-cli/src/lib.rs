// SPDX-License-Identifier: MIT OR Apache-2.0
//! The metrale program: what a model's weights take on a CUDA device, with every byte accounted for.
//!
//! This is the library half, so that tests and other tools reach the parts; `src/main.rs` is the program.
//!
//! | command | what it does | exit code |
//! |---|---|---|
//! | `metrale load` | puts a model's weights on a device (or on the software H200) and prints who holds what | 0; 2 for bad input; 3 out of memory |
//! | `metrale plan` | says what a model or a recorded log will take, before anything is allocated | 0; 2 for bad input; 3 where it does not fit |
//! | `metrale replay` | does a recorded log's operations on a device and prints who held what | 0; 2 for bad input; 3 out of memory |
//! | `metrale report` | prints the report of a snapshot that load or replay wrote | 0; 2 for bad input |
//! | `metrale diff` | prints what changed between two snapshots | 0; 2 for bad input |
//! | `metrale doctor` | says which driver and devices there are | 0 where a device is usable, else 1 |

mod allocation_log;
pub mod args;
mod byte_count;
pub mod commands;
mod console;
mod driver_choice;
mod exit;
mod host_memory;
pub mod model;
mod moment;
mod outputs;
mod per_op;
mod plan_device;
pub mod render;
mod replayed;
mod script;
mod snapshot_file;
mod whole_file;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::ErrorKind;

use clap::Parser;
use serde::Serialize;

use crate::render::load::Shortage;

pub use allocation_log::LogError;
pub use byte_count::{ByteCount, NotAByteCount};
pub use console::Console;
pub use driver_choice::{ChosenDriver, DriverChoice, UnknownDriver};
pub use exit::Exit;
pub use host_memory::NotEnoughHostMemory;
pub use outputs::OutputError;
pub use per_op::PerOpError;
pub use plan_device::{PlanDevice, UnknownDevice};
pub use snapshot_file::SnapshotError;

/// Runs the program with its arguments, the program's own name first.
pub fn run(args: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> Exit {
    let cli = match args::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            console.usage(error.render());
            return Exit::BadInput;
        }
        // --help and --version.
        Err(text) => {
            let printed = console.answer(text.render().to_string().trim_end());
            return answered(printed, console);
        }
    };
    match cli.command {
        args::Command::Load(args) => commands::load::run(&args, console),
        args::Command::Plan(args) => commands::plan::run(&args, console),
        args::Command::Replay(args) => commands::replay::run(&args, console),
        args::Command::Report(args) => commands::report::run(&args, console),
        args::Command::Diff(args) => commands::diff::run(&args, console),
        args::Command::Doctor(args) => commands::doctor::run(&args, console),
    }
}

/// Prints the answer and, behind it, the shortage that it ends with; gives how the program ends.
fn concluded(
    report: &(impl Display + Serialize),
    exit: Exit,
    shortage: Option<&Shortage>,
    json: bool,
    console: &mut Console<'_>,
) -> Exit {
    let printed = console.answer_as(json, report);
    if let Some(shortage) = shortage {
        console.remark(&shortage.message);
    }
    if exit == Exit::Done { answered(printed, console) } else { exit }
}

/// The end of a command whose answer was (or could not be) printed.
fn answered(printed: std::io::Result<()>, console: &mut Console<'_>) -> Exit {
    match printed {
        Ok(()) => Exit::Done,
        // A reader that closed the pipe, such as `head`, has what it wanted.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Exit::Done,
        Err(error) => {
            console.remark(format_args!("the answer cannot be written: {error}"));
            Exit::Failed
        }
    }
}

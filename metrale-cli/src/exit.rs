// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the program ends: one number for each kind of end, the same for every command.

use std::process::ExitCode;

/// The program's exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did what it was asked.
    Done = 0,
    /// The driver or the machine failed; for `doctor`, no GPU is usable.
    Failed = 1,
    /// The input or the command line makes no sense; nothing was done.
    BadInput = 2,
    /// The device has not enough memory, and everything was freed again; for `plan`, it would not have.
    OutOfMemory = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of a command that failed before it had anything to report.

use std::fmt;

use metrale_cuda_backend::{HostError, Remedy, cause, remedy};
use metrale_driver_sys::CUDA_ERROR_OUT_OF_MEMORY;
use serde::Serialize;

use crate::model::InputError;
use crate::{Console, Exit, LogError, NotEnoughHostMemory, OutputError, PerOpError, SnapshotError};

/// The `kind` of an error of the input.
const BAD_INPUT: &str = "bad_input";
/// The `kind` of an error for lack of memory.
pub(crate) const OUT_OF_MEMORY: &str = "out_of_memory";

/// The answer of a command that failed before it had anything to report.
#[derive(Debug, Serialize)]
pub struct Failed {
    /// What was asked for.
    #[serde(flatten)]
    pub input: Input,
    /// What happened.
    pub error: Failure,
}

/// What a command was asked for, in the field in which its report would name it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A model: a path, a number of files, or the catalogue's name.
    Model(String),
    /// A log's path.
    Log(String),
    /// A snapshot's path.
    Snapshot(String),
}

/// Why there is no report.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// `bad_input`; `out_of_memory` where the context or the pinned buffers did not fit; else `failed`.
    pub kind: &'static str,
    /// The whole answer, for people.
    pub message: String,
}

impl Failed {
    pub(crate) fn new(input: Input, error: &anyhow::Error) -> Self {
        // A context that does not fit is out of memory too; the error has only the driver's status.
        let context_did_not_fit = cause::<HostError>(error)
            .and_then(HostError::driver_error)
            .is_some_and(|error| error.status == CUDA_ERROR_OUT_OF_MEMORY);
        let out_of_memory = context_did_not_fit
            || error.is::<NotEnoughHostMemory>()
            || remedy(error) == Some(Remedy::FreeAndRetry);
        let bad_input = error.is::<InputError>()
            || error.is::<LogError>()
            || error.is::<OutputError>()
            || error.downcast_ref().is_some_and(PerOpError::is_bad_input)
            || error.downcast_ref().is_some_and(SnapshotError::is_bad_input);
        let kind = if bad_input {
            BAD_INPUT
        } else if out_of_memory {
            OUT_OF_MEMORY
        } else {
            "failed"
        };
        Self { input, error: Failure { kind, message: format!("{error:#}") } }
    }

    /// Prints it, to both outputs where the answer is to be JSON.
    pub(crate) fn say(&self, json: bool, console: &mut Console<'_>) -> Exit {
        console.remark(self);
        if json {
            // The error is printed already; a closed output changes nothing.
            let _ = console.answer_as(true, self);
        }
        self.exit()
    }

    /// How the program ends with this answer.
    pub fn exit(&self) -> Exit {
        match self.error.kind {
            BAD_INPUT => Exit::BadInput,
            OUT_OF_MEMORY => Exit::OutOfMemory,
            _ => Exit::Failed,
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error.message)
    }
}

#[cfg(test)]
mod tests {
    use metrale_driver_sys::{CUresult, DriverError, DriverFn};

    use super::*;

    fn failure(status: CUresult) -> Failed {
        let error = DriverError { function: DriverFn::cuDevicePrimaryCtxRetain, status };
        Failed::new(Input::Model("gpt2".to_owned()), &HostError::Context { ordinal: 0, error }.into())
    }

    #[test]
    fn a_device_too_full_for_a_context_is_out_of_memory_and_any_other_failure_is_not() {
        assert_eq!(failure(CUDA_ERROR_OUT_OF_MEMORY).exit(), Exit::OutOfMemory);
        for status in [1, 46, 100, 700, 999] {
            assert_eq!(failure(status).exit(), Exit::Failed, "{status}");
        }
    }
}

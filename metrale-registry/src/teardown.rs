// SPDX-License-Identifier: MIT OR Apache-2.0
//! What could not be released: [`TeardownError`], and the sink that is told where no caller can get the error.

use core::fmt;
use std::io::Write as _;
use std::sync::Arc;

use metrale_driver_sys::DriverError;

use crate::is_teardown_noop;

/// Is told what a drop could not release. Called on whichever thread drops the last handle, at most once for each
/// registry or host, with no lock held.
pub type TeardownSink = Arc<dyn Fn(&TeardownError) + Send + Sync>;

/// A thing that the driver would not take back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// A module, by its name.
    Module(&'static str),
    /// The host's stream.
    Stream,
    /// The reference on the primary context.
    Context,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Module(name) => write!(f, "module {name:?}"),
            Self::Stream => f.write_str("the stream"),
            Self::Context => f.write_str("the primary context"),
        }
    }
}

/// All that one teardown could not release, in the order of the attempts. What a context takes with it when it goes
/// ([`is_teardown_noop`]) is not among it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TeardownError {
    /// The device it was on.
    pub ordinal: usize,
    /// What was not released, and the driver's answer for each; never empty.
    pub failures: Vec<(Resource, DriverError)>,
}

impl fmt::Display for TeardownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: not released:", self.ordinal)?;
        // After a fault all have the same answer, which is then said once.
        for (index, (resource, error)) in self.failures.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator} {resource}")?;
            if self.failures.get(index + 1).is_none_or(|(_, next)| next != error) {
                write!(f, " ({error})")?;
            }
        }
        Ok(())
    }
}

impl core::error::Error for TeardownError {}

/// Collects the answers of one teardown.
pub(crate) struct Teardown {
    ordinal: usize,
    failures: Vec<(Resource, DriverError)>,
}

impl Teardown {
    pub(crate) const fn new(ordinal: usize) -> Self {
        Self { ordinal, failures: Vec::new() }
    }

    pub(crate) fn note(&mut self, resource: Resource, answer: Result<(), DriverError>) {
        if let Err(error) = answer
            && !is_teardown_noop(error.status)
        {
            self.failures.push((resource, error));
        }
    }

    pub(crate) fn append(&mut self, other: Self) {
        self.failures.extend(other.failures);
    }

    pub(crate) fn into_result(self) -> Result<(), TeardownError> {
        if self.failures.is_empty() {
            Ok(())
        } else {
            Err(TeardownError { ordinal: self.ordinal, failures: self.failures })
        }
    }

    /// Tells `sink` of the failures, if there are any; with no sink, one line on standard error.
    pub(crate) fn tell(self, sink: Option<&TeardownSink>) {
        let Err(error) = self.into_result() else { return };
        match sink {
            Some(sink) => sink(&error),
            // Not `eprintln!`, which panics where standard error is closed; if it is, there is nobody left to tell.
            None => drop(writeln!(std::io::stderr(), "metrale: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_driver_sys::DriverFn;

    #[test]
    fn answers_of_a_context_that_is_gone_are_no_failures() {
        let mut teardown = Teardown::new(0);
        for status in [0, 4, 201, 709] {
            let answer = metrale_driver_sys::check(DriverFn::cuModuleUnload, status);
            teardown.note(Resource::Module("m"), answer);
        }
        assert_eq!(teardown.into_result(), Ok(()));
    }

    #[test]
    fn one_answer_for_many_is_said_once() {
        let error = DriverError { function: DriverFn::cuModuleUnload, status: 700 };
        let mut teardown = Teardown::new(3);
        teardown.note(Resource::Module("a"), Err(error));
        teardown.note(Resource::Module("b"), Err(error));
        teardown
            .note(Resource::Stream, Err(DriverError { function: DriverFn::cuStreamDestroy_v2, status: 400 }));
        let text = teardown.into_result().unwrap_err().to_string();
        assert!(
            text.starts_with("device 3: not released: module \"a\", module \"b\" (cuModuleUnload: "),
            "{text}"
        );
        assert!(text.contains(", the stream (cuStreamDestroy_v2: "), "{text}");
        assert_eq!(text.matches("ILLEGAL_ADDRESS").count(), 1, "{text}");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Transcript`]: what a driver answered to a program, in a form that two drivers' can be compared in: handles and
//! addresses do not occur.

use core::fmt;

/// What came of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The operation's line, or what the runner did of itself.
    pub(crate) op: String,
    /// The status of each call that was made for it; none where it was left out.
    pub(crate) statuses: Vec<i32>,
    /// Numbers that were answered: counts, states, sizes, offsets from an allocation's begin.
    pub(crate) answers: Vec<i64>,
    /// Bytes read back, those that were never written as `None`.
    pub(crate) bytes: Vec<Option<u8>>,
    /// Bytes that the device's free memory is less than at the start; the status where that is not answered.
    pub(crate) used: Result<i64, i32>,
}

impl Step {
    pub(crate) fn new(op: String) -> Self {
        Self { op, statuses: Vec::new(), answers: Vec::new(), bytes: Vec::new(), used: Err(0) }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<34} {:?}", self.op, self.statuses)?;
        if !self.answers.is_empty() {
            write!(f, " {:?}", self.answers)?;
        }
        if !self.bytes.is_empty() {
            f.write_str(" ")?;
            for byte in self.bytes.iter().take(32) {
                match byte {
                    Some(byte) => write!(f, "{byte:02x}")?,
                    None => f.write_str("..")?,
                }
            }
        }
        match self.used {
            Ok(bytes) => write!(f, " used {bytes}"),
            Err(status) => write!(f, " used: {status}"),
        }
    }
}

/// The answers to a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transcript {
    pub(crate) steps: Vec<Step>,
    /// Contents that are not what was written.
    pub(crate) wrong: Vec<String>,
}

impl Transcript {
    /// Calls that were made for operations.
    pub(crate) fn calls(&self) -> u64 {
        self.steps.iter().map(|step| step.statuses.len() as u64).sum()
    }

    /// The transcript as another driver's is compared with it: without the figures from where managed memory is allocated. What that
    /// takes depends on what the process did before: a GPU charges for the first touch once a process, and gives it back when
    /// it likes.
    pub(crate) fn comparable(&self) -> Self {
        let managed = self.steps.iter().position(|step| step.op.starts_with("managed "));
        let mut known = self.clone();
        known.steps.iter_mut().skip(managed.unwrap_or(usize::MAX)).for_each(|step| step.used = Err(0));
        known
    }

    /// Where this one and another's part, as text with the steps before; `None` where they are equal.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<String> {
        let longer = self.steps.len().max(other.steps.len());
        let at = (0..longer).find(|&at| self.steps.get(at) != other.steps.get(at))?;
        let mut text = String::new();
        for step in &self.steps[at.saturating_sub(4)..at.min(self.steps.len())] {
            text.push_str(&format!("    {step}\n"));
        }
        let shown = |step: Option<&Step>| step.map_or_else(|| "nothing".to_owned(), Step::to_string);
        text.push_str(&format!("  < {}\n  > {}\n", shown(self.steps.get(at)), shown(other.steps.get(at))));
        Some(text)
    }
}

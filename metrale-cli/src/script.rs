// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log prepared for a replay: read whole, odd rows resolved, pointers turned into places.
//!
//! Because all of it is read first, a log that cannot be used is refused before anything is done, and the replay does not wait
//! for reading.

use std::collections::HashMap;
use std::path::Path;

use metrale_ledger::trace::{Action, FindingKind, Follow, Row};

use crate::allocation_log::{AllocationLog, LogError};
use crate::render::of_log::OfLog;
use crate::render::still_live::{LiveAllocation, StillLive};
use crate::replayed::Replayed;

/// What one row of the log asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The row's line.
    pub(crate) line: u64,
    /// The row's pointer.
    pub(crate) pointer: u64,
    pub(crate) act: Act,
}

/// What to do. An allocation is named by its place, which is used again after its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Allocate; none of 0 bytes, which drivers do not have.
    Allocate { place: usize, bytes: u64, label: Option<usize> },
    /// Free what is there, whose free the log lacks, and allocate.
    Displace { place: usize, bytes: u64, label: Option<usize> },
    /// Free.
    Free { place: usize },
    /// A failed allocation, a free of null or of what is not live, a synchronisation, a row passed over because it cannot be
    /// placed.
    Nothing,
}

/// A log's operations.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) operations: Vec<Operation>,
    /// How many places there are.
    pub(crate) places: usize,
    /// Source lines that the log names.
    pub(crate) labels: Vec<String>,
}

impl Script {
    /// Reads a log. Returns what was odd about it as well.
    pub(crate) fn read(path: &Path, lenient: bool) -> Result<(Self, OfLog), LogError> {
        let mut log = AllocationLog::open(path, lenient)?;
        let mut follow = Follow::new();
        let mut script = Self::default();
        let mut places = Places::default();
        while let Some(row) = log.next_row()? {
            log.check_replayable(&row)?;
            let finding = match follow.row(&row) {
                Ok(followed) => followed.finding,
                Err(error) => {
                    log.no_place(row.line, error)?;
                    let (line, pointer) = (row.line, row.pointer);
                    script.operations.push(Operation { line, pointer, act: Act::Nothing });
                    continue;
                }
            };
            if let Some(finding) = &finding {
                log.note(finding);
            }
            let act = places.act(&row, finding.map(|finding| finding.kind));
            script.operations.push(Operation { line: row.line, pointer: row.pointer, act });
        }
        script.places = places.count;
        script.labels = places.labels;
        Ok((script, OfLog::new(&follow, log.into_notes()?)))
    }

    /// What is live after those of its operations that were done.
    pub(crate) fn live_after(&self, done: &Replayed) -> StillLive {
        let mut live = vec![None; self.places];
        for (operation, _) in self.operations.iter().zip(0..done.operations) {
            let &Operation { line, pointer: address, act } = operation;
            match act {
                Act::Allocate { place, bytes, .. } | Act::Displace { place, bytes, .. } => {
                    live[place] = Some((line, address, bytes));
                }
                Act::Free { place } => live[place] = None,
                Act::Nothing => {}
            }
        }
        if done.displaced
            && let Some(Operation { act: Act::Displace { place, .. }, .. }) =
                self.operations.get(done.operations as usize)
        {
            live[*place] = None;
        }
        let live = live.into_iter().flatten();
        live.map(|(line, address, bytes)| LiveAllocation { address, bytes, line }).collect()
    }
}

/// The places of pointers.
#[derive(Default)]
struct Places {
    of: HashMap<u64, usize>,
    free: Vec<usize>,
    count: usize,
    label_of: HashMap<Box<str>, usize>,
    labels: Vec<String>,
}

impl Places {
    fn act(&mut self, row: &Row, odd: Option<FindingKind>) -> Act {
        match row.action {
            Action::AllocateFailure => Act::Nothing,
            Action::Allocate if row.pointer == 0 && row.bytes == 0 => Act::Nothing,
            Action::Allocate => {
                let (bytes, label) = (row.bytes, row.location.as_deref().map(|label| self.label(label)));
                if let (Some(FindingKind::AlreadyLive { .. }), Some(&place)) =
                    (odd, self.of.get(&row.pointer))
                {
                    return Act::Displace { place, bytes, label };
                }
                let place = self.free.pop().unwrap_or_else(|| {
                    self.count += 1;
                    self.count - 1
                });
                self.of.insert(row.pointer, place);
                Act::Allocate { place, bytes, label }
            }
            // Null is never freed, as in a driver.
            Action::Free if row.pointer == 0 => Act::Nothing,
            Action::Free => match self.of.remove(&row.pointer) {
                Some(place) => {
                    self.free.push(place);
                    Act::Free { place }
                }
                None => Act::Nothing,
            },
            Action::Synchronize | Action::Trim => Act::Nothing,
            // Refused before.
            Action::Create | Action::Map | Action::Unmap | Action::Release => Act::Nothing,
        }
    }

    fn label(&mut self, name: &str) -> usize {
        if let Some(&label) = self.label_of.get(name) {
            return label;
        }
        self.labels.push(name.to_owned());
        self.label_of.insert(name.into(), self.labels.len() - 1);
        self.labels.len() - 1
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! An allocation log given to the program: told from a model by its bytes, read row by row, with notes of what is odd.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use metrale_ledger::placement::PlacementError;
use metrale_ledger::trace::{Action, Finding, FindingKind, Reader, Row, RowError, TraceError};

use crate::model::{ShownPath, is_model, is_no_table, label_text};

/// Findings and passed-over rows that are printed one by one; the rest is counted.
const LISTED: usize = 10;
/// Bytes of a file given as a model that are read to see whether it is a log.
const PROBE_BYTES: u64 = 64 << 10;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The system refuses to read it.
    #[error("{}: the log cannot be read: {problem}", ShownPath(.path))]
    Unreadable {
        /// The log.
        path: PathBuf,
        /// Why.
        problem: std::io::Error,
    },
    /// A row makes no sense.
    #[error("{}: {problem}{}", ShownPath(.path), if .problem.is_header { "" } else { " (--lenient passes over such rows)" })]
    Row {
        /// The log.
        path: PathBuf,
        /// The line and the reason.
        problem: RowError,
    },
    /// The log ends in the middle.
    #[error("{}: {problem}{}", ShownPath(.path), if *.lenient { "" } else { " (--lenient takes what came before)" })]
    Broken {
        /// The log.
        path: PathBuf,
        /// Where and why.
        problem: TraceError,
        /// Whether it was read leniently, and yet nothing came before.
        lenient: bool,
    },
    /// A row of virtual memory, which a replay does not do.
    #[error("{}: line {line}: a replay does not {action} virtual memory; metrale plan takes this log", ShownPath(.path))]
    NotReplayable {
        /// The log.
        path: PathBuf,
        /// The row's line.
        line: u64,
        /// What the row does.
        action: Action,
    },
    /// A row that no device can follow.
    #[error("{}: line {line}: {problem} (--lenient passes over such rows)", ShownPath(.path))]
    NoPlace {
        /// The log.
        path: PathBuf,
        /// The row's line.
        line: u64,
        /// Why.
        problem: PlacementError,
    },
    /// No line of it belongs to a log.
    #[error(
        "{}: this is no allocation log: none of its lines is a header that names Action, Pointer and Size, or a row; {problem}",
        ShownPath(.path)
    )]
    NotALog {
        /// The file.
        path: PathBuf,
        /// What is wrong with the first line.
        problem: RowError,
    },
    /// It is a log, and none of its rows can be used.
    #[error("{}: none of its rows can be used ({skipped} passed over): {problem}", ShownPath(.path))]
    NothingUsable {
        /// The log.
        path: PathBuf,
        /// How many there are.
        skipped: u64,
        /// What is wrong with the first.
        problem: String,
    },
    /// It is a file of another kind.
    #[error(
        "{}: this is {what}, not an allocation log: a log is CSV text in UTF-8, as it is or compressed by gzip",
        ShownPath(.path)
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is a model.
    #[error("{}: this is a model, not an allocation log: metrale plan and metrale load take it", ShownPath(.0))]
    IsModel(PathBuf),
    /// A log where a model is asked for.
    #[error("{}: this is an allocation log, not a model: metrale plan and metrale replay take it", ShownPath(.0))]
    IsLog(PathBuf),
    /// A log beside other files.
    #[error("{}: an allocation log is given alone", ShownPath(.0))]
    NotAlone(PathBuf),
}

/// Whether a path is read as a log: a table in text, compressed or not. What is not a file, such as a pipe, is read as one,
/// because a model must be a file.
pub(crate) fn is_log(path: &Path) -> bool {
    let Ok(about) = fs::metadata(path) else { return false };
    if !about.is_file() {
        return !about.is_dir();
    }
    head(path).is_ok_and(|head| !is_model(&head, path))
}

/// The first bytes of a file, by which its kind is recognized.
fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(512).read_to_end(&mut head)?;
    Ok(head)
}

/// What a file looks like.
enum Sort {
    Table,
    Model,
    /// Something else, with an article.
    Foreign(&'static str),
}

fn sort(path: &Path) -> std::io::Result<Sort> {
    let head = head(path)?;
    Ok(match is_no_table(&head, path) {
        Some(what) => Sort::Foreign(what),
        None if is_model(&head, path) => Sort::Model,
        None => Sort::Table,
    })
}

/// Whether a file that was given as a model is a log: it begins as one, possibly after other programs' lines.
pub(crate) fn begins_as_log(path: &Path) -> bool {
    if !fs::metadata(path).is_ok_and(|about| about.is_file()) || !matches!(sort(path), Ok(Sort::Table)) {
        return false;
    }
    let reader = File::open(path).and_then(|file| Reader::new(file.take(PROBE_BYTES)));
    reader.is_ok_and(|reader| {
        let mut reader = reader.lenient(true);
        let _ = reader.next();
        reader.has_columns()
    })
}

/// A log being read.
pub(crate) struct AllocationLog {
    path: PathBuf,
    reader: Reader<'static>,
    lenient: bool,
    notes: LogNotes,
}

/// What was odd about a log and did not end its reading.
#[derive(Debug, Default)]
pub(crate) struct LogNotes {
    /// Numbers of odd rows by what is odd, and the lines of the first of each.
    pub(crate) findings: BTreeMap<&'static str, u64>,
    pub(crate) finding_lines: BTreeMap<&'static str, Vec<u64>>,
    listed: Vec<String>,
    /// Rows that made no sense and were passed over.
    pub(crate) skipped: u64,
    /// With their lines.
    skipped_listed: Vec<(u64, String)>,
    of_other_devices: u64,
    /// Where and why it could not be read on; the rows before it count.
    pub(crate) broke_off: Option<String>,
    has_open_end: bool,
    /// Whether a row named a source line.
    pub(crate) names_lines: bool,
    aliases: u64,
    rows: u64,
    /// Whether it says when it synchronised, and the plan does not go by it.
    pub(crate) has_synchronize_rows_unused: bool,
}

impl AllocationLog {
    /// Opens it; nothing is read but its first bytes.
    pub(crate) fn open(path: &Path, lenient: bool) -> Result<Self, LogError> {
        let unreadable = |problem| LogError::Unreadable { path: path.to_owned(), problem };
        if fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() > 0) {
            match sort(path).map_err(unreadable)? {
                Sort::Table => {}
                Sort::Model => return Err(LogError::IsModel(path.to_owned())),
                Sort::Foreign(what) => return Err(LogError::Foreign { path: path.to_owned(), what }),
            }
        }
        let reader = Reader::open(path).map_err(unreadable)?.lenient(lenient);
        Ok(Self { path: path.to_owned(), reader, lenient, notes: LogNotes::default() })
    }

    /// The next row that makes sense.
    pub(crate) fn next_row(&mut self) -> Result<Option<Row>, LogError> {
        match self.reader.next() {
            None => Ok(None),
            Some(Ok(mut row)) => {
                self.notes.rows += 1;
                self.notes.names_lines |= row.location.is_some();
                // A log must not send control characters to the terminal.
                row.location = row.location.map(|location| label_text(&location).into());
                Ok(Some(row))
            }
            Some(Err(TraceError::Row(problem))) => Err(LogError::Row { path: self.path.clone(), problem }),
            Some(Err(problem)) => {
                Err(LogError::Broken { path: self.path.clone(), problem, lenient: self.lenient })
            }
        }
    }

    /// Whether it was recorded from a pool, by its header. Known once a row is read.
    pub(crate) fn is_of_pool(&self) -> bool {
        self.reader.has_pool_figures()
    }

    /// Notes what was odd about a row.
    pub(crate) fn note(&mut self, finding: &Finding) {
        let name = name(finding.kind);
        *self.notes.findings.entry(name).or_default() += 1;
        let lines = self.notes.finding_lines.entry(name).or_default();
        if lines.len() < LISTED {
            lines.push(finding.line);
        }
        if self.notes.listed.len() < LISTED {
            self.notes.listed.push(finding.to_string());
        }
    }

    /// Whether a replay does what a row says.
    pub(crate) fn check_replayable(&self, row: &Row) -> Result<(), LogError> {
        match row.action {
            Action::Create | Action::Map | Action::Unmap | Action::Release => {
                let (path, line) = (self.path.clone(), row.line);
                Err(LogError::NotReplayable { path, line, action: row.action })
            }
            _ => Ok(()),
        }
    }

    /// A row that no device can follow: passed over where that was asked for.
    pub(crate) fn no_place(&mut self, line: u64, problem: PlacementError) -> Result<(), LogError> {
        if !self.lenient {
            return Err(LogError::NoPlace { path: self.path.clone(), line, problem });
        }
        self.notes.skipped += 1;
        if self.notes.skipped_listed.len() < LISTED {
            self.notes.skipped_listed.push((line, format!("line {line}: {problem}")));
        }
        Ok(())
    }

    /// What was odd, at the end; an error where the file is no log at all.
    pub(crate) fn into_notes(self) -> Result<LogNotes, LogError> {
        let mut notes = self.notes;
        let skipped = self.reader.skipped();
        if !self.reader.has_columns()
            && let Some(first) = skipped.first.first()
        {
            return Err(LogError::NotALog { path: self.path, problem: first.clone() });
        }
        notes.skipped += skipped.count;
        if notes.rows == 0
            && let Some(first) = skipped.first.first()
        {
            let problem = first.to_string();
            return Err(LogError::NothingUsable { path: self.path, skipped: notes.skipped, problem });
        }
        notes.of_other_devices = skipped.of_other_devices;
        notes.broke_off = self.reader.broke_off().map(ToString::to_string);
        notes.has_open_end = self.reader.has_open_end();
        notes.skipped_listed.extend(skipped.first.iter().map(|row| (row.line, row.to_string())));
        notes.skipped_listed.sort_by_key(|(line, _)| *line);
        notes.skipped_listed.truncate(LISTED);
        notes.aliases = self.reader.alias_count();
        Ok(notes)
    }
}

impl LogNotes {
    /// Everything in words, one remark each.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.rows == 0 && self.skipped == 0 {
            remarks.push("note: the log has no rows".to_owned());
        }
        remarks.extend(self.listed.iter().map(|finding| format!("warning: {finding}")));
        let found: u64 = self.findings.values().sum();
        if found > self.listed.len() as u64 {
            let kinds: Vec<_> = self.findings.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            remarks.push(format!("warning: {found} odd rows in all: {}", kinds.join(", ")));
        }
        if self.aliases > 0 {
            let rows = if self.aliases == 1 { "1 row says" } else { &format!("{} rows say", self.aliases) };
            remarks.push(format!("note: {rows} deallocate or dealloc, taken as free"));
        }
        remarks.extend(self.skipped_listed.iter().map(|(_, row)| format!("warning: passed over: {row}")));
        if self.skipped > self.skipped_listed.len() as u64 {
            let others = match self.of_other_devices {
                0 => String::new(),
                others => format!(", {others} of them of other devices than the first row's"),
            };
            remarks.push(format!("warning: {} rows passed over in all{others}", self.skipped));
        }
        if self.has_synchronize_rows_unused {
            remarks.push(
                "note: the log says when it synchronised, but the plan synchronises after each operation: \
                 --synchronize rows goes by the log"
                    .to_owned(),
            );
        }
        if self.has_open_end {
            remarks.push(
                "note: the last line has no line end: if the log was cut there, its last cell is not whole"
                    .to_owned(),
            );
        }
        remarks.extend(self.broke_off.iter().map(|why| format!("warning: {why}; what came before counts")));
        remarks
    }
}

/// What a finding is called where findings are counted.
fn name(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::AlreadyLive { .. } => "already_live",
        FindingKind::FreedBefore { .. } => "double_free",
        FindingKind::Unknown => "unknown_free",
        FindingKind::SizeDiffers { .. } => "size_differs",
        FindingKind::OtherStream { .. } => "other_stream",
        FindingKind::UnknownHandle => "unknown_handle",
        FindingKind::NotMapped => "not_mapped",
        _ => "other",
    }
}

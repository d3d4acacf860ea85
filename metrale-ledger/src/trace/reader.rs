// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the rows of a log, one at a time.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::cells::{FEW, Split, excerpt, split, unquote};
use super::columns::{self, Columns, DAY_NS, Header, Time};
use super::lines::{End, LONGEST_LINE, Lines};
use super::row::{Action, Row, RowError, TraceError};

/// Rows that a lenient reader remembers; the rest it counts.
const REMEMBERED: usize = 20;
/// Said of an allocation without an address.
const OF_FAILURES: &str = "an allocation that failed is an \"allocate failure\"";

/// Why a line is not a row.
struct Reason {
    text: String,
    /// It is a row, but of another device.
    is_device: bool,
    /// It should have said which column is which.
    is_header: bool,
    /// It makes no sense whether or not the file was cut in it.
    is_whole: bool,
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, is_device: false, is_header: false, is_whole: false }
    }
}

/// What a lenient reader passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// How many lines.
    pub count: u64,
    /// How many of them are rows of another device than the first row's.
    pub of_other_devices: u64,
    /// The first of them, with at most one row of another device.
    pub first: Vec<RowError>,
}

/// Reads the rows of a log, one at a time.
pub struct Reader<'a> {
    lines: Lines<'a>,
    columns: Option<Columns>,
    lenient: bool,
    skipped: Skipped,
    /// Where a lenient reader could not read on.
    broke_off: Option<TraceError>,
    /// The device of the first row that names one.
    device: Option<Box<str>>,
    aliases: u64,
    open_end: bool,
    /// Cells of the last row.
    last_width: Option<usize>,
    first_time: Option<i64>,
    last_of_day: i64,
    days: i64,
    ended: bool,
}

impl Reader<'static> {
    /// Opens a file, compressed or not.
    ///
    /// # Errors
    /// The system's, when it cannot be opened or its first bytes not read.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(File::open(path)?)
    }
}

impl<'a> Reader<'a> {
    /// Reads from anything, compressed or not.
    ///
    /// # Errors
    /// The source's, when its first bytes cannot be read.
    pub fn new(source: impl Read + 'a) -> io::Result<Self> {
        Ok(Self {
            lines: Lines::new(source)?,
            columns: None,
            lenient: false,
            skipped: Skipped::default(),
            broke_off: None,
            device: None,
            aliases: 0,
            open_end: false,
            last_width: None,
            first_time: None,
            last_of_day: 0,
            days: 0,
            ended: false,
        })
    }

    /// A lenient reader counts rows that make no sense, and rows of another device than the first row's, in
    /// [`skipped`](Self::skipped) and reads on. Where a log cannot be read to its end, such as a gzip file that was cut, it ends
    /// as if the log did, and [`broke_off`](Self::broke_off) has the reason.
    #[must_use]
    pub fn lenient(mut self, lenient: bool) -> Self {
        self.lenient = lenient;
        self
    }

    /// What was passed over so far.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Where and why a lenient reader could not read on, after rows that it could read.
    pub fn broke_off(&self) -> Option<&TraceError> {
        self.broke_off.as_ref()
    }

    /// Rows so far whose action was `deallocate` or `dealloc`, which no known program writes; they are read as frees.
    pub fn alias_count(&self) -> u64 {
        self.aliases
    }

    /// Whether the last row has no line end. If the log was cut there, that row's last cell lacks characters, and nothing else
    /// shows it.
    pub fn has_open_end(&self) -> bool {
        self.open_end
    }

    /// Whether a header, or a row of a log without one, was read so far. If this is false after a lenient reader has passed
    /// over lines to the end, the file is no log.
    pub fn has_columns(&self) -> bool {
        self.columns.is_some()
    }

    /// Whether the header names a pool's figures, `Used` and `Reserved`: then the log was recorded from a memory pool.
    pub fn has_pool_figures(&self) -> bool {
        self.columns.is_some_and(|columns| columns.has_pool_figures)
    }

    /// Lines read so far.
    pub fn line(&self) -> u64 {
        self.lines.number
    }

    /// The row of a line, none for a header.
    fn parse(&mut self, line: &str, end: End) -> Result<Option<Row>, Reason> {
        let quoted;
        let many: Vec<&str>;
        let mut few = [""; FEW];
        let cells: &[&str] = match split(line, &mut few) {
            Split::Few(count) => &few[..count],
            Split::Many => {
                many = line.split(',').map(str::trim).collect();
                &many
            }
            Split::Quoted => {
                quoted = unquote(line)?;
                many = quoted.iter().map(str::trim).collect();
                &many
            }
            Split::CarriageReturn => return Err(self.of_carriage_returns(end)),
        };
        let columns = match self.columns {
            Some(columns) => columns,
            None => match Columns::of_line(cells, line) {
                Ok(Some(columns)) => {
                    self.columns = Some(columns);
                    return Ok(None);
                }
                // A log without a header has its columns as its writer orders them.
                Ok(None) => Columns::RMM,
                Err((text, is_header)) => return Err(Reason { is_header, ..text.into() }),
            },
        };
        let cell = |at: usize| cells.get(at).copied();
        let too_short = || match cells.len() {
            1 => "the row has 1 column, too few for this header".to_owned(),
            many => format!("the row has {many} columns, too few for this header"),
        };
        let written = cell(columns.action).ok_or_else(too_short)?;
        let Some(action) = columns::action(written) else {
            // Logs are joined, header and all; the next one's columns may be others.
            match Columns::of_header(cells) {
                Header::Is(columns) => {
                    self.columns = Some(columns);
                    self.last_width = None;
                    return Ok(None);
                }
                Header::Twice(twice) => return Err(twice.to_string().into()),
                Header::Lacks(_) | Header::No => {}
            }
            let written = excerpt(written);
            return Err(format!("the action {written:?} is none of {}", columns::ACTIONS).into());
        };
        // A comma at the end of each line means nothing.
        if cells.len() > columns.width && cells[columns.width..].iter().any(|cell| !cell.is_empty()) {
            let (many, width) = (cells.len(), columns.width);
            let text = format!(
                "the row has {many} columns and the header {width}, so it is not clear which is which; if a size is written \
                 with commas, put quotes around it"
            );
            return Err(Reason { is_whole: true, ..text.into() });
        }
        let device = columns.device.and_then(cell).filter(|cell| !cell.is_empty());
        if let Some(device) = device {
            let is_last = columns.device == Some(cells.len() - 1);
            self.check_device(device).map_err(|reason| Reason { is_whole: !is_last, ..reason })?;
        }
        let pointer = match cell(columns.pointer).ok_or_else(too_short)? {
            "" if matches!(action, Action::AllocateFailure | Action::Synchronize | Action::Trim) => 0,
            "" if action == Action::Allocate => {
                return Err(format!("the pointer is missing; {OF_FAILURES}").into());
            }
            written => columns::pointer(written)?,
        };
        let bytes = match cell(columns.bytes).ok_or_else(too_short)? {
            "" if !matches!(action, Action::Allocate | Action::AllocateFailure | Action::Create) => 0,
            written => columns::bytes(written)?,
        };
        if action == Action::Allocate && pointer == 0 && bytes > 0 {
            return Err(format!("{bytes} bytes are allocated at null; {OF_FAILURES}").into());
        }
        let handle = match columns.handle.and_then(cell).filter(|cell| !cell.is_empty()) {
            Some(written) => Some(columns::pointer(written).map_err(|_| no_handle(written))?),
            None if action == Action::Map => return Err(no_handle("").into()),
            None => None,
        };
        let allocator = columns.allocator.and_then(cell).map_or(Ok(None), columns::allocator)?;
        if end == End::Log {
            let (many, usual) = (cells.len(), self.last_width.unwrap_or(columns.width));
            if many < usual {
                return Err(format!("it has {many} of {usual} columns").into());
            }
        }
        self.open_end = end == End::Log;
        self.last_width = Some(cells.len());
        self.aliases += u64::from(action == Action::Free && !written.eq_ignore_ascii_case("free"));
        // A row that makes no sense does not decide which device is read.
        if self.device.is_none() {
            self.device = device.map(Into::into);
        }
        let elapsed_ns = columns.time.and_then(cell).and_then(columns::time).map(|time| self.elapsed(time));
        self.columns = Some(columns);
        Ok(Some(Row {
            line: self.lines.number,
            action,
            pointer,
            bytes,
            stream: columns.stream.and_then(cell).and_then(columns::number),
            thread: columns.thread.and_then(cell).and_then(columns::number),
            elapsed_ns,
            location: columns.location.and_then(cell).filter(|cell| !cell.is_empty()).map(Into::into),
            handle,
            allocator,
        }))
    }

    /// One pointer may be live on two devices at the same time, so only the rows of one device are followed.
    fn check_device(&self, device: &str) -> Result<(), Reason> {
        let Some(first) = self.device.as_deref() else { return Ok(()) };
        let is_first = first == device
            || columns::number(first).is_some_and(|first| columns::number(device) == Some(first));
        if is_first {
            return Ok(());
        }
        let reason = format!(
            "the row is of device {}, and those before are of device {}: give the rows of one device at a time",
            excerpt(device),
            excerpt(first)
        );
        Err(Reason { is_device: true, ..reason.into() })
    }

    fn elapsed(&mut self, time: Time) -> i64 {
        let now = match time {
            Time::Since(now) => now,
            Time::OfDay(now) => {
                if self.last_of_day - now >= DAY_NS / 2 {
                    self.days += 1;
                }
                self.last_of_day = now;
                now.saturating_add(self.days.saturating_mul(DAY_NS))
            }
        };
        now.saturating_sub(*self.first_time.get_or_insert(now))
    }

    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        loop {
            let end = match self.lines.next(self.lenient) {
                Ok(Some(end)) => end,
                Ok(None) => return Ok(None),
                // A file that is no log is an error for a lenient reader too.
                Err(error) if self.lenient && self.columns.is_some() => {
                    self.broke_off = Some(error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let bytes = std::mem::take(&mut self.lines.line);
            let parsed = self.parse_bytes(&bytes, end);
            self.lines.line = bytes;
            match parsed {
                Ok(Some(row)) => return Ok(Some(row)),
                Ok(None) => {}
                Err(reason) => {
                    let Reason { text, is_header, is_whole, .. } = reason;
                    let cut = end == End::Log && !is_whole;
                    let error = RowError { line: self.lines.number, reason: text, cut, is_header };
                    if !self.lenient {
                        return Err(TraceError::Row(error));
                    }
                    self.skipped.count += 1;
                    self.skipped.of_other_devices += u64::from(reason.is_device);
                    let is_said = reason.is_device && self.skipped.of_other_devices > 1;
                    if !is_said && self.skipped.first.len() < REMEMBERED {
                        self.skipped.first.push(error);
                    }
                }
            }
        }
    }

    fn parse_bytes(&mut self, bytes: &[u8], end: End) -> Result<Option<Row>, Reason> {
        if end == End::TooFar {
            if bytes.contains(&b'\r') {
                return Err(self.of_carriage_returns(end));
            }
            return Err(format!("longer than {LONGEST_LINE} bytes, so no row of a log").into());
        }
        // A byte order mark; where logs are joined, one may be in the middle.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let is_header = self.columns.is_none();
        let no_text =
            |_| Reason { is_header, is_whole: is_header, ..Reason::from("it is no UTF-8 text".to_owned()) };
        let line = std::str::from_utf8(bytes).map_err(no_text)?.trim();
        if line.is_empty() { Ok(None) } else { self.parse(line, end) }
    }

    /// A log whose lines end in carriage returns alone is one line. If it is the first and has no line feed, no later line has a
    /// header.
    fn of_carriage_returns(&self, end: End) -> Reason {
        let is_header = end != End::Feed && self.columns.is_none();
        let words =
            "it has a carriage return inside: end each line by a line feed, with or without one before";
        Reason { is_header, is_whole: true, ..words.to_owned().into() }
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("line", &self.lines.number)
            .field("lenient", &self.lenient)
            .finish_non_exhaustive()
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Row, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_row().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Why a row that maps memory makes no sense.
fn no_handle(written: &str) -> String {
    match written {
        "" => "the row maps memory and names none: write the memory's handle in a column Handle".to_owned(),
        _ => format!("the handle {:?} is not a hexadecimal number of 64 bits", excerpt(written)),
    }
}

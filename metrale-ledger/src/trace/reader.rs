// SPDX-License-Identifier: MIT OR Apache-2.0
//! Line by line through a log.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use super::columns::{self, Columns, DAY_NS, Header, Time};
use super::gzip::{MAGIC, Members};
use super::row::{Action, Row, RowError, TraceError};

/// Bytes that are read at once.
const BUFFER: usize = 64 << 10;
/// No log has longer lines; without a limit, a file of something else might be read as one.
const LONGEST_LINE: u64 = 64 << 10;
/// Rows that a lenient reader remembers; the rest it counts.
const REMEMBERED: usize = 20;
/// Cells of a line for which the host is asked for no memory; logs have six to twelve.
const FEW: usize = 16;
/// Said of an allocation without an address.
const OF_FAILURES: &str = "an allocation that failed is an \"allocate failure\"";
/// Of a line that makes no sense, as much is shown.
const SHOWN: usize = 60;

/// Why a line is no row to be followed.
struct Reason {
    text: String,
    /// It would be one, of another device.
    is_device: bool,
    /// It is the one that was to say which column is which.
    is_header: bool,
    /// It would be none either if the file went on.
    is_whole: bool,
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, is_device: false, is_header: false, is_whole: false }
    }
}

/// How a line ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// As lines do.
    Feed,
    /// With the log.
    Log,
    /// Not within the longest line.
    TooFar,
}

/// What a lenient reader passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// How many lines.
    pub count: u64,
    /// How many of them are rows of another device than the first row's.
    pub of_other_devices: u64,
    /// The first of them; of the rows of other devices, the first alone.
    pub first: Vec<RowError>,
}

/// Reads the rows of a log, one at a time.
pub struct Reader<'a> {
    lines: Box<dyn BufRead + 'a>,
    line: Vec<u8>,
    number: u64,
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
        let mut source = source;
        let mut head = Vec::new();
        source.by_ref().take(2).read_to_end(&mut head)?;
        let is_gzip = head == MAGIC;
        let whole = BufReader::with_capacity(BUFFER, Cursor::new(head).chain(source));
        let lines: Box<dyn BufRead + 'a> = if is_gzip {
            Box::new(BufReader::with_capacity(BUFFER, Members::new(whole)))
        } else {
            Box::new(whole)
        };
        Ok(Self {
            lines,
            line: Vec::new(),
            number: 0,
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

    /// Whether rows that make no sense, and rows of another device than the first row's, are counted in
    /// [`skipped`](Self::skipped) instead of ending the reading; and whether a log that cannot be read to its end, such as a
    /// gzip file that was cut, ends there as if it were whole, which [`broke_off`](Self::broke_off) then tells.
    #[must_use]
    pub fn lenient(mut self, lenient: bool) -> Self {
        self.lenient = lenient;
        self
    }

    /// What was passed over so far.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Where and why a lenient reader could not read on, behind rows that it could.
    pub fn broke_off(&self) -> Option<&TraceError> {
        self.broke_off.as_ref()
    }

    /// Rows so far whose action was written `deallocate` or `dealloc`, which no known program does; taken as frees.
    pub fn alias_count(&self) -> u64 {
        self.aliases
    }

    /// Whether the last row has no line end. A log that was cut just there lacks characters of that row's last cell, which
    /// nothing else would tell.
    pub fn has_open_end(&self) -> bool {
        self.open_end
    }

    /// Whether a header, or a row that stands without one, was read so far. Where a lenient reader has passed over lines and
    /// this is still false at the end, what it read is no log.
    pub fn has_columns(&self) -> bool {
        self.columns.is_some()
    }

    /// Lines read so far.
    pub fn line(&self) -> u64 {
        self.number
    }

    /// Reads a line: whether there was one, and how it ended. Of one that is too long, the beginning.
    fn read_line(&mut self) -> Result<Option<End>, TraceError> {
        self.line.clear();
        let io_error = |number: u64| move |source| TraceError::Io { line: number + 1, source };
        let mut limited = self.lines.by_ref().take(LONGEST_LINE);
        let read = limited.read_until(b'\n', &mut self.line).map_err(io_error(self.number))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let end = match self.line.last() {
            Some(b'\n') => End::Feed,
            _ if read as u64 == LONGEST_LINE => End::TooFar,
            _ => End::Log,
        };
        if end == End::TooFar {
            // What is left of it goes unseen. Who ends at such a line need not look for its end, which may not come.
            let mut ended = !self.lenient;
            while !ended {
                let buffer = self.lines.fill_buf().map_err(io_error(self.number - 1))?;
                if buffer.is_empty() {
                    break;
                }
                let end = buffer.iter().position(|&b| b == b'\n');
                let used = end.map_or(buffer.len(), |at| at + 1);
                self.lines.consume(used);
                ended = end.is_some();
            }
        }
        Ok(Some(end))
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
            return Err(format!("the action {written:?} is none of allocate, free, allocate failure").into());
        };
        // Who ends each line with a comma means nothing by it.
        if cells.len() > columns.width && cells[columns.width..].iter().any(|cell| !cell.is_empty()) {
            let (many, width) = (cells.len(), columns.width);
            let text = format!(
                "the row has {many} columns and the header {width}: none can tell which is which, as where a size is \
                 written with commas; put quotes around such a cell"
            );
            return Err(Reason { is_whole: true, ..text.into() });
        }
        let device = columns.device.and_then(cell).filter(|cell| !cell.is_empty());
        if let Some(device) = device {
            let is_last = columns.device == Some(cells.len() - 1);
            self.check_device(device).map_err(|reason| Reason { is_whole: !is_last, ..reason })?;
        }
        let pointer = match cell(columns.pointer).ok_or_else(too_short)? {
            "" if action == Action::AllocateFailure => 0,
            "" if action == Action::Allocate => {
                return Err(format!("the pointer is missing; {OF_FAILURES}").into());
            }
            written => columns::pointer(written)?,
        };
        let bytes = match cell(columns.bytes).ok_or_else(too_short)? {
            "" if action == Action::Free => 0,
            written => columns::bytes(written)?,
        };
        if action == Action::Allocate && pointer == 0 && bytes > 0 {
            return Err(format!("{bytes} bytes are allocated at null; {OF_FAILURES}").into());
        }
        if end == End::Log {
            let (many, usual) = (cells.len(), self.last_width.unwrap_or(columns.width));
            if many < usual {
                return Err(format!("it has {many} of {usual} columns").into());
            }
        }
        self.open_end = end == End::Log;
        self.last_width = Some(cells.len());
        self.aliases += u64::from(action == Action::Free && !written.eq_ignore_ascii_case("free"));
        // Not that of a row that makes no sense, which would leave all others out.
        if self.device.is_none() {
            self.device = device.map(Into::into);
        }
        let elapsed_ns = columns.time.and_then(cell).and_then(columns::time).map(|time| self.elapsed(time));
        self.columns = Some(columns);
        Ok(Some(Row {
            line: self.number,
            action,
            pointer,
            bytes,
            stream: columns.stream.and_then(cell).and_then(columns::number),
            thread: columns.thread.and_then(cell).and_then(columns::number),
            elapsed_ns,
            location: columns.location.and_then(cell).filter(|cell| !cell.is_empty()).map(Into::into),
        }))
    }

    /// One pointer may be live on two devices at once, so their rows are not followed together.
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
            let end = match self.read_line() {
                Ok(Some(end)) => end,
                Ok(None) => return Ok(None),
                // What is no log at all stays an error, however lenient.
                Err(error) if self.lenient && self.columns.is_some() => {
                    self.broke_off = Some(error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            let bytes = std::mem::take(&mut self.line);
            let parsed = self.parse_bytes(&bytes, end);
            self.line = bytes;
            match parsed {
                Ok(Some(row)) => return Ok(Some(row)),
                Ok(None) => {}
                Err(reason) => {
                    let Reason { text, is_header, is_whole, .. } = reason;
                    let cut = end == End::Log && !is_whole;
                    let error = RowError { line: self.number, reason: text, cut, is_header };
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
        // Where logs are joined, one may be in the middle.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let is_header = self.columns.is_none();
        let no_text =
            |_| Reason { is_header, is_whole: is_header, ..Reason::from("it is no UTF-8 text".to_owned()) };
        let line = std::str::from_utf8(bytes).map_err(no_text)?.trim();
        if line.is_empty() { Ok(None) } else { self.parse(line, end) }
    }

    /// Of lines that end in carriage returns alone, a log is one: where such a line is all there is, or as good as that, no line
    /// behind it has a header.
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
            .field("line", &self.number)
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

/// What the cells of a line are.
enum Split {
    /// So many, and found.
    Few(usize),
    /// More than there is place for.
    Many,
    /// Not told by commas alone.
    Quoted,
    /// Another line is in it.
    CarriageReturn,
}

/// Finds a line's cells, without white space around them. One look at each byte, since a log has millions of short cells.
fn split<'a>(line: &'a str, few: &mut [&'a str; FEW]) -> Split {
    let (mut count, mut start) = (0, 0);
    let mut found = Split::Few(0);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b',' => {
                if let Some(place) = few.get_mut(count) {
                    *place = line[start..at].trim();
                }
                (count, start) = (count + 1, at + 1);
            }
            b'"' => found = Split::Quoted,
            b'\r' => return Split::CarriageReturn,
            _ => {}
        }
    }
    match (found, few.get_mut(count)) {
        (Split::Few(_), Some(place)) => {
            *place = line[start..].trim();
            Split::Few(count + 1)
        }
        (Split::Few(_), None) => Split::Many,
        (found, _) => found,
    }
}

/// The cells of a line with quotes in it.
fn unquote(line: &str) -> Result<csv::StringRecord, String> {
    // One inside a cell is written twice.
    if line.matches('"').count() % 2 == 1 {
        return Err("a quote in it is not closed; no cell of a log goes over several lines".to_owned());
    }
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(line.as_bytes());
    let mut record = csv::StringRecord::new();
    match reader.read_record(&mut record) {
        Ok(true) => Ok(record),
        Ok(false) => Err("it has no columns".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The beginning of what makes no sense.
pub(super) fn excerpt(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

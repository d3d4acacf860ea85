// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines of a log, compressed or not, with their numbers.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::gzip::{MAGIC, Members};
use super::row::TraceError;

/// Bytes that are read in one call.
const BUFFER: usize = 64 << 10;
/// No log has longer lines. Without a limit, a file of something else might be read as one line.
pub(super) const LONGEST_LINE: u64 = 64 << 10;

/// How a line ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By a line feed.
    Feed,
    /// With the log.
    Log,
    /// Not within the longest line.
    TooFar,
}

/// Reads line by line.
pub(super) struct Lines<'a> {
    source: Box<dyn BufRead + 'a>,
    /// The last line; of one that is too long, the beginning.
    pub(super) line: Vec<u8>,
    /// Lines read so far.
    pub(super) number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(source: impl Read + 'a) -> io::Result<Self> {
        let mut source = source;
        let mut head = Vec::new();
        source.by_ref().take(2).read_to_end(&mut head)?;
        let is_gzip = head == MAGIC;
        let whole = BufReader::with_capacity(BUFFER, Cursor::new(head).chain(source));
        let source: Box<dyn BufRead + 'a> = if is_gzip {
            Box::new(BufReader::with_capacity(BUFFER, Members::new(whole)))
        } else {
            Box::new(whole)
        };
        Ok(Self { source, line: Vec::new(), number: 0 })
    }

    /// Reads the next line; none at the end. The rest of a line that is too long is read over where `reads_on`: a line without
    /// end would never let go of a reader that stops here anyway.
    pub(super) fn next(&mut self, reads_on: bool) -> Result<Option<End>, TraceError> {
        self.line.clear();
        let io_error = |line: u64| move |source| TraceError::Io { line, source };
        let mut limited = self.source.by_ref().take(LONGEST_LINE);
        let read = limited.read_until(b'\n', &mut self.line).map_err(io_error(self.number + 1))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let end = match self.line.last() {
            Some(b'\n') => End::Feed,
            _ if read as u64 == LONGEST_LINE => End::TooFar,
            _ => End::Log,
        };
        let mut ended = end != End::TooFar || !reads_on;
        while !ended {
            let buffer = self.source.fill_buf().map_err(io_error(self.number))?;
            if buffer.is_empty() {
                break;
            }
            let feed = buffer.iter().position(|&b| b == b'\n');
            let used = feed.map_or(buffer.len(), |at| at + 1);
            self.source.consume(used);
            ended = feed.is_some();
        }
        Ok(Some(end))
    }
}

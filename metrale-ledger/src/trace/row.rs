// SPDX-License-Identifier: MIT OR Apache-2.0
//! A row of a log, and what may be wrong with one.

use std::fmt;
use std::io;

use crate::plan::Allocator;

/// What a row says was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Memory was allocated.
    Allocate,
    /// Memory was freed.
    Free,
    /// An allocation failed: nothing came of it.
    AllocateFailure,
    /// The program waited for a stream or for the device, at which a pool gives memory back.
    Synchronize,
    /// `cuMemPoolTrimTo`: the pool gave back what it did not use, down to the row's size.
    Trim,
    /// `cuMemCreate`: the row's pointer is the handle.
    Create,
    /// `cuMemMap` of the memory that the row's handle names, at the row's pointer.
    Map,
    /// `cuMemUnmap`.
    Unmap,
    /// `cuMemRelease`: the row's pointer is the handle.
    Release,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::AllocateFailure => "allocate failure",
            Self::Synchronize => "synchronize",
            Self::Trim => "trim",
            Self::Create => "create",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Release => "release",
        })
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Its line in the file, from 1.
    pub line: u64,
    /// What was done.
    pub action: Action,
    /// The address, 0 for null; of created memory that is not mapped yet, its handle.
    pub pointer: u64,
    /// Bytes. Some logs write 0 for a free, or nothing.
    pub bytes: u64,
    /// The stream, where the log has that column and a number in it.
    pub stream: Option<u64>,
    /// The thread, likewise.
    pub thread: Option<u64>,
    /// Nanoseconds since the first row that has a time. The order of rows is that of events; times of several threads may
    /// go back a little. A time of day that falls by half a day or more is on the next day.
    pub elapsed_ns: Option<i64>,
    /// The source line, where the log has that column.
    pub location: Option<Box<str>>,
    /// The handle of the memory that a row maps.
    pub handle: Option<u64>,
    /// Who gave out the memory, where the log has that column and something in it.
    pub allocator: Option<Allocator>,
}

/// A row that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowError {
    /// Its line in the file, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// The file ends in the middle of it: the program that wrote it was stopped.
    pub cut: bool,
    /// It is clearly the header, or the file is no text, so that no later line makes sense.
    pub is_header: bool,
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = if self.cut { "the last line is cut off: " } else { "" };
        write!(f, "line {}: {cut}{}", self.line, self.reason)
    }
}

impl std::error::Error for RowError {}

/// Why reading ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// A row makes no sense.
    Row(RowError),
    /// The log could not be read on.
    Io {
        /// The line that was being read, from 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row(error) => error.fmt(f),
            Self::Io { line, source } => write!(f, "line {line}: the log cannot be read on: {source}"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Their texts are in this one's, so their sources are this one's too.
            Self::Row(error) => error.source(),
            Self::Io { source, .. } => source.source(),
        }
    }
}

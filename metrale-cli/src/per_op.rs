// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of `--per-op`: a row of figures for each operation.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::model::ShownPath;

/// Why the table could not be written: the system refuses.
#[derive(Debug, thiserror::Error)]
#[error("{}: the table of --per-op cannot be written: {problem}", ShownPath(.path))]
pub struct PerOpError {
    /// The table.
    path: PathBuf,
    /// Why.
    problem: io::Error,
    /// Whether not even the file could be made.
    at_once: bool,
}

impl PerOpError {
    /// Whether another path would mend it: nothing was done then.
    pub fn is_bad_input(&self) -> bool {
        self.at_once
    }
}

/// A table being written. One that is not finished is removed, so that no half table is taken for a whole one.
#[derive(Debug)]
pub(crate) struct PerOp {
    path: PathBuf,
    out: Option<BufWriter<File>>,
}

impl PerOp {
    /// Makes the file and writes the names of the columns.
    pub(crate) fn create(path: &Path, columns: &str) -> Result<Self, PerOpError> {
        let mut table = Self { path: path.to_owned(), out: None };
        table.out = Some(BufWriter::new(
            File::create(path).map_err(|error| PerOpError { at_once: true, ..table.failed(error) })?,
        ));
        table.write(format_args!("{columns}\n"))?;
        Ok(table)
    }

    /// Writes one row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [u64; N]) -> Result<(), PerOpError> {
        for (index, cell) in cells.into_iter().enumerate() {
            let end = if index + 1 == N { "\n" } else { "," };
            self.write(format_args!("{cell}{end}"))?;
        }
        Ok(())
    }

    /// Writes what is left; the table then stays.
    pub(crate) fn finish(mut self) -> Result<(), PerOpError> {
        let flushed = self.out.as_mut().map_or(Ok(()), Write::flush);
        flushed.map_err(|error| self.failed(error))?;
        self.out = None;
        Ok(())
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) -> Result<(), PerOpError> {
        let written = self.out.as_mut().map_or(Ok(()), |out| out.write_fmt(text));
        written.map_err(|error| self.failed(error))
    }

    fn failed(&self, problem: io::Error) -> PerOpError {
        PerOpError { path: self.path.clone(), problem, at_once: false }
    }
}

impl Drop for PerOp {
    fn drop(&mut self) {
        // A pipe or a terminal is not ours to remove.
        if self.out.take().is_some() && fs::symlink_metadata(&self.path).is_ok_and(|about| about.is_file()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

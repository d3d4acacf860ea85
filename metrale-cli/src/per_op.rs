// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of `--per-op`: a row of figures for each operation.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::model::ShownPath;
use crate::whole_file::WholeFile;

/// Why the table could not be written: the system refuses.
#[derive(Debug, thiserror::Error)]
#[error("{}: the table of --per-op cannot be written: {problem}", ShownPath(.path))]
pub struct PerOpError {
    /// The table.
    path: PathBuf,
    /// Why.
    problem: io::Error,
    /// Whether the file could not even be created.
    is_uncreated: bool,
}

impl PerOpError {
    /// Whether the path is at fault; nothing was done then.
    pub fn is_bad_input(&self) -> bool {
        self.is_uncreated
    }
}

/// A table being written. Its file appears only when it is finished, so half a table is never mistaken for a whole one.
#[derive(Debug)]
pub(crate) struct PerOp {
    path: PathBuf,
    out: BufWriter<WholeFile>,
}

impl PerOp {
    /// Makes the file and writes the names of the columns.
    pub(crate) fn create(path: &Path, columns: &str) -> Result<Self, PerOpError> {
        let file = WholeFile::create(path).map_err(|problem| failed(path, problem, true))?;
        let mut table = Self { path: path.to_owned(), out: BufWriter::new(file) };
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

    /// Writes what is left and puts the file in its place.
    pub(crate) fn finish(self) -> Result<(), PerOpError> {
        let Self { path, out } = self;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error);
        file.and_then(WholeFile::finish).map_err(|problem| failed(&path, problem, false))
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) -> Result<(), PerOpError> {
        self.out.write_fmt(text).map_err(|problem| failed(&self.path, problem, false))
    }
}

fn failed(path: &Path, problem: io::Error, is_uncreated: bool) -> PerOpError {
    PerOpError { path: path.to_owned(), problem, is_uncreated }
}

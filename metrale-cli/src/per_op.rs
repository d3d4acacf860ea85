// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of `--per-op`: a row of figures for each operation.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::model::ShownPath;

/// Why the table could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PerOpError {
    /// The system refuses.
    #[error("{}: the table of --per-op cannot be written: {source}", ShownPath(.path))]
    Io {
        /// The table.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It would be written over what is to be read.
    #[error("{}: --per-op names the input itself; give another file", ShownPath(.0))]
    IsInput(PathBuf),
}

/// A table being written. One that is not finished is removed, so that no half table is taken for a whole one.
#[derive(Debug)]
pub(crate) struct PerOp {
    path: PathBuf,
    out: Option<BufWriter<File>>,
}

impl PerOp {
    /// Makes the file and writes the names of the columns; `inputs` are what it must not be.
    pub(crate) fn create(path: &Path, columns: &str, inputs: &[PathBuf]) -> Result<Self, PerOpError> {
        // Two names of one file are the same file.
        if let Ok(real) = path.canonicalize()
            && inputs.iter().any(|input| input.canonicalize().is_ok_and(|input| input == real))
        {
            return Err(PerOpError::IsInput(path.to_owned()));
        }
        let mut table = Self { path: path.to_owned(), out: None };
        table.out = Some(BufWriter::new(File::create(path).map_err(|error| table.failed(error))?));
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

    fn failed(&self, source: io::Error) -> PerOpError {
        PerOpError::Io { path: self.path.clone(), source }
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

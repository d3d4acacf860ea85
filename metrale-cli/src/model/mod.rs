// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model as the program is given it: safetensors files, an index of shards, or a name out of the catalogue.
//!
//! ```text
//!   paths ──▶ what is it, by its bytes ──▶ safetensors file(s) ─┐
//!                                    └───▶ index ──▶ shards ────┼──▶ ModelInput: tensors in order, their bytes,
//!   --model NAME ─────────────────────────▶ catalogue ──────────┘                what was odd about them
//! ```

mod catalogue;
mod foreign;
mod header;
mod index;
mod mapped;
mod safetensors;
mod safetensors_error;
mod scope;
mod shown;
mod tensor;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use self::catalogue::{CATALOGUE_DTYPE, Catalogue, CatalogueError};
pub use self::foreign::Foreign;
pub use self::index::IndexError;
pub use self::mapped::MapError;
pub use self::safetensors::{HEADER_LIMIT_BYTES, SafetensorsFile};
pub use self::safetensors_error::SafetensorsError;
pub(crate) use self::scope::label_text;
pub use self::scope::{UNNAMED, scope_of};
pub use self::shown::{Shown, ShownPath};
pub use self::tensor::{Dtype, SizeError, TensorSource, TensorSpec, byte_size};

/// Exit code of a program whose input is not right.
pub const INPUT_EXIT_CODE: u8 = 2;

/// Why an input is refused. The program's exit code for all of them is [`INPUT_EXIT_CODE`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InputError {
    /// Neither a file nor a name.
    #[error(
        "no model given: give one or more .safetensors files, an index, or --model with a name of the catalogue"
    )]
    Nothing,
    /// Files and a name.
    #[error("both files and --model {} given: give one of them", Shown(.0))]
    Both(String),
    /// An index beside other files.
    #[error("{} is an index of shards: it is given alone, and opens its shards itself", ShownPath(.0))]
    IndexNotAlone(PathBuf),
    /// A file that is not right.
    #[error("{}: {problem}", ShownPath(.path))]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: SafetensorsError,
    },
    /// An index that is not right.
    #[error("{}: {problem}", ShownPath(.path))]
    Index {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: IndexError,
    },
    /// A name in two files.
    #[error("duplicate tensor name {} in {} and {}: give files of one model, each once", Shown(.name), ShownPath(.first), ShownPath(.second))]
    InTwoFiles {
        /// The tensor.
        name: String,
        /// The file that has it first.
        first: PathBuf,
        /// The file that has it again.
        second: PathBuf,
    },
    /// A file that became shorter after it was opened.
    #[error("{}: the file became shorter while it was being read; fetch it again, and load it when it is complete", ShownPath(.0))]
    Shrunk(PathBuf),
    /// A name the catalogue does not have.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

impl InputError {
    /// [`INPUT_EXIT_CODE`].
    pub const fn exit_code(&self) -> u8 {
        INPUT_EXIT_CODE
    }
}

/// Something odd about an input that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Probably a mistake.
    Warning(String),
    /// Only unusual.
    Note(String),
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warning(text) => write!(f, "warning: {text}"),
            Self::Note(text) => write!(f, "note: {text}"),
        }
    }
}

/// A model's tensors, in the order in which they are to be loaded, and their bytes where there are any.
///
/// Files stay mapped while this value exists. They must not be truncated or rewritten meanwhile: reading them would end the
/// process (`SIGBUS`) or give other bytes. [`check_whole`](Self::check_whole) finds a truncation before a read, but not one
/// during it. Opening reads only the headers, whatever the files' size.
#[derive(Debug)]
pub struct ModelInput {
    title: String,
    files: Vec<SafetensorsFile>,
    tensors: Vec<TensorSpec>,
    remarks: Vec<Remark>,
}

impl ModelInput {
    /// Opens files (several in the order given, an index alone) or the catalogue's `model`.
    ///
    /// The bytes of a file decide what it is, not its name.
    ///
    /// # Errors
    /// [`InputError`]: each names the file, what is wrong with it and what to do.
    pub fn open(paths: &[PathBuf], model: Option<&str>) -> Result<Self, InputError> {
        match (paths, model) {
            ([], None) => Err(InputError::Nothing),
            ([], Some(name)) => Self::from_catalogue(name),
            ([_, ..], Some(name)) => Err(InputError::Both(name.to_owned())),
            ([first, others @ ..], None) => {
                let mut input = Self::open_first(first, others.is_empty())?;
                for path in others {
                    input.add_file(path)?;
                }
                input.refuse_names_in_two_files()?;
                Ok(input)
            }
        }
    }

    /// What was opened, for a headline: the path, the number of files, or the catalogue's name.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The tensors: of files by file and data offset, of an index by shard name and data offset, of the catalogue as
    /// listed. Those of no bytes are among them.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// The opened files, in order; none for a catalogue model.
    pub fn files(&self) -> &[SafetensorsFile] {
        &self.files
    }

    /// Every file that is read: those that were `given`, which may be an index, and what is in it.
    pub(crate) fn paths<'a>(&'a self, given: &'a [PathBuf]) -> impl Iterator<Item = &'a Path> {
        given.iter().map(PathBuf::as_path).chain(self.files.iter().map(SafetensorsFile::path))
    }

    /// What is odd about the input.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks
    }

    /// The bytes of one of this input's tensors; `None` for a catalogue model, which has no data.
    pub fn data(&self, tensor: &TensorSpec) -> Option<&[u8]> {
        match &tensor.source {
            TensorSource::Mapped { file, range } => self.files.get(*file)?.data(range),
            TensorSource::Catalogue => None,
        }
    }

    /// Refuses a tensor whose file became shorter since it was opened. Ask right before reading its
    /// [`data`](Self::data): reading past a file's end through its map ends the process.
    ///
    /// # Errors
    /// [`InputError::Shrunk`].
    pub fn check_whole(&self, tensor: &TensorSpec) -> Result<(), InputError> {
        match &tensor.source {
            TensorSource::Mapped { file, .. }
                if !self.files.get(*file).is_none_or(SafetensorsFile::is_whole) =>
            {
                Err(InputError::Shrunk(self.path_of(tensor)))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        // Sums of mapped ranges stay below the files' sizes; a catalogue beyond 64 bits stops at the end.
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
    }

    /// Tensors of no bytes, which need no memory.
    pub fn empty_tensors(&self) -> usize {
        self.tensors.iter().filter(|tensor| tensor.bytes == 0).count()
    }

    fn from_catalogue(name: &str) -> Result<Self, InputError> {
        let tensors = Catalogue::embedded()?.tensors(name)?;
        let title = format!("{name} (catalogue)");
        Ok(Self { title, files: Vec::new(), tensors, remarks: Vec::new() })
    }

    fn open_first(path: &Path, alone: bool) -> Result<Self, InputError> {
        let file_error = |problem| InputError::File { path: path.to_owned(), problem };
        let map = mapped::map(path).map_err(|error| file_error(error.into()))?;
        let title = ShownPath(path).to_string();
        if !foreign::is_json_text(&map[..map.len().min(64)]) {
            let file = SafetensorsFile::from_map(path, map, 0).map_err(file_error)?;
            let mut input = Self { title, files: Vec::new(), tensors: Vec::new(), remarks: Vec::new() };
            input.add(file);
            return Ok(input);
        }
        if !alone {
            return Err(InputError::IndexNotAlone(path.to_owned()));
        }
        let sharded = index::Sharded::open(path, &map)
            .map_err(|problem| InputError::Index { path: path.to_owned(), problem })?;
        let mut remarks: Vec<Remark> = sharded.warnings.into_iter().map(Remark::Warning).collect();
        remarks.extend(sharded.files.iter().flat_map(notes));
        Ok(Self { title, files: sharded.files, tensors: sharded.tensors, remarks })
    }

    fn add_file(&mut self, path: &Path) -> Result<(), InputError> {
        let file = SafetensorsFile::open(path, self.files.len()).map_err(|problem| match problem {
            SafetensorsError::JsonText => InputError::IndexNotAlone(path.to_owned()),
            problem => InputError::File { path: path.to_owned(), problem },
        })?;
        self.add(file);
        self.title = format!("{} files", self.files.len());
        Ok(())
    }

    fn add(&mut self, file: SafetensorsFile) {
        self.tensors.extend(file.tensors().iter().cloned());
        self.remarks.extend(notes(&file));
        self.files.push(file);
    }

    fn refuse_names_in_two_files(&self) -> Result<(), InputError> {
        let mut seen: HashMap<&str, &TensorSpec> = HashMap::new();
        for tensor in &self.tensors {
            if let Some(first) = seen.insert(&tensor.name, tensor) {
                return Err(InputError::InTwoFiles {
                    name: tensor.name.clone(),
                    first: self.path_of(first),
                    second: self.path_of(tensor),
                });
            }
        }
        Ok(())
    }

    fn path_of(&self, tensor: &TensorSpec) -> PathBuf {
        match &tensor.source {
            TensorSource::Mapped { file, .. } => self.files.get(*file).map(|file| file.path().to_owned()),
            TensorSource::Catalogue => None,
        }
        .unwrap_or_default()
    }
}

/// What a gzip file begins with.
const GZIP: &[u8] = b"\x1f\x8b";

/// Whether a file that begins with `head` is read as a model (or as something that is mistaken for one) and not as a table in
/// text, compressed or not.
pub(crate) fn is_model(head: &[u8], path: &Path) -> bool {
    // A file with such a name is meant as a table, whatever it holds.
    const TABLES: [&str; 3] = ["csv", "tsv", "log"];
    if path.extension().is_some_and(|name| TABLES.iter().any(|table| name.eq_ignore_ascii_case(table))) {
        return false;
    }
    if head.is_empty() {
        return foreign::is_named_model(path);
    }
    // Only text has no control characters but line breaks and tabs.
    let is_text = !head.iter().any(|&b| b < b' ' && !matches!(b, b'\t' | b'\n' | b'\r'));
    // An index is an object. A bracket begins many lines of other programs' output, among which there may be a log.
    let is_object = foreign::is_json_text(head) && !head.trim_ascii_start().starts_with(b"[");
    !head.starts_with(GZIP) && (!is_text || is_object) || is_no_table(head, path).is_some()
}

/// What a file is that begins with `head`, if it cannot be a table in text, compressed by gzip or not.
pub(crate) fn is_no_table(head: &[u8], path: &Path) -> Option<&'static str> {
    if head.starts_with(GZIP) { None } else { foreign::recognize(head, path).map(|foreign| foreign.what) }
}

fn notes(file: &SafetensorsFile) -> impl Iterator<Item = Remark> + '_ {
    file.notes().iter().map(|text| Remark::Note(format!("{}: {text}", ShownPath(file.path()))))
}

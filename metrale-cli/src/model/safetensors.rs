// SPDX-License-Identifier: MIT OR Apache-2.0
//! One `.safetensors` file, mapped; only its header is read.
//!
//! The `safetensors` crate decides: what it refuses is refused. Before that, the header is checked once here. Our errors say
//! more (which tensors overlap, by how much a size is wrong), and three faults are found that the crate does not refuse
//! reliably: a duplicate name, offsets whose sum wraps, and a shape with a zero, where its answer depends on the zero's position.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{SafeTensorError, SafeTensors};
use serde::de::IgnoredAny;

use super::foreign;
use super::header::{self, HeaderEntry};
use super::mapped::{self, Mapped};
use super::safetensors_error::SafetensorsError;
use super::shown::Shown;
use super::tensor::{Dtype, SizeError, TensorSource, TensorSpec, byte_size};

/// Largest header the format's reader takes, in bytes.
pub const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// Bytes of the length in front of the header.
const LENGTH_BYTES: u64 = 8;

/// Bytes at the start of a file that are enough to tell formats apart.
const HEAD_BYTES: usize = 512;

/// A file whose header was read and found right.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    map: Mapped,
    tensors: Vec<TensorSpec>,
    notes: Vec<String>,
}

impl SafetensorsFile {
    /// Maps the file and reads its header. `file` is its index among an input's files.
    ///
    /// # Errors
    /// [`SafetensorsError`], see there.
    pub fn open(path: &Path, file: usize) -> Result<Self, SafetensorsError> {
        Self::from_map(path, mapped::map(path)?, file)
    }

    /// Reads the header of a file that is mapped already.
    ///
    /// # Errors
    /// [`SafetensorsError`], see there.
    pub(crate) fn from_map(path: &Path, map: Mapped, file: usize) -> Result<Self, SafetensorsError> {
        let head = &map[..map.len().min(HEAD_BYTES)];
        if let Some(foreign) = foreign::recognize(head, path) {
            return Err(SafetensorsError::Foreign(foreign));
        }
        if foreign::is_json_text(head) {
            return Err(SafetensorsError::JsonText);
        }
        let parsed = parse(&map).map_err(|error| match (error, foreign::by_suffix(path)) {
            // Bytes that say nothing, under a name that does.
            (
                SafetensorsError::TooShort(_)
                | SafetensorsError::HeaderTooLarge(_)
                | SafetensorsError::HeaderPastEnd { .. }
                | SafetensorsError::HeaderNotUtf8(_)
                | SafetensorsError::HeaderNotJson(_),
                Some(foreign),
            ) => SafetensorsError::Foreign(foreign),
            (error, _) => error,
        })?;
        let tensors = parsed
            .tensors
            .into_iter()
            .map(|Tensor { name, dtype, shape, range }| TensorSpec {
                name,
                dtype,
                shape,
                bytes: range.end - range.start,
                source: TensorSource::Mapped { file, range },
            })
            .collect();
        Ok(Self { path: path.to_owned(), map, tensors, notes: parsed.notes })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors by data offset, those of no bytes in the header's order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// What is odd about it and was accepted.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of a range that a tensor of this file names.
    pub fn data(&self, range: &Range<u64>) -> Option<&[u8]> {
        self.map.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    }

    /// Whether the file is as long as it was when it was opened.
    pub(crate) fn is_whole(&self) -> bool {
        self.map.is_whole()
    }
}

/// One tensor with its range in the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) range: Range<u64>,
}

#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) notes: Vec<String>,
}

/// Reads a whole file's header; of the rest only the length is looked at.
pub(crate) fn parse(file: &[u8]) -> Result<Parsed, SafetensorsError> {
    let text = header_text(file)?;
    // Read twice: an error from inside an entry that carries the tensor's name no longer tells broken JSON from JSON of
    // another form.
    serde_json::from_str::<IgnoredAny>(text).map_err(SafetensorsError::HeaderNotJson)?;
    let entries = header::read(text).map_err(SafetensorsError::HeaderForm)?;
    let data_start = LENGTH_BYTES + text.len() as u64;
    let data_bytes = file.len() as u64 - data_start;
    let order = check(&entries, data_bytes)?;

    // The offsets are known to lie within the file by now, so the reader's own sums cannot wrap.
    let (_, metadata) = SafeTensors::read_metadata(file).map_err(SafetensorsError::Refused)?;
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in order.into_iter().map(|i| &entries[i]) {
        let info = metadata
            .info(&entry.name)
            .ok_or_else(|| SafetensorsError::Refused(SafeTensorError::TensorNotFound(entry.name.clone())))?;
        let (begin, end) = info.data_offsets;
        tensors.push(Tensor {
            name: entry.name.clone(),
            dtype: info.dtype,
            shape: info.shape.iter().map(|&dim| dim as u64).collect(),
            range: data_start + begin as u64..data_start + end as u64,
        });
    }
    Ok(Parsed { tensors, notes: unknown_fields(&entries) })
}

fn header_text(file: &[u8]) -> Result<&str, SafetensorsError> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(SafetensorsError::TooShort(file.len() as u64));
    };
    let header = u64::from_le_bytes(*length);
    if header > HEADER_LIMIT_BYTES {
        return Err(SafetensorsError::HeaderTooLarge(header));
    }
    let past_end = SafetensorsError::HeaderPastEnd { header, file: file.len() as u64 };
    let text = rest.get(..header as usize).ok_or(past_end)?;
    if text.is_empty() {
        return Err(SafetensorsError::HeaderEmpty);
    }
    if text.starts_with(b"\xef\xbb\xbf") {
        return Err(SafetensorsError::HeaderBom);
    }
    std::str::from_utf8(text).map_err(|error| SafetensorsError::HeaderNotUtf8(error.valid_up_to()))
}

/// Checks every entry and that together they cover the data. Returns their order by data offset.
fn check(entries: &[HeaderEntry], data_bytes: u64) -> Result<Vec<usize>, SafetensorsError> {
    let mut names = BTreeSet::new();
    for entry in entries {
        if !names.insert(&*entry.name) {
            return Err(SafetensorsError::DuplicateName(entry.name.clone()));
        }
    }
    for entry in entries {
        check_entry(entry, data_bytes)?;
    }
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&i| (entries[i].begin, entries[i].end));
    let mut end = 0;
    let mut last: Option<&HeaderEntry> = None;
    for entry in order.iter().map(|&i| &entries[i]) {
        if entry.begin > end {
            return Err(SafetensorsError::Hole { from: end, to: entry.begin, before: entry.name.clone() });
        }
        if let Some(last) = last
            && entry.begin < end
        {
            let (first, second) = (last.name.clone(), entry.name.clone());
            return Err(if (last.begin, last.end) == (entry.begin, entry.end) {
                SafetensorsError::SharedRange { first, second, begin: entry.begin, end }
            } else {
                SafetensorsError::Overlap { first, second, begin: entry.begin, end }
            });
        }
        end = entry.end;
        last = Some(entry);
    }
    if end != data_bytes {
        return Err(SafetensorsError::TrailingBytes { end, data: data_bytes });
    }
    Ok(order)
}

fn check_entry(entry: &HeaderEntry, data_bytes: u64) -> Result<(), SafetensorsError> {
    let HeaderEntry { name, dtype, shape, begin, end, .. } = entry;
    let (name, shape, begin, end) = (name.clone(), shape.clone(), *begin, *end);
    let Some(dtype) = header::dtype(dtype) else {
        return Err(SafetensorsError::UnknownDtype { name, dtype: dtype.clone() });
    };
    if begin > end {
        return Err(SafetensorsError::ReversedOffsets { name, begin, end });
    }
    let needs = match byte_size(dtype, &shape) {
        Ok(bytes) => bytes,
        Err(SizeError::Overflow) => return Err(SafetensorsError::ShapeOverflow { name, dtype, shape }),
        Err(SizeError::PartialByte(bits)) => {
            return Err(SafetensorsError::PartialByte { name, dtype, shape, bits });
        }
    };
    if needs != end - begin {
        return Err(SafetensorsError::SizeMismatch { name, dtype, shape, needs, holds: end - begin });
    }
    if end > data_bytes {
        return Err(SafetensorsError::PastEnd { name, end, data: data_bytes });
    }
    Ok(())
}

/// One note for each field the format does not know.
fn unknown_fields(entries: &[HeaderEntry]) -> Vec<String> {
    let mut fields: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for entry in entries {
        for field in &entry.unknown_fields {
            match fields.entry(field) {
                Entry::Vacant(slot) => drop(slot.insert((1, &entry.name))),
                Entry::Occupied(mut slot) => slot.get_mut().0 += 1,
            }
        }
    }
    fields
        .into_iter()
        .map(|(field, (count, first))| {
            let others = if count > 1 { format!(" and {} more tensors", count - 1) } else { String::new() };
            format!(
                "field {} of tensor {}{others} is not of the format and ignored",
                Shown(field),
                Shown(first)
            )
        })
        .collect()
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! One `.safetensors` file, mapped; only its header is read.
//!
//! The verdict is the `safetensors` crate's: what it refuses is refused. Before it is asked, the header is
//! gone through once here, for what its errors do not say (which tensors overlap, by how much a size is off)
//! and for three things it lets pass or answers by chance: a name that stands twice, offsets so large that its
//! sum of them wraps, and a shape with a zero, whose answer there depends on where the zero stands.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{SafeTensorError, SafeTensors};
use serde::de::IgnoredAny;
use thiserror::Error;

use super::foreign::{self, Foreign};
use super::header::{self, HeaderEntry};
use super::mapped::{self, MapError, Mapped};
use super::shown::Shown;
use super::tensor::{Dtype, SizeError, TensorSource, TensorSpec, byte_size};

/// Largest header the format's reader takes, in bytes.
pub const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// Bytes of the length in front of the header.
const LENGTH_BYTES: u64 = 8;

/// Bytes at the start of a file that are enough to tell formats apart.
const HEAD_BYTES: usize = 512;

/// What is wrong with a file. Offsets count the bytes after the header.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It is something else.
    #[error("this is {}, not safetensors: {}", .0.what, .0.advice)]
    Foreign(Foreign),
    /// It is an index where a file with tensors is expected, or other JSON.
    #[error("this is JSON text, not safetensors: give an index alone, and no other JSON")]
    JsonText,
    /// It has not even a header length.
    #[error(
        "the file has {0} bytes, too short for the 8 bytes of a header length: it is cut off or no safetensors file"
    )]
    TooShort(u64),
    /// Its header length is beyond the format's limit.
    #[error(
        "header too large: the first 8 bytes give a header of {0} bytes, the limit is 100,000,000: this is no safetensors file, \
         or its start is damaged"
    )]
    HeaderTooLarge(u64),
    /// Its header does not fit into it.
    #[error(
        "header length past the end: the header should have {header} bytes, the file has {file}: it is cut off, fetch it again"
    )]
    HeaderPastEnd {
        /// The length given.
        header: u64,
        /// The file's size.
        file: u64,
    },
    /// Its header has no bytes.
    #[error("the header is empty: a header is a JSON object, at least {{}}")]
    HeaderEmpty,
    /// Its header is not UTF-8.
    #[error("the header is not UTF-8 text (byte {0} of it): the file is damaged or no safetensors file")]
    HeaderNotUtf8(usize),
    /// Its header begins with a byte order mark.
    #[error(
        "the header begins with a byte order mark, which JSON does not allow: write the file again without it"
    )]
    HeaderBom,
    /// Its header is not JSON.
    #[error("the header is not JSON: {0}: the file is damaged or no safetensors file")]
    HeaderNotJson(serde_json::Error),
    /// Its header is JSON of another form.
    #[error("the header is JSON, but not a safetensors header: {0}")]
    HeaderForm(serde_json::Error),
    /// A name stands twice.
    #[error("duplicate tensor name {}: the header lists it twice, write the file again with one of them", Shown(.0))]
    DuplicateName(String),
    /// A type the format does not know.
    #[error(
        "tensor {}: unknown dtype {}, known are BOOL, F4, F6_E2M3, F6_E3M2, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, \
         F8_E4M3FNUZ, F8_E5M2FNUZ, I16, U16, F16, BF16, I32, U32, F32, C64, F64, I64, U64", Shown(.name), Shown(.dtype)
    )]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// What stands for its type.
        dtype: String,
    },
    /// A size beyond 64 bits.
    #[error("tensor {}: shape {shape:?} of {dtype} overflows: its size has no 64-bit number", Shown(.name))]
    ShapeOverflow {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// Elements smaller than a byte that do not fill their last one.
    #[error("tensor {}: shape {shape:?} of {dtype} takes {bits} bits, which is no whole number of bytes", Shown(.name))]
    PartialByte {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Its size, in bits.
        bits: u64,
    },
    /// Shape and offsets disagree.
    #[error(
        "tensor {}: size mismatch: shape {shape:?} of {dtype} takes {needs} bytes, its data offsets hold {holds}", Shown(.name)
    )]
    SizeMismatch {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes by shape and type.
        needs: u64,
        /// Bytes by offsets.
        holds: u64,
    },
    /// The end stands before the begin.
    #[error("tensor {}: reversed data offsets: begin {begin} is past end {end}", Shown(.name))]
    ReversedOffsets {
        /// The tensor.
        name: String,
        /// Its begin.
        begin: u64,
        /// Its end.
        end: u64,
    },
    /// Data beyond the file.
    #[error(
        "tensor {}: data offsets past the end: they end at {end}, the file has {data} bytes of data: it is cut off, fetch it again",
        Shown(.name)
    )]
    PastEnd {
        /// The tensor.
        name: String,
        /// Its end.
        end: u64,
        /// Bytes after the header.
        data: u64,
    },
    /// Two tensors on the same bytes.
    #[error(
        "tensors {} and {} share one range (bytes {begin} to {end}): the format stores tied weights once, under one name",
        Shown(.first), Shown(.second)
    )]
    SharedRange {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// Their begin.
        begin: u64,
        /// Their end.
        end: u64,
    },
    /// Two tensors on some of the same bytes.
    #[error(
        "overlapping data offsets: tensor {} begins at {begin}, inside {}, which ends at {end}", Shown(.second), Shown(.first)
    )]
    Overlap {
        /// The earlier one.
        first: String,
        /// The one that begins inside it.
        second: String,
        /// Where it begins.
        begin: u64,
        /// Where the earlier one ends.
        end: u64,
    },
    /// Bytes between tensors.
    #[error("hole in the data: bytes {from} to {to}, before tensor {}, belong to no tensor", Shown(.before))]
    Hole {
        /// First byte of the hole.
        from: u64,
        /// Byte after its last.
        to: u64,
        /// The tensor behind it.
        before: String,
    },
    /// Bytes after the last tensor.
    #[error("trailing bytes: the tensors end at {end}, the file has {data} bytes of data")]
    TrailingBytes {
        /// End of the last tensor.
        end: u64,
        /// Bytes after the header.
        data: u64,
    },
    /// The format's reader refuses what passed here.
    #[error("the safetensors reader refuses the file: {0}")]
    Refused(SafeTensorError),
}

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
    // Two readings, since an error from inside an entry, once it carries the tensor's name, no longer tells
    // broken JSON from JSON of another form.
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

/// Checks every entry and how they lie together; gives their order by data offset.
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

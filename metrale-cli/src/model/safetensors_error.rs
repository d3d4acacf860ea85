// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may be wrong with a `.safetensors` file.

use safetensors::SafeTensorError;
use thiserror::Error;

use super::foreign::Foreign;
use super::mapped::MapError;
use super::shown::Shown;
use super::tensor::Dtype;

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
    /// A name is there twice.
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
        /// The name of its type.
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
    /// The end is before the begin.
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

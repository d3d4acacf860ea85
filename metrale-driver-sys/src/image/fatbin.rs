// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fatbins: containers of PTX texts and cubins, each for one architecture.
//!
//! The layout is not documented; it is read as `fatbinary` of CUDA 13.5 writes it and as public tools describe it.
//! A container whose sizes point past its data is refused here, because a driver may never return from loading it.

use super::arch::{IsaVersion, Portability, SmTarget};
use super::bytes::{range, u16_at, u32_at, u64_at};

pub(super) const FATBIN_MAGIC: u32 = 0xba55_ed50;
/// Of the structure in a program's data that points to the container.
pub(super) const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// Bytes of a fatbin's header as all writers make it.
pub const FATBIN_HEADER_BYTES: usize = 16;
/// The fields of an entry's header that are read here lie within as many bytes.
const ENTRY_HEADER_BYTES: u32 = 64;

/// What keeps bytes from being read as a fatbin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FatbinError {
    /// Not a fatbin at all.
    #[error("not a fatbin")]
    NotFatbin,
    /// The structure that points to a fatbin, not the fatbin.
    #[error("the wrapper around a fatbin, which holds a pointer: pass the fatbin it points to")]
    Wrapper,
    /// The data ends inside the header.
    #[error("cut off: {bytes} bytes, and a fatbin's header alone takes {FATBIN_HEADER_BYTES}")]
    Truncated {
        /// Bytes at hand.
        bytes: u64,
    },
    /// A header smaller than its own fields.
    #[error("a header of {bytes} bytes is smaller than its fields")]
    BadHeaderSize {
        /// The size stated.
        bytes: u32,
    },
    /// The header promises more than there is.
    #[error(
        "cut off: the header promises {end} bytes, and there are {bytes}; a driver may never return from this"
    )]
    PastEnd {
        /// Where the container ends; `u64::MAX` beyond 64 bits.
        end: u64,
        /// Bytes at hand.
        bytes: u64,
    },
    /// An entry ends behind the container.
    #[error("entry {index} ends at byte {end} of {bytes}; a driver may never return from this")]
    EntryPastEnd {
        /// Which entry, from 0.
        index: usize,
        /// Where it ends; `u64::MAX` beyond 64 bits.
        end: u64,
        /// Bytes of the container.
        bytes: u64,
    },
    /// A container without entries.
    #[error("no image inside")]
    NoImage,
}

/// A fatbin's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatbinHeader {
    /// The version of the layout; 1 is the only one that is documented.
    pub version: u16,
    /// Bytes of the header.
    pub header_bytes: u16,
    /// Bytes behind the header.
    pub payload_bytes: u64,
}

impl FatbinHeader {
    /// Reads the first [`FATBIN_HEADER_BYTES`] bytes.
    ///
    /// # Errors
    /// Not a fatbin, its wrapper, cut off, or a header smaller than its fields.
    pub fn read(image: &[u8]) -> Result<Self, FatbinError> {
        match u32_at(image, 0) {
            Some(FATBIN_MAGIC) => {}
            Some(FATBIN_WRAPPER_MAGIC) => return Err(FatbinError::Wrapper),
            _ => return Err(FatbinError::NotFatbin),
        }
        let read = || {
            Some(Self {
                version: u16_at(image, 4)?,
                header_bytes: u16_at(image, 6)?,
                payload_bytes: u64_at(image, 8)?,
            })
        };
        let header = read().ok_or(FatbinError::Truncated { bytes: image.len() as u64 })?;
        if usize::from(header.header_bytes) < FATBIN_HEADER_BYTES {
            return Err(FatbinError::BadHeaderSize { bytes: header.header_bytes.into() });
        }
        Ok(header)
    }

    /// The size of the whole container; `u64::MAX` beyond 64 bits.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        u64::from(self.header_bytes).saturating_add(self.payload_bytes)
    }
}

/// What an entry of a fatbin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// A cubin.
    Elf,
    /// LTO-IR: what a linker (nvJitLink, nvlink) makes machine code of. A driver does not link it.
    LtoIr,
    /// Something else.
    Other(u16),
}

/// How an entry's payload is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As it is.
    Plain,
    /// One LZ4 block.
    Lz4,
    /// A Zstandard frame.
    Zstd,
}

/// An entry of a fatbin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatbinEntry<'a> {
    /// What it is.
    pub kind: EntryKind,
    /// The architecture it is for.
    pub sm: SmTarget,
    /// The version stated: of the language for PTX, of the format for a cubin.
    pub version: IsaVersion,
    /// How the payload is packed.
    pub packing: Packing,
    /// The payload, packed as it may be, without the padding behind it where its true size is stated.
    pub payload: &'a [u8],
    /// Bytes of the payload once unpacked, as stated.
    pub unpacked_bytes: u64,
}

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_EXACT: u64 = 0x10_0000;
const FLAG_FAMILY: u64 = 0x20_0000;

/// What a fatbin holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatbin<'a> {
    /// Its header.
    pub header: FatbinHeader,
    /// Its entries, in their order.
    pub entries: Vec<FatbinEntry<'a>>,
}

impl<'a> Fatbin<'a> {
    /// Reads a fatbin. Bytes behind its end do not matter.
    ///
    /// # Errors
    /// All of [`FatbinError`]: not a fatbin, not whole, or with nothing inside.
    pub fn read(image: &'a [u8]) -> Result<Self, FatbinError> {
        let header = FatbinHeader::read(image)?;
        let end = header.image_bytes();
        let past_end = FatbinError::PastEnd { end, bytes: image.len() as u64 };
        let container = range(image, 0, end).ok_or(past_end)?;
        let mut entries = Vec::new();
        let mut at = u64::from(header.header_bytes);
        while at < end {
            let (entry, entry_end) = read_entry(container, at, entries.len())?;
            entries.push(entry);
            at = entry_end;
        }
        if entries.is_empty() { Err(FatbinError::NoImage) } else { Ok(Self { header, entries }) }
    }
}

/// Reads the entry at `at` and where it ends, which is behind `at`.
fn read_entry(container: &[u8], at: u64, index: usize) -> Result<(FatbinEntry<'_>, u64), FatbinError> {
    let past_end = |end| FatbinError::EntryPastEnd { index, end, bytes: container.len() as u64 };
    let fields_end = at.saturating_add(ENTRY_HEADER_BYTES.into());
    let fields = range(container, at, ENTRY_HEADER_BYTES.into()).ok_or(past_end(fields_end))?;
    let read = || {
        let kind = match u16_at(fields, 0)? {
            1 => EntryKind::Ptx,
            2 => EntryKind::Elf,
            8 => EntryKind::LtoIr,
            other => EntryKind::Other(other),
        };
        let flags = u64_at(fields, 40)?;
        let packing = match (flags & FLAG_LZ4 != 0, flags & FLAG_ZSTD != 0) {
            (_, true) => Packing::Zstd,
            (true, false) => Packing::Lz4,
            (false, false) => Packing::Plain,
        };
        let portability = match (flags & FLAG_EXACT != 0, flags & FLAG_FAMILY != 0) {
            (true, _) => Portability::Exact,
            (false, true) => Portability::Family,
            (false, false) => Portability::Portable,
        };
        let entry = FatbinEntry {
            kind,
            sm: SmTarget { number: u32_at(fields, 28)?, portability },
            version: IsaVersion::new(u16_at(fields, 26)?.into(), u16_at(fields, 24)?.into()),
            packing,
            payload: &[],
            unpacked_bytes: u64_at(fields, 56)?,
        };
        Some((entry, u32_at(fields, 4)?, u64_at(fields, 8)?, u32_at(fields, 16)?))
    };
    let (mut entry, header_bytes, padded_bytes, packed_bytes) = read().ok_or(past_end(fields_end))?;
    if header_bytes < ENTRY_HEADER_BYTES {
        return Err(FatbinError::BadHeaderSize { bytes: header_bytes });
    }
    let start = at.saturating_add(header_bytes.into());
    let end = start.saturating_add(padded_bytes);
    let padded = range(container, start, padded_bytes).ok_or(past_end(end))?;
    entry.payload = match usize::try_from(packed_bytes) {
        // The size without padding is stated for packed payloads only.
        Ok(packed) if packed > 0 => {
            padded.get(..packed).ok_or(past_end(start.saturating_add(packed as u64)))?
        }
        _ => padded,
    };
    if entry.packing == Packing::Plain {
        entry.unpacked_bytes = entry.payload.len() as u64;
    }
    Ok((entry, end))
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Unpacker`]: payloads of a fatbin, unpacked, within what the fatbin's own size makes likely.

use std::borrow::Cow;
use std::io::Read;

use super::fatbin::{FatbinEntry, Packing};

/// Why a payload was not unpacked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// More than all payloads of a fatbin of its size may take together.
    #[error(
        "it states {stated} bytes when unpacked, and {left} are left of what is unpacked of such a fatbin"
    )]
    TooLarge {
        /// The size it states, in bytes.
        stated: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// Another size than stated.
    #[error("it states {stated} bytes when unpacked and has {found}")]
    OtherSize {
        /// The size it states, in bytes.
        stated: u64,
        /// The size it has, as far as it was unpacked.
        found: u64,
    },
    /// No LZ4 block.
    #[error("its LZ4 block is broken: {0}")]
    Lz4(String),
    /// No Zstandard frame.
    #[error("its Zstandard frame is broken: {0}")]
    Zstd(String),
}

/// Unpacks the payloads of one fatbin. A payload of a kilobyte can state, and even hold, a gigabyte: all together may take
/// 16 MiB and 32 times the fatbin.
///
/// ```
/// use metrale_driver_sys::image::fatbin::Fatbin;
/// use metrale_driver_sys::image::{UnpackError, Unpacker};
///
/// fn sizes(image: &[u8]) -> Result<Vec<usize>, UnpackError> {
///     let mut unpacker = Unpacker::of(image);
///     let fatbin = Fatbin::read(image).expect("a fatbin");
///     fatbin.entries.iter().map(|entry| Ok(unpacker.unpack(entry)?.len())).collect()
/// }
/// ```
#[derive(Debug)]
pub struct Unpacker {
    left: u64,
}

impl Unpacker {
    /// For the entries of this fatbin.
    #[must_use]
    pub fn of(image: &[u8]) -> Self {
        const ALWAYS: u64 = 16 << 20;
        const TIMES: u64 = 32;
        Self { left: (image.len() as u64).saturating_mul(TIMES).saturating_add(ALWAYS) }
    }

    /// The payload of an entry as it is when unpacked.
    ///
    /// # Errors
    /// [`UnpackError`]: broken, not of the size it states, or too large.
    pub fn unpack<'a>(&mut self, entry: &FatbinEntry<'a>) -> Result<Cow<'a, [u8]>, UnpackError> {
        if entry.packing == Packing::Plain {
            return Ok(Cow::Borrowed(entry.payload));
        }
        let (stated, left) = (entry.unpacked_bytes, self.left);
        // A byte of an LZ4 block stands for 255 at most: a size that cannot be true is a broken block.
        let held = entry.payload.len() as u64;
        if entry.packing == Packing::Lz4 && stated > held.saturating_mul(255) {
            return Err(UnpackError::Lz4(format!("{held} bytes cannot hold the {stated} it states")));
        }
        let too_large = UnpackError::TooLarge { stated, left };
        self.left = left.checked_sub(stated).ok_or(too_large.clone())?;
        let most = usize::try_from(stated).map_err(|_| too_large)?;
        let unpacked = match entry.packing {
            Packing::Plain => entry.payload.to_vec(),
            Packing::Lz4 => unpack_lz4(entry.payload, most)?,
            Packing::Zstd => unpack_zstd(entry.payload, stated)?,
        };
        if unpacked.len() == most {
            Ok(Cow::Owned(unpacked))
        } else {
            Err(UnpackError::OtherSize { stated, found: unpacked.len() as u64 })
        }
    }
}

fn unpack_lz4(payload: &[u8], most: usize) -> Result<Vec<u8>, UnpackError> {
    lz4_flex::block::decompress(payload, most).map_err(|error| UnpackError::Lz4(error.to_string()))
}

fn unpack_zstd(payload: &[u8], most: u64) -> Result<Vec<u8>, UnpackError> {
    let broken = |error: &dyn std::fmt::Display| UnpackError::Zstd(error.to_string());
    let decoder = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|error| broken(&error))?;
    let mut unpacked = Vec::new();
    // One byte more than stated shows that there is more.
    decoder.take(most.saturating_add(1)).read_to_end(&mut unpacked).map_err(|error| broken(&error))?;
    Ok(unpacked)
}

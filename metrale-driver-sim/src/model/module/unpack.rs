// SPDX-License-Identifier: MIT OR Apache-2.0
//! Payloads of fatbins, unpacked.

use std::borrow::Cow;
use std::io::Read;

use metrale_driver_sys::image::fatbin::{FatbinEntry, Packing};

/// The largest payload that is unpacked, in bytes: a size is only what a header says.
const LARGEST_BYTES: u64 = 1 << 30;

/// The payload of an entry, or why it cannot be had.
pub(super) fn unpack<'a>(entry: &FatbinEntry<'a>) -> Result<Cow<'a, [u8]>, String> {
    let stated = entry.unpacked_bytes;
    if entry.packing == Packing::Plain {
        return Ok(Cow::Borrowed(entry.payload));
    }
    let most = usize::try_from(stated).ok().filter(|_| stated <= LARGEST_BYTES);
    let most = most.ok_or_else(|| format!("it states {stated} bytes when unpacked"))?;
    let unpacked = match entry.packing {
        Packing::Plain => entry.payload.to_vec(),
        Packing::Lz4 => unpack_lz4(entry.payload, most)?,
        Packing::Zstd => unpack_zstd(entry.payload, most)?,
    };
    if unpacked.len() == most {
        Ok(Cow::Owned(unpacked))
    } else {
        Err(format!("it states {most} bytes when unpacked and has {}", unpacked.len()))
    }
}

fn unpack_lz4(payload: &[u8], most: usize) -> Result<Vec<u8>, String> {
    // A byte of an LZ4 block stands for 255 at most: no memory is allocated for a size that cannot be true.
    if most > payload.len().saturating_mul(255) {
        return Err(format!("{} bytes of LZ4 cannot hold the {most} it states", payload.len()));
    }
    lz4_flex::block::decompress(payload, most).map_err(|error| format!("its LZ4 block is broken: {error}"))
}

fn unpack_zstd(payload: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let broken = |error: &dyn std::fmt::Display| format!("its Zstandard frame is broken: {error}");
    let decoder = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|error| broken(&error))?;
    let mut unpacked = Vec::new();
    // One byte more than stated shows that there is more.
    let one_more = most as u64 + 1;
    decoder.take(one_more).read_to_end(&mut unpacked).map_err(|error| broken(&error))?;
    Ok(unpacked)
}

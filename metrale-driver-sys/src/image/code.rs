// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Code`]: what of an image can be read.

use super::ImageKind;
use super::fatbin::{EntryKind, Fatbin, FatbinEntry};
use super::ptx::Text;

/// Code that [`Ptx`](super::ptx::Ptx) or [`Cubin`](super::cubin::Cubin) reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code<'a> {
    /// PTX text, without a byte order mark.
    Ptx(&'a [u8]),
    /// A cubin.
    Cubin(&'a [u8]),
}

impl<'a> Code<'a> {
    /// Hands over all code of an image, one after the other: the image itself, or what is in a fatbin, unpacked where it is
    /// packed and the feature `unpack` is on. None for other bytes and for a fatbin that is not whole.
    ///
    /// ```
    /// use metrale_driver_sys::image::Code;
    ///
    /// let text = b".version 8.0\n.target sm_90\n.address_size 64\n";
    /// let marked = [b"\xef\xbb\xbf", text.as_slice()].concat();
    /// let mut seen = 0;
    /// Code::each_in(&marked, |code| {
    ///     assert_eq!(code, Code::Ptx(text));
    ///     seen += 1;
    /// });
    /// Code::each_in(b"<html>", |code| panic!("{code:?}"));
    /// assert_eq!(seen, 1);
    /// ```
    pub fn each_in(image: &[u8], mut take: impl FnMut(Code<'_>)) {
        match ImageKind::of(image) {
            ImageKind::Ptx => take(Code::ptx(image)),
            ImageKind::Cubin => take(Code::Cubin(image)),
            ImageKind::Fatbin => {
                let Ok(fatbin) = Fatbin::read(image) else { return };
                #[cfg(feature = "unpack")]
                let mut unpacker = super::Unpacker::of(image);
                for entry in fatbin.entries.iter().filter(|entry| entry.is_code()) {
                    #[cfg(feature = "unpack")]
                    let payload = unpacker.unpack(entry).ok();
                    #[cfg(not(feature = "unpack"))]
                    let payload = Some(std::borrow::Cow::from(entry.payload))
                        .filter(|_| entry.packing == super::fatbin::Packing::Plain);
                    if let Some(code) = payload.as_deref().and_then(|payload| entry.code(payload)) {
                        take(code);
                    }
                }
            }
            _ => {}
        }
    }

    fn ptx(image: &'a [u8]) -> Self {
        Self::Ptx(image.get(Text::of(image).bom_bytes()..).unwrap_or_default())
    }
}

impl FatbinEntry<'_> {
    /// Whether it is of a kind that can be read. What else there is may be packed in ways of its own.
    #[must_use]
    pub const fn is_code(&self) -> bool {
        matches!(self.kind, EntryKind::Ptx | EntryKind::Elf)
    }

    /// The entry's payload, unpacked, as the code it is; `None` for other kinds.
    #[must_use]
    pub fn code<'p>(&self, payload: &'p [u8]) -> Option<Code<'p>> {
        match self.kind {
            EntryKind::Ptx => Some(Code::ptx(payload)),
            EntryKind::Elf => Some(Code::Cubin(payload)),
            EntryKind::LtoIr | EntryKind::Other(_) => None,
        }
    }
}

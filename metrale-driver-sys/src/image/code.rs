// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Code`]: what of an image can be read as it lies there.

use super::ImageKind;
use super::fatbin::{EntryKind, Fatbin, FatbinEntry, Packing};
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
    /// All code of an image: the image itself, or what of a fatbin is not packed. Nothing for other bytes and for a fatbin
    /// that is not whole.
    ///
    /// ```
    /// use metrale_driver_sys::image::Code;
    ///
    /// let text = b".version 8.0\n.target sm_90\n.address_size 64\n";
    /// let marked = [b"\xef\xbb\xbf", text.as_slice()].concat();
    /// assert_eq!(Code::all_in(&marked), [Code::Ptx(text)]);
    /// assert_eq!(Code::all_in(b"<html>"), []);
    /// ```
    #[must_use]
    pub fn all_in(image: &'a [u8]) -> Vec<Self> {
        match ImageKind::of(image) {
            ImageKind::Ptx => vec![Self::ptx(image)],
            ImageKind::Cubin => vec![Self::Cubin(image)],
            ImageKind::Fatbin => match Fatbin::read(image) {
                Ok(fatbin) => fatbin.entries.iter().filter_map(FatbinEntry::code).collect(),
                Err(_) => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn ptx(image: &'a [u8]) -> Self {
        Self::Ptx(image.get(Text::of(image).bom_bytes()..).unwrap_or_default())
    }
}

impl<'a> FatbinEntry<'a> {
    /// The entry's code; `None` where it is packed, or of another kind.
    #[must_use]
    pub fn code(&self) -> Option<Code<'a>> {
        match (self.packing, self.kind) {
            (Packing::Plain, EntryKind::Ptx) => Some(Code::ptx(self.payload)),
            (Packing::Plain, EntryKind::Elf) => Some(Code::Cubin(self.payload)),
            _ => None,
        }
    }
}

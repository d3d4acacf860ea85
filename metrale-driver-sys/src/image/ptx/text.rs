// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the PTX begins and ends among the bytes handed over.

use super::super::ImageKind;
use super::super::cubin::ELF_MAGIC;
use super::super::fatbin::FATBIN_MAGIC;
use super::lexer::Lexer;

/// U+FEFF in UTF-8.
pub(in super::super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The bytes of an image as text: the bytes before it, the text itself, and what follows its NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    /// Whether it begins with a UTF-8 byte order mark. No driver accepts one.
    pub has_bom: bool,
    /// Bytes before it that are no text, such as the header of a cache file. No driver accepts them.
    pub leading_bytes: &'a [u8],
    /// The text.
    pub code: &'a [u8],
    /// What stands behind the text's NUL, without the NULs at its end. A driver never sees it.
    pub after_nul: &'a [u8],
}

impl<'a> Text<'a> {
    /// Splits an image. There may be any number of NULs at the end, or none.
    #[must_use]
    pub fn of(image: &'a [u8]) -> Self {
        let (has_bom, rest) = match image.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) => (true, rest),
            None => (false, image),
        };
        let (leading_bytes, rest) = rest.split_at(leading_bytes(rest));
        let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
        let (code, behind) = rest.split_at(end);
        let last = behind.iter().rposition(|&byte| byte != 0);
        let after_nul = match last {
            // Position 0 is the NUL itself.
            Some(last) => &behind[1..=last],
            None => &[],
        };
        Self { has_bom, leading_bytes, code, after_nul }
    }

    /// How many bytes of the image are a byte order mark: where the rest begins.
    #[must_use]
    pub const fn bom_bytes(&self) -> usize {
        if self.has_bom { BYTE_ORDER_MARK.len() } else { 0 }
    }
}

impl Text<'_> {
    /// A cubin, a fatbin or a PTX text that stands behind this one, with or without a NUL between: what it is, and at which
    /// byte of the image. A second text without a NUL between is not found here, only when it is read.
    #[must_use]
    pub fn appended(&self) -> Option<(ImageKind, usize)> {
        const FATBIN: [u8; 4] = FATBIN_MAGIC.to_le_bytes();
        let binary = |bytes: &[u8]| match bytes.get(..4)?.try_into().ok()? {
            ELF_MAGIC => Some(ImageKind::Cubin),
            FATBIN => Some(ImageKind::Fatbin),
            _ => None,
        };
        let start = self.bom_bytes() + self.leading_bytes.len();
        let found = self
            .code
            .windows(4)
            .enumerate()
            .skip(1)
            .find_map(|(at, bytes)| Some((binary(bytes)?, start + at)));
        if found.is_some() {
            return found;
        }
        let padding = self.after_nul.iter().position(|&byte| byte != 0)?;
        // The NUL itself is in neither part.
        let (behind, at) = (&self.after_nul[padding..], start + self.code.len() + 1 + padding);
        let is_text = || Lexer::new(behind).next().is_some_and(|first| first.is_directive(".version"));
        let kind = binary(behind).or_else(|| is_text().then_some(ImageKind::Ptx))?;
        Some((kind, at))
    }
}

/// Whether a PTX text may begin with this byte.
pub(in super::super) const fn is_text_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte.is_ascii_whitespace()
}

/// How many bytes stand in front of the first comment or directive, where the very first byte is no text.
fn leading_bytes(bytes: &[u8]) -> usize {
    const LOOK_AT: usize = 4096;
    if bytes.first().is_none_or(|&first| is_text_byte(first)) {
        return 0;
    }
    let head = &bytes[..bytes.len().min(LOOK_AT)];
    let opens_text = |at: usize| {
        let rest = &bytes[at..];
        rest.starts_with(b"//") || rest.starts_with(b"/*") || rest.starts_with(b".version")
    };
    (0..head.len()).find(|&at| opens_text(at)).unwrap_or(0)
}

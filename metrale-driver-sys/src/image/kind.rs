// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run of bytes is: an image a driver loads, or the thing people hand over by mistake, by its name.

use std::fmt;

use super::bytes::{u16_at, u32_at};
use super::cubin::{ELF_MAGIC, EM_CUDA};
use super::fatbin::{FATBIN_MAGIC, FATBIN_WRAPPER_MAGIC};
use super::ptx::{BYTE_ORDER_MARK, Lexer, Text, TokenKind, is_text_byte};

/// What some bytes are, by their content. Displays as the end of a sentence that begins "this is".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageKind {
    /// PTX text, whether or not it is well formed.
    Ptx,
    /// A 64-bit ELF for CUDA's machine number.
    Cubin,
    /// A container of PTX texts and cubins.
    Fatbin,
    /// The structure that points to a fatbin inside a program, meaningless outside it.
    FatbinWrapper,
    /// No bytes, or nothing but white space and NULs.
    Empty,
    /// Too short an ELF to say for which machine.
    TruncatedElf,
    /// An ELF of another machine, or a 32-bit one.
    ForeignElf {
        /// The machine number; 62 is x86-64, 183 is AArch64, 190 is CUDA.
        machine: u16,
        /// The class byte; 1 is 32-bit, 2 is 64-bit.
        class: u8,
    },
    /// A web page, as failed downloads leave it.
    Html,
    /// Gzip-compressed data.
    Gzip,
    /// A zip file.
    Zip,
    /// A static library (`.a`).
    Archive,
    /// A file's name, not its content.
    Path,
    /// LLVM's bitcode (NVVM IR).
    LlvmBitcode,
    /// LLVM IR as text.
    LlvmText,
    /// CUDA C++ source.
    CudaSource,
    /// A SPIR-V module.
    SpirV,
    /// A git LFS pointer in place of the file.
    GitLfsPointer,
    /// Text in UTF-16.
    Utf16Text,
    /// A UTF-8 byte order mark with something behind it that is no text, such as an ELF or a fatbin. A driver skips the
    /// mark and reads an ELF behind it, which can end the process.
    MarkedBinary,
    /// Text without any PTX directive.
    Text,
    /// None of these.
    Unknown,
}

impl ImageKind {
    /// Looks at the content. Reads at most some kilobytes, unless a text opens with longer comments.
    #[must_use]
    pub fn of(image: &[u8]) -> Self {
        let by_text = || Self::of_text(&Text::of(image));
        let Some(marked) = image.strip_prefix(BYTE_ORDER_MARK) else {
            return Self::of_first_bytes(image).unwrap_or_else(by_text);
        };
        // A driver skips the mark and then decides by the bytes, whatever directives stand among them.
        match Self::of_first_bytes(marked).unwrap_or_else(by_text) {
            Self::Cubin
            | Self::TruncatedElf
            | Self::ForeignElf { .. }
            | Self::Fatbin
            | Self::FatbinWrapper
            | Self::Unknown => Self::MarkedBinary,
            kind => kind,
        }
    }

    /// What the first bytes alone tell.
    fn of_first_bytes(image: &[u8]) -> Option<Self> {
        if image.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Some(Self::Empty);
        }
        if image.starts_with(&ELF_MAGIC) {
            return Some(Self::of_elf(image));
        }
        match u32_at(image, 0) {
            Some(FATBIN_MAGIC) => return Some(Self::Fatbin),
            Some(FATBIN_WRAPPER_MAGIC) => return Some(Self::FatbinWrapper),
            _ => {}
        }
        match image {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [b'P', b'K', 3 | 5, 4 | 6, ..] => Some(Self::Zip),
            [b'B', b'C', 0xc0, 0xde, ..] | [0xde, 0xc0, 0x17, 0x0b, ..] => Some(Self::LlvmBitcode),
            [0x03, 0x02, 0x23, 0x07, ..] | [0x07, 0x23, 0x02, 0x03, ..] => Some(Self::SpirV),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(Self::Utf16Text),
            [first, 0, second, 0, ..] | [0, first, 0, second, ..]
                if first.is_ascii_graphic() && (second.is_ascii_graphic() || *second == b' ') =>
            {
                Some(Self::Utf16Text)
            }
            _ if image.starts_with(b"!<arch>\n") => Some(Self::Archive),
            _ => None,
        }
    }

    /// Whether this is something a driver loads.
    #[must_use]
    pub fn is_loadable(self) -> bool {
        matches!(self, Self::Ptx | Self::Cubin | Self::Fatbin)
    }

    fn of_elf(image: &[u8]) -> Self {
        let (Some(&class), Some(machine)) = (image.get(4), u16_at(image, 18)) else {
            return Self::TruncatedElf;
        };
        if machine == EM_CUDA && class == 2 { Self::Cubin } else { Self::ForeignElf { machine, class } }
    }

    fn of_text(text: &Text<'_>) -> Self {
        // A driver decides by the first byte whether to look for directives at all.
        if text.leading_bytes.is_empty() && !text.code.first().is_some_and(|&first| is_text_byte(first)) {
            return Self::Unknown;
        }
        let start = text.code.trim_ascii_start();
        let opens_with =
            |prefix: &[u8]| start.len() >= prefix.len() && start[..prefix.len()].eq_ignore_ascii_case(prefix);
        if opens_with(b"<!doctype") || opens_with(b"<html") || opens_with(b"<?xml") {
            return Self::Html;
        }
        if opens_with(b"version https://git-lfs") {
            return Self::GitLfsPointer;
        }
        if opens_with(b"; moduleid") || opens_with(b"source_filename =") || opens_with(b"target datalayout") {
            return Self::LlvmText;
        }
        // A cached file's own header may stand in front, so the first directive of all is looked for, not only the
        // first token; a token a line is enough to find it.
        let mut is_first = true;
        for token in Lexer::new(text.code).take(1024) {
            if token.kind == TokenKind::Directive && is_module_directive(token.text) {
                return Self::Ptx;
            }
            if is_first && token.kind == TokenKind::Word && !is_texty(text) {
                break;
            }
            is_first = false;
        }
        if !is_texty(text) {
            return Self::Unknown;
        }
        if is_path(text.code) {
            return Self::Path;
        }
        const CUDA_WORDS: [&[u8]; 3] = [b"__global__", b"#include", b"__device__"];
        if CUDA_WORDS.iter().any(|word| text.code.windows(word.len()).any(|window| window == *word)) {
            return Self::CudaSource;
        }
        Self::Text
    }
}

/// A directive that stands outside functions; upper case counts, since that is a mistake in a PTX text.
fn is_module_directive(directive: &[u8]) -> bool {
    const DIRECTIVES: [&[u8]; 8] =
        [b".version", b".target", b".address_size", b".visible", b".entry", b".func", b".extern", b".global"];
    DIRECTIVES.iter().any(|name| directive.eq_ignore_ascii_case(name))
}

/// Whether the first kilobytes hold no control characters but white space.
fn is_texty(text: &Text<'_>) -> bool {
    text.leading_bytes.is_empty()
        && text.code.iter().take(4096).all(|&byte| byte >= b' ' && byte != 0x7f || byte.is_ascii_whitespace())
}

/// Whether a text is one line that names a file.
fn is_path(code: &[u8]) -> bool {
    let line = code.trim_ascii();
    if line.is_empty() || line.len() > 4096 || line.contains(&b'\n') {
        return false;
    }
    const ENDINGS: [&[u8]; 6] = [b".ptx", b".cubin", b".fatbin", b".cu", b".bin", b".o"];
    let ends_like_a_file = ENDINGS.iter().any(|ending| line.ends_with(ending));
    let is_absolute = matches!(line, [b'/', next, ..] if *next != b'/' && *next != b'*')
        || matches!(line, [drive, b':', b'\\' | b'/', ..] if drive.is_ascii_alphabetic());
    ends_like_a_file
        || is_absolute
        || line.starts_with(b"./")
        || line.starts_with(b"../")
        || line.starts_with(b"~/")
}

impl fmt::Display for ImageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Ptx => "PTX text",
            Self::Cubin => "a cubin",
            Self::Fatbin => "a fatbin",
            Self::FatbinWrapper => {
                "the wrapper around a fatbin, which holds a pointer: pass the fatbin it points to"
            }
            Self::Empty => "empty",
            Self::TruncatedElf => "the beginning of an ELF file, cut off inside its header",
            Self::ForeignElf { machine, class: 1 } => {
                return write!(f, "a 32-bit ELF file (machine {}), not a 64-bit cubin", Machine(*machine));
            }
            Self::ForeignElf { machine, .. } => {
                return write!(f, "an ELF file for machine {}, not 190 (CUDA)", Machine(*machine));
            }
            Self::Html => "an HTML page, not a module image",
            Self::Gzip => "gzip-compressed data, not a module image: unpack it first",
            Self::Zip => "a zip file, not a module image: unpack it first",
            Self::Archive => "a static library, not a module image",
            Self::Path => "a file's path, not its content: read the file and pass its bytes",
            Self::LlvmBitcode => "LLVM bitcode, not PTX: compile it for NVPTX first",
            Self::LlvmText => "LLVM IR, not PTX: compile it for NVPTX first",
            Self::CudaSource => "CUDA C++ source, not PTX: compile it first",
            Self::SpirV => "a SPIR-V module, not a CUDA one",
            Self::GitLfsPointer => "a git LFS pointer, not the file it stands for: run git lfs pull",
            Self::Utf16Text => "UTF-16 text; a driver reads PTX in ASCII only",
            Self::MarkedBinary => {
                "binary data behind a UTF-8 byte order mark, which only text may have: pass the bytes without it"
            }
            Self::Text => "text without any PTX directive",
            Self::Unknown => "neither PTX text nor a cubin nor a fatbin",
        };
        f.write_str(text)
    }
}

/// A machine number with its name where it is a common one.
struct Machine(u16);

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            3 => "x86",
            40 => "Arm",
            62 => "x86-64",
            183 => "AArch64",
            190 => "CUDA",
            224 => "AMDGPU",
            243 => "RISC-V",
            _ => return write!(f, "{}", self.0),
        };
        write!(f, "{} ({name})", self.0)
    }
}

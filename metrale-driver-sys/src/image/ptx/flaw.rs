// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is wrong with a PTX text, and where.

use std::fmt;

use super::lexer::{Token, TokenKind};

/// As many flaws as a reading keeps; the rest of a hopeless text is not listed.
pub const MAX_FLAWS: usize = 64;

/// As many functions, variables, parameters and words of `.target` as a reading keeps. Each costs some hundred bytes, and
/// a text can declare one in three.
pub const MAX_DECLARATIONS: usize = 1 << 19;

/// As many steps from a function to another function or to a variable in shared memory as a reading makes, for all kernels
/// together: in a chain of functions each kernel's way can be as long as the chain.
pub const MAX_CALL_STEPS: usize = 1 << 24;

/// One thing wrong with a PTX text. Displays as `line 3: ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The line it was noticed on, the first being 1.
    pub line: u32,
    /// What it is.
    pub kind: FlawKind,
}

/// What can be wrong with a PTX text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlawKind {
    /// The text begins with a UTF-8 byte order mark.
    ByteOrderMark,
    /// As many bytes that are no text stand in front.
    LeadingBytes(usize),
    /// A comment is not all ASCII. Drivers before CUDA 13.5 refuse that, newer ones do not mind.
    NonAsciiComment,
    /// A byte that is not ASCII outside comments.
    NonAscii(u8),
    /// A control character that is not white space in PTX.
    StrayByte(u8),
    /// `.version` with its number on the same line does not come first.
    MissingVersion {
        /// What stands there instead; empty for the end of the text.
        found: String,
    },
    /// `.target` does not come second.
    MissingTarget {
        /// What stands there instead.
        found: String,
    },
    /// The list of `.target` does not begin with an architecture.
    MissingArchitecture {
        /// What stands there instead.
        found: String,
    },
    /// `.address_size` is neither 32 nor 64.
    BadAddressSize {
        /// What stands there instead.
        found: String,
    },
    /// A directive of the header where none belongs, such as a second `.target`.
    MisplacedHeader {
        /// The directive.
        directive: String,
    },
    /// A directive this reader does not know, skipped. A newer language version may.
    UnknownDirective {
        /// The directive.
        directive: String,
    },
    /// Something that cannot stand here.
    Unexpected {
        /// What it is; empty for the end of the text.
        found: String,
    },
    /// A name defined a second time.
    Duplicate {
        /// The name.
        name: String,
        /// The line of its first definition.
        first_line: u32,
    },
    /// An array whose size does not follow from its declaration, and that is not declared elsewhere.
    IncompleteType {
        /// The variable.
        name: String,
    },
    /// A size that is no plain number, read as 0 here.
    UnreadSize {
        /// The variable or parameter.
        name: String,
    },
    /// A size beyond 64 bits.
    SizeOverflow {
        /// The variable or parameter.
        name: String,
    },
    /// More of something than this reader takes: what it says of the rest is missing or 0. A driver may take it.
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How many are read.
        most: usize,
    },
    /// A block comment that never ends.
    OpenComment,
    /// A quoted text that does not end on its line.
    OpenQuote,
    /// The text ends inside braces or parentheses.
    OpenBrace,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.kind)
    }
}

impl fmt::Display for FlawKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByteOrderMark => write!(f, "a UTF-8 byte order mark stands in front of the text"),
            Self::LeadingBytes(bytes) => {
                write!(f, "{bytes} non-text bytes in front of the text (the header of a cache?)")
            }
            Self::NonAsciiComment => {
                write!(
                    f,
                    "a comment is not all ASCII, which drivers before CUDA 13.5 refuse: strip the comments"
                )
            }
            Self::NonAscii(byte) => write!(f, "byte 0x{byte:02x} is not ASCII"),
            Self::StrayByte(byte) => write!(f, "control character 0x{byte:02x} is not white space in PTX"),
            Self::MissingVersion { found } => {
                write!(
                    f,
                    "a PTX text begins with .version and its number on one line, here is {}",
                    Found(found)
                )?;
                if found.starts_with('.') && found.eq_ignore_ascii_case(".version") && found != ".version" {
                    write!(f, "; directives are lower case")?;
                }
                Ok(())
            }
            Self::MissingTarget { found } => {
                write!(f, ".target must follow .version, here is {}", Found(found))
            }
            Self::MissingArchitecture { found } => {
                write!(f, ".target must name an architecture first, here is {}", Found(found))
            }
            Self::BadAddressSize { found } => {
                write!(f, ".address_size is 32 or 64, here is {}", Found(found))
            }
            Self::MisplacedHeader { directive } => write!(f, "a second or late {directive}"),
            Self::UnknownDirective { directive } => write!(f, "{directive} is unknown here"),
            Self::Unexpected { found } => write!(f, "{} cannot stand here", Found(found)),
            Self::Duplicate { name, first_line } => {
                write!(f, "{name} is defined a second time, first on line {first_line}")
            }
            Self::IncompleteType { name } => write!(f, "{name} has no size"),
            Self::UnreadSize { name } => write!(f, "the size of {name} is no plain number"),
            Self::SizeOverflow { name } => write!(f, "the size of {name} exceeds 64 bits"),
            Self::Limit { what, most } => write!(f, "more than {most} {what}, which are not read"),
            Self::OpenComment => write!(f, "a comment begins and never ends"),
            Self::OpenQuote => write!(f, "a quoted text does not end on its line"),
            Self::OpenBrace => write!(f, "the text ends inside what begins here"),
        }
    }
}

/// A token in a message.
struct Found<'a>(&'a str);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("the end of the text") } else { write!(f, "{:?}", self.0) }
    }
}

/// A token's text for a message, cut where it is long.
pub(super) fn shown(token: Option<&Token<'_>>) -> String {
    const LONGEST: usize = 48;
    let Some(token) = token else { return String::new() };
    let mut text: String = String::from_utf8_lossy(&token.text[..token.text.len().min(LONGEST)]).into_owned();
    if token.text.len() > LONGEST {
        text.push_str("...");
    }
    text
}

/// The flaw that a token is in itself, wherever it stands.
pub(super) fn of_token(token: &Token<'_>) -> Option<FlawKind> {
    match (token.kind, token.text) {
        (TokenKind::Stray, [byte]) if byte.is_ascii() => Some(FlawKind::StrayByte(*byte)),
        (TokenKind::Stray, [byte]) => Some(FlawKind::NonAscii(*byte)),
        (TokenKind::OpenQuote, _) => Some(FlawKind::OpenQuote),
        (TokenKind::Quoted, text) => {
            text.iter().find(|byte| !byte.is_ascii()).map(|&byte| FlawKind::NonAscii(byte))
        }
        _ => None,
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three directives a PTX text begins with: `.version`, `.target`, `.address_size`.

use super::super::arch::{IsaVersion, SmTarget};
use super::cursor::Cursor;
use super::flaw::{FlawKind, shown};
use super::lexer::{Token, TokenKind};
use super::text::Text;

/// What the first directives say. Read leniently: a value that stands in the wrong place is still here, beside the
/// flaw that says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    /// The language version of `.version`.
    pub version: Option<IsaVersion>,
    /// The line of `.version`, 0 where there is none.
    pub version_line: u32,
    /// The architectures `.target` names, in its order. The last one counts.
    pub targets: Vec<TargetName<'a>>,
    /// The options `.target` names, in its order, whether they exist or not.
    pub options: Vec<&'a str>,
    /// The line of `.target`, 0 where there is none.
    pub target_line: u32,
    /// The bits of an address as `.address_size` says; `None` where it is absent.
    pub address_size: Option<u32>,
    /// The line of `.address_size`, 0 where there is none.
    pub address_size_line: u32,
}

/// A word of `.target` that names an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetName<'a> {
    /// The word.
    pub name: &'a str,
    /// The architecture, where the word is of the form of one. It need not be one this crate knows.
    pub sm: Option<SmTarget>,
}

impl<'a> Header<'a> {
    /// Reads the header alone, at a cost that does not grow with the text behind it.
    #[must_use]
    pub fn read(image: &'a [u8]) -> Self {
        read(&mut Cursor::new(Text::of(image).code))
    }
}

impl Header<'_> {
    /// Options that `.target` may name.
    pub const OPTIONS: [&'static str; 4] =
        ["debug", "map_f64_to_f32", "texmode_independent", "texmode_unified"];

    /// The architecture the text is for: the last one that `.target` names.
    #[must_use]
    pub fn target(&self) -> Option<SmTarget> {
        self.targets.last().and_then(|target| target.sm)
    }

    /// Whether `.target` asks for `option`.
    #[must_use]
    pub fn has_option(&self, option: &str) -> bool {
        self.options.contains(&option)
    }
}

/// Reads the header and leaves the cursor behind it.
pub(super) fn read<'a>(cursor: &mut Cursor<'a>) -> Header<'a> {
    let mut header = Header::default();
    read_version(cursor, &mut header);
    if cursor.peek().is_none_or(|token| !token.is_directive(".target")) {
        let found = shown(cursor.peek().as_ref());
        cursor.flaw(cursor.line(), FlawKind::MissingTarget { found });
        seek(cursor, ".target");
    }
    if let Some(token) = cursor.next_if(|token| token.is_directive(".target")) {
        header.target_line = token.line;
        read_targets(cursor, &mut header);
    }
    // What makes a text wrong before this point also makes it wrong here; one flaw is enough.
    if cursor.peek().is_some_and(|token| token.is_punct(b';')) && !cursor.flaws.is_empty() {
        cursor.next();
    }
    if let Some(token) = cursor.next_if(|token| token.is_directive(".address_size")) {
        header.address_size_line = token.line;
        let value = cursor.peek();
        header.address_size = value
            .filter(|token| token.kind == TokenKind::Number)
            .and_then(|token| token.as_str().parse().ok());
        if !matches!(header.address_size, Some(32 | 64)) {
            cursor.flaw(token.line, FlawKind::BadAddressSize { found: shown(value.as_ref()) });
        }
        cursor.next_if(|token| token.kind == TokenKind::Number);
    }
    header
}

fn read_version<'a>(cursor: &mut Cursor<'a>, header: &mut Header<'a>) {
    if cursor.peek().is_none_or(|token| !token.is_directive(".version")) {
        let found = shown(cursor.peek().as_ref());
        cursor.flaw(cursor.line(), FlawKind::MissingVersion { found });
        seek(cursor, ".version");
    }
    let Some(directive) = cursor.next_if(|token| token.is_directive(".version")) else { return };
    header.version_line = directive.line;
    let number = cursor.peek();
    header.version = number.and_then(|token| version(&token));
    if header.version.is_none() || number.is_some_and(|token| token.line != directive.line) {
        cursor.flaw(directive.line, FlawKind::MissingVersion { found: shown(number.as_ref()) });
    }
    cursor.next_if(|token| token.kind == TokenKind::Number);
}

/// `7.10` as (7, 10).
fn version(token: &Token<'_>) -> Option<IsaVersion> {
    let (major, minor) = token.as_str().split_once('.')?;
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    (token.kind == TokenKind::Number).then_some(IsaVersion { major: number(major)?, minor: number(minor)? })
}

fn read_targets<'a>(cursor: &mut Cursor<'a>, header: &mut Header<'a>) {
    let mut is_first = true;
    loop {
        let Some(word) = cursor.next_if(|token| token.kind == TokenKind::Word) else {
            if is_first {
                let found = shown(cursor.peek().as_ref());
                cursor.flaw(cursor.line(), FlawKind::MissingArchitecture { found });
            } else {
                cursor.unexpected();
            }
            return;
        };
        if !cursor.counts() {
            return;
        }
        let name = word.as_str();
        if name.starts_with("sm_") || name.starts_with("compute_") {
            header.targets.push(TargetName { name, sm: name.parse().ok() });
        } else {
            if is_first {
                cursor.flaw(word.line, FlawKind::MissingArchitecture { found: shown(Some(&word)) });
            }
            header.options.push(name);
        }
        is_first = false;
        if !cursor.next_if_punct(b',') {
            return;
        }
    }
}

/// Moves to `directive` where it comes soon, so that a text with one flaw in front of it still gives its facts.
fn seek(cursor: &mut Cursor<'_>, directive: &str) {
    const SOON: usize = 16;
    let Some(steps) = cursor.ahead().take(SOON).position(|token| token.is_directive(directive)) else {
        return;
    };
    for _ in 0..steps {
        cursor.next();
    }
}

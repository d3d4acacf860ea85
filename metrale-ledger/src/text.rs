// SPDX-License-Identifier: MIT OR Apache-2.0
//! How texts write sizes, names and numbers.

use std::fmt;

/// A number with its noun: `1 page`, `2 pages`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// Shows bytes as `512 B`, `1.50 KiB`, `208.88 MiB`, `12.55 GiB` or `1.50 TiB`; 1 KiB is 1024 bytes. Width and alignment apply.
///
/// ```
/// use metrale_ledger::ByteSize;
/// assert_eq!(ByteSize(219_030_644).to_string(), "208.88 MiB");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(
    /// The bytes.
    pub u64,
);

impl ByteSize {
    /// From a size in `usize`.
    pub const fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB")];
        if self.0 < UNITS[0].0 {
            return f.pad(&format!("{} B", self.0));
        }
        let hundredths = |unit: u64| (u128::from(self.0) * 100 + u128::from(unit / 2)) / u128::from(unit);
        // The first unit in which the rounded amount stays below 1024, so that no line says "1024.00 KiB".
        let (unit, name) =
            UNITS.into_iter().find(|&(unit, _)| hundredths(unit) < 102_400).unwrap_or(UNITS[3]);
        let amount = hundredths(unit);
        f.pad(&format!("{}.{:02} {name}", amount / 100, amount % 100))
    }
}

/// A source line as texts show it: `file:line`. The column is for programs.
pub fn file_line(at: &std::panic::Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

/// Shows the name of a scope, a tag or a part in one line: the characters of [`escapes`](Self::escapes) are escaped, and an
/// empty name is shown as `""`. So a name that a caller chose cannot look like another line of a report.
///
/// ```
/// use metrale_ledger::Label;
///
/// assert_eq!(Label("layers.0/attn").to_string(), "layers.0/attn");
/// assert_eq!(Label("two\nlines").to_string(), "two\\nlines");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Label<'a>(pub &'a str);

impl Label<'_> {
    /// Whether texts show this character escaped. These are control characters, separators of lines and paragraphs, which many
    /// programs show as the end of a line, and marks that change the direction of text, which make one line look like another.
    pub fn escapes(c: char) -> bool {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    }
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("\"\"");
        }
        self.0.chars().try_for_each(|c| {
            if Self::escapes(c) { write!(f, "{}", c.escape_debug()) } else { write!(f, "{c}") }
        })
    }
}

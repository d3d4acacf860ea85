// SPDX-License-Identifier: MIT OR Apache-2.0
//! Labels as texts show them: a name that callers chose forges no lines.

use std::fmt;

/// A scope, tag or part's name, in one line: what [`escapes`](Self::escapes) names is escaped, and an empty one is shown as
/// quotes.
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
    /// Whether texts show this character escaped: control characters, separators of lines and paragraphs, which end a line in
    /// many readers, and those that turn the direction of what follows, which make a line read as another.
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
        if !self.0.contains(Self::escapes) {
            return f.write_str(self.0);
        }
        self.0.chars().try_for_each(|c| {
            if Self::escapes(c) { write!(f, "{}", c.escape_debug()) } else { write!(f, "{c}") }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_one_line_and_never_nothing() {
        let shown = |label: &str| Label(label).to_string();
        assert_eq!(shown("layers.0/attn größe \"x\""), "layers.0/attn größe \"x\"");
        assert_eq!(shown(""), "\"\"");
        assert_eq!(
            shown("a\n  9 GiB  x1 b\r\t\u{1b}[31m\u{2028}"),
            "a\\n  9 GiB  x1 b\\r\\t\\u{1b}[31m\\u{2028}"
        );
        assert_eq!(
            shown("a\u{202e}w.0\u{2066}\u{200f}\u{61c} שלום 👩\u{200d}🔬"),
            "a\\u{202e}w.0\\u{2066}\\u{200f}\\u{61c} שלום 👩\u{200d}🔬",
            "letters stay, and so does what joins them"
        );
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Labels as texts show them: a name that callers chose forges no lines.

use std::fmt;

/// A scope, tag or part's name, in one line: control characters are escaped, and an empty one is shown as quotes.
///
/// ```
/// use metrale_ledger::Label;
///
/// assert_eq!(Label("layers.0/attn").to_string(), "layers.0/attn");
/// assert_eq!(Label("two\nlines").to_string(), "two\\nlines");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Label<'a>(pub &'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("\"\"");
        }
        // Separators of lines and paragraphs end a line in many readers.
        let is_odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
        if !self.0.contains(is_odd) {
            return f.write_str(self.0);
        }
        self.0
            .chars()
            .try_for_each(|c| if is_odd(c) { write!(f, "{}", c.escape_debug()) } else { write!(f, "{c}") })
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
    }
}

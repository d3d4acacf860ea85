// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names from files as they are printed: control characters escaped, never longer than a line bears.

use std::fmt;
use std::path::Path;

use metrale_ledger::Label;

/// Characters of a name that are shown before it is cut.
const SHOWN_CHARS: usize = 160;

/// A name from a file, in quotes and escaped. A tensor's name may hold anything, line breaks and terminal codes too.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_CHARS) {
            None => write!(f, "\"{}\"", self.0.escape_debug()),
            Some((cut, _)) => write!(f, "\"{}\"... ({} bytes)", self.0[..cut].escape_debug(), self.0.len()),
        }
    }
}

/// A path, escaped like a name and without quotes.
#[derive(Debug, Clone, Copy)]
pub struct ShownPath<'a>(pub &'a Path);

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `escape_debug` would also escape quotes and backslashes, which paths may well hold.
        for c in self.0.to_string_lossy().chars() {
            if Label::escapes(c) {
                write!(f, "{}", c.escape_debug())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// The first few of many names, quoted, and how many more there are.
pub(crate) fn some_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const MOST: usize = 8;
    let more = names.len().saturating_sub(MOST);
    let mut text = names.take(MOST).map(|name| Shown(name).to_string()).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_names_cut() {
        assert_eq!(Shown("a\0b\n\u{1b}[31m").to_string(), r#""a\0b\n\u{1b}[31m""#);
        let long = "é".repeat(1000);
        let text = Shown(&long).to_string();
        assert!(text.ends_with("\"... (2000 bytes)") && text.chars().count() < 200, "{text}");
        assert_eq!(ShownPath(Path::new("/a/b\nc \"d\"")).to_string(), "/a/b\\nc \"d\"");
    }

    #[test]
    fn some_names_says_how_many_more() {
        let names: Vec<String> = (0..10).map(|i| i.to_string()).collect();
        let text = some_names(names.iter().map(String::as_str));
        assert_eq!(text, r#""0", "1", "2", "3", "4", "5", "6", "7" and 2 more"#);
    }
}

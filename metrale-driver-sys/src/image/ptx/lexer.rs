// SPDX-License-Identifier: MIT OR Apache-2.0
//! PTX text cut into tokens, comments dropped, every token with its line.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A dot and a name: `.version`, `.u64`.
    Directive,
    /// A name, which may hold `$`, `%` and `_`.
    Word,
    /// What begins with a digit: `64`, `7.5`, `0f3F800000`.
    Number,
    /// A text in double quotes, quotes included.
    Quoted,
    /// A text whose closing quote is missing on its line.
    OpenQuote,
    /// One character of punctuation.
    Punct,
    /// One byte that PTX has no use for: control characters, and everything that is not ASCII.
    Stray,
}

/// A piece of PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// What it is.
    pub kind: TokenKind,
    /// Its bytes. ASCII, unless the kind is [`Stray`](TokenKind::Stray) or a quoted text.
    pub text: &'a [u8],
    /// The line it begins on, the first being 1.
    pub line: u32,
}

impl<'a> Token<'a> {
    /// Whether this is the directive `name` (with its dot).
    #[must_use]
    pub fn is_directive(&self, name: &str) -> bool {
        self.kind == TokenKind::Directive && self.text == name.as_bytes()
    }

    /// Whether this is the punctuation `mark`.
    #[must_use]
    pub fn is_punct(&self, mark: u8) -> bool {
        self.kind == TokenKind::Punct && self.text == [mark]
    }

    /// The bytes as text, where they are ASCII or UTF-8; else nothing.
    #[must_use]
    pub fn as_str(&self) -> &'a str {
        std::str::from_utf8(self.text).unwrap_or_default()
    }
}

/// The tokens of a text, one by one.
#[derive(Clone, Debug)]
pub struct Lexer<'a> {
    code: &'a [u8],
    at: usize,
    line: u32,
    at_line_start: bool,
    non_ascii_comment: Option<u32>,
    open_comment: Option<u32>,
}

impl<'a> Lexer<'a> {
    /// Starts at the first byte, on line 1.
    #[must_use]
    pub fn new(code: &'a [u8]) -> Self {
        Self { code, at: 0, line: 1, at_line_start: true, non_ascii_comment: None, open_comment: None }
    }

    /// The line of the first comment read so far that is not all ASCII.
    #[must_use]
    pub fn non_ascii_comment(&self) -> Option<u32> {
        self.non_ascii_comment
    }

    /// The line of a block comment that never ends.
    #[must_use]
    pub fn open_comment(&self) -> Option<u32> {
        self.open_comment
    }

    /// The line the next byte stands on.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Leaves out what is left of the text.
    pub(super) fn end(&mut self) {
        self.code = &[];
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.code.get(self.at.saturating_add(ahead)).copied()
    }

    fn newline(&mut self) {
        self.line = self.line.saturating_add(1);
        self.at_line_start = true;
    }

    /// Skips white space, comments and the preprocessor's line marks.
    fn skip_blanks(&mut self) {
        while let Some(byte) = self.byte(0) {
            match (byte, self.byte(1)) {
                (b'\n', _) => {
                    self.newline();
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', Some(b'/')) => self.skip_line(),
                (b'#', _) if self.at_line_start => self.skip_line(),
                (b'/', Some(b'*')) => self.skip_block(),
                _ => return,
            }
        }
    }

    fn skip_line(&mut self) {
        while let Some(byte) = self.byte(0).filter(|&byte| byte != b'\n') {
            self.note_comment_byte(byte);
            self.at += 1;
        }
    }

    fn skip_block(&mut self) {
        let opened_on = self.line;
        self.at += 2;
        while let Some(byte) = self.byte(0) {
            if byte == b'*' && self.byte(1) == Some(b'/') {
                self.at += 2;
                return;
            }
            self.note_comment_byte(byte);
            if byte == b'\n' {
                self.newline();
            }
            self.at += 1;
        }
        self.open_comment = Some(opened_on);
    }

    fn note_comment_byte(&mut self, byte: u8) {
        if !byte.is_ascii() && self.non_ascii_comment.is_none() {
            self.non_ascii_comment = Some(self.line);
        }
    }

    /// The end of the run of name characters from `from`.
    fn name_end(&self, from: usize) -> usize {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%');
        let rest = self.code.get(from..).unwrap_or_default();
        from + rest.iter().position(|byte| !is_name(byte)).unwrap_or(rest.len())
    }

    /// The end of the number from `from`: digits, letters and dots, and a sign behind a decimal exponent.
    fn number_end(&self, from: usize) -> usize {
        let rest = self.code.get(from..).unwrap_or_default();
        let is_hex = matches!(rest, [b'0', b'x' | b'X' | b'f' | b'F' | b'd' | b'D', ..]);
        let mut end = 0;
        while let Some(&byte) = rest.get(end) {
            let is_sign = matches!(byte, b'+' | b'-')
                && !is_hex
                && end > 0
                && matches!(rest[end - 1], b'e' | b'E')
                && rest.get(end + 1).is_some_and(u8::is_ascii_digit);
            if !(byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' || is_sign) {
                break;
            }
            end += 1;
        }
        from + end
    }

    /// The end of the quoted text from `from`, and whether its closing quote is there.
    fn quote_end(&self, from: usize) -> (usize, bool) {
        let mut at = from + 1;
        while let Some(&byte) = self.code.get(at) {
            match byte {
                b'"' => return (at + 1, true),
                b'\n' => return (at, false),
                b'\\' if self.code.get(at + 1).is_some_and(|&next| next != b'\n') => at += 2,
                _ => at += 1,
            }
        }
        (self.code.len(), false)
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let (start, line) = (self.at, self.line);
        let byte = self.byte(0)?;
        let (end, kind) = match byte {
            b'.' if self.name_end(start + 1) > start + 1 => (self.name_end(start + 1), TokenKind::Directive),
            b'0'..=b'9' => (self.number_end(start), TokenKind::Number),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'%' => (self.name_end(start), TokenKind::Word),
            b'"' => match self.quote_end(start) {
                (end, true) => (end, TokenKind::Quoted),
                (end, false) => (end, TokenKind::OpenQuote),
            },
            byte if byte.is_ascii_punctuation() => (start + 1, TokenKind::Punct),
            _ => (start + 1, TokenKind::Stray),
        };
        self.at = end;
        self.at_line_start = false;
        Some(Token { kind, text: &self.code[start..end], line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(code: &str) -> Vec<(TokenKind, String, u32)> {
        Lexer::new(code.as_bytes()).map(|token| (token.kind, token.as_str().to_owned(), token.line)).collect()
    }

    #[test]
    fn tokens_keep_their_lines_through_comments_and_line_ends() {
        let tokens =
            kinds("// a\r\n.version 7.10 /* b\n c */ .target\tsm_90a,debug\r\n# 1 \"x\"\n\"q\\\"r\" %r<3>;");
        let expected: Vec<(TokenKind, String, u32)> = [
            (TokenKind::Directive, ".version", 2),
            (TokenKind::Number, "7.10", 2),
            (TokenKind::Directive, ".target", 3),
            (TokenKind::Word, "sm_90a", 3),
            (TokenKind::Punct, ",", 3),
            (TokenKind::Word, "debug", 3),
            (TokenKind::Quoted, "\"q\\\"r\"", 5),
            (TokenKind::Word, "%r", 5),
            (TokenKind::Punct, "<", 5),
            (TokenKind::Number, "3", 5),
            (TokenKind::Punct, ">", 5),
            (TokenKind::Punct, ";", 5),
        ]
        .into_iter()
        .map(|(kind, text, line)| (kind, text.to_owned(), line))
        .collect();
        assert_eq!(tokens, expected);
    }

    #[test]
    fn numbers_take_their_exponent_and_an_instruction_keeps_its_dots_apart() {
        let texts: Vec<String> = kinds("1.5e-3 0x1e-2 mov.u32").into_iter().map(|token| token.1).collect();
        assert_eq!(texts, ["1.5e-3", "0x1e", "-", "2", "mov", ".u32"]);
    }

    #[test]
    fn what_never_ends_is_told() {
        let mut lexer = Lexer::new(b"a\n/* b\n");
        assert_eq!(lexer.by_ref().count(), 1);
        assert_eq!(lexer.open_comment(), Some(2));
        assert_eq!(kinds("\"x\ny")[0].0, TokenKind::OpenQuote);
    }

    #[test]
    fn bytes_that_are_not_ascii_are_stray_outside_comments_and_noted_inside() {
        let mut lexer = Lexer::new("k\n// é\n\u{e9}\u{b}".as_bytes());
        let kinds: Vec<TokenKind> = lexer.by_ref().map(|token| token.kind).collect();
        assert_eq!(kinds, [TokenKind::Word, TokenKind::Stray, TokenKind::Stray, TokenKind::Stray]);
        assert_eq!(lexer.non_ascii_comment(), Some(2));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reader's place in the tokens, and the flaws it has found.

use super::flaw::{self, Flaw, FlawKind, MAX_DECLARATIONS, MAX_FLAWS};
use super::lexer::{Lexer, Token, TokenKind};

/// A place in the tokens with one of them in view.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    lexer: Lexer<'a>,
    peeked: Option<Token<'a>>,
    pub(super) flaws: Vec<Flaw>,
    declarations: usize,
    /// Limits that the text passed, beside the flaws so that many of those do not hide one.
    limits: Vec<Flaw>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(code: &'a [u8]) -> Self {
        let mut cursor = Self {
            lexer: Lexer::new(code),
            peeked: None,
            flaws: Vec::new(),
            declarations: 0,
            limits: Vec::new(),
        };
        cursor.advance();
        cursor
    }

    /// Moves to the next token. Stray bytes are noted and skipped here, so no rule has to handle them.
    fn advance(&mut self) {
        loop {
            self.peeked = self.lexer.next();
            let Some(token) = self.peeked else { return };
            if let Some(kind) = flaw::of_token(&token) {
                self.flaw(token.line, kind);
            }
            if token.kind != TokenKind::Stray {
                return;
            }
        }
    }

    /// The token in view.
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.peeked
    }

    /// The token in view, and on to the next.
    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peeked;
        if token.is_some() {
            self.advance();
        }
        token
    }

    /// Passes the token in view where it satisfies `accept`.
    pub(super) fn next_if(&mut self, accept: impl FnOnce(&Token<'a>) -> bool) -> Option<Token<'a>> {
        let token = self.peeked.filter(accept)?;
        self.advance();
        Some(token)
    }

    /// Passes the punctuation `mark` where it is in view.
    pub(super) fn next_if_punct(&mut self, mark: u8) -> bool {
        self.next_if(|token| token.is_punct(mark)).is_some()
    }

    /// The line of the token in view, or of the end.
    pub(super) fn line(&self) -> u32 {
        self.peeked.map_or_else(|| self.lexer.line(), |token| token.line)
    }

    /// Notes a flaw, up to [`MAX_FLAWS`] of them. What a text that was cut at a limit lacks is none.
    pub(super) fn flaw(&mut self, line: u32, kind: FlawKind) {
        if self.flaws.len() < MAX_FLAWS && self.limits.is_empty() {
            self.flaws.push(Flaw { line, kind });
        }
    }

    /// Counts something that is to be kept. False, and the text ends here, where there are too many.
    pub(super) fn counts(&mut self) -> bool {
        if self.declarations < MAX_DECLARATIONS {
            self.declarations += 1;
            return true;
        }
        if self.limits.is_empty() {
            self.limit(self.line(), "declarations", MAX_DECLARATIONS);
        }
        self.lexer.end();
        self.peeked = None;
        false
    }

    /// Notes a limit that the text passed.
    pub(super) fn limit(&mut self, line: u32, what: &'static str, most: usize) {
        self.limits.push(Flaw { line, kind: FlawKind::Limit { what, most } });
    }

    /// Notes that the token in view cannot stand there.
    pub(super) fn unexpected(&mut self) {
        let found = flaw::shown(self.peeked.as_ref());
        self.flaw(self.line(), FlawKind::Unexpected { found });
    }

    /// Passes what is left of `line`.
    pub(super) fn skip_line(&mut self, line: u32) {
        while self.next_if(|token| token.line == line).is_some() {}
    }

    /// Passes everything up to and including the next `;`.
    pub(super) fn skip_statement(&mut self) {
        while let Some(token) = self.next() {
            if token.is_punct(b';') {
                return;
            }
        }
    }

    /// Passes a group whose opening mark was just passed on `line`, through its closing mark.
    pub(super) fn skip_group(&mut self, open: u8, close: u8, line: u32) {
        let mut depth = 1_usize;
        while let Some(token) = self.next() {
            if token.is_punct(open) {
                depth += 1;
            } else if token.is_punct(close) {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
        }
        self.flaw(line, FlawKind::OpenBrace);
    }

    /// The tokens from the one in view on, without moving.
    pub(super) fn ahead(&self) -> impl Iterator<Item = Token<'a>> + use<'a> {
        self.peeked.into_iter().chain(self.lexer.clone()).filter(|token| token.kind != TokenKind::Stray)
    }

    /// All flaws, by line; those that the lexer found in comments are among them.
    pub(super) fn into_flaws(mut self) -> Vec<Flaw> {
        if let Some(line) = self.lexer.non_ascii_comment() {
            self.flaws.push(Flaw { line, kind: FlawKind::NonAsciiComment });
        }
        if let Some(line) = self.lexer.open_comment() {
            self.flaws.push(Flaw { line, kind: FlawKind::OpenComment });
        }
        self.flaws.append(&mut self.limits);
        self.flaws.sort_by_key(|flaw| flaw.line);
        self.flaws
    }
}

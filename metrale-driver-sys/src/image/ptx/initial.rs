// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a variable holds at first, as far as it is plain numbers.

use std::borrow::Cow;

use super::cursor::Cursor;
use super::declaration::{Declarator, Number};
use super::lexer::{Token, TokenKind};
use super::sparse::SparseBytes;

/// What a variable holds when its module has been loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Initial<'a> {
    /// Zeros: the declaration gives no value.
    Zero,
    /// These bytes, and zeros everywhere else.
    Bytes(SparseBytes),
    /// At least one value is no plain number: the first name it uses, or what else it begins with.
    Symbolic(Cow<'a, str>),
}

/// An integer literal: decimal, `0x`, `0b`, octal with a leading 0, `U` at its end.
pub(super) fn integer(text: &str) -> Option<u64> {
    let text = text.strip_suffix(['U', 'u']).unwrap_or(text);
    let digits = |digits: &str, radix| {
        // `from_str_radix` alone would take a sign.
        let is_number = digits.chars().all(|digit| digit.is_digit(radix));
        is_number.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
    };
    match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => digits(&text[2..], 16),
        [b'0', b'b' | b'B', ..] => digits(&text[2..], 2),
        [b'0', _, ..] => digits(&text[1..], 8),
        _ => digits(text, 10),
    }
}

/// A floating literal: decimal with a dot or an exponent, `0f` and `0d` with the bits in hexadecimal.
fn float(text: &str) -> Option<f64> {
    match text.as_bytes() {
        [b'0', b'f' | b'F', bits @ ..] if bits.len() == 8 => {
            u32::from_str_radix(&text[2..], 16).ok().map(|bits| f64::from(f32::from_bits(bits)))
        }
        [b'0', b'd' | b'D', bits @ ..] if bits.len() == 16 => {
            u64::from_str_radix(&text[2..], 16).ok().map(f64::from_bits)
        }
        _ => text.parse().ok(),
    }
}

/// Appends the little-endian bytes of a literal of a type; `None` where the literal does not fit the type.
fn encode(text: &str, is_negative: bool, declarator: &Declarator) -> Option<([u8; 16], usize)> {
    let scalar = declarator.scalar;
    let mut out = [0; 16];
    let width = usize::try_from(scalar.bytes).ok()?;
    match scalar.number {
        Number::Opaque => return None,
        Number::Integer => {
            let magnitude = i128::from(integer(text)?);
            let value = if is_negative { -magnitude } else { magnitude };
            // Assemblers cut what is too large for its type.
            out = value.to_le_bytes();
        }
        Number::Float => {
            let magnitude = float(text)?;
            let value = if is_negative { -magnitude } else { magnitude };
            if width == 4 {
                #[allow(clippy::cast_possible_truncation, reason = "the type asks for the nearest single")]
                out[..4].copy_from_slice(&(value as f32).to_le_bytes());
            } else {
                out[..8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    Some((out, width))
}

/// Reads the value behind `=`. Fills in the length of an outermost `[]`, which the list decides.
pub(super) fn read<'a>(
    cursor: &mut Cursor<'a>,
    declarator: &Declarator,
    dimensions: &mut [Option<u64>],
) -> Initial<'a> {
    let mut list = List { declarator, bytes: SparseBytes::default(), symbol: None, at: 0, furthest: 0 };
    // Element counts of one element at each depth: the product of the lengths behind it.
    let mut strides = vec![declarator.scalar.width; dimensions.len()];
    for depth in (1..dimensions.len()).rev() {
        strides[depth - 1] = strides[depth].saturating_mul(dimensions[depth].unwrap_or(0));
    }
    if let Some(open) = cursor.next_if(|token| token.is_punct(b'{')) {
        list.read_braces(cursor, open.line, &strides);
    } else {
        list.read_value(cursor);
    }
    if let Some(outermost) = dimensions.first_mut()
        && outermost.is_none()
    {
        let stride = strides.first().copied().unwrap_or(1).max(1);
        *outermost = Some(list.furthest.div_ceil(stride));
    }
    match list.symbol {
        Some(symbol) => Initial::Symbolic(symbol),
        None => Initial::Bytes(list.bytes),
    }
}

/// A list of values on its way to bytes. Positions count elements.
struct List<'a, 'd> {
    declarator: &'d Declarator,
    bytes: SparseBytes,
    symbol: Option<Cow<'a, str>>,
    at: u64,
    furthest: u64,
}

impl<'a> List<'a, '_> {
    /// Reads to the closing brace of one whose opening was passed. Not recursive: depth is the writer's to choose.
    fn read_braces(&mut self, cursor: &mut Cursor<'a>, line: u32, strides: &[u64]) {
        // The position at which each open brace began.
        let mut starts = vec![self.at];
        while let Some(token) = cursor.peek() {
            if token.is_punct(b'{') {
                cursor.next();
                starts.push(self.at);
            } else if token.is_punct(b'}') {
                cursor.next();
                let Some(start) = starts.pop() else { return };
                if starts.is_empty() {
                    return;
                }
                // An inner list fills one element of the outer one, whatever it leaves out.
                let stride = strides.get(starts.len() - 1).copied().unwrap_or(self.declarator.scalar.width);
                self.at = start.saturating_add(stride);
            } else if token.is_punct(b',') {
                cursor.next();
            } else if token.is_punct(b';') {
                break;
            } else {
                self.read_value(cursor);
            }
        }
        cursor.flaw(line, super::flaw::FlawKind::OpenBrace);
    }

    /// Reads one value up to the `,`, `}` or `;` behind it.
    fn read_value(&mut self, cursor: &mut Cursor<'a>) {
        let mut is_negative = false;
        while let Some(sign) = cursor.next_if(|token| token.is_punct(b'-') || token.is_punct(b'+')) {
            is_negative ^= sign.is_punct(b'-');
        }
        let first = cursor.peek();
        let literal = cursor.next_if(|token| token.kind == TokenKind::Number);
        let ends = |token: &Token<'_>| [b',', b'}', b';'].iter().any(|&mark| token.is_punct(mark));
        let is_alone = cursor.peek().is_none_or(|token| ends(&token));
        match literal
            .filter(|_| is_alone)
            .and_then(|token| encode(token.as_str(), is_negative, self.declarator))
        {
            Some((bytes, width)) => self.put(&bytes[..width]),
            None => {
                let symbol = first.map_or("", |token| token.as_str());
                self.symbol.get_or_insert(Cow::Borrowed(symbol));
                self.skip_expression(cursor);
            }
        }
        self.at = self.at.saturating_add(1);
        self.furthest = self.furthest.max(self.at);
    }

    fn skip_expression(&self, cursor: &mut Cursor<'a>) {
        let mut depth = 0_usize;
        while let Some(token) = cursor.peek() {
            if token.is_punct(b'(') {
                depth += 1;
            } else if token.is_punct(b')') {
                depth = depth.saturating_sub(1);
            } else if token.is_punct(b';') || depth == 0 && (token.is_punct(b',') || token.is_punct(b'}')) {
                return;
            }
            cursor.next();
        }
    }

    fn put(&mut self, value: &[u8]) {
        let bytes = value.len() as u64;
        match self.at.checked_mul(bytes).filter(|at| at.checked_add(bytes).is_some()) {
            Some(at) => self.bytes.put(at, value),
            None => drop(self.symbol.get_or_insert(Cow::Borrowed("a place beyond 64 bits"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_in_every_notation() {
        let read = |text| integer(text);
        assert_eq!(
            [read("0x10U"), read("0b11"), read("017"), read("5U"), read("0")],
            [Some(16), Some(3), Some(15), Some(5), Some(0)]
        );
        assert_eq!(read("18446744073709551616"), None);
        assert_eq!(read("1.5"), None);
    }

    #[test]
    fn floats_keep_their_bits() {
        assert_eq!(float("0f3F800000"), Some(1.0));
        assert_eq!(float("0d4000000000000000"), Some(2.0));
        assert_eq!(float("1.5e1"), Some(15.0));
        assert_eq!(float("0fXYZ"), None);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cells of a line.

/// Cells of a line that need no memory from the host; logs have six to twelve.
pub(super) const FEW: usize = 16;
/// Characters that are shown of a text that makes no sense.
const SHOWN: usize = 60;

/// How a line's cells were found.
pub(super) enum Split {
    /// This many, in the array.
    Few(usize),
    /// More than the array holds.
    Many,
    /// Quotes are in the line, so commas alone do not separate the cells.
    Quoted,
    /// A carriage return is in the line.
    CarriageReturn,
}

/// Finds a line's cells, without white space around them. Each byte is looked at once, because a log has millions of short cells.
pub(super) fn split<'a>(line: &'a str, few: &mut [&'a str; FEW]) -> Split {
    let (mut count, mut start) = (0, 0);
    let mut found = Split::Few(0);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b',' => {
                if let Some(place) = few.get_mut(count) {
                    *place = line[start..at].trim();
                }
                (count, start) = (count + 1, at + 1);
            }
            b'"' => found = Split::Quoted,
            b'\r' => return Split::CarriageReturn,
            _ => {}
        }
    }
    match (found, few.get_mut(count)) {
        (Split::Few(_), Some(place)) => {
            *place = line[start..].trim();
            Split::Few(count + 1)
        }
        (Split::Few(_), None) => Split::Many,
        (found, _) => found,
    }
}

/// The cells of a line with quotes in it.
pub(super) fn unquote(line: &str) -> Result<csv::StringRecord, String> {
    // A quote inside a cell is written twice.
    if line.matches('"').count() % 2 == 1 {
        return Err("a quote in it is not closed; no cell of a log goes over several lines".to_owned());
    }
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(line.as_bytes());
    let mut record = csv::StringRecord::new();
    match reader.read_record(&mut record) {
        Ok(true) => Ok(record),
        Ok(false) => Err("it has no columns".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The beginning of a text that makes no sense.
pub(super) fn excerpt(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Line and stream of a live allocation, in one number.

use rustc_hash::FxHashMap;

/// What is noted of a live allocation, in few bytes because millions may be live. From the lowest bit: the line, then the
/// stream's number in [`Streams`].
#[derive(Clone, Copy)]
pub(super) struct Note(pub(super) u64);

impl Note {
    /// Enough for the lines of a log of a terabyte.
    const LINE_BITS: u32 = 40;
    const LAST_LINE: u64 = (1 << Self::LINE_BITS) - 1;

    pub(super) fn new(line: u64, stream: u64) -> Self {
        Self(line.min(Self::LAST_LINE) | stream << Self::LINE_BITS)
    }

    pub(super) fn line(self) -> u64 {
        self.0 & Self::LAST_LINE
    }

    pub(super) fn stream(self) -> u64 {
        self.0 >> Self::LINE_BITS
    }
}

/// The streams that a log names, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    numbers: FxHashMap<u64, u64>,
    names: Vec<u64>,
}

impl Streams {
    /// The number for a row that names no stream.
    const NONE: u64 = (1 << (u64::BITS - Note::LINE_BITS)) - 1;

    /// The number of a stream. After millions of them, further streams get no number.
    pub(super) fn number(&mut self, stream: Option<u64>) -> u64 {
        let Some(stream) = stream else { return Self::NONE };
        let next = self.names.len() as u64;
        if next == Self::NONE {
            return self.numbers.get(&stream).copied().unwrap_or(Self::NONE);
        }
        *self.numbers.entry(stream).or_insert_with(|| {
            self.names.push(stream);
            next
        })
    }

    pub(super) fn of(&self, note: Note) -> Option<u64> {
        self.names.get(note.stream() as usize).copied()
    }
}

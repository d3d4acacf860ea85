// SPDX-License-Identifier: MIT OR Apache-2.0
//! What memory holds by the meaning of the operations alone: the beginning of each allocation, byte by byte.

use super::op::WINDOW;

/// A piece of memory by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Buffer(usize),
    Host(usize),
}

/// An allocation, told from those that have its place later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) place: Place,
    pub(crate) generation: u64,
}

/// The first bytes of an allocation; `None` is a byte that nobody wrote.
pub(crate) type Content = Vec<Option<u8>>;

/// What a piece of work does to memory.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Rows of `width` bytes; a plain copy has one.
    Copy { to: (Place, usize), from: (Place, usize), width: usize, rows: usize, pitches: (usize, usize) },
    /// A pattern of one or four bytes, again and again.
    Fill { to: (Place, usize), pattern: Vec<u8>, bytes: usize },
    /// The word `w` becomes `3 w + value`.
    Twist { to: (Place, usize), value: u32 },
}

impl Effect {
    pub(crate) fn copy(to: (Place, usize), from: (Place, usize), bytes: usize) -> Self {
        Self::Copy { to, from, width: bytes, rows: 1, pitches: (0, 0) }
    }

    /// Does it; `change` lets the content of a place be changed.
    pub(crate) fn apply(&self, mut change: impl FnMut(Place, &mut dyn FnMut(&mut Content))) {
        match self {
            Self::Copy { to, from, width, rows, pitches } => {
                let mut source = Content::new();
                // What lies in an overlap is undefined, and so is all of it here.
                if to.0 != from.0 {
                    change(from.0, &mut |content| source.clone_from(content));
                }
                change(to.0, &mut |target| {
                    for row in 0..*rows {
                        for column in 0..(*width).min(WINDOW) {
                            let byte = source.get(from.1 + row * pitches.1 + column).copied().flatten();
                            set(target, to.1 + row * pitches.0 + column, byte);
                        }
                    }
                });
            }
            Self::Fill { to, pattern, bytes } => change(to.0, &mut |target| {
                for at in 0..(*bytes).min(WINDOW) {
                    set(target, to.1 + at, Some(pattern[at % pattern.len()]));
                }
            }),
            Self::Twist { to, value } => change(to.0, &mut |target| {
                let word: Option<Vec<u8>> =
                    (0..4).map(|at| target.get(to.1 + at).copied().flatten()).collect();
                let word = word.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
                let after = word.map(|word| word.wrapping_mul(3).wrapping_add(*value).to_le_bytes());
                for at in 0..4 {
                    set(target, to.1 + at, after.map(|after| after[at]));
                }
            }),
        }
    }
}

fn set(content: &mut Content, at: usize, byte: Option<u8>) {
    if let Some(there) = content.get_mut(at) {
        *there = byte;
    }
}

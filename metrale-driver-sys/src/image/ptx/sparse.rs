// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SparseBytes`]: bytes at their places, with zeros between that take no memory.

/// Bytes at offsets, and zeros everywhere else.
///
/// Takes as much memory as there are bytes, some 16 more a piece, whatever lies between: a list with gaps can name a place
/// beyond all memory in a few characters.
///
/// ```
/// use metrale_driver_sys::image::ptx::SparseBytes;
///
/// let mut bytes = SparseBytes::from(vec![1, 2]);
/// bytes.put(1 << 40, &[3]);
/// let pieces: Vec<_> = bytes.pieces().collect();
/// assert_eq!(pieces, [(0, &[1, 2][..]), (1 << 40, &[3])]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseBytes {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

/// Bytes that lie together: where, and where they end among all bytes that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    end: usize,
}

/// A gap of as many bytes is cheaper to fill with zeros than to begin a piece for.
const SMALL_GAP: u64 = size_of::<Piece>() as u64;

impl SparseBytes {
    /// Writes bytes at an offset; over earlier ones, too. What would lie beyond 64 bits is left out.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        let space = usize::try_from(u64::MAX - offset).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(space)];
        if bytes.is_empty() {
            return;
        }
        let last = self.pieces.last().map_or(Piece { offset: 0, end: 0 }, |&piece| piece);
        let start = self.pieces.len().checked_sub(2).map_or(0, |before| self.pieces[before].end);
        let behind = last.offset + (last.end - start) as u64;
        match offset.checked_sub(behind) {
            Some(gap) if gap <= SMALL_GAP => {
                // Cannot be cut: it is small.
                self.bytes.resize(self.bytes.len() + gap as usize, 0);
                self.bytes.extend_from_slice(bytes);
                self.pieces.pop();
                self.pieces.push(Piece { offset: last.offset, end: self.bytes.len() });
            }
            _ => {
                self.bytes.extend_from_slice(bytes);
                self.pieces.push(Piece { offset, end: self.bytes.len() });
            }
        }
    }

    /// The pieces in the order they were written, in which a later one may lie over an earlier one.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut start = 0;
        self.pieces.iter().map(move |piece| {
            let bytes = &self.bytes[start..piece.end];
            start = piece.end;
            (piece.offset, bytes)
        })
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of memory that this takes, besides itself.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.bytes.capacity() + self.pieces.capacity() * size_of::<Piece>()
    }
}

impl From<Vec<u8>> for SparseBytes {
    /// All bytes from offset 0 on.
    fn from(bytes: Vec<u8>) -> Self {
        let pieces = if bytes.is_empty() { Vec::new() } else { vec![Piece { offset: 0, end: bytes.len() }] };
        Self { bytes, pieces }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in a band, and what of it was changed.

/// The byte that poisons the bands of a range of allocations: as a float or an index it makes a read past the end show.
pub const POISON: u8 = 0xEE;

/// How bands are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fill {
    /// With this byte throughout. A stray write of the very same byte is not seen.
    Byte(u8),
    /// With bytes that change from one to the next and from band to band. A stray write of one value throughout, such as
    /// zeros or the 0xFF of a NaN, misses at most one byte in 256, and a copy of another band is seen.
    Position,
}

impl Default for Fill {
    fn default() -> Self {
        Self::Byte(238)
    }
}

impl Fill {
    /// What is in the band of the allocation with this creation index.
    #[must_use]
    pub const fn pattern(self, index: u64) -> Pattern {
        match self {
            Self::Byte(byte) => Pattern::byte(byte),
            // A multiplicative hash, so that neighbours in creation differ in more than one.
            Self::Position => {
                Pattern { base: (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8, step: Self::STEP }
            }
        }
    }

    /// Odd, so that 256 bytes in a row are all different; far from 1 and from 255, so that no ramp looks like it.
    const STEP: u8 = 167;
}

/// The bytes of a band: `base + offset × step`, modulo 256. The scan kernel computes the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// The byte at offset 0.
    pub base: u8,
    /// By how much each next byte is larger.
    pub step: u8,
}

impl Pattern {
    /// One byte throughout.
    #[must_use]
    pub const fn byte(byte: u8) -> Self {
        Self { base: byte, step: 0 }
    }

    /// The pattern of a band while the allocations with creation index in `low..high` are poisoned: [`POISON`] for them,
    /// zeros for the rest. A result that changes with the range reads past the end of one inside it.
    #[must_use]
    pub const fn poisoned(index: u64, low: u64, high: u64) -> Self {
        Self::byte(if index >= low && index < high { POISON } else { 0 })
    }

    /// The byte at an offset.
    #[must_use]
    pub const fn at(self, offset: usize) -> u8 {
        // Only the lowest byte of the offset counts.
        self.base.wrapping_add((offset as u8).wrapping_mul(self.step))
    }

    /// The same byte throughout, if it is one: then a memset does.
    #[must_use]
    pub const fn single_byte(self) -> Option<u8> {
        if self.step == 0 { Some(self.base) } else { None }
    }

    /// Writes the pattern over a band.
    pub fn fill(self, band: &mut [u8]) {
        for (offset, byte) in band.iter_mut().enumerate() {
            *byte = self.at(offset);
        }
    }

    /// What of a band is not as the pattern has it; `None` for a clean one.
    ///
    /// ```
    /// use metrale_cuda_backend::redzone::{BandChange, Pattern};
    ///
    /// let mut band = [238; 256];
    /// assert_eq!(Pattern::byte(238).changed(&band), None);
    /// band[4..8].fill(0);
    /// let change = BandChange { first: 4, last: 7, count: 4, value: 0 };
    /// assert_eq!(Pattern::byte(238).changed(&band), Some(change));
    /// ```
    #[must_use]
    pub fn changed(self, band: &[u8]) -> Option<BandChange> {
        let mut changes = band
            .iter()
            .enumerate()
            .filter(|&(offset, &byte)| byte != self.at(offset))
            .map(|(at, &byte)| (at, byte));
        let (first, value) = changes.next()?;
        let (mut last, mut count) = (first, 1);
        for (offset, _) in changes {
            (last, count) = (offset, count + 1);
        }
        Some(BandChange { first, last, count, value })
    }
}

/// What of a band was changed: bytes, not words, for half a word may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BandChange {
    /// The first changed byte, as an offset from the band's start.
    pub first: usize,
    /// The last one.
    pub last: usize,
    /// How many changed; those in between may be as they were.
    pub count: usize,
    /// What is at the first one now.
    pub value: u8,
}

impl BandChange {
    /// The same change, seen from `bytes` bytes further in front.
    #[must_use]
    pub const fn shifted(self, bytes: usize) -> Self {
        Self { first: self.first.saturating_add(bytes), last: self.last.saturating_add(bytes), ..self }
    }

    /// Both changes as one; they are of different parts of a band.
    #[must_use]
    pub const fn joined(self, other: Self) -> Self {
        let front = if self.first <= other.first { self } else { other };
        let last = if self.last >= other.last { self.last } else { other.last };
        Self { first: front.first, last, count: self.count.saturating_add(other.count), value: front.value }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_is_the_contracts_byte() {
        assert_eq!(Fill::default().pattern(7), Pattern::byte(0xEE));
        assert_eq!(Fill::default().pattern(7).single_byte(), Some(238));
        assert_eq!(Fill::Position.pattern(7).single_byte(), None);
    }

    #[test]
    fn poison_marks_the_range_and_nothing_else() {
        for (index, byte) in [(9, 0), (10, 0xEE), (19, 0xEE), (20, 0)] {
            assert_eq!(Pattern::poisoned(index, 10, 20), Pattern::byte(byte), "{index}");
        }
        assert_eq!(Pattern::poisoned(5, 5, 5), Pattern::byte(0));
        assert_eq!(Pattern::poisoned(u64::MAX, 0, u64::MAX), Pattern::byte(0));
    }

    #[test]
    fn a_constant_hides_at_most_one_byte_in_256_of_the_position_pattern() {
        for index in 0..64 {
            let pattern = Fill::Position.pattern(index);
            for value in 0..=255 {
                let hidden = (0..512).filter(|&offset| pattern.at(offset) == value).count();
                assert_eq!(hidden, 2, "{index} {value}");
            }
        }
    }

    #[test]
    fn a_copy_of_the_neighbours_band_is_seen() {
        let mut band = [0; 256];
        for index in 0..1000 {
            Fill::Position.pattern(index + 1).fill(&mut band);
            assert!(Fill::Position.pattern(index).changed(&band).is_some(), "{index}");
        }
    }

    proptest! {
        #[test]
        fn the_summary_is_that_of_the_bytes_that_were_written(
            base: u8, step: u8, bytes in 1..600_usize,
            writes in proptest::collection::vec((0..600_usize, 1..=255_u8), 0..20),
        ) {
            let pattern = Pattern { base, step };
            let mut band = vec![0; bytes];
            pattern.fill(&mut band);
            prop_assert_eq!(pattern.changed(&band), None);
            let mut changed = std::collections::BTreeMap::new();
            for (offset, by) in writes.into_iter().filter(|write| write.0 < bytes) {
                changed.insert(offset, pattern.at(offset).wrapping_add(by));
            }
            for (&offset, &value) in &changed {
                band[offset] = value;
            }
            let expected = changed.first_key_value().map(|(&first, &value)| BandChange {
                first,
                last: *changed.last_key_value().unwrap().0,
                count: changed.len(),
                value,
            });
            prop_assert_eq!(pattern.changed(&band), expected);
        }
    }
}

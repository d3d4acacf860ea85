// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Sieve`]: a look at what is pinned that costs a free one load.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits, as a power of two: a thousand pinned allocations fill a sixteenth of them.
const BITS: u32 = 14;
const WORDS: usize = 1 << (BITS - 6);

/// Base addresses of what is pinned, as bits: a clear bit says that nothing there is, a set one that something may be.
/// Written under the room's lock, read without it.
#[derive(Debug)]
pub(crate) struct Sieve {
    words: [AtomicU64; WORDS],
}

impl Default for Sieve {
    fn default() -> Self {
        Self { words: [const { AtomicU64::new(0) }; WORDS] }
    }
}

/// The word of a base, and its bit there.
const fn place(base: u64) -> (usize, u64) {
    let at = base.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS);
    ((at >> 6) as usize, 1 << (at & 63))
}

impl Sieve {
    /// Whether something with this base may be pinned. One relaxed load: a thread sees its own pins, and another's as soon
    /// as it has heard of them in any way.
    #[inline]
    pub(crate) fn may_hold(&self, base: u64) -> bool {
        let (word, bit) = place(base);
        self.words[word].load(Relaxed) & bit != 0
    }

    /// Notes a base. The lock is held.
    pub(crate) fn add(&self, base: u64) {
        let (word, bit) = place(base);
        let word = &self.words[word];
        word.store(word.load(Relaxed) | bit, Relaxed);
    }

    /// Has these bases and no others. What was noted before and is among them is seen all the while. The lock is held.
    pub(crate) fn set(&self, bases: impl Iterator<Item = u64>) {
        let mut words = [0; WORDS];
        for (word, bit) in bases.map(place) {
            words[word] |= bit;
        }
        self.words.iter().zip(words).for_each(|(word, bits)| word.store(bits, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_never_denied_and_little_else_is_suspected() {
        let sieve = Sieve::default();
        // As a driver gives them: small ones packed, large ones in pages of their own.
        let bases = |from: u64| (0..500).flat_map(move |n| [from + n * 512, (from << 1) + (n << 21)]);
        bases(0x7f00_0000_0000).for_each(|base| sieve.add(base));
        assert!(bases(0x7f00_0000_0000).all(|base| sieve.may_hold(base)));
        let suspected = bases(0x7e00_0000_0000).filter(|&base| sieve.may_hold(base)).count();
        assert!(suspected < 150, "{suspected} of 1000");
        sieve.set([0x7f00_0000_0000].into_iter());
        assert!(sieve.may_hold(0x7f00_0000_0000) && !sieve.may_hold(0x7f00_0000_0200));
        sieve.set(std::iter::empty());
        assert!(!bases(0x7f00_0000_0000).any(|base| sieve.may_hold(base)));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash of the maps inside, and that of tables whose keys come side by side.

use std::hash::{BuildHasherDefault, Hasher};

/// Spreads numbers that count up, and addresses, over the hash's high and low bits.
#[derive(Clone, Copy, Default)]
pub(crate) struct MixHasher(u64);

/// Builds [`MixHasher`]s; the keys are addresses of our own driver and numbers of our own, so no secret is needed.
pub(crate) type Mixer = BuildHasherDefault<MixHasher>;

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// The first place to look for the nth of what mostly comes in stretches, in a table of a power of two of places, or none:
/// neighbours are neighbours there, as long as there are places for all of a stretch. The factor and the shift are those of
/// which entries of one size, whichever of all there are, end up near their homes.
#[inline(always)]
pub(crate) fn home(nth: u64, places: usize) -> usize {
    nth.wrapping_add(43 * (nth >> 7)) as usize & places.wrapping_sub(1)
}

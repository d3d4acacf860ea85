// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandleMap`]: what is known of the driver's handles, found in a few nanoseconds at every launch.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by handle.
pub(crate) type HandleMap<T> = HashMap<u64, T, BuildHasherDefault<HandleHasher>>;

/// Spreads handles over all bits. They are the driver's addresses or numbers, so nobody picks them to collide, and a
/// hash that defends against that would cost a launch as much as all else here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn neighbouring_handles_fall_apart_in_high_and_low_bits() {
        let hash = |handle: u64| BuildHasherDefault::<HandleHasher>::default().hash_one(handle);
        for step in [1, 16, 256, 4096] {
            let hashes: Vec<_> = (1..=1000_u64).map(|n| hash(0x5555_0000_0000 + n * step)).collect();
            for bits in [0, 57] {
                let distinct: HashSet<_> = hashes.iter().map(|hash| hash >> bits & 0x7f).collect();
                assert!(distinct.len() > 100, "{} of 128 at bit {bits}, step {step}", distinct.len());
            }
        }
    }
}

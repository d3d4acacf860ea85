// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`TensorMap`]: the map that a kernel takes.

use metrale_driver_sys::CUtensorMap;

/// An encoded tensor map: 128 opaque bytes, aligned to 64, that a kernel takes by value.
///
/// Encoding and passing it are the only things to do with one. It holds a device address and keeps nothing alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct TensorMap {
    words: [u64; 16],
}

impl TensorMap {
    /// The map that the driver encoded.
    #[must_use]
    pub const fn from_raw(map: CUtensorMap) -> Self {
        Self { words: map.opaque }
    }

    /// The map as the driver's own type, which is aligned to 128 as the headers of CUDA 13 have it.
    #[must_use]
    pub const fn to_raw(self) -> CUtensorMap {
        CUtensorMap { opaque: self.words }
    }
}

impl From<CUtensorMap> for TensorMap {
    fn from(map: CUtensorMap) -> Self {
        Self::from_raw(map)
    }
}

impl From<TensorMap> for CUtensorMap {
    fn from(map: TensorMap) -> Self {
        map.to_raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_128_bytes_aligned_to_64_and_keeps_its_words() {
        assert_eq!((size_of::<TensorMap>(), align_of::<TensorMap>()), (128, 64));
        let raw = CUtensorMap { opaque: core::array::from_fn(|word| word as u64) };
        assert_eq!(CUtensorMap::from(TensorMap::from(raw)).opaque, raw.opaque);
    }
}

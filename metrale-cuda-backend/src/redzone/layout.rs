// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the bands of an allocation lie, and how much the driver is asked for.

use metrale_ledger::ByteSize;

use crate::error::causes;

/// Bands are a multiple of this many bytes, so that most of one is read 16 bytes at a time.
pub const BAND_ALIGN: usize = 16;

/// A front band is a multiple of this many bytes: the driver's addresses are aligned to 512, and the caller's must be too,
/// for kernels rely on at least 256.
pub const FRONT_ALIGN: usize = 512;

/// The largest band, in bytes. The scan kernel counts in 32 bits.
pub const MAX_BAND_BYTES: usize = 1 << 30;

/// Where the bands of one allocation lie. Offsets count from the address the driver returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BandLayout {
    /// What the caller asked for, and what the ledger records.
    pub requested_bytes: usize,
    /// The front band; 0 for none. Also the offset of what the caller gets.
    pub front_bytes: usize,
    /// The band after the caller's bytes, from the very next byte on; 0 for none.
    pub back_bytes: usize,
}

/// A request that, with its bands, is more than an address can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requested_bytes} bytes and red zones of {} do not fit the address space; ask for less",
    ByteSize::of(*pad_bytes)
)]
pub struct TooLargeForBands {
    /// What the caller asked for.
    pub requested_bytes: usize,
    /// What the bands would take.
    pub pad_bytes: usize,
}

causes! { TooLargeForBands: BadArgument }

impl BandLayout {
    /// The layout of a request without bands.
    #[must_use]
    pub const fn bare(requested_bytes: usize) -> Self {
        Self { requested_bytes, front_bytes: 0, back_bytes: 0 }
    }

    /// The layout of a request with a band of `band_bytes` after it, rounded up to [`BAND_ALIGN`], and if `front` one in
    /// front, rounded up to [`FRONT_ALIGN`]. A band of 0 is none.
    ///
    /// ```
    /// use metrale_cuda_backend::redzone::BandLayout;
    ///
    /// let layout = BandLayout::new(1000, 250, true)?;
    /// assert_eq!((layout.front_bytes, layout.back_offset(), layout.back_bytes), (512, 1512, 256));
    /// assert_eq!(layout.total_bytes(), 1768);
    /// # Ok::<(), metrale_cuda_backend::redzone::TooLargeForBands>(())
    /// ```
    ///
    /// # Errors
    /// [`TooLargeForBands`] where the sum, or the driver's rounding of it to 2 MiB, would wrap, or where a band would be
    /// larger than [`MAX_BAND_BYTES`].
    pub const fn new(
        requested_bytes: usize,
        band_bytes: usize,
        front: bool,
    ) -> Result<Self, TooLargeForBands> {
        if band_bytes == 0 {
            return Ok(Self::bare(requested_bytes));
        }
        if band_bytes > MAX_BAND_BYTES {
            return Err(TooLargeForBands { requested_bytes, pad_bytes: band_bytes });
        }
        let back_bytes = band_bytes.next_multiple_of(BAND_ALIGN);
        let front_bytes = if front { band_bytes.next_multiple_of(FRONT_ALIGN) } else { 0 };
        let pad_bytes = back_bytes + front_bytes;
        let layout = Self { requested_bytes, front_bytes, back_bytes };
        match requested_bytes.checked_add(pad_bytes) {
            // Whoever rounds the sum up to whole pages must not wrap either.
            Some(total) if total.checked_next_multiple_of(2 << 20).is_some() => Ok(layout),
            _ => Err(TooLargeForBands { requested_bytes, pad_bytes }),
        }
    }

    /// What the driver is asked for, in bytes.
    #[must_use]
    pub const fn total_bytes(&self) -> usize {
        // Checked when it was made; a layout made by hand ends at the largest number and is refused by the driver.
        self.requested_bytes.saturating_add(self.pad_bytes())
    }

    /// The bytes of both bands, an account's term of its own.
    #[must_use]
    pub const fn pad_bytes(&self) -> usize {
        self.front_bytes.saturating_add(self.back_bytes)
    }

    /// The offset of the band after the caller's bytes.
    #[must_use]
    pub const fn back_offset(&self) -> usize {
        self.front_bytes.saturating_add(self.requested_bytes)
    }

    /// Whether there is any band.
    #[must_use]
    pub const fn has_bands(&self) -> bool {
        self.pad_bytes() > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Fill, Pattern, ScanReport, pattern::BandChange};
    use super::*;

    #[test]
    fn without_a_band_nothing_changes() {
        for front in [false, true] {
            let layout = BandLayout::new(1000, 0, front).unwrap();
            assert_eq!(layout, BandLayout::bare(1000));
            assert_eq!((layout.total_bytes(), layout.pad_bytes(), layout.has_bands()), (1000, 0, false));
        }
        assert_eq!(BandLayout::new(usize::MAX, 0, false).unwrap().total_bytes(), usize::MAX);
    }

    #[test]
    fn bands_round_up_and_the_callers_address_stays_aligned() {
        for (band, back, front) in
            [(1, 16, 512), (16, 16, 512), (17, 32, 512), (512, 512, 512), (513, 528, 1024)]
        {
            let layout = BandLayout::new(360, band, true).unwrap();
            assert_eq!((layout.back_bytes, layout.front_bytes), (back, front), "{band}");
            assert_eq!(BandLayout::new(360, band, false).unwrap().front_bytes, 0);
        }
    }

    /// A driver allocation with a layout in it, on the host.
    struct Played {
        layout: BandLayout,
        pattern: Pattern,
        memory: Vec<u8>,
    }

    impl Played {
        fn new(bytes: usize, band: usize, front: bool, fill: Fill) -> Self {
            let layout = BandLayout::new(bytes, band, front).unwrap();
            let pattern = fill.pattern(1);
            // What lies after it belongs to the neighbour.
            let mut memory = vec![0x55; layout.total_bytes() + 4096];
            pattern.fill(&mut memory[..layout.front_bytes]);
            pattern.fill(&mut memory[layout.back_offset()..layout.total_bytes()]);
            Self { layout, pattern, memory }
        }

        /// Writes at an offset from the address that the caller has.
        fn write(&mut self, offset: isize, bytes: &[u8]) {
            let start = self.layout.front_bytes.checked_add_signed(offset).unwrap();
            self.memory[start..start + bytes.len()].copy_from_slice(bytes);
        }

        fn back(&self) -> Option<BandChange> {
            self.pattern.changed(&self.memory[self.layout.back_offset()..self.layout.total_bytes()])
        }

        fn front(&self) -> Option<BandChange> {
            self.pattern.changed(&self.memory[..self.layout.front_bytes])
        }
    }

    /// The rows of the table; those that are not for the layout say whose they are.
    #[test]
    fn every_situation_of_the_table() {
        let table = include_str!("../../tests/data/redzone_cases.tsv");
        let byte = Fill::default();
        let mut checked = 0;
        for row in table.lines().filter(|line| !line.starts_with('#')) {
            let id = row.split('\t').next().unwrap();
            checked += 1;
            match id {
                // Rounding the grid up to 256 threads writes 653 bytes past 360.
                "z01" => {
                    let mut wide = Played::new(360, 1024, false, byte);
                    wide.write(360, &[7; 653]);
                    assert_eq!(wide.back(), Some(BandChange { first: 0, last: 652, count: 653, value: 7 }));
                    assert_eq!(wide.memory[wide.layout.total_bytes()], 0x55, "the neighbour");
                    // A band of 512 is jumped over: the neighbour is hit too, and the end of the run not known.
                    let mut narrow = Played::new(360, 512, false, byte);
                    narrow.write(360, &[7; 653]);
                    assert_eq!(narrow.back().unwrap().last, 511);
                    assert_eq!(narrow.memory[narrow.layout.total_bytes()], 7);
                }
                // Inside the driver's own rounding, where nothing else faults.
                "z02" => {
                    let mut played = Played::new(4, 256, false, byte);
                    assert!(played.layout.total_bytes() < 512);
                    played.write(4 + 89, &[1]);
                    assert_eq!(played.back(), Some(BandChange { first: 89, last: 89, count: 1, value: 1 }));
                }
                "z04" => {
                    let mut played = Played::new(64, 524_288, true, byte);
                    played.write(522_160 - 524_288, &[9]);
                    let change = BandChange { first: 522_160, last: 522_160, count: 1, value: 9 };
                    assert_eq!((played.front(), played.back()), (Some(change), None));
                    assert!(Played::new(64, 524_288, false, byte).front().is_none(), "no band, nothing seen");
                }
                // Half a word of 0xFF became zero.
                "z05" => {
                    let mut played = Played::new(64, 64, true, Fill::Byte(0xff));
                    played.write(-8, &0xffff_ffff_0000_0000_u64.to_le_bytes());
                    let start = played.layout.front_bytes - 8;
                    let change = BandChange { first: start, last: start + 3, count: 4, value: 0 };
                    assert_eq!(played.front(), Some(change));
                }
                "z07" | "z08" => {
                    let value = if id == "z07" { 0xff } else { 0 };
                    for bytes in 2..256 {
                        let mut hidden = Played::new(360, 256, false, Fill::Byte(value));
                        hidden.write(360, &vec![value; bytes]);
                        assert_eq!(hidden.back(), None);
                        let mut seen = Played::new(360, 256, false, Fill::Position);
                        seen.write(360, &vec![value; bytes]);
                        assert!(seen.back().unwrap().count >= bytes - 1);
                    }
                }
                // Sums and roundings that wrap.
                "z10" | "z11" => {
                    for bytes in [usize::MAX, usize::MAX - 7, usize::MAX - 511, usize::MAX - (2 << 20)] {
                        let error = BandLayout::new(bytes, 256, true).unwrap_err();
                        assert_eq!(error, TooLargeForBands { requested_bytes: bytes, pad_bytes: 768 });
                        assert!(error.to_string().contains(&bytes.to_string()));
                    }
                    for band in [MAX_BAND_BYTES + 1, usize::MAX, usize::MAX - 15] {
                        assert!(BandLayout::new(32, band, true).is_err(), "{band}");
                    }
                    assert!(BandLayout::new(32, MAX_BAND_BYTES, true).is_ok());
                }
                "z25" => {
                    let report = ScanReport { not_checked: 3, ..ScanReport::default() };
                    assert!(!report.is_clean() && report.to_string().contains("3 not checked"), "{report}");
                }
                // The answers to a free: interior pointers, memory of a pool, second frees, a module's globals. Their tests are
                // in tests/allocation.rs, packed_arena.rs and launch.rs.
                "z13" | "z14" | "z16" | "z23" => {}
                // When memory may be freed is the order of streams, and giving it back on an error the allocation's.
                "z17" | "z19" | "z20" => {}
                // The extent of a tensor map, which its own rules hold against the allocation.
                "z22" => {}
                // Memory placed at the end of a page makes a *read* fault; it takes a mapping of its own for each
                // allocation. Here reads are found by poison.
                "z26" => {}
                other => panic!("a row nobody looked at: {other}"),
            }
        }
        assert_eq!(checked, 18);
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_nothing_wraps(requested: usize, shift in 0..64_u32, band: usize, small: bool, front: bool) {
            let requested = requested >> shift;
            let band = if small { band % 100_000 } else { band };
            match BandLayout::new(requested, band, front) {
                Ok(layout) => {
                    prop_assert_eq!(layout.requested_bytes, requested);
                    prop_assert_eq!(layout.front_bytes % FRONT_ALIGN, 0);
                    prop_assert_eq!(layout.back_bytes % BAND_ALIGN, 0);
                    prop_assert!(layout.back_bytes >= band);
                    prop_assert_eq!(layout.has_bands(), band > 0);
                    prop_assert_eq!(layout.front_bytes > 0, front && band > 0);
                    let sum = layout.front_bytes as u128 + requested as u128 + layout.back_bytes as u128;
                    prop_assert_eq!(layout.total_bytes() as u128, sum);
                    prop_assert_eq!(layout.back_offset() + layout.back_bytes, layout.total_bytes());
                }
                Err(_) => prop_assert!(
                    band > MAX_BAND_BYTES || requested as u128 + 2 * band as u128 + (4 << 20) > usize::MAX as u128
                ),
            }
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's mirror of the table of bands that lies in device memory, and the bytes that go between them.
//!
//! The structs of `kernels/redzone.cu` have their sizes here. A slot is a place in both tables; the device's is changed by
//! updates alone, so a scan uploads only what came and went since the last one.

use std::collections::BTreeSet;

use super::{BandChange, Pattern};
use crate::error::causes;

/// The kernels, as PTX made of `kernels/redzone.cu`: `metrale_redzone_check`, `metrale_redzone_fill` and
/// `metrale_redzone_update`, a warp to a band. For every GPU since compute capability 7.0.
pub const KERNELS_PTX: &[u8] = include_bytes!("kernels/redzone.ptx");

/// The kernel that checks: `(table: u64, slots: u32, found: u64, counter: u64, counted: u32, refill: u32)`.
///
/// `found` holds `slots` records of [`BandFound::BYTES`]. The kernel adds 1 to the 32-bit `counter` for each changed
/// band and never resets it: pass what it held before as `counted`, and as many records are there as it has grown by
/// (modulo 2³²), in any order. `refill` other than 0 restores what was changed.
pub const CHECK_KERNEL: &str = "metrale_redzone_check";
/// The kernel that fills bands: `(table: u64, first_slot: u32, slots: u32)`.
pub const FILL_KERNEL: &str = "metrale_redzone_fill";
/// The kernel that changes the table: `(table: u64, updates: u64, count: u32)`, with `count` records of
/// [`BandUpdate::BYTES`], aligned to 16.
pub const UPDATE_KERNEL: &str = "metrale_redzone_update";
/// Threads of a block of each of the kernels: eight warps, so eight bands.
pub const BLOCK_THREADS: u32 = 256;

/// Blocks of [`BLOCK_THREADS`] for so many slots or updates. A launch of none is to be left out.
#[must_use]
pub const fn blocks_for(slots: u32) -> u32 {
    slots.div_ceil(BLOCK_THREADS / 32)
}

/// Where a band lies and what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Band {
    /// The device address of its first byte.
    pub address: u64,
    /// Its bytes; never 0 in a table.
    pub bytes: u32,
    /// What is in it.
    pub pattern: Pattern,
}

causes! { TableFull: NotSupported }

impl Band {
    /// Bytes of a band in the device's table.
    pub const TABLE_BYTES: usize = 16;

    /// The band as the kernels read it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::TABLE_BYTES] {
        let mut entry = [0; Self::TABLE_BYTES];
        entry[0..8].copy_from_slice(&self.address.to_le_bytes());
        entry[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        entry[12] = self.pattern.base;
        entry[13] = self.pattern.step;
        entry
    }

    /// What a free slot holds.
    const FREE: Self = Self { address: 0, bytes: 0, pattern: Pattern::byte(0) };
}

/// A change to one slot of the device's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BandUpdate {
    /// The slot.
    pub slot: u32,
    /// What is in it from now on; a free slot has 0 bytes.
    pub band: Band,
    /// Whether the kernel is to fill the band too.
    pub fill: bool,
}

impl BandUpdate {
    /// Bytes of an update.
    pub const BYTES: usize = 32;

    /// The update as the kernel reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut update = [0; Self::BYTES];
        update[..16].copy_from_slice(&self.band.to_bytes());
        update[16..20].copy_from_slice(&self.slot.to_le_bytes());
        update[20] = u8::from(self.fill);
        update
    }
}

/// A changed band, as the kernel writes it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BandFound {
    /// The slot.
    pub slot: u32,
    /// What changed.
    pub change: BandChange,
}

impl BandFound {
    /// Bytes of a record.
    pub const BYTES: usize = 20;

    /// Reads what the kernel wrote.
    #[must_use]
    pub fn from_bytes(record: [u8; Self::BYTES]) -> Self {
        let [slot, first, last, count, value] = core::array::from_fn(|field| {
            let mut word = [0; 4];
            word.copy_from_slice(&record[field * 4..field * 4 + 4]);
            u32::from_le_bytes(word)
        });
        Self {
            slot,
            change: BandChange {
                first: first as usize,
                last: last as usize,
                count: count as usize,
                value: value as u8,
            },
        }
    }
}

/// All 32-bit slot numbers are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {slots} red zones, more than one scan can number; raise METRALE_REDZONE_MIN_IDX")]
pub struct TableFull {
    /// Slots in use.
    pub slots: usize,
}

/// The host's mirror: bands by slot, each with its owner `T`, free slots used again, and what the device does not know yet.
#[derive(Clone, Debug)]
pub struct BandTable<T> {
    slots: Vec<Option<(Band, T)>>,
    free: Vec<u32>,
    /// Slots that the device's table does not have yet; those in `fill` are to be filled too.
    stale: BTreeSet<u32>,
    fill: BTreeSet<u32>,
    live: usize,
}

impl<T> Default for BandTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> BandTable<T> {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), stale: BTreeSet::new(), fill: BTreeSet::new(), live: 0 }
    }

    /// Puts a band in, and says where. `fill` asks the kernel to fill it with the update; a band has to be filled before
    /// the caller gets its allocation, so pass `false` where a memset did that already.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert(&mut self, band: Band, owner: T, fill: bool) -> Result<u32, TableFull> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => u32::try_from(self.slots.len())
                .ok()
                .filter(|&slot| slot < u32::MAX)
                .ok_or(TableFull { slots: self.slots.len() })?,
        };
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = Some((band, owner)),
            None => self.slots.push(Some((band, owner))),
        }
        self.live += 1;
        self.mark(slot, fill);
        Ok(slot)
    }

    /// Removes a band. The device must be told ([`take_updates`](Self::take_updates)) before the next scan, for the
    /// memory may have another owner by then. `None` for a slot that holds none.
    pub fn remove(&mut self, slot: u32) -> Option<(Band, T)> {
        let taken = self.slots.get_mut(slot as usize)?.take()?;
        self.live -= 1;
        self.free.push(slot);
        self.mark(slot, false);
        Some(taken)
    }

    /// Gives every band the pattern that `pattern` says for its owner, filled anew with the update: how poison is laid.
    pub fn repaint(&mut self, mut pattern: impl FnMut(&T) -> Pattern) {
        for (number, place) in (0..).zip(&mut self.slots) {
            if let Some((band, owner)) = place {
                band.pattern = pattern(owner);
                self.stale.insert(number);
                self.fill.insert(number);
            }
        }
    }

    /// What the device does not know yet, by slot; at most `at_most` of it, each slot once. Afterwards it counts as told.
    #[must_use = "the device's table has to be told"]
    pub fn take_updates(&mut self, at_most: usize) -> Vec<BandUpdate> {
        let slots: Vec<u32> = self.stale.iter().copied().take(at_most).collect();
        slots
            .into_iter()
            .map(|slot| {
                self.stale.remove(&slot);
                let fill = self.fill.remove(&slot);
                let band = self.get(slot).map_or(Band::FREE, |(band, _)| *band);
                BandUpdate { slot, band, fill }
            })
            .collect()
    }

    /// Takes back updates that did not reach the device.
    pub fn return_updates(&mut self, updates: impl IntoIterator<Item = BandUpdate>) {
        for BandUpdate { slot, fill, .. } in updates {
            self.stale.insert(slot);
            // A slot that was freed meanwhile has nothing to fill.
            if fill && self.get(slot).is_some() {
                self.fill.insert(slot);
            }
        }
    }

    /// Makes everything stale, for a device table that is new; the bands are not filled again.
    pub fn forget_device(&mut self) {
        self.stale.extend((0..).zip(&self.slots).map(|(slot, _)| slot));
    }

    /// The band and owner of a slot.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<&(Band, T)> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// All bands with their slots, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Band, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(slot, place)| place.as_ref().map(|(band, owner)| (slot, band, owner)))
    }

    /// Slots that a scan has to look at, free ones included.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Bands in the table.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Whether there is no band.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Changes that the device does not know yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.stale.len()
    }

    fn mark(&mut self, slot: u32, fill: bool) {
        self.stale.insert(slot);
        if fill {
            self.fill.insert(slot);
        } else {
            self.fill.remove(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use metrale_driver_sys::image::ImageKind;
    use metrale_driver_sys::image::ptx::Ptx;
    use proptest::prelude::*;

    use super::*;

    fn band(address: u64) -> Band {
        Band { address, bytes: 256, pattern: Pattern::byte(238) }
    }

    #[test]
    fn slots_are_used_again_and_the_device_is_told_the_last_word_only() {
        let mut table = BandTable::new();
        let (a, b) =
            (table.insert(band(0x200), "a", true).unwrap(), table.insert(band(0x400), "b", false).unwrap());
        assert_eq!((a, b, table.pending()), (0, 1, 2));
        assert_eq!(
            table.take_updates(10),
            [
                BandUpdate { slot: 0, band: band(0x200), fill: true },
                BandUpdate { slot: 1, band: band(0x400), fill: false },
            ]
        );
        assert_eq!(table.take_updates(10), []);
        assert_eq!(table.remove(a), Some((band(0x200), "a")));
        assert_eq!((table.remove(a), table.remove(99)), (None, None));
        assert_eq!(table.insert(band(0x600), "c", true), Ok(a));
        assert_eq!(table.take_updates(10), [BandUpdate { slot: 0, band: band(0x600), fill: true }]);
        table.remove(a);
        let freed = &table.take_updates(10)[0];
        assert_eq!((freed.slot, freed.band.bytes, freed.fill), (0, 0, false));
        assert_eq!((table.len(), table.slots(), table.is_empty()), (1, 2, false));
    }

    #[test]
    fn updates_come_in_portions() {
        let mut table = BandTable::new();
        for number in 0..5 {
            table.insert(band(number * 0x200), number, false).unwrap();
        }
        assert_eq!(table.take_updates(3).len(), 3);
        assert_eq!(table.take_updates(0).len(), 0);
        assert_eq!(table.take_updates(3).iter().map(|update| update.slot).collect::<Vec<_>>(), [3, 4]);
        table.forget_device();
        assert_eq!(table.pending(), 5);
        assert!(table.take_updates(9).iter().all(|update| !update.fill));
    }

    #[test]
    fn updates_that_did_not_arrive_come_again() {
        let mut table = BandTable::new();
        let (a, b) =
            (table.insert(band(0x200), 1, true).unwrap(), table.insert(band(0x400), 2, true).unwrap());
        let lost = table.take_updates(9);
        table.remove(b);
        let _ = table.take_updates(9);
        table.return_updates(lost);
        let again = table.take_updates(9);
        assert_eq!(
            again.iter().map(|update| (update.slot, update.fill)).collect::<Vec<_>>(),
            [(a, true), (b, false)]
        );
        assert_eq!(again[1].band.bytes, 0);
    }

    #[test]
    fn poison_repaints_every_band() {
        let mut table = BandTable::new();
        for index in 0..4_u64 {
            table.insert(band(index << 9), index, false).unwrap();
        }
        table.remove(3);
        let _ = table.take_updates(9);
        table.repaint(|&index| Pattern::poisoned(index, 1, 2));
        let updates = table.take_updates(9);
        assert!(updates.iter().all(|update| update.fill));
        let bytes: Vec<u8> = updates.iter().map(|update| update.band.pattern.base).collect();
        assert_eq!(bytes, [0, 0xEE, 0]);
    }

    /// The layouts that the kernel's own file asserts.
    #[test]
    fn the_bytes_are_those_of_the_kernels_structs() {
        let band = Band {
            address: 0x1122_3344_5566_7788,
            bytes: 0x0a0b_0c0d,
            pattern: Pattern { base: 0xEE, step: 167 },
        };
        let entry = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x0d, 0x0c, 0x0b, 0x0a, 0xEE, 167, 0, 0];
        assert_eq!(band.to_bytes(), entry);
        let update = BandUpdate { slot: 0x0102, band, fill: true }.to_bytes();
        assert_eq!(update[..16], entry);
        assert_eq!(update[16..], [2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut record = [0; BandFound::BYTES];
        for (field, word) in [3_u32, 5, 900, 17, 0xEE].into_iter().enumerate() {
            record[field * 4..field * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        let change = BandChange { first: 5, last: 900, count: 17, value: 0xEE };
        assert_eq!(BandFound::from_bytes(record), BandFound { slot: 3, change });
    }

    #[test]
    fn the_kernels_are_ptx_that_every_driver_since_cuda_9_takes() {
        assert_eq!(ImageKind::of(KERNELS_PTX), ImageKind::Ptx);
        let ptx = Ptx::read(KERNELS_PTX);
        assert!(ptx.flaws.is_empty(), "{:?}", ptx.flaws);
        assert_eq!(ptx.header.target().map(|target| target.to_string()).as_deref(), Some("sm_70"));
        assert_eq!(ptx.header.version.map(|version| version.to_string()).as_deref(), Some("6.0"));
        let entries: Vec<(&str, usize)> =
            ptx.entries().map(|entry| (entry.name, entry.parameters.len())).collect();
        assert_eq!(entries, [(CHECK_KERNEL, 6), (FILL_KERNEL, 3), (UPDATE_KERNEL, 3)]);
        assert_eq!((blocks_for(0), blocks_for(1), blocks_for(8), blocks_for(9)), (0, 1, 1, 2));
        assert_eq!((blocks_for(25_000), blocks_for(u32::MAX)), (3125, 1 << 29));
    }

    proptest! {
        /// A device's table kept by the updates alone equals the mirror, whatever came and went, in whatever portions.
        #[test]
        fn the_device_follows(steps in proptest::collection::vec((0..4_u8, any::<u16>()), 0..80)) {
            let mut table = BandTable::new();
            let mut device: Vec<Band> = Vec::new();
            let mut live: Vec<u32> = Vec::new();
            let mut tell = |updates: Vec<BandUpdate>| {
                for BandUpdate { slot, band, .. } in updates {
                    let slot = slot as usize;
                    if device.len() <= slot {
                        device.resize(slot + 1, Band::FREE);
                    }
                    device[slot] = band;
                }
            };
            for (step, number) in steps {
                match step {
                    0 | 1 => live.push(table.insert(band(u64::from(number) << 9), number, false).unwrap()),
                    2 if !live.is_empty() => {
                        let slot = live.swap_remove(usize::from(number) % live.len());
                        prop_assert!(table.remove(slot).is_some());
                    }
                    _ => tell(table.take_updates(usize::from(number % 7))),
                }
                prop_assert_eq!(table.len(), live.len());
            }
            tell(table.take_updates(usize::MAX));
            let kept: Vec<(u32, Band)> =
                (0..).zip(device).filter(|(_, band)| band.bytes > 0).collect();
            let mirrored: Vec<(u32, Band)> = table.iter().map(|(slot, band, _)| (slot, *band)).collect();
            prop_assert_eq!(kept, mirrored);
        }
    }
}

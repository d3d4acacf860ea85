// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a context's streams take: places in chunks that are kept until there is no more memory.

use std::collections::BTreeSet;

/// What the pool grows by.
const CHUNK_BYTES: u64 = 2 << 20;
/// Streams that a chunk holds. The first place of a context needs none; each further device that the process sees takes a
/// place too, once there are streams.
const PER_CHUNK: u64 = 4;
/// From this place on the pool has one chunk more: 35 took 18 MiB, 36 took 20.
const PLACE_BEYOND: u64 = 36;
/// The number that chunk has here.
const CHUNK_BEYOND: u64 = u64::MAX;

/// The chunks of one context's streams.
pub(super) struct StreamPool {
    /// Places that streams have, from 1.
    places: BTreeSet<u64>,
    /// Chunks that are held.
    chunks: BTreeSet<u64>,
    /// Places that other devices take.
    other_devices: u64,
}

impl StreamPool {
    pub(super) fn new(other_devices: u64) -> Self {
        Self { places: BTreeSet::new(), chunks: BTreeSet::new(), other_devices }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES
    }

    /// The place that a new stream gets, and what the pool grows by for it. Modelled: the lowest that needs no chunk, else
    /// the lowest.
    pub(super) fn next(&self) -> (u64, u64) {
        let mut free = (self.other_devices + 1..).filter(|place| !self.places.contains(place));
        let lowest = free.next().unwrap_or(u64::MAX);
        let most = self.places.last().copied().unwrap_or_default();
        let held = core::iter::once(lowest).chain(free.take_while(|&place| place <= most + PER_CHUNK));
        let place = held.into_iter().find(|&place| self.growth(place) == 0).unwrap_or(lowest);
        (place, self.growth(place) * CHUNK_BYTES)
    }

    /// Sees that the pool has what `place` needs.
    pub(super) fn reserve(&mut self, place: u64) {
        self.chunks.extend(chunks_of(place, self.other_devices));
    }

    pub(super) fn open(&mut self, place: u64) {
        self.reserve(place);
        self.places.insert(place);
    }

    /// What the stream used stays for later ones.
    pub(super) fn close(&mut self, place: u64) {
        self.places.remove(&place);
    }

    /// Gives back the chunks that no stream has a place in.
    pub(super) fn trim(&mut self) {
        self.chunks = self.places.iter().flat_map(|&place| chunks_of(place, self.other_devices)).collect();
    }

    fn growth(&self, place: u64) -> u64 {
        chunks_of(place, self.other_devices).filter(|chunk| !self.chunks.contains(chunk)).count() as u64
    }
}

/// The chunks that a stream at `place` needs, those of the other devices' places among them.
fn chunks_of(place: u64, other_devices: u64) -> impl Iterator<Item = u64> {
    let of = |place: u64| place.checked_sub(2).map(|place| place / PER_CHUNK);
    let others = of(other_devices).map_or(0..0, |last| 0..last + 1);
    others
        .chain(of(place))
        .chain((place >= PLACE_BEYOND).then_some(CHUNK_BEYOND))
        .collect::<BTreeSet<_>>()
        .into_iter()
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's stream-ordered memory pool (`cuMemAllocAsync`) as a pure model: where an allocation lands in the pool's
//! range, and what the pool keeps reserved.
//!
//! ```
//! use metrale_ledger::placement::pool::{Pool, PoolRule};
//!
//! let mut pool = Pool::new(PoolRule::H200);
//! let stream = 1;
//! let weight = pool.alloc(stream, 40 << 20)?;
//! let bias = pool.alloc(stream, 1000)?;
//! assert_eq!(bias.offset_bytes, 40 << 20);
//! // Two pieces of 32 MiB for the first; the second lies in the second of them.
//! assert_eq!((weight.new_bytes, bias.new_bytes), (64 << 20, 0));
//! pool.free(stream, weight.id)?;
//! assert_eq!((pool.used_bytes(), pool.reserved_bytes()), (1000, 64 << 20));
//! // The release threshold is 0: a synchronise gives back the piece that nothing touches.
//! pool.synchronize(stream);
//! assert_eq!(pool.reserved_bytes(), 32 << 20);
//! # Ok::<(), metrale_ledger::placement::PlacementError>(())
//! ```

mod holes;
mod pieces;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use holes::{Hole, Holes};
use pieces::IdlePieces;

use super::{PlacementError, PlacementId};

/// The numbers of the pool's rule; the rule itself is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolRule {
    piece_bytes: u64,
    granularity_bytes: u64,
}

impl PoolRule {
    /// What an H200 does: pieces of 32 MiB, sizes rounded up to 512 bytes.
    pub const H200: Self = Self { piece_bytes: 32 << 20, granularity_bytes: 512 };

    /// A rule with pieces of `piece_bytes`, and sizes rounded up to `granularity_bytes`.
    ///
    /// # Errors
    /// [`PlacementError::BadRule`] unless the piece is a multiple of a granularity above 0.
    pub const fn new(piece_bytes: u64, granularity_bytes: u64) -> Result<Self, PlacementError> {
        if piece_bytes > 0 && piece_bytes.is_multiple_of(granularity_bytes) {
            return Ok(Self { piece_bytes, granularity_bytes });
        }
        Err(PlacementError::BadRule { chunk_bytes: piece_bytes, granularity_bytes, page_bytes: piece_bytes })
    }

    /// Bytes of a piece, the unit in which physical memory is mapped.
    pub const fn piece_bytes(self) -> u64 {
        self.piece_bytes
    }

    /// Bytes that every size is rounded up to.
    pub const fn granularity_bytes(self) -> u64 {
        self.granularity_bytes
    }

    /// `bytes` rounded up as the pool keeps them.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`] for 0, [`PlacementError::TooLarge`] when the rounded size passes `u64::MAX`.
    pub const fn rounded_bytes(self, bytes: u64) -> Result<u64, PlacementError> {
        if bytes == 0 {
            return Err(PlacementError::ZeroBytes);
        }
        match bytes.checked_next_multiple_of(self.granularity_bytes) {
            Some(rounded) => Ok(rounded),
            None => Err(PlacementError::TooLarge { bytes }),
        }
    }

    /// Pieces that the range touches.
    fn touched(self, start: u64, end: u64) -> Range<u64> {
        start / self.piece_bytes..end.div_ceil(self.piece_bytes)
    }

    /// Pieces that lie inside the range as a whole.
    fn inside(self, start: u64, end: u64) -> Range<u64> {
        let first = start.div_ceil(self.piece_bytes);
        first..first.max(end / self.piece_bytes)
    }
}

impl Default for PoolRule {
    fn default() -> Self {
        Self::H200
    }
}

/// Where an allocation landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlaced {
    /// What [`Pool::free`] takes.
    pub id: PlacementId,
    /// Its start in the pool's range, in bytes.
    pub offset_bytes: u64,
    /// What the pool keeps for it: the size rounded up, in bytes.
    pub rounded_bytes: u64,
    /// Physical memory newly taken from the device for it, in bytes: 0 when it landed in, or moved, what the pool held.
    pub new_bytes: u64,
}

/// What lies at a place, while it is live.
#[derive(Clone, Copy)]
struct Slot {
    start: u64,
    rounded: u64,
    /// As asked for; 0 where nothing is live.
    bytes: u64,
    generation: u32,
}

/// Where the next allocation goes.
#[derive(Clone, Copy)]
enum Place {
    /// A hole that frees of this stream left, not settled yet.
    Pending(Hole),
    Hole(Hole),
    /// The end of the range.
    FreeEnd,
}

/// A pool and what lies in it. Operations cost O(log n) in the number of holes and pending frees.
#[derive(Clone)]
pub struct Pool {
    rule: PoolRule,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// By stream: what was freed there and is not settled.
    pending: BTreeMap<u64, Holes>,
    /// No two are neighbours, and none ends at the end of the range.
    holes: Holes,
    /// End of the range: nothing lies behind it.
    end: u64,
    next_age: u64,
    /// Mapped pieces that nothing live or pending touches. Each lies inside a hole or behind the end of the range.
    idle: IdlePieces,
    mapped_pieces: u64,
    release_threshold: u64,
    live_count: usize,
    used: u64,
    used_high: u64,
    reserved_high: u64,
}

impl Pool {
    /// An empty pool under `rule`, with a release threshold of 0.
    pub fn new(rule: PoolRule) -> Self {
        Self {
            rule,
            slots: Vec::new(),
            vacant: Vec::new(),
            pending: BTreeMap::new(),
            holes: Holes::default(),
            end: 0,
            next_age: 0,
            idle: IdlePieces::default(),
            mapped_pieces: 0,
            release_threshold: 0,
            live_count: 0,
            used: 0,
            used_high: 0,
            reserved_high: 0,
        }
    }

    /// The rule's numbers.
    pub fn rule(&self) -> PoolRule {
        self.rule
    }

    /// Places `bytes` in the order of `stream`.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`], [`PlacementError::TooManyBlocks`]. Nothing is placed
    /// then; pending frees may have been settled.
    pub fn alloc(&mut self, stream: u64, bytes: u64) -> Result<PoolPlaced, PlacementError> {
        let rounded = self.rule.rounded_bytes(bytes)?;
        if self.vacant.is_empty() && self.slots.len() >= u32::MAX as usize {
            return Err(PlacementError::TooManyBlocks);
        }
        let place = self.find(stream, rounded);
        let entered = self.entered(place, bytes, rounded)?;
        let new_pieces = self.new_pieces(&entered);
        let start = self.occupy(stream, place, rounded, entered);
        self.reserved_high = self.reserved_high.max(self.reserved_bytes());
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.live_count += 1;
        Ok(PoolPlaced {
            id: self.keep(start, rounded, bytes),
            offset_bytes: start,
            rounded_bytes: rounded,
            new_bytes: new_pieces * self.rule.piece_bytes,
        })
    }

    /// Bytes of physical memory that [`alloc`](Self::alloc) of `bytes` on `stream` would newly take now, so that out of
    /// memory can be told beforehand. Settles pending frees where `alloc` would, so the `alloc` that follows lands where it
    /// would have landed without this.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`].
    pub fn would_take(&mut self, stream: u64, bytes: u64) -> Result<u64, PlacementError> {
        let rounded = self.rule.rounded_bytes(bytes)?;
        let place = self.find(stream, rounded);
        let entered = self.entered(place, bytes, rounded)?;
        Ok(self.new_pieces(&entered) * self.rule.piece_bytes)
    }

    /// Takes a placed allocation away, in the order of `stream`. The space is pending until a synchronise or an allocation
    /// settles it.
    ///
    /// # Errors
    /// [`PlacementError::NotLive`] for an id that was freed before or is not of this pool; nothing changes then.
    pub fn free(&mut self, stream: u64, id: PlacementId) -> Result<(), PlacementError> {
        let slot = self.slots.get_mut(id.slot as usize);
        let Some(slot) = slot.filter(|slot| slot.generation == id.generation && slot.bytes > 0) else {
            return Err(PlacementError::NotLive { id });
        };
        let Slot { start, rounded, bytes, .. } = *slot;
        slot.bytes = 0;
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant.push(id.slot);
        self.live_count -= 1;
        self.used -= bytes;
        let age = self.age();
        let pending = self.pending.entry(stream).or_default();
        let left = pending.remove_ending_at(start);
        let right = pending.remove(start + rounded);
        let start = left.map_or(start, |hole| hole.start);
        let bytes = [left, right].into_iter().flatten().fold(rounded, |sum, hole| sum + hole.bytes);
        pending.insert(Hole { start, bytes, age, mapped: true });
        Ok(())
    }

    /// The stream is synchronised: what was freed on it is settled, and pieces that nothing touches are given back down to
    /// the release threshold.
    pub fn synchronize(&mut self, stream: u64) {
        if let Some(pending) = self.pending.remove(&stream) {
            self.settle(pending);
        }
        self.trim_to(self.release_threshold);
    }

    /// The context is synchronised: as [`synchronize`](Self::synchronize) of every stream.
    pub fn synchronize_all(&mut self) {
        self.settle_all();
        self.trim_to(self.release_threshold);
    }

    /// Sets what a synchronise leaves reserved, in bytes; `u64::MAX` for all.
    pub fn set_release_threshold(&mut self, bytes: u64) {
        self.release_threshold = bytes;
    }

    /// What a synchronise leaves reserved, in bytes.
    pub fn release_threshold(&self) -> u64 {
        self.release_threshold
    }

    /// Gives back pieces that nothing touches, the highest first, while more than `min_bytes` are reserved (`cuMemPoolTrimTo`).
    pub fn trim_to(&mut self, min_bytes: u64) {
        let excess = self.mapped_pieces.saturating_sub(min_bytes.div_ceil(self.rule.piece_bytes));
        self.mapped_pieces -= self.unmap_highest(excess);
    }

    /// Bytes of all live allocations, as asked for.
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Bytes of physical memory that the pool holds.
    pub fn reserved_bytes(&self) -> u64 {
        self.mapped_pieces * self.rule.piece_bytes
    }

    /// The highest [`used_bytes`](Self::used_bytes) since the last reset.
    pub fn used_high_bytes(&self) -> u64 {
        self.used_high
    }

    /// The highest [`reserved_bytes`](Self::reserved_bytes) since the last reset.
    pub fn reserved_high_bytes(&self) -> u64 {
        self.reserved_high
    }

    /// Sets the high-water mark of used bytes to what is used now.
    pub fn reset_used_high(&mut self) {
        self.used_high = self.used;
    }

    /// Sets the high-water mark of reserved bytes to what is reserved now.
    pub fn reset_reserved_high(&mut self) {
        self.reserved_high = self.reserved_bytes();
    }

    /// The bytes of a live allocation as they were asked for; none where the id names nothing live.
    pub fn bytes_of(&self, id: PlacementId) -> Option<u64> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        (slot.bytes > 0).then_some(slot.bytes)
    }

    /// Bytes of host memory that the model takes, by what its tables have room for.
    pub fn memory_bytes(&self) -> usize {
        let pending: usize = self.pending.values().map(Holes::memory_bytes).sum();
        size_of::<Slot>() * self.slots.capacity()
            + size_of::<u32>() * self.vacant.capacity()
            + self.holes.memory_bytes()
            + pending
            + self.idle.memory_bytes()
    }

    /// Allocations placed and not freed.
    pub fn live_count(&self) -> usize {
        self.live_count
    }

    /// Finds the place; pending frees are settled where no mapped hole fits.
    fn find(&mut self, stream: u64, rounded: u64) -> Place {
        if let Some(hole) = self.pending.get(&stream).and_then(|holes| holes.best_mapped(rounded)) {
            return Place::Pending(hole);
        }
        if let Some(hole) = self.holes.best_mapped(rounded) {
            return Place::Hole(hole);
        }
        self.settle_all();
        self.holes.best(rounded).map_or(Place::FreeEnd, Place::Hole)
    }

    /// Of the pieces that an allocation at the place would touch those that nothing touches yet.
    ///
    /// # Errors
    /// [`PlacementError::TooLarge`] where its last piece would end past 64 bits. Otherwise no offset and no sum of pieces does.
    fn entered(&self, place: Place, bytes: u64, rounded: u64) -> Result<Range<u64>, PlacementError> {
        let (start, room) = match place {
            Place::Pending(_) => return Ok(0..0),
            Place::Hole(hole) => (hole.start, hole.end() / self.rule.piece_bytes),
            Place::FreeEnd => (self.end, u64::MAX),
        };
        let end = start.checked_add(rounded);
        let end = end.and_then(|end| end.checked_next_multiple_of(self.rule.piece_bytes));
        let end = end.ok_or(PlacementError::TooLarge { bytes })? / self.rule.piece_bytes;
        let first = start.div_ceil(self.rule.piece_bytes);
        Ok(first..first.max(end.min(room)))
    }

    /// How many pieces must be new: the idle ones are used first, where they lie or moved.
    fn new_pieces(&self, entered: &Range<u64>) -> u64 {
        (entered.end - entered.start).saturating_sub(self.idle.count())
    }

    /// Takes the space at the place and maps the pieces entered, of which as many as that are new. Returns the start.
    fn occupy(&mut self, stream: u64, place: Place, rounded: u64, entered: Range<u64>) -> u64 {
        let pieces = entered.end - entered.start;
        self.mapped_pieces += self.new_pieces(&entered);
        let missing = pieces - self.idle.remove(entered);
        self.unmap_highest(missing);
        let age = self.age();
        match place {
            Place::Pending(hole) => {
                if let Some(pending) = self.pending.get_mut(&stream) {
                    pending.remove(hole.start);
                    if let Some(rest) = hole.rest(rounded, age) {
                        pending.insert(rest);
                    }
                }
                hole.start
            }
            Place::Hole(hole) => {
                self.holes.remove(hole.start);
                if let Some(rest) = hole.rest(rounded, age) {
                    self.insert_hole(rest);
                }
                hole.start
            }
            Place::FreeEnd => {
                let start = self.end;
                self.end += rounded;
                start
            }
        }
    }

    fn settle_all(&mut self) {
        for pending in std::mem::take(&mut self.pending).into_values() {
            self.settle(pending);
        }
    }

    /// Makes holes of pending frees, the youngest first. Pieces that nothing touches any more become idle.
    fn settle(&mut self, pending: Holes) {
        for freed in pending.into_youngest_first() {
            let left = self.holes.remove_ending_at(freed.start);
            let right = self.holes.remove(freed.end());
            let start = left.map_or(freed.start, |hole| hole.start);
            let end = right.map_or(freed.end(), Hole::end);
            let touched = self.rule.touched(freed.start, freed.end());
            let at_end = end == self.end;
            let inside = self.rule.inside(start, if at_end { u64::MAX } else { end });
            let first = touched.start.max(inside.start);
            self.idle.insert(first..touched.end.min(inside.end));
            if at_end {
                self.end = start;
            } else {
                let age = self.age();
                self.insert_hole(Hole { start, bytes: end - start, age, mapped: true });
            }
        }
    }

    /// Lists a hole, mapped where each piece inside it is idle: those at its edges hold its neighbours.
    fn insert_hole(&mut self, hole: Hole) {
        let mapped = self.idle.contains(&self.rule.inside(hole.start, hole.end()));
        self.holes.insert(Hole { mapped, ..hole });
    }

    /// Unmaps up to so many idle pieces, the highest first, and returns how many.
    fn unmap_highest(&mut self, at_most: u64) -> u64 {
        let mut left = at_most;
        while left > 0
            && let Some(run) = self.idle.remove_highest(left)
        {
            left -= run.end - run.start;
            // A run lies inside one hole or behind the end: between two holes is a piece that is not idle.
            self.holes.unmap(run.start * self.rule.piece_bytes);
        }
        at_most - left
    }

    fn age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age
    }

    fn keep(&mut self, start: u64, rounded: u64, bytes: u64) -> PlacementId {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { start: 0, rounded: 0, bytes: 0, generation: 0 });
            (self.slots.len() - 1) as u32
        });
        let kept = &mut self.slots[slot as usize];
        *kept = Slot { start, rounded, bytes, generation: kept.generation };
        PlacementId { slot, generation: kept.generation }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("rule", &self.rule)
            .field("live_count", &self.live_count)
            .field("used_bytes", &self.used)
            .field("reserved_bytes", &self.reserved_bytes())
            .field("holes", &self.holes.len())
            .finish_non_exhaustive()
    }
}

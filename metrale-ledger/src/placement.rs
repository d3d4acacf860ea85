// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's packing rule as a pure model: where an allocation lands in its page, and what the device keeps for it.
//!
//! Measured on an H200 (driver 580.159.04) and held to the driver's own figures after every operation:
//!
//! - a size is rounded up to the granularity (512 bytes);
//! - what then fills a chunk (2 MiB) or more takes whole pages of its own;
//! - a smaller one goes into the **smallest hole** that fits, the **oldest** among holes of one size, at the hole's
//!   **start**; a hole's age counts from the moment it got its present extent, so the rest of a split and the union of a
//!   merge are new holes;
//! - neighbouring holes of a chunk merge on free; a new chunk is taken only when no hole fits; a chunk goes back the
//!   moment it is empty.
//!
//! ```
//! use metrale_ledger::placement::Placement;
//!
//! let mut device = Placement::h200();
//! let bias = device.alloc(4096)?;
//! let scale = device.alloc(100)?;
//! let weight = device.alloc(5_000_000)?;
//! assert_eq!((scale.chunk, scale.offset_bytes), (bias.chunk, 4096));
//! assert_eq!(weight.pages, 3);
//! assert_eq!(device.resident_bytes(), (1 + 3) * 2 * 1024 * 1024);
//! device.free(weight.id)?;
//! assert_eq!(device.resident_bytes(), 2 * 1024 * 1024);
//! # Ok::<(), metrale_ledger::placement::PlacementError>(())
//! ```

pub(crate) mod chunk_slack;
mod filling;
pub mod pool;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use filling::Filling;

use crate::text::counted;

/// The numbers of the packing rule; the rule itself is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackingRule {
    chunk_bytes: u64,
    granularity_bytes: u64,
    page_bytes: u64,
}

impl PackingRule {
    /// What an H200 does: chunks (and pages) of 2 MiB, sizes rounded up to 512 bytes.
    pub const H200: Self = Self {
        chunk_bytes: crate::SMALL_ALLOC_CHUNK,
        granularity_bytes: 512,
        page_bytes: crate::SMALL_ALLOC_CHUNK,
    };

    /// A rule with chunks of `chunk_bytes`, each of them one page, and sizes rounded up to `granularity_bytes`.
    ///
    /// # Errors
    /// [`PlacementError::BadRule`] unless the chunk is a multiple of a granularity above 0.
    pub const fn new(chunk_bytes: u64, granularity_bytes: u64) -> Result<Self, PlacementError> {
        Self { chunk_bytes, granularity_bytes, page_bytes: chunk_bytes }.checked()
    }

    /// The same rule with pages of `page_bytes` bytes: a size of a chunk or more is rounded up to whole pages.
    ///
    /// # Errors
    /// [`PlacementError::BadRule`] unless the chunk is a multiple of the page, and the page of the granularity.
    pub const fn with_page_bytes(self, page_bytes: u64) -> Result<Self, PlacementError> {
        Self { page_bytes, ..self }.checked()
    }

    const fn checked(self) -> Result<Self, PlacementError> {
        let Self { chunk_bytes, granularity_bytes, page_bytes } = self;
        // No number but 0 is a multiple of 0.
        if chunk_bytes > 0
            && chunk_bytes.is_multiple_of(page_bytes)
            && page_bytes.is_multiple_of(granularity_bytes)
        {
            return Ok(self);
        }
        Err(PlacementError::BadRule { chunk_bytes, granularity_bytes, page_bytes })
    }

    /// Bytes of a chunk, which small allocations share.
    pub const fn chunk_bytes(self) -> u64 {
        self.chunk_bytes
    }

    /// Bytes of a page. Large allocations are rounded up to whole pages.
    pub const fn page_bytes(self) -> u64 {
        self.page_bytes
    }

    /// Bytes that every size is rounded up to.
    pub const fn granularity_bytes(self) -> u64 {
        self.granularity_bytes
    }

    /// `bytes` rounded up as the rule keeps them: to the granularity, or to whole pages for what fills a chunk.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`] for 0, [`PlacementError::TooLarge`] when the rounded size passes `u64::MAX`.
    pub const fn reserved_bytes(self, bytes: u64) -> Result<u64, PlacementError> {
        if bytes == 0 {
            return Err(PlacementError::ZeroBytes);
        }
        let Some(rounded) = bytes.checked_next_multiple_of(self.granularity_bytes) else {
            return Err(PlacementError::TooLarge { bytes });
        };
        if rounded < self.chunk_bytes {
            return Ok(rounded);
        }
        match rounded.checked_next_multiple_of(self.page_bytes) {
            Some(whole) => Ok(whole),
            None => Err(PlacementError::TooLarge { bytes }),
        }
    }
}

impl Default for PackingRule {
    fn default() -> Self {
        Self::H200
    }
}

/// One run of pages taken from the device: a chunk shared by small allocations, or the pages of one large allocation.
///
/// Ids count up from 0 in the order in which runs are taken and are never used again, so a driver model may map them to
/// addresses as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

/// Names one placed allocation until it is freed. A stale id is recognized, not confused with a later allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlacementId {
    slot: u32,
    generation: u32,
}

/// Where an allocation landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What [`Placement::free`] takes.
    pub id: PlacementId,
    /// The run of pages it lies in.
    pub chunk: ChunkId,
    /// Its start inside that run, in bytes; 0 for a large allocation.
    pub offset_bytes: u64,
    /// What the rule keeps for it: the size rounded up, in bytes.
    pub reserved_bytes: u64,
    /// Pages of the run it lies in: those of a chunk (1 on an H200) for a small allocation.
    pub pages: u64,
    /// Pages newly taken from the device for it: 0 when a hole was found.
    pub new_pages: u64,
}

/// What a free gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The run of pages the allocation lay in.
    pub chunk: ChunkId,
    /// Its start inside that run, in bytes.
    pub offset_bytes: u64,
    /// What the rule kept for it, in bytes.
    pub reserved_bytes: u64,
    /// Pages given back to the device: 0 while others still lie in the chunk, else the whole run, whose id is then not used again.
    pub freed_pages: u64,
}

/// Why the model refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacementError {
    /// An allocation of no bytes, which the driver refuses too.
    ZeroBytes,
    /// The rounded size, or the resident total with it, passes `u64::MAX`.
    TooLarge {
        /// What was asked for.
        bytes: u64,
    },
    /// The model holds as many blocks as it can number (2^32 − 1).
    TooManyBlocks,
    /// The id names nothing live: freed before, or another model's.
    NotLive {
        /// The id that was given.
        id: PlacementId,
    },
    /// The device, or the greatest size of the pool, has too little physical memory left.
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
        /// Physical memory that it would newly take.
        new_bytes: u64,
        /// What is left.
        available_bytes: u64,
    },
    /// Piece and granularity of a pool do not fit together.
    BadPoolRule {
        /// The piece asked for, in bytes.
        piece_bytes: u64,
        /// The granularity asked for, in bytes.
        granularity_bytes: u64,
    },
    /// Chunk, granularity and page do not fit together.
    BadRule {
        /// The chunk asked for, in bytes.
        chunk_bytes: u64,
        /// The granularity asked for, in bytes.
        granularity_bytes: u64,
        /// The page asked for, in bytes: the chunk, where no other was.
        page_bytes: u64,
    },
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroBytes => f.write_str("an allocation of 0 bytes has no place; ask for at least 1"),
            Self::TooLarge { bytes } => write!(
                f,
                "{} cannot be placed: rounded up, with all that is placed already, that passes what 64 bits can count",
                counted(*bytes, "byte")
            ),
            Self::TooManyBlocks => f.write_str("the placement model cannot number more than 2^32 - 1 blocks"),
            Self::NotLive { id } => write!(
                f,
                "placement {}.{} is not live: it was freed before, or belongs to another model",
                id.slot, id.generation
            ),
            Self::OutOfMemory { bytes, new_bytes, available_bytes } => write!(
                f,
                "an allocation of {bytes} bytes cannot be placed: it needs {new_bytes} more bytes of physical memory and \
                 {available_bytes} are left; free something, trim pools, or ask for less"
            ),
            Self::BadPoolRule { piece_bytes, granularity_bytes } => write!(
                f,
                "a piece of {piece_bytes} bytes and a granularity of {granularity_bytes} do not fit together: both must be \
                 above 0, and the piece a multiple of the granularity"
            ),
            Self::BadRule { chunk_bytes, granularity_bytes, page_bytes } => write!(
                f,
                "a chunk of {chunk_bytes} bytes, a page of {page_bytes} and a granularity of {granularity_bytes} do not fit \
                 together: each must be above 0 and a multiple of the next"
            ),
        }
    }
}

impl std::error::Error for PlacementError {}

/// End of a chunk's list of blocks.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockState {
    /// Part of no run; waits for reuse.
    Vacant,
    /// Space of a chunk in which nothing lies.
    Hole,
    /// A small allocation.
    Small,
    /// A large allocation, alone in its run.
    Large,
}

/// A stretch of a run. The blocks of a chunk, in address order, form a list without gaps; no two holes are neighbours.
#[derive(Clone, Copy)]
struct Block {
    chunk: ChunkId,
    offset: u64,
    reserved: u64,
    /// For an allocation its bytes as asked for, for a hole its age: a number that counts up, so the lowest is the oldest.
    bytes_or_age: u64,
    prev: u32,
    next: u32,
    generation: u32,
    state: BlockState,
}

/// The pages of a device and what lies in them. Operations cost O(log n) in the number of holes.
#[derive(Clone)]
pub struct Placement {
    rule: PackingRule,
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    /// By size, then age: the first key at or above (wanted, 0) is the best fit and the oldest of its size.
    holes: BTreeMap<(u64, u64), u32>,
    next_age: u64,
    next_chunk: u64,
    live_count: usize,
    live_bytes: u64,
    reserved_bytes: u64,
    resident_bytes: u64,
}

impl Placement {
    /// An empty device under `rule`.
    pub fn new(rule: PackingRule) -> Self {
        Self {
            rule,
            blocks: Vec::new(),
            vacant: Vec::new(),
            holes: BTreeMap::new(),
            next_age: 0,
            next_chunk: 0,
            live_count: 0,
            live_bytes: 0,
            reserved_bytes: 0,
            resident_bytes: 0,
        }
    }

    /// An empty device under [`PackingRule::H200`].
    pub fn h200() -> Self {
        Self::new(PackingRule::H200)
    }

    /// The rule's numbers.
    pub fn rule(&self) -> PackingRule {
        self.rule
    }

    /// Places an allocation of `bytes` bytes. Touches no device, as everything here.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`], [`PlacementError::TooManyBlocks`]; the model is then
    /// as it was.
    pub fn alloc(&mut self, bytes: u64) -> Result<Placed, PlacementError> {
        let reserved = self.rule.reserved_bytes(bytes)?;
        let best = self.best_hole(reserved);
        // The sum as asked for never passes the reserved sum, which never passes the resident one: one check guards all.
        let taken = self.taken(bytes, reserved, best)?;
        // A small allocation may make two blocks: itself and the hole behind it.
        if self.vacant.len() < 2 && self.blocks.len() >= NONE as usize - 2 {
            return Err(PlacementError::TooManyBlocks);
        }
        let slot = if reserved >= self.rule.chunk_bytes {
            let chunk = self.take_run();
            self.put(Block { bytes_or_age: bytes, ..Block::of(chunk, 0, reserved, BlockState::Large) })
        } else {
            let hole = best.and_then(|key| self.holes.remove(&key)).unwrap_or(NONE);
            let slot = if hole == NONE {
                let chunk = self.take_run();
                self.put(Block::of(chunk, 0, self.rule.chunk_bytes, BlockState::Vacant))
            } else {
                hole
            };
            self.split(slot, reserved);
            let block = &mut self.blocks[slot as usize];
            block.state = BlockState::Small;
            block.bytes_or_age = bytes;
            slot
        };
        self.live_count += 1;
        self.live_bytes += bytes;
        self.reserved_bytes += reserved;
        self.resident_bytes += taken;
        let block = &self.blocks[slot as usize];
        Ok(Placed {
            id: PlacementId { slot, generation: block.generation },
            chunk: block.chunk,
            offset_bytes: block.offset,
            reserved_bytes: reserved,
            pages: reserved.max(self.rule.chunk_bytes) / self.rule.page_bytes,
            new_pages: taken / self.rule.page_bytes,
        })
    }

    /// Number of pages that [`alloc`](Self::alloc) of `bytes` would newly take now, so that a caller can foresee out of memory.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`].
    pub fn would_take(&self, bytes: u64) -> Result<u64, PlacementError> {
        let reserved = self.rule.reserved_bytes(bytes)?;
        Ok(self.taken(bytes, reserved, self.best_hole(reserved))? / self.rule.page_bytes)
    }

    /// Frees a placed allocation.
    ///
    /// # Errors
    /// [`PlacementError::NotLive`] for an id that was freed before or is not of this model; nothing changes then.
    pub fn free(&mut self, id: PlacementId) -> Result<Freed, PlacementError> {
        let Some(block) =
            self.blocks.get(id.slot as usize).copied().filter(|b| b.generation == id.generation)
        else {
            return Err(PlacementError::NotLive { id });
        };
        let freed_pages = match block.state {
            BlockState::Vacant | BlockState::Hole => return Err(PlacementError::NotLive { id }),
            BlockState::Large => {
                self.retire(id.slot);
                block.reserved / self.rule.page_bytes
            }
            BlockState::Small => self.release(id.slot),
        };
        self.live_count -= 1;
        self.live_bytes -= block.bytes_or_age;
        self.reserved_bytes -= block.reserved;
        self.resident_bytes -= freed_pages * self.rule.page_bytes;
        Ok(Freed {
            chunk: block.chunk,
            offset_bytes: block.offset,
            reserved_bytes: block.reserved,
            freed_pages,
        })
    }

    /// The bytes of a live allocation as they were asked for; none where the id names nothing live.
    pub fn bytes_of(&self, id: PlacementId) -> Option<u64> {
        let block = self.blocks.get(id.slot as usize).filter(|block| block.generation == id.generation)?;
        matches!(block.state, BlockState::Small | BlockState::Large).then_some(block.bytes_or_age)
    }

    /// What the rule keeps for a live allocation, in bytes; none where the id names nothing live.
    pub fn reserved_bytes_of(&self, id: PlacementId) -> Option<u64> {
        self.bytes_of(id)?;
        Some(self.blocks[id.slot as usize].reserved)
    }

    /// Bytes of host memory that the model takes, by the capacity of its tables.
    pub fn memory_bytes(&self) -> usize {
        // A map keeps its keys and values in nodes that are at least half full.
        size_of::<Block>() * self.blocks.capacity()
            + size_of::<u32>() * self.vacant.capacity()
            + 2 * size_of::<((u64, u64), u32)>() * self.holes.len()
    }

    /// Number of allocations placed and not freed.
    pub fn live_count(&self) -> usize {
        self.live_count
    }

    /// Bytes of the live allocations, as asked for.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of the live allocations as the rule keeps them: each rounded up.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Bytes of all pages taken from the device.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// What the device keeps beyond what was asked for: rounding and holes, in bytes.
    pub fn slack_bytes(&self) -> u64 {
        self.resident_bytes - self.live_bytes
    }

    /// The largest allocation, in bytes, that would find a hole; 0 when there is none.
    pub fn largest_hole_bytes(&self) -> u64 {
        self.holes.last_key_value().map_or(0, |(&(size, _), _)| size)
    }

    /// The hole for a small allocation, and none for a large one: every hole is smaller than a chunk.
    fn best_hole(&self, reserved: u64) -> Option<(u64, u64)> {
        self.holes.range((reserved, 0)..).next().map(|(&key, _)| key)
    }

    /// Bytes newly taken from the device for `reserved`, given its hole, checked against the total.
    fn taken(&self, bytes: u64, reserved: u64, hole: Option<(u64, u64)>) -> Result<u64, PlacementError> {
        let taken = if hole.is_some() { 0 } else { reserved.max(self.rule.chunk_bytes) };
        match self.resident_bytes.checked_add(taken) {
            Some(_) => Ok(taken),
            None => Err(PlacementError::TooLarge { bytes }),
        }
    }

    fn take_run(&mut self) -> ChunkId {
        let chunk = ChunkId(self.next_chunk);
        self.next_chunk += 1;
        chunk
    }

    /// Stores a block in a vacant slot or a new one.
    fn put(&mut self, mut block: Block) -> u32 {
        if let Some(slot) = self.vacant.pop() {
            block.generation = self.blocks[slot as usize].generation;
            self.blocks[slot as usize] = block;
            slot
        } else {
            if self.blocks.len() == self.blocks.capacity() {
                // By a quarter, not by as much again: a model of millions keeps little capacity it does not use.
                self.blocks.reserve_exact((self.blocks.len() / 4).max(16));
            }
            self.blocks.push(block);
            // `alloc` keeps the number of blocks below `NONE`.
            (self.blocks.len() - 1) as u32
        }
    }

    /// Ends a block: its slot may be used again, and ids given for it are stale.
    fn retire(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        block.state = BlockState::Vacant;
        block.generation = block.generation.wrapping_add(1);
        self.vacant.push(slot);
    }

    /// Cuts the block to `reserved` bytes; the rest after it becomes a new hole.
    fn split(&mut self, slot: u32, reserved: u64) {
        let block = self.blocks[slot as usize];
        let rest = block.reserved - reserved;
        if rest == 0 {
            return;
        }
        let hole = self.put(Block {
            prev: slot,
            next: block.next,
            ..Block::of(block.chunk, block.offset + reserved, rest, BlockState::Vacant)
        });
        if block.next != NONE {
            self.blocks[block.next as usize].prev = hole;
        }
        self.blocks[slot as usize].next = hole;
        self.blocks[slot as usize].reserved = reserved;
        self.open(hole);
    }

    /// Makes a small allocation a hole, merged with its neighbours; returns the pages given back (none, or
    /// those of a chunk).
    fn release(&mut self, slot: u32) -> u64 {
        let mut slot = slot;
        // The id is stale even where the block remains as a hole.
        let generation = &mut self.blocks[slot as usize].generation;
        *generation = generation.wrapping_add(1);
        let next = self.blocks[slot as usize].next;
        if self.close(next) {
            self.absorb_next(slot);
        }
        let prev = self.blocks[slot as usize].prev;
        if self.close(prev) {
            self.absorb_next(prev);
            slot = prev;
        }
        let block = &self.blocks[slot as usize];
        if block.prev == NONE && block.next == NONE {
            self.retire(slot);
            return self.rule.chunk_bytes / self.rule.page_bytes;
        }
        self.open(slot);
        0
    }

    /// Lists the block as a hole whose age begins now.
    fn open(&mut self, slot: u32) {
        let age = self.next_age;
        self.next_age += 1;
        let block = &mut self.blocks[slot as usize];
        block.state = BlockState::Hole;
        block.bytes_or_age = age;
        self.holes.insert((block.reserved, age), slot);
    }

    /// Takes the block off the list of holes; false where it is none.
    fn close(&mut self, slot: u32) -> bool {
        let Some(&Block { reserved, state: BlockState::Hole, bytes_or_age: age, .. }) =
            self.blocks.get(slot as usize)
        else {
            return false;
        };
        self.holes.remove(&(reserved, age));
        true
    }

    /// Extends the block over the one behind it, which ends.
    fn absorb_next(&mut self, slot: u32) {
        let gone = self.blocks[slot as usize].next;
        let Block { reserved, next, .. } = self.blocks[gone as usize];
        self.blocks[slot as usize].reserved += reserved;
        self.blocks[slot as usize].next = next;
        if next != NONE {
            self.blocks[next as usize].prev = slot;
        }
        self.retire(gone);
    }
}

impl Default for Placement {
    fn default() -> Self {
        Self::h200()
    }
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placement")
            .field("rule", &self.rule)
            .field("live_count", &self.live_count)
            .field("live_bytes", &self.live_bytes)
            .field("reserved_bytes", &self.reserved_bytes)
            .field("resident_bytes", &self.resident_bytes)
            .field("holes", &self.holes.len())
            .finish_non_exhaustive()
    }
}

impl Block {
    /// A block alone in its run.
    fn of(chunk: ChunkId, offset: u64, reserved: u64, state: BlockState) -> Self {
        Self { chunk, offset, reserved, bytes_or_age: 0, prev: NONE, next: NONE, generation: 0, state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: u64 = crate::SMALL_ALLOC_CHUNK;

    #[test]
    fn sizes_are_rounded_as_the_driver_rounds_them() {
        let rule = PackingRule::H200;
        for (bytes, reserved) in [
            (1, 512),
            (512, 512),
            (513, 1024),
            (C - 512, C - 512),
            (C - 511, C),
            (C, C),
            (2_097_153, 2 * C),
            (5_000_000, 3 * C),
        ] {
            assert_eq!(rule.reserved_bytes(bytes), Ok(reserved), "{bytes}");
        }
        assert_eq!(rule.reserved_bytes(0), Err(PlacementError::ZeroBytes));
        for bytes in [u64::MAX, u64::MAX - C + 2] {
            assert_eq!(rule.reserved_bytes(bytes), Err(PlacementError::TooLarge { bytes }));
        }
        assert_eq!(rule.reserved_bytes(u64::MAX - C + 1), Ok(u64::MAX - C + 1));
    }

    #[test]
    fn a_resident_total_past_64_bits_is_refused_and_changes_nothing() {
        let mut device = Placement::h200();
        let huge = device.alloc(u64::MAX - C + 1).unwrap();
        let refused = device.alloc(1).unwrap_err();
        assert_eq!(refused, PlacementError::TooLarge { bytes: 1 });
        let text = refused.to_string();
        assert!(text.starts_with("1 byte cannot be placed") && text.contains("placed already"), "{text}");
        assert_eq!(device.would_take(1), Err(PlacementError::TooLarge { bytes: 1 }));
        assert_eq!((device.live_count(), device.resident_bytes()), (1, u64::MAX - C + 1));
        device.free(huge.id).unwrap();
        assert_eq!(device.resident_bytes(), 0);
    }

    #[test]
    fn the_oldest_of_equal_holes_is_taken_and_a_merged_hole_is_new() {
        let mut device = Placement::h200();
        let blocks: Vec<_> = (0..9).map(|_| device.alloc(512).unwrap()).collect();
        // Two holes of 512: the one freed first is the older.
        device.free(blocks[5].id).unwrap();
        device.free(blocks[1].id).unwrap();
        assert_eq!(device.alloc(512).unwrap().offset_bytes, 5 * 512);
        // A hole of 1024 born by a merge after another of 1024 is the younger, though one half of it was there before.
        device.free(blocks[6].id).unwrap(); // 6
        device.free(blocks[2].id).unwrap(); // 1-2 merge
        device.free(blocks[7].id).unwrap(); // 6-7 merge
        assert_eq!(device.alloc(1024).unwrap().offset_bytes, 512);
        assert_eq!(device.alloc(1024).unwrap().offset_bytes, 6 * 512);
    }

    #[test]
    fn an_id_is_good_for_one_free() {
        let mut device = Placement::h200();
        let keep = device.alloc(1).unwrap();
        let gone = device.alloc(1).unwrap();
        assert_eq!(device.free(gone.id).unwrap().freed_pages, 0);
        assert_eq!(device.free(gone.id), Err(PlacementError::NotLive { id: gone.id }));
        let again = device.alloc(1).unwrap();
        assert_eq!(again.offset_bytes, gone.offset_bytes);
        assert_eq!(device.free(gone.id), Err(PlacementError::NotLive { id: gone.id }));
        device.free(again.id).unwrap();
        assert_eq!(device.free(keep.id).unwrap().freed_pages, 1);
        assert_eq!((device.live_bytes(), device.reserved_bytes(), device.resident_bytes()), (0, 0, 0));
        assert_eq!(device.largest_hole_bytes(), 0);
    }

    #[test]
    fn would_take_tells_what_alloc_then_takes() {
        let mut device = Placement::h200();
        for (bytes, pages) in [(1, 1), (C - 1024, 0), (512, 0), (512, 1), (C, 1), (3 * C + 1, 4)] {
            assert_eq!(device.would_take(bytes), Ok(pages), "{bytes}");
            assert_eq!(device.alloc(bytes).unwrap().new_pages, pages, "{bytes}");
        }
    }

    #[test]
    fn a_rule_must_fit_together() {
        for (chunk, granularity) in [(0, 512), (2 << 20, 0), (1000, 512), (256, 512)] {
            assert!(PackingRule::new(chunk, granularity).is_err(), "{chunk} {granularity}");
        }
        assert_eq!(PackingRule::new(2 << 20, 512), Ok(PackingRule::H200));
        // A chunk of one granule: everything is large.
        let mut device = Placement::new(PackingRule::new(4096, 4096).unwrap());
        assert_eq!(device.alloc(1).unwrap().new_pages, 1);
        assert_eq!(device.resident_bytes(), 4096);
    }
}

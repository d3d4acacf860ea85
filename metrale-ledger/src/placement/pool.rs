// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's stream-ordered memory pool (`cuMemAllocAsync`) as a pure model: where an allocation lands in the pool's
//! range, and what the pool keeps reserved.
//!
//! Measured on an H200 (driver 580.159.04):
//!
//! - A size is rounded up to the granularity (512 bytes). Addresses come from one range, which grows at its end.
//! - Physical memory comes in pieces (32 MiB), mapped where an allocation needs them. A piece is **idle** when it is mapped and
//!   nothing live or pending touches it. Idle pieces are used before new ones are made: where they are, else moved, the
//!   highest address first.
//! - A free is **pending** in its stream. Pending frees of one stream merge with each other. When they are **settled** they
//!   become holes of the pool, and merge with other holes.
//! - An allocation searches in this order:
//!   1. pending frees of its own stream;
//!   2. holes whose pieces are all mapped;
//!   3. pending frees of other streams from before an event that its stream waited for;
//!   4. pending frees of other streams that are complete;
//!   5. after settling all pending frees that are complete: all holes, mapped or not;
//!   6. the end of the range.
//!
//!   In 3 and 4 the streams come in the order in which they first used the pool, and the first with a place that fits is used.
//!   At each step the **smallest** place that fits is used, the **oldest** among those of one size, at its **start**. The age
//!   of a place counts from the moment it got its present extent.
//! - Frees of one stream are settled latest first, streams in the order in which they first used the pool. The rest of a
//!   pending place that was reused in part counts as freed when the place was.
//! - A synchronization (of a stream, an event or the context) settles the frees it waited for, including those of other streams that
//!   come before it through events. If it settled any, or the release threshold was set since the last synchronization, idle pieces
//!   are released, the highest first, until no more than the **release threshold** is reserved. A query does neither.
//! - A trim releases idle pieces, the highest first, while at least `min_bytes` stay reserved. It settles nothing.
//!
//! Held to 38 recorded logs with 82,000 operations on up to three streams and three pools: no address, no used or reserved
//! figure and no high-water mark differs. In none of them had `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES` an effect, so the
//! model has no such switch.
//!
//! Only modelled, not measured: which pieces stay mapped when memory runs out (their number is measured), what `cuMemFree` of a
//! pool's allocation settles beside it, and allocations that would pass a pool's greatest size because of fragmentation. Not
//! modelled: the range itself ends, at about twice the device's memory or twice the pool's greatest size.
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
//! // The release threshold is 0, so a synchronization releases the piece that nothing touches any more.
//! pool.synchronize(stream);
//! assert_eq!(pool.reserved_bytes(), 32 << 20);
//! # Ok::<(), metrale_ledger::placement::PlacementError>(())
//! ```

mod holes;
mod live;
mod pending;
mod pieces;
mod rule;
mod search;
mod space;
mod streams;

use std::fmt;

use live::Live;
pub use rule::{PoolReuse, PoolRule};
use search::Place;
use space::Space;
use streams::Streams;
pub use streams::{PoolEvent, PoolWork};

use super::{PlacementError, PlacementId};

/// Where an allocation landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlaced {
    /// What [`Pool::free`] takes.
    pub id: PlacementId,
    /// Its start in the pool's range, in bytes.
    pub offset_bytes: u64,
    /// What the pool keeps for it: the size rounded up, in bytes.
    pub rounded_bytes: u64,
    /// Physical memory newly reserved for it, in bytes: 0 when mapped pieces were enough.
    pub new_bytes: u64,
}

/// A pool and what lies in it. Streams are numbers that the caller chooses.
///
/// An operation costs O(log n) in the number of holes and pending frees, times the number of streams with pending frees. The
/// search in another stream's frees costs up to O(n) where only some of them may be reused yet.
#[derive(Clone)]
pub struct Pool {
    space: Space,
    streams: Streams,
    reuse: PoolReuse,
    max_bytes: u64,
    release_threshold: u64,
    threshold_is_new: bool,
    live: Live,
    used: u64,
    used_high: u64,
    reserved_high: u64,
}

impl Pool {
    /// An empty pool under `rule`, with a release threshold of 0 and all reuse allowed.
    pub fn new(rule: PoolRule) -> Self {
        Self {
            space: Space::new(rule),
            streams: Streams::default(),
            reuse: PoolReuse::default(),
            max_bytes: u64::MAX,
            release_threshold: 0,
            threshold_is_new: false,
            live: Live::default(),
            used: 0,
            used_high: 0,
            reserved_high: 0,
        }
    }

    /// The rule's numbers.
    pub fn rule(&self) -> PoolRule {
        self.space.rule()
    }

    /// Sets the most that the pool may reserve, in bytes, rounded up to whole pieces (`CUmemPoolProps::maxSize`).
    pub fn set_max_bytes(&mut self, bytes: u64) {
        self.max_bytes = bytes;
    }

    /// Sets which pending frees an allocation may reuse.
    pub fn set_reuse(&mut self, reuse: PoolReuse) {
        self.reuse = reuse;
    }

    /// Places an allocation of `bytes` bytes in the order of `stream` (`cuMemAllocAsync`). The device is assumed to have enough
    /// memory.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`], [`PlacementError::TooManyBlocks`], and
    /// [`PlacementError::OutOfMemory`] where the pool's greatest size would be passed. Nothing is placed then, but pending
    /// frees may have been settled, as by the driver.
    pub fn alloc(&mut self, stream: u64, bytes: u64) -> Result<PoolPlaced, PlacementError> {
        self.alloc_within(stream, bytes, u64::MAX)
    }

    /// As [`alloc`](Self::alloc), on a device that has `available_bytes` of physical memory left.
    ///
    /// Where that is too little, the driver keeps the pieces it could map before it failed, and so does the model: all of
    /// `available_bytes` that are whole pieces are then reserved and idle.
    ///
    /// The caller has to model what else the driver does: it refuses a size above the device's whole memory without mapping
    /// anything; before it fails otherwise, it trims all other pools to 0; `cuMemAlloc` trims all pools before it fails.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and [`PlacementError::OutOfMemory`].
    pub fn alloc_within(
        &mut self,
        stream: u64,
        bytes: u64,
        available_bytes: u64,
    ) -> Result<PoolPlaced, PlacementError> {
        let rounded = self.rule().rounded_bytes(bytes)?;
        if self.live.is_full() {
            return Err(PlacementError::TooManyBlocks);
        }
        let piece_bytes = self.rule().piece_bytes();
        self.streams.touch(stream);
        let place = self.find(stream, rounded);
        let mut new_bytes = 0;
        let start = match place {
            Place::Pending(owner, hole) => {
                self.streams.reuse(owner, hole, rounded);
                hole.start
            }
            Place::Spot(spot) => {
                let entered = self.space.entered(spot, bytes, rounded)?;
                new_bytes = self.space.new_pieces(&entered) * piece_bytes;
                let out_of_memory =
                    |available_bytes| Err(PlacementError::OutOfMemory { bytes, new_bytes, available_bytes });
                let allowed = self.allowed_bytes();
                if new_bytes > allowed {
                    return out_of_memory(allowed);
                }
                if new_bytes > available_bytes {
                    self.space.map_idle(entered, available_bytes / piece_bytes);
                    self.note_reserved();
                    return out_of_memory(available_bytes);
                }
                self.space.occupy(spot, rounded, entered)
            }
        };
        self.note_reserved();
        self.used = self.used.saturating_add(bytes);
        self.used_high = self.used_high.max(self.used);
        let id = self.live.insert(start, rounded, bytes);
        Ok(PoolPlaced { id, offset_bytes: start, rounded_bytes: rounded, new_bytes })
    }

    /// Bytes of physical memory that [`alloc`](Self::alloc) of `bytes` on `stream` would newly reserve now. Changes nothing. Costs
    /// O(n) where pending frees would have to be settled for it, because that is tried on a copy.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`].
    pub fn would_take(&self, stream: u64, bytes: u64) -> Result<u64, PlacementError> {
        let rounded = self.rule().rounded_bytes(bytes)?;
        if self.find_unsettled(stream, rounded).is_some() {
            return Ok(0);
        }
        let (space, streams) = (self.space.clone(), self.streams.clone());
        let mut copy = Self { space, streams, live: Live::default(), ..*self };
        match copy.find(stream, rounded) {
            Place::Pending(..) => Ok(0),
            Place::Spot(spot) => {
                let entered = copy.space.entered(spot, bytes, rounded)?;
                Ok(copy.space.new_pieces(&entered) * self.rule().piece_bytes())
            }
        }
    }

    /// Frees an allocation in the order of `stream`, which need not be the one it was placed on (`cuMemFreeAsync`).
    ///
    /// # Errors
    /// [`PlacementError::NotLive`] for an id that was freed before or is not of this pool; nothing changes then.
    pub fn free(&mut self, stream: u64, id: PlacementId) -> Result<(), PlacementError> {
        let freed = self.live.remove(id)?;
        self.used = self.used.saturating_sub(freed.bytes);
        self.streams.free(stream, freed.start, freed.rounded);
        Ok(())
    }

    /// Frees an allocation outside the order of streams (`cuMemFree`): everything is settled, the allocation too, and idle pieces
    /// are released down to the threshold. As on the H200, [`used_bytes`](Self::used_bytes) goes on counting it for good.
    ///
    /// # Errors
    /// [`PlacementError::NotLive`] for an id that was freed before or is not of this pool; nothing changes then.
    pub fn free_synchronously(&mut self, id: PlacementId) -> Result<(), PlacementError> {
        let freed = self.live.remove(id)?;
        self.streams.settle_all(&mut self.space);
        self.space.settle(freed.start..freed.start + freed.rounded);
        self.release();
        Ok(())
    }

    /// The stream is synchronized: its frees are settled, and those that come before its end through events.
    pub fn synchronize(&mut self, stream: u64) {
        self.synchronize_event(&self.streams.record(stream));
    }

    /// The event is synchronized: the frees before it are settled.
    pub fn synchronize_event(&mut self, event: &PoolEvent) {
        let any = self.streams.settle_before(event, &mut self.space);
        self.after_synchronize(any);
    }

    /// The context is synchronized: all frees are settled.
    pub fn synchronize_all(&mut self) {
        let any = self.streams.settle_all(&mut self.space);
        self.after_synchronize(any);
    }

    /// An event recorded on `stream`, as far as this pool is concerned: with several pools, each has its own of one CUDA event.
    pub fn record(&self, stream: u64) -> PoolEvent {
        self.streams.record(stream)
    }

    /// `stream` waits for the event (`cuStreamWaitEvent`).
    pub fn wait(&mut self, stream: u64, event: &PoolEvent) {
        self.streams.wait(stream, event);
    }

    /// The stream begins work that takes a while, such as a kernel. Until [`finish_work`](Self::finish_work), frees of the
    /// stream after it are not complete, nor are those of streams that wait for an event behind it. Where this is never called, each
    /// free is complete at once.
    pub fn begin_work(&mut self, stream: u64) -> PoolWork {
        self.streams.begin_work(stream)
    }

    /// The work is finished. Nothing changes where it was finished before.
    pub fn finish_work(&mut self, work: PoolWork) {
        self.streams.finish_work(work);
    }

    /// Sets the bytes down to which a synchronization releases idle pieces (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`). The next
    /// synchronization does so whether it settles any free or not.
    pub fn set_release_threshold(&mut self, bytes: u64) {
        self.release_threshold = bytes;
        self.threshold_is_new = true;
    }

    /// The bytes down to which a synchronization releases idle pieces.
    pub fn release_threshold(&self) -> u64 {
        self.release_threshold
    }

    /// Releases idle pieces, the highest first, while at least `min_bytes` stay reserved (`cuMemPoolTrimTo`).
    pub fn trim_to(&mut self, min_bytes: u64) {
        self.space.shrink_to(min_bytes.div_ceil(self.rule().piece_bytes()));
    }

    /// Bytes of all live allocations, as asked for (`CU_MEMPOOL_ATTR_USED_MEM_CURRENT`).
    pub fn used_bytes(&self) -> u64 {
        self.used
    }

    /// Bytes of physical memory that the pool holds (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`).
    pub fn reserved_bytes(&self) -> u64 {
        self.space.mapped_pieces() * self.rule().piece_bytes()
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

    /// Number of allocations placed and not freed.
    pub fn live_count(&self) -> usize {
        self.live.count()
    }

    /// The bytes of a live allocation as they were asked for; none where the id names nothing live.
    pub fn bytes_of(&self, id: PlacementId) -> Option<u64> {
        Some(self.live.slot(id)?.bytes)
    }

    /// Bytes of host memory that the model uses, by the capacity of its tables.
    pub fn memory_bytes(&self) -> usize {
        self.live.memory_bytes() + self.space.memory_bytes() + self.streams.memory_bytes()
    }

    fn after_synchronize(&mut self, settled: bool) {
        if std::mem::take(&mut self.threshold_is_new) || settled {
            self.release();
        }
    }

    fn release(&mut self) {
        self.space.shrink_to(self.release_threshold / self.rule().piece_bytes());
    }

    /// How much more the pool may reserve.
    fn allowed_bytes(&self) -> u64 {
        let max = self.max_bytes.checked_next_multiple_of(self.rule().piece_bytes());
        max.unwrap_or(u64::MAX).saturating_sub(self.reserved_bytes())
    }

    fn note_reserved(&mut self) {
        self.reserved_high = self.reserved_high.max(self.reserved_bytes());
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(PoolRule::H200)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("rule", &self.rule())
            .field("live_count", &self.live_count())
            .field("used_bytes", &self.used)
            .field("reserved_bytes", &self.reserved_bytes())
            .field("holes", &self.space.hole_count())
            .finish_non_exhaustive()
    }
}

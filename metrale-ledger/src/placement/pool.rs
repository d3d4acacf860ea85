// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's stream-ordered memory pool (`cuMemAllocAsync`) as a pure model: where an allocation lands in the pool's
//! range, and what the pool keeps reserved.
//!
//! Measured on an H200 (driver 580.159.04) and held to address, used and reserved bytes of every recorded operation:
//!
//! - A size is rounded up to the granularity (512 bytes). Addresses come from one range, which grows at its end.
//! - Physical memory comes in pieces (32 MiB), mapped where an allocation needs them. An idle piece, one that nothing live or
//!   pending touches, is used before a new one is made: where it is, or moved, the one with the highest address first.
//! - What is freed is **pending** in the order of its stream. Pending frees of one stream merge with each other; they become
//!   part of the pool's holes, and merge with those, when they are **settled**.
//! - An allocation looks (1) at the pending frees of its own stream, (2) at the pool's holes each piece of which is mapped, (3)
//!   at what other streams freed before an event that its stream waited for, (4) at what other streams freed and is complete.
//!   In (3) and (4) the streams come in the order in which they first used the pool, and the first that has a place gives it.
//!   Then (5) all frees that are complete are settled, and it looks at all holes, mapped or not; (6) the end of the range is
//!   used last. It takes the **smallest** place that fits, the **oldest** among those of one size, at its **start**; age counts
//!   from the moment a hole got its present extent.
//! - A stream's frees are settled the latest first, streams in the order in which they first used the pool. The rest of a
//!   pending hole counts as freed when the hole was.
//! - A synchronise (of a stream, an event or the context) settles what it waited for, that is, the frees of other streams which
//!   come before it through events too. If that was something, or the threshold was set since the last synchronise, idle pieces
//!   are given back, the highest first, until at most the **release threshold** is reserved. A query does none of this.
//! - A trim leaves the fewest whole pieces that are at least the bytes it is told, and takes idle ones only.
//!
//! With the default attributes, at 52,000 recorded operations on one to three streams and one to three pools, no address,
//! used or reserved figure and no high-water mark differs. What is only modelled:
//!
//! - `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES` has no effect here. On the H200 turning it off made a difference only
//!   where streams waited for unfinished work: in one of two such logs 85 of 1,265 addresses differ, none is reserved wrong.
//! - Which pieces are left mapped where memory ran out (their number is measured), what other pending frees `cuMemFree` of a
//!   pool's allocation settles, and what is refused once a pool's greatest size is near.
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
mod live;
mod pending;
mod pieces;
mod rule;
mod space;
mod streams;

use std::fmt;

use holes::Hole;
use live::Live;
pub use rule::{PoolReuse, PoolRule};
use space::{Space, Spot};
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
    /// Physical memory newly taken from the device for it, in bytes: 0 when idle pieces served.
    pub new_bytes: u64,
}

/// Where the next allocation goes.
#[derive(Clone, Copy)]
enum Place {
    /// What this stream freed, and is not settled.
    Pending(u64, Hole),
    Spot(Spot),
}

/// A pool and what lies in it. Streams are numbers that the caller chooses.
///
/// Operations cost O(log n) in the number of holes and pending frees, for each stream with pending frees that they look at. Only
/// where a stream waited for an event, or has unfinished work, may a look pass over more of them.
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

    /// Sets the most that the pool may reserve, in bytes, of which the last piece counts as a whole (`CUmemPoolProps::maxSize`).
    pub fn set_max_bytes(&mut self, bytes: u64) {
        self.max_bytes = bytes;
    }

    /// Sets which pending frees an allocation may reuse.
    pub fn set_reuse(&mut self, reuse: PoolReuse) {
        self.reuse = reuse;
    }

    /// Places `bytes` in the order of `stream`, however much physical memory that takes.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`], [`PlacementError::TooManyBlocks`], and
    /// [`PlacementError::OutOfMemory`] where the pool's greatest size is passed. Nothing is placed then, but pending frees may
    /// have been settled, as by the driver.
    pub fn alloc(&mut self, stream: u64, bytes: u64) -> Result<PoolPlaced, PlacementError> {
        self.alloc_within(stream, bytes, u64::MAX)
    }

    /// As [`alloc`](Self::alloc), on a device that has `available_bytes` of physical memory left.
    ///
    /// Where that is too little, the driver keeps what it could map before it failed, and so does the model: the pool then
    /// reserves all whole pieces of `available_bytes` more, until a synchronise or a trim gives them back. A size above all of the
    /// device's memory the driver refuses without that, so such a call should not be made. Before the driver fails, for want of memory or
    /// because of the pool's greatest size, it trims all other pools to 0; `cuMemAlloc` trims all pools.
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
                self.streams.take(owner, hole, rounded);
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
                    self.space.map_in_vain(entered, available_bytes / piece_bytes);
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

    /// Bytes of physical memory that [`alloc`](Self::alloc) of `bytes` on `stream` would newly take now. Where pending frees
    /// would have to be settled for it, this looks at a copy of holes and pending frees, so it costs O(n) then.
    ///
    /// # Errors
    /// [`PlacementError::ZeroBytes`], [`PlacementError::TooLarge`].
    pub fn would_take(&self, stream: u64, bytes: u64) -> Result<u64, PlacementError> {
        let rounded = self.rule().rounded_bytes(bytes)?;
        if self.find_at_once(stream, rounded).is_some() {
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
        self.used -= freed.bytes.min(self.used);
        self.streams.free(stream, freed.start, freed.rounded);
        Ok(())
    }

    /// Frees an allocation outside the order of streams (`cuMemFree`): the device is synchronized, the space is a hole at once, and
    /// idle pieces are given back down to the threshold. As on the H200, [`used_bytes`](Self::used_bytes) never comes down for it.
    ///
    /// # Errors
    /// [`PlacementError::NotLive`] for an id that was freed before or is not of this pool; nothing changes then.
    pub fn free_at_once(&mut self, id: PlacementId) -> Result<(), PlacementError> {
        let freed = self.live.remove(id)?;
        self.streams.settle_all(&mut self.space);
        self.space.settle(Hole { start: freed.start, bytes: freed.rounded, age: 0, mapped: true });
        self.release();
        Ok(())
    }

    /// The stream is synchronized: what it freed, and what comes before that through events, is settled.
    pub fn synchronize(&mut self, stream: u64) {
        self.synchronize_event(&self.streams.record(stream));
    }

    /// The event is synchronized: what comes before it is settled.
    pub fn synchronize_event(&mut self, event: &PoolEvent) {
        let any = self.streams.settle_before(event, &mut self.space);
        self.after_synchronize(any);
    }

    /// The context is synchronized: everything is settled.
    pub fn synchronize_all(&mut self) {
        let any = self.streams.settle_all(&mut self.space);
        self.after_synchronize(any);
    }

    /// An event of `stream`, of the operations on this pool.
    pub fn record(&self, stream: u64) -> PoolEvent {
        self.streams.record(stream)
    }

    /// What `stream` does from here on comes after the event.
    pub fn wait(&mut self, stream: u64, event: &PoolEvent) {
        self.streams.wait(stream, event);
    }

    /// The stream begins work that takes its time, such as a kernel: until [`finish_work`](Self::finish_work), what it
    /// frees is not complete, nor is what streams free that wait for its events. Without such calls, all that was freed is complete.
    pub fn begin_work(&mut self, stream: u64) -> PoolWork {
        self.streams.begin_work(stream)
    }

    /// The work is done. Nothing happens where it was done before.
    pub fn finish_work(&mut self, work: PoolWork) {
        self.streams.finish_work(work);
    }

    /// Sets what a synchronise leaves reserved at most, in bytes, where the rest is idle; `u64::MAX` for all. The next synchronise
    /// obeys it, whether it settles something or not.
    pub fn set_release_threshold(&mut self, bytes: u64) {
        self.release_threshold = bytes;
        self.threshold_is_new = true;
    }

    /// What a synchronise leaves reserved at most, in bytes.
    pub fn release_threshold(&self) -> u64 {
        self.release_threshold
    }

    /// Gives back idle pieces, the highest first, as long as at least `min_bytes` stay reserved (`cuMemPoolTrimTo`). Pending
    /// frees are not settled.
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

    /// Allocations placed and not freed.
    pub fn live_count(&self) -> usize {
        self.live.count()
    }

    /// The bytes of a live allocation as they were asked for; none where the id names nothing live.
    pub fn bytes_of(&self, id: PlacementId) -> Option<u64> {
        Some(self.live.slot(id)?.bytes)
    }

    /// Finds the place for so many bytes where nothing need be mapped or settled for it.
    fn find_at_once(&self, stream: u64, rounded: u64) -> Option<Place> {
        if let Some(hole) = self.streams.own(stream, rounded) {
            return Some(Place::Pending(stream, hole));
        }
        if let Some(hole) = self.space.best_mapped(rounded) {
            return Some(Place::Spot(Spot::Hole(hole)));
        }
        let followed = self.reuse.follow_events.then(|| self.streams.followed(stream, rounded));
        followed.flatten().map(|(owner, hole)| Place::Pending(owner, hole))
    }

    /// Finds the place for so many bytes; settles what is complete where nothing else fits.
    fn find(&mut self, stream: u64, rounded: u64) -> Place {
        if let Some(place) = self.find_at_once(stream, rounded) {
            return place;
        }
        if self.reuse.opportunistic {
            if let Some((owner, hole)) = self.streams.completed(stream, rounded) {
                return Place::Pending(owner, hole);
            }
            self.streams.settle_completed(&mut self.space);
        }
        Place::Spot(self.space.best(rounded))
    }

    fn after_synchronize(&mut self, settled: bool) {
        if std::mem::take(&mut self.threshold_is_new) || settled {
            self.release();
        }
    }

    fn release(&mut self) {
        self.space.shrink_to(self.release_threshold / self.rule().piece_bytes());
    }

    /// What the pool's greatest size leaves to reserve.
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

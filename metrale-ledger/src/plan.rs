// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a stream of allocations will take, before anything is allocated.
//!
//! A [`Plan`] takes a program's operations one by one. After each it knows what would be live and what the device would keep.
//! At the end its [`Summary`] gives the peaks and who holds them, and [`Orders`] what the same allocations would take in another
//! order or in one arena.
//!
//! A peak is the fullest moment: of the moments with the most resident bytes, the one with the most live bytes, then the one
//! with the most allocations, then the first. So an allocation that later fills a page of the resident peak belongs to it. The
//! peak of live bytes is found likewise, with live bytes first and resident bytes second.
//!
//! Allocations come from an [`Allocator`]: from the driver (`cuMemAlloc`), from the default pool of streams (`cuMemAllocAsync`), or
//! each as memory of its own (`cuMemCreate`). Memory that a program [creates](Plan::create) and [maps](Plan::map) itself is
//! counted beside its allocations. A pool gives memory back only when the program synchronizes; a plan assumes that after
//! each operation, or, with [`Synchronize::WhenTold`], only where it is [told](Plan::synchronize). A plan calls no driver and
//! takes no lock.
//!
//! ```
//! use metrale_ledger::plan::Plan;
//!
//! let mut plan = Plan::h200();
//! for (tensor, bytes) in [(1, 3 << 20), (2, 4096), (3, 3 << 20)] {
//!     plan.alloc(tensor, bytes, Some("weights"))?;
//! }
//! plan.alloc(4, 1 << 20, Some("staging"))?;
//! plan.free(4)?;
//! let summary = plan.summary();
//! assert_eq!(summary.peak_live.bytes, (7 << 20) + 4096);
//! assert_eq!(summary.peak_live.operation, Some(3), "the fourth, counted from 0");
//! assert_eq!(summary.peak_live.holders[0].label.as_deref(), Some("weights"));
//! assert_eq!(summary.peak_resident.bytes, (4 + 4 + 2) << 20);
//! assert_eq!(summary.arena_resident_bytes, 8 << 20);
//! # Ok::<(), metrale_ledger::plan::PlanError>(())
//! ```

mod created;
mod device;
mod error;
mod orders;
mod peaks;
mod pool;
mod summary;

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::peak::Held;
use crate::placement::{PackingRule, PlacementError};

use created::Created;
pub use device::Allocator;
use device::{Device, Place};
pub use error::PlanError;
pub use orders::{Order, Orders};
use peaks::{Moment, Peaks, PlannedAllocation};
pub use pool::Synchronize;
pub use summary::{Holder, Peak, SizeClass, Summary};

/// Names an allocation in a plan while it is live: a pointer of a log, the number of a tensor.
pub type AllocationId = u64;

/// The state of a plan after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operation's number, from 0. Refused ones are counted.
    pub operation: u64,
    /// Bytes live, as asked for.
    pub live_bytes: u64,
    /// Bytes the device keeps for them.
    pub resident_bytes: u64,
}

/// A live allocation.
#[derive(Clone, Copy)]
struct Live {
    place: Place,
    /// Index of its label; 0 where it has none.
    label: u32,
    /// A number that a reader of logs keeps with it.
    note: u64,
}

/// An allocation to be planned.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) from: Allocator,
    pub(crate) bytes: u64,
    pub(crate) label: Option<&'a str>,
    pub(crate) note: u64,
}

/// Plans a stream of operations. A clone is a plan of its own that goes on from the same state. Host memory: below 200 bytes for
/// each of the most allocations that were live at once, whatever came before.
#[derive(Clone)]
pub struct Plan {
    device: Device,
    allocator: Allocator,
    synchronize: Synchronize,
    live: FxHashMap<AllocationId, Live>,
    created: Created,
    operations: u64,
    allocations: u64,
    requested_bytes: u64,
    arena_bytes: u64,
    arena_peak_bytes: u64,
    frees: u64,
    peaks: Peaks,
    labels: FxHashMap<Arc<str>, u32>,
    /// By index; the first stands for no label.
    names: Vec<Option<Arc<str>>>,
}

impl Plan {
    /// An empty plan, with allocations of `cuMemAlloc` under `rule`.
    pub fn new(rule: PackingRule) -> Self {
        let mut peaks = Peaks::new();
        peaks.labels.push(Held::default());
        Self {
            device: Device::new(rule),
            allocator: Allocator::Driver,
            synchronize: Synchronize::AfterEach,
            live: FxHashMap::default(),
            created: Created::default(),
            operations: 0,
            allocations: 0,
            requested_bytes: 0,
            arena_bytes: 0,
            arena_peak_bytes: 0,
            frees: 0,
            peaks,
            labels: FxHashMap::default(),
            names: vec![None],
        }
    }

    /// An empty plan for an H200.
    pub fn h200() -> Self {
        Self::new(PackingRule::H200)
    }

    /// The same plan, with allocations of `allocator` from here on.
    #[must_use]
    pub fn allocating_from(mut self, allocator: Allocator) -> Self {
        self.allocator = allocator;
        self
    }

    /// The allocator that [`alloc`](Self::alloc) plans with.
    pub fn allocator(&self) -> Allocator {
        self.allocator
    }

    /// The packing rule of `cuMemAlloc`.
    pub fn rule(&self) -> PackingRule {
        self.device.rule()
    }

    /// Plans an allocation of `bytes` bytes. One of 0 bytes is live until it is freed and takes nothing, whatever an allocator would answer.
    ///
    /// # Errors
    /// [`PlanError::AlreadyLive`], or [`PlanError::Placement`] for what 64 bits cannot count.
    pub fn alloc(&mut self, id: AllocationId, bytes: u64, label: Option<&str>) -> Result<Step, PlanError> {
        if let Some(live) = self.live.get(&id) {
            let bytes = self.device.bytes_of(live.place);
            self.count_operation();
            return Err(PlanError::AlreadyLive { id, bytes });
        }
        Ok(self.alloc_unknown(id, Request { from: self.allocator, bytes, label, note: 0 })?)
    }

    /// Plans an allocation of an id that is not live.
    pub(crate) fn alloc_unknown(
        &mut self,
        id: AllocationId,
        new: Request<'_>,
    ) -> Result<Step, PlacementError> {
        let operation = self.count_operation();
        let live = self.begin(new)?;
        self.live.insert(id, live);
        Ok(self.raise(operation, new.note))
    }

    /// Places an allocation and counts it for its holders.
    fn begin(&mut self, new: Request<'_>) -> Result<Live, PlacementError> {
        let Request { from, bytes, label, note } = new;
        let (place, reserved) = self.device.alloc(from, bytes)?;
        let label = label.map_or(0, |label| self.intern(label));
        self.allocations += 1;
        self.requested_bytes = self.requested_bytes.saturating_add(bytes);
        // The sum is at most the resident one, which 64 bits hold.
        self.arena_bytes += self.in_arena(bytes, reserved);
        self.arena_peak_bytes = self.arena_peak_bytes.max(self.arena_bytes);
        self.peaks.add(PlannedAllocation {
            label,
            bytes,
            reserved,
            is_packed: matches!(place, Place::Packed(_)),
        });
        Ok(Live { place, label, note })
    }

    /// Looks for a peak, once the allocation that may make one is counted.
    fn raise(&mut self, operation: u64, note: u64) -> Step {
        let (live_bytes, resident_bytes) = (self.live_bytes(), self.resident_bytes());
        let live_count = self.live_count() as u64;
        self.peaks.raise(Moment {
            live_bytes,
            resident_bytes,
            live_count,
            operation: Some(operation),
            gone: self.allocations - live_count,
            arena_bytes: self.arena_bytes,
            any_order_bytes: self.device.any_order_bytes(),
            note,
        });
        self.done()
    }

    /// Plans the free of an allocation.
    ///
    /// # Errors
    /// [`PlanError::NotLive`].
    pub fn free(&mut self, id: AllocationId) -> Result<Step, PlanError> {
        match self.free_live(id) {
            Some((step, ..)) => Ok(step),
            None => {
                self.count_operation();
                Err(PlanError::NotLive { id })
            }
        }
    }

    /// Plans the free of an allocation: the step, its bytes and what was noted of it. Where it is not live, nothing is done.
    pub(crate) fn free_live(&mut self, id: AllocationId) -> Option<(Step, u64, u64)> {
        let (bytes, note) = self.displace(id)?;
        self.frees += 1;
        Some((self.pass(), bytes, note))
    }

    /// Takes off a live allocation, without an operation of its own: its bytes and what was noted of it.
    pub(crate) fn displace(&mut self, id: AllocationId) -> Option<(u64, u64)> {
        let live = self.live.remove(&id)?;
        Some((self.end(live), live.note))
    }

    /// Takes an allocation out of its place and off its holders; its bytes.
    fn end(&mut self, old: Live) -> u64 {
        let Live { place, label, .. } = old;
        let (bytes, reserved) = self.device.free(place);
        self.arena_bytes -= self.in_arena(bytes, reserved);
        self.peaks.remove(PlannedAllocation {
            label,
            bytes,
            reserved,
            is_packed: matches!(place, Place::Packed(_)),
        });
        bytes
    }

    /// Bytes of a live allocation, and what was noted of it.
    #[cfg(feature = "trace")]
    pub(crate) fn noted(&self, id: AllocationId) -> Option<(u64, u64)> {
        self.live.get(&id).map(|live| (self.device.bytes_of(live.place), live.note))
    }

    /// Id or handle, bytes and note of everything live, in no order.
    #[cfg(feature = "trace")]
    pub(crate) fn all_noted(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let live = self.live.iter().map(|(&id, live)| (id, live)).chain(self.created.live());
        live.map(|(id, live)| (id, self.device.bytes_of(live.place), live.note))
    }

    /// The resident bytes that there would be with one more allocation; an error where it cannot be placed.
    #[cfg(feature = "trace")]
    pub(crate) fn resident_bytes_with(&self, from: Allocator, bytes: u64) -> Result<u64, PlacementError> {
        self.device.resident_bytes_with(from, bytes)
    }

    /// Counts an operation that allocates and frees nothing, such as a failed allocation of a log.
    pub fn pass(&mut self) -> Step {
        self.count_operation();
        self.done()
    }

    /// Ends an operation.
    fn done(&mut self) -> Step {
        if self.synchronize == Synchronize::AfterEach && self.device.pool().reserved_bytes() > 0 {
            self.device.synchronize();
        }
        self.last()
    }

    /// The state after the last operation.
    pub(crate) fn last(&self) -> Step {
        let operation = self.operations.saturating_sub(1);
        Step { operation, live_bytes: self.live_bytes(), resident_bytes: self.resident_bytes() }
    }

    /// Bytes live now, as asked for.
    pub fn live_bytes(&self) -> u64 {
        self.device.live_bytes()
    }

    /// Number of allocations live now, memory that was [created](Self::create) among them.
    pub fn live_count(&self) -> usize {
        self.live.len() + self.created.live_count()
    }

    /// Bytes that the device would keep now for all of them.
    pub fn resident_bytes(&self) -> u64 {
        self.device.resident_bytes()
    }

    /// The highest live bytes so far.
    pub fn peak_live_bytes(&self) -> u64 {
        self.peaks.bytes(peaks::LIVE)
    }

    /// The highest resident bytes so far.
    pub fn peak_resident_bytes(&self) -> u64 {
        self.peaks.bytes(peaks::RESIDENT)
    }

    /// What was noted of the allocation that made each peak: of live bytes, of resident bytes.
    #[cfg(feature = "trace")]
    pub(crate) fn peak_notes(&self) -> [Option<u64>; 2] {
        [peaks::LIVE, peaks::RESIDENT].map(|which| {
            let moment = self.peaks.moment(which);
            moment.operation.map(|_| moment.note)
        })
    }

    /// Bytes of host memory that the plan takes, by the capacity of its tables.
    pub fn memory_bytes(&self) -> usize {
        let names: usize = self.names.iter().flatten().map(|name| name.len() + 16).sum();
        size_of::<Self>()
            + self.device.memory_bytes()
            + map_bytes(self.live.capacity(), size_of::<(AllocationId, Live)>())
            + self.created.memory_bytes()
            + self.peaks.memory_bytes()
            + map_bytes(self.labels.capacity(), size_of::<(Arc<str>, u32)>())
            + size_of::<Option<Arc<str>>>() * self.names.capacity()
            + names
    }

    fn count_operation(&mut self) -> u64 {
        self.operations += 1;
        self.operations - 1
    }

    /// Bytes that an arena keeps for an allocation: its size rounded up to the granularity, at most what its allocator keeps.
    fn in_arena(&self, bytes: u64, reserved: u64) -> u64 {
        let rounded = bytes.checked_next_multiple_of(self.rule().granularity_bytes());
        rounded.map_or(reserved, |rounded| rounded.min(reserved))
    }

    fn intern(&mut self, label: &str) -> u32 {
        if let Some(&index) = self.labels.get(label) {
            return index;
        }
        let index = self.names.len() as u32;
        let name: Arc<str> = label.into();
        self.names.push(Some(Arc::clone(&name)));
        self.labels.insert(name, index);
        self.peaks.labels.push(Held::default());
        index
    }
}

/// Bytes of a hash map with capacity for so many entries: one in eight places stays empty, and each has a byte beside it.
fn map_bytes(capacity: usize, entry: usize) -> usize {
    capacity * 8 / 7 * (entry + 1)
}

impl Default for Plan {
    fn default() -> Self {
        Self::h200()
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("operations", &self.operations)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

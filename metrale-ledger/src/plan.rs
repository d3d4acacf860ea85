// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a stream of allocations will take, before anything is allocated.
//!
//! A [`Plan`] is told operation after operation what a program will do, and knows at every moment what would be live and what
//! the device would keep; in the end its [`Summary`] says where the peaks stand and who holds them, and [`Orders`] what the
//! same bytes would take in another order or in one arena.
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

mod orders;
mod summary;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::groups::NO_LABEL;
use crate::placement::{PackingRule, Placement, PlacementError, PlacementId};
use rustc_hash::FxBuildHasher as Mixer;

use orders::Sizes;
pub use orders::{Order, Orders};
pub use summary::{Holder, Peak, SizeClass, Summary};

/// Names an allocation in a plan as long as it lives: a pointer of a log, the number of a tensor.
pub type AllocationId = u64;

/// Why an operation is none. The plan is as it was, except that the operation is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// An allocation of that id lives.
    AlreadyLive {
        /// The id.
        id: AllocationId,
        /// Bytes of the one that lives.
        bytes: u64,
    },
    /// No allocation of that id lives.
    NotLive {
        /// The id.
        id: AllocationId,
    },
    /// The packing rule does not place it.
    Placement(PlacementError),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyLive { id, bytes } => {
                write!(
                    f,
                    "{id:#x} is allocated already, with {bytes} bytes; it must be freed before it can be again"
                )
            }
            Self::NotLive { id } => write!(f, "{id:#x} is freed, but no allocation of that id is live"),
            Self::Placement(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Its text is this one's, so its source is too.
            Self::Placement(error) => error.source(),
            _ => None,
        }
    }
}

impl From<PlacementError> for PlanError {
    fn from(error: PlacementError) -> Self {
        Self::Placement(error)
    }
}

/// Where a plan stands after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operation's number, from 0. Refused ones are counted.
    pub operation: u64,
    /// Bytes live, as asked for.
    pub live_bytes: u64,
    /// Bytes the device keeps for them.
    pub resident_bytes: u64,
}

/// A live allocation: where it is placed, and its label. One of no bytes has no place.
#[derive(Clone, Copy)]
struct Live {
    place: Option<PlacementId>,
    label: u32,
    /// What whoever follows a log notes of it.
    note: u64,
}

/// Bytes and number of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    bytes: u64,
    reserved: u64,
}

/// A sum now and at the last peak of live and of resident bytes, put aside when it first changes after them.
#[derive(Clone, Copy, Default)]
struct Held {
    now: Sum,
    /// The sum at a peak, and which peak that was. Peaks count from 1.
    then: [(Sum, u64); 2],
}

/// Index of a peak in [`Held::then`] and [`Plan::peaks`].
const LIVE: usize = 0;
const RESIDENT: usize = 1;

impl Held {
    fn before_change(&mut self, peaks: &[Stand; 2]) -> &mut Sum {
        for (then, peak) in self.then.iter_mut().zip(peaks) {
            if then.1 != peak.number {
                *then = (self.now, peak.number);
            }
        }
        &mut self.now
    }

    fn at(&self, which: usize, peaks: &[Stand; 2]) -> Sum {
        let (then, number) = self.then[which];
        if number == peaks[which].number { then } else { self.now }
    }
}

/// The highest so far.
#[derive(Clone, Copy, Default)]
struct Stand {
    bytes: u64,
    /// The other of live and resident bytes, there.
    beside: u64,
    operation: Option<u64>,
    /// Allocations that were gone before it.
    gone: u64,
    /// How many peaks there were.
    number: u64,
}

/// Of the moments in which the device keeps as much as ever, that in which most is live; of several, the first. Where nothing is
/// freed that is the last one, and all there is.
#[derive(Clone, Copy, Default)]
struct Fullest {
    operation: Option<u64>,
    /// Allocations that were gone before it.
    gone: u64,
    /// [`Plan::arena_bytes`] in it.
    arena_bytes: u64,
}

/// The class of sizes from 2^n up to 2^(n + 1), less one, is n.
fn class_of(bytes: u64) -> usize {
    bytes.checked_ilog2().unwrap_or(0) as usize
}

/// Plans a stream of operations; a clone goes on from where it stands. Host memory: below 200 bytes for each of the most
/// allocations that lived at once, however many came and went.
#[derive(Clone)]
pub struct Plan {
    placement: Placement,
    live: HashMap<AllocationId, Live, Mixer>,
    operations: u64,
    allocations: u64,
    requested_bytes: u64,
    arena_bytes: u64,
    arena_peak_bytes: u64,
    frees: u64,
    peaks: [Stand; 2],
    classes: [Held; 64],
    labels: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    /// What each label holds; first what has none.
    holders: Vec<Held>,
    fullest: Fullest,
    /// How many allocations of each size there are more, or fewer, than in the fullest moment. By the size that the rule keeps
    /// for them: of those there are few, and no more matters.
    since_fullest: HashMap<u64, i64, Mixer>,
}

impl Plan {
    /// Nothing planned yet, under `rule`.
    pub fn new(rule: PackingRule) -> Self {
        Self {
            placement: Placement::new(rule),
            live: HashMap::default(),
            operations: 0,
            allocations: 0,
            requested_bytes: 0,
            arena_bytes: 0,
            arena_peak_bytes: 0,
            frees: 0,
            peaks: [Stand { number: 1, ..Stand::default() }; 2],
            classes: [Held::default(); 64],
            labels: HashMap::new(),
            names: Vec::new(),
            holders: vec![Held::default()],
            fullest: Fullest::default(),
            since_fullest: HashMap::default(),
        }
    }

    /// Nothing planned yet, on an H200.
    pub fn h200() -> Self {
        Self::new(PackingRule::H200)
    }

    /// The rule's numbers.
    pub fn rule(&self) -> PackingRule {
        self.placement.rule()
    }

    /// Plans an allocation. One of no bytes is live until it is freed and takes nothing, whatever an allocator answers to it.
    ///
    /// # Errors
    /// [`PlanError::AlreadyLive`], or [`PlanError::Placement`] for what no 64 bits can count.
    pub fn alloc(&mut self, id: AllocationId, bytes: u64, label: Option<&str>) -> Result<Step, PlanError> {
        if let Some(live) = self.live.get(&id) {
            let bytes = self.bytes_of(live);
            self.count_operation();
            return Err(PlanError::AlreadyLive { id, bytes });
        }
        Ok(self.alloc_noted(id, bytes, label, 0)?)
    }

    /// [`alloc`](Self::alloc) where none of that id lives, with something to be known of it as long as it does.
    pub(crate) fn alloc_noted(
        &mut self,
        id: AllocationId,
        bytes: u64,
        label: Option<&str>,
        note: u64,
    ) -> Result<Step, PlacementError> {
        let operation = self.count_operation();
        let placed = if bytes == 0 { None } else { Some(self.placement.alloc(bytes)?) };
        let label = label.map_or(NO_LABEL, |label| self.intern(label));
        self.live.insert(id, Live { place: placed.map(|placed| placed.id), label, note });
        self.allocations += 1;
        self.requested_bytes = self.requested_bytes.saturating_add(bytes);
        let reserved = placed.map_or(0, |placed| placed.reserved_bytes);
        // The live sum is below the resident one, which 64 bits hold, and in an arena only the granularity rounds.
        self.arena_bytes += self.in_arena(bytes);
        self.arena_peak_bytes = self.arena_peak_bytes.max(self.arena_bytes);

        let (live_bytes, resident_bytes) = (self.live_bytes(), self.resident_bytes());
        let mut peaks = self.peaks;
        for (which, (bytes, beside)) in
            [(LIVE, (live_bytes, resident_bytes)), (RESIDENT, (resident_bytes, live_bytes))]
        {
            // A peak that this very allocation makes has it, so its sums are put aside only after the change.
            if bytes > self.peaks[which].bytes {
                let number = peaks[which].number + 1;
                let (operation, gone) = (Some(operation), self.gone());
                peaks[which] = Stand { bytes, beside, operation, gone, number };
            }
        }
        let is_peak = |which: usize| peaks[which].number != self.peaks[which].number;
        for held in [&mut self.classes[class_of(bytes)], &mut self.holders[label.wrapping_add(1) as usize]] {
            for which in [LIVE, RESIDENT] {
                if !is_peak(which) && held.then[which].1 != self.peaks[which].number {
                    held.then[which] = (held.now, self.peaks[which].number);
                }
            }
            held.now.count += 1;
            held.now.bytes += bytes;
            held.now.reserved += reserved;
        }
        let fullest = (self.peaks[RESIDENT].bytes, self.fullest.arena_bytes);
        if (resident_bytes, self.arena_bytes) > fullest {
            if !self.since_fullest.is_empty() {
                self.since_fullest = HashMap::default();
            }
            self.fullest =
                Fullest { operation: Some(operation), gone: self.gone(), arena_bytes: self.arena_bytes };
        } else {
            self.note_size(reserved, 1);
        }
        self.peaks = peaks;
        Ok(Step { operation, live_bytes, resident_bytes })
    }

    /// Plans the free of an allocation.
    ///
    /// # Errors
    /// [`PlanError::NotLive`].
    pub fn free(&mut self, id: AllocationId) -> Result<Step, PlanError> {
        match self.free_noted(id) {
            Some((step, ..)) => Ok(step),
            None => {
                self.count_operation();
                Err(PlanError::NotLive { id })
            }
        }
    }

    /// [`free`](Self::free) of one that lives, and its bytes and what was noted of it; else nothing is done.
    pub(crate) fn free_noted(&mut self, id: AllocationId) -> Option<(Step, u64, u64)> {
        let (bytes, note) = self.take_off(id)?;
        self.frees += 1;
        Some((self.pass(), bytes, note))
    }

    fn bytes_of(&self, live: &Live) -> u64 {
        live.place.and_then(|place| self.placement.bytes_of(place)).unwrap_or(0)
    }

    /// Bytes of a live allocation, and what was noted of it.
    #[cfg(feature = "trace")]
    pub(crate) fn noted(&self, id: AllocationId) -> Option<(u64, u64)> {
        self.live.get(&id).map(|live| (self.bytes_of(live), live.note))
    }

    /// Those of every live allocation, with its id, in no order.
    #[cfg(feature = "trace")]
    pub(crate) fn all_noted(&self) -> impl Iterator<Item = (AllocationId, u64, u64)> + '_ {
        self.live.iter().map(|(&id, live)| (id, self.bytes_of(live), live.note))
    }

    /// Takes off what a log's next row says is gone, without an operation of its own.
    #[cfg(feature = "trace")]
    pub(crate) fn displace(&mut self, id: AllocationId) {
        self.take_off(id);
    }

    /// Whether the rule places an allocation of so many bytes beside what is live.
    #[cfg(feature = "trace")]
    pub(crate) fn check_place(&self, bytes: u64) -> Result<(), PlacementError> {
        if bytes == 0 { Ok(()) } else { self.placement.would_take(bytes).map(drop) }
    }

    /// The bytes of what was taken off, and what was noted of it; none where there was nothing.
    fn take_off(&mut self, id: AllocationId) -> Option<(u64, u64)> {
        let live = self.live.remove(&id)?;
        let mut bytes = 0;
        let mut reserved = 0;
        if let Some(place) = live.place {
            bytes = self.placement.bytes_of(place).unwrap_or(0);
            // A live allocation's place is live, as nobody else has the placement.
            reserved = self.placement.free(place).map_or(0, |freed| freed.reserved_bytes);
        }
        self.arena_bytes -= self.in_arena(bytes);
        for held in
            [&mut self.classes[class_of(bytes)], &mut self.holders[live.label.wrapping_add(1) as usize]]
        {
            let now = held.before_change(&self.peaks);
            now.count -= 1;
            now.bytes -= bytes;
            now.reserved -= reserved;
        }
        self.note_size(reserved, -1);
        Some((bytes, live.note))
    }

    /// Counts an operation that changes nothing, as a failed allocation of a log: the next one is numbered after it.
    pub fn pass(&mut self) -> Step {
        let operation = self.count_operation();
        Step { operation, live_bytes: self.live_bytes(), resident_bytes: self.resident_bytes() }
    }

    /// Allocations that were freed, or whose place a log's next row took.
    fn gone(&self) -> u64 {
        self.allocations - self.live.len() as u64
    }

    /// Bytes live now, as asked for.
    pub fn live_bytes(&self) -> u64 {
        self.placement.live_bytes()
    }

    /// Allocations live now.
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Bytes the device would keep now.
    pub fn resident_bytes(&self) -> u64 {
        self.placement.resident_bytes()
    }

    /// Bytes of host memory that the plan takes, by what its tables have room for.
    pub fn memory_bytes(&self) -> usize {
        let map = |capacity: usize, entry: usize| capacity * 8 / 7 * (entry + 1);
        let names: usize = self.names.iter().map(|name| name.len() + 16).sum();
        size_of::<Self>()
            + self.placement.memory_bytes()
            + map(self.live.capacity(), size_of::<(AllocationId, Live)>())
            + map(self.since_fullest.capacity(), size_of::<(u64, i64)>())
            + map(self.labels.capacity(), size_of::<(Arc<str>, u32)>())
            + size_of::<Held>() * self.holders.capacity()
            + size_of::<Arc<str>>() * self.names.capacity()
            + names
    }

    fn count_operation(&mut self) -> u64 {
        self.operations += 1;
        self.operations - 1
    }

    fn in_arena(&self, bytes: u64) -> u64 {
        // What the rule has placed, rounded by it to more than this, cannot overflow here.
        bytes.next_multiple_of(self.rule().granularity_bytes())
    }

    fn intern(&mut self, label: &str) -> u32 {
        if let Some(&id) = self.labels.get(label) {
            return id;
        }
        let id = self.names.len() as u32;
        let name: Arc<str> = label.into();
        self.names.push(Arc::clone(&name));
        self.labels.insert(name, id);
        self.holders.push(Held::default());
        id
    }

    fn note_size(&mut self, reserved: u64, step: i64) {
        let more = self.since_fullest.entry(reserved).or_insert(0);
        *more += step;
        if *more == 0 {
            self.since_fullest.remove(&reserved);
        }
    }

    /// How many allocations of each size, as the rule keeps it, are live in the fullest moment.
    fn sizes_when_fullest(&self) -> Sizes {
        let mut sizes: HashMap<u64, i64, Mixer> = HashMap::default();
        for reserved in self.placement.reserved_each() {
            *sizes.entry(reserved).or_insert(0) += 1;
        }
        for (&reserved, &since) in &self.since_fullest {
            *sizes.entry(reserved).or_insert(0) -= since;
        }
        // Those of no bytes are kept nowhere.
        sizes
            .into_iter()
            .filter(|&(reserved, count)| reserved > 0 && count > 0)
            .map(|(reserved, count)| (reserved, count.unsigned_abs()))
            .collect()
    }
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
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

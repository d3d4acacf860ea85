// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Leaks`]: what was not freed, destroyed or released, as plain data and as text.

use core::fmt;

use crate::model::memory::{Allocation, AllocationKind};

/// What kind of memory leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// From `cuMemAlloc_v2`.
    Device,
    /// From `cuMemAllocManaged`.
    Managed,
    /// From `cuMemAllocHost_v2`.
    Pinned,
    /// From `cuMemAllocAsync` or `cuMemAllocFromPoolAsync`.
    Pool,
    /// From `cuMemCreate`: its handle was not released, or it is still mapped.
    Physical,
}

/// Memory that was not freed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct LeakedMemory {
    /// The device it is on, by index.
    pub device: usize,
    /// Its address; for physical memory, which has none of its own, its handle.
    pub address: u64,
    /// Its size in bytes, as asked for.
    pub bytes: u64,
    /// Its kind.
    pub kind: MemoryKind,
    /// Whether its context was destroyed with it still there.
    pub context_ended: bool,
}

impl LeakedMemory {
    /// `None` for a module's global, which goes with its module, for a mapping, whose physical memory counts, and for what a
    /// stream is about to free.
    pub(crate) fn of(address: u64, allocation: &Allocation) -> Option<Self> {
        if allocation.free_submitted {
            return None;
        }
        let kind = match allocation.kind {
            AllocationKind::Device(_) => MemoryKind::Device,
            AllocationKind::Managed { .. } => MemoryKind::Managed,
            AllocationKind::Pinned => MemoryKind::Pinned,
            AllocationKind::Pool { .. } => MemoryKind::Pool,
            AllocationKind::Global | AllocationKind::Mapped(_) => return None,
        };
        Some(Self { device: allocation.device, address, bytes: allocation.bytes, kind, context_ended: false })
    }

    pub(crate) fn physical(handle: u64, device: usize, bytes: u64) -> Self {
        Self { device, address: handle, bytes, kind: MemoryKind::Physical, context_ended: false }
    }
}

/// A handle that was not destroyed or released.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct LeakedHandle {
    /// The handle.
    pub handle: u64,
    /// Whether its context was destroyed with it still there.
    pub context_ended: bool,
}

impl From<u64> for LeakedHandle {
    fn from(handle: u64) -> Self {
        Self { handle, context_ended: false }
    }
}

/// A primary context that was not released as often as it was retained.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct LeakedContext {
    /// The device, by index.
    pub device: usize,
    /// References left.
    pub references: usize,
}

impl From<(usize, usize)> for LeakedContext {
    fn from((device, references): (usize, usize)) -> Self {
        Self { device, references }
    }
}

/// Everything that was made and not freed, destroyed or released: what is alive now, and what was alive when a context ended.
///
/// ```
/// use metrale_driver_sim::{Profile, SimDriver};
///
/// let driver = SimDriver::new(Profile::h200());
/// // ... the work under test ...
/// let leaks = driver.leaks();
/// assert!(leaks.is_empty(), "{leaks}");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaks {
    /// Contexts that are still retained.
    pub contexts: Vec<LeakedContext>,
    /// Memory of every kind, by device and address.
    pub memory: Vec<LeakedMemory>,
    /// Memory pools that were made and not destroyed.
    pub pools: Vec<LeakedHandle>,
    /// Reserved address ranges, by their start.
    pub address_ranges: Vec<LeakedHandle>,
    /// Modules.
    pub modules: Vec<LeakedHandle>,
    /// Streams.
    pub streams: Vec<LeakedHandle>,
    /// Events.
    pub events: Vec<LeakedHandle>,
    /// Graphs.
    pub graphs: Vec<LeakedHandle>,
    /// Instantiated graphs.
    pub graph_execs: Vec<LeakedHandle>,
}

impl Leaks {
    /// Whether nothing leaked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.contexts.is_empty()
            && self.memory.is_empty()
            && self.handles().iter().all(|(_, handles)| handles.is_empty())
    }

    /// Bytes of the memory that was not freed.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.iter().fold(0, |sum, memory| sum.saturating_add(memory.bytes))
    }

    fn handles(&self) -> [(&'static str, &Vec<LeakedHandle>); 7] {
        [
            ("memory pool", &self.pools),
            ("address range", &self.address_ranges),
            ("module", &self.modules),
            ("stream", &self.streams),
            ("event", &self.events),
            ("graph", &self.graphs),
            ("instantiated graph", &self.graph_execs),
        ]
    }

    pub(crate) fn extend(&mut self, mut other: Self, context_ended: bool) {
        if context_ended {
            other.memory.iter_mut().for_each(|memory| memory.context_ended = true);
            for handles in other.handles_mut() {
                handles.iter_mut().for_each(|handle| handle.context_ended = true);
            }
        }
        self.contexts.append(&mut other.contexts);
        self.memory.append(&mut other.memory);
        for (mine, theirs) in self.handles_mut().into_iter().zip(other.handles_mut()) {
            mine.append(theirs);
        }
    }

    pub(crate) fn sort(&mut self) {
        self.memory.sort();
        self.handles_mut().into_iter().for_each(|handles| handles.sort());
    }

    fn handles_mut(&mut self) -> [&mut Vec<LeakedHandle>; 7] {
        [
            &mut self.pools,
            &mut self.address_ranges,
            &mut self.modules,
            &mut self.streams,
            &mut self.events,
            &mut self.graphs,
            &mut self.graph_execs,
        ]
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing leaked");
        }
        let ended = |ended: bool| if ended { ", its context ended" } else { "" };
        write!(f, "leaked:")?;
        for context in &self.contexts {
            write!(f, "\n  context of device {}, {} references", context.device, context.references)?;
        }
        for memory in &self.memory {
            let LeakedMemory { device, address, bytes, kind, context_ended } = memory;
            let end = ended(*context_ended);
            write!(f, "\n  {kind:?} memory of device {device}: {bytes} bytes at {address:#x}{end}")?;
        }
        for (what, handles) in self.handles() {
            for handle in handles {
                write!(f, "\n  {what} {:#x}{}", handle.handle, ended(handle.context_ended))?;
            }
        }
        Ok(())
    }
}

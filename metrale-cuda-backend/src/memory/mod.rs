// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: allocating, freeing, copying, asking.

mod alloc;
mod arena;
mod copy;
mod copy_2d;
mod info;
mod memset;
mod not_device;
mod out_of_memory;
mod packed_arena;
mod peer;
mod pinned;
mod pinned_book;
mod upload;

// Decisions that need no driver.
mod arena_space;
mod cgroup;
mod effective;
mod meminfo;
mod poll;
mod watchdog;

pub use alloc::FreeError;
pub use arena_space::ARENA_GRANULE;
pub use copy::{CopyOutOfBounds, End};
pub use copy_2d::{Copy2d, Side};
pub use info::MemoryInfo;
pub use not_device::{FoundMemory, NotDeviceMemory};
pub use out_of_memory::{Holder, OutOfMemory, Verdict};
pub use packed_arena::{ArenaError, PackedArena};
pub use pinned::{PinnedBuffer, PinnedPtr};
pub(crate) use pinned_book::PinnedBook;
pub use pinned_book::StalePinned;
pub use upload::Uploader;

pub use cgroup::{CgroupLimit, NotALimit};
pub use effective::{
    Aged, EffectiveFree, FreeSituation, FreeSource, FreeUnknown, effective_free, effective_free_bytes,
};
pub use meminfo::{HostFigure, HostFigureKind, HugePages, MemInfo, MemInfoError, MemInfoNote};
pub use poll::{FreePoll, PolledFree};
pub use watchdog::{
    BelowFloor, LOW_MEMORY_EXIT_CODE, LOW_READINGS, LowMemory, LowMemoryHandler, Pace, Watchdog,
    WatchdogError, WatchdogParts, WatchdogThread, Watched, load_fits, watch,
};

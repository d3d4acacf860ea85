// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: allocating, freeing, copying, asking.

mod accounting;
mod alloc;
mod alloc_lock;
mod arena;
mod at_rest;
mod copy;
mod copy_2d;
mod cost;
mod end;
mod followed;
mod free;
mod free_owned;
mod gpu_copies;
mod gpu_memory;
mod host_limit;
mod info;
mod not_device;
mod oom_watchdog;
mod out_of_memory;
mod owned;
mod owned_addresses;
mod owned_arenas;
mod packed_arena;
mod peer;
mod pinned;
mod pinned_ptr;
mod pinned_table;
mod refused_request;
mod small;
mod surviving_arenas;
mod transfer;

mod upload;

// Decisions that need no driver.
mod account;
mod arena_space;
mod cgroup;
mod effective;
mod measure;
mod meminfo;
mod poll;
mod watchdog;

pub(crate) use alloc::FREE_AFTER;
pub use alloc::FreeError;
pub use arena_space::ARENA_GRANULE;
pub use copy::CopyOutOfBounds;
pub use copy_2d::{Copy2d, Side};
pub use end::End;
pub use free::cuda_free_memory_bytes;
pub use info::MemoryInfo;
pub use not_device::{FoundMemory, NotDeviceMemory};
pub use oom_watchdog::spawn_oom_watchdog;
pub use out_of_memory::{Holder, OutOfMemory, Verdict};
pub use owned::{Freed, OwnedMemory};
pub use packed_arena::{ArenaError, PackedArena};
pub use pinned_ptr::PinnedPtr;
pub use pinned_table::StalePinned;
pub use upload::Uploader;

pub use account::{Account, AccountError, Quality, Term};
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

pub(crate) use alloc_lock::{AllocLock, AllocLockGuard};
pub(crate) use cost::{Cost, Costs};
pub(crate) use followed::{Followed, FollowedRanges};
pub(crate) use info::memory_info_of;
pub(crate) use owned::Deferred;
pub(crate) use owned_addresses::OwnedAddresses;
pub(crate) use owned_arenas::{ArenaOwner, OwnedArenas};
pub(crate) use pinned_table::PinnedTable;
pub(crate) use poll::Polling;

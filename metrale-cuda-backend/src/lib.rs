// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CUDA backend of an inference engine, with a ledger that accounts for every byte.
//!
//! ```text
//!   engine ── GpuBackend (object-safe) ──> MetraleCudaBackend
//!                                            |      |       |
//!                                         ledger  registry  telemetry
//!                                                   |
//!                                               DriverApi    the installed driver, or one in software
//! ```
//!
//! Every allocation is recorded with the source line that made it, and removed from the ledger before it is freed. So at any
//! moment the backend can say what is live, whose it is and what the device keeps for it; a double free is answered with
//! both lines, out of memory with who holds what, and a copy past the end with the owner's line.
//!
//! ```
//! use metrale_cuda_backend::MetraleCudaBackend;
//! # use std::sync::Arc;
//! # use metrale_driver_sim::{Profile, SimDriver};
//!
//! // On a machine with a GPU: `MetraleCudaBackend::new(0, &[])?`.
//! # let driver = Arc::new(SimDriver::new(Profile::h200()));
//! let backend = MetraleCudaBackend::builder().driver(driver).build()?;
//!
//! let weights = {
//!     let _layer = backend.scope("layers.0.mlp");
//!     backend.alloc(3 << 20)?
//! };
//! backend.copy_h2d(&[7; 1024], weights)?;
//! # if !cfg!(feature = "ledger") { return Ok(()) } // then the reads answer zero
//! assert_eq!(backend.live_bytes(), 3 << 20);
//! assert_eq!(backend.resident_bytes(), 4 << 20); // whole 2 MiB pages
//! println!("{}", backend.alloc_report(10, 0));
//!
//! backend.free(weights)?;
//! let again = backend.free(weights).unwrap_err();
//! assert!(again.to_string().contains("freed before at"));
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! # What it is not
//! A memory pool, a tensor library or a scheduler: each call is the driver's call of that name, checked and accounted
//! for. Streams, events and graphs are the caller's to order; what a capture would not survive, and memory that a graph
//! uses, is refused before the driver is asked.
//!
//! # Features
//! * `ledger` (on): keeps the ledger. Without it the same methods exist, the reads answer zero, and the sweep and the drop free what is left.
//! * `redzone` (on): bands around allocations, in which a stray write shows. Without it a configuration that asks for them is
//!   refused with [`FeatureOff`], and scans find none.
//! * `watchdog` (on): the watchdog over the free memory. Without it starting one is refused.
//! * `tensormap` (on): encoding tensor maps. Without it encoding one is refused; the rules can still be checked.
//! * `timing` (on): spans of device time. Without it every span is inert, and a configuration that times kernels is refused.
//! * `graph` (on): captures and graphs. Without it `begin_capture` answers [`NotSupported`].
//! * `sim` (off): `builder().software(profile)`, the driver in software.
//! * `serde` (off): `Serialize` and `Deserialize` for the account and the ledger's snapshots.
//! * `cudarc` (off): `MetraleCudaBackend::adopt` puts cudarc's allocations on the ledger; context and stream are shared by
//!   the host, see `metrale_registry`.
//! * `metrale_scale` (off): builds for AMD's SCALE toolchain.

mod backend;
mod binding;
mod builder;
mod call;
mod config;
mod device;
mod device_arch;
mod diagnostics;
mod environment;
pub mod error;
mod event;
mod fault_latch;
mod fault_probe;
mod fault_reason;
mod features;
mod gpu;
mod graph;
mod handle_tombstones;
mod handles;
mod held_handle;
mod kernel_launch;
mod kernel_table;
mod kernels;
mod launch;
mod ledger_writer;
mod left;
mod live_addresses;
pub mod memory;
mod merged_report;
mod n_tile;
mod op_cache;
mod owned_handle;
mod owners;
mod parts;
mod raw_handles;
mod scratch;
mod signature;
mod span_table;
mod stream;
mod streams;
mod sweep;
mod timing;

// Decisions that need no driver.
mod arch;
mod preflight;
pub mod redzone;
pub mod tensormap;

pub use backend::MetraleCudaBackend;
pub use builder::BackendBuilder;
pub use config::{BackendConfig, DEBUG_SYNC_KERNELS, RECENT_EVENTS, TIME_KERNELS};
pub use environment::ConfigError;
pub use error::{
    BadArgument, CallFailed, ContextLost, Error, ErrorKind, FeatureOff, LedgerConflict, NotSupported, Remedy,
    Result, cause, remedy,
};
pub use fault_latch::FaultLatch;
pub use fault_reason::FaultReason;
pub use gpu::{
    GpuBackend, GpuCopies, GpuDevice, GpuDiagnostics, GpuGraphs, GpuKernels, GpuMemory, GpuStreams,
};
pub use graph::{
    CaptureGuard, Capturing, GraphFault, GraphInfo, GraphUpdate, NotCapturing, PinHolder, PinnedByGraph,
    StreamInUse,
};
pub use kernel_launch::KernelLaunch;
pub use launch::KernelFault;
pub use memory::{
    ARENA_GRANULE, ArenaError, Copy2d, CopyOutOfBounds, End, FoundMemory, FreeError, Freed, Holder,
    MemoryInfo, NotDeviceMemory, OutOfMemory, OwnedMemory, PackedArena, PinnedPtr, Side, StalePinned,
    Uploader, Verdict,
};
pub use merged_report::{DeviceLedger, MergedReport};
pub use metrale_driver_sys::{CUtensorMap, DriverApi, DriverError, DriverFn};
pub use metrale_ledger::{
    AllocEvent, AllocEventKind, AllocKind, AllocRecord, ArenaRow, ByteSize, FileRow, ForgetError,
    FreedAllocation, FreedBy, Group, GroupChange, Label, LabelChange, LabelRow, LedgerProbe, LiveAllocation,
    Mark, MisuseCounts, PartRow, RecordMisuse, ScopeGuard, Site, SiteChange, SiteRow, Snapshot, SnapshotDiff,
    SubRange, SubRangeError, Totals, Whois,
};
pub use metrale_registry::{
    CudaHost, DeviceFacts, HostError, LaunchError, LaunchExcess, MetraleRegistry, RegistryError,
};
pub use n_tile::NTileError;
pub use op_cache::{OpHandle, Scratch};
pub use owned_handle::OwnedHandle;
pub use owners::{
    Arena, Capture, DeviceBuffer, DeviceSlice, DeviceSliceMut, Event, Graph, Kernel, Module, PinnedBuffer,
    SharedBackend, Stream,
};
#[allow(unused_imports, unreachable_pub, reason = "what there is depends on the features")]
pub use parts::*;
pub use raw_handles::{DevicePtr, EventHandle, GraphHandle, KernelHandle, LEGACY_STREAM, StreamHandle};
pub use sweep::SweepIncomplete;
pub use timing::{SpanHarvest, TimingSpan};

pub use arch_preflight::*;
pub use memory::{cuda_free_memory_bytes, effective_free_bytes, spawn_oom_watchdog};
pub use tensormap::{TensorMap, TensorMapError, TensorMapOutOfBounds, TensorMapSpec};

/// Before modules load: does this device run what they were built for? By ordinal, with no context.
///
/// [`arch_preflight`](arch_preflight::arch_preflight) asks the system's driver; [`preflight`](arch_preflight::preflight) is the
/// same decision on a device described by hand. A backend asks when it is built.
pub mod arch_preflight {
    pub use crate::arch::{
        CodeTarget, ComputeCapability, DeviceArch, IsaVersion, Portability, Shortfall, SmTarget,
    };
    pub use crate::device_arch::arch_preflight;
    pub use crate::preflight::{
        ModuleTarget, PreflightError, PreflightWarning, RefusedCode, TargetMismatch, preflight,
    };
}

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: marks in a stream, with the model's own clock.
//!
//! Time is synthetic, so that nothing depends on the host's speed: each operation that runs moves its context's clock by
//! a microsecond and by a nanosecond for each KiB it moves, and an event keeps the clock of the moment it ran.

use metrale_ledger::placement::pool::PoolEvent;

use super::stream::Point;

/// An event that keeps no time.
pub(crate) const DISABLE_TIMING: u32 = metrale_driver_sys::CU_EVENT_DISABLE_TIMING;
/// Default, blocking synchronization, no timing, interprocess.
pub(crate) const KNOWN_FLAGS: u32 = 7;
/// An event for other processes, which must not keep time.
pub(crate) const INTERPROCESS: u32 = 4;

pub(crate) enum EventState {
    /// Never recorded: counts as passed.
    Never,
    Recorded {
        point: Point,
        /// The clock when it ran, in nanoseconds.
        at_ns: Option<u64>,
    },
    /// Recorded in a capture: stands for nodes of a graph, not for work.
    Captured { capture: u64, tips: Vec<u32> },
}

pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) state: EventState,
    /// What its last record means to each memory pool.
    pub(crate) pools: Vec<(u64, PoolEvent)>,
    /// Counts the recordings, so that an older one that runs late does not speak for a newer.
    pub(crate) serial: u64,
    /// The recording that the last query found pending.
    pub(crate) queried: u64,
}

impl Event {
    pub(crate) fn new(device: usize, flags: u32) -> Self {
        Self { device, flags, state: EventState::Never, pools: Vec::new(), serial: 0, queried: 0 }
    }

    pub(crate) fn keeps_time(&self) -> bool {
        self.flags & DISABLE_TIMING == 0
    }
}

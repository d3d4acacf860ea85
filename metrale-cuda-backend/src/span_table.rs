// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Timing`]: the spans of a backend that wait to be read.

use metrale_driver_sys::CUevent;
use metrale_telemetry::PendingSpans;
use parking_lot::Mutex;

/// One backend's spans.
pub(crate) struct Timing {
    pub(crate) state: Mutex<TimingState>,
}

pub(crate) struct TimingState {
    pub(crate) pending: PendingSpans<Pair>,
    /// Events to use again.
    pub(crate) spare: Vec<CUevent>,
}

impl Default for Timing {
    fn default() -> Self {
        let pending = PendingSpans::with_limit(PENDING_LIMIT);
        Self { state: Mutex::new(TimingState { pending, spare: Vec::new() }) }
    }
}

/// Spans that may wait to be read. Each holds two events, a few hundred bytes of the driver's.
pub(crate) const PENDING_LIMIT: usize = 4096;

/// The two events of a span.
pub(crate) type Pair = (CUevent, CUevent);

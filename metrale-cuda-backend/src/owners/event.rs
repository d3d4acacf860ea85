// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Event`]: a mark in the order of a stream, destroyed when its last clone is dropped.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::gpu::GpuBackend;
use crate::owned_handle::OwnedHandle;
use crate::owners::kept::log_kept;
use crate::owners::shared::SharedBackend;
use crate::raw_handles::EventHandle;

/// A mark that [`Stream::record`](crate::Stream::record) puts behind the work of a stream, and that others wait for with
/// [`Stream::wait`](crate::Stream::wait).
///
/// A clone is the same event. The last one that is dropped destroys it; work that was told to wait for it still does.
#[derive(Clone)]
pub struct Event(Arc<OwnedEvent>);

struct OwnedEvent {
    gpu: Arc<dyn GpuBackend>,
    raw: EventHandle,
    /// None once the drop has given it up.
    owned: Option<OwnedHandle<EventHandle>>,
}

impl Event {
    /// Makes an event that keeps no time, the cheaper kind. As [`GpuStreams::create_event`](crate::GpuStreams::create_event).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn new(gpu: &impl SharedBackend) -> Result<Self> {
        Self::made(gpu, false)
    }

    /// Makes an event for [`elapsed_ms_since`](Self::elapsed_ms_since). As [`GpuStreams::create_timing_event`](crate::GpuStreams::create_timing_event).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn timing(gpu: &impl SharedBackend) -> Result<Self> {
        Self::made(gpu, true)
    }

    #[track_caller]
    fn made(gpu: &impl SharedBackend, timing: bool) -> Result<Self> {
        let gpu = gpu.share();
        let owned = gpu.create_owned_event(timing)?;
        Ok(Self(Arc::new(OwnedEvent { gpu, raw: owned.handle(), owned: Some(owned) })))
    }

    /// Its handle, for raw calls. It is good as long as the event.
    #[must_use]
    pub fn handle(&self) -> EventHandle {
        self.0.raw
    }

    pub(crate) fn owned(&self) -> Option<&OwnedHandle<EventHandle>> {
        self.0.owned.as_ref()
    }

    /// Waits until it has passed; one never recorded has. As [`GpuStreams::synchronize_event`](crate::GpuStreams::synchronize_event).
    ///
    /// # Errors
    /// As there.
    pub fn synchronize(&self) -> Result<()> {
        self.0.gpu.synchronize_event(self.0.raw)
    }

    /// Whether it has passed; one never recorded has. Does not block. As [`GpuStreams::query_event`](crate::GpuStreams::query_event).
    ///
    /// # Errors
    /// As there.
    pub fn has_passed(&self) -> Result<bool> {
        self.0.gpu.query_event(self.0.raw)
    }

    /// Milliseconds from `earlier` to this event. Does not block. As [`GpuStreams::elapsed_ms`](crate::GpuStreams::elapsed_ms).
    ///
    /// # Errors
    /// As there: both must be [`timing`](Self::timing) events that have passed.
    pub fn elapsed_ms_since(&self, earlier: &Self) -> Result<f32> {
        self.0.gpu.elapsed_ms(earlier.0.raw, self.0.raw)
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        if let Some(owned) = self.owned.take()
            && let Err(error) = self.gpu.destroy_owned_event(owned)
        {
            log_kept(format_args!("event {:#x}", self.raw), &error);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.0.raw)
    }
}

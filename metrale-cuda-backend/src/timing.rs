// SPDX-License-Identifier: MIT OR Apache-2.0
//! Timing spans: device time between two events of a stream, read once it is there and never waited for.
//!
//! Sums by name are in [`metrale_telemetry::run_metrics`]; spans are recorded while its
//! [`spans`](metrale_telemetry::RunMetrics::spans) are switched on.

use core::fmt;
use std::sync::Arc;

use metrale_driver_sys::{CU_EVENT_DEFAULT, CUDA_ERROR_NOT_READY, CUevent, DriverError};
use metrale_telemetry::run_metrics;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::Result;
use crate::features::TIMES_SPANS;
use crate::raw_handles::StreamHandle;
use crate::span_table::{PENDING_LIMIT, Pair, TimingState};

/// What a harvest of spans brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanHarvest {
    /// Spans whose times were added to the sums.
    pub read: usize,
    /// Spans that could not be read; they are in no sum.
    pub failed: usize,
    /// Spans that have not passed yet.
    pub pending: usize,
    /// Spans refused because of the limit since the backend was made; they are in no sum.
    pub refused: u64,
}

/// A span that has begun. It ends when [`end`](Self::end) is called or it is dropped; what is queued on its stream in
/// between is what it times.
#[must_use = "a span ends when it is dropped; bind it: `let span = backend.span(..)?`"]
pub struct TimingSpan<'backend> {
    backend: &'backend MetraleCudaBackend,
    name: Arc<str>,
    stream: StreamHandle,
    /// 0 where nothing is timed.
    start: CUevent,
}

impl TimingSpan<'_> {
    /// Whether it times anything: spans are switched on, and its stream does not capture.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.start != 0
    }

    /// Ends the span after what is queued on its stream so far. Does not block. In a capture the span is given up: the
    /// graph would run it anew at every replay.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says; the span is then in no sum.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    /// Gives the span up: nothing is timed, and it is in no sum. Does not block.
    pub fn cancel(mut self) {
        let start = core::mem::take(&mut self.start);
        if start != 0 {
            self.backend.timing().state.lock().spare.push(start);
        }
    }

    fn finish(&mut self) -> Result<()> {
        match core::mem::take(&mut self.start) {
            0 => Ok(()),
            start => self.backend.end_span(&self.name, self.stream, start),
        }
    }
}

impl Drop for TimingSpan<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::debug!("span {:?} is lost: {error:#}", self.name);
        }
    }
}

impl fmt::Debug for TimingSpan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimingSpan")
            .field("name", &self.name)
            .field("stream", &format_args!("{:#x}", self.stream))
            .field("is_recording", &self.is_recording())
            .finish_non_exhaustive()
    }
}

/// Whether spans are to be recorded. One relaxed load.
fn are_timed() -> bool {
    TIMES_SPANS && run_metrics::process().spans().is_enabled()
}

impl MetraleCudaBackend {
    /// Adds the times of the spans that have passed to the sums.
    pub(crate) fn read_spans(&self) -> Result<SpanHarvest> {
        let _bound = self.bound("reading spans")?;
        Ok(self.harvest(&mut self.timing().state.lock()))
    }

    /// Begins a span, where spans are switched on.
    pub(crate) fn begin_span(&self, name: &str, stream: StreamHandle) -> Result<TimingSpan<'_>> {
        const WHAT: &str = "beginning a span";
        if !are_timed() {
            return Ok(TimingSpan { backend: self, name: name.into(), stream, start: 0 });
        }
        let _bound = self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        // SAFETY: the stream is held.
        unsafe { self.span_on_held(name.into(), stream) }
    }

    /// Begins a span; the thread is known to be bound.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    pub(crate) unsafe fn span_on_held(&self, name: Arc<str>, stream: StreamHandle) -> Result<TimingSpan<'_>> {
        let mut span = TimingSpan { backend: self, name, stream, start: 0 };
        // SAFETY: the caller's promise.
        if are_timed() && !unsafe { self.is_capturing_or_cannot_tell(stream) } {
            // SAFETY: the caller's promise.
            let mark = unsafe { self.mark(stream) };
            span.start = mark.doing(|| format!("beginning span {:?}", span.name))?;
        }
        Ok(span)
    }

    fn harvest(&self, state: &mut TimingState) -> SpanHarvest {
        let totals = run_metrics::process().spans();
        let harvest = state.pending.harvest(totals, |pair| self.has_ended(*pair), |pair| self.between(*pair));
        for (name, error) in &harvest.failed {
            tracing::debug!("span {name:?} is lost: {error}");
        }
        for (start, end) in harvest.handles {
            state.spare.extend([start, end]);
        }
        SpanHarvest {
            read: harvest.read,
            failed: harvest.failed.len() + harvest.invalid,
            pending: state.pending.len(),
            refused: state.pending.refused(),
        }
    }

    fn end_span(&self, name: &Arc<str>, stream: StreamHandle, start: CUevent) -> Result<()> {
        let end = match self.mark_the_end(name, stream) {
            Ok(Some(end)) => end,
            given_up => {
                self.timing().state.lock().spare.push(start);
                return given_up.map(drop);
            }
        };
        let mut state = self.timing().state.lock();
        if state.pending.len() == PENDING_LIMIT {
            self.harvest(&mut state);
        }
        if let Err(full) = state.pending.push(stream.raw(), Arc::clone(name), (start, end)) {
            state.spare.extend([full.0.0, full.0.1]);
        }
        Ok(())
    }

    /// The event that ends a span; `None` in a capture.
    fn mark_the_end(&self, name: &str, stream: StreamHandle) -> Result<Option<CUevent>> {
        const WHAT: &str = "ending a span";
        let _bound = self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        // SAFETY: the stream is held.
        if unsafe { self.is_capturing_or_cannot_tell(stream) } {
            return Ok(None);
        }
        // SAFETY: the stream is held.
        unsafe { self.mark(stream) }.map(Some).doing(|| format!("ending span {name:?}"))
    }

    /// An event that keeps time, recorded after what is queued on a stream.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    unsafe fn mark(&self, stream: StreamHandle) -> Result<CUevent, DriverError> {
        let spare = self.timing().state.lock().spare.pop();
        let event = match spare {
            Some(event) => event,
            None => {
                let mut event = 0;
                // SAFETY: the result pointer is a local.
                unsafe { ask!(self.driver(), cuEventCreate(&mut event, CU_EVENT_DEFAULT)) }?;
                event
            }
        };
        // SAFETY: no memory is passed; the event is the backend's own and nobody else uses it now, the stream is held.
        let recorded = unsafe { ask!(self.driver(), cuEventRecord(event, stream.raw())) };
        if recorded.is_err() {
            self.timing().state.lock().spare.push(event);
        }
        recorded.map(|()| event)
    }

    fn has_ended(&self, (_, end): Pair) -> Result<bool, DriverError> {
        // SAFETY: no memory is passed; the event is the backend's own.
        match unsafe { ask!(self.driver(), cuEventQuery(end)) } {
            Err(error) if error.status == CUDA_ERROR_NOT_READY => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    fn between(&self, (start, end): Pair) -> Result<f32, DriverError> {
        let mut milliseconds = 0.0;
        // SAFETY: the result pointer is a local; the events are the backend's own.
        unsafe { ask!(self.driver(), cuEventElapsedTime(&mut milliseconds, start, end)) }?;
        Ok(milliseconds)
    }

    /// Destroys all events, at the end of the backend. The context is current and sound.
    pub(crate) fn end_timing(&self) {
        let mut state = self.timing().state.lock();
        let pending = state.pending.drain();
        let events = pending.into_iter().flat_map(|(start, end)| [start, end]);
        let mut kept = None;
        for event in events.chain(core::mem::take(&mut state.spare)) {
            // SAFETY: no memory is passed; the event is the backend's own, and this is the last use of it.
            kept = kept.or(unsafe { ask!(self.driver(), cuEventDestroy_v2(event)) }.err());
        }
        if let Some(error) = kept {
            tracing::debug!("events of spans stay until the context is destroyed: {error}");
        }
    }
}

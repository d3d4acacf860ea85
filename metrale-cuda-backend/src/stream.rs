// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: making, waiting, asking.

use std::panic::Location;

use anyhow::Result;
use metrale_driver_sys::{
    CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_NON_BLOCKING, CUDA_ERROR_NOT_READY, DriverError,
    stream_capture_status,
};
use metrale_telemetry::{Counter, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::BadArgument;
use crate::graph::Reach;
use crate::handles::is_the_drivers;
use crate::memory::Cost;

/// The legacy default stream, which synchronizes with every stream that did not opt out.
pub const LEGACY_STREAM: u64 = 0;

/// The legacy default stream by the driver's other handle for it, `CU_STREAM_LEGACY`.
const LEGACY_BY_NAME: u64 = 1;

/// Whether a handle is the legacy default stream's.
pub(crate) const fn is_legacy(stream: u64) -> bool {
    matches!(stream, LEGACY_STREAM | LEGACY_BY_NAME)
}

/// Why nobody waits for a stream that captures.
const NOTHING_TO_WAIT_FOR: &str = "nothing has run yet, and the wait would break the capture; end it, launch the graph, and \
                                   then wait";

impl MetraleCudaBackend {
    /// See [`GpuBackend::create_stream`](crate::GpuBackend::create_stream).
    #[track_caller]
    pub fn create_stream(&self) -> Result<u64> {
        let site = Location::caller();
        self.bound("making a stream")?;
        let make = || {
            let mut stream = 0;
            // SAFETY: the result pointer is a local.
            unsafe { ask!(self.driver(), cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING)) }
                .doing(|| "making a stream".to_owned())?;
            Ok(stream)
        };
        let stream = self.measure(Cost::Streams, make)?;
        self.streams().made(stream, site);
        Ok(stream)
    }

    /// See [`GpuBackend::destroy_stream`](crate::GpuBackend::destroy_stream).
    #[track_caller]
    pub fn destroy_stream(&self, stream: u64) -> Result<()> {
        const WHAT: &str = "destroying a stream";
        let site = Location::caller();
        if is_the_drivers(stream) {
            let what = if stream == 2 { "the stream of each thread" } else { "the legacy stream" };
            return Err(
                BadArgument::new(format!("{what} is the driver's own and cannot be destroyed")).into()
            );
        }
        if stream == self.stream() {
            return Err(BadArgument::new(
                "this is the backend's own stream, which every backend of the device shares; it is destroyed with the last of them",
            )
            .into());
        }
        let _current = self.entered(WHAT)?;
        self.uncaptured(stream, WHAT, || ())?;
        self.outgrow_stream(stream);
        let entry = self.uncaptured(stream, WHAT, || self.streams().remove(stream, site, WHAT))??;
        self.destroy_removed_handle(entry).doing(|| format!("destroying stream {stream:#x}"))
    }

    /// See [`GpuBackend::synchronize_stream`](crate::GpuBackend::synchronize_stream).
    pub fn synchronize_stream(&self, stream: u64) -> Result<()> {
        const WHAT: &str = "waiting for a stream";
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.outside_capture(Reach::Stream(stream), WHAT, NOTHING_TO_WAIT_FOR)?;
        count_sync();
        // SAFETY: no memory is passed; the stream is held.
        unsafe { ask!(self.driver(), cuStreamSynchronize(stream)) }
            .doing(|| format!("waiting for stream {stream:#x}"))
    }

    /// See [`GpuBackend::query_stream`](crate::GpuBackend::query_stream).
    pub fn query_stream(&self, stream: u64) -> Result<bool> {
        const WHAT: &str = "asking whether a stream is done";
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.outside_capture(Reach::Stream(stream), WHAT, NOTHING_TO_WAIT_FOR)?;
        // SAFETY: no memory is passed; the stream is held.
        match unsafe { ask!(self.driver(), cuStreamQuery(stream)) } {
            Err(error) if error.status == CUDA_ERROR_NOT_READY => Ok(false),
            answer => {
                answer.doing(|| format!("asking whether stream {stream:#x} is done"))?;
                Ok(true)
            }
        }
    }

    /// Whether a stream captures; one that cannot say counts as if it did, because a wait or a query would end its capture. Our
    /// own captures are known where the driver cannot tell.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    pub(crate) unsafe fn is_capturing_or_cannot_tell(&self, stream: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.is_capturing(stream) }.unwrap_or(true)
    }

    /// The same, with the driver's refusal where it cannot say.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        if self.captures(stream) {
            return Ok(true);
        }
        // SAFETY: the caller's promise.
        let status = unsafe { stream_capture_status(self.driver(), stream) };
        status.map(|status| status != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// See [`GpuBackend::synchronize`](crate::GpuBackend::synchronize).
    pub fn synchronize(&self) -> Result<()> {
        const ADVICE: &str = "it would break every capture of the device; wait for single streams, or until the capture has \
                              ended";
        self.bound("waiting for the device")?;
        self.outside_capture(Reach::Device, "waiting for the device", ADVICE)?;
        count_sync();
        // SAFETY: takes nothing.
        unsafe { ask!(self.driver(), cuCtxSynchronize()) }
            .doing(|| format!("waiting for all work of device {}", self.ordinal()))
    }
}

/// Counts a wait of the host for the device.
pub(crate) fn count_sync() {
    run_metrics::process().counters().count(Counter::StreamSyncs);
}

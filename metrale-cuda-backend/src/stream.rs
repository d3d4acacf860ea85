// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: making, waiting, asking.

use anyhow::Result;
use metrale_driver_sys::{CU_STREAM_NON_BLOCKING, CUDA_ERROR_NOT_READY};
use metrale_telemetry::{Counter, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::BadArgument;
use crate::graph::Reach;

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
    pub fn create_stream(&self) -> Result<u64> {
        self.bound("making a stream")?;
        let mut stream = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(self.driver(), cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING)) }
            .doing(|| "making a stream".to_owned())?;
        Ok(stream)
    }

    /// See [`GpuBackend::destroy_stream`](crate::GpuBackend::destroy_stream).
    pub fn destroy_stream(&self, stream: u64) -> Result<()> {
        if stream == LEGACY_STREAM {
            return Err(
                BadArgument::new("the legacy stream is the driver's own and cannot be destroyed").into()
            );
        }
        if stream == self.stream() {
            return Err(BadArgument::new(
                "this is the backend's own stream, which every backend of the device shares; it goes with the last of them",
            )
            .into());
        }
        const ADVICE: &str = "end the capture first, or abort_capture_if_active";
        self.outside_capture(Reach::Stream(stream), "destroying a stream", ADVICE)?;
        self.bound("destroying a stream")?;
        // SAFETY: no memory is passed; the driver checks the handle.
        unsafe { ask!(self.driver(), cuStreamDestroy_v2(stream)) }
            .doing(|| format!("destroying stream {stream:#x}"))
    }

    /// See [`GpuBackend::synchronize_stream`](crate::GpuBackend::synchronize_stream).
    pub fn synchronize_stream(&self, stream: u64) -> Result<()> {
        self.outside_capture(Reach::Stream(stream), "waiting for a stream", NOTHING_TO_WAIT_FOR)?;
        self.bound("waiting for a stream")?;
        self.wait_for_stream(stream)
    }

    /// Waits for a stream and counts the wait; the thread is known to be bound.
    pub(crate) fn wait_for_stream(&self, stream: u64) -> Result<()> {
        run_metrics::process().counters().count(Counter::StreamSyncs);
        // SAFETY: no memory is passed; the driver checks the handle.
        unsafe { ask!(self.driver(), cuStreamSynchronize(stream)) }
            .doing(|| format!("waiting for stream {stream:#x}"))
    }

    /// See [`GpuBackend::query_stream`](crate::GpuBackend::query_stream).
    pub fn query_stream(&self, stream: u64) -> Result<bool> {
        const DOING: &str = "asking whether a stream is done";
        self.outside_capture(Reach::Stream(stream), DOING, NOTHING_TO_WAIT_FOR)?;
        self.bound(DOING)?;
        // SAFETY: no memory is passed; the driver checks the handle.
        match unsafe { ask!(self.driver(), cuStreamQuery(stream)) } {
            Err(error) if error.status == CUDA_ERROR_NOT_READY => Ok(false),
            answer => {
                answer.doing(|| format!("asking whether stream {stream:#x} is done"))?;
                Ok(true)
            }
        }
    }

    /// See [`GpuBackend::synchronize`](crate::GpuBackend::synchronize).
    pub fn synchronize(&self) -> Result<()> {
        const ADVICE: &str = "it would break every capture of the device; wait for single streams, or until the capture has \
                              ended";
        self.outside_capture(Reach::Device, "waiting for the device", ADVICE)?;
        self.bound("waiting for the device")?;
        run_metrics::process().counters().count(Counter::StreamSyncs);
        // SAFETY: takes nothing.
        unsafe { ask!(self.driver(), cuCtxSynchronize()) }
            .doing(|| format!("waiting for all work of device {}", self.ordinal()))
    }
}

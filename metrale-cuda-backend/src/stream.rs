// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: making, waiting, asking.

use std::collections::BTreeSet;

use anyhow::Result;
use metrale_driver_sys::{CU_STREAM_NON_BLOCKING, CUDA_ERROR_NOT_READY};
use metrale_telemetry::{Counter, run_metrics};
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::BadArgument;
use crate::memory::Cost;

/// The legacy default stream, which synchronizes with every stream that did not opt out.
pub const LEGACY_STREAM: u64 = 0;

/// The streams this backend has made and not destroyed.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<BTreeSet<u64>>);

impl Streams {
    fn made(&self, stream: u64) {
        self.0.lock().insert(stream);
    }

    fn gone(&self, stream: u64) {
        self.0.lock().remove(&stream);
    }

    /// How many there are.
    pub(crate) fn alive(&self) -> usize {
        self.0.lock().len()
    }

    /// All of them, and `own`.
    pub(crate) fn all_with(&self, own: u64) -> Vec<u64> {
        self.0.lock().iter().copied().chain([own]).collect()
    }
}

impl MetraleCudaBackend {
    /// See [`GpuBackend::create_stream`](crate::GpuBackend::create_stream).
    pub fn create_stream(&self) -> Result<u64> {
        self.bound("making a stream")?;
        let make = || {
            let mut stream = 0;
            // SAFETY: the result pointer is a local.
            unsafe { ask!(self.driver(), cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING)) }
                .doing(|| "making a stream".to_owned())?;
            Ok(stream)
        };
        let stream = self.measure(Cost::Streams, make)?;
        self.streams().made(stream);
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
        self.bound("destroying a stream")?;
        // SAFETY: no memory is passed; the driver checks the handle.
        unsafe { ask!(self.driver(), cuStreamDestroy_v2(stream)) }
            .doing(|| format!("destroying stream {stream:#x}"))?;
        self.streams().gone(stream);
        Ok(())
    }

    /// See [`GpuBackend::synchronize_stream`](crate::GpuBackend::synchronize_stream).
    pub fn synchronize_stream(&self, stream: u64) -> Result<()> {
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
        self.bound("asking whether a stream is done")?;
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
        self.bound("waiting for the device")?;
        run_metrics::process().counters().count(Counter::StreamSyncs);
        // SAFETY: takes nothing.
        unsafe { ask!(self.driver(), cuCtxSynchronize()) }
            .doing(|| format!("waiting for all work of device {}", self.ordinal()))
    }
}

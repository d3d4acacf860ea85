// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fills: device memory set to a byte or to a 32-bit word.

use anyhow::{Error, Result};
use metrale_driver_sys::DriverError;
use metrale_ledger::ByteSize;
use metrale_telemetry::{LaunchArg, LaunchKind};

use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::error::BadArgument;
use crate::gpu::DevicePtr;
use crate::graph::Uses;
use crate::memory::copy::{End, trace};
use crate::stream::LEGACY_STREAM;

impl MetraleCudaBackend {
    /// See [`GpuBackend::memset`](crate::GpuBackend::memset).
    pub fn memset(&self, dst: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        const WHAT: &str = "filling device memory";
        if bytes == 0 {
            return Ok(());
        }
        self.bound(WHAT)?;
        self.may_block(WHAT)?;
        let _there = self.within(WHAT, End::Destination, dst, bytes as u64)?;
        self.own_stream_done()?;
        trace_fill(WHAT, dst, u32::from(value), bytes);
        // SAFETY: the destination is no host memory (`within`), and what else is wrong with it the driver answers.
        unsafe { ask!(self.driver(), cuMemsetD8_v2(dst.0, value, bytes)) }
            // SAFETY: the legacy stream is always there.
            .map_err(|error| unsafe { self.fill_failed(error, WHAT, dst, bytes, LEGACY_STREAM) })?;
        self.legacy_stream_done(WHAT)
    }

    /// See [`GpuBackend::memset_async`](crate::GpuBackend::memset_async).
    pub fn memset_async(&self, dst: DevicePtr, value: u8, bytes: usize, stream: u64) -> Result<()> {
        const WHAT: &str = "queueing a fill";
        if bytes == 0 {
            return Ok(());
        }
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.not_beside_capture(stream, WHAT)?;
        let _there = self.within(WHAT, End::Destination, dst, bytes as u64)?;
        trace_fill(WHAT, dst, u32::from(value), bytes);
        let submission =
            self.submission(stream, WHAT, Uses::Ends { device: [Some(dst.0), None], host: None })?;
        // SAFETY: the destination is no host memory (`within`), and what else is wrong with it the driver answers; the
        // stream is held.
        let answer = unsafe { ask!(self.driver(), cuMemsetD8Async(dst.0, value, bytes, stream)) };
        submission.answered(answer);
        // SAFETY: the stream is held.
        answer.map_err(|error| unsafe { self.fill_failed(error, WHAT, dst, bytes, stream) })
    }

    /// See [`GpuBackend::memset_d32_async`](crate::GpuBackend::memset_d32_async).
    pub fn memset_d32_async(&self, dst: DevicePtr, value: u32, words: usize, stream: u64) -> Result<()> {
        const WHAT: &str = "queueing a fill with words";
        if words == 0 {
            return Ok(());
        }
        if !dst.0.is_multiple_of(4) {
            return Err(BadArgument::new(format!(
                "{WHAT}: {dst} is no multiple of 4, as a 32-bit word needs"
            ))
            .into());
        }
        let Some(bytes) = words.checked_mul(4) else {
            return Err(BadArgument::new(format!(
                "{WHAT}: {words} words are more bytes than there are addresses"
            ))
            .into());
        };
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        self.not_beside_capture(stream, WHAT)?;
        let _there = self.within(WHAT, End::Destination, dst, bytes as u64)?;
        trace_fill(WHAT, dst, value, bytes);
        let submission =
            self.submission(stream, WHAT, Uses::Ends { device: [Some(dst.0), None], host: None })?;
        // SAFETY: the destination is no host memory (`within`), and what else is wrong with it the driver answers; the
        // stream is held.
        let answer = unsafe { ask!(self.driver(), cuMemsetD32Async(dst.0, value, words, stream)) };
        submission.answered(answer);
        // SAFETY: the stream is held.
        answer.map_err(|error| unsafe { self.fill_failed(error, WHAT, dst, bytes, stream) })
    }

    /// The error for a fill the driver refused, after a look at whether the context is lost.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    unsafe fn fill_failed(
        &self,
        error: DriverError,
        doing: &'static str,
        dst: DevicePtr,
        bytes: usize,
        stream: u64,
    ) -> Error {
        let after = || format!("{doing}, {} at {dst}", ByteSize::of(bytes));
        // SAFETY: the caller's promise.
        unsafe { self.check_after_refusal(error, stream, after) };
        self.copy_failed(error, doing, None, Some(dst), bytes)
    }
}

fn trace_fill(name: &'static str, dst: DevicePtr, value: u32, bytes: usize) {
    trace(
        LaunchKind::Memset,
        name,
        [LaunchArg::Pointer(dst.0), LaunchArg::U32(value), LaunchArg::U64(bytes as u64)],
    );
}

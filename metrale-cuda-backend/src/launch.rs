// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding kernels and launching them: untyped, and typed with [`KernelLaunch`].

use core::ffi::c_void;
use std::sync::Arc;

use metrale_driver_sys::{DriverError, DriverFn, check, is_sticky};
use metrale_registry::RegistryError;
use metrale_telemetry::{KernelUsage, Launch, LaunchArg, LaunchKind, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::failed;
use crate::error::{Cause, Error, ErrorKind, Remedy, Result};
use crate::graph::{Submission, Uses};
use crate::kernel_launch::{Argument, KernelLaunch};
use crate::kernel_table::KernelInfo;
use crate::raw_handles::{KernelHandle, StreamHandle};
use crate::timing::TimingSpan;

/// A kernel that failed while it ran, found by waiting after its launch
/// ([`debug_sync_kernels`](crate::BackendConfig::debug_sync_kernels)). The context is lost: restart the process. A wait
/// that was refused for another reason is a [`CallFailed`](crate::CallFailed).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "kernel {kernel} failed while it ran (grid {}, block {}, {shared_bytes} bytes of dynamic shared memory, stream \
     {stream:#x}): {driver}; the context is lost, restart the process",
    extent(*grid), extent(*block)
)]
#[non_exhaustive]
pub struct KernelFault {
    /// Module and function, or the handle where it came from no look-up of this backend.
    pub kernel: Arc<str>,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The stream it was launched on.
    pub stream: StreamHandle,
    /// What the wait answered.
    pub driver: DriverError,
}

/// What is being done, in errors.
const LAUNCHING: &str = "launching a kernel";

/// Arguments up to which a launch asks the host for no memory.
const FEW_PARAMS: usize = 16;

fn extent([x, y, z]: [u32; 3]) -> String {
    format!("{x}x{y}x{z}")
}

impl Cause for KernelFault {
    fn kind(&self) -> ErrorKind {
        ErrorKind::ContextLost
    }

    fn remedy(&self) -> Remedy {
        Remedy::Relaunch
    }
}

impl MetraleCudaBackend {
    /// Launches with typed arguments, checked against what the kernel declares.
    ///
    /// # Safety
    /// As for [`launch_typed`](crate::GpuKernels::launch_typed).
    pub(crate) unsafe fn launch_checked(
        &self,
        launch: &mut KernelLaunch,
        stream: StreamHandle,
    ) -> Result<()> {
        let &mut KernelLaunch { kernel, grid, block, shared_bytes, ref mut arguments, ref touched } = launch;
        let known = self.kernels().of(kernel.0);
        if let Some(KernelInfo { name, signature: Some(signature), .. }) = known.as_deref() {
            signature.check(name, arguments.iter().map(Argument::bytes))?;
        }
        run_metrics::process().trace().record(|| {
            Launch::new(LaunchKind::Kernel, self.kernels().name(kernel.0))
                .grid(grid)
                .block(block)
                .shared_bytes(shared_bytes)
                .args(arguments.iter().map(Argument::traced))
        });
        // Gathered only where a capture could want it. One that begins just now gets a launch of unknown arguments.
        let pointers = self.graph_client().shared.is_capturing().then(|| addresses(arguments, touched));
        let uses = pointers.as_deref().map_or(Uses::Unknown, Uses::Arguments);
        // One pointer each, into storage that the launch owns and that does not move before the call is over.
        let mut few = [core::ptr::null_mut(); FEW_PARAMS];
        let mut many = Vec::new();
        let count = arguments.len();
        let params = match few.get_mut(..count) {
            Some(few) => few,
            None => grow(&mut many, count),
        };
        params.iter_mut().zip(arguments).for_each(|(param, argument)| *param = argument.as_param());
        // SAFETY: one pointer an argument, each to a value of that argument's type; the caller promises the rest.
        unsafe {
            self.launch_untraced(
                kernel,
                known,
                LaunchDims { grid, block, shared_bytes, stream },
                params,
                uses,
            )
        }
    }

    /// Launches with arguments of unknown types.
    ///
    /// # Safety
    /// As for [`launch`](crate::GpuKernels::launch).
    pub(crate) unsafe fn launch_untyped(
        &self,
        kernel: KernelHandle,
        dims: LaunchDims,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        let args = params.len();
        let known = self.kernels().of(kernel.0);
        if let Some(KernelInfo { name, signature: Some(signature), .. }) = known.as_deref() {
            signature.check_count(name, args)?;
        }
        run_metrics::process().trace().record(|| {
            Launch::new(LaunchKind::Kernel, self.kernels().name(kernel.0))
                .grid(dims.grid)
                .block(dims.block)
                .shared_bytes(dims.shared_bytes)
                .args(std::iter::repeat_n(LaunchArg::Opaque, args))
        });
        let uses = if args == 0 { Uses::Arguments(&[]) } else { Uses::Unknown };
        // SAFETY: the caller's promise.
        unsafe { self.launch_untraced(kernel, known, dims, params, uses) }
    }

    pub(crate) fn learn_kernel(&self, handle: u64, module: &str, function: &str) -> Result<KernelHandle> {
        if !self.kernels().knows(handle) {
            let n_tile = self.read_n_tile(module, function)?;
            let name = (module, function);
            self.kernels().learn(handle, name, self.kernel_audit(), self.signatures(), n_tile);
        }
        Ok(KernelHandle(handle))
    }

    /// Launches without a line in the trace; `known` is what is known of the kernel.
    ///
    /// # Safety
    /// As for [`GpuKernels::launch`](crate::GpuKernels::launch).
    unsafe fn launch_untraced(
        &self,
        kernel: KernelHandle,
        known: Option<Arc<KernelInfo>>,
        dims: LaunchDims,
        params: &mut [*mut c_void],
        uses: Uses<'_>,
    ) -> Result<()> {
        let LaunchDims { grid, block, shared_bytes, stream } = dims;
        let _bound = self.bound_for(stream, LAUNCHING)?;
        let _held = self.hold_stream(stream, LAUNCHING)?;
        self.not_beside_capture(stream, LAUNCHING)?;
        let span = if self.config.time_kernels {
            // SAFETY: the stream is held.
            unsafe { self.kernel_span(kernel, stream) }
        } else {
            None
        };
        let submission = self.submission(stream, LAUNCHING, uses)?;
        let mut launch = || {
            // SAFETY: the caller's promise; the registry lives as long as this backend, and the stream is held.
            unsafe {
                self.registry.launch_on_stream(kernel.0, grid, block, shared_bytes, stream.raw(), params)
            }
        };
        let mut launched = launch();
        if let Err(error) = &launched
            && let Some(refusal) = error.driver_error()
            && let Some(_bound) = self.rebound(refusal, LAUNCHING)?
        {
            launched = launch();
        }
        if let Err(error) = launched {
            if let Some(span) = span {
                span.cancel();
            }
            // SAFETY: the stream is held.
            return Err(unsafe { self.not_queued(kernel, stream, error, submission) });
        }
        submission.answered(Ok(()));
        drop(span);
        if let Some(known) = known {
            known.usage.iter().for_each(KernelUsage::mark_launched);
        }
        if self.config().debug_sync_kernels {
            // SAFETY: the stream is held.
            unsafe { self.find_fault(kernel, dims) }?;
        }
        Ok(())
    }

    /// The error for a launch that was refused, after a look at whether the context is lost.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    unsafe fn not_queued(
        &self,
        kernel: KernelHandle,
        stream: StreamHandle,
        error: RegistryError,
        submission: Submission<'_>,
    ) -> Error {
        if let Some(driver) = error.driver_error() {
            submission.answered(Err(driver));
            let after = || format!("the launch of {}", self.kernels().name(kernel.0));
            // SAFETY: the caller's promise.
            unsafe { self.check_after_refusal(driver, stream, after) };
        }
        launch_error(error)
    }

    /// A span around a launch. What keeps it from being made does not keep the kernel from being launched.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    unsafe fn kernel_span(&self, kernel: KernelHandle, stream: StreamHandle) -> Option<TimingSpan<'_>> {
        let name = self.kernels().name(kernel.0);
        // SAFETY: the caller's promise.
        unsafe { self.span_on_held(name, stream) }
            .inspect_err(|error| tracing::debug!("a launch is not timed: {error:#}"))
            .ok()
    }

    /// Waits for a launch and reports its fault.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    unsafe fn find_fault(&self, kernel: KernelHandle, dims: LaunchDims) -> Result<()> {
        let LaunchDims { grid, block, shared_bytes, stream } = dims;
        // SAFETY: the caller's promise.
        unsafe { self.debug_wait(stream) }.map_err(|driver| {
            let kernel = self.kernels().name(kernel.0);
            if is_sticky(driver.status) {
                self.latch().trip(driver, Some(format!("the launch of {kernel}")));
                KernelFault { kernel, grid, block, shared_bytes, stream, driver }.into()
            } else {
                // The wait itself was refused: of the kernel nothing is known, and the context goes on.
                failed(driver, format!("waiting for kernel {kernel} after its launch"), None)
            }
        })
    }

    /// Waits for a stream to see a fault of its last work, unless it captures or cannot say: then nothing has run, and the
    /// wait would invalidate the capture.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    pub(crate) unsafe fn debug_wait(&self, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        if unsafe { self.is_capturing_or_cannot_tell(stream) } {
            return Ok(());
        }
        // Not `ask!`: the caller latches a fault with what it knows of it.
        // SAFETY: no memory is passed; the caller's promise for the stream.
        let status = unsafe { self.driver().cuStreamSynchronize(stream.raw()) };
        check(DriverFn::cuStreamSynchronize, status)
    }
}

/// One launch's numbers.
#[derive(Clone, Copy)]
pub(crate) struct LaunchDims {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) stream: StreamHandle,
}

/// The device addresses that a launch is known to use.
#[cold]
fn addresses(arguments: &[Argument], touched: &[u64]) -> Vec<u64> {
    arguments.iter().filter_map(Argument::address).chain(touched.iter().copied()).collect()
}

/// Space for more parameters than most kernels have.
#[cold]
fn grow(many: &mut Vec<*mut c_void>, count: usize) -> &mut [*mut c_void] {
    many.resize(count, core::ptr::null_mut());
    many
}

/// The registry's error for a refused launch, unwrapped to its typed cause.
fn launch_error(error: RegistryError) -> Error {
    match error {
        RegistryError::Launch(refused) => (*refused).into(),
        other => other.into(),
    }
}

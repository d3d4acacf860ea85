// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding kernels and launching them: untyped, and typed with [`KernelLaunch`].

use core::ffi::c_void;
use std::sync::Arc;

use metrale_driver_sys::{CUtensorMap, DriverError, DriverFn, check, is_sticky};
use metrale_registry::RegistryError;
use metrale_telemetry::{KernelUsage, Launch, LaunchArg, LaunchKind, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::failed;
use crate::error::{Cause, Error, ErrorKind, Remedy, Result};
use crate::gpu::GpuBackend;
use crate::graph::{Submission, Uses};
use crate::kernel_table::KernelInfo;
use crate::raw_handles::{DevicePtr, KernelHandle, StreamHandle};
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

/// One argument, kept where the driver can read it.
#[derive(Clone, Debug)]
enum Argument {
    Ptr(u64),
    U32(u32),
    I32(i32),
    F32(f32),
    U64(u64),
    /// Boxed: it is 128 bytes and aligned, and the others are 8.
    TensorMap(Box<CUtensorMap>),
}

impl Argument {
    /// Where the value lies. Good until the argument moves.
    fn as_param(&mut self) -> *mut c_void {
        match self {
            Self::Ptr(value) | Self::U64(value) => (&raw mut *value).cast(),
            Self::U32(value) => (&raw mut *value).cast(),
            Self::I32(value) => (&raw mut *value).cast(),
            Self::F32(value) => (&raw mut *value).cast(),
            Self::TensorMap(map) => (&raw mut **map).cast(),
        }
    }

    /// The device address it is, where it is one.
    const fn address(&self) -> Option<u64> {
        match self {
            Self::Ptr(value) => Some(*value),
            _ => None,
        }
    }

    /// Its size in bytes.
    const fn bytes(&self) -> u64 {
        match self {
            Self::Ptr(_) | Self::U64(_) => 8,
            Self::U32(_) | Self::I32(_) | Self::F32(_) => 4,
            Self::TensorMap(_) => 128,
        }
    }

    fn traced(&self) -> LaunchArg {
        match self {
            Self::Ptr(value) => LaunchArg::Pointer(*value),
            Self::U32(value) => LaunchArg::U32(*value),
            Self::I32(value) => LaunchArg::I32(*value),
            Self::F32(value) => LaunchArg::F32(*value),
            Self::U64(value) => LaunchArg::U64(*value),
            Self::TensorMap(map) => {
                LaunchArg::Bytes(map.opaque.iter().flat_map(|word| word.to_ne_bytes()).collect())
            }
        }
    }
}

/// A launch with typed arguments, which it owns until the driver has copied them.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{KernelLaunch, MetraleCudaBackend};
/// # use metrale_driver_sim::{MissingKernel, Profile, SimDriver};
/// static PTX: &[u8] = b".version 6.0
/// .target sm_70
/// .address_size 64
/// .visible .entry scale(.param .u64 data, .param .f32 by, .param .u32 n) { ret; }
/// ";
///
/// # let profile = Profile::h200().with_missing_kernel(MissingKernel::Ignore);
/// # let driver = Arc::new(SimDriver::new(profile));
/// let backend = MetraleCudaBackend::builder().driver(driver).modules(&[("math", PTX)]).build()?;
/// let scale = backend.kernel("math", "scale")?;
/// let data = backend.alloc(4 * 1024)?;
/// let mut launch =
///     KernelLaunch::new(scale).grid([4, 1, 1]).block([256, 1, 1]).ptr(data).f32(0.5).u32(1024);
/// // SAFETY: the kernel takes a pointer, a float and a count, and touches `n` floats at `data`.
/// unsafe { launch.on_stream(&backend, backend.stream())? };
/// backend.synchronize_stream(backend.stream())?;
/// # backend.free(data)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a launch that is not put on a stream does nothing"]
pub struct KernelLaunch {
    kernel: KernelHandle,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: Vec<Argument>,
    /// What the kernel reaches by other ways than its pointer arguments.
    touched: Vec<u64>,
}

impl KernelLaunch {
    /// A launch of one block of one thread, without shared memory and arguments.
    pub const fn new(kernel: KernelHandle) -> Self {
        Self {
            kernel,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            arguments: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Blocks in x, y, z.
    pub const fn grid(mut self, grid: [u32; 3]) -> Self {
        self.grid = grid;
        self
    }

    /// Threads of a block in x, y, z.
    pub const fn block(mut self, block: [u32; 3]) -> Self {
        self.block = block;
        self
    }

    /// Dynamic shared memory of a block, in bytes. Above 48 KiB the function is opted in, once.
    pub const fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// The next argument: a device address.
    pub fn ptr(self, value: DevicePtr) -> Self {
        self.with(Argument::Ptr(value.0))
    }

    /// The next argument: an unsigned 32-bit number.
    pub fn u32(self, value: u32) -> Self {
        self.with(Argument::U32(value))
    }

    /// The next argument: a signed 32-bit number.
    pub fn i32(self, value: i32) -> Self {
        self.with(Argument::I32(value))
    }

    /// The next argument: a float.
    pub fn f32(self, value: f32) -> Self {
        self.with(Argument::F32(value))
    }

    /// The next argument: an unsigned 64-bit number.
    pub fn u64(self, value: u64) -> Self {
        self.with(Argument::U64(value))
    }

    /// The next argument: a tensor map of 128 bytes, passed by value (`const __grid_constant__ CUtensorMap`).
    pub fn tensor_map(self, map: impl Into<CUtensorMap>) -> Self {
        self.with(Argument::TensorMap(Box::new(map.into())))
    }

    /// Says that the kernel uses the allocation around `ptr` though no pointer argument tells: through a tensor map, an
    /// address passed as a number, or a table in device memory. No argument; a capture pins it as it pins pointers.
    pub fn touches(mut self, ptr: DevicePtr) -> Self {
        self.touched.push(ptr.0);
        self
    }

    fn with(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    /// How many arguments there are so far.
    #[must_use]
    pub fn argument_count(&self) -> usize {
        self.arguments.len()
    }

    /// Launches in the order of `stream`, as [`GpuKernels::launch`](crate::GpuKernels::launch). May be done again: the arguments stay.
    ///
    /// # Errors
    /// As [`GpuKernels::launch`](crate::GpuKernels::launch); [`BadArgument`](crate::BadArgument) where the kernel's image says that it takes other arguments, in number
    /// or size.
    ///
    /// # Safety
    /// The kernel is of this backend. The arguments are its parameters in number, order and type, and what it does with them
    /// is sound: device addresses valid, and live until `stream` has passed the launch.
    pub unsafe fn on_stream(&mut self, backend: &dyn GpuBackend, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { backend.launch_typed(self, stream) }
    }
}

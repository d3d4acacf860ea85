// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Module`] and [`Kernel`]: what a backend has loaded, with a share in the backend.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::{BadArgument, Result};
use crate::gpu::GpuBackend;
use crate::kernel_launch::KernelLaunch;
use crate::owners::buffer::DeviceBuffer;
use crate::owners::shared::SharedBackend;
use crate::owners::slice::{DeviceSlice, DeviceSliceMut};
use crate::owners::stream::Stream;
use crate::raw_handles::{DevicePtr, KernelHandle, StreamHandle};

/// A kernel module that its backend has loaded, by its name. It stays loaded as long as the backend, in which this has a share.
#[derive(Clone)]
pub struct Module {
    gpu: Arc<dyn GpuBackend>,
    name: Arc<str>,
}

/// A kernel, with a share in the backend that has loaded it.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{DeviceBuffer, GpuBackend, MetraleCudaBackend, Module, Stream};
/// # use metrale_driver_sim::{MissingKernel, Profile, SimDriver};
/// static PTX: &[u8] = b".version 6.0
/// .target sm_70
/// .address_size 64
/// .visible .entry scale(.param .u64 data, .param .f32 by, .param .u32 n) { ret; }
/// ";
///
/// # let driver = Arc::new(SimDriver::new(Profile::h200().with_missing_kernel(MissingKernel::Ignore)));
/// # let builder = MetraleCudaBackend::builder().driver(driver);
/// let gpu: Arc<dyn GpuBackend> = Arc::new(builder.modules(&[("math", PTX)]).build()?);
/// let scale = Module::of(&gpu, "math")?.kernel("scale")?;
/// let stream = Stream::new(&gpu)?;
/// let mut data = DeviceBuffer::from_slice(&gpu, &[1.0_f32; 1024])?;
///
/// let mut launch = scale.launch().grid([4, 1, 1]).block([256, 1, 1]).buffer_mut(&mut data).f32(0.5).u32(1024);
/// // SAFETY: the kernel takes a pointer, a float and a count, and touches that many floats, which the buffer has.
/// unsafe { stream.launch(&mut launch) }?;
/// stream.synchronize()?;
/// # Ok::<(), metrale_cuda_backend::Error>(())
/// ```
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    function: Arc<str>,
    handle: KernelHandle,
}

impl Module {
    /// The module of this name. Asks no driver.
    ///
    /// # Errors
    /// [`BadArgument`] where the backend has loaded none of this name, with those it has.
    pub fn of(gpu: &impl SharedBackend, name: &str) -> Result<Self> {
        let gpu = gpu.share();
        if !gpu.registry().has_module(name) {
            return Err(BadArgument::new(format!(
                "no module {name:?} is loaded; there are {:?}",
                gpu.registry().module_names()
            ))
            .into());
        }
        Ok(Self { gpu, name: name.into() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend that has loaded it.
    #[must_use]
    pub const fn gpu(&self) -> &Arc<dyn GpuBackend> {
        &self.gpu
    }

    /// A kernel of it. As [`GpuKernels::kernel`](crate::GpuKernels::kernel).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn kernel(&self, function: &str) -> Result<Kernel> {
        let handle = self.gpu.kernel(&self.name, function)?;
        Ok(Kernel { module: self.clone(), function: function.into(), handle })
    }

    /// A kernel that the module may lack. As [`GpuKernels::optional_kernel`](crate::GpuKernels::optional_kernel).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn optional_kernel(&self, function: &str) -> Result<Option<Kernel>> {
        let handle = self.gpu.optional_kernel(&self.name, function)?;
        Ok(handle.map(|handle| Kernel { module: self.clone(), function: function.into(), handle }))
    }

    /// The address and the bytes of a global. As [`GpuKernels::device_symbol`](crate::GpuKernels::device_symbol).
    ///
    /// # Errors
    /// As there.
    pub fn symbol(&self, name: &str) -> Result<(DevicePtr, usize)> {
        self.gpu.device_symbol(&self.name, name)
    }
}

impl Kernel {
    /// The module it is of.
    #[must_use]
    pub const fn module(&self) -> &Module {
        &self.module
    }

    /// Its name in the module.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.function
    }

    /// Its handle, for raw calls. It is good as long as the backend.
    #[must_use]
    pub const fn handle(&self) -> KernelHandle {
        self.handle
    }

    /// The tile width that it publishes. As [`GpuKernels::n_tile`](crate::GpuKernels::n_tile).
    #[must_use]
    pub fn n_tile(&self) -> Option<u32> {
        self.module.gpu.n_tile(self.handle)
    }

    /// A launch of it: one block of one thread, without arguments, until it is told more.
    pub const fn launch(&self) -> KernelLaunch {
        KernelLaunch::new(self.handle)
    }
}

impl KernelLaunch {
    /// The next argument: the address of a buffer that the kernel reads.
    pub fn buffer<T: Pod>(self, buffer: &DeviceBuffer<T>) -> Self {
        self.ptr(buffer.ptr())
    }

    /// The next argument: the address of a buffer that the kernel writes.
    pub fn buffer_mut<T: Pod>(self, buffer: &mut DeviceBuffer<T>) -> Self {
        self.ptr(buffer.ptr())
    }

    /// The next argument: the address of elements that the kernel reads.
    pub fn slice<T: Pod>(self, slice: DeviceSlice<'_, T>) -> Self {
        self.ptr(slice.ptr())
    }

    /// The next argument: the address of elements that the kernel writes.
    pub fn slice_mut<T: Pod>(self, slice: &mut DeviceSliceMut<'_, T>) -> Self {
        self.ptr(slice.ptr())
    }

    /// Launches in the order of `stream`, as [`GpuKernels::launch_typed`](crate::GpuKernels::launch_typed). May be done again: the
    /// arguments stay.
    ///
    /// # Errors
    /// As there; [`BadArgument`] where the kernel's image says that it takes other arguments, in number or size.
    ///
    /// # Safety
    /// The kernel is of this backend. The arguments are its parameters in number, order and type, and what it does with them
    /// is sound: device addresses valid, and live until `stream` has passed the launch.
    pub unsafe fn on_stream(&mut self, backend: &dyn GpuBackend, stream: StreamHandle) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { backend.launch_typed(self, stream) }
    }
}

impl Stream {
    /// Launches a kernel in the order of the stream. Does not block. As
    /// [`GpuKernels::launch_typed`](crate::GpuKernels::launch_typed). May be done again: the arguments stay.
    ///
    /// # Errors
    /// As there; [`BadArgument`] where the kernel's image says that it takes other arguments, in number or size.
    ///
    /// # Safety
    /// The kernel is of the stream's backend. The arguments are its parameters in number, order and type, and what it does with
    /// them is sound: it stays within the memory that they are the addresses of, and that memory lives until the stream has
    /// passed the launch, or the graph that records it is destroyed.
    pub unsafe fn launch(&self, launch: &mut KernelLaunch) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu().launch_typed(launch, self.handle()) }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.name)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({}::{})", self.module.name, self.function)
    }
}

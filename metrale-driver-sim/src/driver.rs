// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SimDriver`]: the face of the software driver.
//!
//! The trait is implemented by forwarding every function of the list to a method of the same name on [`Face`], so a
//! function without behaviour does not compile. The methods are in the files below, by subject; they convert raw
//! arguments to the model's and back, and hold all unsafe code of the crate except that which reads and writes host memory.

mod copy;
mod device;
mod graph;
mod launch;
mod memory;
mod module;
mod order;
mod pool;
mod raw;
mod virtual_memory;

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrale_driver_sys::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS, CUresult, DriverApi, DriverFn};
use parking_lot::Mutex;

use crate::leaks::Leaks;
use crate::model::Model;
use crate::model::kernel::{KernelFault, KernelLaunch};
use crate::profile::Profile;
use crate::thread;

/// The one function that SCALE's driver lacks.
const NOT_ON_SCALE: &str = "cuStreamIsCapturing";

/// A CUDA driver in software: a second implementation of [`DriverApi`].
///
/// Instances share nothing, so tests with one each run in parallel. Cloning gives another handle on the same instance.
///
/// A kernel's function must not use the driver that runs it: driver calls answer 800 there, and the methods of this type
/// panic, which the launch reports as 719.
///
/// ```
/// use metrale_driver_sim::{Profile, SimDriver, driver_sys::DriverApi};
///
/// let driver = SimDriver::new(Profile::h200());
/// assert_eq!(driver.source(), "software h200");
/// let (mut context, mut address, mut free, mut total) = (0, 0, 0, 0);
/// // SAFETY: every result pointer is a local.
/// unsafe {
///     assert_eq!(driver.cuInit(0), 0);
///     assert_eq!(driver.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
///     assert_eq!(driver.cuCtxSetCurrent(context), 0);
///     assert_eq!(driver.cuMemAlloc_v2(&mut address, 1000), 0);
///     assert_eq!(driver.cuMemGetInfo_v2(&mut free, &mut total), 0);
/// }
/// assert_eq!(free, 149_557_477_376 - (2 << 20));
/// assert_eq!(driver.leaks().memory_bytes(), 1000);
/// ```
#[derive(Clone)]
pub struct SimDriver {
    face: Arc<Face>,
}

/// What stands behind all handles on one instance.
pub(crate) struct Face {
    source: String,
    scale: bool,
    model: Mutex<Model>,
    /// The thread that is inside a kernel's function, 0 for none.
    kernel_thread: Arc<AtomicU64>,
}

/// Makes a [`SimDriver`] with several devices.
#[derive(Clone, Debug, Default)]
pub struct SimDriverBuilder {
    profiles: Vec<Profile>,
}

impl SimDriverBuilder {
    /// Adds a device; ordinals follow the order of the calls.
    #[must_use]
    pub fn device(mut self, profile: Profile) -> Self {
        self.profiles.push(profile);
        self
    }

    /// The driver. Version, strictness and the fresh byte are those of the first device; without a device,
    /// `cuDeviceGetCount` answers 0 devices.
    #[must_use]
    pub fn build(self) -> SimDriver {
        let names: Vec<&str> = self.profiles.iter().map(|profile| profile.name.as_str()).collect();
        let source = match names.len() {
            0 => "software, no device".to_owned(),
            _ => format!("software {}", names.join(" + ")),
        };
        let scale = self.profiles.first().is_some_and(|profile| profile.scale);
        let kernel_thread = Arc::new(AtomicU64::new(0));
        let model = Mutex::new(Model::new(self.profiles, Arc::clone(&kernel_thread)));
        SimDriver { face: Arc::new(Face { source, scale, model, kernel_thread }) }
    }
}

impl SimDriver {
    /// A driver with one device.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self::builder().device(profile).build()
    }

    /// A driver with several devices.
    #[must_use]
    pub fn builder() -> SimDriverBuilder {
        SimDriverBuilder::default()
    }

    /// Registers the Rust function that stands for a kernel. `name` is the entry's name as the image has it, for every
    /// image, or `module::entry` for images that [`name_image`](Self::name_image) gave that module name; the latter is
    /// found first. A later registration under the same name replaces it, also for launches that have not run yet.
    ///
    /// The function runs once per launch, when the stream's work runs, on the thread that waited for it. It must not
    /// call this driver: such calls answer 800 (not permitted).
    ///
    /// ```
    /// use metrale_driver_sim::{Profile, SimDriver};
    ///
    /// let driver = SimDriver::new(Profile::h200());
    /// // .entry scale(.param .u64 data, .param .u32 count, .param .f32 factor)
    /// driver.register_kernel("scale", |launch| {
    ///     let (data, count, factor) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?, launch.parameter::<f32>(2)?);
    ///     let values: Vec<f32> = launch.load_all(data, count as usize)?;
    ///     launch.store_all(data, &values.iter().map(|value| value * factor).collect::<Vec<_>>())
    /// });
    /// ```
    pub fn register_kernel<F>(&self, name: impl Into<String>, function: F)
    where
        F: Fn(&mut KernelLaunch<'_>) -> Result<(), KernelFault> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        self.with(|model| model.kernels.register(name.into(), function));
    }

    /// Says which module name an image has, so that kernels registered under `module::entry` are found for it. A driver
    /// sees images only, never the names that a registry gives them. The image is recognized by its bytes without trailing NULs.
    pub fn name_image(&self, module: impl Into<String>, image: &[u8]) {
        self.with(|model| model.kernels.name_image(module.into(), image));
    }

    /// What was made and not freed, destroyed or released.
    #[must_use]
    pub fn leaks(&self) -> Leaks {
        self.with(|model| model.leaks())
    }

    /// Messages about what a status alone cannot say: launches without a Rust function, why a context was lost. The
    /// last 1000 are kept.
    #[must_use]
    pub fn diagnostics(&self) -> Vec<String> {
        self.with(|model| model.diagnostics())
    }

    /// Host bytes that hold device content: written memory in blocks of 64 KiB, uniform blocks not counted.
    #[must_use]
    pub fn backing_bytes(&self) -> u64 {
        self.with(|model| model.memory.backing_bytes())
    }

    /// The devices' profiles by ordinal.
    #[must_use]
    pub fn profiles(&self) -> Vec<Profile> {
        self.with(|model| model.profiles.clone())
    }

    /// Loses the primary context of a device as a faulting kernel would: pending work is dropped and every later call
    /// answers `status`. As on hardware, the device is lost to the instance: when the last reference is released, retaining answers
    /// `status` too, and only another instance, as another process, has a sound device. Nothing happens for a device
    /// without a context, an ordinal out of range, or status 0.
    pub fn inject_fault(&self, device: usize, status: CUresult) {
        self.with(|model| {
            if status != CUDA_SUCCESS && model.has_context(device) {
                model.fault(device, status, "injected".to_owned());
            }
        });
    }

    /// # Panics
    /// When a kernel's function calls this driver, because it would wait for itself.
    fn with<R>(&self, work: impl FnOnce(&mut Model) -> R) -> R {
        assert!(!self.face.inside_kernel(), "a kernel's function must not use the driver that runs it");
        work(&mut self.face.model.lock())
    }
}

impl fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDriver").field("source", &self.face.source).finish_non_exhaustive()
    }
}

impl Face {
    fn inside_kernel(&self) -> bool {
        let thread = thread::number();
        thread != 0 && self.kernel_thread.load(Ordering::Relaxed) == thread
    }

    /// One call: the model under its lock, the outcome as a status.
    fn call(&self, work: impl FnOnce(&mut Model) -> Result<(), CUresult>) -> CUresult {
        if self.inside_kernel() {
            return CUDA_ERROR_NOT_PERMITTED;
        }
        match work(&mut self.model.lock()) {
            Ok(()) => CUDA_SUCCESS,
            Err(status) => status,
        }
    }

    fn provides(&self, function: DriverFn) -> bool {
        // By name, since a build for SCALE has no such variant.
        !(self.scale && function.name() == NOT_ON_SCALE)
    }
}

/// Forwards the whole list.
macro_rules! forward {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        impl DriverApi for SimDriver {
            fn provides(&self, function: DriverFn) -> bool {
                self.face.provides(function)
            }

            fn source(&self) -> String {
                self.face.source.clone()
            }

            fn identity(&self) -> usize {
                Arc::as_ptr(&self.face).addr()
            }

            $(
                unsafe fn $name(&self, $($arg: $ty),*) -> CUresult {
                    // SAFETY: the caller's promise is the trait's, which is the method's.
                    unsafe { self.face.$name($($arg),*) }
                }
            )*
        }
    };
}

metrale_driver_sys::for_each_driver_function!(forward);

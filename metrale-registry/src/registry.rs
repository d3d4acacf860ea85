// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MetraleRegistry`]: a set of modules in a host's context, from their load to their unload.

use core::ffi::c_void;
use core::fmt;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

use metrale_driver_sys::{
    CUDA_ERROR_INVALID_VALUE, CUdeviceptr, CUfunction, CUstream, DriverApi, DriverError,
};

use crate::error::ReleaseError;
use crate::image::Image;
use crate::launch::{Because, LaunchError, LaunchSize, SharedOptIns, excess_of, launch};
use crate::module::{Module, ModuleInfo};
use crate::nearest::nearest;
use crate::teardown::{Resource, Teardown};
use crate::{CudaHost, HostError, RegistryError};

/// A look-up of a kernel that was answered, as an observer is told of it: found, or not in the registry. What failed for
/// another reason says nothing of the kernel, and no observer hears of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LookUp<'a> {
    /// The module that was asked.
    pub module: &'a str,
    /// The function's name in it.
    pub function: &'a str,
    /// Whether it is there.
    pub found: bool,
    /// Whether the caller can do without ([`optional_function`](MetraleRegistry::optional_function)).
    pub is_optional: bool,
    /// The line that asked.
    pub site: &'static Location<'static>,
}

/// Told of every look-up, on the thread that makes it.
pub type LookUpObserver = Box<dyn Fn(&LookUp<'_>) + Send + Sync>;

/// A model's kernel modules, loaded into the process's context for a GPU.
///
/// Each call of a `load` loads its modules afresh; they are unloaded when the last [`Arc`] goes. Context and stream
/// are the [host's](CudaHost), which all registries of the device share.
///
/// Look-ups may be made on any thread. To launch, a thread needs the context current: [`CudaHost::bind_to_thread`],
/// which a load does for its own thread.
///
/// ```
/// use std::sync::Arc;
/// use metrale_driver_sim::{Profile, SimDriver};
/// use metrale_registry::MetraleRegistry;
///
/// static PTX: &[u8] = b".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry wake() { ret; }\n";
///
/// let driver = Arc::new(SimDriver::new(Profile::h200()));
/// let registry = MetraleRegistry::load_with(driver, 0, &[("demo", PTX)])?;
/// let wake = registry.function("demo", "wake")?;
/// assert_eq!(registry.function("demo", "wake")?, wake);
///
/// let error = registry.function("demo", "woke").unwrap_err();
/// assert!(error.to_string().contains("did you mean \"wake\"?"));
///
/// registry.release()?; // or drop it: what the driver does not take back is then told to the host's sink
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MetraleRegistry {
    /// By name, so that lists come out sorted.
    modules: BTreeMap<&'static str, Module>,
    opt_ins: SharedOptIns,
    observer: OnceLock<LookUpObserver>,
    host: Arc<CudaHost>,
}

impl MetraleRegistry {
    /// Loads modules, each a name and an image, onto a device of the system's driver.
    ///
    /// An image is PTX text, a cubin or a fatbin, told apart by content. PTX may or may not end in NUL, may start with
    /// a byte order mark or comments, and may use CRLF. All images are looked at before the first is loaded.
    ///
    /// Blocks while the driver loads, which for PTX is to compile (10 ms for a trivial module). The context is current
    /// on the calling thread afterwards.
    ///
    /// # Errors
    /// [`RegistryError`]; nothing is then loaded. `Host` where there is no driver or device, `DuplicateModule` and
    /// `Image` for what is wrong with the arguments, `ModuleLoad` where the driver refuses a module, `EarlierFault`
    /// where a kernel had failed before.
    ///
    /// # During capture
    /// Loading leaves a capture on a non-blocking stream intact.
    pub fn load(
        ordinal: usize,
        ptx_modules: &[(&'static str, &'static [u8])],
    ) -> Result<Arc<Self>, RegistryError> {
        Self::load_into(CudaHost::system(ordinal)?, ptx_modules)
    }

    /// [`load`](Self::load) on a driver of your choice.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_with(
        driver: Arc<dyn DriverApi>,
        ordinal: usize,
        ptx_modules: &[(&'static str, &'static [u8])],
    ) -> Result<Arc<Self>, RegistryError> {
        Self::load_into(CudaHost::acquire(driver, ordinal)?, ptx_modules)
    }

    /// [`load`](Self::load) into a host that is there already: for those who look at the device first, measure around
    /// the load, or set a [sink](CudaHost::set_teardown_sink).
    ///
    /// # Errors
    /// As `load`.
    pub fn load_into(
        host: Arc<CudaHost>,
        ptx_modules: &[(&'static str, &'static [u8])],
    ) -> Result<Arc<Self>, RegistryError> {
        let mut images = Vec::with_capacity(ptx_modules.len());
        for (index, &(module, bytes)) in ptx_modules.iter().enumerate() {
            if ptx_modules[..index].iter().any(|&(earlier, _)| earlier == module) {
                return Err(RegistryError::DuplicateModule { module });
            }
            let image = Image::read(bytes).map_err(|reason| RegistryError::Image { module, reason })?;
            images.push((module, image));
        }
        let ordinal = host.ordinal();
        host.bind_to_thread().map_err(|error| HostError::Context { ordinal, error })?;
        // From here on a failure drops what is loaded by then, as any last handle does.
        let mut registry = Self {
            modules: BTreeMap::new(),
            opt_ins: SharedOptIns::default(),
            observer: OnceLock::new(),
            host,
        };
        for (name, image) in images {
            let module = Module::load(&registry.host, name, image)?;
            registry.modules.insert(name, module);
        }
        Ok(Arc::new(registry))
    }

    /// A kernel by its module and its exact (mangled) name.
    ///
    /// The driver is asked once for each kernel that is there; after that a look-up is two map reads, with no
    /// allocation. Does not block on the device; works on any thread; allowed during a capture.
    ///
    /// # Errors
    /// `ModuleNotFound` and `FunctionNotFound`, with the nearest names there are; `NulInName`; `LookUp` for other
    /// answers of the driver.
    #[track_caller]
    pub fn function(&self, module: &str, function: &str) -> Result<CUfunction, RegistryError> {
        self.look_up(module, function, false, Location::caller())
    }

    /// [`function`](Self::function) for a caller that can do without the kernel: `None` where module or function is not
    /// there.
    ///
    /// # Errors
    /// As `function`, but for `ModuleNotFound` and `FunctionNotFound`.
    #[track_caller]
    pub fn optional_function(
        &self,
        module: &str,
        function: &str,
    ) -> Result<Option<CUfunction>, RegistryError> {
        match self.look_up(module, function, true, Location::caller()) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has every look-up of a kernel told to `observer` from now on. There is one observer: the answer is false, and
    /// nothing changes, where there is one already.
    pub fn observe_look_ups(&self, observer: LookUpObserver) -> bool {
        self.observer.set(observer).is_ok()
    }

    fn look_up(
        &self,
        module: &str,
        function: &str,
        is_optional: bool,
        site: &'static Location<'static>,
    ) -> Result<CUfunction, RegistryError> {
        let answer = self.module(module).and_then(|found| found.function(&self.host, function));
        if let Some(observer) = self.observer.get()
            && answer.as_ref().err().is_none_or(RegistryError::is_not_found)
        {
            observer(&LookUp { module, function, found: answer.is_ok(), is_optional, site });
        }
        answer
    }

    /// Device address and size in bytes of a module's global. The driver is asked each time.
    ///
    /// Does not block on the device; works on any thread; allowed during a capture. The memory is the module's: never
    /// freed by the caller, and gone with the registry.
    ///
    /// # Errors
    /// `ModuleNotFound` and `SymbolNotFound`, with the nearest names there are; `SymbolIsKernel`; `NulInName`; `LookUp`
    /// for other answers of the driver.
    pub fn device_symbol(&self, module: &str, symbol: &str) -> Result<(CUdeviceptr, usize), RegistryError> {
        self.module(module)?.symbol(&self.host, symbol)
    }

    /// Whether a module of that name was loaded.
    #[must_use]
    pub fn has_module(&self, module: &str) -> bool {
        self.modules.contains_key(module)
    }

    /// The names of the modules, sorted.
    #[must_use]
    pub fn module_names(&self) -> Vec<&'static str> {
        self.modules.keys().copied().collect()
    }

    /// What is known of each module, sorted by name.
    #[must_use]
    pub fn modules(&self) -> Vec<ModuleInfo> {
        self.modules.values().map(|module| module.info.clone()).collect()
    }

    /// The process's context and stream for the device.
    #[must_use]
    pub const fn host(&self) -> &Arc<CudaHost> {
        &self.host
    }

    /// The host's stream.
    #[must_use]
    pub fn raw_stream(&self) -> CUstream {
        self.host.raw_stream()
    }

    /// Launches a kernel on a stream: `grid` in blocks, `block` in threads, `shared_bytes` of dynamic shared memory a
    /// block, one pointer in `params` for each parameter.
    ///
    /// Returns once the launch is queued; what the kernel writes is valid in stream order after it. More dynamic shared
    /// memory than 48 KiB, or than the kernel's own leaves of them, is opted into once for a function, and never
    /// lowered. Allowed during a capture on that stream. The thread needs the context current.
    ///
    /// # Errors
    /// `Launch`, with what was asked too much where that can be told. A fault of an *earlier* kernel comes out here
    /// too, and is said to be one.
    ///
    /// # Safety
    /// * `function` is of this registry, and the registry stays alive until the kernel is done.
    /// * `stream` is live: the driver follows the handle.
    /// * `params` has one pointer for each of the kernel's parameters, in order, each valid for reading that
    ///   parameter's size during the call; the driver copies the values.
    /// * The kernel is sound to run with these values: it touches no memory but what they give it, and that memory
    ///   stays alive, and unaliased as the kernel needs, until the kernel is done.
    pub unsafe fn launch_on_stream(
        &self,
        function: CUfunction,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: CUstream,
        params: &mut [*mut c_void],
    ) -> Result<(), RegistryError> {
        let driver = self.host.driver();
        let size = LaunchSize { grid, block, shared_bytes };
        let refused = |error| self.launch_error(function, size, error);
        self.opt_ins.ensure(driver, function, shared_bytes).map_err(refused)?;
        // SAFETY: the caller's promise.
        let launched = unsafe { launch(driver, function, size, stream, params) };
        match launched {
            Ok(()) => Ok(()),
            // SAFETY: the caller's promise; the refused launch queued nothing.
            Err(error) => unsafe { self.launch_again(function, size, stream, params, error) },
        }
    }

    /// What a refused launch comes to: what the kernel declares itself counts towards the 48 KiB, so that less than 48 KiB
    /// may be refused too. That is found out here, where it costs the launches that succeed nothing.
    ///
    /// # Safety
    /// As for [`launch_on_stream`](Self::launch_on_stream).
    #[cold]
    unsafe fn launch_again(
        &self,
        function: CUfunction,
        size: LaunchSize,
        stream: CUstream,
        params: &mut [*mut c_void],
        error: DriverError,
    ) -> Result<(), RegistryError> {
        let driver = self.host.driver();
        let refused = |error| self.launch_error(function, size, error);
        if error.status == CUDA_ERROR_INVALID_VALUE
            && size.shared_bytes > 0
            && self
                .opt_ins
                .raise(driver, function, size.shared_bytes, Because::Refused)
                .is_ok_and(|raised| raised)
        {
            // SAFETY: the caller's promise.
            return unsafe { launch(driver, function, size, stream, params) }.map_err(refused);
        }
        Err(refused(error))
    }

    /// Unloads the modules now and says how it went, where a drop could only tell the sink. The host goes too, if
    /// nobody else holds it.
    ///
    /// What the context takes with it when it goes ([`is_teardown_noop`](crate::is_teardown_noop)) is no failure. May
    /// block on the device.
    ///
    /// # Errors
    /// [`ReleaseError::StillHeld`], with the registry in it, while another handle is live: nothing is unloaded.
    /// [`ReleaseError::Teardown`] names what the driver did not take back.
    ///
    /// # During capture
    /// Do not: the kernels of a capture must outlive its graph.
    pub fn release(self: Arc<Self>) -> Result<(), ReleaseError> {
        let mut registry = Self::try_alone(self)?;
        let mut teardown = registry.tear_down();
        let host = Arc::clone(&registry.host);
        drop(registry);
        if let Some(mut host) = Arc::into_inner(host) {
            teardown.append(host.tear_down());
        }
        Ok(teardown.into_result()?)
    }

    fn try_alone(self: Arc<Self>) -> Result<Self, ReleaseError> {
        Arc::try_unwrap(self).map_err(|registry| {
            // Another handle may have gone since: there was at least one.
            let others = Arc::strong_count(&registry).saturating_sub(1).max(1);
            ReleaseError::StillHeld { registry, others }
        })
    }

    fn module(&self, module: &str) -> Result<&Module, RegistryError> {
        self.modules.get(module).ok_or_else(|| RegistryError::ModuleNotFound {
            module: module.to_owned(),
            nearest: nearest(module, self.modules.keys().copied()),
            loaded: self.modules.len(),
        })
    }

    #[cold]
    fn launch_error(&self, function: CUfunction, size: LaunchSize, error: DriverError) -> RegistryError {
        let name =
            self.modules.values().find_map(|module| Some((module.info.name, module.name_of(function)?)));
        let LaunchSize { grid, block, shared_bytes } = size;
        let excess = excess_of(self.host.driver(), self.host.facts(), function, size, error);
        RegistryError::Launch(Box::new(LaunchError {
            function,
            name,
            grid,
            block,
            shared_bytes,
            error,
            excess,
        }))
    }

    /// Unloads all modules, once.
    fn tear_down(&mut self) -> Teardown {
        let mut teardown = Teardown::new(self.host.ordinal());
        let modules = core::mem::take(&mut self.modules);
        if modules.is_empty() {
            return teardown;
        }
        let current = self.host.enter();
        for (name, module) in modules {
            let answer = match &current {
                Ok(_) => module.unload(&self.host),
                Err(error) => Err(*error),
            };
            teardown.note(Resource::Module(name), answer);
        }
        teardown
    }
}

impl Drop for MetraleRegistry {
    fn drop(&mut self) {
        self.tear_down().tell(self.host.teardown_sink().as_ref());
    }
}

impl fmt::Debug for MetraleRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetraleRegistry")
            .field("host", &self.host)
            .field("modules", &self.module_names())
            .finish_non_exhaustive()
    }
}

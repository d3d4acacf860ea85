// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loaded modules: their functions with their limits, and their globals in device memory.

use std::collections::HashMap;
use std::sync::Arc;

use metrale_driver_sys::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUresult, function_attribute,
};
use metrale_ledger::placement::PlacementId;

use super::Model;
use super::handle::Kind;
use super::kernel::{LaunchConfig, Parameters, identity};
use super::memory::Access;
use super::module::{self, FunctionInfo, Refusal, Target};
use super::work::{Launch, Work};

/// Shared memory a block may use without opting in, in bytes.
const SHARED_BYTES: u32 = 48 << 10;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`
const CARVEOUT: u32 = 9;
/// `CU_FUNC_ATTRIBUTE_CACHE_MODE_CA`
const CACHE_MODE: u32 = 7;

/// What of a function outlives its module: work in queues and graphs holds it.
pub(crate) struct FunctionState {
    pub(crate) entry: String,
    /// The image it came in, by which registered kernels are found.
    pub(crate) image: Arc<[u8]>,
    pub(crate) info: FunctionInfo,
}

pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) state: Arc<FunctionState>,
    /// Dynamic shared memory a launch may ask for, in bytes.
    max_dynamic_shared: u32,
    carveout: i32,
}

pub(crate) struct Module {
    pub(crate) device: usize,
    functions: HashMap<String, u64>,
    /// Address and bytes by name.
    globals: HashMap<String, (u64, u64)>,
    globals_id: Option<PlacementId>,
}

impl Model {
    /// Loads an image into the current context.
    pub(crate) fn module_load(&mut self, image: &[u8]) -> Result<u64, Refusal> {
        let device = self.context().map_err(|status| Refusal { status, log: String::new() })?;
        let profile = &self.profiles[device];
        let target =
            Target { compute_capability: profile.compute_capability, driver_version: profile.driver_version };
        let loaded = module::load(image, &target)?;
        let sizes: Vec<(u64, u64)> =
            loaded.globals.iter().map(|global| (global.bytes, global.align)).collect();
        let (globals_id, addresses) = self
            .memory
            .alloc_globals(device, &sizes)
            .map_err(|status| Refusal { status, log: "no memory for the module's globals".to_owned() })?;
        let mut globals = HashMap::new();
        for (global, address) in loaded.globals.into_iter().zip(addresses) {
            for (offset, bytes) in global.initial.pieces() {
                let Some(space) = global.bytes.checked_sub(offset) else { continue };
                let bytes = &bytes[..bytes.len().min(usize::try_from(space).unwrap_or(usize::MAX))];
                let written = self.memory.write(address + offset, bytes, Access::Strict);
                debug_assert!(written.is_ok());
            }
            globals.insert(global.name, (address, global.bytes));
        }
        let image: Arc<[u8]> = identity(image).into();
        let optin = self.profiles[device].shared_optin_bytes;
        let mut functions = HashMap::new();
        for info in loaded.functions.into_iter().filter(|info| info.is_linked) {
            let handle = self.handles.make(Kind::Function);
            let entry = info.name.clone();
            let limit = SHARED_BYTES.min(optin).saturating_sub(info.static_shared_bytes);
            let state = Arc::new(FunctionState { entry: entry.clone(), image: Arc::clone(&image), info });
            let function = Function { device, state, max_dynamic_shared: limit, carveout: -1 };
            self.functions.insert(handle, function);
            functions.insert(entry, handle);
        }
        let handle = self.handles.make(Kind::Module);
        self.modules.insert(handle, Module { device, functions, globals, globals_id });
        Ok(handle)
    }

    /// Unloads a module once its context's work is done.
    pub(crate) fn module_unload(&mut self, handle: u64) -> Result<(), CUresult> {
        self.context()?;
        let device = self.modules.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?.device;
        self.unsafe_call(device)?;
        self.run_all(device);
        self.context()?;
        if let Some(module) = self.modules.remove(&handle) {
            self.drop_module(module);
        }
        Ok(())
    }

    pub(crate) fn drop_module(&mut self, module: Module) {
        for function in module.functions.values() {
            self.functions.remove(function);
        }
        let addresses: Vec<u64> = module.globals.values().map(|&(address, _)| address).collect();
        self.memory.free_globals(module.device, module.globals_id, &addresses);
    }

    pub(crate) fn module_function(&mut self, module: u64, name: &[u8]) -> Result<u64, CUresult> {
        self.context()?;
        let module = self.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let name = core::str::from_utf8(name).map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        module.functions.get(name).copied().ok_or(CUDA_ERROR_NOT_FOUND)
    }

    /// Measured: the name of a kernel is answered 1, a name that is nowhere 500.
    pub(crate) fn module_global(&mut self, module: u64, name: &[u8]) -> Result<(u64, u64), CUresult> {
        self.context()?;
        let module = self.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let name = core::str::from_utf8(name).map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        match module.globals.get(name) {
            Some(&global) => Ok(global),
            None if module.functions.contains_key(name) => Err(CUDA_ERROR_INVALID_VALUE),
            None => Err(CUDA_ERROR_NOT_FOUND),
        }
    }

    pub(crate) fn function(&self, handle: u64) -> Result<&Function, CUresult> {
        self.functions.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn function_set(&mut self, handle: u64, attribute: u32, value: i32) -> Result<(), CUresult> {
        self.context()?;
        let function = self.functions.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        match attribute {
            function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let limit = self.profiles[function.device].shared_optin_bytes;
                let statics = function.state.info.static_shared_bytes;
                let value = u32::try_from(value).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
                if value > limit.saturating_sub(statics) {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                function.max_dynamic_shared = value;
                Ok(())
            }
            CARVEOUT if (-1..=100).contains(&value) => {
                function.carveout = value;
                Ok(())
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub(crate) fn function_get(&mut self, handle: u64, attribute: u32) -> Result<i32, CUresult> {
        self.context()?;
        let function = self.function(handle)?;
        let info = &function.state.info;
        let (major, minor) = self.profiles[function.device].compute_capability;
        let architecture = (10 * major + minor) as i32;
        match attribute {
            function_attribute::MAX_THREADS_PER_BLOCK => {
                Ok(info.max_threads.unwrap_or(1024).min(1024) as i32)
            }
            function_attribute::SHARED_SIZE_BYTES => Ok(info.static_shared_bytes as i32),
            function_attribute::CONST_SIZE_BYTES | function_attribute::LOCAL_SIZE_BYTES | CACHE_MODE => Ok(0),
            // The model has no registers; a small kernel's number.
            function_attribute::NUM_REGS => Ok(32),
            function_attribute::PTX_VERSION => {
                Ok(info.virtual_architecture.map_or(architecture, |number| number as i32))
            }
            function_attribute::BINARY_VERSION => Ok(architecture),
            function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => Ok(function.max_dynamic_shared as i32),
            CARVEOUT => Ok(function.carveout),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuLaunchKernel` after its parameters were copied.
    pub(crate) fn launch(
        &mut self,
        handle: u64,
        config: LaunchConfig,
        stream: u64,
        parameters: Parameters,
    ) -> Result<(), CUresult> {
        let stream = self.stream(stream)?;
        let function = self.function(handle)?;
        let (device, state) = (function.device, Arc::clone(&function.state));
        check_config(&config, &state.info, function.max_dynamic_shared)?;
        self.route(stream)?;
        self.kernel_is_there(device, &state)?;
        let launch = Launch { function: state, config, parameters: Arc::new(parameters) };
        self.enqueue(stream, Work::Kernel(launch), Vec::new()).map(drop)
    }
}

/// What the driver refuses at the launch.
fn check_config(config: &LaunchConfig, info: &FunctionInfo, max_dynamic_shared: u32) -> Result<(), CUresult> {
    let [gx, gy, gz] = config.grid;
    let [bx, by, bz] = config.block;
    let threads = u64::from(bx).saturating_mul(u64::from(by)).saturating_mul(u64::from(bz));
    let fits = gx > 0
        && gy > 0
        && gz > 0
        && gx <= i32::MAX as u32
        && gy <= 65_535
        && gz <= 65_535
        && bx <= 1024
        && by <= 1024
        && bz <= 64
        && threads > 0
        && threads <= u64::from(info.max_threads.unwrap_or(1024).min(1024))
        && config.shared_bytes <= max_dynamic_shared;
    if fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

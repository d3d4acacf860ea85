// SPDX-License-Identifier: MIT OR Apache-2.0
//! One loaded module: its load with the compiler's log, its look-ups with their cache, and what is known of it.

use core::ffi::{CStr, c_uint, c_void};
use std::collections::HashMap;
use std::ffi::CString;
use std::time::{Duration, Instant};

use metrale_driver_sys::{
    CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CUdeviceptr,
    CUfunction, CUmodule, DriverError, ask,
    image::{ImageKind, arch::IsaVersion},
};
use parking_lot::RwLock;

use crate::advice::is_earlier_fault;
use crate::error::ModuleLoadError;
use crate::image::{Image, ImageNote};
use crate::nearest::nearest;
use crate::{CudaHost, RegistryError};

/// Capacity of each of the compiler's two logs, in bytes.
const LOG_BYTES: usize = 16 << 10;

/// What is known of a loaded module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleInfo {
    /// Its name in the registry.
    pub name: &'static str,
    /// What its image is.
    pub kind: ImageKind,
    /// What the image says it is made for, such as `sm_90a`.
    pub target: Option<String>,
    /// The language version, of PTX.
    pub isa: Option<IsaVersion>,
    /// Size of the image in bytes, as given.
    pub image_bytes: usize,
    /// How long the driver took to load it. Compiling PTX is most of that, where the driver has it not cached.
    pub load_time: Duration,
    /// What was noticed before the driver was asked, mended or not.
    pub notes: Vec<ImageNote>,
    /// What this crate's own reader finds wrong with the text, by line, though the driver took it.
    pub flaws: Vec<String>,
    /// What the driver's compiler wrote; empty where it wrote nothing.
    pub log: String,
    /// The kernels that the image names, in its order.
    pub kernels: Vec<String>,
    /// The globals that the image names, in its order.
    pub globals: Vec<String>,
}

/// A loaded module.
pub(crate) struct Module {
    pub(crate) info: ModuleInfo,
    handle: CUmodule,
    /// What kernels need that the image does not define, by kernel.
    undefined: HashMap<String, String>,
    /// The functions found so far.
    functions: RwLock<HashMap<Box<str>, CUfunction>>,
}

impl Module {
    /// Loads an image into the host's context, which is current.
    pub(crate) fn load(host: &CudaHost, name: &'static str, image: Image<'_>) -> Result<Self, RegistryError> {
        let bytes = image.for_the_driver();
        let mut error_log = Log::new();
        let mut info_log = Log::new();
        let mut options = [
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_INFO_LOG_BUFFER,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        // A size is passed as a pointer's value, and comes back in the same place.
        let size = core::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut values = [error_log.as_mut_ptr(), size, info_log.as_mut_ptr(), size];
        let count = options.len() as c_uint;
        let mut handle = 0;
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        let start = Instant::now();
        // SAFETY: PTX ends in NUL, and the sizes a cubin or fatbin speaks of lie within its bytes (`Image`); options
        // and values have `count` entries each, and the log buffers have the sizes given.
        let answer = unsafe {
            ask!(
                host.driver(),
                cuModuleLoadDataEx(&mut handle, bytes.as_ptr().cast(), count, options, values)
            )
        };
        let load_time = start.elapsed();
        let log = error_log.text_before(&info_log);
        match answer {
            Ok(()) => {
                let Image {
                    kind, target, isa, image_bytes, notes, flaws, kernels, globals, undefined, ..
                } = image;
                let info = ModuleInfo {
                    name,
                    kind,
                    target,
                    isa,
                    image_bytes,
                    load_time,
                    notes,
                    flaws,
                    log,
                    kernels,
                    globals,
                };
                Ok(Self { info, handle, undefined, functions: RwLock::default() })
            }
            Err(error) if is_earlier_fault(error.status) => {
                Err(RegistryError::EarlierFault { module: name, error })
            }
            Err(error) => {
                let facts = host.facts();
                Err(RegistryError::ModuleLoad(Box::new(ModuleLoadError {
                    module: name,
                    kind: image.kind,
                    target: image.target,
                    isa: image.isa,
                    image_bytes: image.image_bytes,
                    notes: image.notes,
                    flaws: image.flaws,
                    device: format!("{} ({})", facts.name, facts.compute_capability),
                    error,
                    log,
                })))
            }
        }
    }

    /// Gives the module back to the context, which is current.
    pub(crate) fn unload(&self, host: &CudaHost) -> Result<(), DriverError> {
        // SAFETY: no memory is passed; the registry unloads each module once, when nobody can launch from it any more.
        unsafe { ask!(host.driver(), cuModuleUnload(self.handle)) }
    }

    /// A function by its exact name; the driver is asked once for each that is there.
    pub(crate) fn function(&self, host: &CudaHost, function: &str) -> Result<CUfunction, RegistryError> {
        if let Some(&found) = self.functions.read().get(function) {
            return Ok(found);
        }
        let mut found = 0;
        let answer = with_name(function, |name| {
            let _current = host.enter()?;
            // SAFETY: the result pointer is a local, the name ends in NUL.
            unsafe { ask!(host.driver(), cuModuleGetFunction(&mut found, self.handle, name.as_ptr())) }
        })?;
        match answer {
            Ok(()) => {
                self.functions.write().insert(function.into(), found);
                Ok(found)
            }
            Err(error)
                if error.status == CUDA_ERROR_NOT_FOUND
                    && self.info.kernels.iter().any(|k| k == function) =>
            {
                Err(RegistryError::KernelNotLinked {
                    module: self.info.name,
                    function: function.to_owned(),
                    undefined: self.undefined.get(function).cloned(),
                })
            }
            Err(error) if error.status == CUDA_ERROR_NOT_FOUND => Err(RegistryError::FunctionNotFound {
                module: self.info.name,
                function: function.to_owned(),
                nearest: nearest(function, self.info.kernels.iter().map(String::as_str)),
                known: self.info.kernels.len(),
            }),
            Err(error) => Err(self.look_up_failed(function, error)),
        }
    }

    /// Address and size in bytes of a global.
    pub(crate) fn symbol(
        &self,
        host: &CudaHost,
        symbol: &str,
    ) -> Result<(CUdeviceptr, usize), RegistryError> {
        let (mut address, mut bytes) = (0, 0);
        let answer = with_name(symbol, |name| {
            let _current = host.enter()?;
            // SAFETY: the result pointers are locals, the name ends in NUL.
            unsafe {
                ask!(
                    host.driver(),
                    cuModuleGetGlobal_v2(&mut address, &mut bytes, self.handle, name.as_ptr())
                )
            }
        })?;
        match answer {
            Ok(()) => Ok((address, bytes)),
            // A driver answers "invalid value" here. The image's own list may lack names of a packed fatbin, so the driver
            // has the last word on what is a kernel.
            Err(error) if error.status == CUDA_ERROR_INVALID_VALUE && self.function(host, symbol).is_ok() => {
                Err(RegistryError::SymbolIsKernel { module: self.info.name, symbol: symbol.to_owned() })
            }
            Err(error) if error.status == CUDA_ERROR_NOT_FOUND => Err(RegistryError::SymbolNotFound {
                module: self.info.name,
                symbol: symbol.to_owned(),
                nearest: nearest(symbol, self.info.globals.iter().map(String::as_str)),
                known: self.info.globals.len(),
            }),
            Err(error) => Err(self.look_up_failed(symbol, error)),
        }
    }

    /// The name of a function that was found here. Looks at all of them: for errors.
    pub(crate) fn name_of(&self, function: CUfunction) -> Option<String> {
        let functions = self.functions.read();
        functions.iter().find(|&(_, &found)| found == function).map(|(name, _)| name.to_string())
    }

    fn look_up_failed(&self, name: &str, error: DriverError) -> RegistryError {
        RegistryError::LookUp { module: self.info.name, name: name.to_owned(), error }
    }
}

/// Calls `ask` with a name as C has them.
fn with_name<T>(name: &str, ask: impl FnOnce(&CStr) -> T) -> Result<T, RegistryError> {
    let name = CString::new(name).map_err(|_| RegistryError::NulInName { name: name.to_owned() })?;
    Ok(ask(&name))
}

/// A buffer that the compiler writes a log into.
struct Log(Vec<u8>);

impl Log {
    fn new() -> Self {
        Self(vec![0; LOG_BYTES])
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// This log and then the other, each without what surrounds it.
    fn text_before(&self, other: &Self) -> String {
        let parts = [text_of(&self.0), text_of(&other.0)];
        let parts: Vec<_> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        parts.join("\n")
    }
}

/// The text of a log up to its NUL, in whole characters and without the driver's surrounding white space. One that
/// fills its buffer was cut by the driver, and then ends with the last whole line and a word about it.
fn text_of(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    if end + 1 < log.len() {
        return text.trim().to_owned();
    }
    let whole = text.rfind('\n').map_or(&*text, |line_end| &text[..line_end]);
    format!("{}\n(cut at {} KiB)", whole.trim(), log.len() >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_at_its_nul_and_loses_the_white_space_around_it() {
        let mut log = vec![0; LOG_BYTES];
        log[..20].copy_from_slice(b"\nptxas error : bad\n\n");
        assert_eq!(text_of(&log), "ptxas error : bad");
        assert_eq!(text_of(&vec![0; LOG_BYTES]), "");
    }

    #[test]
    fn a_log_that_fills_its_buffer_is_cut_at_a_line_and_says_so() {
        let line = "ptxas error : \u{e4}\n";
        let mut log: Vec<u8> = line.bytes().cycle().take(LOG_BYTES - 1).collect();
        log.push(0);
        let text = text_of(&log);
        assert!(text.ends_with("\n(cut at 16 KiB)"), "{text}");
        assert!(!text.contains(char::REPLACEMENT_CHARACTER), "a character cut in two goes with its line");
        // A log without a final NUL is read to the end of the buffer and no further.
        log[LOG_BYTES - 1] = b'x';
        assert!(text_of(&log).ends_with("(cut at 16 KiB)"));
    }

    #[test]
    fn errors_come_before_remarks() {
        let (mut errors, mut remarks) = (Log::new(), Log::new());
        remarks.0[..4].copy_from_slice(b"info");
        assert_eq!(errors.text_before(&remarks), "info");
        errors.0[..5].copy_from_slice(b"error");
        assert_eq!(errors.text_before(&remarks), "error\ninfo");
    }
}

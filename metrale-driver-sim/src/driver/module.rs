// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules, their functions and globals, and tensor maps.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use metrale_driver_sys::{
    CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CUDA_ERROR_INVALID_VALUE, CUdeviceptr, CUfunction,
    CUfunction_attribute, CUjit_option, CUmodule, CUresult, CUtensorMap, CUtensorMapDataType,
    CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};

use super::Face;
use super::raw::{Out, get, name, readable};
use crate::model::Model;
use crate::model::host;
use crate::model::module::{self, Refusal};
use crate::model::tensor_map;

impl Face {
    pub(super) unsafe fn cuModuleLoadData(&self, module: *mut CUmodule, image: *const c_void) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(module) }?;
            // SAFETY: the trait's promise for images.
            let loaded = unsafe { load(model, image) }.map_err(|refusal| refusal.status)?;
            out.put(loaded);
            Ok(())
        })
    }

    pub(super) unsafe fn cuModuleLoadDataEx(
        &self,
        module: *mut CUmodule,
        image: *const c_void,
        numOptions: c_uint,
        options: *mut CUjit_option,
        optionValues: *mut *mut c_void,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(module) }?;
            // SAFETY: the trait's promise: both arrays have `numOptions` elements.
            let mut logs = unsafe { JitLogs::new(numOptions, options, optionValues) }?;
            // SAFETY: the trait's promise for images.
            let outcome = unsafe { load(model, image) };
            let log = outcome.as_ref().map_or_else(|refusal| refusal.log.as_str(), |_| "");
            // SAFETY: the trait's promise: the log buffers have the sizes that the options say.
            unsafe { logs.write(log) };
            out.put(outcome.map_err(|refusal| refusal.status)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuModuleUnload(&self, hmod: CUmodule) -> CUresult {
        self.call(|model| model.module_unload(hmod))
    }

    pub(super) unsafe fn cuModuleGetFunction(
        &self,
        hfunc: *mut CUfunction,
        hmod: CUmodule,
        name: *const c_char,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(hfunc) }?;
            // SAFETY: the trait's promise for names.
            let name = unsafe { self::name(name) }?;
            out.put(model.module_function(hmod, name)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuModuleGetGlobal_v2(
        &self,
        dptr: *mut CUdeviceptr,
        bytes: *mut usize,
        hmod: CUmodule,
        name: *const c_char,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers, either of which may be null.
            let address = unsafe { Out::optional(dptr) }?;
            // SAFETY: as above.
            let size = unsafe { Out::optional(bytes) }?;
            // SAFETY: the trait's promise for names.
            let name = unsafe { self::name(name) }?;
            let (found, len) = model.module_global(hmod, name)?;
            if let Some(address) = address {
                address.put(found);
            }
            if let Some(size) = size {
                size.put(len as usize);
            }
            Ok(())
        })
    }

    pub(super) unsafe fn cuFuncSetAttribute(
        &self,
        hfunc: CUfunction,
        attrib: CUfunction_attribute,
        value: c_int,
    ) -> CUresult {
        self.call(|model| model.function_set(hfunc, attrib, value))
    }

    pub(super) unsafe fn cuFuncGetAttribute(
        &self,
        pi: *mut c_int,
        attrib: CUfunction_attribute,
        hfunc: CUfunction,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pi) }?;
            out.put(model.function_get(hfunc, attrib)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuTensorMapEncodeTiled(
        &self,
        tensorMap: *mut CUtensorMap,
        tensorDataType: CUtensorMapDataType,
        tensorRank: u32,
        globalAddress: *mut c_void,
        globalDim: *const u64,
        globalStrides: *const u64,
        boxDim: *const u32,
        elementStrides: *const u32,
        interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle,
        l2Promotion: CUtensorMapL2promotion,
        oobFill: CUtensorMapFloatOOBfill,
    ) -> CUresult {
        // A function of its arguments: no context is asked for, and no capture minds. Where one is current, its device
        // says how large a box may be.
        self.call(|model| {
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(tensorMap) }?;
            let rank = tensorRank as usize;
            if !(1..=tensor_map::MAX_RANK).contains(&rank) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: the trait's promise: the array has an element for each dimension.
            let dims = unsafe { values(globalDim, rank) }?;
            // Measured: a null pointer is refused even at rank 1, where nothing is read through it.
            if globalStrides.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: as above, less the innermost.
            let strides_bytes = unsafe { values(globalStrides, rank - 1) }?;
            // SAFETY: as for the dimensions.
            let box_dims = unsafe { values(boxDim, rank) }?;
            // SAFETY: as for the dimensions.
            let element_strides = unsafe { values(elementStrides, rank) }?;
            let arguments = tensor_map::Arguments {
                data_type: tensorDataType,
                address: globalAddress.addr() as u64,
                dims: &dims,
                strides_bytes: &strides_bytes,
                box_dims: &box_dims,
                element_strides: &element_strides,
                interleave,
                swizzle,
                l2_promotion: l2Promotion,
                oob_fill: oobFill,
            };
            let profile = model.profiles.get(model.current_device().unwrap_or(0));
            let max_box_bytes = profile.map_or(0, |profile| profile.shared_per_multiprocessor_bytes);
            let before_10 = profile.is_some_and(|profile| profile.compute_capability < (10, 0));
            let map = tensor_map::encode(&arguments, max_box_bytes.into(), before_10)?;
            out.put(map);
            Ok(())
        })
    }
}

/// Reads an array.
///
/// # Safety
/// A pointer that is neither null nor one of this driver's own numbers has `count` elements.
unsafe fn values<T: Copy>(pointer: *const T, count: usize) -> Result<Vec<T>, CUresult> {
    // SAFETY: the caller's promise, element by element.
    (0..count).map(|at| unsafe { get(pointer.wrapping_add(at)) }).collect()
}

/// Bounds an image by its own format and loads it.
///
/// # Safety
/// The trait's promise for images.
unsafe fn load(model: &mut Model, image: *const c_void) -> Result<CUmodule, Refusal> {
    if readable(image.cast::<u8>(), 1).is_err() {
        let log = "the image's address is no host address".to_owned();
        return Err(Refusal { status: CUDA_ERROR_INVALID_VALUE, log });
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { module::image_bytes(image) }?;
    model.module_load(bytes)
}

/// The log buffers among the options of `cuModuleLoadDataEx`; other options change nothing here.
#[derive(Default)]
struct JitLogs {
    info: Option<*mut c_void>,
    info_size: Option<*mut *mut c_void>,
    error: Option<*mut c_void>,
    error_size: Option<*mut *mut c_void>,
}

impl JitLogs {
    /// # Safety
    /// Arrays that are neither null nor this driver's own numbers have `count` elements.
    unsafe fn new(
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) -> Result<Self, CUresult> {
        let mut logs = Self::default();
        if count == 0 {
            return Ok(logs);
        }
        readable(options.cast_const(), count as usize)?;
        readable(values.cast_const(), count as usize)?;
        for at in 0..count as usize {
            // SAFETY: the caller's promise.
            let option = unsafe { get(options.wrapping_add(at).cast_const()) }?;
            let slot = values.wrapping_add(at);
            // SAFETY: the caller's promise.
            let value = unsafe { get(slot.cast_const()) }?;
            match option {
                CU_JIT_INFO_LOG_BUFFER => logs.info = Some(value),
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => logs.info_size = Some(slot),
                CU_JIT_ERROR_LOG_BUFFER => logs.error = Some(value),
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => logs.error_size = Some(slot),
                _ => {}
            }
        }
        Ok(logs)
    }

    /// Writes the error log and an empty info log; each size becomes the bytes written.
    ///
    /// # Safety
    /// Each buffer is writable for as many bytes as its size option says.
    unsafe fn write(&mut self, log: &str) {
        for (buffer, size, text) in [(self.info, self.info_size, ""), (self.error, self.error_size, log)] {
            let Some(slot) = size else { continue };
            // SAFETY: the slot is an element of the values' array.
            let Ok(capacity) = (unsafe { get(slot.cast_const()) }) else { continue };
            let capacity = capacity.addr();
            let mut written = 0;
            if let Some(buffer) = buffer
                && capacity > 0
                && readable(buffer.cast_const().cast::<u8>(), capacity).is_ok()
            {
                let text = &text.as_bytes()[..text.len().min(capacity - 1)];
                let bytes: Vec<u8> = text.iter().copied().chain([0]).collect();
                // SAFETY: the caller's promise; the text was cut to the buffer.
                unsafe { host::write(buffer.expose_provenance(), &bytes) };
                written = text.len();
            }
            // SAFETY: the slot is an element of the values' array.
            if let Ok(out) = unsafe { Out::new(slot) } {
                out.put(core::ptr::without_provenance_mut(written));
            }
        }
    }
}

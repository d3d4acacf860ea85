// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuLaunchKernel`: copies the parameters by the sizes that the kernel declares.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::{c_uint, c_void};

use metrale_driver_sys::{CUDA_ERROR_INVALID_VALUE, CUfunction, CUresult, CUstream};

use super::Face;
use super::raw::{get, readable};
use crate::model::host;
use crate::model::kernel::{LaunchConfig, Parameters};
use crate::model::module::Parameter;

/// `CU_LAUNCH_PARAM_END`, `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

impl Face {
    pub(super) unsafe fn cuLaunchKernel(
        &self,
        f: CUfunction,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            let config = LaunchConfig {
                grid: [gridDimX, gridDimY, gridDimZ],
                block: [blockDimX, blockDimY, blockDimZ],
                shared_bytes: sharedMemBytes,
            };
            let declared = &model.function(f)?.state.info.parameters;
            let parameters = match (kernelParams.is_null(), extra.is_null()) {
                (false, false) => return Err(CUDA_ERROR_INVALID_VALUE),
                // SAFETY: the trait's promise: one pointer per parameter, each valid for the parameter's size.
                (false, true) => unsafe { from_pointers(declared, kernelParams) }?,
                // SAFETY: the trait's promise, for the buffer that the list names.
                (true, false) => unsafe { from_buffer(declared, extra) }?,
                (true, true) if declared.is_empty() => empty(declared),
                (true, true) => return Err(CUDA_ERROR_INVALID_VALUE),
            };
            model.launch(f, config, hStream, parameters)
        })
    }
}

/// Zeros for all parameters, at their declared offsets.
fn empty(declared: &[Parameter]) -> Parameters {
    let ranges: Vec<_> =
        declared.iter().map(|parameter| parameter.offset..parameter.offset + parameter.bytes).collect();
    let bytes = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    Parameters { buffer: vec![0; bytes], ranges }
}

/// # Safety
/// `pointers` has one pointer per parameter, each valid for reading that parameter's bytes.
unsafe fn from_pointers(declared: &[Parameter], pointers: *mut *mut c_void) -> Result<Parameters, CUresult> {
    let mut parameters = empty(declared);
    if declared.is_empty() {
        return Ok(parameters);
    }
    readable(pointers.cast_const(), declared.len())?;
    for (at, range) in parameters.ranges.iter().enumerate() {
        // SAFETY: the caller's promise.
        let pointer = unsafe { get(pointers.wrapping_add(at).cast_const()) }?;
        readable(pointer.cast_const().cast::<u8>(), range.len())?;
        // SAFETY: the caller's promise.
        unsafe { host::read(pointer.expose_provenance(), &mut parameters.buffer[range.clone()]) };
    }
    Ok(parameters)
}

/// # Safety
/// `extra` is a list of pairs that ends in `CU_LAUNCH_PARAM_END`; the buffer it names has the size it names.
unsafe fn from_buffer(declared: &[Parameter], extra: *mut *mut c_void) -> Result<Parameters, CUresult> {
    let (mut buffer, mut bytes) = (None, None);
    let mut at = extra;
    // Each of the two may stand once, so a list that is longer is wrong.
    for _ in 0..3 {
        // SAFETY: the caller's promise: the list reaches to its end mark, which was not read yet.
        let key = unsafe { get(at.cast_const()) }?;
        if key.addr() == END {
            break;
        }
        // SAFETY: as above: a key has its value behind it.
        let value = unsafe { get(at.wrapping_add(1).cast_const()) }?;
        match key.addr() {
            BUFFER_POINTER if buffer.is_none() => buffer = Some(value),
            BUFFER_SIZE if bytes.is_none() => {
                // SAFETY: as above: the size is given by address.
                bytes = Some(unsafe { get(value.cast_const().cast::<usize>()) }?);
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        at = at.wrapping_add(2);
    }
    let mut parameters = empty(declared);
    let (Some(buffer), Some(bytes)) = (buffer, bytes) else { return Err(CUDA_ERROR_INVALID_VALUE) };
    if bytes < parameters.buffer.len() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    readable(buffer.cast_const().cast::<u8>(), parameters.buffer.len())?;
    // SAFETY: the caller's promise; no more is read than the buffer has.
    unsafe { host::read(buffer.expose_provenance(), &mut parameters.buffer) };
    Ok(parameters)
}

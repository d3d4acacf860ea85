// SPDX-License-Identifier: MIT OR Apache-2.0
//! Start-up, devices, contexts and the names of statuses.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::{c_char, c_int, c_uint};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::OnceLock;

use metrale_driver_sys::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUcontext, CUdevice, CUdevice_attribute, CUresult,
    CUuuid, KNOWN_STATUSES, status_name, status_text,
};

use super::Face;
use super::raw::{Out, readable};
use crate::model::context::device_attribute;

/// Names and texts as C strings, for the process: they are handed out as static.
static TEXTS: OnceLock<HashMap<CUresult, (CString, CString)>> = OnceLock::new();

fn texts(status: CUresult) -> Option<&'static (CString, CString)> {
    let texts = TEXTS.get_or_init(|| {
        let c = |text: Option<&str>| CString::new(text.unwrap_or_default()).unwrap_or_default();
        KNOWN_STATUSES
            .iter()
            .map(|&status| (status, (c(status_name(status)), c(status_text(status)))))
            .collect()
    });
    texts.get(&status)
}

impl Face {
    pub(super) unsafe fn cuInit(&self, Flags: c_uint) -> CUresult {
        self.call(|model| {
            if Flags != 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            model.initialize();
            Ok(())
        })
    }

    pub(super) unsafe fn cuDriverGetVersion(&self, driverVersion: *mut c_int) -> CUresult {
        self.call(|model| {
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(driverVersion) }?;
            out.put(model.profiles.first().map_or(13_000, |profile| profile.driver_version));
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceGetCount(&self, count: *mut c_int) -> CUresult {
        self.call(|model| {
            model.initialized()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(count) }?;
            out.put(model.profiles.len() as c_int);
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceGet(&self, device: *mut CUdevice, ordinal: c_int) -> CUresult {
        self.call(|model| {
            model.initialized()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(device) }?;
            out.put(model.device(ordinal)? as CUdevice);
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceGetName(&self, name: *mut c_char, len: c_int, dev: CUdevice) -> CUresult {
        self.call(|model| {
            let device = model.device(dev)?;
            let capacity =
                usize::try_from(len).ok().filter(|&capacity| capacity > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            readable(name.cast_const(), capacity)?;
            let text = model.profiles[device].device_name.as_bytes();
            // Cut to what fits before the NUL.
            let text: Vec<u8> = text.iter().copied().take(capacity - 1).chain([0]).collect();
            // SAFETY: the trait's promise: `name` has `len` bytes, and the text is no longer.
            unsafe { crate::model::host::write(name.expose_provenance(), &text) }
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceGetUuid(&self, uuid: *mut CUuuid, dev: CUdevice) -> CUresult {
        self.call(|model| {
            let device = model.device(dev)?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(uuid) }?;
            let mut bytes = *b"metrale-sim-\0\0\0\0";
            bytes[12..].copy_from_slice(&(device as u32).to_be_bytes());
            out.put(CUuuid { bytes });
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceTotalMem_v2(&self, bytes: *mut usize, dev: CUdevice) -> CUresult {
        self.call(|model| {
            let device = model.device(dev)?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(bytes) }?;
            out.put(model.memory.total_bytes(device) as usize);
            Ok(())
        })
    }

    pub(super) unsafe fn cuDeviceGetAttribute(
        &self,
        pi: *mut c_int,
        attrib: CUdevice_attribute,
        dev: CUdevice,
    ) -> CUresult {
        self.call(|model| {
            let device = model.device(dev)?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pi) }?;
            out.put(device_attribute(&model.profiles[device], attrib, device)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuDevicePrimaryCtxRetain(&self, pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
        self.call(|model| {
            model.initialized()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pctx) }?;
            out.put(model.retain(dev)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuDevicePrimaryCtxRelease_v2(&self, dev: CUdevice) -> CUresult {
        self.call(|model| model.release(dev))
    }

    pub(super) unsafe fn cuCtxGetCurrent(&self, pctx: *mut CUcontext) -> CUresult {
        self.call(|model| {
            let current = model.current_handle()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pctx) }?;
            out.put(current);
            Ok(())
        })
    }

    pub(super) unsafe fn cuCtxSetCurrent(&self, ctx: CUcontext) -> CUresult {
        self.call(|model| model.set_current(ctx))
    }

    pub(super) unsafe fn cuCtxGetDevice(&self, device: *mut CUdevice) -> CUresult {
        self.call(|model| {
            let current = model.current_device()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(device) }?;
            out.put(CUdevice::try_from(current).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuCtxSynchronize(&self) -> CUresult {
        self.call(|model| model.context_synchronize())
    }

    pub(super) unsafe fn cuGetErrorName(&self, error: CUresult, pStr: *mut *const c_char) -> CUresult {
        self.call(|_| {
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pStr) }?;
            answer(out, texts(error).map(|(name, _)| name))
        })
    }

    pub(super) unsafe fn cuGetErrorString(&self, error: CUresult, pStr: *mut *const c_char) -> CUresult {
        self.call(|_| {
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pStr) }?;
            answer(out, texts(error).map(|(_, text)| text))
        })
    }
}

/// A static string, or null and 1 for an unknown code.
fn answer(out: Out<*const c_char>, text: Option<&'static CString>) -> Result<(), CUresult> {
    match text {
        Some(text) => {
            out.put(text.as_ptr());
            Ok(())
        }
        None => {
            out.put(core::ptr::null());
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

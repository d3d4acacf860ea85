// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and memsets.
//!
//! When the bytes move:
//!
//! | call | source read | target written |
//! |---|---|---|
//! | host to device, blocking | at the call | at the call (late where the profile says so) |
//! | host to device, asynchronous, pinned or managed source | late | late |
//! | host to device, asynchronous, pageable source | at the call (staged) | late |
//! | device to host, blocking | at the call | at the call |
//! | device to host, asynchronous, pinned or managed target | late | late |
//! | device to host, asynchronous, pageable target | at the call | at the call (late where the profile says so) |
//! | device to device, memset, blocking or not | late | late |
//!
//! Blocking calls use the legacy stream and run first what it must wait for. A captured copy moves its bytes when its
//! graph runs.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::{c_uchar, c_uint, c_void};
use std::sync::Arc;

use metrale_driver_sys::{
    CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CUDA_ERROR_INVALID_VALUE, CUDA_MEMCPY2D,
    CUcontext, CUdeviceptr, CUmemorytype, CUresult, CUstream,
};

use super::Face;
use super::raw::get;
use crate::model::Model;
use crate::model::host;
use crate::model::work::{Copy, Place, Work};
use crate::profile::PageableCopies;

/// The legacy stream.
const LEGACY: CUstream = 0;

impl Face {
    pub(super) unsafe fn cuMemcpyHtoD_v2(
        &self,
        dstDevice: CUdeviceptr,
        srcHost: *const c_void,
        ByteCount: usize,
    ) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            let stream = model.stream(LEGACY)?;
            model.route(stream)?;
            if ByteCount == 0 {
                return Ok(());
            }
            let target = device_place(model, dstDevice, ByteCount as u64)?;
            let source = host_place(model, srcHost.expose_provenance(), ByteCount)?;
            let late = model.profiles[device].pageable_copies == PageableCopies::Late && is_pageable(&source);
            if late {
                // SAFETY: the trait's promise: the source is readable during the call.
                let staged = unsafe { stage(&source, ByteCount) };
                let copy = Copy::linear(staged, target, ByteCount as u64);
                return model.enqueue(stream, Work::Copy(copy), Vec::new()).map(drop);
            }
            model.enqueue_and_run(stream, Work::Copy(Copy::linear(source, target, ByteCount as u64)))
        })
    }

    pub(super) unsafe fn cuMemcpyDtoH_v2(
        &self,
        dstHost: *mut c_void,
        srcDevice: CUdeviceptr,
        ByteCount: usize,
    ) -> CUresult {
        self.call(|model| {
            let stream = model.stream(LEGACY)?;
            model.route(stream)?;
            if ByteCount == 0 {
                return Ok(());
            }
            let source = device_place(model, srcDevice, ByteCount as u64)?;
            let target = host_place(model, dstHost.expose_provenance(), ByteCount)?;
            model.enqueue_and_run(stream, Work::Copy(Copy::linear(source, target, ByteCount as u64)))
        })
    }

    pub(super) unsafe fn cuMemcpyDtoD_v2(
        &self,
        dstDevice: CUdeviceptr,
        srcDevice: CUdeviceptr,
        ByteCount: usize,
    ) -> CUresult {
        self.call(|model| copy_on_device(model, dstDevice, srcDevice, ByteCount, LEGACY))
    }

    pub(super) unsafe fn cuMemcpyHtoDAsync_v2(
        &self,
        dstDevice: CUdeviceptr,
        srcHost: *const c_void,
        ByteCount: usize,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| {
            let stream = model.stream(hStream)?;
            let captured = model.route(stream)?.is_some();
            if ByteCount == 0 {
                return Ok(());
            }
            let target = device_place(model, dstDevice, ByteCount as u64)?;
            let mut source = host_place(model, srcHost.expose_provenance(), ByteCount)?;
            if !captured && is_pageable(&source) {
                // SAFETY: the trait's promise: the source is readable during the call.
                source = unsafe { stage(&source, ByteCount) };
            }
            let copy = Copy::linear(source, target, ByteCount as u64);
            model.enqueue(stream, Work::Copy(copy), Vec::new()).map(drop)
        })
    }

    pub(super) unsafe fn cuMemcpyDtoHAsync_v2(
        &self,
        dstHost: *mut c_void,
        srcDevice: CUdeviceptr,
        ByteCount: usize,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            let stream = model.stream(hStream)?;
            model.route(stream)?;
            if ByteCount == 0 {
                return Ok(());
            }
            let source = device_place(model, srcDevice, ByteCount as u64)?;
            let target = host_place(model, dstHost.expose_provenance(), ByteCount)?;
            let at_return = model.profiles[device].pageable_copies == PageableCopies::AtReturn;
            let now = at_return && is_pageable(&target);
            let work = Work::Copy(Copy::linear(source, target, ByteCount as u64));
            if now {
                model.enqueue_and_run(stream, work)
            } else {
                model.enqueue(stream, work, Vec::new()).map(drop)
            }
        })
    }

    pub(super) unsafe fn cuMemcpyDtoDAsync_v2(
        &self,
        dstDevice: CUdeviceptr,
        srcDevice: CUdeviceptr,
        ByteCount: usize,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| copy_on_device(model, dstDevice, srcDevice, ByteCount, hStream))
    }

    pub(super) unsafe fn cuMemcpy2DAsync_v2(
        &self,
        pCopy: *const CUDA_MEMCPY2D,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| {
            let device = model.context()?;
            let stream = model.stream(hStream)?;
            let captured = model.route(stream)?.is_some();
            // SAFETY: the trait's promise for pointers to structures.
            let asked = unsafe { get(pCopy) }?;
            let (width, rows) = (asked.WidthInBytes as u64, asked.Height as u64);
            if width == 0 || rows == 0 {
                return Ok(());
            }
            let source = Side {
                kind: asked.srcMemoryType,
                host: asked.srcHost.expose_provenance(),
                device: asked.srcDevice,
                x: asked.srcXInBytes,
                y: asked.srcY,
                pitch: asked.srcPitch,
            };
            let target = Side {
                kind: asked.dstMemoryType,
                host: asked.dstHost.expose_provenance(),
                device: asked.dstDevice,
                x: asked.dstXInBytes,
                y: asked.dstY,
                pitch: asked.dstPitch,
            };
            let (mut source_place, source_span) = source.place(model, width, rows)?;
            let (target_place, _) = target.place(model, width, rows)?;
            let from_pageable = is_pageable(&source_place);
            let to_pageable = is_pageable(&target_place);
            if !captured && from_pageable {
                // SAFETY: the trait's promise: the source is readable during the call.
                source_place = unsafe { stage(&source_place, source_span as usize) };
            }
            let work = Work::Copy(Copy {
                source: source_place,
                source_pitch: source.pitch as u64,
                target: target_place,
                target_pitch: target.pitch as u64,
                width,
                rows,
            });
            let at_return = model.profiles[device].pageable_copies == PageableCopies::AtReturn;
            if to_pageable && (at_return || from_pageable) {
                model.enqueue_and_run(stream, work)
            } else {
                model.enqueue(stream, work, Vec::new()).map(drop)
            }
        })
    }

    pub(super) unsafe fn cuMemcpyPeerAsync(
        &self,
        dstDevice: CUdeviceptr,
        dstContext: CUcontext,
        srcDevice: CUdeviceptr,
        srcContext: CUcontext,
        ByteCount: usize,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            for context in [dstContext, srcContext] {
                let device = model.context_of(context)?;
                model.alive(device)?;
            }
            // Measured, with both contexts one and the same: 900 in relaxed mode, and the capture is lost.
            let stream = model.stream(hStream)?;
            model.not_while_capturing(stream)?;
            copy_on_device(model, dstDevice, srcDevice, ByteCount, hStream)
        })
    }

    pub(super) unsafe fn cuMemsetD8_v2(&self, dstDevice: CUdeviceptr, uc: c_uchar, N: usize) -> CUresult {
        self.call(|model| fill(model, dstDevice, u32::from_ne_bytes([uc; 4]), N as u64, LEGACY))
    }

    pub(super) unsafe fn cuMemsetD8Async(
        &self,
        dstDevice: CUdeviceptr,
        uc: c_uchar,
        N: usize,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| fill(model, dstDevice, u32::from_ne_bytes([uc; 4]), N as u64, hStream))
    }

    pub(super) unsafe fn cuMemsetD32Async(
        &self,
        dstDevice: CUdeviceptr,
        ui: c_uint,
        N: usize,
        hStream: CUstream,
    ) -> CUresult {
        self.call(|model| {
            let bytes = (N as u64).checked_mul(4).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            if !dstDevice.is_multiple_of(4) {
                model.context()?;
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            fill(model, dstDevice, ui, bytes, hStream)
        })
    }
}

/// One side of a 2-D copy.
struct Side {
    kind: CUmemorytype,
    host: usize,
    device: CUdeviceptr,
    x: usize,
    y: usize,
    pitch: usize,
}

impl Side {
    /// Where the rectangle begins, and the bytes from there to its end.
    fn place(&self, model: &Model, width: u64, rows: u64) -> Result<(Place, u64), CUresult> {
        let bad = CUDA_ERROR_INVALID_VALUE;
        let (x, y, pitch) = (self.x as u64, self.y as u64, self.pitch as u64);
        if x.checked_add(width).ok_or(bad)? > pitch {
            return Err(bad);
        }
        let start = y.checked_mul(pitch).and_then(|skip| skip.checked_add(x)).ok_or(bad)?;
        let span = pitch.checked_mul(rows - 1).and_then(|rows| rows.checked_add(width)).ok_or(bad)?;
        let on_device = |address: u64| {
            let address = address.checked_add(start).ok_or(bad)?;
            Ok((device_place(model, address, span)?, span))
        };
        match self.kind {
            CU_MEMORYTYPE_DEVICE => on_device(self.device),
            CU_MEMORYTYPE_UNIFIED if model.memory.find(self.device).is_some() => on_device(self.device),
            CU_MEMORYTYPE_HOST | CU_MEMORYTYPE_UNIFIED => {
                let base = if self.kind == CU_MEMORYTYPE_HOST { self.host } else { self.device as usize };
                let address = base.checked_add(start as usize).ok_or(bad)?;
                Ok((host_place(model, address, span as usize)?, span))
            }
            // Arrays do not exist here.
            _ => Err(bad),
        }
    }
}

/// Memory that the device reaches, all of it inside one allocation: else 1.
fn device_place(model: &Model, address: u64, bytes: u64) -> Result<Place, CUresult> {
    model.memory.covers(address, bytes).map(|_| Place::Device(address)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Host memory: 1 for null and for what is no host address.
fn host_place(model: &Model, address: usize, bytes: usize) -> Result<Place, CUresult> {
    if !host::plausible(address, bytes) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let owner = model
        .memory
        .covers(address as u64, bytes as u64)
        .filter(|allocation| allocation.is_host())
        .map(|allocation| allocation.serial);
    Ok(Place::Host { address, owner })
}

/// Host memory that is neither pinned nor managed by this driver.
fn is_pageable(place: &Place) -> bool {
    matches!(place, Place::Host { owner: None, .. })
}

/// Reads the bytes of a host place now.
///
/// # Safety
/// The place has `bytes` readable bytes.
unsafe fn stage(place: &Place, bytes: usize) -> Place {
    let Place::Host { address, .. } = place else { return place.clone() };
    let mut staged: Arc<[u8]> = core::iter::repeat_n(0, bytes).collect();
    if let Some(staged) = Arc::get_mut(&mut staged) {
        // SAFETY: the caller's promise.
        unsafe { host::read(*address, staged) }
    }
    Place::Staged(staged)
}

fn copy_on_device(
    model: &mut Model,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let stream = model.stream(stream)?;
    model.route(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let source = device_place(model, source, bytes as u64)?;
    let target = device_place(model, target, bytes as u64)?;
    let copy = Copy::linear(source, target, bytes as u64);
    model.enqueue(stream, Work::Copy(copy), Vec::new()).map(drop)
}

fn fill(model: &mut Model, address: u64, word: u32, bytes: u64, stream: CUstream) -> Result<(), CUresult> {
    let stream = model.stream(stream)?;
    model.route(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    device_place(model, address, bytes)?;
    model.enqueue(stream, Work::Fill { address, word, bytes }, Vec::new()).map(drop)
}

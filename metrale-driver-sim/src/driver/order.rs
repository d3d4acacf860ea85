// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams, captures and events.
#![allow(non_snake_case, reason = "functions and arguments keep the C spelling")]

use core::ffi::{c_float, c_uint};

use metrale_driver_sys::{
    CUDA_ERROR_NOT_SUPPORTED, CUevent, CUgraph, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};

use super::Face;
use super::raw::Out;

impl Face {
    pub(super) unsafe fn cuStreamCreate(&self, phStream: *mut CUstream, Flags: c_uint) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(phStream) }?;
            out.put(model.stream_create(Flags)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuStreamDestroy_v2(&self, hStream: CUstream) -> CUresult {
        self.call(|model| model.stream_destroy(hStream))
    }

    pub(super) unsafe fn cuStreamSynchronize(&self, hStream: CUstream) -> CUresult {
        self.call(|model| model.stream_synchronize(hStream))
    }

    pub(super) unsafe fn cuStreamQuery(&self, hStream: CUstream) -> CUresult {
        self.call(|model| model.stream_query(hStream))
    }

    pub(super) unsafe fn cuStreamWaitEvent(
        &self,
        hStream: CUstream,
        hEvent: CUevent,
        Flags: c_uint,
    ) -> CUresult {
        self.call(|model| model.event_wait(hStream, hEvent, Flags))
    }

    pub(super) unsafe fn cuStreamBeginCapture_v2(
        &self,
        hStream: CUstream,
        mode: CUstreamCaptureMode,
    ) -> CUresult {
        self.call(|model| model.capture_begin(hStream, mode))
    }

    /// The graph is null on every status but 0.
    pub(super) unsafe fn cuStreamEndCapture(&self, hStream: CUstream, phGraph: *mut CUgraph) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(phGraph) }?;
            let graph = model.capture_end(hStream);
            out.put(graph.unwrap_or(0));
            graph.map(drop)
        })
    }

    // Not on the list of a build for SCALE.
    #[allow(dead_code, reason = "the list of driver functions decides which variant has it")]
    pub(super) unsafe fn cuStreamIsCapturing(
        &self,
        hStream: CUstream,
        captureStatus: *mut CUstreamCaptureStatus,
    ) -> CUresult {
        if self.scale {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(captureStatus) }?;
            out.put(model.capture_status(hStream)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuEventCreate(&self, phEvent: *mut CUevent, Flags: c_uint) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(phEvent) }?;
            out.put(model.event_create(Flags)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuEventRecord(&self, hEvent: CUevent, hStream: CUstream) -> CUresult {
        self.call(|model| model.event_record(hEvent, hStream))
    }

    pub(super) unsafe fn cuEventQuery(&self, hEvent: CUevent) -> CUresult {
        self.call(|model| model.event_query(hEvent))
    }

    pub(super) unsafe fn cuEventSynchronize(&self, hEvent: CUevent) -> CUresult {
        self.call(|model| model.event_synchronize(hEvent))
    }

    pub(super) unsafe fn cuEventElapsedTime(
        &self,
        pMilliseconds: *mut c_float,
        hStart: CUevent,
        hEnd: CUevent,
    ) -> CUresult {
        self.call(|model| {
            model.context()?;
            // SAFETY: the trait's promise for result pointers.
            let out = unsafe { Out::new(pMilliseconds) }?;
            out.put(model.event_elapsed(hStart, hEnd)?);
            Ok(())
        })
    }

    pub(super) unsafe fn cuEventDestroy_v2(&self, hEvent: CUevent) -> CUresult {
        self.call(|model| model.event_destroy(hEvent))
    }
}

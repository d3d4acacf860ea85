// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same primary context and stream as cudarc objects, and cudarc's as ours, so that its wrappers of cuBLAS and the like
//! share them. Feature `cudarc`.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};
use metrale_driver_sys::{CUcontext, CUstream};

use crate::{CudaHost, HostError};

/// Why a context or stream cannot be shared with cudarc.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudarcError {
    /// cudarc finds no driver library; it would end the process over that.
    #[error("cudarc finds no CUDA driver library: install the NVIDIA driver, which brings libcuda.so.1")]
    NoLibrary,
    /// cudarc's own call failed.
    #[error("cudarc, on device {ordinal}: {error}")]
    Cudarc {
        /// The device.
        ordinal: usize,
        /// Its error.
        error: cudarc::driver::DriverError,
    },
    /// Two contexts: the host is on another driver than the system's, or cudarc's context is not the primary one.
    #[error(
        "device {ordinal}: cudarc works in context {theirs:#x} and this host in {ours:#x}; only the system driver's primary \
         context (CudaContext::new) can be shared"
    )]
    OtherContext {
        /// The device.
        ordinal: usize,
        /// The host's context.
        ours: CUcontext,
        /// cudarc's.
        theirs: CUcontext,
    },
    /// There is no host for cudarc's device.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl CudaHost {
    /// The host's context as cudarc's. It holds a reference of its own on the primary context, and makes it current on the
    /// calling thread. Does not block; allowed during a capture.
    ///
    /// # Errors
    /// [`CudarcError`]: on a driver other than the system's there is nothing to share.
    pub fn cudarc_context(&self) -> Result<Arc<CudaContext>, CudarcError> {
        let ordinal = self.ordinal();
        // cudarc panics where it finds none.
        // SAFETY: opens a library that the loader finds, and closes it again.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudarcError::NoLibrary);
        }
        let context = CudaContext::new(ordinal).map_err(|error| CudarcError::Cudarc { ordinal, error })?;
        self.is_context_of(&context)?;
        Ok(context)
    }

    /// The host's stream as cudarc's, in a context of [`cudarc_context`](Self::cudarc_context). Does not block; allowed
    /// during a capture.
    ///
    /// # Errors
    /// [`CudarcError::OtherContext`] where the context is not the host's.
    ///
    /// # Safety
    /// The host outlives the returned object and whatever retains it, slices made on it among them. Work of both sides on
    /// the stream is in the order of the calls; what else is to be ordered is the caller's to order.
    pub unsafe fn cudarc_stream(&self, context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, CudarcError> {
        self.is_context_of(context)?;
        let stream = core::ptr::with_exposed_provenance_mut(self.raw_stream() as usize);
        // SAFETY: the stream is of this very context; the caller promises that the host, whose it is, stays.
        Ok(unsafe { context.wrap_borrowed_stream(stream) })
    }

    /// The host of cudarc's context: of the system's driver and the same device, made where there is none.
    ///
    /// # Errors
    /// [`CudarcError::OtherContext`] for a context that is not the device's primary one; [`CudarcError::Host`].
    pub fn of_cudarc(context: &CudaContext) -> Result<Arc<Self>, CudarcError> {
        let host = Self::system(context.ordinal())?;
        host.is_context_of(context)?;
        Ok(host)
    }

    /// The handle of cudarc's stream, to launch and copy on. Good as long as cudarc's object is.
    ///
    /// # Errors
    /// [`CudarcError::OtherContext`] for a stream of another context than the host's.
    pub fn raw_stream_of_cudarc(&self, stream: &CudaStream) -> Result<CUstream, CudarcError> {
        self.is_context_of(stream.context())?;
        Ok(stream.cu_stream().expose_provenance() as u64)
    }

    /// Whether cudarc's context is the host's own.
    ///
    /// # Errors
    /// [`CudarcError::OtherContext`] where it is not.
    pub fn is_context_of(&self, context: &CudaContext) -> Result<(), CudarcError> {
        let (ours, theirs) = (self.context(), context.cu_ctx().expose_provenance() as u64);
        if ours == theirs {
            return Ok(());
        }
        Err(CudarcError::OtherContext { ordinal: self.ordinal(), ours, theirs })
    }
}

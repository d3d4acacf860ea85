// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuBackend`], the object-safe trait that engines call, and the traits by subject that it is made of.

mod copies;
mod device;
mod diagnostics;
mod graphs;
mod kernels;
mod memory;
mod streams;

use std::any::{Any, TypeId};
use std::sync::Arc;

use crate::error::{BadArgument, Result};
use crate::op_cache::OpHandle;

/// What an operation keeps between calls.
pub use copies::GpuCopies;
pub use device::GpuDevice;
pub use diagnostics::GpuDiagnostics;
pub use graphs::GpuGraphs;
pub use kernels::GpuKernels;
pub use memory::GpuMemory;
pub use streams::GpuStreams;

/// What an engine asks of a GPU: all of the traits by subject. Whoever implements those implements this one.
///
/// The traits are object-safe: engines hold an `Arc<dyn GpuBackend>` and call everything on it with no trait imported. A test's
/// mock implements the traits that the code under test asks for; one that needs a whole backend takes
/// [`MetraleCudaBackend`](crate::MetraleCudaBackend) on the driver in software. Calls that allocate, free or look kernels up carry
/// `#[track_caller]`, here and on the implementation, so that the ledger and the audit show the caller's own line through
/// a trait object too.
///
/// # Threads and contexts
/// A backend is `Send + Sync`, and any thread may call it. The driver keeps one current context a thread: where another is
/// current than this backend's, a call makes this one current and gives the other back when it returns. A thread that had none
/// keeps this one, so that its later calls cost nothing more; [`bind_to_thread`](GpuDevice::bind_to_thread) does that alone.
///
/// # Errors
/// All errors are `anyhow` with a typed cause of [`crate::error`]; [`remedy`](crate::remedy) sorts them by what the caller
/// can do. Every method can answer [`ContextLost`](crate::ContextLost) and
/// [`CallFailed`](crate::CallFailed), and those that take a stream or an event [`BadArgument`](crate::BadArgument); what else
/// it can answer is in its own docs. What is refused during a capture, with [`Capturing`](crate::Capturing), is at
/// [`GpuGraphs`].
pub trait GpuBackend:
    GpuDevice + GpuMemory + GpuCopies + GpuStreams + GpuKernels + GpuGraphs + GpuDiagnostics
{
}

impl<B> GpuBackend for B where
    B: GpuDevice + GpuMemory + GpuCopies + GpuStreams + GpuKernels + GpuGraphs + GpuDiagnostics + ?Sized
{
}

impl dyn GpuBackend + '_ {
    /// The handle that an operation keeps, such as a library's; made by `make` where there is none of this name and type.
    /// It lives as long as the backend, or until [`release_op_cache`](GpuMemory::release_op_cache).
    ///
    /// Two threads that ask at once may both make one; the first to finish is kept and given to both. `make` may use the
    /// backend and this cache. A handle must not hold the backend itself, which would then never be dropped.
    ///
    /// # Errors
    /// What `make` answers; nothing is then kept.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use metrale_cuda_backend::MetraleCudaBackend;
    /// # use metrale_driver_sim::{Profile, SimDriver};
    /// # let backend = MetraleCudaBackend::builder().driver(Arc::new(SimDriver::new(Profile::h200()))).build()?;
    /// struct Blas(u32);
    /// let handle = backend.op_handle("gemm", || Ok(Blas(12)))?;
    /// let again = backend.op_handle("gemm", || Ok(Blas(13)))?;
    /// assert!(Arc::ptr_eq(&handle, &again) && again.0 == 12);
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    pub fn op_handle<T: Any + Send + Sync>(
        &self,
        op: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut make = Some(make);
        let mut make = || match make.take() {
            Some(make) => Ok(Arc::new(make()?) as OpHandle),
            None => Err(BadArgument::new(format!("the handle of operation {op:?} was made already")).into()),
        };
        let handle = self.op_handle_of_type(op, TypeId::of::<T>(), &mut make)?;
        handle.downcast::<T>().map_err(|_| {
            BadArgument::new(format!("the handle of operation {op:?} is of another type")).into()
        })
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CaptureGuard`]: a capture that cannot be left open.

use std::fmt;

use crate::error::Result;
use crate::gpu::GpuBackend;
use crate::graph::update::GraphUpdate;
use crate::raw_handles::{DevicePtr, GraphHandle, StreamHandle};

/// A capture in flight, given up when it is dropped before its end, be it by an early return or a panic. A stream left
/// capturing would answer every later call with an error.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{CaptureGuard, GpuBackend, MetraleCudaBackend};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let driver = Arc::new(SimDriver::new(Profile::h200()));
/// let backend = MetraleCudaBackend::builder().driver(driver).build()?;
/// let state = backend.alloc(4096)?; // before the capture: inside it would be refused
/// let stream = backend.stream();
///
/// let capture = CaptureGuard::begin(&backend, stream)?;
/// backend.memset_async(state, 7, 4096, stream)?; // recorded, not done
/// let step = capture.finish("step")?;
///
/// for _ in 0..3 {
///     backend.launch_graph(step, stream)?;
/// }
/// let refused = backend.free(state).unwrap_err();
/// assert!(refused.to_string().contains("used by graph \"step\""));
/// backend.destroy_graph(step)?;
/// backend.free(state)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
#[must_use = "a guard that is dropped gives the capture up"]
pub struct CaptureGuard<'backend> {
    backend: &'backend dyn GpuBackend,
    stream: StreamHandle,
    open: bool,
}

impl dyn GpuBackend + '_ {
    /// Begins a capture that is given up when the guard is dropped before its end, by an error or a panic.
    ///
    /// # Errors
    /// As [`GpuGraphs::begin_capture`](crate::GpuGraphs::begin_capture).
    #[track_caller]
    pub fn capture(&self, stream: StreamHandle) -> Result<CaptureGuard<'_>> {
        CaptureGuard::begin(self, stream)
    }
}

impl<'backend> CaptureGuard<'backend> {
    /// Begins a capture of `stream`, as [`GpuGraphs::begin_capture`](crate::GpuGraphs::begin_capture).
    ///
    /// # Errors
    /// As [`GpuGraphs::begin_capture`](crate::GpuGraphs::begin_capture).
    #[track_caller]
    pub fn begin(backend: &'backend dyn GpuBackend, stream: StreamHandle) -> Result<Self> {
        backend.begin_capture(stream)?;
        Ok(Self { backend, stream, open: true })
    }

    /// The capturing stream.
    #[must_use]
    pub const fn stream(&self) -> StreamHandle {
        self.stream
    }

    /// Pins memory that the capture uses unseen, as [`GpuGraphs::pin_in_capture`](crate::GpuGraphs::pin_in_capture).
    ///
    /// # Errors
    /// As [`GpuGraphs::pin_in_capture`](crate::GpuGraphs::pin_in_capture).
    pub fn pin(&self, ptr: DevicePtr) -> Result<()> {
        self.backend.pin_in_capture(self.stream, ptr)
    }

    /// Ends the capture with a graph, as [`GpuGraphs::end_capture`](crate::GpuGraphs::end_capture).
    ///
    /// # Errors
    /// As [`GpuGraphs::end_capture`](crate::GpuGraphs::end_capture); the capture is over anyway.
    pub fn end(mut self) -> Result<GraphHandle> {
        let graph = self.backend.end_capture(self.stream)?;
        self.open = false;
        Ok(graph)
    }

    /// Ends the capture with a graph of this name, as [`GpuGraphs::end_capture_named`](crate::GpuGraphs::end_capture_named).
    ///
    /// # Errors
    /// As [`GpuGraphs::end_capture_named`](crate::GpuGraphs::end_capture_named); the capture is over anyway.
    pub fn finish(mut self, name: &str) -> Result<GraphHandle> {
        let graph = self.backend.end_capture_named(self.stream, name)?;
        self.open = false;
        Ok(graph)
    }

    /// Ends the capture and has `graph` do its work, as [`GpuGraphs::update_graph`](crate::GpuGraphs::update_graph).
    ///
    /// # Errors
    /// As [`GpuGraphs::update_graph`](crate::GpuGraphs::update_graph); the capture is over anyway.
    pub fn update(mut self, graph: GraphHandle) -> Result<GraphUpdate> {
        let update = self.backend.update_graph(graph, self.stream)?;
        self.open = false;
        Ok(update)
    }

    /// Gives the capture up, as dropping does, and says how that went.
    ///
    /// # Errors
    /// As [`GpuGraphs::abort_capture_if_active`](crate::GpuGraphs::abort_capture_if_active).
    pub fn abort(mut self) -> Result<()> {
        self.open = false;
        self.backend.abort_capture_if_active(self.stream).map(drop)
    }
}

impl Drop for CaptureGuard<'_> {
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.backend.abort_capture_if_active(self.stream)
        {
            tracing::error!("a capture could not be given up: {error:#}");
        }
    }
}

impl fmt::Debug for CaptureGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureGuard")
            .field("stream", &format_args!("{:#x}", self.stream))
            .finish_non_exhaustive()
    }
}

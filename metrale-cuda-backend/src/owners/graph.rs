// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Capture`] and [`Graph`]: recorded work, destroyed when it is dropped.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::Result;
use crate::gpu::GpuBackend;
use crate::graph::GraphUpdate;
use crate::owners::kept::log_kept;
use crate::owners::slice::DeviceSlice;
use crate::owners::stream::Stream;
use crate::raw_handles::GraphHandle;

/// A capture of a [`Stream`] that goes on: its work is recorded and not done. Dropped before its end, it is given up.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{DeviceBuffer, GpuBackend, MetraleCudaBackend, Stream};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let driver = Arc::new(SimDriver::new(Profile::h200()));
/// # let gpu: Arc<dyn GpuBackend> = Arc::new(MetraleCudaBackend::builder().driver(driver).build()?);
/// let stream = Stream::new(&gpu)?;
/// let mut state = DeviceBuffer::<u8>::zeroed(&gpu, 4096)?;
///
/// let capture = stream.capture()?;
/// stream.fill_bytes(&mut state, 7)?; // recorded, not done
/// let step = capture.finish("step")?;
/// step.launch(&stream)?;
/// stream.synchronize()?;
/// assert_eq!(state.to_vec()?, [7; 4096]);
///
/// drop(state); // the graph uses it: freed with the graph
/// # if cfg!(feature = "ledger") {
/// assert_eq!(gpu.live_bytes(), 4096);
/// # }
/// drop(step);
/// assert_eq!(gpu.live_bytes(), 0);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[must_use = "a capture that is dropped is given up"]
pub struct Capture {
    stream: Stream,
    is_open: bool,
}

impl Stream {
    /// Begins a capture, which is given up when it is dropped before its end. As [`GpuGraphs::begin_capture`](crate::GpuGraphs::begin_capture).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn capture(&self) -> Result<Capture> {
        self.gpu().begin_capture(self.handle())?;
        Ok(Capture::begun(self.clone()))
    }
}

impl Capture {
    /// The capture that was just begun on a stream.
    pub(crate) const fn begun(stream: Stream) -> Self {
        Self { stream, is_open: true }
    }

    /// The capturing stream.
    #[must_use]
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Pins memory that the capture uses unseen, such as by a table of pointers. As [`GpuGraphs::pin_in_capture`](crate::GpuGraphs::pin_in_capture).
    ///
    /// # Errors
    /// As there.
    pub fn pin<'s, T: Pod>(&self, memory: impl Into<DeviceSlice<'s, T>>) -> Result<()> {
        self.stream.gpu().pin_in_capture(self.stream.handle(), memory.into().ptr())
    }

    /// Ends the capture with a graph of this name. As [`GpuGraphs::end_capture_named`](crate::GpuGraphs::end_capture_named).
    ///
    /// # Errors
    /// As there; the capture is over anyway.
    pub fn finish(mut self, name: &str) -> Result<Graph> {
        let gpu = Arc::clone(self.stream.gpu());
        let handle = gpu.end_capture_named(self.stream.handle(), name)?;
        self.is_open = false;
        Ok(Graph { gpu, handle, is_open: true, name: name.into() })
    }

    /// Gives the capture up, as dropping it does, and says how that went.
    ///
    /// # Errors
    /// As [`GpuGraphs::abort_capture_if_active`](crate::GpuGraphs::abort_capture_if_active).
    pub fn abort(mut self) -> Result<()> {
        self.is_open = false;
        self.stream.gpu().abort_capture_if_active(self.stream.handle()).map(drop)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.is_open
            && let Err(error) = self.stream.gpu().abort_capture_if_active(self.stream.handle())
        {
            log_kept(format_args!("{self:?}"), &error);
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture on {:?}", self.stream)
    }
}

/// Recorded work that can be launched again and again. Made by [`Capture::finish`].
///
/// What it is known to use stays allocated as long as the graph: a [`DeviceBuffer`](crate::DeviceBuffer) that is dropped
/// before is freed when the graph is. Dropped, the graph is destroyed; the driver completes launches that are queued.
pub struct Graph {
    gpu: Arc<dyn GpuBackend>,
    handle: GraphHandle,
    /// False once it was closed.
    is_open: bool,
    name: Arc<str>,
}

impl Graph {
    /// Its name, for errors, reports and traces.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver's handle, for raw calls. It is good as long as the graph.
    #[must_use]
    pub const fn handle(&self) -> GraphHandle {
        self.handle
    }

    /// Launches the graph in the order of `stream`. Does not block. As [`GpuGraphs::launch_graph`](crate::GpuGraphs::launch_graph).
    ///
    /// # Errors
    /// As there.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.gpu.launch_graph(self.handle(), stream.handle())
    }

    /// Ends `capture` and does its work instead of the old from the next launch on. As [`GpuGraphs::update_graph`](crate::GpuGraphs::update_graph).
    ///
    /// # Errors
    /// As there; the capture is over anyway.
    pub fn update(&mut self, mut capture: Capture) -> Result<GraphUpdate> {
        let update = self.gpu.update_graph(self.handle(), capture.stream.handle())?;
        capture.is_open = false;
        Ok(update)
    }

    /// Pins memory that the graph uses unseen, as long as it lives. As [`GpuGraphs::pin_graph`](crate::GpuGraphs::pin_graph).
    ///
    /// # Errors
    /// As there.
    pub fn pin<'s, T: Pod>(&self, memory: impl Into<DeviceSlice<'s, T>>) -> Result<()> {
        self.gpu.pin_graph(self.handle(), memory.into().ptr())
    }

    /// Destroys the graph, as dropping it does, and says how that went.
    ///
    /// # Errors
    /// As [`GpuGraphs::destroy_graph`](crate::GpuGraphs::destroy_graph).
    pub fn close(mut self) -> Result<()> {
        self.is_open = false;
        self.gpu.destroy_graph(self.handle)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.is_open
            && let Err(error) = self.gpu.destroy_graph(self.handle)
        {
            log_kept(format_args!("graph {:?}", self.name), &error);
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("name", &self.name)
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same work by the driver's bare calls and through the backend: for criterion, and for the table of ratios.
//!
//! Both sides work on one context of one driver, so that they can alternate.
#![allow(dead_code, reason = "each program uses its own part")]

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Result, ensure};
use metrale_cuda_backend::{
    BackendConfig, DevicePtr, DriverApi, Event, GraphHandle, KernelLaunch, MetraleCudaBackend, PinnedPtr,
    Stream, StreamHandle, Uploader,
};
use metrale_driver_sim::{Profile, SimDriver};

/// An empty kernel of one parameter.
static PTX: &[u8] =
    b".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry idle(.param .u64 at) { ret; }\n";

/// Bytes of the allocations, and of the fills.
const BYTES: usize = 1024;
/// Launches in each graph.
pub(crate) const GRAPH_NODES: [usize; 2] = [10, 500];
/// Bytes of a pinned buffer.
const BUFFER: usize = 16 << 20;

/// What both sides need.
pub(crate) struct Calls {
    backend: Arc<MetraleCudaBackend>,
    idle: u64,
    launch: KernelLaunch,
    /// Keeps a chunk mapped, as the weights of a model do.
    held: DevicePtr,
    made: Stream,
    event: Event,
    /// Graphs of as many launches as [`GRAPH_NODES`] says.
    graphs: Vec<GraphHandle>,
}

impl Calls {
    /// On a software driver of its own.
    pub(crate) fn software() -> Result<Self> {
        let driver = SimDriver::new(Profile::h200());
        driver.register_kernel("idle", |_| Ok(()));
        Self::on(Arc::new(driver))
    }

    /// On the GPU present, if there is one.
    pub(crate) fn gpu() -> Result<Self> {
        Self::on(metrale_driver_sys::system()?)
    }

    fn on(driver: Arc<dyn DriverApi>) -> Result<Self> {
        let builder = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&[("calls", PTX)])
            .config(BackendConfig::default());
        let backend = Arc::new(builder.build()?);
        let held = backend.alloc(BYTES)?;
        let idle = backend.kernel("calls", "idle")?;
        let (made, event) = (Stream::new(&backend)?, Event::new(&backend)?);
        let mut launch = KernelLaunch::new(idle).ptr(held);
        let mut graphs = Vec::new();
        for nodes in GRAPH_NODES {
            let capture = backend.capture(made.handle())?;
            for _ in 0..nodes {
                // SAFETY: the argument is the kernel's one parameter, and the kernel touches nothing.
                unsafe { launch.on_stream(&*backend, made.handle()) }?;
            }
            graphs.push(capture.end()?);
        }
        Ok(Self { graphs, backend, idle: idle.raw(), launch, held, made, event })
    }

    /// The driver and the device, in words.
    pub(crate) fn name(&self) -> String {
        format!("{}, {}", self.backend.facts().name, self.backend.driver().source())
    }

    fn driver(&self) -> &dyn DriverApi {
        self.backend.driver()
    }

    /// The backend's own stream, which it tells by its number, and one it made, which it looks up.
    pub(crate) fn streams(&self) -> [(&'static str, StreamHandle); 2] {
        [("own stream", self.backend.stream()), ("a made stream", self.made.handle())]
    }

    /// Waits until nothing is queued.
    pub(crate) fn settle(&self) {
        self.backend.synchronize().expect("nothing fails here");
    }

    /// Makes the backend's context current on this thread.
    pub(crate) fn bind(&self) {
        self.backend.bind_to_thread().expect("nothing fails here");
    }

    /// Allocates and frees.
    pub(crate) fn alloc_free(&self) {
        let at = self.backend.alloc(BYTES).expect("there is memory");
        self.backend.free(black_box(at)).expect("it is live");
    }

    /// [`alloc_free`](Self::alloc_free) by bare calls.
    pub(crate) fn bare_alloc_free(&self) {
        let mut at = 0;
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { self.driver().cuMemAlloc_v2(&mut at, BYTES) }, 0);
        // SAFETY: the driver returned the address above.
        assert_eq!(unsafe { self.driver().cuMemFree_v2(black_box(at)) }, 0);
    }

    /// Launches the empty kernel.
    pub(crate) fn launch(&mut self, stream: StreamHandle) {
        // SAFETY: the argument is the kernel's one parameter, and the kernel touches nothing.
        unsafe { self.launch.on_stream(&*self.backend, stream) }.expect("a launch");
    }

    /// [`launch`](Self::launch) by the bare call.
    pub(crate) fn bare_launch(&self, stream: StreamHandle) {
        let mut at = self.held.addr();
        let mut params = [(&raw mut at).cast()];
        let (params, none) = (params.as_mut_ptr(), core::ptr::null_mut());
        // SAFETY: one pointer for the one parameter, to a local that outlives the call.
        let status = unsafe {
            self.driver().cuLaunchKernel(self.idle, 1, 1, 1, 1, 1, 1, 0, stream.raw(), params, none)
        };
        assert_eq!(status, 0);
    }

    /// Replays a graph on the made stream.
    pub(crate) fn replay(&self, place: usize) {
        self.backend.launch_graph(self.graphs[place], self.made.handle()).expect("a replay");
    }

    /// [`replay`](Self::replay) by the bare call.
    pub(crate) fn bare_replay(&self, place: usize) {
        let (graph, stream) = (self.graphs[place].raw(), self.made.handle().raw());
        // SAFETY: the graph and the stream are the backend's and live.
        assert_eq!(unsafe { self.driver().cuGraphLaunch(graph, stream) }, 0);
    }

    /// Fills an allocation.
    pub(crate) fn fill(&self, stream: StreamHandle) {
        self.backend.memset_async(self.held, 1, BYTES, stream).expect("a fill");
    }

    /// [`fill`](Self::fill) by the bare call.
    pub(crate) fn bare_fill(&self, stream: StreamHandle) {
        // SAFETY: the address is the backend's and holds as many bytes.
        assert_eq!(unsafe { self.driver().cuMemsetD8Async(self.held.addr(), 1, BYTES, stream.raw()) }, 0);
    }

    /// Records an event on the made stream.
    pub(crate) fn record_event(&self) {
        self.made.record(&self.event).expect("an event");
    }

    /// [`record_event`](Self::record_event) by the bare call.
    pub(crate) fn bare_record_event(&self) {
        let (event, stream) = (self.event.handle().raw(), self.made.handle().raw());
        // SAFETY: the event and the stream are the backend's and live.
        assert_eq!(unsafe { self.driver().cuEventRecord(event, stream) }, 0);
    }

    /// What loading needs: so many bytes of ordinary memory, a place for them, and pinned buffers.
    pub(crate) fn load(&self, bytes: usize) -> Result<Load<'_>> {
        ensure!(bytes.is_multiple_of(BUFFER), "{bytes} bytes are no whole number of buffers of {BUFFER}");
        let pinned = self.backend.alloc_pinned(BUFFER)?;
        let to = self.backend.alloc(bytes)?;
        Ok(Load {
            calls: self,
            // Not zeros, which an operating system need not back with memory.
            source: vec![7; bytes],
            uploader: Some(Uploader::new(&self.backend, BUFFER)?),
            pinned,
            to,
        })
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let backend = &self.backend;
        let graphs = self.graphs.drain(..).try_for_each(|graph| backend.destroy_graph(graph));
        graphs.and(backend.free(self.held)).expect("all is the backend's");
    }
}

/// Loading of weights.
pub(crate) struct Load<'a> {
    calls: &'a Calls,
    source: Vec<u8>,
    uploader: Option<Uploader>,
    pinned: PinnedPtr,
    to: DevicePtr,
}

impl Load<'_> {
    /// Uploads all bytes, through two pinned buffers.
    pub(crate) fn upload(&mut self) {
        let uploader = self.uploader.as_mut().expect("there until the drop");
        uploader.upload(&self.source, self.to).expect("an upload");
        uploader.finish().expect("an upload");
    }

    /// As many bytes from memory that is pinned already: what the bus gives.
    pub(crate) fn bare_pinned(&self) {
        let stream = self.calls.made.handle();
        for at in (0..self.source.len()).step_by(BUFFER) {
            let from = self.pinned.as_ptr().cast_const().cast();
            // SAFETY: both ends hold a buffer's bytes, and live on until the wait below.
            let status = unsafe {
                self.calls.driver().cuMemcpyHtoDAsync_v2(
                    self.to.addr() + at as u64,
                    from,
                    BUFFER,
                    stream.raw(),
                )
            };
            assert_eq!(status, 0);
        }
        // SAFETY: the stream is the backend's and lives.
        assert_eq!(unsafe { self.calls.driver().cuStreamSynchronize(stream.raw()) }, 0);
    }

    /// The same bytes by one copy, which the driver brings through buffers of its own.
    pub(crate) fn bare_pageable(&self) {
        let from = self.source.as_ptr().cast();
        // SAFETY: both ends hold as many bytes.
        let status = unsafe { self.calls.driver().cuMemcpyHtoD_v2(self.to.addr(), from, self.source.len()) };
        assert_eq!(status, 0);
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.uploader = None;
        let backend = &self.calls.backend;
        let outcome = backend.free_pinned(self.pinned).and(backend.free(self.to));
        outcome.expect("all is the backend's");
    }
}

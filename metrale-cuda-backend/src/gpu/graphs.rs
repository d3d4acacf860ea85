// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuGraphs`].

use crate::error::Result;
use crate::graph::{GraphInfo, GraphUpdate};
use crate::raw_handles::{DevicePtr, GraphHandle, StreamHandle};

/// Captures and graphs.
///
/// # During a capture
/// Captures are [begun](Self::begin_capture) relaxed. What would break one, or be done at once and so be missing from its
/// graph, is refused with [`Capturing`](crate::Capturing) before the driver is asked, and the capture goes on:
///
/// * on the thread that began a capture: allocating, freeing, sweeping, blocking copies and fills, asking for the free
///   memory or the account, scanning red zones, work on the legacy stream. Other threads may do all that meanwhile;
/// * on a stream that takes part in one: waiting for it, querying, destroying and releasing it, copies that wait for it, launching a
///   graph;
/// * for an event recorded in one: waiting for it, querying it, measuring with it;
/// * anywhere: waiting for the whole device.
///
/// That holds for all backends of a device in one process, which share its context, and for those of another device whose
/// stream has joined the capture. Captures begun outside this crate are
/// not known to it. A stream that synchronizes with the legacy stream, which no stream of this crate does, is broken by any
/// use of that one on any thread, blocking copies included: capture streams of [`create_stream`](crate::GpuStreams::create_stream).
///
/// What a capture is known to use stays *pinned* while it goes on and while its graph lives: pointers in typed arguments,
/// both ends of copies, targets of fills, and pinned host memory of copies. Freeing it is refused with
/// [`PinnedByGraph`](crate::PinnedByGraph). The arguments of untyped launches are not known, nor is what a kernel reaches
/// through a tensor map or a table of pointers: [`KernelLaunch::touches`](crate::KernelLaunch::touches), [`pin_in_capture`](Self::pin_in_capture) and
/// [`pin_graph`](Self::pin_graph) say so. Memory is looked up on the ledger of the backend that is given the work, and
/// the far end of a copy between backends on that of the other; whichever backend allocated it refuses the free. Without
/// feature `ledger` nothing is pinned.
pub trait GpuGraphs: Send + Sync {
    /// Begins to capture `stream`: until the end its work is recorded and not done. Relaxed: what other threads do
    /// meanwhile is their own (see *During a capture*, above). Waits for no call on another thread: where one copies borrowed host
    /// memory on this very stream ([`copy_h2d_async`](crate::GpuCopies::copy_h2d_async),
    /// [`copy_d2h_on_stream`](crate::GpuCopies::copy_d2h_on_stream)), which no graph may keep, it is refused at once. What is captured is pinned
    /// before the driver records it; a copy or fill of freed memory is refused. A stream is
    /// one thread's while it is captured: a wait for it that another thread has begun by then may fail, and cost the capture.
    ///
    /// [`CaptureGuard`](crate::CaptureGuard) gives a capture up that does not reach its end. Load modules and launch each
    /// kernel once before, so that nothing is set up during the capture.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for the legacy stream, which cannot be captured, and for that of each thread, which
    /// any use of the legacy stream would break;
    /// [`Capturing`](crate::Capturing) where the stream takes part in a capture already;
    /// [`StreamInUse`](crate::StreamInUse) where another thread's copy borrows host memory on it, or another thread waits for the
    /// whole device;
    /// [`FeatureOff`](crate::FeatureOff) without feature `graph`.
    #[track_caller]
    fn begin_capture(&self, stream: StreamHandle) -> Result<()>;

    /// Ends the capture begun on `stream` and instantiates its graph, under a name of its own: `graph-1` and so on. The
    /// driver's template goes on every path. May block; takes device memory (2 MiB for a node, 12 MiB for 5000, kept by the
    /// driver for the next graph when this one goes). Any thread may end it. The graph can be launched on any stream.
    ///
    /// # Errors
    /// [`NotCapturing`](crate::NotCapturing) where no capture was begun on this stream, with the one that was where it only
    /// takes part: nothing is changed then. [`CallFailed`](crate::CallFailed) where the capture was broken (901) by a call
    /// outside this backend, or a stream was not joined (904), saying which; where the graph cannot be instantiated. The
    /// capture is then over and the stream usable, unless the error says otherwise.
    fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle>;

    /// As [`end_capture`](Self::end_capture), with a name for errors, reports and traces. Names need not be unique.
    ///
    /// # Errors
    /// As [`end_capture`](Self::end_capture).
    fn end_capture_named(&self, stream: StreamHandle, name: &str) -> Result<GraphHandle>;

    /// Gives up the capture that `stream` takes part in, without a graph, and tells whether there was one. A capture of
    /// this driver's backends ends on all its streams, whichever of them is given; so does a broken one. Works on a thread
    /// that is not bound. Does not block.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says, where the driver does not let it end.
    fn abort_capture_if_active(&self, stream: StreamHandle) -> Result<bool>;

    /// Whether `stream` captures, as the driver says, a broken capture that was not ended included. A failed query counts
    /// as capturing. On SCALE the driver cannot tell, is not asked, and the answer is always false. Does not block. Allowed
    /// during a capture.
    fn stream_is_capturing(&self, stream: StreamHandle) -> bool;

    /// Pins the allocation around `ptr` for the capture that `stream` takes part in, and then for its graph: memory it uses
    /// in a way that no typed argument tells. Does not block, asks no driver.
    ///
    /// # Errors
    /// [`NotCapturing`](crate::NotCapturing); [`BadArgument`](crate::BadArgument) for what is not live on the ledger, and for a
    /// stream that was destroyed or is none of this backend's.
    fn pin_in_capture(&self, stream: StreamHandle, ptr: DevicePtr) -> Result<()>;

    /// Launches a graph in the order of `stream`. Does not block, unless
    /// [`debug_sync_kernels`](crate::BackendConfig::debug_sync_kernels) is on. Launches of one graph run one after the
    /// other. Refused while `stream` captures.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a graph that was destroyed, by name, or that never was: the driver is not
    /// asked. [`GraphFault`](crate::GraphFault) where `debug_sync_kernels` is on and the graph failed.
    fn launch_graph(&self, graph: GraphHandle, stream: StreamHandle) -> Result<()>;

    /// Ends the capture begun on `stream` and has `graph` do its work instead of the old, from the next launch on, which is
    /// far cheaper than a new graph: for the same nodes with other arguments. The graph keeps handle and name; what it pins
    /// is what the new work uses. Launches already queued are not touched. Does not block.
    ///
    /// Where the driver cannot, because more than arguments changed, [`GraphUpdate`] says what, and the graph is as before.
    /// The capture is over in either case.
    ///
    /// # Errors
    /// As [`end_capture`](Self::end_capture); [`BadArgument`](crate::BadArgument) for what is no graph, and
    /// [`NotSupported`](crate::NotSupported) on a driver without `cuGraphExecUpdate_v2` (before CUDA 12): in these two the
    /// capture goes on and can be ended otherwise.
    fn update_graph(&self, graph: GraphHandle, stream: StreamHandle) -> Result<GraphUpdate>;

    /// Destroys a graph and releases what it pinned. Works on a thread that is not bound. Launches already queued are the driver's to finish. A context that is
    /// already gone is no error. Does not block. Allowed during a capture.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for a graph that was destroyed before, or never was. Where the driver refuses,
    /// the graph stays, with its pins.
    fn destroy_graph(&self, graph: GraphHandle) -> Result<()>;

    /// Pins the allocation around `ptr` as long as `graph` lives, or until its work is replaced by
    /// [`update_graph`](Self::update_graph). Does not block, asks no driver. Allowed during a capture.
    ///
    /// # Errors
    /// [`BadArgument`](crate::BadArgument) for what is no graph, or not live on the ledger.
    fn pin_graph(&self, graph: GraphHandle, ptr: DevicePtr) -> Result<()>;

    /// Every graph of this backend, in the order of their captures: name, nodes, bytes, what it pins.
    fn graphs(&self) -> Vec<GraphInfo>;

    /// Bytes of device memory that all graphs of this backend together took when they were instantiated, as measured: the
    /// term `graphs` of the [account](crate::GpuDiagnostics::account). The driver keeps it when they are destroyed, so this
    /// figure stays.
    fn graph_bytes_measured(&self) -> i64;
}

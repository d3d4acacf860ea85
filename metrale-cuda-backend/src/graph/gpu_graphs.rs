// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuGraphs`] for [`MetraleCudaBackend`].

use std::panic::Location;
use std::sync::Arc;
use std::thread;

use metrale_driver_sys::{
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS,
    CUgraphExecUpdateResultInfo, DriverError, DriverFn, SCALE, stream_capture_status,
};
use metrale_registry::is_teardown_noop;
use metrale_telemetry::{Counter, Launch, LaunchKind, run_metrics};

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask, failed};
use crate::error::{BadArgument, FeatureOff, Result};
use crate::features::MAKES_GRAPHS;
use crate::gpu::GpuGraphs;
use crate::graph::capture::ends_capture;
use crate::graph::exec::{LAUNCHING, not_updatable};
use crate::graph::gate::refusal;
use crate::graph::info::GraphInfo;
use crate::graph::refusal::NotCapturing;
use crate::graph::update::GraphUpdate;
use crate::memory::Cost;
use crate::raw_handles::{DevicePtr, GraphHandle, StreamHandle, unique_number};

impl GpuGraphs for MetraleCudaBackend {
    #[track_caller]
    fn begin_capture(&self, stream: StreamHandle) -> Result<()> {
        const WHAT: &str = "beginning a capture";
        let site = Location::caller();
        if !MAKES_GRAPHS {
            return Err(FeatureOff { feature: "graph" }.into());
        }
        if stream.is_the_drivers() {
            // The stream of each thread could, but waits for the legacy one: any blocking copy would break the capture.
            return Err(BadArgument::new(format!(
                "{WHAT} at {}: neither the legacy stream nor that of each thread is captured; use another stream, the \
                 backend's own or one of create_stream",
                metrale_ledger::file_line(site)
            ))
            .into());
        }
        let _bound = self.bound(WHAT)?;
        let held = self.hold_stream(stream, WHAT)?;
        // Noted before the driver begins, so that calls on other threads that would break it are refused.
        let id = self.graph_client().shared.with(|state| -> Result<u64> {
            if let Some(earlier) = state.captures.on_stream(stream) {
                const ADVICE: &str = "the stream takes part in a capture already; end that one first";
                return Err(refusal(earlier, WHAT, ADVICE).into());
            }
            state.may_capture(stream, self.graph_client().device, WHAT)?;
            // From here on it is not destroyed before the capture is over (`uncaptured`), unless it is about to be.
            if !held.is_live() {
                return Err(BadArgument::new(format!(
                    "{WHAT} at {}: stream {stream:#x} is being destroyed on another thread",
                    metrale_ledger::file_line(site)
                ))
                .into());
            }
            let id = unique_number();
            let by = (self.graph_client().owner, self.graph_client().device);
            state.captures.open(id, by, stream, site, thread::current().id());
            state.pins.open(id, site);
            Ok(id)
        })?;
        // SAFETY: no memory is passed; the stream is held.
        unsafe { ask!(self.driver(), cuStreamBeginCapture_v2(stream.raw(), CU_STREAM_CAPTURE_MODE_RELAXED)) }
            .map_err(|error| {
                self.forget_capture(id);
                let hint = match error.status {
                    CUDA_ERROR_ILLEGAL_STATE => Some(
                        "the stream captures already, begun outside this backend: end that capture, or give it up with \
                         abort_capture_if_active"
                            .to_owned(),
                    ),
                    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => {
                        Some("this stream cannot be captured; use another stream".to_owned())
                    }
                    _ => None,
                };
                failed(error, format!("{WHAT} on stream {stream:#x} at {}", metrale_ledger::file_line(site)), hint)
            })
    }

    fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        self.finish_capture(stream, None)
    }

    fn end_capture_named(&self, stream: StreamHandle, name: &str) -> Result<GraphHandle> {
        self.finish_capture(stream, Some(name))
    }

    fn abort_capture_if_active(&self, stream: StreamHandle) -> Result<bool> {
        const WHAT: &str = "giving up a capture";
        // One that was begun here is ended where it was begun, whichever of its streams is given.
        // A stale handle is refused, though a stream that has its number now may capture.
        let found = self.look_up_stream(stream, WHAT);
        let known = self.graph_client().shared.with(|state| {
            let capture = state.captures.on_stream(stream)?;
            (found.is_ok() || capture.has(stream)).then_some(capture.origin)
        });
        let _current = match self.enter() {
            Ok(current) => current,
            // The context is gone, and its captures with it.
            Err(error) if is_teardown_noop(error.status) => {
                return Ok(self.forget_captures_on(known));
            }
            Err(error) => return Err(failed(error, WHAT.to_owned(), None)),
        };
        if let Some(origin) = known {
            return match self.end_recording(origin, WHAT) {
                Ok(recorded) => {
                    drop(recorded);
                    self.free_what_waited();
                    Ok(true)
                }
                // Whatever it says, the capture is over, which is all that was asked.
                Err(_) if !self.captures(origin) => Ok(true),
                Err(error) => Err(error),
            };
        }
        let _held = self.hold_stream(stream, WHAT)?;
        if !self.stream_is_capturing(stream) {
            return Ok(false);
        }
        let mut template = 0;
        // SAFETY: the result pointer is a local; the stream is held.
        match unsafe { ask!(self.driver(), cuStreamEndCapture(stream.raw(), &mut template)) } {
            Ok(()) => {
                self.destroy_template(template);
                Ok(true)
            }
            Err(error) => match error.status {
                // No capture after all: its state could not be asked for.
                CUDA_ERROR_ILLEGAL_STATE => Ok(false),
                status if is_teardown_noop(status) => Ok(false),
                status if ends_capture(status) => Ok(true),
                _ => Err(failed(error, format!("{WHAT} on stream {stream:#x}"), None)),
            },
        }
    }

    fn stream_is_capturing(&self, stream: StreamHandle) -> bool {
        if SCALE {
            return false;
        }
        let Ok(_held) = self.hold_stream(stream, "asking whether a stream captures") else { return true };
        match self.enter() {
            // SAFETY: the stream is held.
            Ok(_current) => unsafe {
                stream_capture_status(self.driver(), stream.raw()) != Ok(CU_STREAM_CAPTURE_STATUS_NONE)
            },
            Err(_) => true,
        }
    }

    fn pin_in_capture(&self, stream: StreamHandle, ptr: DevicePtr) -> Result<()> {
        const WHAT: &str = "pinning memory in a capture";
        let found = self.look_up_stream(stream, WHAT);
        self.graph_client().shared.with(|state| {
            // As above.
            let capture =
                state.captures.on_stream(stream).filter(|capture| found.is_ok() || capture.has(stream));
            let Some(id) = capture.map(|capture| capture.id) else {
                found?;
                return Err(NotCapturing { doing: WHAT, stream, part_of: None }.into());
            };
            if let Some(allocation) = self.pinnable(ptr, WHAT)? {
                self.pin(&mut state.pins, id, allocation, ptr.0);
            }
            Ok(())
        })
    }

    fn launch_graph(&self, graph: GraphHandle, stream: StreamHandle) -> Result<()> {
        let _bound = self.bound_for(stream, LAUNCHING)?;
        let _held = self.hold_stream(stream, LAUNCHING)?;
        if self.graph_client().shared.is_capturing() {
            self.may_launch_graph(stream)?;
        }
        let entry = self.known_graph(graph, LAUNCHING)?;
        let state = entry.state.lock();
        if !state.alive {
            return Err(self.no_graph(graph, LAUNCHING));
        }
        run_metrics::process().trace().record(|| Launch::new(LaunchKind::Graph, Arc::clone(&entry.name)));
        // Not `ask!`: the check after a refusal latches a fault with what is known of it.
        // SAFETY: no memory is passed; the graph is alive and no other thread uses it while it is locked; the stream is held.
        let launch = || unsafe { self.driver().cuGraphLaunch(graph.raw(), stream.raw()) };
        let mut status = launch();
        if status != CUDA_SUCCESS
            && let refusal = (DriverError { function: DriverFn::cuGraphLaunch, status })
            && let Some(_bound) = self.rebound(refusal, LAUNCHING)?
        {
            status = launch();
        }
        drop(state);
        if status != CUDA_SUCCESS {
            // SAFETY: the stream is held.
            return Err(unsafe { self.not_launched(&entry.name, stream, status) });
        }
        run_metrics::process().counters().count(Counter::GraphReplays);
        if self.config().debug_sync_kernels {
            // SAFETY: the stream is held.
            unsafe { self.find_graph_fault(&entry, stream) }?;
        }
        Ok(())
    }

    fn update_graph(&self, graph: GraphHandle, stream: StreamHandle) -> Result<GraphUpdate> {
        const WHAT: &str = "updating a graph";
        let _bound = self.bound(WHAT)?;
        if !self.driver().provides(DriverFn::cuGraphExecUpdate_v2) {
            return Err(not_updatable().into());
        }
        let _held = self.hold_stream(stream, WHAT)?;
        let entry = self.known_graph(graph, WHAT)?;
        let mut recorded = self.end_recording(stream, WHAT)?;
        let doing = || {
            format!(
                "updating graph {:?} with the capture begun at {}",
                entry.name,
                metrale_ledger::file_line(recorded.captured_at)
            )
        };
        let nodes_now = self.count_nodes(recorded.template).doing(doing)?;
        let mut state = entry.state.lock();
        if !state.alive {
            return Err(self.no_graph(graph, WHAT));
        }
        let mut info = CUgraphExecUpdateResultInfo::default();
        // SAFETY: the result pointer is a local; the graph is alive and no other thread uses it while it is locked.
        match unsafe { ask!(self.driver(), cuGraphExecUpdate_v2(graph.raw(), recorded.template, &mut info)) }
        {
            Ok(()) => {
                let before = std::mem::replace(&mut state.id, recorded.id);
                (state.nodes, state.captured_at) = (nodes_now, recorded.captured_at);
                self.graph_client().shared.with(|shared| {
                    shared.pins.name(recorded.id, graph, Arc::clone(&entry.name));
                    shared.pins.release(before);
                });
                recorded.pass_on();
                self.free_what_waited();
                Ok(GraphUpdate::Updated)
            }
            Err(error) if error.status == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => {
                let node = self.place_of(info.errorNode, recorded.template);
                Ok(GraphUpdate::refused(info.result, state.nodes, nodes_now, node))
            }
            Err(error) if error.status == CUDA_ERROR_NOT_SUPPORTED => Err(not_updatable().into()),
            Err(error) => Err(failed(error, doing(), None)),
        }
    }

    fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        const WHAT: &str = "destroying a graph";
        let current = self.entered(WHAT)?;
        let client = self.graph_client();
        // Removed before the driver is asked, which may use the handle again at once.
        let entry = client.shared.with(|shared| {
            shared.graph(graph, client.device)?;
            shared.remove_graph(graph, "destroyed before")
        });
        let entry = entry.ok_or_else(|| self.no_graph(graph, WHAT))?;
        self.destroy_removed(&entry, current.is_some()).map_err(|error| {
            let doing = format!("destroying graph {:?}", entry.name);
            client.shared.with(|shared| shared.graphs.insert(graph, entry));
            failed(error, doing, Some("it stays, and so does what it pins".to_owned()))
        })?;
        self.free_what_waited();
        Ok(())
    }

    fn pin_graph(&self, graph: GraphHandle, ptr: DevicePtr) -> Result<()> {
        const WHAT: &str = "pinning memory for a graph";
        let entry = self.known_graph(graph, WHAT)?;
        let state = entry.state.lock();
        if !state.alive {
            return Err(self.no_graph(graph, WHAT));
        }
        self.graph_client().shared.with(|shared| {
            if let Some(allocation) = self.pinnable(ptr, WHAT)? {
                self.pin(&mut shared.pins, state.id, allocation, ptr.0);
            }
            Ok(())
        })
    }

    fn graphs(&self) -> Vec<GraphInfo> {
        let owner = self.graph_client().owner;
        let shared = &self.graph_client().shared;
        let all: Vec<_> = shared
            .with(|shared| shared.graphs.values().filter(|graph| graph.owner == owner).cloned().collect());
        let mut infos: Vec<_> = all
            .into_iter()
            .map(|graph| {
                let state = graph.state.lock();
                let uses = shared.with(|shared| shared.pins.of(state.id).cloned());
                let (pinned, opaque_launches) = uses.map_or((Vec::new(), 0), |uses| {
                    (uses.memory.into_values().collect(), uses.opaque_launches)
                });
                let info = GraphInfo {
                    name: Arc::clone(&graph.name),
                    handle: graph.handle,
                    captured_at: state.captured_at,
                    nodes: state.nodes,
                    bytes_measured: state.bytes_measured,
                    pinned,
                    opaque_launches,
                };
                (state.id, info)
            })
            .collect();
        infos.sort_by_key(|&(id, _)| id);
        infos.into_iter().map(|(_, info)| info).collect()
    }

    fn graph_bytes_measured(&self) -> i64 {
        self.costs().of(Cost::Graphs).bytes()
    }
}

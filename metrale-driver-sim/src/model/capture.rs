// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stream capture, with the codes of an H200 (driver 580.159.04).
//!
//! ```text
//!            begin                   forbidden call (900, 905, 906, 907, 902), or end on a forked stream (903)
//!   none ------------> active ----------------------------------------------> invalidated
//!     ^                  |  end: 0 with a graph; 904 with forked work left         |  work for the stream: 901
//!     +------------------+  end by a wrong thread: 908, no graph                   |  end: 901, no graph
//!     +----------------------------------------------------------------------------+
//! ```
//!
//! A call that a capture forbids is answered alike whether the capture is still valid or not.
//!
//! What forbids a call depends on the mode (see [`Model::unsafe_call`] for the potentially unsafe ones):
//!
//! | call | global | thread-local | relaxed |
//! |---|---|---|---|
//! | alloc, free, pinned alloc, query or sync of an event or another stream: same thread | 900 | 900 | 0 |
//! | the same from another thread | 900 | 0 | 0 |
//! | query or sync of the capturing stream, graph launch into it, context sync from any thread | 900 | 900 | 900 |
//! | legacy stream while a blocking stream captures | 906 | 906 | 906 |

use std::collections::HashMap;
use std::sync::Arc;

use metrale_driver_sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_NONE,
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_MERGE, CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::Model;
use super::graph::{Body, Graph, Node};
use super::handle::Kind;
use super::stream::StreamKind;
use super::work::Work;
use crate::thread;

/// A capture that was begun and not ended.
pub(crate) struct Capture {
    device: usize,
    /// The stream it was begun on and must be ended on.
    origin: u64,
    mode: CUstreamCaptureMode,
    thread: u64,
    valid: bool,
    nodes: Vec<Node>,
    /// For each stream that takes part: the nodes its next one waits for.
    tips: HashMap<u64, Vec<u32>>,
}

impl Model {
    pub(crate) fn capture_begin(&mut self, stream: u64, mode: CUstreamCaptureMode) -> Result<(), CUresult> {
        let handle = self.stream(stream)?;
        if mode > CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let Some(stream) = self.streams.get_mut(handle) else { return Err(CUDA_ERROR_INVALID_VALUE) };
        if stream.kind == StreamKind::Legacy {
            let device = stream.device;
            self.legacy_call(device)?;
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.capture.is_some() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        self.next_capture += 1;
        stream.capture = Some(self.next_capture);
        let capture = Capture {
            device: stream.device,
            origin: handle,
            mode,
            thread: thread::number(),
            valid: true,
            nodes: Vec::new(),
            tips: HashMap::from([(handle, Vec::new())]),
        };
        self.captures.insert(self.next_capture, capture);
        Ok(())
    }

    /// The status and, with a graph or without, the capture is over; only 401, 903 and 906 leave it as it is.
    pub(crate) fn capture_end(&mut self, stream: u64) -> Result<u64, CUresult> {
        let handle = self.stream(stream)?;
        let Some(stream) = self.streams.get(handle) else { return Err(CUDA_ERROR_ILLEGAL_STATE) };
        let (kind, device, capture) = (stream.kind, stream.device, stream.capture);
        if kind == StreamKind::Legacy {
            self.legacy_call(device)?;
        }
        let id = capture.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.captures.get_mut(&id).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != handle {
            // Measured: the capture is invalidated by it, and must still be ended where it was begun.
            capture.valid = false;
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let Some(capture) = self.close_capture(id) else { return Err(CUDA_ERROR_ILLEGAL_STATE) };
        if !capture.valid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != thread::number() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        if !capture.is_joined() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        let graph = self.handles.make(Kind::Graph);
        self.graphs
            .insert(graph, Graph { device: capture.device, body: Arc::new(Body { nodes: capture.nodes }) });
        Ok(graph)
    }

    pub(crate) fn capture_status(&mut self, stream: u64) -> Result<CUstreamCaptureStatus, CUresult> {
        let handle = self.stream(stream)?;
        let Some(stream) = self.streams.get(handle) else { return Ok(CU_STREAM_CAPTURE_STATUS_NONE) };
        if stream.kind == StreamKind::Legacy && self.blocking_captures(stream.device).next().is_some() {
            // Documented: the answer would depend on the capture. The capture goes on.
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        Ok(match stream.capture.and_then(|id| self.captures.get(&id)) {
            None => CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.valid => CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(_) => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        })
    }

    /// Where work of a stream goes: into a capture, or (`None`) into its queue.
    pub(crate) fn route(&mut self, handle: u64) -> Result<Option<u64>, CUresult> {
        let Some(stream) = self.streams.get(handle) else { return Ok(None) };
        if let Some(id) = stream.capture {
            let valid = self.captures.get(&id).is_some_and(|capture| capture.valid);
            return if valid { Ok(Some(id)) } else { Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) };
        }
        if stream.kind == StreamKind::Legacy {
            self.legacy_call(stream.device)?;
        }
        Ok(None)
    }

    /// Use of the legacy stream: 906 where a blocking stream captures, which would have to wait for it.
    pub(crate) fn legacy_call(&mut self, device: usize) -> Result<(), CUresult> {
        let hit: Vec<u64> = self.blocking_captures(device).collect();
        self.refuse(&hit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// A call that a capture may forbid because it may wait for work or touch memory that captured work uses.
    pub(crate) fn unsafe_call(&mut self, device: usize) -> Result<(), CUresult> {
        let hit = self.forbidding(device);
        self.refuse(&hit, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// The captures that forbid unsafe calls of this thread, by their modes.
    fn forbidding(&self, device: usize) -> Vec<u64> {
        let me = thread::number();
        let forbids = |capture: &Capture| match capture.mode {
            CU_STREAM_CAPTURE_MODE_GLOBAL => true,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => capture.thread == me,
            _ => false,
        };
        let on_device = |capture: &Capture| capture.device == device && forbids(capture);
        self.captures.iter().filter(|(_, capture)| on_device(capture)).map(|(&id, _)| id).collect()
    }

    /// A wait for the whole context: no capture of any mode and thread survives it.
    pub(crate) fn context_wait_call(&mut self, device: usize) -> Result<(), CUresult> {
        let hit: Vec<u64> =
            self.captures.iter().filter(|(_, capture)| capture.device == device).map(|(&id, _)| id).collect();
        self.refuse(&hit, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// What a stream never allows while it captures, in whichever mode.
    pub(crate) fn not_while_capturing(&mut self, handle: u64) -> Result<(), CUresult> {
        let capture = self.streams.get(handle).and_then(|stream| stream.capture);
        self.refuse(capture.as_slice(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// A query or synchronization of one stream: never allowed where it captures.
    pub(crate) fn stream_wait_call(&mut self, handle: u64) -> Result<(), CUresult> {
        self.not_while_capturing(handle)?;
        self.route(handle)?;
        match self.streams.get(handle).map(|stream| stream.device) {
            Some(device) => self.unsafe_call(device),
            None => Ok(()),
        }
    }

    /// Adds a node behind the stream's present ones.
    pub(crate) fn capture_node(&mut self, id: u64, stream: u64, work: Work) {
        let handle = self.handles.make(Kind::Node);
        if let Some(capture) = self.captures.get_mut(&id) {
            let index = capture.nodes.len() as u32;
            let after = capture.tips.insert(stream, vec![index]).unwrap_or_default();
            capture.nodes.push(Node { handle, work, after });
        }
    }

    /// The nodes that a record of an event on this stream stands for.
    pub(crate) fn capture_tips(&self, id: u64, stream: u64) -> Vec<u32> {
        self.captures.get(&id).and_then(|capture| capture.tips.get(&stream)).cloned().unwrap_or_default()
    }

    /// A capturing stream waits for an event recorded outside any capture: 905.
    pub(crate) fn refuse_isolation(&mut self, id: u64) -> CUresult {
        self.invalidate(id);
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    }

    /// Whether a capture is still under way: neither ended nor invalidated.
    pub(crate) fn is_valid_capture(&self, id: u64) -> bool {
        self.captures.get(&id).is_some_and(|capture| capture.valid)
    }

    /// A query or synchronization of an event recorded in a capture: 907, or 1 once that capture is over or invalid.
    pub(crate) fn refuse_captured_event(&mut self, id: u64) -> CUresult {
        if !self.is_valid_capture(id) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        self.invalidate(id);
        CUDA_ERROR_CAPTURED_EVENT
    }

    /// A stream waits for an event of a capture: it joins the capture, or two would merge.
    pub(crate) fn capture_join(&mut self, handle: u64, event_of: u64, tips: &[u32]) -> Result<(), CUresult> {
        let Some(stream) = self.streams.get(handle) else { return Ok(()) };
        let (kind, own, device) = (stream.kind, stream.capture, stream.device);
        if kind == StreamKind::Legacy {
            self.legacy_call(device)?;
        }
        if let Some(own) = own
            && !self.is_valid_capture(own)
        {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if !self.is_valid_capture(event_of) {
            // The event stands for nothing that could be waited for.
            own.into_iter().for_each(|own| self.invalidate(own));
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(own) = own
            && own != event_of
        {
            self.invalidate(own);
            self.invalidate(event_of);
            return Err(CUDA_ERROR_STREAM_CAPTURE_MERGE);
        }
        if kind == StreamKind::Legacy {
            self.invalidate(event_of);
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        if let Some(stream) = self.streams.get_mut(handle) {
            stream.capture = Some(event_of);
        }
        if let Some(capture) = self.captures.get_mut(&event_of) {
            let own = capture.tips.entry(handle).or_default();
            for &tip in tips {
                if !own.contains(&tip) {
                    own.push(tip);
                }
            }
            own.sort_unstable();
        }
        Ok(())
    }

    /// Removes a stream that is destroyed from its capture, which cannot be ended properly any more.
    pub(crate) fn capture_leave(&mut self, handle: u64, id: u64) {
        let Some(capture) = self.captures.get_mut(&id) else { return };
        if capture.origin == handle {
            self.close_capture(id);
        } else {
            capture.valid = false;
            capture.tips.remove(&handle);
        }
    }

    fn close_capture(&mut self, id: u64) -> Option<Capture> {
        let capture = self.captures.remove(&id)?;
        for &stream in capture.tips.keys() {
            if let Some(stream) = self.streams.get_mut(stream) {
                stream.capture = None;
            }
        }
        Some(capture)
    }

    /// Captures in which a blocking stream of the device takes part.
    fn blocking_captures(&self, device: usize) -> impl Iterator<Item = u64> {
        self.captures
            .iter()
            .filter(move |(_, capture)| {
                let blocking = |handle| self.streams.get(handle).is_some_and(|stream| stream.is_blocking());
                capture.device == device && capture.tips.keys().any(|&handle| blocking(handle))
            })
            .map(|(&id, _)| id)
    }

    /// Invalidates captures and answers `status`, for one that was invalid before too.
    fn refuse(&mut self, captures: &[u64], status: CUresult) -> Result<(), CUresult> {
        captures.iter().for_each(|&id| self.invalidate(id));
        if captures.is_empty() { Ok(()) } else { Err(status) }
    }

    fn invalidate(&mut self, id: u64) {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.valid = false;
        }
    }
}

impl Capture {
    pub(crate) fn is_on(&self, device: usize) -> bool {
        self.device == device
    }

    /// Whether the origin's end comes behind every node.
    fn is_joined(&self) -> bool {
        let mut behind = vec![false; self.nodes.len()];
        let mut open: Vec<u32> = self.tips.get(&self.origin).cloned().unwrap_or_default();
        while let Some(index) = open.pop() {
            if !core::mem::replace(&mut behind[index as usize], true) {
                open.extend(&self.nodes[index as usize].after);
            }
        }
        behind.into_iter().all(|reached| reached)
    }
}

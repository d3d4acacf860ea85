// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures: beginning, ending with a graph, giving up.

use std::panic::Location;

use metrale_driver_sys::{
    CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUgraph, CUresult,
    DriverError, SCALE, stream_capture_status,
};
use metrale_registry::is_teardown_noop;

use crate::backend::MetraleCudaBackend;
use crate::call::{ask, failed};
use crate::error::{BadArgument, Error, Remedy, Result, remedy_of_status};
use crate::graph::captures::Capture;
use crate::graph::refusal::NotCapturing;
use crate::raw_handles::StreamHandle;

/// What the driver made of a capture: its template of a graph, which a drop destroys, and the pins of what was captured,
/// which a drop releases unless they were passed on; then it frees what waited for that.
pub(crate) struct Recorded<'backend> {
    backend: &'backend MetraleCudaBackend,
    pub(crate) template: CUgraph,
    /// The capture's number.
    pub(crate) id: u64,
    pub(crate) captured_at: &'static Location<'static>,
    passed_on: bool,
}

impl Recorded<'_> {
    /// The pins are a graph's from now on.
    pub(crate) fn pass_on(&mut self) {
        self.passed_on = true;
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        self.backend.destroy_template(self.template);
        if !self.passed_on {
            self.backend.graph_client().shared.with(|state| state.pins.release(self.id));
            self.backend.free_what_waited();
        }
    }
}

impl MetraleCudaBackend {
    /// Ends a capture in the driver. The context is current.
    ///
    /// Only where one was begun is the driver asked, and there the stream is alive: it is neither destroyed nor released
    /// while the capture is noted ([`uncaptured`](Self::uncaptured)), whose end this thread alone has reserved.
    ///
    /// On an error the capture is over, unless the driver says that the stream still captures: then it stays noted.
    pub(crate) fn end_recording(&self, stream: StreamHandle, doing: &'static str) -> Result<Recorded<'_>> {
        let (id, captured_at) = self.graph_client().shared.with(|state| {
            if let Some(capture) = state.captures.start_ending(stream) {
                return Ok((capture.id, capture.site));
            }
            let other =
                state.captures.on_stream(stream).filter(|capture| capture.origin.raw() != stream.raw());
            Err(NotCapturing { doing, stream, part_of: other.map(|capture| (capture.origin, capture.site)) })
        })?;
        let mut template = 0;
        // SAFETY: the result pointer is a local; the stream is alive while its capture is noted.
        let answer = unsafe { ask!(self.driver(), cuStreamEndCapture(stream.raw(), &mut template)) };
        let Err(error) = answer else {
            // The pins stay: they are the graph's to be.
            let capture = self.graph_client().shared.with(|state| state.captures.close(id));
            let recorded = Recorded { backend: self, template, id, captured_at, passed_on: false };
            return match capture.and_then(|capture| capture.unfit) {
                None => Ok(recorded),
                Some(why) => Err(BadArgument::new(format!(
                    "{doing} on stream {stream:#x}, begun at {}: {why}; no graph was made, capture its work again",
                    metrale_ledger::file_line(captured_at)
                ))
                .into()),
            };
        };
        // SAFETY: as above.
        let status = || unsafe { stream_capture_status(self.driver(), stream.raw()) };
        let over = ends_capture(error.status)
            || remedy_of_status(error.status) == Remedy::Relaunch
            || (!SCALE && status() == Ok(CU_STREAM_CAPTURE_STATUS_NONE));
        let hint = if over {
            let capture = self.forget_capture(id);
            self.free_what_waited();
            capture.and_then(|capture| why_no_graph(error, &capture))
        } else {
            self.graph_client().shared.with(|state| state.captures.stop_ending(id));
            Some("the stream still captures: end it again, or abort_capture_if_active".to_owned())
        };
        Err(not_ended(error, doing, stream, captured_at, hint))
    }

    /// Destroys the driver's template of a graph. Nothing can be done about one that will not go.
    pub(crate) fn destroy_template(&self, template: CUgraph) {
        // SAFETY: no memory is passed; the driver has just made the graph, and nobody else knows of it.
        if let Err(error) = unsafe { ask!(self.driver(), cuGraphDestroy(template)) }
            && !is_teardown_noop(error.status)
        {
            tracing::error!("the template of a captured graph could not be destroyed and stays: {error}");
        }
    }

    /// Removes a capture that is over, with its pins.
    pub(crate) fn forget_capture(&self, id: u64) -> Option<Capture> {
        self.graph_client().shared.with(|state| {
            state.pins.release(id);
            state.captures.close(id)
        })
    }

    pub(crate) fn forget_captures_on(&self, origin: Option<StreamHandle>) -> bool {
        let id = origin.and_then(|origin| {
            self.graph_client()
                .shared
                .with(|state| state.captures.on_stream(origin).map(|capture| capture.id))
        });
        id.is_some_and(|id| self.forget_capture(id).is_some())
    }
}

/// Whether a stream does not capture any more after an end that was answered so.
pub(crate) const fn ends_capture(status: CUresult) -> bool {
    matches!(
        status,
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            | CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
            | CUDA_ERROR_ILLEGAL_STATE
    )
}

fn not_ended(
    error: DriverError,
    doing: &'static str,
    stream: StreamHandle,
    site: &'static Location<'static>,
    hint: Option<String>,
) -> Error {
    failed(
        error,
        format!("{doing} on stream {stream:#x}, begun at {}", metrale_ledger::file_line(site)),
        hint,
    )
}

/// What is known of a capture that ended without a graph.
fn why_no_graph(error: DriverError, capture: &Capture) -> Option<String> {
    match error.status {
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => Some(match &capture.broken_by {
            Some(by) => format!("it was broken by {by}; the stream can be used again"),
            None => "it was broken by a call outside this backend that the driver forbids during a capture, such as a \
                     synchronization; the stream can be used again"
                .to_owned(),
        }),
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
            let streams: Vec<_> =
                capture.unjoined().iter().map(|stream| format!("{stream:#x}")).collect();
            let which = if streams.is_empty() {
                "a stream that took part".to_owned()
            } else {
                format!("stream {}", streams.join(", "))
            };
            Some(format!(
                "{which} was not joined: record an event behind its last work and make stream {:#x} wait for it before \
                 the end",
                capture.origin
            ))
        }
        CUDA_ERROR_ILLEGAL_STATE => Some("it was ended outside this backend before".to_owned()),
        _ => None,
    }
}

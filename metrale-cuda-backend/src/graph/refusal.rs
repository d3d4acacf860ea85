// SPDX-License-Identifier: MIT OR Apache-2.0
//! What captures and graphs forbid, as typed errors: told before the driver is asked, with the lines concerned.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use metrale_driver_sys::{
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, DriverError,
};
use metrale_ledger::{LiveAllocation, file_line};

use crate::error::{Cause, ErrorKind, Remedy, causes};
use crate::graph::pins::PinHolder;
use crate::raw_handles::StreamHandle;

/// A call that a capture in flight forbids. The driver was not asked, and the capture goes on as if nothing had been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{doing} is not possible while stream {stream:#x} captures (begun at {}): {advice}. The driver was not asked \
     and the capture goes on",
    file_line(begun_at)
)]
#[non_exhaustive]
pub struct Capturing {
    /// What was to be done.
    pub doing: &'static str,
    /// The stream that the capture was begun on.
    pub stream: StreamHandle,
    /// The line that began it.
    pub begun_at: &'static Location<'static>,
    /// Why not, or what to do instead.
    pub advice: &'static str,
}

/// A stream was to capture while a call on another thread is under way that a capture does not go with: it copies host memory on
/// the stream that it has only borrowed, which each replay would use; or it waits for the whole device, which would break the
/// capture. The driver was not asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing} on stream {stream:#x}: a call on another thread {call} right now; {advice}")]
#[non_exhaustive]
pub struct StreamInUse {
    /// What was to be done.
    pub doing: &'static str,
    /// The stream.
    pub stream: StreamHandle,
    /// What the other call does.
    pub call: &'static str,
    /// What to do instead.
    pub advice: &'static str,
}

/// A capture was to be ended on a stream where none was begun. The driver was not asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: no capture was begun on stream {stream:#x} through this device's backends{}", takes_part(*part_of))]
#[non_exhaustive]
pub struct NotCapturing {
    /// What was to be done.
    pub doing: &'static str,
    /// The stream that was given.
    pub stream: StreamHandle,
    /// Where the stream only takes part in a capture: the stream that one was begun on, and the line.
    pub part_of: Option<(StreamHandle, &'static Location<'static>)>,
}

fn takes_part(part_of: Option<(StreamHandle, &'static Location<'static>)>) -> String {
    match part_of {
        Some((origin, site)) => {
            format!(
                "; it takes part in the one begun on stream {origin:#x} at {}: end that, and the capture goes on",
                file_line(site)
            )
        }
        None => "; begin_capture comes first".to_owned(),
    }
}

/// A free of memory that a graph, or a capture in flight, is known to use. Nothing was changed.
///
/// The driver would free it without a word, and the next replay would use whatever lies there then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{call} called at {}: {allocation} is used by {}, and a replay would go on using it; destroy the graph first",
    file_line(site),
    AllHolders(holders)
)]
#[non_exhaustive]
pub struct PinnedByGraph {
    /// Which call.
    pub call: &'static str,
    /// The line that called it.
    pub site: &'static Location<'static>,
    /// The memory, with the line that allocated it.
    pub allocation: Box<LiveAllocation>,
    /// Who uses it, with the lines that captured them. At least one.
    pub holders: Vec<PinHolder>,
}

struct AllHolders<'a>(&'a [PinHolder]);

causes! { Capturing: Capture, StreamInUse: Capture, NotCapturing: Capture, PinnedByGraph: PinnedByGraph }

impl Cause for GraphFault {
    fn kind(&self) -> ErrorKind {
        ErrorKind::ContextLost
    }

    fn remedy(&self) -> Remedy {
        Remedy::Relaunch
    }
}

impl fmt::Display for AllHolders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Holders that are named.
        const MOST: usize = 5;
        for (index, holder) in self.0.iter().take(MOST).enumerate() {
            write!(f, "{}{holder}", if index == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(MOST) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// A graph that failed while it ran, found by waiting after its launch
/// ([`debug_sync_kernels`](crate::BackendConfig::debug_sync_kernels)). The context is lost: restart the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "graph {name:?} failed while it ran (stream {stream:#x}): {driver}; the context is lost, restart the process. To see \
     which of its kernels it was, launch them without a graph"
)]
#[non_exhaustive]
pub struct GraphFault {
    /// The graph's name.
    pub name: Arc<str>,
    /// The stream it was launched on.
    pub stream: StreamHandle,
    /// What the wait answered.
    pub driver: DriverError,
}

/// Whether a status tells of a capture.
pub(crate) const fn is_of_captures(error: DriverError) -> bool {
    error.status >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        && error.status <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
}

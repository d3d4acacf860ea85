// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs: work captured from a stream, instantiated once and launched many times.
//!
//! ```text
//!   begin_capture ──> work is recorded, not done ──> end_capture ──> launch_graph, again and again ──> destroy_graph
//!        |               |            |                   |                     |
//!        |               |            |                   |                     update_graph: other work, same nodes
//!        |               |            |                   instantiates; the driver's template goes on every path
//!        |               |            alloc, free, sync, query ...: refused before the driver is asked
//!        |               what it uses is pinned: a free is refused until the graph is destroyed
//!        CaptureGuard: aborts where no end is reached
//! ```

mod capture;
mod captures;
mod destroy;
mod exec;
mod gate;
mod gpu_graphs;
mod guard;
mod info;
mod pins;
mod refusal;
mod shared;
mod update;

pub use guard::CaptureGuard;
pub use info::GraphInfo;
pub use pins::PinHolder;
pub use refusal::{Capturing, GraphFault, NotCapturing, PinnedByGraph, StreamInUse};
pub use update::GraphUpdate;

pub(crate) use captures::Reach;
pub(crate) use gate::{Submission, Unpinned, Uses};
pub(crate) use refusal::is_of_captures;
pub(crate) use shared::{BorrowedCopy, FreesLater, GraphClient};

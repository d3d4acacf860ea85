// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two places where a CUDA driver and SCALE's differ, behind one face, so that callers need no `cfg`.

use crate::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureStatus, DriverApi, DriverError, DriverFn, check};

/// Whether this build speaks to SCALE's driver (`metrale_scale`).
pub const SCALE: bool = cfg!(metrale_scale);

/// The capture status of a stream: 0 none, 1 active, 2 invalidated.
///
/// SCALE's driver cannot tell and is not asked: the answer there is always 0. Does not block.
///
/// # Errors
/// The driver's status.
///
/// # Safety
/// The stream is live, or one of the driver's own (0, 1, 2).
pub unsafe fn stream_capture_status(
    driver: &dyn DriverApi,
    stream: CUstream,
) -> Result<CUstreamCaptureStatus, DriverError> {
    #[cfg(not(metrale_scale))]
    {
        let mut status = 0;
        // SAFETY: the result pointer is a local; the caller's promise for the stream.
        let answer = unsafe { driver.cuStreamIsCapturing(stream, &mut status) };
        check(DriverFn::cuStreamIsCapturing, answer).map(|()| status)
    }
    #[cfg(metrale_scale)]
    {
        let _ = (driver, stream);
        Ok(crate::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// Makes a graph ready to launch. May block; allocates device memory (2 MiB for one node on an H200).
///
/// # Errors
/// The driver's status.
///
/// # Safety
/// The graph is live.
pub unsafe fn graph_instantiate(
    driver: &dyn DriverApi,
    graph: CUgraph,
    flags: u64,
) -> Result<CUgraphExec, DriverError> {
    let mut exec = 0;
    #[cfg(not(metrale_scale))]
    let (function, answer) = {
        // SAFETY: the result pointer is a local; the caller's promise for the graph.
        let answer = unsafe { driver.cuGraphInstantiateWithFlags(&mut exec, graph, flags) };
        (DriverFn::cuGraphInstantiateWithFlags, answer)
    };
    #[cfg(metrale_scale)]
    let (function, answer) = {
        // SAFETY: the result pointer is a local; the caller's promise for the graph.
        let answer = unsafe { driver.cuGraphInstantiate(&mut exec, graph, flags) };
        (DriverFn::cuGraphInstantiate, answer)
    };
    check(function, answer).map(|()| exec)
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Part`]: the place of a buffer in an arena, given back when the buffer is dropped.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::graph::PinnedByGraph;
use crate::memory::{Freed, PackedArena};
use crate::raw_handles::DevicePtr;

/// An arena that its clones and the buffers in it share.
pub(crate) struct SharedArena {
    pub(crate) arena: PackedArena<Arc<MetraleCudaBackend>>,
    /// Parts that a graph used when their buffers were dropped: their places are nobody's yet.
    later: Mutex<Vec<DevicePtr>>,
}

impl SharedArena {
    pub(crate) fn new(arena: PackedArena<Arc<MetraleCudaBackend>>) -> Self {
        Self { arena, later: Mutex::default() }
    }

    /// Gives back what a graph used before and does not any more.
    pub(crate) fn retry(&self) {
        self.later
            .lock()
            .retain(|part| matches!(self.arena.free_part(*part), Err(error) if error.is::<PinnedByGraph>()));
    }

    #[track_caller]
    fn release(&self, part: DevicePtr) -> Result<Freed> {
        self.retry();
        match self.arena.free_part(part) {
            Err(error) if error.is::<PinnedByGraph>() => {
                self.later.lock().push(part);
                Ok(Freed::Later(error))
            }
            answer => answer.map(|()| Freed::Now),
        }
    }
}

/// Bytes of an arena that a buffer has.
pub(crate) struct Part {
    pub(crate) arena: Arc<SharedArena>,
    pub(crate) ptr: DevicePtr,
    pub(crate) bytes: usize,
}

impl Part {
    /// Gives the place back, or as soon as no graph uses it.
    #[track_caller]
    pub(crate) fn release(self) -> Result<Freed> {
        self.arena.release(self.ptr)
    }
}

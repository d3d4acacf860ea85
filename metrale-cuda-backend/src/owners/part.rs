// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Part`]: the place of a buffer in an arena, given back when the buffer is dropped.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::error::Result;
use crate::graph::{FreesLater, PinnedByGraph};
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

    #[track_caller]
    fn release(self: &Arc<Self>, part: DevicePtr) -> Result<Freed> {
        match self.arena.free_part(part) {
            Err(error) if error.is::<PinnedByGraph>() => {
                self.later.lock().push(part);
                self.arena.backend().tell_of_ends(self);
                Ok(Freed::Later(error))
            }
            answer => answer.map(|()| Freed::Now),
        }
    }
}

impl FreesLater for SharedArena {
    /// Gives back what a graph used before and does not any more.
    fn free_waiting(&self) {
        self.later
            .lock()
            .retain(|part| matches!(self.arena.free_part(*part), Err(error) if error.is::<PinnedByGraph>()));
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

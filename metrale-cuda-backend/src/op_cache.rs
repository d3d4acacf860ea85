// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operations keep between calls: handles of libraries, and scratch memory that only grows.
//!
//! ```text
//!   op_scratch(op, stream, bytes) ── fits ──────────────────────> the buffer that is there
//!                                 └─ does not ─> a larger one; the old one is outgrown:
//!                                                event after its last use ── passed ──> freed
//! ```
//! Scratch is recorded as arena memory under the scope `op_cache/<op>`: the cache is its owner, so no sweep frees it.

use core::any::{Any, TypeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use metrale_driver_sys::CUevent;
use parking_lot::Mutex;

use crate::error::Result;
use crate::raw_handles::{DevicePtr, StreamHandle};

/// Scratch memory of an operation on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scratch {
    /// Where it lies.
    pub ptr: DevicePtr,
    /// How large it is, in bytes: at least what was asked for.
    pub bytes: usize,
}

/// A scratch buffer that a larger one has taken the place of.
pub(crate) struct Outgrown {
    pub(crate) scratch: Scratch,
    /// Recorded after its last use; 0 once it has passed, or where it could not be had.
    pub(crate) event: CUevent,
    /// Whether nothing queued uses it any more.
    pub(crate) is_idle: bool,
}

/// What an operation keeps between calls.
pub type OpHandle = Arc<dyn Any + Send + Sync>;

/// One backend's cache.
#[derive(Default)]
pub(crate) struct OpCache {
    pub(crate) handles: Mutex<HashMap<(TypeId, Box<str>), OpHandle>>,
    pub(crate) scratch: Mutex<Scratches>,
}

impl OpCache {
    /// The handle of this name and type, made by `make` where there is none.
    pub(crate) fn handle(
        &self,
        op: &str,
        of_type: TypeId,
        make: &mut dyn FnMut() -> Result<OpHandle>,
    ) -> Result<OpHandle> {
        let key = (of_type, Box::from(op));
        let found = self.handles.lock().get(&key).cloned();
        if let Some(handle) = found {
            return Ok(handle);
        }
        // With no lock held: making one may take long, and may want another.
        let made = make()?;
        Ok(match self.handles.lock().entry(key) {
            Entry::Occupied(first) => Arc::clone(first.get()),
            Entry::Vacant(vacant) => Arc::clone(vacant.insert(made)),
        })
    }
}

#[derive(Default)]
pub(crate) struct Scratches {
    /// By operation and stream.
    pub(crate) present: HashMap<(Box<str>, StreamHandle), Scratch>,
    pub(crate) outgrown: Vec<Outgrown>,
}

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
use std::panic::Location;
use std::sync::Arc;

use anyhow::Result;
use metrale_driver_sys::{CU_EVENT_DISABLE_TIMING, CUevent, DriverError};
use metrale_ledger::AllocKind;
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::BadArgument;
use crate::fault_latch::noted;
use crate::gpu::DevicePtr;
use crate::graph::Reach;
use crate::memory::{ArenaOwner, FREE_AFTER};

/// Sizes up to here are rounded up to what the driver allocates anyway.
const GRANULARITY_BYTES: usize = 512;
/// From here on the driver keeps whole pages, so that the rest of the last one costs nothing.
const PAGE_BYTES: usize = 2 << 20;

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
struct Outgrown {
    scratch: Scratch,
    /// Recorded after its last use; 0 once it has passed, or where it could not be had.
    event: CUevent,
    /// Whether nothing queued uses it any more.
    is_idle: bool,
}

type Handle = Arc<dyn Any + Send + Sync>;

/// One backend's cache.
#[derive(Default)]
pub(crate) struct OpCache {
    handles: Mutex<HashMap<(TypeId, Box<str>), Handle>>,
    scratch: Mutex<Scratches>,
}

#[derive(Default)]
struct Scratches {
    /// By operation and stream.
    present: HashMap<(Box<str>, u64), Scratch>,
    outgrown: Vec<Outgrown>,
}

impl MetraleCudaBackend {
    /// The handle that an operation keeps, such as a library's; made by `make` where there is none of this name and type.
    /// It lives as long as the backend, or until [`release_op_cache`](Self::release_op_cache).
    ///
    /// Two threads that ask at once may both make one; the first to finish is kept and given to both. `make` may use the
    /// backend and this cache. A handle must not hold the backend itself, which would then never be dropped.
    ///
    /// # Errors
    /// What `make` answers; nothing is then kept.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use metrale_cuda_backend::MetraleCudaBackend;
    /// # use metrale_driver_sim::{Profile, SimDriver};
    /// # let backend = MetraleCudaBackend::builder().driver(Arc::new(SimDriver::new(Profile::h200()))).build()?;
    /// struct Blas(u32);
    /// let handle = backend.op_handle("gemm", || Ok(Blas(12)))?;
    /// let again = backend.op_handle("gemm", || Ok(Blas(13)))?;
    /// assert!(Arc::ptr_eq(&handle, &again) && again.0 == 12);
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    pub fn op_handle<T: Any + Send + Sync>(
        &self,
        op: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let key = (TypeId::of::<T>(), Box::from(op));
        let found = self.op_cache().handles.lock().get(&key).cloned();
        let handle = match found {
            Some(handle) => handle,
            None => {
                // With no lock held: making one may take long, and may want another.
                let made: Handle = Arc::new(make()?);
                match self.op_cache().handles.lock().entry(key) {
                    Entry::Occupied(first) => Arc::clone(first.get()),
                    Entry::Vacant(vacant) => Arc::clone(vacant.insert(made)),
                }
            }
        };
        handle.downcast::<T>().map_err(|_| {
            // The key holds the type.
            BadArgument::new(format!("the handle of operation {op:?} is of another type")).into()
        })
    }

    /// Scratch memory of at least `bytes` bytes for an operation on a stream, kept for its next call and grown where that
    /// asks for more. Not cleared.
    ///
    /// It is for work queued on `stream`, and good until the same operation asks for more on the same stream: the outgrown
    /// buffer is freed once `stream` has passed what was queued on it by then. A graph that uses it keeps it, where the
    /// launches in it have typed arguments. Two threads that use one stream for one operation share the buffer, and order
    /// their use of it as they order the stream.
    ///
    /// Does not block where it fits; otherwise as [`alloc_arena`](crate::GpuBackend::alloc_arena), with the caller's line
    /// and the scope `op_cache/<op>`. Nobody but the cache frees it: `free_arena` refuses it. During a capture only what is there already is given: call it once before with the
    /// largest size.
    ///
    /// # Errors
    /// As [`alloc_arena`](crate::GpuBackend::alloc_arena).
    #[track_caller]
    pub fn op_scratch(&self, op: &str, bytes: usize, stream: u64) -> Result<Scratch> {
        let site = Location::caller();
        const WHAT: &str = "asking for scratch memory";
        self.bound(WHAT)?;
        let _held = self.hold_stream(stream, WHAT)?;
        let mut scratches = self.op_cache().scratch.lock();
        let key = (Box::from(op), stream);
        let present = scratches.present.get(&key).copied();
        if let Some(scratch) = present.filter(|scratch| scratch.bytes >= bytes) {
            return Ok(scratch);
        }
        // SAFETY: the stream is held.
        let captures = noted(self.driver(), unsafe { self.is_capturing(stream) });
        if captures.doing(|| format!("asking whether stream {stream:#x} captures"))? {
            return Err(BadArgument::new(format!(
                "scratch memory of {bytes} bytes for operation {op:?}: stream {stream:#x} captures, and there are {} bytes; ask \
                 for the largest size once before the capture begins",
                present.map_or(0, |scratch| scratch.bytes)
            ))
            .into());
        }
        self.free_outgrown(&mut scratches);
        let bytes = rounded(bytes);
        let larger = {
            let _scope = self.scope(&format!("op_cache/{op}"));
            Scratch { ptr: self.alloc_owned_arena(bytes, ArenaOwner::OpCache, site)?, bytes }
        };
        if let Some(old) = scratches.present.insert(key, larger) {
            let event = self.event_behind(stream);
            scratches.outgrown.push(Outgrown { scratch: old, event, is_idle: false });
        }
        Ok(larger)
    }

    /// Bytes of scratch memory that the cache holds: in use, and outgrown but not freed yet.
    #[must_use]
    pub fn op_scratch_bytes(&self) -> (usize, usize) {
        let scratches = self.op_cache().scratch.lock();
        let outgrown = scratches.outgrown.iter().map(|outgrown| outgrown.scratch.bytes);
        (scratches.present.values().map(|scratch| scratch.bytes).sum(), outgrown.sum())
    }

    /// Drops all handles and gives all scratch memory back: each buffer as soon as its stream has passed what is queued on
    /// it and no graph uses it any more, which is looked at now and at later calls. Returns the bytes that are
    /// still held. Does not block. Refused on a thread that captures, and while a stream with scratch memory does.
    ///
    /// # Errors
    /// As [`GpuBackend`](crate::GpuBackend) says; nothing is then released.
    pub fn release_op_cache(&self) -> Result<usize> {
        const WHAT: &str = "releasing scratch memory";
        self.bound(WHAT)?;
        self.outside_capture(Reach::Thread, WHAT, FREE_AFTER)?;
        for (_, stream) in self.op_cache().scratch.lock().present.keys() {
            self.outside_capture(Reach::Stream(*stream), WHAT, FREE_AFTER)?;
        }
        let handles = core::mem::take(&mut *self.op_cache().handles.lock());
        // With no lock held: a handle's drop may do anything.
        drop(handles);
        let mut scratches = self.op_cache().scratch.lock();
        self.outgrow(&mut scratches, |_| true);
        self.free_outgrown(&mut scratches);
        Ok(scratches.outgrown.iter().map(|outgrown| outgrown.scratch.bytes).sum())
    }

    /// Lets go of the scratch memory of a stream that is about to be destroyed.
    pub(crate) fn outgrow_stream(&self, stream: u64) {
        let mut scratches = self.op_cache().scratch.lock();
        self.outgrow(&mut scratches, |of| of == stream);
        self.free_outgrown(&mut scratches);
    }

    /// Makes the buffers of some streams outgrown.
    fn outgrow(&self, scratches: &mut Scratches, of: impl Fn(u64) -> bool) {
        let gone: Vec<_> = scratches.present.extract_if(|(_, stream), _| of(*stream)).collect();
        for ((_, stream), scratch) in gone {
            let event = self.event_behind(stream);
            scratches.outgrown.push(Outgrown { scratch, event, is_idle: false });
        }
    }

    /// Frees the outgrown buffers that nothing queued uses any more. What cannot be freed yet, be it for a graph that uses
    /// it, stays for the next time.
    fn free_outgrown(&self, scratches: &mut Scratches) {
        for mut outgrown in core::mem::take(&mut scratches.outgrown) {
            outgrown.is_idle = outgrown.is_idle || self.has_passed(outgrown.event);
            if outgrown.is_idle && outgrown.event != 0 {
                self.drop_event(core::mem::take(&mut outgrown.event));
            }
            if !(outgrown.is_idle && self.free_scratch(outgrown.scratch.ptr).is_ok()) {
                scratches.outgrown.push(outgrown);
            }
        }
    }

    /// Frees a buffer, which stays the cache's where it cannot be.
    fn free_scratch(&self, ptr: DevicePtr) -> Result<()> {
        let owner = ArenaOwner::OpCache;
        self.free_kind(ptr, AllocKind::Arena, "freeing scratch memory", Some(owner))
            .inspect_err(|_| self.owned_arenas().own(ptr.0, owner))
    }

    /// An event after what is queued on a stream; 0 where there is none to be had, be it that the stream is gone.
    fn event_behind(&self, stream: u64) -> CUevent {
        let Ok(_held) = self.hold_stream(stream, "letting go of scratch memory") else { return 0 };
        // SAFETY: the stream is held.
        if unsafe { self.is_capturing_or_cannot_tell(stream) } {
            // Recorded there, it would be a mark in the graph and never pass.
            return 0;
        }
        let mut event = 0;
        // SAFETY: the result pointer is a local.
        let made = unsafe { ask!(self.driver(), cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING)) };
        let recorded = made.and_then(|()| {
            // SAFETY: no memory is passed; the event was just made, the stream is held.
            unsafe { ask!(self.driver(), cuEventRecord(event, stream)) }
        });
        if recorded.is_err() && event != 0 {
            self.drop_event(event);
            return 0;
        }
        event
    }

    /// Whether an event has passed. One that could not be had never does: its buffer goes with the backend.
    fn has_passed(&self, event: CUevent) -> bool {
        event != 0 && {
            // SAFETY: no memory is passed; the event is the cache's own.
            unsafe { ask!(self.driver(), cuEventQuery(event)) }.is_ok()
        }
    }

    fn drop_event(&self, event: CUevent) {
        // SAFETY: the event is the cache's own, and this is the last use of it.
        if let Err(error) = unsafe { ask!(self.driver(), cuEventDestroy_v2(event)) } {
            tracing::debug!("an event of the op cache stays until the context is destroyed: {error}");
        }
    }

    /// Drops the handles and frees all scratch memory, at the end of the backend. The context is current and sound.
    pub(crate) fn end_op_cache(&self) {
        drop(core::mem::take(&mut *self.op_cache().handles.lock()));
        let mut scratches = core::mem::take(&mut *self.op_cache().scratch.lock());
        self.outgrow(&mut scratches, |_| true);
        for Outgrown { scratch, event, is_idle } in scratches.outgrown {
            if !is_idle && let Err(error) = self.wait_for(event) {
                tracing::debug!("waiting for the last use of scratch memory: {error}");
            }
            if event != 0 {
                self.drop_event(event);
            }
            // Not `free_scratch`, which has reasons to refuse that do not count any more: nobody launches from here on.
            if self.ledger_writer().forget(scratch.ptr.0, AllocKind::Arena).is_ok()
                && let Err(error) = self.driver_free(scratch.ptr.0)
            {
                tracing::error!("{} bytes of scratch memory could not be freed: {error}", scratch.bytes);
            }
        }
    }

    fn wait_for(&self, event: CUevent) -> Result<(), DriverError> {
        if event == 0 {
            // Nothing to ask: whatever is queued, on whichever stream. Not where it would break another backend's capture;
            // the driver's free waits then.
            if self.captures_on_device() {
                return Ok(());
            }
            // SAFETY: takes nothing.
            return unsafe { ask!(self.driver(), cuCtxSynchronize()) };
        }
        // SAFETY: no memory is passed; the event is the cache's own.
        unsafe { ask!(self.driver(), cuEventSynchronize(event)) }
    }
}

/// What is allocated for a request.
fn rounded(bytes: usize) -> usize {
    let step = if bytes >= PAGE_BYTES { PAGE_BYTES } else { GRANULARITY_BYTES };
    // A size so large that it cannot be rounded is refused as it is.
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_the_driver_keeps_for_them_anyway() {
        for (asked, given) in [
            (0, 512),
            (1, 512),
            (512, 512),
            (513, 1024),
            (PAGE_BYTES - 1, PAGE_BYTES),
            (PAGE_BYTES, PAGE_BYTES),
            (PAGE_BYTES + 1, 2 * PAGE_BYTES),
            (usize::MAX, usize::MAX),
        ] {
            assert_eq!(rounded(asked), given, "{asked}");
        }
    }
}

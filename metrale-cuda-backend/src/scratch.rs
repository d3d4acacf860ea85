// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scratch memory of operations: given out, outgrown, freed.

use std::panic::Location;

use metrale_driver_sys::{CU_EVENT_DISABLE_TIMING, CUevent, DriverError};
use metrale_ledger::AllocKind;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{BadArgument, Result};
use crate::fault_latch::noted;
use crate::graph::Reach;
use crate::memory::{ArenaOwner, FREE_AFTER};
use crate::op_cache::{Outgrown, Scratch, Scratches};
use crate::raw_handles::{DevicePtr, StreamHandle};

impl MetraleCudaBackend {
    /// Drops the handles and outgrows all scratch memory.
    pub(crate) fn empty_op_cache(&self) -> Result<usize> {
        const WHAT: &str = "releasing scratch memory";
        let _bound = self.bound(WHAT)?;
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

    /// Bytes in use, and bytes outgrown but not freed yet.
    pub(crate) fn scratch_bytes(&self) -> (usize, usize) {
        let scratches = self.op_cache().scratch.lock();
        let outgrown = scratches.outgrown.iter().map(|outgrown| outgrown.scratch.bytes);
        (scratches.present.values().map(|scratch| scratch.bytes).sum(), outgrown.sum())
    }

    /// The scratch memory of an operation on a stream, grown where it is too small.
    pub(crate) fn scratch(
        &self,
        op: &str,
        bytes: usize,
        stream: StreamHandle,
        site: &'static Location<'static>,
    ) -> Result<Scratch> {
        const WHAT: &str = "asking for scratch memory";
        let _bound = self.bound(WHAT)?;
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

    /// Lets go of the scratch memory of a stream that is about to be destroyed.
    pub(crate) fn outgrow_stream(&self, stream: StreamHandle) {
        let mut scratches = self.op_cache().scratch.lock();
        self.outgrow(&mut scratches, |of| of == stream);
        self.free_outgrown(&mut scratches);
    }

    /// Makes the buffers of some streams outgrown.
    fn outgrow(&self, scratches: &mut Scratches, of: impl Fn(StreamHandle) -> bool) {
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
    fn event_behind(&self, stream: StreamHandle) -> CUevent {
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
            unsafe { ask!(self.driver(), cuEventRecord(event, stream.raw())) }
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
            let Ok(_waits) = self.wait_for_device("waiting for the device", "") else { return Ok(()) };
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

/// Sizes up to here are rounded up to what the driver allocates anyway.
const GRANULARITY_BYTES: usize = 512;

/// From here on the driver keeps whole pages, so that the rest of the last one costs nothing.
const PAGE_BYTES: usize = 2 << 20;

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

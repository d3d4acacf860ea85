// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of cudarc on the ledger. Feature `cudarc`.

use core::fmt;
use core::ops::Deref;
use std::panic::Location;

use cudarc::driver::{CudaSlice, CudaViewMut, DevicePtr as _};
use metrale_ledger::{AllocKind, Whois};
use metrale_registry::CudarcError;

use crate::backend::MetraleCudaBackend;
use crate::error::{BadArgument, Error, causes};
use crate::memory::ArenaOwner;
use crate::raw_handles::DevicePtr;

/// A slice that the ledger refuses, returned as it was.
pub struct AdoptError<T> {
    /// The slice.
    pub slice: CudaSlice<T>,
    /// Why: it is of another context, or the ledger holds its memory already.
    pub cause: Error,
}

causes! { CudarcError: BadArgument }

impl<T> fmt::Debug for AdoptError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptError").field("cause", &self.cause).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for AdoptError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a slice of cudarc's cannot be adopted: {}", self.cause)
    }
}

impl<T> core::error::Error for AdoptError<T> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// The refusal of memory that is on the ledger with another owner.
fn owned_elsewhere(addr: u64, bytes: usize, whose: &str) -> BadArgument {
    BadArgument::new(format!(
        "adopting {bytes} bytes at {addr:#x}: {whose}; memory has one owner, and only what cudarc allocated itself is cudarc's"
    ))
}

/// A slice of cudarc's while it is on the ledger; from [`MetraleCudaBackend::adopt`]. Derefs to the
/// slice for reading, and [`as_view_mut`](Self::as_view_mut) is for writing; dropping it removes it from the ledger and lets cudarc free it.
///
/// It is recorded as an arena because cudarc is its owner: a sweep does not free it. cudarc allocates from the device's
/// memory pool where there is one, and a pool keeps pages by rules of its own, so that what the driver keeps for it is not
/// what the ledger's `arena_resident_bytes` says.
///
/// A drop cannot be refused: it destroys the graphs that are known to use the slice, with a warning.
pub struct Adopted<'backend, T> {
    // In this order: it leaves the ledger before cudarc frees it, because the driver may hand the address to another thread at
    // once.
    entry: LedgerEntry<'backend>,
    slice: CudaSlice<T>,
}

/// The record on the ledger, removed when this is dropped.
struct LedgerEntry<'backend> {
    backend: &'backend MetraleCudaBackend,
    ptr: DevicePtr,
    /// Whether cudarc frees it when it has left.
    is_freed: bool,
}

impl LedgerEntry<'_> {
    /// No drop can be refused, so the graphs that use the memory go before it, and none is left that would replay on it.
    fn end_its_graphs(&self) {
        // Where the context cannot be had, the driver's answers say so.
        let _current = self.backend.enter();
        let graphs = self.backend.destroy_graphs_using(&[(AllocKind::Arena, self.ptr.0)], false);
        if !graphs.is_empty() {
            tracing::warn!(
                "an allocation of cudarc's at {} was dropped while graphs used it, which are destroyed with it: {}",
                self.ptr,
                graphs.join(", ")
            );
        }
    }
}

impl Drop for LedgerEntry<'_> {
    fn drop(&mut self) {
        // Off the ledger first: from then on no capture comes to use it, and none that does is missed.
        if let Err(error) = self.backend.ledger_writer().forget(self.ptr.0, AllocKind::Arena) {
            tracing::error!(
                "an allocation of cudarc's was not on the ledger when its adoption ended: {error}"
            );
        }
        self.backend.owned_arenas().disown(self.ptr.0);
        if self.is_freed {
            self.end_its_graphs();
        }
    }
}

impl<T> Adopted<'_, T> {
    /// Where it lies: for our copies and launches, which know its size from now on.
    #[must_use]
    pub const fn ptr(&self) -> DevicePtr {
        self.entry.ptr
    }

    /// All of it for writing, for cudarc's calls. A view and not the slice, which could be swapped for another: this value would then
    /// take the other one's record off the ledger.
    #[must_use]
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }

    /// Takes it off the ledger and gives cudarc's slice back, which from then on is the caller's to keep as long as graphs
    /// use it.
    #[must_use = "the slice is freed when it is dropped"]
    pub fn let_go(self) -> CudaSlice<T> {
        let Self { mut entry, slice } = self;
        entry.is_freed = false;
        drop(entry);
        slice
    }
}

impl<T> Deref for Adopted<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> fmt::Debug for Adopted<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adopted").field("ptr", &self.ptr()).finish_non_exhaustive()
    }
}

impl MetraleCudaBackend {
    /// Puts an allocation of cudarc's on the ledger, under the caller's line and the thread's scope, until the returned
    /// value is dropped or [let go of](Adopted::let_go). cudarc stays its owner. Does not block.
    ///
    /// # Errors
    /// [`AdoptError`], with the slice in it: for a slice of another context
    /// ([`CudarcError`](metrale_registry::CudarcError)), or memory that the ledger holds already ([`BadArgument`]).
    #[track_caller]
    pub fn adopt<T>(&self, slice: CudaSlice<T>) -> Result<Adopted<'_, T>, AdoptError<T>> {
        let site = Location::caller();
        if let Err(error) = self.host().is_context_of(slice.context()) {
            return Err(AdoptError { slice, cause: error.into() });
        }
        let bytes = slice.num_bytes();
        let addr = slice.device_ptr(slice.stream()).0;
        // Asked first, since a record over a live one would take its place.
        let last = addr.saturating_add((bytes as u64).saturating_sub(1));
        let held = [addr, last].into_iter().find_map(|at| match self.ledger_writer().whois(at) {
            whois @ Whois::Live { .. } => Some(whois.to_string()),
            _ => None,
        });
        if let Some(reason) = held {
            return Err(AdoptError { slice, cause: owned_elsewhere(addr, bytes, &reason).into() });
        }
        if let Err(misuse) = self.ledger_writer().record(addr, bytes, AllocKind::Arena, site) {
            return Err(AdoptError {
                slice,
                cause: owned_elsewhere(addr, bytes, &misuse.to_string()).into(),
            });
        }
        self.owned_arenas().own(addr, ArenaOwner::Adopted);
        Ok(Adopted { entry: LedgerEntry { backend: self, ptr: DevicePtr(addr), is_freed: true }, slice })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metrale_driver_sim::{Profile, SimDriver};

    use super::*;

    /// A slice is cudarc's, which knows no driver in software: what stands for one here is its line on the ledger.
    #[test]
    fn a_dropped_slice_takes_the_graphs_along_that_use_it_and_no_others() {
        let driver = Arc::new(SimDriver::new(Profile::h200()));
        let backend = MetraleCudaBackend::builder().driver(driver).build().unwrap();
        let stream = backend.stream();
        let filling = |at, name| {
            let capture = backend.capture(stream).unwrap();
            backend.memset_async(at, 1, 64, stream).unwrap();
            capture.finish(name).unwrap()
        };
        for is_freed in [true, false] {
            let (ptr, other) = (backend.alloc_arena(64).unwrap(), backend.alloc(64).unwrap());
            let (used, kept) = (filling(ptr, "used"), filling(other, "kept"));
            drop(LedgerEntry { backend: &backend, ptr, is_freed });
            assert!(backend.ledger_writer().ledger().allocations_of(AllocKind::Arena).is_empty());
            let launched = backend.launch_graph(used, stream);
            assert_eq!(launched.is_err(), is_freed, "{launched:?}");
            backend.launch_graph(kept, stream).unwrap();
            backend.synchronize_stream(stream).unwrap();
            backend.destroy_graph(kept).unwrap();
            backend.free(other).unwrap();
            backend.driver_free(ptr.0).unwrap();
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw pinned memory for a test: its bytes, freed at the end. What queued copies do with it is the test's own to order.

use std::ops::{Deref, DerefMut};

use metrale_cuda_backend::{MetraleCudaBackend, PinnedPtr, Result};

pub struct PinnedGuard<'backend> {
    backend: &'backend MetraleCudaBackend,
    pinned: PinnedPtr,
}

impl<'backend> PinnedGuard<'backend> {
    #[track_caller]
    pub fn new(backend: &'backend MetraleCudaBackend, bytes: usize) -> Result<Self> {
        Ok(Self { backend, pinned: backend.alloc_pinned(bytes)? })
    }
}

impl Deref for PinnedGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the guard frees the memory when it goes; the test waits for copies that write it.
        unsafe { self.pinned.as_slice() }
    }
}

impl DerefMut for PinnedGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the guard frees the memory when it goes; the test waits for copies that use it.
        unsafe { self.pinned.as_mut_slice() }
    }
}

impl Drop for PinnedGuard<'_> {
    fn drop(&mut self) {
        // A test that ends with a lost context, or in a capture, leaves it to the backend.
        let _ = self.backend.free_pinned(self.pinned);
    }
}

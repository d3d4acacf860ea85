// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PinnedPtr`]: the raw handle of pinned host memory.

use core::ptr::NonNull;
use core::{fmt, slice};

/// Pinned host memory by its address and size, as [`GpuMemory::alloc_pinned`](crate::GpuMemory::alloc_pinned) returns it.
///
/// A handle, not an owner: it can be copied, and nothing is freed when it goes. [`PinnedBuffer`](crate::PinnedBuffer) is the owner. It stays
/// the handle of the memory it was made for: once that is freed it frees nothing, whoever has the address by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PinnedPtr {
    pub(crate) address: NonNull<u8>,
    pub(crate) bytes: usize,
    /// Which allocation of the process it is; 0 where no backend of this crate made it.
    pub(crate) generation: u64,
}

// SAFETY: a handle gives no access by itself; whoever follows the pointer promises that nobody else does meanwhile.
unsafe impl Send for PinnedPtr {}
// SAFETY: as for Send.
unsafe impl Sync for PinnedPtr {}

impl PinnedPtr {
    /// The handle of memory that something else pinned, for implementations of
    /// [`GpuBackend`](crate::GpuBackend) that do not end in [`MetraleCudaBackend`](crate::MetraleCudaBackend), which refuses to free it.
    ///
    /// # Safety
    /// `address` is the start of `bytes` bytes of initialized host memory, good for reading and writing until they are
    /// freed through the backend that returns the handle.
    #[must_use]
    pub const unsafe fn from_raw(address: NonNull<u8>, bytes: usize) -> Self {
        Self { address, bytes, generation: 0 }
    }

    /// The address, for reading and writing.
    #[must_use]
    pub const fn as_ptr(self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes; what a backend allocates has some.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// The memory as bytes.
    ///
    /// # Safety
    /// The memory is not freed while the slice is in use, and nobody, a queued copy of the device included, writes to it.
    #[must_use]
    pub const unsafe fn as_slice<'a>(self) -> &'a [u8] {
        // SAFETY: the allocation is `bytes` long and was zeroed when it was made; the caller promises the rest.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }

    /// The memory as bytes to write.
    ///
    /// # Safety
    /// The memory is not freed while the slice is in use, and nobody, a queued copy of the device included, reads or
    /// writes it otherwise.
    #[must_use]
    pub const unsafe fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        // SAFETY: the allocation is `bytes` long and was zeroed when it was made; the caller promises the rest.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }

    pub(crate) fn addr(self) -> u64 {
        self.address.addr().get() as u64
    }

    pub(crate) const fn generation(self) -> u64 {
        self.generation
    }
}

impl fmt::Display for PinnedPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pinned {:#x}", self.addr())
    }
}

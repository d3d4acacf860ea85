// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host memory: the blocks behind pinned and managed allocations, and the only places that touch host bytes.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::handle::WINDOW;

/// Host pages are aligned to this many bytes.
pub(crate) const HOST_PAGE: usize = 4096;

/// Zeroed, page-aligned host memory that both sides reach by its address. Pages cost nothing until they are touched.
pub(crate) struct HostBlock {
    raw: NonNull<u8>,
    layout: Layout,
    address: usize,
}

// SAFETY: the block is owned memory reached through raw pointers only; nothing in it is tied to a thread.
unsafe impl Send for HostBlock {}

impl HostBlock {
    /// `bytes` above 0, or `None` when the host has not so much.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        // A page more at the allocator's own alignment instead of page alignment: the allocator then maps fresh zero
        // pages and leaves them untouched, where an aligned request would be cleared by writing to it.
        let layout = Layout::from_size_align(bytes.checked_add(HOST_PAGE)?, 16).ok()?;
        // SAFETY: the layout's size is above 0.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // Exposed, since users and the copies below come back with the number.
        let address = raw.as_ptr().expose_provenance().next_multiple_of(HOST_PAGE);
        Some(Self { raw, layout, address })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed here only.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) }
    }
}

/// Whether `len` bytes at a host address could be real: not the null page, not the software driver's own numbers, no
/// wrap around. What passes may still be a lie; then it is the caller's promise that is broken.
pub(crate) fn plausible(address: usize, len: usize) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    address >= HOST_PAGE && (end as u64 <= WINDOW.start || address as u64 >= WINDOW.end)
}

/// Copies host bytes into `out`.
///
/// # Safety
/// The bytes are readable.
pub(crate) unsafe fn read(address: usize, out: &mut [u8]) {
    let source = core::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller's promise for the source; `out` is a slice. `copy` allows the two to be the same memory.
    unsafe { core::ptr::copy(source, out.as_mut_ptr(), out.len()) }
}

/// Copies `bytes` to host memory.
///
/// # Safety
/// The bytes are writable.
pub(crate) unsafe fn write(address: usize, bytes: &[u8]) {
    let target = core::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the caller's promise for the target; `bytes` is a slice. `copy` allows the two to be the same memory.
    unsafe { core::ptr::copy(bytes.as_ptr(), target, bytes.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_page_aligned_zero_and_writable() {
        let block = HostBlock::new(10_000).unwrap();
        assert_eq!(block.address() % HOST_PAGE, 0);
        let mut seen = [1; 10_000];
        // SAFETY: the block has 10,000 bytes.
        unsafe { read(block.address(), &mut seen) };
        assert_eq!(seen, [0; 10_000]);
        // SAFETY: as above.
        unsafe { write(block.address() + 9_999, &[7]) };
        // SAFETY: as above.
        unsafe { read(block.address(), &mut seen) };
        assert_eq!(seen[9_999], 7);
        assert!(HostBlock::new(usize::MAX).is_none());
    }

    #[test]
    fn null_wrapped_and_device_addresses_are_not_host_memory() {
        assert!(!plausible(0, 1) && !plausible(8, 1) && !plausible(usize::MAX, 2));
        assert!(!plausible(0x0a00_0000_0000, 1) && !plausible(0x08ff_ffff_ffff, 2));
        assert!(plausible([0u8; 4].as_ptr().addr(), 4));
    }
}

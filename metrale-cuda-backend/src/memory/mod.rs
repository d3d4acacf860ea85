// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: allocating, freeing, copying, asking.

mod alloc;
mod arena;
mod copy;
mod copy_2d;
mod info;
mod memset;
mod out_of_memory;
mod pinned;
mod pinned_book;
mod upload;

pub use alloc::FreeError;
pub use copy::{CopyOutOfBounds, End};
pub use copy_2d::{Copy2d, Side};
pub use info::MemoryInfo;
pub use out_of_memory::{Holder, OutOfMemory, Verdict};
pub use pinned::{PinnedBuffer, PinnedPtr};
pub(crate) use pinned_book::PinnedBook;
pub use pinned_book::StalePinned;
pub use upload::Uploader;

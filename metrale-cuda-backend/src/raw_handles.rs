// SPDX-License-Identifier: MIT OR Apache-2.0
//! The raw handles of the trait's calls: a device address, a kernel, a graph.

use core::fmt;

/// An address in device memory. 0 is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address, which no allocation has.
    pub const NULL: Self = Self(0);

    /// Whether this is null.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` after this one. Stops at the end of the address space, where no allocation is.
    ///
    /// ```
    /// use metrale_cuda_backend::DevicePtr;
    /// assert_eq!(DevicePtr(0x1000).offset(16), DevicePtr(0x1010));
    /// assert_eq!(DevicePtr(u64::MAX).offset(16), DevicePtr(u64::MAX));
    /// ```
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A kernel of a loaded module: the driver's function handle. Valid as long as the backend that found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct KernelHandle(pub u64);

/// An instantiated graph: the driver's handle. Good until [`GpuGraphs::destroy_graph`](crate::GpuGraphs::destroy_graph), or the end of its backend; what is
/// no graph any more is refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct GraphHandle(pub u64);

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The raw handles of the traits' calls: a device address, a kernel, a stream, an event, a graph.
//!
//! Safe code gets them from a backend and cannot make one of a number. Streams, events and graphs carry a generation beside
//! the driver's number, because the driver gives the number of what was destroyed to what is made next.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrale_driver_sys::CU_STREAM_PER_THREAD;

/// An address in device memory. Null where it is 0.
///
/// Calls look an address up before the driver has it, so one that belongs to no allocation is refused. Safe code makes none of
/// a number:
/// ```compile_fail,E0423
/// let forged = metrale_cuda_backend::DevicePtr(0x7f00_0000_0000);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevicePtr(pub(crate) u64);

impl DevicePtr {
    /// The null address, which no allocation has.
    pub const NULL: Self = Self(0);

    /// The address of this number.
    ///
    /// # Safety
    /// The address is of device memory that is the caller's to use, or it is given only to calls that refuse what the ledger
    /// does not know.
    #[must_use]
    pub const unsafe fn from_raw(addr: u64) -> Self {
        Self(addr)
    }

    /// The number, for foreign functions, logs and arithmetic.
    #[must_use]
    pub const fn addr(self) -> u64 {
        self.0
    }

    /// Whether this is null.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` after this one. Stops at the end of the address space, where no allocation is. Each use is checked
    /// against the ledger, so an address outside its allocation reaches nothing.
    ///
    /// ```
    /// use metrale_cuda_backend::DevicePtr;
    /// assert_eq!(DevicePtr::NULL.offset(16).offset(16).addr(), 32);
    /// assert_eq!(DevicePtr::NULL.offset(u64::MAX).offset(16).addr(), u64::MAX);
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
pub struct KernelHandle(pub(crate) u64);

impl KernelHandle {
    /// The kernel of the driver's function handle.
    ///
    /// # Safety
    /// The handle is of a function of a module that stays loaded as long as this is used to launch, in the context of the
    /// backend that launches it; or this is never given to a backend that launches, as in a mock.
    #[must_use]
    pub const unsafe fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The driver's function handle, for foreign functions.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// A number that no other call in the process answers, and not 0.
pub(crate) fn unique_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    // Only uniqueness counts.
    NUMBERS.fetch_add(1, Relaxed)
}

/// The driver's number for something, and which of those that had the number is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HandleId {
    pub(crate) raw: u64,
    /// No two handles of the process have the same, but the driver's own streams, which have 0.
    pub(crate) generation: u64,
}

impl HandleId {
    /// The identity of what was just made, or adopted.
    pub(crate) fn new(raw: u64) -> Self {
        Self { raw, generation: unique_number() }
    }

    /// A stream's: the driver's own are always the same.
    fn of_stream(raw: u64) -> Self {
        if raw <= CU_STREAM_PER_THREAD { Self { raw, generation: 0 } } else { Self::new(raw) }
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident, $new:path, $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) HandleId);

        impl $name {
            #[doc = concat!("A handle of the driver's ", $what, ", for a mock or wrapper that makes its own. A backend knows only")]
            /// the handles that it returned itself: it refuses this one. No two calls give equal handles.
            ///
            /// # Safety
            #[doc = concat!("The number is of a live ", $what, " that stays live as long as the handle, or of none that a driver is asked about.")]
            #[must_use]
            pub unsafe fn from_raw(raw: u64) -> Self {
                Self($new(raw))
            }

            /// The driver's number, for foreign functions.
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.0.raw
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0.raw)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0.raw, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x}, generation {})", stringify!($name), self.0.raw, self.0.generation)
            }
        }
    )*};
}

handles! {
    /// A stream: the driver's number for it, and which of those that had the number is meant. Good until the stream is
    /// destroyed or released, or its backend ends; a call is then refused, with the line that did it, though the driver
    /// has given the number to another stream.
    ///
    /// ```
    /// # fn record(gpu: &dyn metrale_cuda_backend::GpuBackend) -> metrale_cuda_backend::Result<()> {
    /// gpu.record_event(gpu.create_event()?, gpu.stream())
    /// # }
    /// ```
    /// The two are of two types, so swapped they do not compile:
    /// ```compile_fail,E0308
    /// # fn record(gpu: &dyn metrale_cuda_backend::GpuBackend) -> metrale_cuda_backend::Result<()> {
    /// gpu.record_event(gpu.stream(), gpu.create_event()?)
    /// # }
    /// ```
    StreamHandle, HandleId::of_stream, "stream";

    /// An event, as a [`StreamHandle`] is a stream.
    EventHandle, HandleId::new, "event";

    /// An instantiated graph, as a [`StreamHandle`] is a stream. Good until
    /// [`GpuGraphs::destroy_graph`](crate::GpuGraphs::destroy_graph), or the end of its backend; afterwards a call names the
    /// graph that it was.
    GraphHandle, HandleId::new, "graph";
}

impl StreamHandle {
    /// Whether it is one that every context has and nobody makes: 0 and 1 are the legacy stream, 2 is the thread's own.
    pub(crate) const fn is_the_drivers(self) -> bool {
        self.raw() <= CU_STREAM_PER_THREAD
    }

    /// Whether it is the legacy default stream, by either of the driver's handles for it: 0, and `CU_STREAM_LEGACY`.
    pub(crate) const fn is_legacy(self) -> bool {
        matches!(self.raw(), 0 | 1)
    }

    /// The legacy default stream, which synchronizes with every stream that did not opt out.
    pub const LEGACY: Self = Self(HandleId { raw: 0, generation: 0 });

    /// The default stream that each thread has of its own. It synchronizes with the legacy stream.
    pub const PER_THREAD: Self = Self(HandleId { raw: CU_STREAM_PER_THREAD, generation: 0 });
}

/// The legacy default stream, which synchronizes with every stream that did not opt out.
pub const LEGACY_STREAM: StreamHandle = StreamHandle::LEGACY;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_comes_again_is_another_handle() {
        // SAFETY: no driver is asked about these.
        let [old, new] = [0x50, 0x50].map(|raw| unsafe { EventHandle::from_raw(raw) });
        assert_eq!(old.raw(), new.raw());
        assert_ne!(old, new);
        assert_eq!((old.to_string(), format!("{new:#x}")), ("0x50".to_owned(), "0x50".to_owned()));
    }

    #[test]
    fn the_drivers_own_streams_are_always_the_same() {
        // SAFETY: the driver's own streams are always there.
        let own = |raw| unsafe { StreamHandle::from_raw(raw) };
        assert_eq!(own(0), StreamHandle::LEGACY);
        assert_eq!(own(2), StreamHandle::PER_THREAD);
        assert_ne!(own(3), own(3));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! One test body, two drivers: [`on_both_drivers!`](crate::on_both_drivers), and a context that lasts as long as its test.

use core::fmt;
use std::sync::Arc;

use metrale_driver_sys::{CUcontext, CUdevice, DriverApi, DriverError, DriverFn, check};

/// Declares tests of driver behaviour that run on the software H200 always and on a GPU where there is one.
///
/// Each `name(driver) { body }` becomes a module `name` with two tests: `sim`, and `device`, which is ignored unless
/// asked for (`cargo xtask gpu-test` runs every ignored test whose path ends in `::device`, each in a process of its
/// own). The body is given `driver: Arc<dyn DriverApi>`. To prepare the software driver, by registering kernels or with
/// another profile, give it as `name(driver; sim: expression) { body }`, where the expression is a
/// [`SimDriver`](crate::SimDriver) or an adaptor on one. The device test panics where no driver is installed, and says what was tried.
///
/// ```
/// use metrale_driver_sim::{ContextGuard, on_both_drivers};
///
/// on_both_drivers! {
///     /// An allocation of no bytes is refused.
///     alloc_of_nothing(driver) {
///         let _context = ContextGuard::new(&driver, 0).unwrap();
///         let mut address = 0;
///         // SAFETY: the result pointer is a local.
///         assert_eq!(unsafe { driver.cuMemAlloc_v2(&mut address, 0) }, 1);
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! on_both_drivers {
    ($($(#[$meta:meta])* $name:ident($driver:ident $(; sim: $sim:expr)?) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports, reason = "a body may need nothing of its file")]
            use super::*;

            fn body($driver: ::std::sync::Arc<dyn $crate::driver_sys::DriverApi>) $body

            /// Apart from the tests, so that the expression sees the file's names and not theirs.
            mod prepared {
                #[allow(unused_imports, reason = "a driver may need nothing of the file")]
                use super::super::*;

                pub(super) fn driver() -> impl $crate::driver_sys::DriverApi + 'static {
                    $crate::__sim_or_default!($($sim)?)
                }
            }

            #[test]
            fn sim() {
                body(::std::sync::Arc::new(prepared::driver()));
            }

            #[test]
            #[ignore = "needs a GPU: cargo xtask gpu-test"]
            fn device() {
                body($crate::system_driver());
            }
        }
    )*};
}

/// The software driver that was given, or an H200.
#[doc(hidden)]
#[macro_export]
macro_rules! __sim_or_default {
    () => {
        $crate::SimDriver::new($crate::Profile::h200())
    };
    ($sim:expr) => {
        $sim
    };
}

/// The installed driver, for tests that need a GPU.
///
/// # Panics
/// Where no driver is found, with the paths that were tried.
#[must_use]
pub fn system_driver() -> Arc<dyn DriverApi> {
    match metrale_driver_sys::system() {
        Ok(driver) => driver,
        Err(error) => panic!("this test needs a GPU and its driver: {error}"),
    }
}

/// The primary context of a device, initialized, retained and current on this thread. Dropping it releases the reference
/// and, where this context is the current one, leaves the thread without.
///
/// Work that is to go on in other threads needs [`enter`](Self::enter) there.
pub struct ContextGuard {
    driver: Arc<dyn DriverApi>,
    device: CUdevice,
    context: CUcontext,
}

impl ContextGuard {
    /// Initializes the driver, retains the primary context of device `ordinal` and makes it current. May block.
    ///
    /// # Errors
    /// The first call that failed.
    pub fn new(driver: &Arc<dyn DriverApi>, ordinal: i32) -> Result<Self, DriverError> {
        let (mut device, mut context) = (0, 0);
        // SAFETY: no pointer is passed.
        check(DriverFn::cuInit, unsafe { driver.cuInit(0) })?;
        // SAFETY: the result pointer is a local.
        check(DriverFn::cuDeviceGet, unsafe { driver.cuDeviceGet(&mut device, ordinal) })?;
        // SAFETY: the result pointer is a local.
        let status = unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, device) };
        check(DriverFn::cuDevicePrimaryCtxRetain, status)?;
        let guard = Self { driver: Arc::clone(driver), device, context };
        guard.enter()?;
        Ok(guard)
    }

    /// The context's handle.
    #[must_use]
    pub fn context(&self) -> CUcontext {
        self.context
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> CUdevice {
        self.device
    }

    /// Makes the context current on the calling thread.
    ///
    /// # Errors
    /// The driver's status.
    pub fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: no pointer is passed.
        check(DriverFn::cuCtxSetCurrent, unsafe { self.driver.cuCtxSetCurrent(self.context) })
    }

    /// Free and total bytes of device memory.
    ///
    /// # Errors
    /// The driver's status.
    pub fn memory_info(&self) -> Result<(usize, usize), DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the result pointers are locals.
        let status = unsafe { self.driver.cuMemGetInfo_v2(&mut free, &mut total) };
        check(DriverFn::cuMemGetInfo_v2, status).map(|()| (free, total))
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        // The statuses do not matter: a test that lost its context ends here anyway.
        let mut current = 0;
        // SAFETY: the result pointer is a local.
        let _ = unsafe { self.driver.cuCtxGetCurrent(&mut current) };
        if current == self.context {
            // SAFETY: no pointer is passed.
            let _ = unsafe { self.driver.cuCtxSetCurrent(0) };
        }
        // SAFETY: as above.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl fmt::Debug for ContextGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextGuard")
            .field("device", &self.device)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a status of the driver becomes a result: [`ask!`], and the context that is current around a call.

use metrale_driver_sys::{CUcontext, DriverApi, DriverError};

/// Calls one driver function and keeps its name with its status: `ask!(driver, cuInit(0))`.
macro_rules! ask {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        metrale_driver_sys::check(metrale_driver_sys::DriverFn::$function, $driver.$function($($argument),*))
    };
}
pub(crate) use ask;

/// The context current on the calling thread, 0 where none is.
pub(crate) fn current_context(driver: &dyn DriverApi) -> Result<CUcontext, DriverError> {
    let mut current = 0;
    // SAFETY: the result pointer is a local.
    unsafe { ask!(driver, cuCtxGetCurrent(&mut current)) }.map(|()| current)
}

/// Makes a context current on the calling thread; 0 leaves it without one.
pub(crate) fn set_current_context(driver: &dyn DriverApi, context: CUcontext) -> Result<(), DriverError> {
    // SAFETY: no memory is passed; the driver checks the handle.
    unsafe { ask!(driver, cuCtxSetCurrent(context)) }
}

/// Makes `context` current until dropped, then puts back what was.
///
/// Look-ups, loads and unloads need their context current, and may run on a thread that never heard of it: the one
/// that happens to drop the last handle, for instance. That thread's own choice must not change under it.
pub(crate) struct Current<'driver> {
    driver: &'driver dyn DriverApi,
    /// What to put back; `None` where the context was current already.
    before: Option<CUcontext>,
}

impl<'driver> Current<'driver> {
    pub(crate) fn enter(driver: &'driver dyn DriverApi, context: CUcontext) -> Result<Self, DriverError> {
        let current = current_context(driver)?;
        if current == context {
            return Ok(Self { driver, before: None });
        }
        set_current_context(driver, context)?;
        Ok(Self { driver, before: Some(current) })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // The context was current a moment ago. Where it was destroyed since, the thread is left with ours, and
            // its next call says so with the driver's own status: there is nobody here to tell.
            let _ = set_current_context(self.driver, before);
        }
    }
}

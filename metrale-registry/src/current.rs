// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context that is current around a call.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;

use metrale_driver_sys::{CUcontext, DriverApi, DriverError, ask};

use crate::is_teardown_noop;

thread_local! {
    /// The number of the host whose context was the last that the driver told this crate of; 0 for none.
    static SEEN: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread was last seen with that host's context current. Other libraries may have changed it since.
#[inline]
pub(crate) fn was_seen(host: u64) -> bool {
    SEEN.get() == host
}

/// Notes which host's context the driver said is current on this thread; 0 for none.
pub(crate) fn see(host: u64) {
    SEEN.set(host);
}

/// The context current on the calling thread, 0 where none is.
pub(crate) fn current_context(driver: &dyn DriverApi) -> Result<CUcontext, DriverError> {
    let mut current = 0;
    // SAFETY: the result pointer is a local.
    unsafe { ask!(driver, cuCtxGetCurrent(&mut current)) }.map(|()| current)
}

/// Makes a context current on the calling thread; 0 leaves it without one. The context is one that this process retains,
/// or was current here before, in which case its owner answers for not having destroyed it under the thread.
pub(crate) fn set_current_context(driver: &dyn DriverApi, context: CUcontext) -> Result<(), DriverError> {
    see(0);
    // SAFETY: no memory is passed; the context is live, as said above.
    unsafe { ask!(driver, cuCtxSetCurrent(context)) }
}

/// A host's context is current on this thread until this is dropped; then what was before is again. From
/// [`CudaHost::enter`](crate::CudaHost::enter); stays on its thread.
///
/// Look-ups, loads and unloads need their context current, and may run on a thread that never heard of it: the one
/// that happens to drop the last handle, for instance. That thread's own choice must not change under it.
#[must_use = "the context is current only as long as this is held"]
pub struct CurrentContext<'driver> {
    driver: &'driver dyn DriverApi,
    /// What to restore; `None` where the context was current already.
    before: Option<CUcontext>,
    /// What was current before is restored on the thread that drops this, which must be the one that entered.
    on_its_thread: PhantomData<*const ()>,
}

impl<'driver> CurrentContext<'driver> {
    /// Makes `context`, that of the host with this number, the current one. A driver that does not say what is current is
    /// believed to have what was last seen: without that, a teardown would leave all that there is to release. Where it says that
    /// what is current is gone, the thread has nothing to restore.
    pub(crate) fn enter(
        driver: &'driver dyn DriverApi,
        context: CUcontext,
        host: u64,
    ) -> Result<Self, DriverError> {
        let before = match current_context(driver) {
            Err(_) if was_seen(host) => None,
            Err(error) if is_teardown_noop(error.status) => Some(0),
            answer => Some(answer?).filter(|&current| current != context),
        };
        if before.is_some() {
            set_current_context(driver, context)?;
        }
        Ok(Self { driver, before, on_its_thread: PhantomData })
    }
}

impl fmt::Debug for CurrentContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentContext").field("before", &self.before).finish_non_exhaustive()
    }
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // The context was current a moment ago. Where it was destroyed since, the thread is left with ours, and
            // its next call says so with the driver's own status: there is nobody here to tell.
            let _ = set_current_context(self.driver, before);
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The look at whether a context is lost, after a call that was refused.

use metrale_driver_sys::{DriverError, DriverFn, check, is_sticky};

use crate::backend::MetraleCudaBackend;
use crate::raw_handles::StreamHandle;

impl MetraleCudaBackend {
    /// After a launch or fill that failed: waits for its stream to learn whether the context is lost, and latches that.
    /// The caller's error stays what it was. A stream that captures is left alone, since the wait would end the capture;
    /// so is one that cannot say.
    ///
    /// # Safety
    /// The stream stays alive over the call.
    #[cold]
    pub(crate) unsafe fn check_after_refusal(
        &self,
        failed: DriverError,
        stream: StreamHandle,
        after: impl FnOnce() -> String,
    ) {
        if is_sticky(failed.status) {
            self.latch().trip(failed, Some(after()));
            return;
        }
        // SAFETY: the caller's promise.
        if self.context_fault().is_some() || unsafe { self.is_capturing_or_cannot_tell(stream) } {
            return;
        }
        // SAFETY: no memory is passed; the caller's promise for the stream.
        let status = unsafe { self.driver().cuStreamSynchronize(stream.raw()) };
        if let Err(error) = check(DriverFn::cuStreamSynchronize, status) {
            self.latch().trip(error, Some(after()));
        }
    }
}

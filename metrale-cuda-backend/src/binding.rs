// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binding: a backend's context made current on a thread, for a call or for good.

use metrale_driver_sys::{CUDA_ERROR_NOT_READY, CUcontext, DriverError, is_sticky};
use metrale_registry::{CurrentContext, is_teardown_noop};

use crate::backend::MetraleCudaBackend;
use crate::call::Doing;
use crate::error::Result;
use crate::fault_latch::noted;
use crate::raw_handles::StreamHandle;

/// The context is current on this thread until this is dropped, which gives the thread the context it had before.
#[must_use = "the context is current only as long as this is held"]
pub(crate) struct Bound<'a>(#[allow(dead_code, reason = "held for its drop")] Option<CurrentContext<'a>>);

impl MetraleCudaBackend {
    /// Makes the context current on this thread until the answer is dropped, and refuses where it is lost. A thread that has
    /// no context keeps this one, so that its next call need not make it current again. Costs some 60 ns where it is.
    #[inline(never)]
    pub(crate) fn bound(&self, doing: &'static str) -> Result<Bound<'_>> {
        self.latch.sound(|| doing.to_owned())?;
        self.bind(self.host.current_context(), doing)
    }

    /// As [`bound`](Self::bound), for a free: none where the context is already gone, and what it had with it.
    pub(crate) fn bound_to_free(&self, doing: &'static str) -> Result<Option<Bound<'_>>> {
        self.latch.sound(|| doing.to_owned())?;
        match self.host.current_context() {
            // What is gone may be no more than another context that this thread had.
            Err(error) if is_teardown_noop(error.status) => {
                Ok(self.entered(doing)?.map(|current| Bound(Some(current))))
            }
            answer => self.bind(answer, doing).map(Some),
        }
    }

    /// As [`bound`](Self::bound), for work on a stream that goes where its handle says, whatever is current: all but the
    /// driver's own do. A thread that was seen bound is not asked about again: should another library have taken the context
    /// away since, the driver refuses, and [`rebound`](Self::rebound) is for the second try.
    #[inline]
    pub(crate) fn bound_for(&self, stream: StreamHandle, doing: &'static str) -> Result<Bound<'_>> {
        if self.host.was_current() && !stream.is_the_drivers() && self.latch.reason().is_none() {
            return Ok(Bound(None));
        }
        self.bound(doing)
    }

    /// After a refusal of what [`bound_for`](Self::bound_for) let pass: the context made current, where it was not. The call
    /// is then worth another try.
    #[cold]
    pub(crate) fn rebound(&self, refusal: DriverError, doing: &'static str) -> Result<Option<Bound<'_>>> {
        if is_sticky(refusal.status) || refusal.status == CUDA_ERROR_NOT_READY {
            return Ok(None);
        }
        match self.host.current_context() {
            Ok(current) if current == self.host.context() => Ok(None),
            answer => self.bind(answer, doing).map(Some),
        }
    }

    /// Asks the driver for work whose stream or event says where it goes, on a thread that [`bound_for`](Self::bound_for) let
    /// pass: once more with the context current, where another library had taken it away.
    #[inline]
    pub(crate) fn ask_bound(
        &self,
        doing: &'static str,
        ask: impl Fn() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        ask().or_else(|refusal| match self.rebound(refusal, doing) {
            Ok(Some(_bound)) => ask(),
            Ok(None) | Err(_) => Err(refusal),
        })
    }

    /// Whether the context is the current one on this thread.
    pub(crate) fn is_current(&self) -> bool {
        self.host.current_context() == Ok(self.host.context())
    }

    #[inline]
    fn bind(&self, current: Result<CUcontext, DriverError>, doing: &'static str) -> Result<Bound<'_>> {
        match current {
            Ok(current) if current == self.host.context() => Ok(Bound(None)),
            answer => self.make_current(answer, doing),
        }
    }

    #[cold]
    fn make_current(
        &self,
        current: Result<CUcontext, DriverError>,
        doing: &'static str,
    ) -> Result<Bound<'_>> {
        let bound = noted(self.driver(), current).and_then(|current| match current {
            0 => self.host.bind_to_thread().map(|()| Bound(None)),
            _ => self.enter().map(|current| Bound(Some(current))),
        });
        bound.doing(|| format!("{doing}: making the context of device {} current", self.host.ordinal()))
    }

    /// For a call that any thread may make, bound or not: makes the context current until the guard is dropped. None where the
    /// context is already gone, and what it had with it.
    pub(crate) fn entered(&self, doing: &'static str) -> Result<Option<CurrentContext<'_>>> {
        self.latch.sound(|| doing.to_owned())?;
        match self.enter() {
            Ok(current) => Ok(Some(current)),
            Err(error) if is_teardown_noop(error.status) => Ok(None),
            Err(error) => Err(error).doing(|| doing.to_owned()),
        }
    }

    /// Makes the context current on this thread until the guard goes.
    pub(crate) fn enter(&self) -> Result<CurrentContext<'_>, DriverError> {
        self.host.enter()
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams and events in use: looked up and kept alive for a call, and destroyed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use metrale_driver_sys::{DriverError, is_sticky};
use metrale_registry::is_teardown_noop;

use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::error::BadArgument;
use crate::handles::{HandleEntry, Kind};
use crate::raw_handles::{EventHandle, StreamHandle};

/// A handle that stays alive until this is dropped.
#[must_use = "the handle is kept alive only as long as this is held"]
pub(crate) struct HeldHandle<'backend> {
    backend: &'backend MetraleCudaBackend,
    /// `None` for what outlives every call: the backend's own stream, and the driver's own.
    entry: Option<Arc<HandleEntry>>,
}

impl HeldHandle<'_> {
    /// Whether the stream is still known, and not about to be destroyed by another thread.
    pub(crate) fn is_live(&self) -> bool {
        self.entry.as_ref().is_none_or(|entry| self.backend.streams().has(entry))
    }
}

impl Drop for HeldHandle<'_> {
    fn drop(&mut self) {
        // The last owner of an entry that the table has no more.
        if let Some(entry) = self.entry.take().and_then(Arc::into_inner)
            && let Err(error) = self.backend.destroy_handle(&entry)
        {
            tracing::error!("{entry} could not be destroyed: {error}");
        }
    }
}

impl MetraleCudaBackend {
    /// Whether a stream is there for as long as this backend: those used most are told by their handle alone.
    #[inline]
    pub(crate) fn outlives(&self, stream: StreamHandle) -> bool {
        stream == self.own_stream() || stream.is_the_drivers()
    }

    /// Looks a stream up and keeps it alive. The thread is known to be bound.
    #[inline]
    pub(crate) fn hold_stream(
        &self,
        stream: StreamHandle,
        doing: &'static str,
    ) -> Result<HeldHandle<'_>, BadArgument> {
        if self.outlives(stream) {
            return Ok(HeldHandle { backend: self, entry: None });
        }
        Ok(HeldHandle { backend: self, entry: Some(self.streams().hold(stream.0, doing)?) })
    }

    /// Looks a stream up, and does not keep it alive.
    pub(crate) fn look_up_stream(
        &self,
        stream: StreamHandle,
        doing: &'static str,
    ) -> Result<(), BadArgument> {
        if self.outlives(stream) { Ok(()) } else { self.streams().look_up(stream.0, doing, |_| ()) }
    }

    /// Looks an event up and keeps it alive. The thread is known to be bound.
    #[inline]
    pub(crate) fn hold_event(
        &self,
        event: EventHandle,
        doing: &'static str,
    ) -> Result<HeldHandle<'_>, BadArgument> {
        Ok(HeldHandle { backend: self, entry: Some(self.events().hold(event.0, doing)?) })
    }

    /// Destroys a handle that was [removed](Handles::remove): now, or when the call on another thread that still holds it
    /// returns.
    pub(crate) fn destroy_removed_handle(&self, entry: Arc<HandleEntry>) -> Result<(), DriverError> {
        Arc::into_inner(entry).map_or(Ok(()), |entry| self.destroy_handle(&entry))
    }

    /// Has the driver destroy a handle. Whatever it answers, the handle is not used again: it may be destroyed anyway.
    fn destroy_handle(&self, entry: &HandleEntry) -> Result<(), DriverError> {
        match entry.kind {
            // SAFETY: made by the driver and never destroyed, since an entry has one last owner, who alone comes here; no
            // table has it any more.
            Kind::Stream => unsafe { ask!(self.driver(), cuStreamDestroy_v2(entry.id.raw)) },
            // SAFETY: as above.
            Kind::Event => unsafe { ask!(self.driver(), cuEventDestroy_v2(entry.id.raw)) },
        }
    }

    /// Destroys the streams and events that nobody destroyed, with one warning. The context is current.
    pub(crate) fn destroy_left(&self) {
        let mut left = self.streams().drain();
        left.append(&mut self.events().drain());
        if left.is_empty() {
            return;
        }
        tracing::warn!(
            "{} left when the backend was dropped, and destroyed now: their owner should have destroyed them before. Made at: \
             {}",
            Counted(&left),
            Sites(&left)
        );
        for (index, entry) in left.iter().enumerate() {
            match self.destroy_handle(entry) {
                Ok(()) => {}
                // The context took them with it.
                Err(error) if is_teardown_noop(error.status) => return,
                Err(error) if is_sticky(error.status) => {
                    tracing::error!(
                        "{} cannot be destroyed because the context is lost: {error}",
                        Counted(&left[index..])
                    );
                    return;
                }
                Err(error) => tracing::error!("{entry} could not be destroyed: {error}"),
            }
        }
    }
}

/// `2 streams and 1 event`.
struct Counted<'a>(&'a [HandleEntry]);

impl fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for kind in [Kind::Stream, Kind::Event] {
            let count = self.0.iter().filter(|entry| entry.kind == kind).count();
            if count > 0 {
                write!(f, "{separator}{count} {kind}{}", if count == 1 { "" } else { "s" })?;
                separator = " and ";
            }
        }
        Ok(())
    }
}

/// The creation sites, most handles first.
struct Sites<'a>(&'a [HandleEntry]);

impl fmt::Display for Sites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: BTreeMap<(&str, u32), usize> = BTreeMap::new();
        for entry in self.0 {
            let site = entry.site;
            *counts.entry((site.file(), site.line())).or_default() += 1;
        }
        let mut rows: Vec<_> = counts.into_iter().collect();
        // Stable: equal counts stay in the order of their sites.
        rows.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        for (index, ((file, line), count)) in rows.iter().take(SITES).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{file}:{line} ({count})")?;
        }
        match rows.len().saturating_sub(SITES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Creation sites named in a warning.
const SITES: usize = 5;

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Handles`]: the streams and events a backend knows, so that safe code cannot hand a dead one to the driver.
//!
//! A driver follows the handles it is given: one that was destroyed, or never was one, can end the process where it is
//! used. So every call looks its handle up here first and holds the entry while the driver has it.
//!
//! ```text
//!             create            hold ... hold          the last call returns
//!   (unknown) ──────> live ───────────────────> live ──────────────────────> live
//!                       │ destroy: removed from the table, unknown from here on
//!                       └──────> held by calls on other threads ──> the last of them to return destroys it
//! ```
//!
//! The table and each call under way share the entry by an `Arc`, so the last owner is known without a count of our own.
//! The table's lock is held for a look-up, never over a call of the driver.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use metrale_driver_sys::{CU_STREAM_PER_THREAD, DriverError, is_sticky};
use metrale_ledger::file_line;
use metrale_registry::is_teardown_noop;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::error::BadArgument;
use crate::handle_tombstones::HandleTombstones;
use crate::raw_handles::{EventHandle, HandleId, StreamHandle};

type Site = &'static Location<'static>;

/// Creation sites named in a warning.
const SITES: usize = 5;

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stream,
    Event,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stream => "stream",
            Self::Event => "event",
        })
    }
}

/// Whose a handle is to destroy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Backend,
    /// Whoever had it adopted.
    Other,
}

/// A handle that the driver knows.
#[derive(Debug)]
pub(crate) struct HandleEntry {
    kind: Kind,
    id: HandleId,
    owner: Owner,
    /// Where it was made or adopted.
    site: Site,
}

impl fmt::Display for HandleEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, id, site, .. } = self;
        write!(f, "{kind} {:#x}, made at {},", id.raw, file_line(site))
    }
}

/// How a handle became unknown.
#[derive(Clone, Copy, Debug)]
enum HandleEnd {
    Destroyed(Site),
    Released(Site),
}

#[derive(Debug, Default)]
struct HandleTable {
    /// By the driver's number, which one alone has at a time. An entry is cloned only under the table's lock, so with the lock held for writing its count can only fall.
    live: FxHashMap<u64, Arc<HandleEntry>>,
    /// By generation.
    ended: HandleTombstones<HandleEnd>,
}

/// The streams, or the events, of a backend.
#[derive(Debug)]
pub(crate) struct Handles {
    kind: Kind,
    table: RwLock<HandleTable>,
}

impl Handles {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, table: RwLock::default() }
    }

    /// Inserts what the driver has just made.
    pub(crate) fn made(&self, raw: u64, site: Site) -> HandleId {
        let id = HandleId::new(raw);
        self.table.write().live.insert(raw, self.entry(id, Owner::Backend, site));
        id
    }

    /// Inserts what was made elsewhere.
    pub(crate) fn adopt(&self, raw: u64, site: Site) -> Result<HandleId, BadArgument> {
        let kind = self.kind;
        let mut table = self.table.write();
        if let Some(entry) = table.live.get(&raw) {
            let how = if entry.owner == Owner::Backend { "made" } else { "adopted" };
            return Err(BadArgument::new(format!(
                "adopting {kind} {raw:#x}: it is known already, {how} at {}",
                entry.site
            )));
        }
        let id = HandleId::new(raw);
        table.live.insert(raw, self.entry(id, Owner::Other, site));
        Ok(id)
    }

    fn entry(&self, id: HandleId, owner: Owner, site: Site) -> Arc<HandleEntry> {
        Arc::new(HandleEntry { kind: self.kind, id, owner, site })
    }

    /// The handles that are known now, in their order.
    pub(crate) fn live(&self) -> Vec<HandleId> {
        let mut live: Vec<_> = self.table.read().live.values().map(|entry| entry.id).collect();
        live.sort_unstable();
        live
    }

    /// A live handle's entry. The handle stays alive until the entry is dropped.
    fn hold(&self, id: HandleId, doing: &'static str) -> Result<Arc<HandleEntry>, BadArgument> {
        self.look_up(id, doing, Arc::clone)
    }

    /// Reads a live handle's entry.
    fn look_up<T>(
        &self,
        id: HandleId,
        doing: &'static str,
        read: impl FnOnce(&Arc<HandleEntry>) -> T,
    ) -> Result<T, BadArgument> {
        let table = self.table.read();
        match table.live.get(&id.raw) {
            Some(entry) if entry.id.generation == id.generation => Ok(read(entry)),
            _ => Err(self.unknown(&table, id, doing)),
        }
    }

    /// Whether an entry is still in the table.
    fn has(&self, entry: &Arc<HandleEntry>) -> bool {
        self.table.read().live.get(&entry.id.raw).is_some_and(|live| Arc::ptr_eq(live, entry))
    }

    /// Removes a handle so that its last owner destroys it: the caller, or a call on another thread that still holds it.
    pub(crate) fn remove(
        &self,
        id: HandleId,
        site: Site,
        doing: &'static str,
    ) -> Result<Arc<HandleEntry>, BadArgument> {
        let (kind, raw) = (self.kind, id.raw);
        let mut table = self.table.write();
        let Some(entry) = table.live.get(&raw).filter(|entry| entry.id.generation == id.generation) else {
            return Err(self.unknown(&table, id, doing));
        };
        if entry.owner == Owner::Other {
            return Err(BadArgument::new(format!(
                "{doing}: {kind} {raw:#x} was adopted at {}, and only its maker may destroy it: release_{kind} ends the \
                 adoption",
                entry.site
            )));
        }
        let entry = Arc::clone(entry);
        table.live.remove(&raw);
        table.ended.add(id.generation, HandleEnd::Destroyed(site));
        Ok(entry)
    }

    /// Removes a handle without destroying it, where no call is using it.
    pub(crate) fn release(&self, id: HandleId, site: Site) -> Result<(), BadArgument> {
        let (kind, raw) = (self.kind, id.raw);
        let doing = match kind {
            Kind::Stream => "releasing a stream",
            Kind::Event => "releasing an event",
        };
        let mut table = self.table.write();
        let Some(entry) = table.live.get_mut(&raw).filter(|entry| entry.id.generation == id.generation)
        else {
            return Err(self.unknown(&table, id, doing));
        };
        // Unlike a look at the count, this makes what earlier holders did happen before the release.
        if Arc::get_mut(entry).is_none() {
            return Err(BadArgument::new(format!(
                "{doing}: a call on another thread is using {kind} {raw:#x} right now; try again when it has returned"
            )));
        }
        table.live.remove(&raw);
        table.ended.add(id.generation, HandleEnd::Released(site));
        Ok(())
    }

    /// Removes all handles that are left, and returns those that the backend must destroy, in the order of their handles.
    fn drain(&self) -> Vec<HandleEntry> {
        let live = std::mem::take(&mut self.table.write().live);
        let mut left: Vec<_> = live.into_values().filter_map(Arc::into_inner).collect();
        left.retain(|entry| entry.owner == Owner::Backend);
        left.sort_unstable_by_key(|entry| entry.id.raw);
        left
    }

    #[cold]
    fn unknown(&self, table: &HandleTable, id: HandleId, doing: &'static str) -> BadArgument {
        let (kind, raw) = (self.kind, id.raw);
        BadArgument::new(match table.ended.last_end(id.generation) {
            Some(HandleEnd::Destroyed(site)) => {
                format!("{doing}: {kind} {raw:#x} was destroyed at {}", file_line(site))
            }
            Some(HandleEnd::Released(site)) => {
                format!(
                    "{doing}: {kind} {raw:#x} was released at {}; adopt_{kind} makes it known again, by a new handle",
                    file_line(site)
                )
            }
            None if table.live.contains_key(&raw) => format!(
                "{doing}: {raw:#x} is no {kind} of this backend by this handle, but another that has its number: use the \
                 handle that create_{kind} or adopt_{kind} returned"
            ),
            None => format!(
                "{doing}: {raw:#x} is no {kind} of this backend: use one that create_{kind} returned, or have one made \
                 elsewhere adopted first (adopt_{kind})"
            ),
        })
    }
}

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
        stream == self.own_stream() || is_the_drivers(stream)
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

/// The streams that every context has and nobody makes: 0 and 1 are the legacy stream, 2 is the thread's own.
pub(crate) const fn is_the_drivers(stream: StreamHandle) -> bool {
    stream.raw() <= CU_STREAM_PER_THREAD
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

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: &str = "using an event";

    #[test]
    fn a_handle_whose_number_came_again_is_answered_with_the_line_that_ended_it() {
        let events = Handles::new(Kind::Event);
        let (old, destroyed) = (events.made(0x50, Location::caller()), Location::caller());
        drop(events.remove(old, destroyed, WHAT).unwrap());
        let (between, released) = (events.made(0x50, Location::caller()), Location::caller());
        events.release(between, released).unwrap();
        let new = events.adopt(0x50, Location::caller()).unwrap();
        for (stale, how, site) in [(old, "destroyed", destroyed), (between, "released", released)] {
            let line = format!("event 0x50 was {how} at {}", file_line(site));
            for answer in [
                events.hold(stale, WHAT).map(drop),
                events.remove(stale, Location::caller(), WHAT).map(drop),
                events.release(stale, Location::caller()),
            ] {
                let text = answer.unwrap_err().to_string();
                assert!(text.contains(&line), "{text}");
            }
        }
        assert!(events.hold(new, WHAT).is_ok(), "the new one goes on");
    }

    #[test]
    fn a_handle_of_another_table_is_refused_though_its_number_is_live_here() {
        let [mine, other] = [Kind::Stream; 2].map(Handles::new);
        let (live, foreign) = (mine.made(0x50, Location::caller()), other.made(0x50, Location::caller()));
        let text = mine.hold(foreign, "using a stream").map(drop).unwrap_err().to_string();
        assert!(text.contains("0x50 is no stream of this backend by this handle"), "{text}");
        assert!(mine.hold(live, WHAT).is_ok());
    }
}

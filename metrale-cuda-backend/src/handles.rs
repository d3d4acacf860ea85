// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Handles`]: the streams and events a backend knows, so that safe code cannot hand a dead one to the driver.
//!
//! A driver follows the handles it is given: one that was destroyed, or never was one, can end the process where it is
//! used. So every call looks its handle up here first and holds the entry while the driver has it.
//!
//! ```text
//!             create            hold ... hold          the last one leaves
//!   (unknown) ──────> live ───────────────────> live ─────────────────────> live
//!                       │ destroy: unknown from here on, doomed
//!                       └──────> held by calls under way ──> the last to leave destroys it
//! ```
//!
//! The lock is held for a look-up, never over a call of the driver. A thread finds the handles that it used last without it,
//! so a call on them costs the two counts of its entry's users. A graph's launches on the stream that it is always launched on
//! go without these too: they are made with the graph locked, so who destroys the stream waits for the graph.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use metrale_driver_sys::{CU_STREAM_PER_THREAD, DriverError, is_sticky};
use metrale_registry::is_teardown_noop;
use parking_lot::{Mutex, RwLock};

use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::error::BadArgument;
use crate::graph::Graph;
use crate::graveyard::Graveyard;
use crate::handle_map::HandleMap;
use crate::numbers;
use crate::recent::Recent;

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
pub(crate) struct Entry {
    kind: Kind,
    raw: u64,
    /// The number of the table that it is, or was, in.
    table: u64,
    owner: Owner,
    /// Where it was made or adopted.
    site: Site,
    /// Calls that have it, and how it left its table, where it did.
    users: AtomicUsize,
    /// Graphs that are launched on it without being counted as users.
    graphs: Mutex<Vec<Weak<Graph>>>,
}

/// Taken off to be destroyed by the last user.
const DOOMED: usize = 1 << (usize::BITS - 1);
/// Taken off in another way, which leaves the handle alone.
const GONE: usize = 1 << (usize::BITS - 2);

impl Entry {
    /// One more user, unless it is out of its table. What came before the last one left it happened before.
    #[inline]
    fn enter(&self) -> bool {
        let mut users = self.users.load(Ordering::Relaxed);
        while users & (DOOMED | GONE) == 0 {
            match self.users.compare_exchange_weak(users, users + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => users = now,
            }
        }
        false
    }

    /// One user less; whether it was the last of a doomed one, which is now the caller's to destroy. Nobody enters that one
    /// any more, so there is one last user.
    #[inline]
    fn leave(&self) -> bool {
        self.users.fetch_sub(1, Ordering::AcqRel) == DOOMED + 1
    }

    /// Dooms it on behalf of one more user.
    fn doom(&self) {
        self.users.fetch_add(DOOMED + 1, Ordering::AcqRel);
    }

    /// Makes it unknown for good, unless somebody uses it.
    fn retire(&self) -> bool {
        self.users.compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether this is a handle of a table, and still in it. Who had that answer with a [graph](Self::admit)'s lock held may use
    /// the handle until the lock goes.
    #[inline]
    pub(crate) fn is_known_as(&self, raw: u64, table: u64) -> bool {
        self.raw == raw && self.table == table && self.users.load(Ordering::Relaxed) & (DOOMED | GONE) == 0
    }

    /// Has a graph, whose lock is held, launched on it without being counted from now on.
    pub(crate) fn admit(&self, graph: &Arc<Graph>) {
        let mut graphs = self.graphs.lock();
        graphs.retain(|other| other.strong_count() > 0);
        graphs.push(Arc::downgrade(graph));
    }

    /// Has a graph, whose lock is held, launched on it no more without being counted.
    pub(crate) fn strike(&self, graph: &Arc<Graph>) {
        self.graphs.lock().retain(|other| other.as_ptr() != Arc::as_ptr(graph));
    }

    /// Waits for launches that are under way without being counted. It is out of its table, and whoever locks one of its graphs
    /// after that sees so; one that is admitted from here on, too, since it was by somebody who sees it. With no lock held.
    fn dismiss(&self) {
        let graphs = std::mem::take(&mut *self.graphs.lock());
        for graph in graphs.iter().filter_map(Weak::upgrade) {
            graph.await_launch();
        }
    }

    fn is_doomed(&self) -> bool {
        self.users.load(Ordering::Relaxed) & DOOMED != 0
    }
}

thread_local! {
    /// The handles that this thread used last.
    static USED: Recent<Entry> = const { Recent::new() };
}

/// How a handle became unknown.
#[derive(Clone, Copy, Debug)]
enum End {
    Destroyed(Site),
    Released(Site),
}

#[derive(Debug, Default)]
struct Known {
    live: HandleMap<Arc<Entry>>,
    ended: Graveyard<End>,
}

/// The streams, or the events, of a backend.
#[derive(Debug)]
pub(crate) struct Handles {
    kind: Kind,
    number: u64,
    known: RwLock<Known>,
}

impl Handles {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, number: numbers::next(), known: RwLock::default() }
    }

    /// Enters what the driver has just made.
    pub(crate) fn made(&self, raw: u64, site: Site) {
        self.known.write().live.insert(raw, Arc::new(self.entry(raw, Owner::Backend, site)));
    }

    /// Enters what was made elsewhere.
    fn adopt(&self, raw: u64, site: Site) -> Result<(), BadArgument> {
        let kind = self.kind;
        let mut known = self.known.write();
        if let Some(entry) = known.live.get(&raw) {
            let how = if entry.owner == Owner::Backend { "made" } else { "adopted" };
            return Err(BadArgument::new(format!(
                "adopting {kind} {raw:#x}: it is known already, {how} at {}",
                entry.site
            )));
        }
        known.live.insert(raw, Arc::new(self.entry(raw, Owner::Other, site)));
        Ok(())
    }

    fn entry(&self, raw: u64, owner: Owner, site: Site) -> Entry {
        let (users, graphs) = (AtomicUsize::new(0), Mutex::default());
        Entry { kind: self.kind, raw, table: self.number, owner, site, users, graphs }
    }

    /// What no other table has, nor had.
    #[inline]
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The handles that are known now, in their order.
    pub(crate) fn live(&self) -> Vec<u64> {
        let mut live: Vec<u64> = self.known.read().live.keys().copied().collect();
        live.sort_unstable();
        live
    }

    /// A live handle's entry, entered: it stays alive until it is left.
    #[inline]
    fn hold(&self, raw: u64, doing: &'static str) -> Result<Arc<Entry>, BadArgument> {
        let is_it = |entry: &Entry| entry.raw == raw && entry.table == self.number && entry.enter();
        match USED.try_with(|used| used.take(raw, is_it)) {
            Ok(Some(entry)) => Ok(entry),
            // A thread that is ending remembers nothing.
            Ok(None) | Err(_) => self.look_up(raw, doing),
        }
    }

    #[cold]
    fn look_up(&self, raw: u64, doing: &'static str) -> Result<Arc<Entry>, BadArgument> {
        let known = self.known.read();
        // None leaves the table but with its lock held.
        match known.live.get(&raw).filter(|entry| entry.enter()) {
            Some(entry) => Ok(Arc::clone(entry)),
            None => Err(self.unknown(&known, raw, doing)),
        }
    }

    /// Takes a handle off to be destroyed by its last user: perhaps the caller, who has it entered.
    pub(crate) fn doom(&self, raw: u64, site: Site, doing: &'static str) -> Result<Arc<Entry>, BadArgument> {
        let kind = self.kind;
        let mut known = self.known.write();
        let Some(entry) = known.live.get(&raw) else { return Err(self.unknown(&known, raw, doing)) };
        if entry.owner == Owner::Other {
            return Err(BadArgument::new(format!(
                "{doing}: {kind} {raw:#x} was adopted at {}, and is its maker's to destroy: release_{kind} gives it back",
                entry.site
            )));
        }
        let entry = Arc::clone(entry);
        known.live.remove(&raw);
        known.ended.bury(raw, End::Destroyed(site));
        entry.doom();
        Ok(entry)
    }

    /// Takes a handle off without destroying it, where no call is using it that is counted.
    fn release(&self, raw: u64, site: Site) -> Result<Arc<Entry>, BadArgument> {
        let kind = self.kind;
        let doing = match kind {
            Kind::Stream => "releasing a stream",
            Kind::Event => "releasing an event",
        };
        let mut known = self.known.write();
        let Some(entry) = known.live.get(&raw) else { return Err(self.unknown(&known, raw, doing)) };
        if !entry.retire() {
            return Err(BadArgument::new(format!(
                "{doing}: a call on another thread is using {kind} {raw:#x} right now; try again when it has returned"
            )));
        }
        let entry = Arc::clone(entry);
        known.live.remove(&raw);
        known.ended.bury(raw, End::Released(site));
        Ok(entry)
    }

    /// Takes off all that are left, and returns those that are the backend's to destroy, in the order of their handles.
    fn drain(&self) -> Vec<Arc<Entry>> {
        let live = std::mem::take(&mut self.known.write().live);
        let mut left: Vec<_> = live.into_values().filter(|entry| entry.retire()).collect();
        left.retain(|entry| entry.owner == Owner::Backend);
        left.sort_unstable_by_key(|entry| entry.raw);
        left
    }

    #[cold]
    fn unknown(&self, known: &Known, raw: u64, doing: &'static str) -> BadArgument {
        let kind = self.kind;
        BadArgument::new(match known.ended.end_of(raw) {
            Some(End::Destroyed(site)) => format!("{doing}: {kind} {raw:#x} was destroyed at {site}"),
            Some(End::Released(site)) => {
                format!("{doing}: {kind} {raw:#x} was released at {site}; adopt_{kind} makes it known again")
            }
            None => format!(
                "{doing}: {raw:#x} is no {kind} of this backend: use one that create_{kind} returned, or have one made \
                 elsewhere adopted first (adopt_{kind})"
            ),
        })
    }
}

/// A handle that stays alive until this is dropped.
#[must_use = "the handle is kept alive only as long as this is held"]
pub(crate) struct Held<'backend> {
    backend: &'backend MetraleCudaBackend,
    /// `None` for what outlives every call: the backend's own stream, and those that are the driver's.
    entry: Option<Arc<Entry>>,
}

impl Held<'_> {
    /// What is known of the handle, where it might be destroyed.
    pub(crate) fn entry(&self) -> Option<&Arc<Entry>> {
        self.entry.as_ref()
    }

    /// Whether it is to be destroyed when the last holder leaves.
    pub(crate) fn is_doomed(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.is_doomed())
    }

    /// Lets go, as a drop does, but in line: for calls of which a step more would be much.
    #[inline(always)]
    pub(crate) fn leave(self) {
        ManuallyDrop::new(self).end();
    }

    #[inline(always)]
    fn end(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        if entry.leave() {
            self.backend.end_left(entry);
        } else {
            // A thread that is ending remembers nothing.
            let _ = USED.try_with(|used| used.keep(entry.raw, entry));
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl MetraleCudaBackend {
    /// Whether a stream is there for as long as this backend: those used most are told by their number alone.
    #[inline]
    pub(crate) fn outlives(&self, stream: u64) -> bool {
        stream == self.stream() || is_the_drivers(stream)
    }

    /// Looks a stream up and keeps it alive. The thread is known to be bound.
    #[inline]
    pub(crate) fn hold_stream(&self, stream: u64, doing: &'static str) -> Result<Held<'_>, BadArgument> {
        if self.outlives(stream) {
            return Ok(Held { backend: self, entry: None });
        }
        Ok(Held { backend: self, entry: Some(self.streams().hold(stream, doing)?) })
    }

    /// Looks an event up and keeps it alive. The thread is known to be bound.
    #[inline]
    pub(crate) fn hold_event(&self, event: u64, doing: &'static str) -> Result<Held<'_>, BadArgument> {
        Ok(Held { backend: self, entry: Some(self.events().hold(event, doing)?) })
    }

    /// Has a handle that is unknown by now destroyed: now, or by the call on another thread that is still using it.
    pub(crate) fn end_doomed(&self, entry: &Entry) -> Result<(), DriverError> {
        entry.dismiss();
        if entry.leave() { self.end_handle(entry) } else { Ok(()) }
    }

    /// Has a handle destroyed that was doomed while a call used it.
    #[cold]
    fn end_left(&self, entry: Arc<Entry>) {
        if let Err(error) = self.end_handle(&entry) {
            let Entry { kind, raw, site, .. } = *entry;
            tracing::error!("{kind} {raw:#x}, made at {site}, could not be destroyed: {error}");
        }
    }

    /// Has the driver destroy a handle. Whatever it answers, the handle is not used again: it may be gone all the same.
    fn end_handle(&self, entry: &Entry) -> Result<(), DriverError> {
        match entry.kind {
            // SAFETY: made by the driver and never destroyed, for only the last holder of an entry comes here; unknown to
            // everybody else by now.
            Kind::Stream => unsafe { ask!(self.driver(), cuStreamDestroy_v2(entry.raw)) },
            // SAFETY: as above.
            Kind::Event => unsafe { ask!(self.driver(), cuEventDestroy_v2(entry.raw)) },
        }
    }

    /// See [`GpuBackend::adopt_stream`](crate::GpuBackend::adopt_stream).
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn adopt_stream(&self, stream: u64) -> anyhow::Result<()> {
        if stream == self.stream() || is_the_drivers(stream) {
            return Err(BadArgument::new(format!(
                "adopting stream {stream:#x}: it is the backend's or the driver's own, and needs no adoption"
            ))
            .into());
        }
        Ok(self.streams().adopt(stream, Location::caller())?)
    }

    /// See [`GpuBackend::release_stream`](crate::GpuBackend::release_stream).
    #[track_caller]
    pub fn release_stream(&self, stream: u64) -> anyhow::Result<()> {
        const WHAT: &str = "releasing a stream";
        let site = Location::caller();
        self.uncaptured(stream, WHAT, || ())?;
        self.outgrow_stream(stream);
        self.uncaptured(stream, WHAT, || self.streams().release(stream, site))??.dismiss();
        Ok(())
    }

    /// See [`GpuBackend::adopt_event`](crate::GpuBackend::adopt_event).
    ///
    /// # Safety
    /// As there.
    #[track_caller]
    pub unsafe fn adopt_event(&self, event: u64) -> anyhow::Result<()> {
        if event == 0 {
            return Err(BadArgument::new("adopting an event: 0 is no event").into());
        }
        Ok(self.events().adopt(event, Location::caller())?)
    }

    /// See [`GpuBackend::release_event`](crate::GpuBackend::release_event).
    #[track_caller]
    pub fn release_event(&self, event: u64) -> anyhow::Result<()> {
        self.events().release(event, Location::caller())?;
        Ok(())
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
            match self.end_handle(entry) {
                Ok(()) => {}
                // The context took them with it.
                Err(error) if is_teardown_noop(error.status) => return,
                Err(error) if is_sticky(error.status) => {
                    tracing::error!(
                        "{} cannot be destroyed, for the context is lost: {error}",
                        Counted(&left[index..])
                    );
                    return;
                }
                Err(error) => {
                    let Entry { kind, raw, site, .. } = **entry;
                    tracing::error!("{kind} {raw:#x}, made at {site}, could not be destroyed: {error}");
                }
            }
        }
    }
}

/// The streams that every context has and nobody makes: 0 and 1 are the legacy stream, 2 is the thread's own.
pub(crate) const fn is_the_drivers(stream: u64) -> bool {
    stream <= CU_STREAM_PER_THREAD
}

/// `2 streams and 1 event`.
struct Counted<'a>(&'a [Arc<Entry>]);

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
struct Sites<'a>(&'a [Arc<Entry>]);

impl fmt::Display for Sites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: BTreeMap<(&str, u32, u32), usize> = BTreeMap::new();
        for entry in self.0 {
            let site = entry.site;
            *counts.entry((site.file(), site.line(), site.column())).or_default() += 1;
        }
        let mut rows: Vec<_> = counts.into_iter().collect();
        // Stable: equal counts stay in the order of their sites.
        rows.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        for (index, ((file, line, column), count)) in rows.iter().take(SITES).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{file}:{line}:{column} ({count})")?;
        }
        match rows.len().saturating_sub(SITES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

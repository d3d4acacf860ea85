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

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use metrale_ledger::file_line;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::error::BadArgument;
use crate::handle_tombstones::HandleTombstones;
use crate::raw_handles::HandleId;

pub(crate) type Site = &'static Location<'static>;

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
pub(crate) enum Owner {
    Backend,
    /// Whoever has its [`OwnedHandle`](crate::OwnedHandle).
    Handle,
    /// Whoever had it adopted.
    Other,
}

/// A handle that the driver knows.
#[derive(Debug)]
pub(crate) struct HandleEntry {
    pub(crate) kind: Kind,
    pub(crate) id: HandleId,
    pub(crate) owner: Owner,
    /// Where it was made or adopted.
    pub(crate) site: Site,
}

impl HandleEntry {
    #[cold]
    fn is_an_owners(&self, doing: &'static str) -> BadArgument {
        let Self { kind, id, site, .. } = self;
        BadArgument::new(format!(
            "{doing}: {kind} {:#x} belongs to the owner made at {}, whose drop destroys it",
            id.raw,
            file_line(site)
        ))
    }
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
    pub(crate) kind: Kind,
    table: RwLock<HandleTable>,
}

impl Handles {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, table: RwLock::default() }
    }

    /// Inserts what the driver has just made.
    pub(crate) fn made(&self, raw: u64, owner: Owner, site: Site) -> HandleId {
        let id = HandleId::new(raw);
        self.table.write().live.insert(raw, self.entry(id, owner, site));
        id
    }

    /// Inserts what was made elsewhere.
    pub(crate) fn adopt(&self, raw: u64, site: Site) -> Result<HandleId, BadArgument> {
        let kind = self.kind;
        let mut table = self.table.write();
        if let Some(entry) = table.live.get(&raw) {
            let how = if entry.owner == Owner::Other { "adopted" } else { "made" };
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
    pub(crate) fn hold(&self, id: HandleId, doing: &'static str) -> Result<Arc<HandleEntry>, BadArgument> {
        self.look_up(id, doing, Arc::clone)
    }

    /// Reads a live handle's entry.
    pub(crate) fn look_up<T>(
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
    pub(crate) fn has(&self, entry: &Arc<HandleEntry>) -> bool {
        self.table.read().live.get(&entry.id.raw).is_some_and(|live| Arc::ptr_eq(live, entry))
    }

    /// Refuses what [`remove`](Self::remove) would.
    pub(crate) fn may_remove(&self, id: HandleId, by: Owner, doing: &'static str) -> Result<(), BadArgument> {
        self.owned_by(&self.table.read(), id, by, doing).map(drop)
    }

    /// A live handle's entry, where it is this owner's to destroy.
    fn owned_by<'t>(
        &self,
        table: &'t HandleTable,
        id: HandleId,
        by: Owner,
        doing: &'static str,
    ) -> Result<&'t Arc<HandleEntry>, BadArgument> {
        let (kind, raw) = (self.kind, id.raw);
        let entry = table.live.get(&raw).filter(|entry| entry.id.generation == id.generation);
        let entry = entry.ok_or_else(|| self.unknown(table, id, doing))?;
        if entry.owner == by {
            return Ok(entry);
        }
        Err(match entry.owner {
            Owner::Other => BadArgument::new(format!(
                "{doing}: {kind} {raw:#x} was adopted at {}, and only its maker may destroy it: release_{kind} ends the \
                 adoption",
                file_line(entry.site)
            )),
            Owner::Handle | Owner::Backend => entry.is_an_owners(doing),
        })
    }

    /// Removes a handle so that its last owner destroys it: the caller, or a call on another thread that still holds it.
    pub(crate) fn remove(
        &self,
        id: HandleId,
        by: Owner,
        site: Site,
        doing: &'static str,
    ) -> Result<Arc<HandleEntry>, BadArgument> {
        let mut table = self.table.write();
        let entry = Arc::clone(self.owned_by(&table, id, by, doing)?);
        table.live.remove(&id.raw);
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
        if entry.owner == Owner::Handle {
            return Err(entry.is_an_owners(doing));
        }
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
    pub(crate) fn drain(&self) -> Vec<HandleEntry> {
        let live = std::mem::take(&mut self.table.write().live);
        let mut left: Vec<_> = live.into_values().filter_map(Arc::into_inner).collect();
        left.retain(|entry| entry.owner != Owner::Other);
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

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: &str = "using an event";

    #[test]
    fn a_handle_whose_number_came_again_is_answered_with_the_line_that_ended_it() {
        let events = Handles::new(Kind::Event);
        let (old, destroyed) = (events.made(0x50, Owner::Backend, Location::caller()), Location::caller());
        drop(events.remove(old, Owner::Backend, destroyed, WHAT).unwrap());
        let (between, released) = (events.made(0x50, Owner::Backend, Location::caller()), Location::caller());
        events.release(between, released).unwrap();
        let new = events.adopt(0x50, Location::caller()).unwrap();
        for (stale, how, site) in [(old, "destroyed", destroyed), (between, "released", released)] {
            let line = format!("event 0x50 was {how} at {}", file_line(site));
            for answer in [
                events.hold(stale, WHAT).map(drop),
                events.remove(stale, Owner::Backend, Location::caller(), WHAT).map(drop),
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
        let (live, foreign) = (
            mine.made(0x50, Owner::Backend, Location::caller()),
            other.made(0x50, Owner::Backend, Location::caller()),
        );
        let text = mine.hold(foreign, "using a stream").map(drop).unwrap_err().to_string();
        assert!(text.contains("0x50 is no stream of this backend by this handle"), "{text}");
        assert!(mine.hold(live, WHAT).is_ok());
    }
}

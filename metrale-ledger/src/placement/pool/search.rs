// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where an allocation goes: the order in which a pool's holes and pending frees are searched.

use super::Pool;
use super::holes::Hole;
use super::space::Spot;

/// Where the next allocation goes.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// A pending hole of that stream.
    Pending(u64, Hole),
    Spot(Spot),
}

impl Pool {
    /// Searches where nothing need be mapped, settled or known to be complete.
    pub(super) fn find_unsettled(&self, stream: u64, rounded: u64) -> Option<Place> {
        if let Some(hole) = self.streams.own(stream, rounded) {
            return Some(Place::Pending(stream, hole));
        }
        if let Some(hole) = self.space.best_mapped(rounded) {
            return Some(Place::Spot(Spot::Hole(hole)));
        }
        let followed = self.reuse.follow_events.then(|| self.streams.followed(stream, rounded));
        followed.flatten().map(|(owner, hole)| Place::Pending(owner, hole))
    }

    /// Searches for a place, and settles what is complete where nothing else fits.
    pub(super) fn find(&mut self, stream: u64, rounded: u64) -> Place {
        if let Some(place) = self.find_unsettled(stream, rounded) {
            return place;
        }
        if self.reuse.opportunistic {
            if let Some((owner, hole)) = self.streams.completed(stream, rounded) {
                return Place::Pending(owner, hole);
            }
            self.streams.settle_completed(stream, &mut self.space);
        }
        Place::Spot(self.space.best(rounded))
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The range of a pool: its holes, its end, and the pieces that are mapped.

use std::ops::Range;

use super::super::PlacementError;
use super::holes::{Hole, Holes};
use super::pieces::IdlePieces;
use super::rule::PoolRule;

/// A place for an allocation in the range.
#[derive(Clone, Copy)]
pub(super) enum Spot {
    Hole(Hole),
    /// Behind all that lies in the range.
    End,
}

/// The range. Operations cost O(log n) in the number of holes, and in the runs of idle pieces that they use up.
#[derive(Clone)]
pub(super) struct Space {
    rule: PoolRule,
    /// No two are neighbours, and none ends at the end of the range.
    holes: Holes,
    /// Nothing lies behind it.
    end: u64,
    next_age: u64,
    /// Mapped pieces that nothing live or pending touches. Each lies in a hole as a whole, or behind the end.
    idle: IdlePieces,
    mapped_pieces: u64,
}

impl Space {
    pub(super) fn new(rule: PoolRule) -> Self {
        Self {
            rule,
            holes: Holes::default(),
            end: 0,
            next_age: 0,
            idle: IdlePieces::default(),
            mapped_pieces: 0,
        }
    }

    pub(super) fn rule(&self) -> PoolRule {
        self.rule
    }

    pub(super) fn mapped_pieces(&self) -> u64 {
        self.mapped_pieces
    }

    pub(super) fn hole_count(&self) -> usize {
        self.holes.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.holes.memory_bytes() + self.idle.memory_bytes()
    }

    /// The best fit among the holes that are mapped as a whole.
    pub(super) fn best_mapped(&self, rounded: u64) -> Option<Hole> {
        self.holes.mapped_fits(rounded).next()
    }

    /// The best fit among all holes, else the end.
    pub(super) fn best(&self, rounded: u64) -> Spot {
        self.holes.best(rounded).map_or(Spot::End, Spot::Hole)
    }

    /// Of the pieces that an allocation at the spot would touch those that nothing touches yet.
    ///
    /// # Errors
    /// [`PlacementError::TooLarge`] where its last piece would end past 64 bits. No offset and no sum of pieces does otherwise.
    pub(super) fn entered(&self, spot: Spot, bytes: u64, rounded: u64) -> Result<Range<u64>, PlacementError> {
        let piece = self.rule.piece_bytes();
        // The last piece of a hole may be its neighbour's too.
        let (start, limit) = match spot {
            Spot::Hole(hole) => (hole.start, hole.end() / piece),
            Spot::End => (self.end, u64::MAX),
        };
        let end = start.checked_add(rounded).and_then(|end| end.checked_next_multiple_of(piece));
        let end = end.ok_or(PlacementError::TooLarge { bytes })? / piece;
        let first = start.div_ceil(piece);
        Ok(first..first.max(end.min(limit)))
    }

    /// How many of the pieces entered must be new: idle ones are used before, where they are or moved.
    pub(super) fn new_pieces(&self, entered: &Range<u64>) -> u64 {
        (entered.end - entered.start).saturating_sub(self.idle.count())
    }

    /// Places so many bytes at the spot, and maps the pieces entered. Returns the start.
    pub(super) fn occupy(&mut self, spot: Spot, rounded: u64, entered: Range<u64>) -> u64 {
        self.mapped_pieces += self.new_pieces(&entered);
        let missing = entered.end - entered.start - self.idle.remove(entered);
        self.unmap_highest(missing);
        match spot {
            Spot::Hole(hole) => {
                self.holes.remove(hole.start);
                if hole.bytes > rounded {
                    self.insert_hole(hole.start + rounded, hole.end());
                }
                hole.start
            }
            Spot::End => {
                let start = self.end;
                self.end += rounded;
                start
            }
        }
    }

    /// Maps the first of the pieces entered, as many as all idle ones and `new` more are, and leaves them idle.
    pub(super) fn map_idle(&mut self, entered: Range<u64>, new: u64) {
        let pieces = self.unmap_highest(u64::MAX) + new;
        self.idle.insert(entered.start..entered.start + pieces);
        self.mapped_pieces += new;
    }

    /// Makes what was freed a part of the holes, or of what is behind the end. Pieces that nothing touches any more become idle.
    pub(super) fn settle(&mut self, freed: Range<u64>) {
        let left = self.holes.remove_ending_at(freed.start);
        let right = self.holes.remove(freed.end);
        let start = left.map_or(freed.start, |hole| hole.start);
        let end = right.map_or(freed.end, Hole::end);
        let at_end = end == self.end;
        let touched = self.rule.touched(freed.start, freed.end);
        let inside = self.rule.inside(start, if at_end { u64::MAX } else { end });
        self.idle.insert(touched.start.max(inside.start)..touched.end.min(inside.end));
        if at_end {
            self.end = start;
        } else {
            self.insert_hole(start, end);
        }
    }

    /// Releases idle pieces, the highest first, until `pieces` are mapped or none is idle.
    pub(super) fn shrink_to(&mut self, pieces: u64) {
        self.mapped_pieces -= self.unmap_highest(self.mapped_pieces.saturating_sub(pieces));
    }

    /// Unmaps up to so many idle pieces, the highest first, and returns how many. They still count as mapped.
    fn unmap_highest(&mut self, at_most: u64) -> u64 {
        let mut left = at_most;
        while let Some(run) = self.idle.remove_highest(left) {
            left -= run.end - run.start;
            // The run lies in one hole, or behind the end: a piece between two holes is not idle.
            self.holes.mark_unmapped(run.start * self.rule.piece_bytes());
        }
        at_most - left
    }

    /// Lists a hole whose age begins now. It is mapped where each piece in it is idle: those at its edges hold its neighbours.
    fn insert_hole(&mut self, start: u64, end: u64) {
        self.next_age += 1;
        let mapped = self.idle.contains(&self.rule.inside(start, end));
        let age = self.next_age;
        self.holes.insert(Hole { start, bytes: end - start, age, mapped, time: 0 });
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HandleTombstones`]: how handles ended, so that a stale one is answered with a line of source.

use std::collections::VecDeque;

/// How many ends are remembered: enough for the mistakes of recent work, and a bound for a process that never stops.
const MOST: usize = 512;

/// The last ends, by the generation of the handle that ended. Searched only for errors.
#[derive(Debug)]
pub(crate) struct HandleTombstones<End> {
    ends: VecDeque<(u64, End)>,
}

impl<End> HandleTombstones<End> {
    /// Remembers how a handle ended. Forgets the oldest end where there are too many.
    pub(crate) fn add(&mut self, generation: u64, end: End) {
        if self.ends.len() == MOST {
            self.ends.pop_front();
        }
        self.ends.push_back((generation, end));
    }

    /// How the handle ended last; `None` where it never did, or too long ago.
    pub(crate) fn last_end(&self, generation: u64) -> Option<&End> {
        self.ends.iter().rev().find(|(ended, _)| *ended == generation).map(|(_, end)| end)
    }
}

impl<End> Default for HandleTombstones<End> {
    fn default() -> Self {
        Self { ends: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_end_counts_and_the_oldest_is_forgotten() {
        let mut tombstones = HandleTombstones::default();
        tombstones.add(7, "first");
        tombstones.add(7, "second");
        assert_eq!(tombstones.last_end(7), Some(&"second"));
        assert_eq!(tombstones.last_end(8), None);
        for other in 0..MOST as u64 {
            tombstones.add(1000 + other, "other");
        }
        assert_eq!((tombstones.last_end(7), tombstones.ends.len()), (None, MOST));
    }
}

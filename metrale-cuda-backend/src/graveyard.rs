// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Graveyard`]: where handles ended, so that a stale one is answered with a line of source.

use std::collections::VecDeque;
use std::panic::Location;

/// How many ends are remembered: enough for the mistakes of recent work, and a bound for a process that never stops.
const STONES: usize = 512;

/// The last ends, by what ended. Looked through only for errors.
#[derive(Debug, Default)]
pub(crate) struct Graveyard {
    stones: VecDeque<(u64, &'static Location<'static>)>,
}

impl Graveyard {
    /// Remembers where something ended, and forgets the oldest end for it when there are too many.
    pub(crate) fn bury(&mut self, what: u64, site: &'static Location<'static>) {
        if self.stones.len() == STONES {
            self.stones.pop_front();
        }
        self.stones.push_back((what, site));
    }

    /// Where it ended last; `None` where it never did, or too long ago.
    pub(crate) fn end_of(&self, what: u64) -> Option<&'static Location<'static>> {
        self.stones.iter().rev().find(|&&(ended, _)| ended == what).map(|&(_, site)| site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_end_counts_and_the_oldest_is_forgotten() {
        let mut graveyard = Graveyard::default();
        let first = Location::caller();
        graveyard.bury(7, first);
        let second = Location::caller();
        graveyard.bury(7, second);
        assert_eq!(graveyard.end_of(7), Some(second));
        assert_eq!(graveyard.end_of(8), None);
        for other in 0..STONES as u64 {
            graveyard.bury(1000 + other, first);
        }
        assert_eq!((graveyard.end_of(7), graveyard.stones.len()), (None, STONES));
    }
}

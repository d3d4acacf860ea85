// SPDX-License-Identifier: MIT OR Apache-2.0
//! Freed memory kept back for a while, so that a write that comes after the free shows.

use std::collections::VecDeque;

/// Freed allocations, oldest first, up to a limit of bytes together. Whoever holds one checks it when it leaves.
#[derive(Clone, Debug)]
pub struct Quarantine<T> {
    held: VecDeque<Quarantined<T>>,
    bytes: u64,
    limit_bytes: u64,
}

/// An allocation in quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined<T> {
    /// Its bytes with the bands: what it keeps from being used again.
    pub bytes: u64,
    /// Whatever is needed to check and free it.
    pub what: T,
}

impl<T> Quarantine<T> {
    /// A quarantine of at most `limit_bytes`; 0 keeps nothing.
    #[must_use]
    pub const fn new(limit_bytes: u64) -> Self {
        Self { held: VecDeque::new(), bytes: 0, limit_bytes }
    }

    /// Adds an allocation, and returns those that have to leave for it, oldest first: check and free them now. One
    /// larger than the whole quarantine comes straight back.
    #[must_use = "what leaves the quarantine has to be checked and freed"]
    pub fn push(&mut self, bytes: u64, what: T) -> Vec<Quarantined<T>> {
        let entry = Quarantined { bytes, what };
        if bytes > self.limit_bytes || self.limit_bytes == 0 {
            return vec![entry];
        }
        // What is held is never above the limit, so the sum of both cannot be more than twice the largest number.
        let mut leaving = Vec::new();
        while u128::from(self.bytes) + u128::from(bytes) > u128::from(self.limit_bytes) {
            match self.pop() {
                Some(oldest) => leaving.push(oldest),
                None => break,
            }
        }
        self.bytes += bytes;
        self.held.push_back(entry);
        leaving
    }

    /// Gives out at least `bytes` bytes, oldest first, or all there is: memory ran out, and this is the first to go.
    #[must_use = "what leaves the quarantine has to be checked and freed"]
    pub fn release(&mut self, bytes: u64) -> Vec<Quarantined<T>> {
        let mut leaving = Vec::new();
        let mut released = 0_u64;
        while released < bytes
            && let Some(oldest) = self.pop()
        {
            released = released.saturating_add(oldest.bytes);
            leaving.push(oldest);
        }
        leaving
    }

    /// Everything, oldest first.
    #[must_use = "what leaves the quarantine has to be checked and freed"]
    pub fn drain(&mut self) -> Vec<Quarantined<T>> {
        self.bytes = 0;
        std::mem::take(&mut self.held).into()
    }

    /// What is held, oldest first: a scan checks it too.
    pub fn iter(&self) -> impl Iterator<Item = &Quarantined<T>> {
        self.held.iter()
    }

    /// Bytes held.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Allocations held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn pop(&mut self) -> Option<Quarantined<T>> {
        let oldest = self.held.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(leaving: Vec<Quarantined<&'static str>>) -> Vec<&'static str> {
        leaving.into_iter().map(|entry| entry.what).collect()
    }

    #[test]
    fn the_oldest_leave_first_and_only_as_many_as_must() {
        let mut quarantine = Quarantine::new(100);
        assert!(quarantine.push(40, "a").is_empty());
        assert!(quarantine.push(60, "b").is_empty());
        assert_eq!(names(quarantine.push(30, "c")), ["a"]);
        assert_eq!((quarantine.bytes(), quarantine.len()), (90, 2));
        assert_eq!(names(quarantine.push(101, "too large")), ["too large"]);
        assert_eq!(names(quarantine.push(100, "d")), ["b", "c"]);
        assert_eq!(names(quarantine.release(1)), ["d"]);
        assert!(quarantine.release(1).is_empty() && quarantine.is_empty());
        assert!(quarantine.push(1, "e").is_empty());
        assert_eq!(names(quarantine.drain()), ["e"]);
        assert_eq!(quarantine.bytes(), 0);
    }

    #[test]
    fn without_a_limit_nothing_stays() {
        let mut quarantine = Quarantine::new(0);
        assert_eq!(names(quarantine.push(0, "empty")), ["empty"]);
        assert_eq!(names(quarantine.push(1, "a")), ["a"]);
        let mut all = Quarantine::new(u64::MAX);
        assert!(all.push(u64::MAX, "whole").is_empty());
        assert_eq!(names(all.push(u64::MAX, "again")), ["whole"]);
    }

    proptest! {
        #[test]
        fn everything_leaves_once_in_order(limit in 0..200_u64, sizes in proptest::collection::vec(0..150_u64, 0..60)) {
            let mut quarantine = Quarantine::new(limit);
            let mut left = Vec::new();
            for (number, &bytes) in sizes.iter().enumerate() {
                let leaving = quarantine.push(bytes, number);
                // One that is too large overtakes; all others leave in the order they came.
                left.extend(leaving.into_iter().map(|entry| entry.what));
                prop_assert!(quarantine.bytes() <= limit);
                prop_assert_eq!(quarantine.bytes(), quarantine.iter().map(|entry| entry.bytes).sum::<u64>());
            }
            left.extend(quarantine.drain().into_iter().map(|entry| entry.what));
            let mut sorted = left.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..sizes.len()).collect::<Vec<_>>());
            let stayed: Vec<_> = left.into_iter().filter(|&number| sizes[number] <= limit && limit > 0).collect();
            prop_assert!(stayed.is_sorted());
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an operation keeps from one call to the next: handles by key, and a scratch buffer that only grows.
//!
//! ```text
//!   fit(bytes) ── it fits ──▶ the current buffer
//!        └── too small ──▶ Grow { bytes } ─ allocate ─▶ install ─▶ the old one retires with a ticket
//!                                                                     │ collect: its ticket has passed
//!                                                                     ▼
//!                                                              free it: no queued work uses it
//! ```
//!
//! An outgrown buffer may still be used by work that is queued, so it is not freed on the spot: its *ticket*, such as an
//! event recorded behind that work, says when. Neither type knows a driver.

use std::collections::HashMap;
use std::hash::Hash;

/// Handles by key, made on first use.
#[derive(Clone, Debug)]
pub struct HandleCache<K, V> {
    handles: HashMap<K, V>,
    hits: u64,
    misses: u64,
}

impl<K, V> Default for HandleCache<K, V> {
    fn default() -> Self {
        Self { handles: HashMap::new(), hits: 0, misses: 0 }
    }
}

impl<K: Eq + Hash, V> HandleCache<K, V> {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The handle of a key; made now where there is none. A failure is not kept: the next call tries again.
    ///
    /// # Errors
    /// What `make` answers.
    pub fn get_or_make<E>(&mut self, key: K, make: impl FnOnce(&K) -> Result<V, E>) -> Result<&mut V, E> {
        use std::collections::hash_map::Entry;
        match self.handles.entry(key) {
            Entry::Occupied(entry) => {
                self.hits += 1;
                Ok(entry.into_mut())
            }
            Entry::Vacant(entry) => {
                self.misses += 1;
                let handle = make(entry.key())?;
                Ok(entry.insert(handle))
            }
        }
    }

    /// Takes every handle out, to destroy them.
    pub fn drain(&mut self) -> impl Iterator<Item = (K, V)> {
        self.handles.drain()
    }

    /// Handles held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Questions answered from the cache, and those that were not.
    #[must_use]
    pub const fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

/// Scratch is grown to a multiple of this once it is larger: the driver takes whole pages of this size anyway.
const PAGE_BYTES: u64 = 2 << 20;

/// A buffer `B` that only grows, and the outgrown ones with the tickets `T` after which they may be freed.
#[derive(Clone, Debug)]
pub struct Scratch<B, T> {
    current: Option<Sized<B>>,
    retired: Vec<Retired<B, T>>,
}

#[derive(Clone, Debug)]
struct Sized<B> {
    buffer: B,
    bytes: u64,
}

/// An outgrown buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retired<B, T> {
    /// The buffer.
    pub buffer: B,
    /// Its bytes.
    pub bytes: u64,
    /// What has to pass before it is freed.
    pub ticket: T,
}

/// Whether a scratch is large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit<B> {
    /// Take this one.
    Fits(B),
    /// Allocate so many bytes and [`install`](Scratch::install) them.
    Grow {
        /// At least what was asked for.
        bytes: u64,
    },
}

impl<B, T> Default for Scratch<B, T> {
    fn default() -> Self {
        Self { current: None, retired: Vec::new() }
    }
}

impl<B: Copy, T> Scratch<B, T> {
    /// No buffer yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether `bytes` fit the current buffer. If not, by how much to grow: by half at least, so that a size that creeps
    /// up is not followed byte by byte, and to whole 2 MiB pages once there is more than one.
    #[must_use]
    pub fn fit(&self, bytes: u64) -> Fit<B> {
        match &self.current {
            Some(current) if bytes <= current.bytes => Fit::Fits(current.buffer),
            current => {
                let half_more =
                    current.as_ref().map_or(0, |current| current.bytes.saturating_add(current.bytes / 2));
                let wanted = bytes.max(half_more);
                let whole = wanted.checked_next_multiple_of(PAGE_BYTES).filter(|_| wanted > PAGE_BYTES);
                Fit::Grow { bytes: whole.unwrap_or(wanted) }
            }
        }
    }

    /// Makes a larger buffer the current one. The old one retires until `ticket` has passed, which is asked for only
    /// where there is an old one.
    ///
    /// # Errors
    /// What `ticket` answers; nothing has changed then, and `buffer` is the caller's to free.
    pub fn install<E>(
        &mut self,
        buffer: B,
        bytes: u64,
        ticket: impl FnOnce() -> Result<T, E>,
    ) -> Result<(), E> {
        if let Some(old) = &self.current {
            let ticket = ticket()?;
            self.retired.push(Retired { buffer: old.buffer, bytes: old.bytes, ticket });
        }
        self.current = Some(Sized { buffer, bytes });
        Ok(())
    }

    /// Takes out the outgrown buffers whose ticket has passed: free them, and give the tickets back. A question that fails
    /// leaves its buffer where it is.
    #[must_use = "what was taken out has to be freed"]
    pub fn collect<E>(&mut self, mut has_passed: impl FnMut(&T) -> Result<bool, E>) -> Vec<Retired<B, T>> {
        self.retired.extract_if(.., |retired| has_passed(&retired.ticket).unwrap_or(false)).collect()
    }

    /// Takes out everything, at teardown: the current buffer, and the outgrown ones with their tickets. Wait for the work
    /// that uses them first.
    #[must_use = "what was taken out has to be freed"]
    pub fn drain(&mut self) -> (Option<B>, Vec<Retired<B, T>>) {
        (self.current.take().map(|current| current.buffer), std::mem::take(&mut self.retired))
    }

    /// Bytes of the current buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.bytes)
    }

    /// Bytes of outgrown buffers that are not freed yet.
    #[must_use]
    pub fn retired_bytes(&self) -> u64 {
        self.retired.iter().map(|retired| retired.bytes).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use core::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handle_is_made_once_and_a_failure_is_tried_again() {
        let mut cache = HandleCache::new();
        assert_eq!(cache.get_or_make("gemm", |_| Err("no")), Err("no"));
        assert_eq!(cache.get_or_make("gemm", |key| Ok::<_, Infallible>(key.len())), Ok(&mut 4));
        let again = cache.get_or_make("gemm", |_| -> Result<usize, Infallible> { panic!("it is there") });
        assert_eq!(again, Ok(&mut 4));
        assert_eq!((cache.len(), cache.hits_and_misses()), (1, (1, 2)));
        assert_eq!(cache.drain().collect::<Vec<_>>(), [("gemm", 4)]);
        assert!(cache.is_empty());
    }

    #[test]
    fn scratch_grows_by_half_and_to_whole_pages() {
        let mut scratch = Scratch::<u64, u64>::new();
        assert_eq!(scratch.fit(1000), Fit::Grow { bytes: 1000 });
        scratch.install(1, 1000, || -> Result<u64, Infallible> { panic!("there is no old one") }).unwrap();
        assert_eq!((scratch.fit(1000), scratch.fit(0)), (Fit::Fits(1), Fit::Fits(1)));
        assert_eq!(scratch.fit(1001), Fit::Grow { bytes: 1500 });
        assert_eq!(scratch.fit(5 << 20), Fit::Grow { bytes: 6 << 20 });
        assert_eq!(scratch.fit(2 << 20), Fit::Grow { bytes: 2 << 20 });
        assert_eq!(scratch.fit(u64::MAX), Fit::Grow { bytes: u64::MAX });
    }

    #[test]
    fn the_outgrown_are_freed_when_their_ticket_has_passed() {
        let mut scratch = Scratch::<u64, u64>::new();
        for (buffer, bytes) in [(1, 100), (2, 200), (3, 300)] {
            scratch.install(buffer, bytes, || Ok::<_, Infallible>(buffer * 10)).unwrap();
        }
        assert_eq!((scratch.bytes(), scratch.retired_bytes()), (300, 300));
        let freed = scratch.collect(|&ticket| if ticket == 30 { Ok(true) } else { Err("asked too early") });
        assert_eq!(freed, [Retired { buffer: 2, bytes: 200, ticket: 30 }]);
        assert_eq!(scratch.install(4, 400, || Err("no event")), Err("no event"));
        assert_eq!(scratch.fit(300), Fit::Fits(3));
        let (current, retired) = scratch.drain();
        assert_eq!((current, retired.len(), scratch.bytes()), (Some(3), 1, 0));
    }

    proptest! {
        #[test]
        fn every_buffer_is_freed_once_and_what_was_asked_for_fits(
            steps in proptest::collection::vec((0..1_u64 << 30, any::<bool>()), 0..60),
        ) {
            let mut scratch = Scratch::<u64, u64>::new();
            let (mut made, mut freed) = (0, Vec::new());
            for (bytes, collects) in steps {
                if let Fit::Grow { bytes: larger } = scratch.fit(bytes) {
                    prop_assert!(larger >= bytes && larger > scratch.bytes() || larger == 0);
                    made += 1;
                    scratch.install(made, larger, || Ok::<_, Infallible>(made)).unwrap();
                }
                prop_assert!(matches!(scratch.fit(bytes), Fit::Fits(_)));
                if collects {
                    freed.extend(scratch.collect(|ticket| Ok::<_, Infallible>(ticket % 2 == 0)).into_iter().map(|old| old.buffer));
                }
            }
            let (current, retired) = scratch.drain();
            freed.extend(current);
            freed.extend(retired.into_iter().map(|old| old.buffer));
            freed.sort_unstable();
            prop_assert_eq!(freed, (1..=made).collect::<Vec<_>>());
        }
    }
}

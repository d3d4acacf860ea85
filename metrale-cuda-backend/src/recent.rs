// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Recent`]: what a thread used last, found again without a lock and without counting a reference.

use std::cell::Cell;
use std::sync::Arc;

/// Places of a thread: so many that the few handles it uses in turn seldom share one.
const PLACES: usize = 64;

/// The handles that a thread used last. Whoever takes one out asks it whether it is still what it was, and puts it back
/// after use; a call inside a call finds the place empty and looks its handle up in the table.
///
/// What is kept here may outlive the driver's handle, the backend and the driver. So it holds none of them alive.
pub(crate) struct Recent<T> {
    places: [Cell<Option<Arc<T>>>; PLACES],
}

impl<T> Recent<T> {
    pub(crate) const fn new() -> Self {
        Self { places: [const { Cell::new(None) }; PLACES] }
    }

    #[inline]
    fn place(&self, handle: u64) -> &Cell<Option<Arc<T>>> {
        // The top bits of a product by the golden ratio: handles are addresses, at which low bits say little.
        &self.places[(handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize]
    }

    /// Takes out what was kept last at the handle's place, if it still is what is looked for; else that is let go.
    #[inline]
    pub(crate) fn take(&self, handle: u64, is_it: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let kept = self.place(handle).take()?;
        if is_it(&kept) {
            Some(kept)
        } else {
            let_go(kept);
            None
        }
    }

    /// Does something with what a handle stands for, if it [was kept](Self::keep) and still is what is looked for.
    #[inline]
    pub(crate) fn with<A>(
        &self,
        handle: u64,
        is_it: impl FnOnce(&T) -> bool,
        act: impl FnOnce(&Arc<T>) -> A,
    ) -> Option<A> {
        let kept = self.take(handle, is_it)?;
        let answer = act(&kept);
        self.keep(handle, kept);
        Some(answer)
    }

    /// Keeps what a handle stands for, in the place of what was there.
    #[inline]
    pub(crate) fn keep(&self, handle: u64, what: Arc<T>) {
        if let Some(before) = self.place(handle).replace(Some(what)) {
            let_go(before);
        }
    }
}

/// Out of the way of those that find what they look for.
#[cold]
#[inline(never)]
fn let_go<T>(what: Arc<T>) {
    drop(what);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_once_and_the_last_one_stays() {
        let recent = Recent::new();
        assert_eq!(recent.take(0x5555_0000_1000, |_| true), None);
        let kept = Arc::new(1);
        recent.keep(0x5555_0000_1000, Arc::clone(&kept));
        recent.keep(0x5555_0000_1000, Arc::new(2));
        assert_eq!(Arc::strong_count(&kept), 1, "the first one is let go");
        assert_eq!(recent.take(0x5555_0000_1000, |_| true).as_deref(), Some(&2));
        assert_eq!(recent.take(0x5555_0000_1000, |_| true), None);
        recent.keep(0x5555_0000_1000, Arc::clone(&kept));
        assert_eq!(recent.take(0x5555_0000_1000, |&kept| kept == 2), None);
        assert_eq!(Arc::strong_count(&kept), 1, "one that is not looked for is let go");
    }

    #[test]
    fn what_is_used_in_place_is_kept_on_unless_another_came() {
        let recent = Recent::new();
        assert_eq!(recent.with(8, |_| true, |kept| **kept), None);
        recent.keep(8, Arc::new(1));
        assert_eq!(recent.with(8, |_| true, |kept| **kept), Some(1));
        assert_eq!(
            recent.with(8, |_| true, |_| recent.take(8, |_| true)),
            Some(None),
            "a use inside it finds nothing"
        );
        assert_eq!(recent.with(8, |&kept| kept == 2, |kept| **kept), None);
        assert_eq!(recent.take(8, |_| true), None, "one that is not looked for is let go");
    }

    #[test]
    fn neighbouring_handles_have_places_of_their_own() {
        let recent = Recent::new();
        for step in [1, 256, 0x1_0000] {
            let handles: Vec<u64> = (0..4).map(|n| 0x5555_0000_0000 + n * step).collect();
            handles.iter().for_each(|&handle| recent.keep(handle, Arc::new(handle)));
            let found = handles
                .iter()
                .filter(|&&handle| recent.take(handle, |_| true).as_deref() == Some(&handle))
                .count();
            assert!(found >= 3, "{found} of 4, step {step}");
        }
    }
}

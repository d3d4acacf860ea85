// SPDX-License-Identifier: MIT OR Apache-2.0
//! The highest value of a total, and the part of it that each holder had at that moment.
//!
//! A new peak only increments a number. When a holder first changes after a peak, it keeps the value that it had at that peak
//! beside its present one. So the values at the peak are known at any time without a copy of all holders or a
//! history.
//!
//! ```text
//!   total       10   25   20   22     peak: 25, whose number is 2
//!   changed by   A    B    A    A     A held 10 at the peak and holds 7 now; the 10 was kept when A changed to 5
//! ```
//!
//! The order matters: change every holder first, then [`Highest::raise`]. The change that makes a peak is then part of it.

/// The highest value so far (the height), and its number: how many peaks and resets there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Highest<H> {
    height: H,
    number: u64,
}

impl<H: Copy + Ord> Highest<H> {
    /// Starts at `height`, as if the peak were now.
    pub(crate) fn reset(&mut self, height: H) {
        self.height = height;
        self.number += 1;
    }

    /// Makes `height` the peak if it is above every earlier one, and tells whether it is. Of equal heights the first is the
    /// peak.
    pub(crate) fn raise(&mut self, height: H) -> bool {
        let is_higher = height > self.height;
        if is_higher {
            self.reset(height);
        }
        is_higher
    }

    /// The highest value so far.
    pub(crate) fn height(&self) -> H {
        self.height
    }

    /// The number of this peak, by which holders know whether they changed since.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

/// A value now and at the last of each of `N` kinds of peak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<T, const N: usize = 1> {
    now: T,
    /// For each kind: the value at a peak, and the number of that peak. At any later peak the value was the present one.
    kept: [(T, u64); N],
}

impl<T: Copy + Default, const N: usize> Default for Held<T, N> {
    fn default() -> Self {
        // No peak has this number.
        Self { now: T::default(), kept: [(T::default(), u64::MAX); N] }
    }
}

impl<T: Copy, const N: usize> Held<T, N> {
    /// The value, for a change. First keeps its value at the last peaks, which have these numbers.
    pub(crate) fn change(&mut self, peaks: [u64; N]) -> &mut T {
        for (kept, number) in self.kept.iter_mut().zip(peaks) {
            if kept.1 != number {
                *kept = (self.now, number);
            }
        }
        &mut self.now
    }

    pub(crate) fn now(&self) -> T {
        self.now
    }

    /// The value at the last peak of kind `which`, which has this number.
    pub(crate) fn at_peak(&self, which: usize, number: u64) -> T {
        let (value, of) = self.kept[which];
        if of == number { value } else { self.now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in the file's head: totals 10, 25, 20, 22, changed by A, B, A, A.
    #[test]
    fn a_holder_keeps_its_value_of_the_peak() {
        let mut peak = Highest::default();
        let mut holders = [Held::<u64>::default(); 2];
        for (holder, value, total) in [(0, 10, 10), (1, 15, 25), (0, 5, 20), (0, 7, 22)] {
            *holders[holder].change([peak.number()]) = value;
            peak.raise(total);
        }
        assert_eq!((peak.height(), peak.number()), (25, 2));
        assert_eq!(holders.map(|held| (held.now(), held.at_peak(0, peak.number()))), [(7, 10), (15, 15)]);
    }

    #[test]
    fn kinds_of_peak_are_kept_apart() {
        let mut held = Held::<u64, 2>::default();
        // The first kind has its peak at 1, the second at 2.
        *held.change([0, 0]) = 1;
        *held.change([1, 0]) = 2;
        *held.change([1, 1]) = 3;
        assert_eq!((held.now(), held.at_peak(0, 1), held.at_peak(1, 1)), (3, 1, 2));
        assert_eq!(held.at_peak(0, 2), 3, "at any later peak the present value holds");
    }
}

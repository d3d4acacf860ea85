// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles: numbers that no host pointer, no device address and no other kind of handle shares.

use core::ops::Range;

/// Everything the software driver hands out that is not host memory lies in this window: handles first, device memory
/// behind them. Neither the heap nor mapped files of a process come near it, so a host pointer inside is a mistake.
pub(crate) const WINDOW: Range<u64> = 0x0900_0000_0000..0x2f00_0000_0000;

/// Where device memory lies. A memory pool takes the addresses of twice its device's memory.
pub(crate) const DEVICE_WINDOW: Range<u64> = 0x0a00_0000_0000..0x2f00_0000_0000;

/// The kinds of handles, each with a range of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    Exec,
    Node,
    Pool,
    Physical,
}

impl Kind {
    const COUNT: usize = Self::Physical as usize + 1;
}

/// Counts handles up; none is used twice, so a stale one is recognized.
#[derive(Default)]
pub(crate) struct Handles {
    made: [u64; Kind::COUNT],
}

impl Handles {
    /// Bytes between two handles, so that they look like the pointers they stand for.
    const STEP: u64 = 0x10;
    /// Bytes of one kind's range: 2^32 handles.
    const RANGE: u64 = 0x10_0000_0000;

    pub(crate) fn make(&mut self, kind: Kind) -> u64 {
        let made = &mut self.made[kind as usize];
        *made += 1;
        WINDOW.start + kind as u64 * Self::RANGE + *made * Self::STEP
    }

    /// Whether a handle of this kind was ever handed out.
    pub(crate) fn was_made(&self, kind: Kind, handle: u64) -> bool {
        let first = WINDOW.start + kind as u64 * Self::RANGE + Self::STEP;
        handle >= first
            && (handle - first).is_multiple_of(Self::STEP)
            && (handle - first) / Self::STEP < self.made[kind as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_do_not_share_handles_and_stay_below_device_memory() {
        let mut handles = Handles::default();
        let stream = handles.make(Kind::Stream);
        let event = handles.make(Kind::Event);
        assert_ne!(stream, event);
        assert_ne!(stream, handles.make(Kind::Stream));
        for handle in [stream, event, handles.make(Kind::Node)] {
            assert!(WINDOW.contains(&handle) && !DEVICE_WINDOW.contains(&handle));
        }
        assert!(handles.was_made(Kind::Stream, stream) && handles.was_made(Kind::Event, event));
        for never in [0, 1, stream + 1, event + Handles::STEP, u64::MAX] {
            assert!(!handles.was_made(Kind::Event, never), "{never:#x}");
        }
        assert!(!handles.was_made(Kind::Event, stream));
        const { assert!(WINDOW.start + Kind::COUNT as u64 * Handles::RANGE <= DEVICE_WINDOW.start) };
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's free memory when a run began, against which later readings are held.

use parking_lot::Mutex;

/// Free bytes of a device at the start of a run. The caller asks the driver; this remembers.
#[derive(Debug, Default)]
pub struct FreeMemoryBaseline {
    free_bytes: Mutex<Option<u64>>,
}

impl FreeMemoryBaseline {
    /// No reading yet.
    pub const fn new() -> Self {
        Self { free_bytes: Mutex::new(None) }
    }

    /// Remembers `free_bytes` and returns what was remembered before.
    pub fn set(&self, free_bytes: u64) -> Option<u64> {
        self.free_bytes.lock().replace(free_bytes)
    }

    /// The remembered reading.
    pub fn free_bytes(&self) -> Option<u64> {
        *self.free_bytes.lock()
    }

    /// Bytes taken since the baseline, given the free bytes now: positive when memory was taken, negative
    /// when more is free than at the start (another process ended). `None` without a baseline.
    pub fn used_since(&self, free_bytes_now: u64) -> Option<i64> {
        let before = self.free_bytes()?;
        let used = i128::from(before) - i128::from(free_bytes_now);
        Some(i64::try_from(used).unwrap_or(if used < 0 { i64::MIN } else { i64::MAX }))
    }

    /// Forgets the reading.
    pub fn clear(&self) {
        *self.free_bytes.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_says_which_way_memory_went() {
        let baseline = FreeMemoryBaseline::new();
        assert_eq!(baseline.used_since(1), None);
        // An H200 with a fresh context, then one 2 MiB page less, then one more.
        assert_eq!(baseline.set(149_557_477_376), None);
        assert_eq!(baseline.used_since(149_557_477_376 - (2 << 20)), Some(2 << 20));
        assert_eq!(baseline.used_since(149_557_477_376 + (2 << 20)), Some(-(2 << 20)));
        assert_eq!(baseline.set(10), Some(149_557_477_376));
        baseline.clear();
        assert_eq!(baseline.free_bytes(), None);
    }

    #[test]
    fn readings_at_the_ends_of_the_range_do_not_wrap() {
        let baseline = FreeMemoryBaseline::new();
        baseline.set(u64::MAX);
        assert_eq!(baseline.used_since(0), Some(i64::MAX));
        baseline.set(0);
        assert_eq!(baseline.used_since(u64::MAX), Some(i64::MIN));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a plan asks of the stream-ordered pool: streams, synchronization, what it keeps.

use super::{Plan, Step};

/// When a planned program synchronizes with the device. Only then does a pool give memory back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Synchronize {
    /// After each operation.
    #[default]
    AfterEach,
    /// Only where the plan is [told](Plan::synchronize).
    WhenTold,
}

impl Plan {
    /// The same plan, with a pool that keeps up to `bytes` bytes of pieces at a synchronization, used or not. At first it is 0.
    #[must_use]
    pub fn release_threshold_bytes(mut self, bytes: u64) -> Self {
        self.device.set_release_threshold(bytes);
        self
    }

    /// The same plan, with another rule for when the program synchronizes.
    #[must_use]
    pub fn synchronizing(mut self, when: Synchronize) -> Self {
        self.synchronize = when;
        self
    }

    /// Sets the stream in whose order the next operations are done; 0 at first. Only a pool looks at it: it gives out what was
    /// freed on the same stream before the program synchronizes.
    pub fn set_stream(&mut self, stream: u64) {
        self.device.stream = stream;
    }

    /// Plans a synchronization with the device: the pool gives back what nothing uses, down to its release threshold.
    pub fn synchronize(&mut self) -> Step {
        self.device.synchronize();
        self.pass()
    }

    /// Plans a synchronization with one stream.
    pub fn synchronize_stream(&mut self, stream: u64) -> Step {
        self.device.synchronize_stream(stream);
        self.pass()
    }

    /// Plans `cuMemPoolTrimTo`: the pool gives back what nothing uses, down to `keep_bytes`.
    pub fn trim(&mut self, keep_bytes: u64) -> Step {
        self.device.trim(keep_bytes);
        self.pass()
    }

    /// Bytes live in the pool, as asked for: `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
    pub fn pool_used_bytes(&self) -> u64 {
        self.device.pool().used_bytes()
    }

    /// Bytes that the pool keeps: `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`. They are part of the resident ones.
    pub fn pool_reserved_bytes(&self) -> u64 {
        self.device.pool().reserved_bytes()
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Scanner`]: who looks at the bands, and what it has on the device. What it does is in `device.rs`.

use std::sync::Arc;

use metrale_registry::MetraleRegistry;

use super::knobs::ScanBy;

/// Who looks at the bands, chosen at the first scan.
pub(crate) struct Scanner {
    pub(crate) wanted: ScanBy,
    pub(crate) chosen: Chosen,
}

pub(crate) enum Chosen {
    NotYet,
    Kernel(DeviceTable),
    Copies,
}

/// The loaded kernels and the memory they work on.
pub(crate) struct DeviceTable {
    pub(crate) registry: Arc<MetraleRegistry>,
    pub(crate) check: u64,
    pub(crate) update: u64,
    /// The allocation; 0 while there is none.
    pub(crate) base: u64,
    /// Its capacity in slots.
    pub(crate) slots: usize,
    /// What the counter held when it was last read.
    pub(crate) counted: u32,
}

impl Scanner {
    pub(crate) const fn new(wanted: ScanBy) -> Self {
        Self { wanted, chosen: Chosen::NotYet }
    }

    pub(crate) const fn is_by_kernel(&self) -> Option<bool> {
        match self.chosen {
            Chosen::NotYet => None,
            Chosen::Kernel(_) => Some(true),
            Chosen::Copies => Some(false),
        }
    }
}

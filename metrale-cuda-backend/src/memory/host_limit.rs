// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host can give at most: its memory, within the limit of the process's control group.

use std::panic::Location;

use metrale_ledger::AllocKind;

use super::free::read_meminfo;
use super::{CgroupLimit, MemInfo};
use crate::backend::MetraleCudaBackend;
use crate::error::Result;

/// No current machine has more addresses: 47 bits for a process, and managed memory shares them.
const ADDRESSES_BYTES: u64 = 1 << 47;

/// What no freeing raises, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostMost {
    /// Pinned memory.
    pub(crate) pinned_bytes: u64,
    /// Managed memory: it may lie on the device, on the host, and where the host moves it to.
    pub(crate) managed_bytes: u64,
    /// The control group's limit, where there is one.
    pub(crate) limit_bytes: Option<u64>,
}

impl HostMost {
    /// From what the host says of itself, if it does, for a device of `device_bytes`.
    pub(crate) fn new(host: Option<&MemInfo>, limit_bytes: Option<u64>, device_bytes: u64) -> Self {
        let memory_bytes = host.map(|host| host.total_bytes);
        let swap_bytes = host.and_then(|host| host.swap_total_bytes).unwrap_or(0);
        let on_host = memory_bytes.into_iter().chain(limit_bytes).min();
        Self {
            pinned_bytes: on_host.unwrap_or(ADDRESSES_BYTES),
            managed_bytes: on_host.map_or(ADDRESSES_BYTES, |bytes| {
                bytes.saturating_add(swap_bytes).saturating_add(device_bytes)
            }),
            limit_bytes,
        }
    }
}

impl MetraleCudaBackend {
    /// The limit of the process's control group, read now.
    pub(crate) fn cgroup_limit(&self) -> Option<CgroupLimit> {
        self.config().cgroup_limit.or_else(CgroupLimit::of_this_process)
    }

    /// What no freeing raises, read now.
    pub(crate) fn host_most(&self) -> HostMost {
        let host = read_meminfo(self.config().meminfo_path.as_deref()).ok();
        let limit = self.cgroup_limit().and_then(CgroupLimit::bytes);
        HostMost::new(host.as_ref(), limit, self.total_bytes())
    }

    /// Refuses pinned memory beyond the control group's limit: the driver might return it, and the system would end the
    /// process when it is used.
    pub(crate) fn within_host_limit(&self, bytes: usize, site: &'static Location<'static>) -> Result<()> {
        let Some(limit) = self.cgroup_limit().and_then(CgroupLimit::bytes) else { return Ok(()) };
        let pinned = self.ledger_writer().ledger().pinned_bytes() as u64;
        if pinned.saturating_add(bytes as u64) <= limit {
            return Ok(());
        }
        Err(self.out_of_memory(bytes, bytes, AllocKind::Pinned, site, None).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_memory_and_limit_counts_and_swap_for_managed_memory_alone() {
        let host = MemInfo::parse(b"MemTotal: 1000 kB\nMemFree: 10 kB\nSwapTotal: 100 kB\n").unwrap();
        let of = |host, limit| {
            let most = HostMost::new(host, limit, 7 << 10);
            (most.pinned_bytes >> 10, most.managed_bytes >> 10)
        };
        assert_eq!(of(Some(&host), None), (1000, 1107));
        assert_eq!(of(Some(&host), Some(500 << 10)), (500, 607));
        assert_eq!(of(Some(&host), Some(5000 << 10)), (1000, 1107));
        assert_eq!(of(None, Some(500 << 10)), (500, 507));
        assert_eq!(of(None, None), (1 << 37, 1 << 37));
        assert_eq!(HostMost::new(Some(&host), None, u64::MAX).managed_bytes, u64::MAX);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bytes may be accessed, and the accesses.

use super::account::MANAGED_ONCE_BYTES;
use super::{Allocation, AllocationKind, Memory};
use crate::model::host;
use crate::profile::KernelBounds;

/// Freed ranges that are remembered for replays.
const MAX_FREED: usize = 1 << 16;
/// Freed ranges that are looked at for one access: an earlier one may reach over the nearest.
const FREED_SEARCH: usize = 64;

/// How an access to memory is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Work enqueued now: what lies outside is a fault.
    Strict,
    /// Replay of a graph: memory that was freed before is touched without a fault, as on hardware.
    Replay,
}

/// An access outside of every allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stray {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// Where an accepted access goes.
enum Target {
    Device,
    /// Places in the store and their bytes, in order.
    Mapped(Vec<(u64, u64)>),
    Host,
    /// Freed and back with the device: reads show fresh bytes, writes vanish.
    Nowhere,
}

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Read,
    Write,
}

impl Memory {
    /// The allocation that holds `address`, with its base.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&base, allocation) = self.allocations.range(..=address).next_back()?;
        (address - base < allocation.bytes).then_some((base, allocation))
    }

    /// The one allocation that holds all of a range; the first of several where mappings that may be accessed lie side by
    /// side.
    pub(crate) fn covers(&self, address: u64, len: u64) -> Option<&Allocation> {
        let (base, allocation) = self.find(address)?;
        if let AllocationKind::Mapped(_) = allocation.kind {
            return self.is_mapped_for(address, len, Intent::Read).then_some(allocation);
        }
        (len <= allocation.bytes - (address - base)).then_some(allocation)
    }

    /// Whether all of a range is mapped and some device may access it so.
    fn is_mapped_for(&self, address: u64, len: u64, intent: Intent) -> bool {
        let Some(end) = address.checked_add(len) else { return false };
        let mut at = address;
        while at < end {
            let Some((base, allocation)) = self.find(at) else { return false };
            match &allocation.kind {
                AllocationKind::Mapped(mapping) if intent == Intent::Read && mapping.can_read() => {}
                AllocationKind::Mapped(mapping) if intent == Intent::Write && mapping.can_write() => {}
                _ => return false,
            }
            at = base + allocation.bytes;
        }
        true
    }

    /// Where the bytes of a mapped range are kept.
    fn places_of(&self, address: u64, len: u64) -> Vec<(u64, u64)> {
        let (mut at, end) = (address, address + len);
        let mut places = Vec::new();
        while at < end
            && let Some((base, allocation)) = self.find(at)
            && let AllocationKind::Mapped(mapping) = &allocation.kind
        {
            let bytes = (base + allocation.bytes).min(end) - at;
            places.push((mapping.place() + (at - base), bytes));
            at += bytes;
        }
        places
    }

    /// The pinned (not managed) allocation that holds all of a host range.
    pub(crate) fn pinned(&self, address: usize, len: usize) -> Option<&Allocation> {
        self.covers(address as u64, len as u64).filter(|a| matches!(a.kind, AllocationKind::Pinned))
    }

    /// Whether a range still lies in the allocation of that serial.
    pub(crate) fn is_still(&self, address: u64, len: u64, serial: u64) -> bool {
        self.covers(address, len).is_some_and(|allocation| allocation.serial == serial)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.allocations.iter().map(|(&base, allocation)| (base, allocation))
    }

    /// Whether an access would be accepted.
    pub(crate) fn check(&mut self, address: u64, len: u64, access: Access) -> Result<(), Stray> {
        self.target(address, len, access, Intent::Read).map(drop)
    }

    /// Reads memory that the device reaches.
    pub(crate) fn read(&mut self, address: u64, out: &mut [u8], access: Access) -> Result<(), Stray> {
        match self.target(address, out.len() as u64, access, Intent::Read)? {
            Target::Device | Target::Nowhere => self.store.read(address, out),
            Target::Mapped(places) => {
                let mut rest = out;
                for (place, bytes) in places {
                    let (part, behind) = rest.split_at_mut(bytes as usize);
                    self.store.read(place, part);
                    rest = behind;
                }
            }
            // SAFETY: the range lies in a live pinned or managed block, which this instance owns.
            Target::Host => unsafe { host::read(address as usize, out) },
        }
        Ok(())
    }

    /// Writes memory that the device reaches.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8], access: Access) -> Result<(), Stray> {
        match self.target(address, bytes.len() as u64, access, Intent::Write)? {
            Target::Device => self.store.write(address, bytes),
            Target::Mapped(places) => {
                let mut rest = bytes;
                for (place, bytes) in places {
                    let (part, behind) = rest.split_at(bytes as usize);
                    self.store.write(place, part);
                    rest = behind;
                }
            }
            // SAFETY: the range lies in a live pinned or managed block, which this instance owns.
            Target::Host => unsafe { host::write(address as usize, bytes) },
            Target::Nowhere => {}
        }
        Ok(())
    }

    /// Repeats a little-endian word over `len` bytes.
    pub(crate) fn fill(&mut self, address: u64, word: u32, len: u64, access: Access) -> Result<(), Stray> {
        match self.target(address, len, access, Intent::Write)? {
            Target::Device => self.store.fill(address, word, len),
            Target::Mapped(places) => {
                let mut done = 0;
                for (place, bytes) in places {
                    // The word as seen from this place's start.
                    self.store.fill(place, word.rotate_right(8 * (done % 4) as u32), bytes);
                    done += bytes;
                }
            }
            Target::Host => {
                let mut piece = [0; 4096];
                piece.chunks_exact_mut(4).for_each(|to| to.copy_from_slice(&word.to_le_bytes()));
                let mut done = 0;
                while done < len {
                    let part = (len - done).min(4096);
                    // SAFETY: the whole range lies in a live pinned or managed block, which this instance owns.
                    unsafe { host::write((address + done) as usize, &piece[..part as usize]) }
                    done += part;
                }
            }
            Target::Nowhere => {}
        }
        Ok(())
    }

    /// Decides where an access goes, and counts the device's touch of managed memory.
    fn target(&mut self, address: u64, len: u64, access: Access, intent: Intent) -> Result<Target, Stray> {
        if len == 0 {
            return Ok(Target::Nowhere);
        }
        let stray = Stray { address, bytes: len };
        if let Some(allocation) = self.covers(address, len) {
            let host = allocation.is_host();
            match allocation.kind {
                AllocationKind::Managed { resident_bytes: 0 } => self.touch_managed(address),
                AllocationKind::Mapped(_) if self.is_mapped_for(address, len, intent) => {
                    return Ok(Target::Mapped(self.places_of(address, len)));
                }
                AllocationKind::Mapped(_) => return Err(stray),
                _ => {}
            }
            return Ok(if host { Target::Host } else { Target::Device });
        }
        if self.in_pending_free(address, len) {
            return Ok(Target::Device);
        }
        let bounds = self.profiles.first().map(|profile| profile.kernel_bounds).unwrap_or_default();
        let in_page = self.mapped.range(..=address).next_back().is_some_and(|(&base, &bytes)| {
            let inside = address - base;
            inside < bytes && len <= bytes - inside
        });
        if bounds == KernelBounds::Page && in_page {
            return Ok(Target::Device);
        }
        if access == Access::Replay && self.was_freed(address, len) {
            self.freed_touch = Some(stray);
            return Ok(if in_page { Target::Device } else { Target::Nowhere });
        }
        Err(stray)
    }

    /// Whether a range lies in an allocation whose free is pending. Several can lie over each other where a pool's space was
    /// used again before the first free was reached.
    fn in_pending_free(&self, address: u64, len: u64) -> bool {
        let around = |base: u64, bytes: u64| address - base < bytes && len <= bytes - (address - base);
        self.pending_frees.range(..=(address, u64::MAX)).any(|(&(base, _), free)| around(base, free.bytes))
    }

    /// What a replay touched of freed memory since this was asked last.
    pub(crate) fn take_freed_touch(&mut self) -> Option<Stray> {
        self.freed_touch.take()
    }

    pub(super) fn remember_freed(&mut self, address: u64, bytes: u64) {
        match self.freed.get_mut(&address) {
            Some(longest) => *longest = bytes.max(*longest),
            None => {
                if self.freed_order.len() == MAX_FREED
                    && let Some(oldest) = self.freed_order.pop_front()
                {
                    self.freed.remove(&oldest);
                }
                self.freed.insert(address, bytes);
                self.freed_order.push_back(address);
            }
        }
    }

    fn was_freed(&self, address: u64, len: u64) -> bool {
        self.freed.range(..=address).rev().take(FREED_SEARCH).any(|(&base, &bytes)| {
            let inside = address - base;
            inside < bytes && len <= bytes - inside
        })
    }

    fn touch_managed(&mut self, address: u64) {
        let Some((&base, allocation)) = self.allocations.range_mut(..=address).next_back() else { return };
        debug_assert!(address - base < allocation.bytes);
        let device = allocation.device;
        let page = self.profiles[device].packing.page_bytes();
        let first = if self.accounts[device].managed == 0 { MANAGED_ONCE_BYTES } else { 0 };
        // Managed memory may pass what the device has: the rest then stays on the host.
        let free = self.accounts[device].free().saturating_sub(first);
        let resident = allocation.bytes.next_multiple_of(page).min(free);
        if let AllocationKind::Managed { resident_bytes } = &mut allocation.kind {
            *resident_bytes = resident;
        }
        self.accounts[device].managed += first + resident;
    }
}

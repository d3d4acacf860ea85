// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same allocations in another order.

use std::collections::BTreeMap;
use std::fmt;

use super::Plan;
use super::peaks::{Moment, RESIDENT};
use crate::ByteSize;
use crate::placement::{Filling, PackingRule, PlacementError};

/// How many allocations there are of each size, as the rule keeps it.
type Sizes = BTreeMap<u64, u64>;

/// An order in which to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Order {
    /// The largest first, so that the small ones fill what is left of chunks.
    LargestFirst,
    /// The smallest first.
    SmallestFirst,
    /// Each class of sizes (rounded up as the rule keeps them), by powers of two, in chunks of its own.
    ByClass,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 3] = [Self::LargestFirst, Self::SmallestFirst, Self::ByClass];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LargestFirst => "largest first",
            Self::SmallestFirst => "smallest first",
            Self::ByClass => "each size class in chunks of its own",
        }
    }
}

/// What a set of allocations takes in each order, and in one arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Orders {
    /// Bytes that they take as they were planned.
    pub planned_bytes: u64,
    /// Bytes that they take in each order.
    pub orders: Vec<(Order, u64)>,
    /// Bytes that they take in one arena: each rounded up to the granularity, all together to whole pages.
    pub arena_bytes: u64,
    /// The operation of a plan after which they were live, from 0: that of the resident peak. None where they were given as
    /// sizes alone.
    pub operation: Option<u64>,
    /// Allocations of the plan that were freed before it, or made way for another one.
    pub frees_before: u64,
}

impl Orders {
    /// What `sizes`, in bytes, take in each order under `rule`; `planned_bytes` is what they take as planned. Sizes of 0 take
    /// nothing.
    ///
    /// # Errors
    /// [`PlacementError::TooLarge`] where 64 bits cannot count what they take.
    pub fn of(planned_bytes: u64, sizes: &[u64], rule: PackingRule) -> Result<Self, PlacementError> {
        let granularity = rule.granularity_bytes();
        let arena = sizes
            .iter()
            .try_fold(0u64, |sum, bytes| sum.checked_add(bytes.checked_next_multiple_of(granularity)?));
        let mut kept = Sizes::new();
        for &bytes in sizes.iter().filter(|&&bytes| bytes > 0) {
            *kept.entry(rule.reserved_bytes(bytes)?).or_insert(0) += 1;
        }
        Self::with_arena(planned_bytes, &kept, rule, (arena, rule.page_bytes()))
    }

    /// As [`of`](Self::of), given the sum of the sizes in an arena and the pages it has a whole number of.
    fn with_arena(
        planned_bytes: u64,
        sizes: &Sizes,
        rule: PackingRule,
        (arena, page): (Option<u64>, u64),
    ) -> Result<Self, PlacementError> {
        let total = |sum: Option<u64>| sum.ok_or(PlacementError::TooLarge { bytes: u64::MAX });
        let take = |sizes: &mut dyn Iterator<Item = (&u64, &u64)>| {
            let mut device = Filling::new(rule);
            for (&reserved, &count) in sizes {
                device.add(reserved, count)?;
            }
            Ok(device.resident_bytes())
        };
        let mut by_class = Some(0u64);
        for class in 0..u64::BITS {
            let of_class = 1 << class..=u64::MAX >> (u64::BITS - 1 - class);
            let resident = take(&mut sizes.range(of_class).rev())?;
            by_class = by_class.and_then(|sum| sum.checked_add(resident));
        }
        let orders = vec![
            (Order::LargestFirst, take(&mut sizes.iter().rev())?),
            (Order::SmallestFirst, take(&mut sizes.iter())?),
            (Order::ByClass, total(by_class)?),
        ];
        let arena_bytes = total(arena.and_then(|sum| sum.checked_next_multiple_of(page)))?;
        Ok(Self { planned_bytes, orders, arena_bytes, operation: None, frees_before: 0 })
    }

    /// The best order and what it would save, in bytes; none where none saves anything.
    pub fn best(&self) -> Option<(Order, u64)> {
        let (order, bytes) = *self.orders.iter().min_by_key(|(_, bytes)| *bytes)?;
        let saved = self.planned_bytes.checked_sub(bytes).filter(|&saved| saved > 0)?;
        Some((order, saved))
    }
}

impl fmt::Display for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.best() {
            Some((order, saved)) => {
                writeln!(f, "allocated anew, {}, they would take {} less", order.name(), ByteSize(saved))
            }
            None => writeln!(f, "no other order would take less"),
        }
    }
}

impl Plan {
    /// What the allocations of the resident peak would take in another order, on a device with nothing else on it. Where nothing
    /// is freed, these are all allocations. Where something was freed [before](Orders::frees_before) the peak, they may take less
    /// in any order, their own included, because the holes that those frees left are not there. Created
    /// and pooled memory takes the same in any order. The cost grows with the number
    /// of different sizes at the peak.
    ///
    /// # Errors
    /// As [`Orders::of`]; not for what this plan has placed, unless another order takes more than 64 bits can count.
    pub fn orders(&self) -> Result<Orders, PlacementError> {
        let &Moment { operation, gone, arena_bytes, resident_bytes, any_order_bytes, .. } =
            self.peaks.moment(RESIDENT);
        let sizes = self.peaks.sizes().collect();
        let page = self.device.page_bytes(self.allocator());
        let packed = Orders::with_arena(resident_bytes, &sizes, self.rule(), (Some(arena_bytes), page))?;
        let orders = packed
            .orders
            .into_iter()
            .map(|(order, bytes)| bytes.checked_add(any_order_bytes).map(|all| (order, all)))
            .collect::<Option<_>>()
            .ok_or(PlacementError::TooLarge { bytes: any_order_bytes })?;
        Ok(Orders { operation, frees_before: gone, orders, ..packed })
    }
}

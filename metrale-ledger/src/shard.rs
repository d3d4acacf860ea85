// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of the ledger that one thread can work in without the others: some pages, and what was done in them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::group::{Held, Key};
use crate::misuse::Graveyard;
use crate::mixer::Mixer;
use crate::pages::Pages;

/// Small enough to call all back in a microsecond, large enough that eight threads seldom want the same one.
#[cfg(not(loom))]
pub(crate) const SHARDS: usize = 32;
#[cfg(loom)]
pub(crate) const SHARDS: usize = 2;

/// A group as a shard knows it.
pub(crate) struct Known {
    pub(crate) key: Key,
    /// Names of this shard's own, so that threads do not meet in counting references.
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) tag: Option<Arc<str>>,
    /// What was done in this shard while it was dealt out.
    pub(crate) held: Held,
}

#[derive(Default)]
pub(crate) struct Shard {
    pub(crate) pages: Pages,
    /// Frees seen while it was dealt out.
    pub(crate) graveyard: Graveyard,
    /// By the book's number.
    pub(crate) groups: HashMap<u32, Known, Mixer>,
    pub(crate) numbers: HashMap<Key, u32, Mixer>,
    /// The space's state when it was dealt out: nothing spanning comes or goes until it is back.
    pub(crate) spanning_state: u64,
    /// Which dealing out this is.
    pub(crate) phase: u64,
}
